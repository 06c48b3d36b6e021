"""The same tokens as llama.cpp's, for real vocabularies."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.errors import UnsupportedModelError
from slipstream.models.gguf import read_header
from slipstream.tokenizer import load_tokenizer
from tests.tokenizer.corpus import lines
from tests.tokenizer.vocabularies import BorrowedVocabulary, Tokenizer, both, differences

pytestmark = pytest.mark.model

SEPARATOR = "\n__ggml_vocab_test__\n"
WITH_EXAMPLES = ["command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm"]
WITH_EXAMPLES += ["mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"]
ALL_LINES = {"llama-bpe", "llama-spm", "qwen2", "gpt-2"}


def special_names(ours: Tokenizer) -> list[str]:
    """Names of tokens that are cut out of a text, and some that only look like it."""
    special = [token for token in range(ours.size) if not ours.token_bytes(token)]
    return [*(ours.token_name(token) for token in special[:40]), "<|", "|>", "<", ">", "</"]


def check(path: Path, count: int) -> tuple[Tokenizer, BorrowedVocabulary]:
    ours, theirs = both(read_header(path))
    assert (ours.size, ours.bos, ours.end_tokens) == (theirs.size, theirs.bos, theirs.end_tokens)
    for token in range(0, ours.size, 1 + ours.size // 20_000):
        assert (ours.token_bytes(token), ours.token_name(token)) == (
            theirs.token_bytes(token),
            theirs.token_name(token),
        )
    wrong = differences(ours, theirs, lines(special_names(ours), count))
    assert not wrong, f"{len(wrong)} lines differ, first\n" + "\n".join(wrong[:5])
    return ours, theirs


def test_smollm2(smollm2: Path) -> None:
    check(smollm2, 5_400)


def test_gemma(gemma: Path) -> None:
    check(gemma, 5_400)


@pytest.mark.parametrize("name", [*WITH_EXAMPLES, "aquila", "gpt-neox"])
def test_llama_cpps_own_vocabularies(peer_vocabularies: Path, name: str) -> None:
    path = peer_vocabularies / f"ggml-vocab-{name}.gguf"
    ours, _ = check(path, 5_400 if name in ALL_LINES else 1_200)
    if name in WITH_EXAMPLES:
        texts = path.with_name(path.name + ".inp").read_text(encoding="utf-8").split(SEPARATOR)
        ids = path.with_name(path.name + ".out").read_text(encoding="utf-8").split("\n")
        for text, line in zip(texts, ids, strict=False):
            assert ours.tokenize(text, add_bos=False, parse_special=False) == list(map(int, line.split())), text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bert-bge", "of an unknown kind ('bert')"),
        ("nomic-bert-moe", "of an unknown kind ('t5')"),
        ("baichuan", "do not say which of '-->' and '---' comes first"),
    ],
)
def test_what_is_refused(peer_vocabularies: Path, name: str, reason: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer(read_header(peer_vocabularies / f"ggml-vocab-{name}.gguf"))
    assert reason in str(caught.value)


@pytest.fixture(scope="module")
def llama_spm(peer_vocabularies: Path) -> tuple[Tokenizer, BorrowedVocabulary]:
    return both(read_header(peer_vocabularies / "ggml-vocab-llama-spm.gguf"))


@pytest.fixture(scope="module")
def llama_bpe(peer_vocabularies: Path) -> tuple[Tokenizer, BorrowedVocabulary]:
    return both(read_header(peer_vocabularies / "ggml-vocab-llama-bpe.gguf"))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60), kind=st.sampled_from(["llama_spm", "llama_bpe"]))
def test_any_text(request: pytest.FixtureRequest, text: str, kind: str) -> None:
    ours, theirs = request.getfixturevalue(kind)
    assert differences(ours, theirs, [text]) == []
    tokens = ours.tokenize(text, add_bos=False, parse_special=False)
    assert ours.detokenize(tokens) == text or "▁" in text
