"""The target's distribution over the tokens that can be drafted, from its last state: nothing else has to be stored."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.train.layers import normalised
from slipstream.train.target import Weights
from slipstream.train.texts import Text


def frequent_tokens(
    texts: Sequence[Text], count: int, always: Sequence[int], others: Sequence[int] = ()
) -> NDArray[np.int64]:
    """[count] ids, ascending, of the tokens that answers have most often; fewer if answers have fewer.

    always: ids that are among them whatever happens (the end tokens)
    others: ids that fill the places which answers leave, the first ones first
    """
    times = Counter(dict.fromkeys(always, 0))
    for text in texts:
        times.update(text.tokens[text.prompt :].tolist())
    first = dict.fromkeys(
        [*always, *(token for token, _ in sorted(times.items(), key=lambda one: (-one[1], one[0]))), *others]
    )
    return np.sort(np.array(list(first)[:count], np.int64))


class Teacher:
    """What the target would say next.

    ids:       [n] the tokens that can be drafted, ascending
    embedding: [vocabulary, width] float16, of all tokens
    output:    [n, width] rows of the output matrix
    """

    def __init__(self, weights: Weights, ids: NDArray[np.int64], device: str) -> None:
        self.ids = ids
        self.device = device
        decoder = weights.decoder
        assert decoder.embedding is not None, "only heads borrow theirs"
        self.norm = torch.from_numpy(weights.read(decoder.output_norm.weight)).to(device)
        self.epsilon = decoder.output_norm.epsilon
        self.embedding = torch.from_numpy(weights.read(decoder.embedding)).to(device, torch.float16)
        self.output = torch.from_numpy(weights.read(decoder.output, ids.tolist())).to(device)

    def chances(self, last: Tensor, mass: Tensor) -> Tensor:
        """[n, drafted tokens] probabilities. last: [n, width] output of the last layer; mass: [n] as in `States`."""
        logits = normalised(last, self.norm, self.epsilon) @ self.output.T
        return torch.exp(logits.sub_(mass[:, None]).clamp_(max=0.0))
