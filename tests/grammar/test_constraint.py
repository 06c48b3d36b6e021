"""One sequence's state: exact after every rollback, honest when the library gives up."""

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import validate

from slipstream.errors import GrammarError
from slipstream.grammar import Grammar, GrammarConstraint, GrammarVocabulary
from tests.fakes import ByteVocabulary

END, BOS = 256, 257
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "list": {"type": "array", "items": {"enum": ["ab", "ac", "b", 1, None]}, "maxItems": 3},
        "inner": {"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"é": {"type": "number"}}}]},
    },
    "required": ["name", "list"],
    "additionalProperties": False,
}


class Merging(ByteVocabulary):
    """Also has tokens of several bytes, so that a text can be spelt in many ways; prefers the longest."""

    WORDS = (b'{"', b'": ', b"name", b'"name', b', "', b"list", b"ab", b'",', b"\xc3\xa9")
    size = 258 + len(WORDS)

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        data, tokens = text.encode(), []
        while data:
            word = max((word for word in self.WORDS if data.startswith(word)), key=len, default=data[:1])
            tokens.append(258 + self.WORDS.index(word) if word in self.WORDS else word[0])
            data = data[len(word) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self.WORDS[token - 258] if token >= 258 else super().token_bytes(token)


VOCABULARIES = {"bytes": GrammarVocabulary(ByteVocabulary()), "words": GrammarVocabulary(Merging())}
DIGITS = list(b"0123456789.eE-")
GRAMMAR = Grammar.from_json_schema(SCHEMA)


def allowed(constraint: GrammarConstraint) -> list[int]:
    row = np.zeros(constraint._vocabulary.size, np.float32)
    constraint.mask(row)
    assert set(np.unique(row)) <= {0.0, -np.inf}, "what may come keeps its logit"
    return np.flatnonzero(row == 0).tolist()  # type: ignore[no-any-return]


def fresh(tokens: list[int], vocabulary: str = "bytes") -> GrammarConstraint:
    constraint = GRAMMAR.constraint(VOCABULARIES[vocabulary])
    assert all(constraint.advance(token) for token in tokens)
    return constraint


def random_text(seed: int, vocabulary: str) -> list[int]:
    """Tokens up to the end, each drawn from those that may come; texts of digits and letters are cut short."""
    generator, constraint, tokens = random.Random(seed), GRAMMAR.constraint(VOCABULARIES[vocabulary]), []
    while not tokens or tokens[-1] != END:
        options = allowed(constraint)
        plain = [token for token in options if token not in DIGITS and not 128 <= token < 256]
        tokens.append(END if END in options else generator.choice(plain or options))
        assert constraint.advance(tokens[-1])
    return tokens


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(VOCABULARIES)))
def test_whatever_the_mask_allows_ends_as_valid_json(seed: int, vocabulary: str) -> None:
    spelt = (ByteVocabulary() if vocabulary == "bytes" else Merging()).token_bytes
    text = b"".join(map(spelt, random_text(seed, vocabulary)))
    validate(json.loads(text), SCHEMA)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 50), st.sampled_from(list(VOCABULARIES)), st.data())
def test_a_rollback_leaves_no_trace(seed: int, vocabulary: str, data: st.DataObject) -> None:
    """Advance along a text, stray from it by as many tokens as one likes, come back: as if nothing had been."""
    text = random_text(seed, vocabulary)
    cut = data.draw(st.integers(0, len(text)))
    constraint = fresh(text[:cut], vocabulary)
    for _ in range(data.draw(st.integers(1, 3))):
        taken = 0
        for _ in range(data.draw(st.integers(0, 12))):
            token = data.draw(st.sampled_from(allowed(constraint) or [0]))
            taken += constraint.advance(token)
            if data.draw(st.booleans()):
                constraint.forced()
        constraint.advance(BOS)
        constraint.rollback(taken)
        assert allowed(constraint) == allowed(fresh(text[:cut], vocabulary))
    assert all(constraint.advance(token) for token in text[cut:])
    assert constraint.reason == ""


def test_a_token_that_may_not_come_changes_nothing() -> None:
    constraint = fresh(list(b'{"na'))
    before = allowed(constraint)
    assert not any(constraint.advance(token) for token in (*b"xn", END, BOS))
    assert allowed(constraint) == before
    assert constraint.advance(ord("m"))


def test_the_end_comes_where_the_text_is_complete_and_nothing_after_it() -> None:
    constraint = fresh(list(b'{"name": "a", "list": []'))
    assert END not in allowed(constraint)
    assert not constraint.complete
    constraint.advance(ord("}"))
    assert constraint.complete
    assert allowed(constraint) == [END]
    assert constraint.advance(END)
    assert allowed(constraint) == []
    assert not constraint.advance(END)
    assert constraint.forced() == []
    constraint.rollback(2)
    assert END not in allowed(constraint)
    assert constraint.advance(ord("}"))


def test_where_text_may_go_on_or_end_both_are_allowed() -> None:
    constraint = Grammar.from_regex("[0-9]{1,3}").constraint(VOCABULARIES["bytes"])
    assert END not in allowed(constraint)
    constraint.advance(ord("1"))
    assert allowed(constraint) == [*b"0123456789", END]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_what_is_forced_may_come_and_is_spelt_as_the_tokenizer_does(vocabulary: str) -> None:
    constraint = fresh([], vocabulary)
    spelt = VOCABULARIES[vocabulary].tokenizer
    forced = list(constraint.forced())
    assert b'{"name": "'.startswith(spelt.decode_bytes(forced))
    assert len(spelt.decode_bytes(forced)) > 5
    assert allowed(constraint) == allowed(fresh([], vocabulary)), "looking ahead leaves no trace"
    assert all(constraint.advance(token) for token in forced)
    if vocabulary == "words":
        assert max(forced) >= 258


def test_a_fork_goes_its_own_way() -> None:
    constraint = fresh(list(b'{"name": "'))
    for other in (constraint.fork(), copy.deepcopy(constraint)):
        before = allowed(constraint)
        assert all(other.advance(token) for token in b'x", ')
        other.rollback(1)
        assert allowed(constraint) == before
        assert allowed(other) == [ord(" ")]


LIMITED = "start: w\nw: /[a-z]/ w | /[a-z]/ w | /[b-y]/ w |\n"


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gives up after a few steps."""
    import llguidance

    few = llguidance.LLParserLimits(verbose_errors=False, step_max_items=60)
    monkeypatch.setattr("slipstream.grammar.constraint.limits", lambda: few)


def failing() -> tuple[GrammarConstraint, int]:
    """A constraint that has failed, and how many tokens it took before."""
    constraint = Grammar.from_lark(LIMITED).constraint(VOCABULARIES["bytes"])
    return constraint, advance_until_it_fails(constraint)


def advance_until_it_fails(constraint: GrammarConstraint) -> int:
    for taken in range(1000):
        try:
            allowed(constraint)
        except GrammarError:
            return taken
        assert constraint.advance(ord("c")) or constraint.reason
    raise AssertionError("it never gives up")


@pytest.mark.usefixtures("little_work")
def test_where_the_library_gives_up_there_is_a_reason() -> None:
    constraint, _ = failing()
    for other in (constraint, constraint.fork()):
        with pytest.raises(GrammarError, match=r"^The text could not go on by its grammar \(.+\); simplify .+\.$"):
            allowed(other)
        assert not other.complete
        assert other.forced() == []
        assert not other.advance(ord("c"))
        assert not other.advance(END)


@pytest.mark.usefixtures("little_work")
def test_a_failure_that_a_draft_met_is_forgotten_with_it() -> None:
    _, most = failing()
    constraint = Grammar.from_lark(LIMITED).constraint(VOCABULARIES["bytes"])
    other = constraint.fork()
    for _ in range(2):
        taken = advance_until_it_fails(constraint)
        assert taken == most
        constraint.rollback(len(constraint._tokens))
        assert constraint.reason == ""
        assert allowed(constraint) == allowed(other)


@pytest.mark.usefixtures("little_work")
def test_a_failure_stays_where_the_text_met_it() -> None:
    constraint, _ = failing()
    constraint.rollback(0)
    with pytest.raises(GrammarError):
        allowed(constraint)
