"""The engine on a model without weights: exact, clean after every ending, and honest in its figures."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import Engine
from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Capabilities, Drafter, Growth
from slipstream.core.tree import ROOT
from slipstream.draft import ModelDrafter, SuffixDrafter
from slipstream.draft.base import BaseDrafter
from slipstream.engine.engine import CHARACTERS_PER_TOKEN
from slipstream.errors import ChatTemplateError, ContextLimitError, RuntimeUnavailableError, UsageError
from slipstream.models import ChatTemplate
from slipstream.policy import FixedLength
from tests.fakes import ByteVocabulary, FakeModel, SmallVocabulary

TEMPLATE = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class RandomTrees(BaseDrafter):
    """Bushy nonsense: the walk must not care."""

    name = "random trees"

    def __init__(self, size: int) -> None:
        self.random, self.size = random.Random(5), size

    def extend(self, frontier: object) -> None:
        for _, draft, limit, _siblings in frontier:  # type: ignore[attr-defined]
            for _ in range(limit):
                parent = self.random.randrange(ROOT, len(draft))
                token = self.random.randrange(self.size)
                if draft.child(parent, token) is None:
                    draft.add(token, parent, source=self.name)


def draft_model(vocabulary: ByteVocabulary, seed: int = 0) -> ModelDrafter:
    return ModelDrafter(FakeModel(vocabulary, seed=seed, order=1, sharpness=3.0, name="small"))


DRAFTERS: dict[str, Callable[[ByteVocabulary], list[Drafter]]] = {
    "none": lambda vocabulary: [],
    "suffix": lambda vocabulary: [SuffixDrafter()],
    "model": lambda vocabulary: [draft_model(vocabulary)],
    "same model": lambda vocabulary: [ModelDrafter(FakeModel(vocabulary))],
    "suffix+model": lambda vocabulary: [SuffixDrafter(), draft_model(vocabulary)],
    "two models": lambda vocabulary: [draft_model(vocabulary, 1), draft_model(vocabulary, 2)],
    "random trees": lambda vocabulary: [RandomTrees(vocabulary.size)],
}


def make_engine(drafter: str = "suffix", num_draft_tokens: int = 4, endless: bool = False, **model: object) -> Engine:
    vocabulary = SmallVocabulary(6, frozenset() if endless else frozenset({5}))
    target = FakeModel(vocabulary, **model)  # type: ignore[arg-type]
    return Engine(target, DRAFTERS[drafter](vocabulary), FixedLength(num_draft_tokens), template=TEMPLATE)


options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.5]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.2]),
        "frequency_penalty": st.sampled_from([0.0, 0.3]),
        "seed": st.integers(0, 2**32),
        "max_tokens": st.integers(1, 40),
        "stop": st.sampled_from([(), ("ab",), ("ca", "bbb")]),
    }
)


@settings(max_examples=80, deadline=None)
@given(
    options, st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 9), st.sampled_from(list(DRAFTERS))
)
def test_text_ids_logprobs_and_ending_are_those_of_plain_decoding(
    options: dict[str, object], prompt: list[int], num_draft_tokens: int, drafter: str
) -> None:
    plain = make_engine("none").generate(prompt, **options)  # type: ignore[arg-type]
    fast = make_engine(drafter, num_draft_tokens=num_draft_tokens).generate(prompt, **options)  # type: ignore[arg-type]
    for field in ("text", "tokens", "logprobs", "finish_reason", "seed"):
        assert getattr(fast, field) == getattr(plain, field), field


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("room", [1, 2, 3, 5, 8])
def test_the_end_of_the_context_is_that_of_plain_decoding(drafter: str, room: int) -> None:
    prompt = [0, 1, 2] * 10
    results = [
        make_engine(name, context_length=len(prompt) + room).generate(prompt, seed=3, temperature=0.2)
        for name in ("none", drafter)
    ]
    assert results[0].tokens == results[1].tokens
    assert results[0].finish_reason == results[1].finish_reason
    assert len(results[1].tokens) <= room


@pytest.mark.parametrize("drafter", ["none", "suffix", "model", "suffix+model", "random trees"])
def test_several_sequences_get_the_texts_they_get_alone(drafter: str) -> None:
    prompts = [[0, 1, 2, 3] * 3, [4, 4, 1], [2, 2, 2, 2]]
    together = make_engine(drafter, max_rows=64).generate_many(prompts, seed=4, temperature=1.0, max_tokens=30)
    alone = [make_engine(drafter).generate(prompt, seed=4, temperature=1.0, max_tokens=30) for prompt in prompts]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.text for one in together] == [one.text for one in alone]


@settings(max_examples=60, deadline=None)
@given(options, st.integers(1, 9), st.randoms(use_true_random=False), st.sampled_from(["none", "suffix", "model"]))
def test_a_prediction_changes_nothing(
    options: dict[str, object], num_draft_tokens: int, random: random.Random, drafter: str
) -> None:
    prompt = [0, 1, 2, 3, 3, 2]
    plain = make_engine("none").generate(prompt, **options)  # type: ignore[arg-type]
    predicted = [token for token in plain.tokens for token in edited(token, random)]
    engine = make_engine(drafter, num_draft_tokens=num_draft_tokens)
    fast = engine.generate(prompt, prediction=predicted, **options)  # type: ignore[arg-type]
    for field in ("text", "tokens", "logprobs", "finish_reason", "seed"):
        assert getattr(fast, field) == getattr(plain, field), field


def edited(token: int, random: random.Random) -> list[int]:
    """Most tokens as they are, some left out, exchanged or doubled."""
    return random.choice([[token]] * 9 + [[], [(token + 1) % 5], [token, token]])


def test_a_prediction_that_is_right_makes_few_rounds() -> None:
    plain = make_engine("none", endless=True).generate([0, 1], seed=1, temperature=1.0, max_tokens=50)
    engine = make_engine("none", endless=True)
    fast = engine.generate([0, 1], seed=1, temperature=1.0, max_tokens=50, prediction=plain.tokens)
    assert fast.tokens == plain.tokens
    assert fast.statistics.rounds == 10, "five tokens a round: a draft of four, and one"
    assert fast.drafted_by("prediction") == (40, 0)
    assert fast.drafter == "prediction"
    wrong = engine.generate([0, 1], seed=1, temperature=1.0, max_tokens=50, prediction=plain.tokens[::-1])
    accepted, refused = wrong.drafted_by("prediction")
    assert wrong.tokens == plain.tokens
    assert refused > 0
    assert accepted < 40
    assert engine.generate([0, 1], seed=1, max_tokens=5, num_draft_tokens=0, prediction=[1]).drafter == "none"


@pytest.mark.parametrize("spelling", [1, 3, 40])
def test_a_long_prediction_is_not_tokenised_to_its_end(monkeypatch: pytest.MonkeyPatch, spelling: int) -> None:
    """spelling: letters of a token, here all the same."""
    engine, read = make_engine("none", endless=True), []

    def tokenize(text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        read.append(len(text))
        return [0] * (len(text) // spelling)

    monkeypatch.setattr(engine.target.vocabulary, "tokenize", tokenize)
    context = engine.target.context_length
    prediction = engine.prepare([0, 1], seed=1, prediction="a" * 10_000_000).sequence.prediction
    assert len(prediction) == context
    assert max(read) <= 4 * max(CHARACTERS_PER_TOKEN, spelling + 1) * context
    assert engine.prepare([0, 1], seed=1, prediction="a" * 2 * spelling).sequence.prediction == [0, 0]


def test_only_the_text_that_has_a_prediction_is_drafted_for_from_it() -> None:
    engine = make_engine("none", endless=True, max_sessions=2)
    plain = engine.generate([0, 1], seed=1, temperature=1.0, max_tokens=20)
    batch = engine.batch()
    with_one = engine.prepare([0, 1], seed=1, temperature=1.0, max_tokens=20, prediction=plain.tokens)
    without = engine.prepare([0, 1], seed=1, temperature=1.0, max_tokens=20)
    batch.add(without)
    batch.add(with_one)
    while not batch.finished:
        batch.play_round()
    batch.close()
    assert with_one.completion.tokens == without.completion.tokens == plain.tokens
    assert with_one.completion.drafted_by("prediction")[0] > 10
    assert without.completion.statistics.drafted == 0


def test_streamed_tokens_are_the_completion() -> None:
    engine = make_engine("suffix", endless=True)
    with engine.stream([0, 1, 2] * 6, seed=1, temperature=0.3, max_tokens=40) as stream:
        tokens = list(stream)
    completion = stream.completion
    assert [token.id for token in tokens] == completion.tokens
    assert "".join(token.text for token in tokens) == completion.text
    assert [token.logprob for token in tokens] == completion.logprobs
    assert sum(token.accepted for token in tokens) == completion.timings.draft_n_accepted > 0
    assert {token.drafter for token in tokens} == {"", "suffix"}
    assert all(bool(token.drafter) == token.accepted for token in tokens)


def test_figures_add_up() -> None:
    completion = make_engine("same model", endless=True).generate(
        [0, 1], seed=1, temperature=1.0, top_p=1.0, min_p=0.0, max_tokens=60
    )
    statistics, timings = completion.statistics, completion.timings
    assert statistics.committed == len(completion.tokens) == timings.predicted_n
    assert statistics.rounds < statistics.committed
    assert completion.speculation()["mean_accepted_length"] == statistics.committed / statistics.rounds
    # the same model with the same noise is always right
    assert statistics.acceptance_rate == 1.0
    assert set(statistics.accepted_per_position) == {1.0}
    assert sum(statistics.seconds.values()) == pytest.approx(timings.predicted_seconds, rel=0.2)
    assert list(timings.as_dict()) == [
        *("prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "cache_n"),
        *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
        *("draft_n", "draft_n_accepted"),
    ]
    told = timings.as_dict()
    assert told["predicted_per_token_ms"] * told["predicted_n"] == pytest.approx(told["predicted_ms"])


def test_plain_decoding_is_the_loop_with_empty_drafts() -> None:
    completion = make_engine("none").generate([0, 1], seed=1, max_tokens=10)
    assert completion.statistics.drafted == 0
    assert completion.statistics.rounds == len(completion.tokens)
    assert completion.speculation()["enabled"] is False
    assert completion.speculation()["acceptance_rate"] is None


def test_a_second_prompt_reuses_the_common_prefix() -> None:
    engine = make_engine("suffix")
    first = engine.generate([0, 1, 2, 3] * 5, seed=1, max_tokens=8, temperature=0)
    history = [*first.prompt_tokens, *first.tokens]
    second = engine.generate([*history, 0, 1], seed=1, max_tokens=8, temperature=0)
    assert second.timings.cache_n == len(history) - 1
    assert second.timings.cache_n + second.timings.prompt_n == len(history) + 2
    assert second.tokens == make_engine("none").generate([*history, 0, 1], seed=1, max_tokens=8, temperature=0).tokens


def test_a_model_without_rollback_decodes_plainly_and_says_so() -> None:
    engine = make_engine("model", rollback=False)
    assert engine.drafters == []
    assert "cannot take tokens back" in engine.notices[0]
    prompt = [0, 1, 2] * 3
    plain = make_engine("none").generate(prompt, seed=2)
    assert engine.generate(prompt, seed=2).tokens == plain.tokens
    assert engine.generate(prompt, seed=2).tokens == plain.tokens, "the KV cache is rebuilt, not rolled back"


def test_cancel_ends_at_the_next_round_and_keeps_what_there_is() -> None:
    engine = make_engine("none")
    stream = engine.stream([0, 1], seed=1, max_tokens=50)
    seen = [next(stream) for _ in range(3)]
    stream.cancel()
    assert list(stream) == []
    assert stream.completion.tokens == [token.id for token in seen]
    assert stream.completion.finish_reason == "cancelled"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_two_hundred_generations_with_random_endings_leak_nothing(drafter: str) -> None:
    engine, chance = make_engine(drafter, max_sessions=1), random.Random(1)
    expected = engine.generate([0, 1, 2, 3] * 4, seed=5, max_tokens=20).tokens
    for _ in range(200):
        prompt = [chance.randrange(5) for _ in range(chance.randrange(1, 30))]
        stream = engine.stream(prompt, seed=chance.randrange(99), max_tokens=30)
        for taken, _token in enumerate(stream):
            if taken == chance.randrange(25):
                break
        if chance.random() < 0.5:
            stream.close()
        else:
            del stream  # a caller who just walks away
    assert engine.generate([0, 1, 2, 3] * 4, seed=5, max_tokens=20).tokens == expected
    for one in engine.drafters:
        assert not getattr(one, "_slots", None)
        assert not getattr(one, "_indices", None)
    engine.close()
    assert engine.target.open_sessions == 0  # type: ignore[attr-defined]


class Failing(BaseDrafter):
    name = "failing"

    def __init__(self, error: BaseException, after: int) -> None:
        self.error, self.after = error, after

    def extend(self, frontier: object) -> None:
        self.after -= 1
        if self.after == 0:
            raise self.error


@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_interrupt_in_the_middle_of_a_round_leaves_the_caches_clean(after: int) -> None:
    engine = make_engine("none", max_sessions=1, endless=True)
    expected = engine.generate([0, 1, 2], seed=1, max_tokens=12).tokens
    engine.drafters = [Failing(KeyboardInterrupt(), after)]
    stream = engine.stream([0, 1, 2], seed=1, max_tokens=12)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert stream.completion.tokens == expected[: after - 1]
    engine.drafters = []
    assert engine.generate([0, 1, 2], seed=1, max_tokens=12).tokens == expected


class InterruptedModel(FakeModel):
    """Raises in the middle of one forward, after the session has seen the batch."""

    interrupt_at = -1

    def forward(self, batch, *, layers=None):  # type: ignore[no-untyped-def]
        rows = super().forward(batch, layers=layers)
        if self.forwards == self.interrupt_at:
            raise KeyboardInterrupt
        return rows


@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("at", range(1, 12))
def test_an_interrupted_forward_leaves_both_caches_clean(which: str, at: int) -> None:
    vocabulary = SmallVocabulary(6)
    target, small = (InterruptedModel(vocabulary, order=order, max_sessions=1) for order in (2, 1))
    engine = Engine(target, ModelDrafter(small), FixedLength(3))
    prompt = [0, 1, 2] * 8
    expected = engine.generate(prompt, seed=1, max_tokens=15).tokens
    failing = {"target": target, "draft": small}[which]
    failing.interrupt_at = failing.forwards + at
    with suppress(KeyboardInterrupt):
        list(engine.stream([3, 3, *prompt], seed=1, max_tokens=15))
    assert engine.generate(prompt, seed=1, max_tokens=15).tokens == expected


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([], {}, UsageError, "empty"),
        ([0, 99], {}, UsageError, "0 to 5"),
        ([0] * 256, {}, ContextLimitError, "256 tokens and the context holds 256"),
        ([0], {"max_tokens": 0}, UsageError, "from 1 to"),
        ([0], {"max_tokens": 2.5}, UsageError, "whole number"),
        ([0], {"stop": [3]}, UsageError, "list of strings"),
        ([0], {"stop": 3}, UsageError, "list of strings"),
        ([0], {"temperature": "hot"}, UsageError, "a number from 0 to 100"),
        ([0], {"seed": 1.5}, UsageError, "whole number"),
        ([0], {"top_k": True}, UsageError, "whole number"),
        ([0], {"logit_bias": [1]}, UsageError, "map token ids"),
        (None, {}, UsageError, "A prompt is text"),
        (5, {}, UsageError, "A prompt is text"),
        (b"abc", {}, UsageError, "A prompt is text"),
        ([True], {}, UsageError, "A prompt is text"),
        ([0], {"temperature": -1}, UsageError, "from 0 to 100"),
        ([0], {"temprature": 1}, UsageError, "did you mean temperature"),
        ([0], {"stop": ""}, UsageError, "empty"),
        ([0], {"prediction": [6]}, UsageError, "prediction must be a text"),
        ([0], {"prediction": [True]}, UsageError, "prediction must be a text"),
        ([0], {"prediction": 5}, UsageError, "prediction must be a text"),
        ([0], {"prediction": b"ab"}, UsageError, "prediction must be a text"),
        ([0], {"logit_bias": {77: 1.0}}, UsageError, "0 to 5"),
        ([0, {"role": "user", "content": "a"}], {}, UsageError, "or a list of"),
    ],
)
def test_impossible_calls_say_what_to_do_and_take_nothing(
    prompt: list[int], options: dict[str, object], error: type[Exception], says: str
) -> None:
    engine = make_engine(max_sessions=1)
    with pytest.raises(error, match=says):
        engine.generate(prompt, **options)  # type: ignore[arg-type]
    assert engine.target.open_sessions == 0  # type: ignore[attr-defined]


def test_draft_lengths_out_of_range_are_refused() -> None:
    for length in (-1, 65):
        with pytest.raises(UsageError, match="0 to 64"):
            FixedLength(length)


def test_more_streams_than_sessions_are_refused_and_the_first_goes_on() -> None:
    engine = make_engine("none", max_sessions=1)
    expected = engine.generate([0, 1], seed=1, max_tokens=9).tokens
    first = engine.stream([0, 1], seed=1, max_tokens=9)
    next(first)
    with pytest.raises(RuntimeUnavailableError):
        engine.generate([0, 1], seed=1)
    list(first)
    assert first.completion.tokens == expected


def test_messages_go_through_the_template_and_text_does_not() -> None:
    engine = Engine(FakeModel(ByteVocabulary()), template=TEMPLATE)
    assert engine.tokenize("hi<end>") == list(b"hi<end>")
    assert engine.tokenize([{"role": "user", "content": "hi"}]) == [*b"[user]hi", 256, *b"[assistant]"]
    engine.template = None
    with pytest.raises(ChatTemplateError, match="no chat template"):
        engine.tokenize([{"role": "user", "content": "hi"}])


def test_a_text_begins_with_bos_once() -> None:
    engine = Engine(FakeModel(ByteVocabulary(bos=257)), template=ChatTemplate("<bos>{{ messages[0].content }}"))
    assert engine.tokenize("hi") == [257, *b"hi"]


def test_seeds_are_drawn_and_reported() -> None:
    engine = make_engine("none")
    first = engine.generate([0, 1], max_tokens=20)
    assert engine.generate([0, 1], max_tokens=20, seed=first.seed).tokens == first.tokens


def test_defaults_hold_where_a_call_says_nothing() -> None:
    vocabulary = SmallVocabulary(6)
    engine = Engine(FakeModel(vocabulary), defaults=SamplingParams(temperature=0, seed=3))
    assert engine.generate([0], max_tokens=5).tokens == engine.generate([0], max_tokens=5, temperature=0, seed=8).tokens


@pytest.mark.usefixtures("drafters_may_fail")
def test_a_drafter_gets_its_end_for_each_begin() -> None:
    class Counting(BaseDrafter):
        begun = ended = 0

        def begin(self, sequence: object, reused_length: int) -> None:
            self.begun += 1

        def end(self, sequence: object) -> None:
            self.ended += 1

        def extend(self, frontier: Iterator[Growth]) -> None:  # type: ignore[override]
            if self.begun == 3:
                raise ValueError

    drafter = Counting()
    engine = Engine(FakeModel(SmallVocabulary(6)), drafter)
    engine.generate([0, 1], max_tokens=3)
    engine.stream([0, 1], max_tokens=3).close()
    with engine.stream([0, 1], max_tokens=30) as stream:
        next(stream)
    engine.generate([0, 1], max_tokens=3)
    assert drafter.begun == drafter.ended == 3


class Rogue(BaseDrafter):
    name = "rogue"

    def __init__(self, *tokens: int, branch: bool = False) -> None:
        self.tokens, self.branch = tokens, branch

    def extend(self, frontier: object) -> None:
        for _, draft, _limit, _siblings in frontier:  # type: ignore[attr-defined]
            for token in () if self.branch and len(draft) else self.tokens:
                draft.add(token, ROOT if self.branch else len(draft) - 1, source=self.name)


@pytest.mark.parametrize(
    ("drafter", "says"),
    [
        (Rogue(6), "rogue proposed a token id outside 0 to 5"),
        (Rogue(-1), "rogue proposed a token id outside 0 to 5"),
        (Rogue(*range(5), *range(5), *range(5), *range(5)), "rogue added more tokens than it was allowed"),
        (Rogue(0, 1, branch=True), "rogue proposed a tree"),
    ],
)
@pytest.mark.usefixtures("drafters_may_fail")
def test_a_drafter_that_breaks_the_rules_is_named(drafter: Rogue, says: str, caplog: pytest.LogCaptureFixture) -> None:
    target = FakeModel(SmallVocabulary(6))
    target.capabilities = Capabilities(trees=False)
    expected = Engine(target).generate([0, 1, 2], max_tokens=20, seed=1)
    found = Engine(target, drafter, FixedLength(4)).generate([0, 1, 2], max_tokens=20, seed=1)
    assert says in caplog.text
    assert (found.tokens, found.statistics.drafted) == (expected.tokens, 0)


def test_a_closed_engine_says_so() -> None:
    engine = make_engine()
    engine.close()
    engine.close()
    for use in (engine.tokenize, engine.generate, engine.stream):
        with pytest.raises(RuntimeUnavailableError, match="has been closed"):
            use("hi")


@pytest.mark.usefixtures("drafters_may_fail")
def test_a_failing_end_of_a_drafter_still_gives_the_session_back(caplog: pytest.LogCaptureFixture) -> None:
    class BadEnd(BaseDrafter):
        def end(self, sequence: object) -> None:
            raise ValueError("bad end")

    engine = Engine(FakeModel(SmallVocabulary(6), max_sessions=1), BadEnd())
    for _ in range(3):
        assert len(engine.generate([0, 1], max_tokens=2).tokens) == 2
    assert [record.getMessage().count("bad end") for record in caplog.records] == [1]


def test_numpy_ids_are_ids() -> None:
    engine = make_engine("none")
    expected = engine.generate([0, 1, 2], seed=1, max_tokens=5).tokens
    assert engine.generate(np.array([0, 1, 2]), seed=np.int64(1), max_tokens=5).tokens == expected  # type: ignore[arg-type]


def test_a_text_that_cannot_fit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(FakeModel(context_length=64), template=TEMPLATE)
    longest = "x" * (64 * len("<end>"))
    with pytest.raises(ContextLimitError, match=f"has {len(longest) - 5} tokens and the context holds 64"):
        engine.generate(longest[5:])

    def never(*_: object, **__: object) -> list[int]:
        raise AssertionError

    monkeypatch.setattr(ByteVocabulary, "tokenize", never)
    for prompt in (longest, [{"role": "user", "content": longest}]):
        with pytest.raises(ContextLimitError, match=r"has at least 6[4-9] tokens and the context holds 64"):
            engine.generate(prompt)


def test_a_text_may_be_counted_whatever_its_length() -> None:
    engine = Engine(FakeModel(context_length=64))
    assert len(engine.tokenize("x" * 1000)) == 1000
