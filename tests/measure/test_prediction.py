from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from slipstream.core.protocols import Drafter, SequenceView, Step
from slipstream.draft import SuffixDrafter
from slipstream.draft.base import BaseDrafter
from slipstream.measure.alternation import Alternation
from slipstream.measure.prediction import Evidence, Machine, costs_of, predict
from slipstream.measure.records import Round
from slipstream.measure.simulated import Costs, SimulatedTime, StepCosts, decode_again
from slipstream.measure.tracing import Level, Trace
from slipstream.policy import CostTable, FixedLength

ROW, STEP, CHOICE, REST = 0.010, 0.002, 0.0005, 0.0002
"""Seconds of a machine."""
PROMPT = [1, 2, 3, 4]
VERIFY = {1: ROW, 2: 1.1 * ROW, 4: 1.3 * ROW, 8: 1.7 * ROW, 9: 2.8 * ROW, 32: 6 * ROW}
DRAFT = {1: STEP, 2: 1.5 * STEP, 8: 3 * STEP}
ALTERNATION = Alternation(ROW, 1.4 * ROW, 0.0, STEP)
"""Nothing takes longer than by itself."""


class Named(BaseDrafter):
    name = "model"


def machine(
    drafter: BaseDrafter | None = None,
    *,
    trees: bool = False,
    scale: float = 1.0,
    verify: Mapping[int, float] = VERIFY,
) -> Machine:
    target, draft = ({rows: scale * seconds for rows, seconds in table.items()} for table in (verify, DRAFT))
    drafter = drafter or Named()
    return Machine(CostTable(target), [drafter], [None if drafter.free else CostTable(draft)], 1000, trees)


def answer(count: int = 200, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(5, 900, count)]


def traced(tokens: Sequence[int], acceptance: float, seed: int = 0, *, ranks: int = 1) -> Trace:
    """A draft model that is right that often at first; with more ranks it has the right token at the second."""
    right = np.random.default_rng([seed, 1]).random(len(tokens)) < acceptance
    levels = [
        Level([token, 999] if good else [998, token], [0, 1], [0.6, 0.2])
        for token, good in zip(tokens, right, strict=True)
    ]
    cut = [Level(one.tokens[:ranks], one.buckets[:ranks], one.estimates[:ranks]) for one in levels]
    return Trace(cut, STEP)


def plain_rounds(count: int = 20) -> list[Round]:
    return [Round(4 + place, 0, 0, 0, 1, 0, "", 0.0, ROW, CHOICE, REST) for place in range(count)]


def evidence(acceptance: float, name: str = "p", kind: str = "chat", ranks: int = 1, seed: int = 0) -> Evidence:
    tokens = answer(seed=seed)
    return Evidence(
        name, kind, PROMPT, tokens, plain_rounds(), [traced(tokens, acceptance, seed, ranks=ranks)], [ALTERNATION]
    )


def by_hand(right: Sequence[bool], length: int) -> float:
    """Seconds of an answer with chains of this length, counted in another way than by playing rounds."""
    table, draft = CostTable(VERIFY), CostTable(DRAFT)
    place = lag = 0
    seconds = 0.0
    while place < len(right):
        drafted = min(length, len(right) - place - 1)
        accepted = next((n for n in range(drafted) if not right[place + n]), drafted)
        steps = draft.seconds(max(lag, 1)) + (drafted - 1) * draft.seconds(1) if drafted else 0.0
        seconds += steps + table.seconds(drafted + 1) + CHOICE * (accepted + 1) + REST
        lag = accepted + 1 - min(drafted - 1, accepted)
        place += accepted + 1
    return seconds


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_fixed_lengths_take_what_a_count_by_hand_gives(acceptance: float) -> None:
    one = evidence(acceptance)
    [trace] = one.traces
    assert trace is not None
    right = [level.tokens[0] == token for level, token in zip(trace.levels, one.answer, strict=True)]
    prediction = predict([one], machine())
    plain = len(right) * (ROW + CHOICE + REST)
    for length in (1, 2, 4, 8):
        assert prediction.by_length()[length] == pytest.approx(plain / by_hand(right, length))


def test_the_policy_is_near_the_best_length_and_off_where_nothing_is_right() -> None:
    good, bad = evidence(0.9, "good"), evidence(0.0, "bad", seed=1)
    prediction = predict([good, bad], machine())
    best = max(prediction.fixed[length]["good"] for length in prediction.fixed)
    assert prediction.auto["good"] > 0.9 * best
    assert 0.9 < prediction.auto["bad"] <= 1.0
    assert prediction.for_prompts(["good", "bad"]) == pytest.approx(
        (prediction.auto["good"] * prediction.auto["bad"]) ** 0.5
    )
    assert prediction.for_prompts(["good", "unheard of"]) is None
    assert prediction.for_prompts([]) is None


def test_second_choices_count_where_the_target_takes_trees() -> None:
    one = evidence(0.5, ranks=2)
    flat = {rows: ROW * (1 + 0.01 * rows) for rows in (1, 2, 4, 8, 32)}
    chains, trees = (predict([one], machine(trees=trees, verify=flat)) for trees in (False, True))
    assert trees.auto["p"] > 1.05 * chains.auto["p"]


def test_only_the_shape_of_curves_matters_not_the_speed_at_which_they_were_measured() -> None:
    one = evidence(0.7)
    exact, slow = predict([one], machine()), predict([one], machine(scale=3.0))
    assert slow.by_length() == pytest.approx(exact.by_length())
    assert costs_of(one, machine(scale=3.0)).plain == pytest.approx(ROW + CHOICE + REST)


def test_a_drafter_without_a_model_drafts_itself() -> None:
    tokens = [*range(5, 60), *range(5, 60), *range(5, 60)]
    one = Evidence("p", "edit", PROMPT, tokens, plain_rounds(), [None], [None])
    prediction = predict([one], machine(SuffixDrafter()))
    assert prediction.by_length()[8] > prediction.by_length()[2] > 1
    assert prediction.auto["p"] > 1.5
    other = Evidence("p", "chat", PROMPT, answer(), plain_rounds(), [None], [None])
    assert predict([other], machine(SuffixDrafter())).auto["p"] == pytest.approx(1, abs=0.05)


def test_an_answer_ends_where_it_ended_whatever_is_drafted() -> None:
    tokens = answer(7)
    costs = Costs(lambda rows: ROW, [StepCosts(STEP, 0.0, lambda rows: STEP)], 0.0, 0.0)
    time = SimulatedTime()
    shape = {"vocabulary": 1000, "trees": False}
    seconds = decode_again(
        PROMPT,
        tokens,
        [Named()],
        [traced(tokens, 1.0)],
        costs,
        FixedLength(4),
        time,
        **shape,  # type: ignore[arg-type]
    )
    # 4 drafted and a bonus, then one drafted, for the last token is the target's own
    assert seconds == pytest.approx(2 * ROW + 5 * STEP)
    assert time.now == seconds


class EveryThird(FixedLength):
    """Drafts in the first of three rounds."""

    rounds = 0

    def draft(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter], beside: int = 0) -> Iterator[Step]:
        self.num_draft_tokens = 0 if self.rounds % 3 else 4
        self.rounds += 1
        return super().draft(sequences, drafters, beside)


def test_what_was_missed_and_what_was_refused_is_read_again() -> None:
    tokens = answer(7)
    read: list[int] = []

    def step(rows: int) -> float:
        read.append(rows)
        return STEP

    costs = Costs(lambda rows: ROW, [StepCosts(STEP, 0.0, step)], 0.0, 0.0)
    traced_wrong = [traced(tokens, 0.0)]
    time = SimulatedTime()
    decode_again(PROMPT, tokens, [Named()], traced_wrong, costs, EveryThird(4), time, vocabulary=1000, trees=False)
    # the first step reads the prompt; of three tokens that were committed since the last draft none was read
    assert read == [1, 1, 1, 3, 1, 1]
