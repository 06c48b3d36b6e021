"""What a file's tensors are stored as; the name of a quantisation says that of most of them only."""

from collections import Counter
from collections.abc import Iterable

from slipstream.models.gguf import GgufHeader, TensorInfo
from slipstream.models.gguf_types import TENSOR_TYPES

SUPER_BLOCK = 256
BLOCKS = {one.name: one.block_size for one in TENSOR_TYPES.values()}


def bytes_by_type(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    """Bytes by tensor type, most first."""
    held: Counter[str] = Counter()
    for tensor in tensors:
        held[tensor.type.name] += tensor.nbytes
    return dict(held.most_common())


def fallen_back(header: GgufHeader) -> dict[str, int]:
    """Bytes by type, most first, of the matrices that could not have the type that the file is named after.

    Its blocks are runs of 32 numbers, of 256 for K-quants and most IQ ones, and a row has to be a whole number of them;
    quantisers take another type for matrices of other sizes.
    """
    block = _block(header.quantisation)
    return bytes_by_type(one for one in header.tensors if is_matrix(one) and one.shape[0] % block)


def is_matrix(tensor: TensorInfo) -> bool:
    """Whether it has more than one row."""
    return len([size for size in tensor.shape if size > 1]) > 1


def _block(quantisation: str) -> int:
    """Numbers of a block of a tensor type, or of the types that a file type such as "Q4_K_M" or "IQ3_M" is made of."""
    return BLOCKS.get(quantisation, SUPER_BLOCK)
