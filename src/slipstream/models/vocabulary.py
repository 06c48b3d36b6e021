"""The vocabulary of a model, and whether a draft model speaks the same one.

A draft model that proposes ids as they are (`draft.ModelDrafter`) must mean by each what the target
means; any other drafts through the text (`draft.OtherTokenizerDrafter`). What is the same is decided
here, once:

- Every id that both models have must have the same bytes. One difference refuses the pair.
- The draft model may have more tokens (rows padded for the hardware, say). `compare` returns the
  number of shared ids; a drafter must never propose an id at or above it.
- The target may have more tokens only if they are marked unused: such tokens do not occur in text,
  so the draft model is never fed an id it lacks. Anything else (an added <|im_end|>, say) would
  stop the draft model in the middle of a conversation, so it is refused.
- Beginning and end of a sequence must be the same ids; token types and scores may differ, because
  converters disagree about them and they do not change what an id means.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.errors import ModelFileError, VocabularyMismatchError
from slipstream.models.gguf import GgufHeader
from slipstream.models.packed_strings import PackedStrings

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types, as `llama_token_type` in `llama.h`."""

ADVICE = "Use a smaller model of the target's own family, or `--draft suffix`, which needs no second model."


@dataclass(frozen=True)
class Vocabulary:
    """What ids mean. `tokens` are in the tokenizer's own spelling, not yet plain text.

    `types` [n] int32 holds token types, or is empty if the file has none. Ids are None where the
    file does not state them (the tokenizer's own default then holds).
    """

    model: str
    tokens: PackedStrings
    types: npt.NDArray[np.int32]
    bos_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    add_bos: bool | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def text(self, token: int | None) -> str:
        """The spelling of one token; empty for None and for ids that do not exist."""
        if token is None or not 0 <= token < len(self):
            return ""
        return self.tokens[token].decode(errors="replace")

    @classmethod
    def from_header(cls, header: GgufHeader) -> "Vocabulary":
        """The vocabulary of a model file; ModelFileError if the file has none or an inconsistent one."""
        tokens = header.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, PackedStrings) or not len(tokens):
            raise ModelFileError(f"{header.path} has no vocabulary; give a complete model file.")
        types = header.metadata.get("tokenizer.ggml.token_type", np.zeros(0, np.int32))
        if not isinstance(types, np.ndarray) or len(types) not in (0, len(tokens)):
            raise ModelFileError(f"{header.path} is damaged (token types do not match its tokens); download it again.")
        return cls(
            model=header.text("tokenizer.ggml.model") or "",
            tokens=tokens,
            types=types.astype(np.int32),
            bos_id=header.integer("tokenizer.ggml.bos_token_id"),
            eos_id=header.integer("tokenizer.ggml.eos_token_id"),
            eot_id=header.integer("tokenizer.ggml.eot_token_id"),
            add_bos=header.flag("tokenizer.ggml.add_bos_token"),
        )


def compare(target: Vocabulary, draft: Vocabulary) -> int:
    """Check that a draft model can draft for a target; return how many ids they share.

    Ids below the returned number mean the same to both; the drafter may propose no other. Raises
    VocabularyMismatchError, which counts the differing tokens and shows the first.
    """
    shared = min(len(target), len(draft))
    if target.tokens.encoding(shared) != draft.tokens.encoding(shared):
        raise VocabularyMismatchError(f"{_difference(target, draft, shared)} {ADVICE}")
    if target.model != draft.model:
        raise VocabularyMismatchError(
            f"The target spells tokens as {target.model!r} and the draft model as {draft.model!r}. {ADVICE}"
        )
    for name, ours, theirs in (
        ("begins", target.bos_id, draft.bos_id),
        ("ends", target.eos_id, draft.eos_id),
    ):
        if ours != theirs:
            raise VocabularyMismatchError(
                f"A text {name} with token {_show(target, ours)} for the target and "
                f"{_show(draft, theirs)} for the draft model. {ADVICE}"
            )
    if lacking := _lacking(target, shared):
        raise VocabularyMismatchError(
            f"The draft model lacks {len(lacking)} tokens of the target that can occur in text, "
            f"first {_show(target, lacking[0])}. {ADVICE}"
        )
    return shared


def _difference(target: Vocabulary, draft: Vocabulary, shared: int) -> str:
    pairs = zip(target.tokens, draft.tokens, strict=False)
    differing = [token for token, (ours, theirs) in enumerate(pairs) if ours != theirs]
    first = differing[0]
    return (
        f"Target and draft model have different vocabularies: {len(differing)} of the {shared} tokens "
        f"they could share differ; the first is {first}, which is {target.text(first)!r} in the target and "
        f"{draft.text(first)!r} in the draft model."
    )


def _lacking(target: Vocabulary, shared: int) -> list[int]:
    """The target's ids beyond the shared ones that may occur in text."""
    if len(target.types) != len(target):
        return list(range(shared, len(target)))
    used: list[int] = (np.flatnonzero(target.types[shared:] != UNUSED) + shared).tolist()
    return used


def _show(vocabulary: Vocabulary, token: int | None) -> str:
    return "none" if token is None else f"{token} ({vocabulary.text(token)!r})"
