"""What two vocabularies have in common, by what tokens stand for."""

from pathlib import Path

import pytest

from slipstream.models import Vocabulary
from slipstream.tokenizer import Overlap, load_tokenizer, overlap
from tests.tokenizer import vocabularies


def test_spelling_does_not_matter(tmp_path: Path) -> None:
    """All 256 bytes, " the" and "in"; not what one kind alone has, nor control tokens, though they are called alike."""
    level = vocabularies.byte_level(tmp_path / "level.gguf", [("<s>", 3), ("\n\n", 4)], ["Ġ t", "Ġt he", "h e", "i n"])
    words = [("▁the", -1.0), ("in", -2.0), ("é", -3.0), ("e", -4.0)]
    pieces = vocabularies.scored(tmp_path / "pieces.gguf", words, [("\n\n", 4)])
    one, other = (Vocabulary.from_header(header) for header in (level, pieces))
    common = overlap(one, other)
    texts = [set(), set()]  # type: list[set[bytes]]
    for header, found in zip((level, pieces), texts, strict=True):
        tokenizer = load_tokenizer(header)
        found.update(filter(None, map(tokenizer.token_bytes, range(tokenizer.size))))
    assert common == Overlap(len(texts[0] & texts[1]), len(texts[0]), len(texts[1]))
    assert {b"\n\n", b"in", b"e"} <= texts[0] & texts[1]
    assert overlap(other, one) == (common.shared, common.other, common.one)
    assert overlap(one, one).share == 1


@pytest.mark.model
def test_smollm2_and_gemma(smollm2: Path, gemma3_270m: Path) -> None:
    from slipstream.models import read_model_header

    common = overlap(*(Vocabulary.from_header(read_model_header(path)) for path in (smollm2, gemma3_270m)))
    assert common.share == pytest.approx(0.94, abs=0.01)
