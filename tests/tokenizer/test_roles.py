"""What tokens are for, where files say it and where only their names do."""

import random
from pathlib import Path

import pytest

from slipstream.tokenizer.roles import _END_NAMES, _KNOWN, _SHOWN
from tests.tokenizer.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    assert_same_vocabulary,
    both,
    byte_level,
    scored,
)

NAMES = sorted({*_END_NAMES, *_SHOWN, *(name for names in _KNOWN.values() for name in names), "<|plamo:eos|>", "<pad>"})


@pytest.mark.parametrize("name", NAMES)
def test_names_that_llama_cpp_knows(tmp_path: Path, name: str) -> None:
    """Whatever type the file gives them; and so does the vocabulary as a whole."""
    for kind in (NORMAL, CONTROL, USER_DEFINED):
        assert_same_vocabulary(
            *both(byte_level(tmp_path / "it.gguf", [(name, kind), ("<end>", CONTROL)], eos_token_id=257))
        )


def test_names_together(tmp_path: Path) -> None:
    """One name of each meaning: of two, llama.cpp takes the one its hash table has first."""
    chance = random.Random(3)
    for _ in range(60):
        names = [chance.choice(known) for known in _KNOWN.values() if chance.random() < 0.6]
        names += chance.sample(_END_NAMES, 6) + chance.sample(_SHOWN, 2) + ["<|end|>", "</s>", "<|plamo:eos|>"]
        unrelated = [name for name in dict.fromkeys(names) if not _ambiguous(name, names)]
        extra = [(name, chance.choice([NORMAL, CONTROL, USER_DEFINED])) for name in unrelated]
        values = {"eos_token_id": 256 + chance.randrange(len(extra))} if chance.random() < 0.7 else {}
        assert_same_vocabulary(*both(byte_level(tmp_path / "it.gguf", extra, **values)))


def _ambiguous(name: str, names: list[str]) -> bool:
    """Whether it is one of several with a meaning that does not by itself end a text."""
    return any(
        name in known and len(set(known) & set(names)) > 1
        for meaning, known in _KNOWN.items()
        if meaning.startswith("fim_")
    )


@pytest.mark.parametrize(
    "key", ["bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep", "fim_pre", "prefix", "suffix"]
)
@pytest.mark.parametrize("token", [97, 258, 100_000])
def test_ids_that_are_stated(tmp_path: Path, key: str, token: int) -> None:
    extra = [("<a>", NORMAL), ("<PRE>", NORMAL), ("[PAD]", NORMAL), ("<|im_end|>", NORMAL)]
    values = {f"{key}_token_id": token, "add_bos_token": True}
    assert_same_vocabulary(*both(byte_level(tmp_path / "it.gguf", extra, **values)))


@pytest.mark.parametrize("add_bos", [None, False, True])
def test_what_begins_a_text(tmp_path: Path, add_bos: bool | None) -> None:
    values = {} if add_bos is None else {"add_bos_token": add_bos}
    for header in (
        scored(tmp_path / "spm.gguf", [("a", -1.0)], **values),
        byte_level(tmp_path / "gpt-2.gguf", **values),
        byte_level(tmp_path / "llama-3.gguf", pre="llama-bpe", bos_token_id=3, **values),
        byte_level(tmp_path / "glm.gguf", pre="glm4", eos_token_id=9, **values),
    ):
        ours, theirs = both(header)
        if ours.bos is None and add_bos:  # llama.cpp has nothing to begin with either
            assert theirs.bos is None
        assert_same_vocabulary(ours, theirs)


def test_the_bytes_of_every_type(tmp_path: Path) -> None:
    types = [0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, 9, -1]
    extra = [(f"Ġx▁ é{kind}", kind) for kind in types] + [
        ("<0x4a>", BYTE),
        ("", NORMAL),
        ("", USER_DEFINED),
        ("", CONTROL),
    ]
    assert_same_vocabulary(*both(byte_level(tmp_path / "bpe.gguf", extra)))
    assert_same_vocabulary(*both(scored(tmp_path / "spm.gguf", [("▁a▁", -1.0)], extra)))
