"""The native runtime on a real model: its own bits, and llama.cpp's answers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.models import read_header
from slipstream.runtime import load_llamacpp, requantize
from slipstream.runtime.native import NativeModel, load_native
from tests.runtime.native.against_llamacpp import logits_of, perplexity
from tests.runtime.native.helpers import cached, feed, one_by_one, same_bits, same_cache

pytestmark = pytest.mark.model

CONTEXT = 600
"""Tokens before the rows that are compared."""


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Iterator[NativeModel]:
    loaded = load_native(smollm2, context_length=1024, max_sequences=2)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def text(model: NativeModel) -> list[int]:
    """Prose and code, as a user's context would be."""
    pages = ["CONTRIBUTING.md", "README.md", "src/slipstream/core/verify.py"]
    root = Path(__file__).parents[3]
    whole = "\n".join((root / page).read_text() for page in pages)
    tokens = model.vocabulary.tokenize(whole, add_bos=True, parse_special=False)
    assert len(tokens) > CONTEXT + 300
    return tokens


def test_rows_of_every_company_are_the_same_bits(model: NativeModel, text: list[int]) -> None:
    one, other = model.open_session(), model.open_session()
    feed(model, one, text[:500])
    feed(model, one, text[500:CONTEXT])
    for start in range(0, CONTEXT, 77):
        feed(model, other, text[start : min(start + 77, CONTEXT)])
    assert same_cache(cached(model, one), cached(model, other))
    eight = text[CONTEXT : CONTEXT + 8]
    rows = model.forward([Segment(one, eight)])[0]
    together = np.array([rows.logits(row) for row in range(8)])
    assert same_bits(together, one_by_one(model, other, eight))
    # Siblings, the last of which is the text.
    tree = model.forward([Segment(one, [5, 6, *eight], [-1, -1, -1, *range(2, 9)])])[0]
    assert same_bits(np.array([tree.logits(row) for row in range(2, 10)]), together)
    one.close()
    other.close()


def test_it_agrees_with_llamacpp(model: NativeModel, smollm2: Path, text: list[int]) -> None:
    """As nearly as either agrees with itself where nothing is rounded: a 4-bit model's activations are, to 8 bits.

    With the same values in F32 the two agree in 998 of 1000 positions, and with those either agrees in 94 to 97 of
    100, on texts like these. `scripts/bench agreement` reads much more.
    """
    tokens = text[:500]
    theirs = load_llamacpp(smollm2, context_length=512)
    ours, expected = logits_of(model, tokens), logits_of(theirs, tokens)
    theirs.close()
    agree = (ours.argmax(axis=1) == expected.argmax(axis=1)).mean()
    assert agree >= 0.92
    assert abs(perplexity(ours, tokens) / perplexity(expected, tokens) - 1) < 0.01


def test_a_mixture_agrees_with_llamacpp(smollm2: Path, text: list[int], tmp_path: Path) -> None:
    """Rows of 576 are no whole super-blocks: most matrices get other types, those of 1536 inputs K-quants."""
    path = requantize(smollm2, tmp_path / "it.gguf", "Q4_K_M")
    types = {tensor.type.name for tensor in read_header(path).tensors if len(tensor.shape) > 1}
    assert types == {"Q4_K", "Q6_K", "Q5_0", "Q8_0"}
    tokens = text[:300]
    ours, theirs = load_native(path, context_length=512), load_llamacpp(path, context_length=512)
    found, expected = logits_of(ours, tokens), logits_of(theirs, tokens)
    ours.close()
    theirs.close()
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.9
    assert abs(perplexity(found, tokens) / perplexity(expected, tokens) - 1) < 0.02


def test_it_answers(model: NativeModel) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    session = model.open_session()
    logits = feed(model, session, model.vocabulary.tokenize(prompt, add_bos=True, parse_special=True))[-1]
    answer: list[int] = []
    while (token := int(logits.argmax())) not in model.vocabulary.end_tokens and len(answer) < 24:
        answer.append(token)
        logits = feed(model, session, [token])[-1]
    session.close()
    assert "Paris" in model.vocabulary.detokenize(answer)
