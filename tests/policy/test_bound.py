"""The bank's bound where it is hard to keep: several sequences and drafters, long prompts, silent drafters."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from slipstream.core.protocols import Growth, SequenceView
from slipstream.draft import BaseDrafter
from slipstream.policy import Acceptance, AdaptivePolicy, CostTable, ExcessBank
from slipstream.policy.bank import STARTING_CREDIT
from tests.helpers import View
from tests.policy.test_adaptive import Clock, Stubborn


class Reader(BaseDrafter):
    """Reads what it has missed, at its price, then proposes 1 and siblings; or nothing, with some probability."""

    def __init__(self, clock: Clock, costs: CostTable, name: str, silent: float, chance: random.Random) -> None:
        self.name = name
        self._clock, self._costs, self._silent, self._chance = clock, costs, silent, chance
        self._read: dict[int, int] = {}

    def lag(self, sequence: SequenceView) -> int:
        return max(len(sequence.tokens) - self._read.get(sequence.id, 0), 1)

    def extend(self, frontier: object) -> None:
        growths: list[Growth] = list(frontier)  # type: ignore[call-overload]
        rows = sum(1 if growth.draft.tokens else self.lag(growth.sequence) for growth in growths)
        self._clock.now += self._costs.seconds(rows)
        for growth in growths:
            self._read[growth.sequence.id] = len(growth.sequence.tokens)
            if self._chance.random() >= self._silent:
                parent = growth.draft.tip
                growth.draft.append(1, source=self.name)
                for rank in range(1, min(growth.siblings, growth.limit)):
                    growth.draft.add(1 + rank, parent, source=self.name, estimate=0.1, bucket=rank)


def excess(seed: int, *, most_sequences: int, longest: int, silent: float, rounds: int = 60) -> tuple[float, int]:
    """(largest excess over 1.03 times plain decoding's time and the credit, entries of sequences that are over)."""
    chance, clock = random.Random(seed), Clock()
    target = {1: 0.03, 2: chance.uniform(0.03, 0.06), 8: chance.uniform(0.06, 0.2), 32: chance.uniform(0.2, 0.8)}
    drafters, steps = [], []
    for number in range(chance.randint(1, 2)):
        step = {1: chance.choice([0.001, 0.003, 0.01])}
        step[32] = step[1] * chance.uniform(1.5, 20)
        step[128] = step[32] * chance.uniform(1.5, 4)
        drafters.append(Reader(clock, CostTable(step), f"model {number}", silent, chance))
        steps.append(CostTable(step))
    credit = chance.choice([0, 0.1, STARTING_CREDIT])
    policy = AdaptivePolicy(
        CostTable(target),
        steps,
        timer=clock,
        bank=ExcessBank(0.03, credit),
        trees=chance.random() < 0.5,
        acceptance=Stubborn() if chance.random() < 0.5 else Acceptance(),
    )
    truth, views, plain, worst = CostTable(target), [], 0.0, 0.0
    for _ in range(rounds):
        while len(views) < chance.randint(1, most_sequences):
            views.append(View([0] * chance.randint(1, longest), draft_limit=chance.choice([0, 1, 5, 500])))
        started = clock.now
        for step_taken in policy.draft(views, drafters):
            drafters[step_taken.drafter].extend(step_taken.growths)
        drafts, drafted = policy.choose(), clock.now
        verify = truth.seconds(len(views) + sum(map(len, drafts)))
        clock.now += verify
        committed = [[1] * min(chance.choice([0, 0, 0, 9]), len(draft.path(draft.tip))) + [0] for draft in drafts]
        for view, tokens in zip(views, committed, strict=True):
            view.tokens.extend(tokens)
        plain += truth.seconds(len(views)) / len(views) * sum(map(len, committed))
        policy.observe(committed, {"draft": drafted - started, "verify": verify, "sample": 0.0, "other": 0.0})
        worst = max(worst, clock.now - 1.03 * plain - credit)
        if chance.random() < 0.1:
            policy.end(views.pop(chance.randrange(len(views))))
    for view in views:
        policy.end(view)
    kept = (
        len(policy._begun_at)
        + len(policy._muted)
        + len(policy._idle)
        + len(policy.acceptance._open)
        + len(policy.acceptance._forms)
    )
    return worst, kept


@pytest.mark.parametrize(
    ("most_sequences", "longest", "silent"), [(1, 500, 0), (1, 500, 0.5), (8, 4, 0), (8, 500, 0), (8, 500, 0.5)]
)
def test_the_bound_holds(most_sequences: int, longest: int, silent: float) -> None:
    for seed in range(120):
        worst, kept = excess(seed, most_sequences=most_sequences, longest=longest, silent=silent)
        assert worst <= 1e-9, seed
        assert kept == 0, "nothing of a sequence that is over is kept"


class Lookup(BaseDrafter):
    """Proposes 1 for nothing, and knows texts apart."""

    name = "lookup"
    free = True

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def extend(self, frontier: Sequence[Growth]) -> None:
        for growth in frontier:
            self.asked[growth.sequence.id] += 1
            growth.draft.append(1, source=self.name, bucket=growth.sequence.id)


@pytest.mark.parametrize(("count", "fewest", "most"), [(2, 100, 100), (8, 20, 45)])
def test_of_a_crowd_those_for_whom_nothing_is_verified_are_asked_in_turn(count: int, fewest: int, most: int) -> None:
    """Lookup is right for the first text and never for the others."""
    costs = CostTable({1: 0.03, 64: 0.1})
    policy, lookup = AdaptivePolicy(costs, [None], timer=Clock()), Lookup()
    views = [View([0]) for _ in range(count)]
    for _ in range(100):
        for step in policy.draft(views, [lookup]):
            lookup.extend(step.growths)
        drafts = policy.choose()
        committed = [[1, *draft.tokens] if i == 0 else [0] for i, draft in enumerate(drafts)]
        verify = costs.seconds(count + sum(map(len, drafts)))
        policy.observe(committed, {"draft": 0.0, "verify": verify, "sample": 0.0, "other": 0.0})
    first, *others = [lookup.asked[view.id] for view in views]
    assert first >= 90, "but for a plain round now and then"
    assert all(fewest - 10 <= times <= most for times in others), others


def seconds_of_reading(crowd: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """What a draft model takes for eight texts at a time, where prompts leave one round in ten for drafts."""
    monkeypatch.setattr("slipstream.policy.adaptive.CROWD", crowd)
    clock, costs, steps = Clock(), CostTable({1: 0.03, 64: 0.1}), CostTable({1: 0.001, 16: 0.002, 128: 0.01})
    policy = AdaptivePolicy(costs, [steps], timer=clock)
    drafter = Reader(clock, steps, "model", 0, random.Random(1))
    for _ in range(20):
        views = [View([0] * 200) for _ in range(8)]
        for number in range(20):
            beside, started = 0 if number % 10 == 5 else 64, clock.now
            for step in policy.draft(views, [drafter], beside):
                drafter.extend(step.growths)
            drafts, drafted = policy.choose(), clock.now - started
            committed = [[1, 0] if len(draft) else [1] for draft in drafts]
            for view, tokens in zip(views, committed, strict=True):
                view.tokens.extend(tokens)
            verify = costs.seconds(8 + beside + sum(map(len, drafts)))
            policy.observe(committed, {"draft": drafted, "verify": verify, "sample": 0.0, "other": 0.0})
        for view in views:
            policy.end(view)
    return clock.now


def test_in_a_crowd_that_seldom_drafts_a_draft_model_reads_little(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_of_reading(4, monkeypatch) < 0.5 * seconds_of_reading(100, monkeypatch)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 70])
def test_any_number_of_sequences_is_decoded(count: int) -> None:
    clock = Clock()
    policy = AdaptivePolicy(CostTable({1: 0.03, 64: 0.05}), [CostTable({1: 1e-3, 64: 2e-3})], timer=clock)
    drafter = Reader(clock, CostTable({1: 1e-3, 64: 2e-3}), "model", 0, random.Random(1))
    views = [View([0]) for _ in range(count)]
    for _ in range(3):
        for step in policy.draft(views, [drafter]):
            drafter.extend(step.growths)
        drafts = policy.choose()
        assert count + sum(map(len, drafts)) <= max(64, count)
        policy.observe([[0]] * count, {"draft": 0.0, "verify": 0.05, "sample": 0.0, "other": 0.0})


def test_a_forward_has_no_more_rows_than_the_target_takes() -> None:
    clock = Clock()
    flat = CostTable({1: 0.03, 64: 0.031})
    policy = AdaptivePolicy(flat, [CostTable({1: 1e-4, 64: 2e-4})], timer=clock, most_rows=4)
    drafter = Reader(clock, CostTable({1: 1e-4, 64: 2e-4}), "model", 0, random.Random(1))
    views, most = [View([0]), View([0])], 0
    for _ in range(10):
        for step in policy.draft(views, [drafter]):
            drafter.extend(step.growths)
        most = max(most, 2 + sum(map(len, policy.choose())))
        policy.observe([[1], [1]], {"draft": 0.0, "verify": 0.03, "sample": 0.0, "other": 0.0})
    assert most == 4


def test_one_that_has_much_to_read_does_not_keep_the_others_from_drafting() -> None:
    clock = Clock()
    costs = CostTable({1: 1e-3, 128: 0.2})
    policy = AdaptivePolicy(CostTable({1: 0.03, 64: 0.05}), [costs.copied()], timer=clock)
    drafter = Reader(clock, costs, "model", 0, random.Random(1))
    views = [View([0]), View([0] * 4000)]
    for step in policy.draft(views, [drafter]):
        drafter.extend(step.growths)
    assert [len(draft) > 0 for draft in policy.choose()] == [True, False]


def test_eight_sequences_share_the_price_of_a_step() -> None:
    """One step drafts for all of them, so that what does not pay for one may pay for eight."""
    clock = Clock()
    costs = CostTable({1: 0.02, 8: 0.021, 64: 0.03})
    policy = AdaptivePolicy(CostTable({1: 0.03, 8: 0.06, 64: 0.12}), [costs.copied()], timer=clock)
    drafter = Reader(clock, costs, "model", 0, random.Random(1))
    views = [View([0]) for _ in range(8)]
    drafted = 0
    for _ in range(20):
        for step in policy.draft(views, [drafter]):
            drafter.extend(step.growths)
        drafts = policy.choose()
        drafted += sum(map(len, drafts))
        committed = [[1] * (len(draft) + 1) for draft in drafts]
        policy.observe(committed, {"draft": 0.02, "verify": 0.07, "sample": 0.0, "other": 0.0})
    assert drafted > 80
