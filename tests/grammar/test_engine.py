"""Generations with a grammar: valid whatever the model would have said, and the same whoever drafts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import validate

from slipstream import Completion, Engine
from slipstream.core.protocols import Policy
from slipstream.errors import GrammarError, UnsupportedModelError, UsageError
from slipstream.grammar import Grammar
from slipstream.policy import AdaptivePolicy, CostTable, FixedLength
from tests.engine.test_engine import DRAFTERS
from tests.fakes import ByteVocabulary, FakeModel, SmallVocabulary
from tests.tiny_models import tiny_llama

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "pattern": "^[a-z]{0,6}$"},
        "words": {"type": "array", "items": {"enum": ["red", "green", "blue", "greenish"]}, "maxItems": 4},
        "more": {"type": ["boolean", "null"]},
    },
    "required": ["title", "words", "more"],
    "additionalProperties": False,
}
GRAMMAR = Grammar.from_json_schema(SCHEMA)
PROMPT = list(b'Say {"title": "')
COSTS = {1: 1e-3, 2: 1.1e-3, 4: 1.2e-3, 8: 1.5e-3, 16: 3e-3}


def make_engine(drafter: str, policy: Policy, **model: Any) -> Engine:
    vocabulary = ByteVocabulary()
    return Engine(FakeModel(vocabulary, **model), DRAFTERS[drafter](vocabulary), policy)


def policies() -> dict[str, Policy]:
    return {
        "chains": FixedLength(5),
        "trees": FixedLength(3, siblings=3),
        "auto": AdaptivePolicy(CostTable(COSTS), trees=True),
    }


def outcome(completion: Completion) -> tuple[object, ...]:
    return completion.text, completion.tokens, completion.logprobs, completion.finish_reason


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(DRAFTERS)),
    st.sampled_from(list(policies())),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 1.0]),
            "top_p": st.sampled_from([1.0, 0.8]),
            "min_p": st.sampled_from([0.0, 0.1]),
            "frequency_penalty": st.sampled_from([0.0, 0.4]),
            "seed": st.integers(0, 2**32),
            "max_tokens": st.sampled_from([150, 150, 3, 20]),
            "stop": st.sampled_from([(), (), ("red",)]),
        }
    ),
)
def test_text_ids_logprobs_and_ending_are_those_of_plain_decoding(
    drafter: str, policy: str, options: dict[str, Any]
) -> None:
    plain = make_engine("none", FixedLength(0)).generate(PROMPT, grammar=GRAMMAR, **options)
    fast = make_engine(drafter, policies()[policy]).generate(PROMPT, grammar=GRAMMAR, **options)
    assert outcome(fast) == outcome(plain)
    assert plain.statistics.rounds == len(plain.tokens)
    if plain.finish_reason == "stop" and not options["stop"]:
        validate(json.loads(plain.text), SCHEMA)
        assert plain.tokens[-1] == 256


def test_what_is_forced_is_drafted_for_free_and_always_right() -> None:
    completion = make_engine("none", FixedLength(8)).generate(PROMPT, grammar=GRAMMAR, seed=3, temperature=1.0)
    assert completion.finish_reason == "stop"
    assert completion.drafter == "grammar"
    assert completion.timings.draft_n_accepted == completion.timings.draft_n > 20
    assert completion.statistics.rounds < len(completion.tokens) / 2


def test_streamed_tokens_say_that_the_grammar_drafted_them() -> None:
    with make_engine("none", FixedLength(8)).stream(PROMPT, grammar=SCHEMA, seed=3) as stream:
        drafters = {token.drafter for token in stream if token.accepted}
    assert drafters == {"grammar"}


def test_speculation_that_is_off_stays_off() -> None:
    completion = make_engine("none", FixedLength(0)).generate(PROMPT, grammar=GRAMMAR, seed=3)
    assert (completion.drafter, completion.timings.draft_n) == ("none", 0)
    assert completion.speculation()["enabled"] is False


def test_a_model_without_rollback_decodes_plainly() -> None:
    completion = make_engine("none", FixedLength(4), rollback=False).generate(PROMPT, grammar=GRAMMAR, seed=3)
    assert (completion.drafter, completion.timings.draft_n) == ("none", 0)
    validate(json.loads(completion.text), SCHEMA)


def test_a_generation_without_a_grammar_knows_nothing_of_it() -> None:
    engine = make_engine("suffix", FixedLength(4))
    before = outcome(engine.generate(PROMPT, seed=3, max_tokens=30))
    assert engine.generate(PROMPT, grammar=GRAMMAR, seed=3, max_tokens=30).drafter == "suffix+grammar"
    assert engine.drafter_name == "suffix"
    assert [drafter.name for drafter in engine.drafters] == ["suffix"]
    after = engine.generate(PROMPT, seed=3, max_tokens=30)
    assert (outcome(after), after.drafter) == (before, "suffix")


def test_several_at_once_have_a_state_each() -> None:
    engine = make_engine("suffix", FixedLength(4), max_rows=64)
    prompts = [PROMPT, PROMPT[:5], list(b"x")]
    together = engine.generate_many(prompts, grammar=GRAMMAR, seed=5, temperature=1.0)
    alone = [make_engine("none", FixedLength(0)).generate(p, grammar=GRAMMAR, seed=5, temperature=1.0) for p in prompts]
    assert [outcome(one) for one in together] == [outcome(one) for one in alone]
    assert len({one.text for one in together}) > 1


def test_a_budget_may_cut_the_text() -> None:
    completion = make_engine("suffix", FixedLength(4)).generate(PROMPT, grammar=GRAMMAR, seed=1, max_tokens=7)
    assert (completion.text, completion.finish_reason) == ('{"title', "length")


def test_where_the_end_is_banned_and_nothing_else_may_come_the_text_ends_all_the_same() -> None:
    engine = make_engine("none", FixedLength(4))
    completion = engine.generate(PROMPT, grammar=GRAMMAR, seed=1, logit_bias={256: -float("inf")})
    assert completion.finish_reason == "stop"
    validate(json.loads(completion.text), SCHEMA)


@pytest.mark.parametrize(
    ("grammar", "says"),
    [({"type": "nothing"}, "Invalid type"), ("object", "must be an object, not str"), ({"$ref": "#"}, "no text")],
)
def test_an_impossible_grammar_is_refused_before_anything_is_computed(grammar: Any, says: str) -> None:
    engine = make_engine("suffix", FixedLength(4))
    with pytest.raises(UsageError, match=says):
        engine.generate(PROMPT, grammar=grammar)
    assert isinstance(engine.target, FakeModel)
    assert (engine.target.forwards, engine.target.open_sessions) == (0, 0)


def test_a_model_without_an_end_says_so() -> None:
    engine = Engine(FakeModel(SmallVocabulary(5)), policy=FixedLength(4))
    with pytest.raises(UnsupportedModelError, match="no end token"):
        engine.generate([0, 1], grammar=Grammar.json_object())


@pytest.fixture
def torn(monkeypatch: pytest.MonkeyPatch) -> Grammar:
    """A grammar that the library gives up on after a few tokens."""
    import llguidance

    few = llguidance.LLParserLimits(verbose_errors=False, step_max_items=60)
    monkeypatch.setattr("slipstream.grammar.constraint.limits", lambda: few)
    return Grammar.from_lark('start: w "!"\nw: /[a-z]/ w | /[a-z]/ w | /[b-y]/ w | /[a-z]/\n')


LONG: dict[str, Any] = {"seed": 2, "temperature": 1.0, "logit_bias": {ord("!"): -100.0}}


@pytest.mark.parametrize("drafter", ["none", "suffix", "model"])
def test_a_grammar_that_the_library_gives_up_on_is_an_error(drafter: str, torn: Grammar) -> None:
    engine = make_engine(drafter, FixedLength(4))
    with pytest.raises(GrammarError, match="could not go on"):
        engine.generate(list(b"abab"), grammar=torn, **LONG)
    assert engine.generate(list(b"abab"), max_tokens=5).finish_reason == "length", "and the engine goes on"


def test_it_ends_that_text_and_no_other(torn: Grammar) -> None:
    engine = make_engine("suffix", FixedLength(4), max_rows=64)
    batch = engine.batch()
    generations = [
        engine.prepare(list(b"abab"), grammar=torn, **LONG),
        engine.prepare(list(b"abab"), max_tokens=60, seed=2, logit_bias={256: -100.0}),
    ]
    for generation in generations:
        batch.add(generation)
    while not batch.finished:
        batch.play_round()
    batch.close()
    assert [generation.completion.finish_reason for generation in generations] == ["error", "length"]
    assert isinstance(generations[0].sequence.failure, GrammarError)


def test_texts_with_and_without_a_grammar_share_a_batch_and_a_policy() -> None:
    """The grammar's drafter takes part where it is needed; nobody's text depends on it."""
    for policy in policies().values():
        engine = make_engine("suffix", policy, max_rows=64)
        batch = engine.batch()
        options: dict[str, Any] = {"seed": 2, "temperature": 1.0}
        generations = [
            engine.prepare(PROMPT, grammar=GRAMMAR, **options),
            engine.prepare(PROMPT, max_tokens=100, **options),
            engine.prepare(PROMPT, grammar=GRAMMAR, num_draft_tokens=0, choice=1, **options),
        ]
        for generation in generations:
            batch.add(generation)
        while not batch.finished:
            batch.play_round()
        batch.close()
        plain = make_engine("none", FixedLength(0))
        assert outcome(generations[0].completion) == outcome(plain.generate(PROMPT, grammar=GRAMMAR, **options))
        assert outcome(generations[1].completion) == outcome(plain.generate(PROMPT, max_tokens=100, **options))
        assert generations[2].completion.timings.draft_n == 0
        validate(json.loads(generations[2].completion.text), SCHEMA)


def test_control_tokens_are_spelled_on_request() -> None:
    """<bos> is a control token of this vocabulary; without the option it is not part of the text."""
    grammar = Grammar.from_lark('start: <bos> "a"')
    engine = make_engine("none", FixedLength(4))
    assert engine.generate(PROMPT, grammar=grammar).text == "a"

    class Named(ByteVocabulary):
        def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
            if parse_special and text == "<bos>":
                return [257]
            return super().tokenize(text, add_bos=add_bos, parse_special=parse_special)

    named = Engine(FakeModel(Named()), policy=FixedLength(4))
    assert named.generate(PROMPT, grammar=grammar, spelled=["<bos>", "a", "nothing of the kind"]).text == "<bos>a"


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine without drafters that was loaded from a file, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_llama(tmp_path / "model.gguf")
    with Engine.load(tmp_path / "model.gguf", draft=None) as engine:
        yield engine


def test_costs_are_measured_when_a_grammar_first_needs_them(loaded: Engine) -> None:
    unmeasured = loaded.policy
    loaded.generate("a", max_tokens=2)
    assert loaded.policy is unmeasured
    grammar = Grammar.from_regex("abcdefgh[ab]")
    completion = loaded.generate("a", grammar=grammar, max_tokens=12)
    policy = loaded.policy
    assert isinstance(policy, AdaptivePolicy)
    assert policy is not unmeasured
    assert len(policy.costs.points) > 1
    assert completion.drafter == "grammar"
    loaded.generate("a", grammar=grammar, max_tokens=12)
    assert loaded.policy is policy, "once is enough"
