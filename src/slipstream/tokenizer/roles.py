"""What each token is for: text, control, end of a generation.

Files state less than one needs and some state it wrongly, so llama.cpp knows some tokens by their names. It is followed
here to the letter, so that a model ends its answers in the same places whoever tokenises.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slipstream.models.gguf import GgufHeader
from slipstream.models.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from slipstream.tokenizer.specification import Specification, stated_id

Find = Callable[[str], int | None]
"""The id of a token by its spelling."""

# What a file may state, and the names by which such a token is known where it does not.
_KNOWN = {
    "eot_token_id": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom_token_id": ("<|eom_id|>",),
    "fim_pre_token_id": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf_token_id": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid_token_id": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
_OLD_KEYS = {
    "fim_pre_token_id": "prefix_token_id",
    "fim_suf_token_id": "suffix_token_id",
    "fim_mid_token_id": "middle_token_id",
}
_ENDING = ("eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")
_END_NAMES = (
    *_KNOWN["eot_token_id"],
    *_KNOWN["eom_token_id"],
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
)
_NOT_SWALLOWING = ("<unk>", "<s>", "<|endoftext|>")
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Control tokens of gpt-oss that are rendered as text."""


class Roles(NamedTuple):
    """What all tokens of a vocabulary are for.

    attributes: [n] uint8, one bit `1 << type` for each type that a token has; it may have two
    end_tokens: what ends a generation
    swallowing: tokens that take the blanks behind them out of the text
    """

    attributes: npt.NDArray[np.uint8]
    end_tokens: frozenset[int]
    swallowing: frozenset[int]

    def having(self, *types: int) -> npt.NDArray[np.int64]:
        """The tokens of any of these types, ascending."""
        return np.flatnonzero(self.attributes & sum(1 << kind for kind in types))


def roles(header: GgufHeader, specification: Specification, find: Find) -> Roles:
    """Decide what the tokens of a file are for."""
    types = specification.types
    attributes = np.left_shift(1, np.where((types < 0) | (types > BYTE), 0, types)).astype(np.uint8)
    special = {name: _special(header, name, find, attributes) for name in _KNOWN}
    ends = {special[name] for name in _ENDING} | {specification.eos}
    for name in _END_NAMES:
        if (token := find(name)) is not None:
            ends.add(token)
            attributes[token] |= 1 << CONTROL
    for name in _SHOWN:
        if (token := find(name)) is not None:
            attributes[token] = 1 << USER_DEFINED
    _correct(ends, attributes, find)
    return Roles(
        attributes, frozenset(token for token in ends if token is not None), _swallowing(header, attributes, find)
    )


def _special(header: GgufHeader, name: str, find: Find, attributes: npt.NDArray[np.uint8]) -> int | None:
    """The token that the file states, or else the first one with a known name, which is then a control token."""
    for key in (_OLD_KEYS.get(name), name):
        if key and (token := stated_id(header, key, len(attributes))) is not None:
            return token
    known = [token for text in _KNOWN[name] if (token := find(text)) is not None]
    if not known:
        return None
    attributes[min(known)] |= 1 << CONTROL
    return min(known)


def _correct(ends: set[int | None], attributes: npt.NDArray[np.uint8], find: Find) -> None:
    """Two names that end nothing in some families: `<|end|>` of gpt-oss and Solar, `</s>` of Gemma 4 and PLaMo."""

    def ending(*names: str) -> bool:
        return any(token in ends for name in names if (token := find(name)) is not None)

    if ending("<|end|>") and ending("<|call|>", "<|calls|>") and ending("<|return|>", "<|flush|>"):
        _demote("<|end|>", USER_DEFINED, ends, attributes, find)
    if ending("</s>") and ending("<|tool_response>", "<|plamo:eos|>"):
        _demote("</s>", NORMAL, ends, attributes, find)


def _demote(name: str, kind: int, ends: set[int | None], attributes: npt.NDArray[np.uint8], find: Find) -> None:
    """Make it a token of this type that ends nothing."""
    token = find(name)
    assert token is not None
    ends.discard(token)
    attributes[token] = 1 << kind


def _swallowing(header: GgufHeader, attributes: npt.NDArray[np.uint8], find: Find) -> frozenset[int]:
    """Phi 3 alone has them; its files are known by their name."""
    name = (header.text("general.name") or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    special = attributes & (1 << CONTROL | 1 << USER_DEFINED | 1 << UNKNOWN)
    swallowing = {*np.flatnonzero(special).tolist(), find("</s>")} - {find(text) for text in _NOT_SWALLOWING}
    return frozenset(token for token in swallowing if token is not None)
