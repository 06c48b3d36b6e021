"""The runtime on a real model."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp import LlamaCppModel
from tests.runtime.helpers import compute, feed

pytestmark = pytest.mark.model

TOLERANCE = 0.5
"""Logits of this 4-bit model spread over tens of units; kernels for other row counts move them by tenths."""

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Iterator[LlamaCppModel]:
    loaded = load_llamacpp(smollm2, context_length=512, max_sequences=2)
    yield loaded
    loaded.close()


def test_it_answers(model: LlamaCppModel) -> None:
    session = model.open_session()
    tokens = model.vocabulary.tokenize(PROMPT, add_bos=True, parse_special=True)
    logits = feed(model, session, tokens)[-1]
    answer: list[int] = []
    while (token := int(logits.argmax())) not in model.vocabulary.end_tokens and len(answer) < 24:
        answer.append(token)
        logits = feed(model, session, [token])[-1]
    session.close()
    assert "Paris" in model.vocabulary.detokenize(answer)


@pytest.mark.parametrize("text", ["def f(x):\n    return x**2\n", "日本語とemoji 🌊", " two  spaces ", "\0"])
def test_round_trip(model: LlamaCppModel, text: str) -> None:
    tokens = model.vocabulary.tokenize(text, add_bos=False, parse_special=False)
    assert model.vocabulary.detokenize(tokens) == text


def test_rollback_and_neighbours_change_little(model: LlamaCppModel) -> None:
    """Verification's situation: drafts beside each other, some taken back, against plain decoding."""
    tokens = model.vocabulary.tokenize(PROMPT, add_bos=True, parse_special=True)
    first, second = model.open_session(), model.open_session()
    feed(model, first, tokens)
    plain = feed(model, first, tokens[:1])[-1]
    first.truncate(len(tokens))
    feed(model, second, tokens[:7])
    model.forward([Segment(second, tokens[7:10]), Segment(first, [5, 6, 7])])
    rows = model.forward([Segment(second, tokens[7:10]), Segment(first, [*tokens[:1], 6, 7])])
    verified = np.array(rows[1].logits(0))
    assert np.abs(verified - plain).max() < TOLERANCE
    assert np.abs(verified - compute(model, first, [6])[0]).max() > 4 * TOLERANCE
    first.close()
    second.close()


def test_control_tokens(model: LlamaCppModel) -> None:
    names = {model.vocabulary.token_name(token) for token in model.vocabulary.end_tokens}
    assert {"<|im_end|>", "<|endoftext|>"} <= names
    assert model.vocabulary.bos is None
    assert model.vocabulary.size == 49152


def test_memory_is_about_the_file(model: LlamaCppModel, smollm2: Path) -> None:
    assert model.memory_parts["weights"] == pytest.approx(smollm2.stat().st_size, rel=0.05)
    layers, key_value_heads, width = 30, 3, 64
    assert model.memory_parts["kv_cache"] == 2 * 512 * layers * key_value_heads * width * 2 * 2
