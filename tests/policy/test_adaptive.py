"""The adaptive policy against made-up machines and drafters, in simulated time."""

import random
from collections.abc import Callable

import pytest

from slipstream.core.protocols import Growth, SequenceView
from slipstream.core.tree import Draft
from slipstream.draft import BaseDrafter
from slipstream.policy import Acceptance, AdaptivePolicy, CostTable, ExcessBank
from slipstream.policy.bank import LARGEST_BALANCE, STARTING_CREDIT
from tests.helpers import View

FLAT = {1: 0.030, 4: 0.036, 8: 0.045, 16: 0.080, 32: 0.150}
"""A machine on which checking drafts is cheap."""
STEEP = {1: 0.010, 2: 0.019, 4: 0.030, 8: 0.050, 16: 0.090, 32: 0.170}
"""And one on which it is not."""
STEP = {1: 0.003, 8: 0.005, 32: 0.015}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Guesser(BaseDrafter):
    """Proposes the same token at every level; a step takes its time."""

    name = "model"

    def __init__(self, clock: Clock, seconds: float, *, free: bool = False, levels: int = 1, token: int = 1) -> None:
        self.clock, self.seconds, self.free, self.levels, self.token = clock, seconds, free, levels, token
        self.steps = 0
        if free:
            self.name = "free"

    @property
    def costs(self) -> dict[int, float]:
        return {1: self.seconds, 32: self.seconds}

    def extend(self, frontier: object) -> None:
        self.clock.now += self.seconds
        self.steps += 1
        for growth in frontier:  # type: ignore[attr-defined]
            self.grow(growth)

    def grow(self, growth: Growth) -> None:
        for _ in range(min(self.levels, growth.limit)):
            parent = growth.draft.append(self.token, source=self.name, estimate=0.6)
            parent = growth.draft.parents[parent]
            for rank in range(1, min(growth.siblings, growth.limit)):
                growth.draft.add(self.token + rank, parent, source=self.name, estimate=0.1, bucket=rank)


class ShortGuesser(Guesser):
    """Has no more than three levels."""

    def grow(self, growth: Growth) -> None:
        if len(growth.draft) < 3:
            super().grow(growth)


class Reader(Guesser):
    """Has to read first what it has missed, as a draft model does."""

    TOKEN = 0.0008

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(clock, seconds)
        self.read = 0

    @property
    def costs(self) -> dict[int, float]:
        return {rows: self.seconds + (rows - 1) * self.TOKEN for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)}

    def lag(self, sequence: SequenceView) -> int:
        return max(len(sequence.tokens) - self.read, 1)

    def extend(self, frontier: object) -> None:
        for growth in frontier:  # type: ignore[attr-defined]
            self.clock.now += (self.lag(growth.sequence) - 1) * self.TOKEN
            self.read = len(growth.sequence.tokens)
        super().extend(frontier)


class SlowReader(Reader):
    """Reads no more than so many tokens in one step, and has no draft before it has read all."""

    MOST = 20

    def extend(self, frontier: object) -> None:
        [growth] = frontier  # type: ignore[misc]
        if not growth.draft.tokens and self.lag(growth.sequence) > self.MOST:
            self.clock.now += self.MOST * self.TOKEN
            self.read += self.MOST
        else:
            super().extend(frontier)


class Waiter(Guesser):
    """Cannot draft before the target has read the text, as a head cannot."""

    ready = False

    def lag(self, sequence: SequenceView) -> int:
        return int(self.ready)

    def grow(self, growth: Growth) -> None:
        assert self.ready, "it had said so"
        super().grow(growth)


class Lookup(Guesser):
    """Suffix lookup, which finds a long match now and then, and recycling where it finds none."""

    matches, lucky = False, False

    def grow(self, growth: Growth) -> None:
        source, levels, token = ("suffix", 8, 1) if self.matches else ("recycling", 1, 1 if self.lucky else 2)
        for _ in range(min(levels, growth.limit)):
            growth.draft.append(token, source=source, estimate=0.5, bucket=7 * self.matches)


class Machine:
    """Plays rounds: `right(draft)` says how often the text goes on with 1 before there is something else."""

    def __init__(
        self,
        target: dict[int, float],
        *drafters: Callable[[Clock], Guesser],
        believed: dict[int, float] | None = None,
        credit: float = STARTING_CREDIT,
        trees: bool = False,
    ) -> None:
        self.clock = Clock()
        self.truth = CostTable(target)
        self.drafters = [drafter(self.clock) for drafter in drafters]
        steps = [None if one.free else CostTable(one.costs) for one in self.drafters]
        self.policy = AdaptivePolicy(
            CostTable(believed or target), steps, bank=ExcessBank(0.03, credit), timer=self.clock, trees=trees
        )
        self.view = View([0])
        self.plain = self.worst = 0.0

    def round(self, right: Callable[[Draft], int], beside: int = 0) -> Draft:
        """beside: rows of a prompt that the forward reads as well; what they take alone is nobody's loss."""
        started = self.clock.now
        for step in self.policy.draft([self.view], self.drafters, beside):
            self.drafters[step.drafter].extend(step.growths)
        [draft] = self.policy.choose()
        drafted = self.clock.now
        verify = self.truth.seconds(1 + beside + len(draft))
        self.clock.now += verify
        true = right(draft)
        accepted = 0
        while (
            accepted < true
            and accepted < len(draft.path(draft.tip))
            and draft.tokens[draft.path(draft.tip)[accepted]] == 1
        ):
            accepted += 1
        committed = [1] * accepted + [int(true > accepted)]  # the text does not depend on what was verified
        self.view.tokens.extend(committed)
        phases = {"draft": drafted - started, "verify": verify, "sample": 0.0, "other": 0.0}
        self.policy.observe([committed], phases)
        self.plain += len(committed) * self.truth.seconds(1)
        self.plain += self.truth.seconds(1 + beside) - self.truth.seconds(1)
        self.worst = max(self.worst, self.clock.now - 1.03 * self.plain)
        return draft

    @property
    def gain(self) -> float:
        return self.plain / self.clock.now


def model(seconds: float = 0.003) -> Callable[[Clock], Guesser]:
    return lambda clock: Guesser(clock, seconds)


def lookup(levels: int = 8, token: int = 1) -> Callable[[Clock], Guesser]:
    return lambda clock: Guesser(clock, 0.0, free=True, levels=levels, token=token)


def always(draft: Draft) -> int:
    return 99


def never(draft: Draft) -> int:
    return 0


def test_a_good_drafter_gets_long_drafts() -> None:
    machine = Machine(FLAT, model())
    lengths = [len(machine.round(always)) for _ in range(60)]
    assert min(lengths[30:-1]) >= 6 or sorted(lengths[30:])[len(lengths[30:]) // 2] >= 6
    assert machine.gain > 2


def test_a_bad_drafter_is_tried_and_then_left_alone() -> None:
    machine = Machine(FLAT, model())
    drafted = [len(machine.round(never)) for _ in range(400)]
    assert sum(map(bool, drafted[:10])) > 0
    assert sum(map(bool, drafted[100:])) < 20
    assert machine.gain > 0.97


def test_a_few_misses_at_the_start_do_not_end_a_drafter() -> None:
    """What it has missed meanwhile costs more with every token, so that tries never become cheaper."""
    machine = Machine({1: 0.060, 2: 0.070, 4: 0.095, 8: 0.160, 32: 0.6}, lambda clock: Reader(clock, 0.006))
    machine.view.tokens.extend([0] * 30)
    drafted = [len(machine.round(never if number < 3 else always)) for number in range(200)]
    assert not any(drafted[4:15])
    assert sum(map(bool, drafted[50:])) > 100


def test_a_drafter_too_slow_to_ever_pay_is_not_even_tried() -> None:
    machine = Machine(FLAT, model(0.05))
    assert not any(len(machine.round(always)) for _ in range(200))
    assert machine.drafters[0].steps == 0


def test_nothing_is_drafted_where_checking_costs_more_than_it_brings() -> None:
    machine = Machine({1: 0.01, 32: 0.32}, model(0.001))
    assert not any(len(machine.round(always)) for _ in range(100))


def test_a_drafter_that_becomes_good_is_found_again() -> None:
    machine = Machine(FLAT, model())
    for _ in range(200):
        machine.round(never)
    drafted = [len(machine.round(always)) for _ in range(400)]
    assert sum(drafted[300:]) / 100 > 3


def test_a_drafter_that_collapses_is_given_up_within_some_rounds() -> None:
    machine = Machine(FLAT, model())
    for _ in range(100):
        machine.round(always)
    before = machine.clock.now, machine.plain
    for _ in range(300):
        machine.round(never)
    assert (machine.clock.now - before[0]) / (machine.plain - before[1]) < 1.06


def test_a_free_drafter_is_scored_while_it_is_off() -> None:
    """Nothing is gained by verifying here; still it is known how often the drafter is right."""
    machine = Machine({1: 0.01, 32: 0.32}, lookup())
    for _ in range(60):
        assert len(machine.round(lambda draft: 0)) == 0
    assert machine.policy.acceptance.seen("free") > 30
    assert machine.policy.acceptance.by_level("free")[0] < 0.1


def test_the_drafter_with_the_better_prospects_drafts() -> None:
    machine = Machine(FLAT, lookup(token=2), model())
    sources = [draft.sources[0] for draft in (machine.round(always) for _ in range(100)) if len(draft)]
    assert sources[40:].count("model") > 0.8 * len(sources[40:])


def test_long_matches_are_suffix_lookup_s_and_the_rest_is_the_head_s() -> None:
    """Recycling, which is right less often than the head and for one token only, gives way to it."""
    machine = Machine(FLAT, lambda clock: Lookup(clock, 0.0, free=True), model())
    lookup, head = machine.drafters
    assert isinstance(lookup, Lookup)
    chance = random.Random(3)
    found: dict[bool, list[str]] = {True: [], False: []}
    for turn in range(500):
        lookup.matches, lookup.lucky = chance.random() < 0.3, chance.random() < 0.4
        true = 8 if lookup.matches else chance.choice((0, 1, 2, 3, 3, 4))
        steps = head.steps
        draft = machine.round(lambda _, true=true: true)  # type: ignore[misc]
        if turn > 100 and len(draft):
            found[lookup.matches].append("after a step: " * (head.steps > steps) + draft.sources[0])
    assert found[True].count("suffix") > 0.95 * len(found[True]), "and no step of the head is wasted on it"
    assert found[False].count("after a step: model") > 0.9 * len(found[False])


def test_trees_where_a_row_costs_little_and_chains_where_it_does_not() -> None:
    def half(draft: Draft) -> int:
        return random.Random(len(draft)).randrange(3)

    flat, steep = Machine(FLAT, model(), trees=True), Machine(STEEP, model(0.001), trees=True)
    shapes = [[machine.round(half) for _ in range(80)] for machine in (flat, steep)]
    assert any(not draft.is_chain for draft in shapes[0])
    assert all(draft.is_chain for draft in shapes[1])


def test_a_table_that_was_wrong_is_corrected() -> None:
    """Eight rows were believed to be cheap; in truth they cost as much as eight forwards."""
    wrong = dict(FLAT)
    machine = Machine({1: 0.030, 2: 0.058, 4: 0.12, 8: 0.24, 16: 0.48, 32: 1.0}, model(), believed=wrong)
    for _ in range(150):
        machine.round(lambda draft: 1)
    before = machine.clock.now, machine.plain
    for _ in range(150):
        machine.round(lambda draft: 1)
    assert (machine.plain - before[1]) / (machine.clock.now - before[0]) > 0.98
    assert machine.worst < STARTING_CREDIT + 0.3, (
        "not much more than the credit, although the bank was told wrong prices"
    )
    assert machine.policy.costs.seconds(1) == pytest.approx(0.030, rel=0.1)


def test_a_drafter_that_ends_at_some_length_is_asked_again() -> None:
    """Three levels are all that it has; having no fourth is no silence."""
    machine = Machine({1: 0.030, 64: 0.032}, lambda clock: ShortGuesser(clock, 0.0005))
    lengths = [len(machine.round(always)) for _ in range(60)]
    assert sum(length == 3 for length in lengths) > 50


def test_plain_rounds_come_often_enough_to_know_what_is_gained() -> None:
    machine = Machine(FLAT, model())
    lengths = [len(machine.round(always)) for _ in range(600)]
    assert 1 <= lengths[50:].count(0) <= 5


@pytest.mark.parametrize("cliff", [0.1, 0.3, 0.45])
@pytest.mark.parametrize("beside", [20, 27, 31, 40])
def test_what_drafts_cost_beside_a_prompt_is_theirs(cliff: float, beside: int) -> None:
    """A cliff that the drafts reach because the prompt is there."""
    machine = Machine({1: 1.0, 32: 1.0, 33: 1.0 + cliff, 64: 1.0 + cliff}, lookup())
    machine.policy.acceptance = Stubborn()
    for _ in range(60):
        machine.round(never, beside)
    assert machine.worst <= STARTING_CREDIT + 1e-9


def test_a_prompt_beside_does_not_stop_good_drafts() -> None:
    machine = Machine(FLAT, lookup())
    for _ in range(300):
        machine.round(always, 8)
    assert sum(len(machine.round(always, 8)) for _ in range(20)) > 100
    assert sum(len(machine.round(always, 64)) for _ in range(20)) == 0  # no room in the table for more rows


def test_a_machine_that_is_disturbed_does_not_empty_the_bank() -> None:
    """Rounds without drafts are plain decoding, whatever they took, and sampling is paid by both."""
    chance, costs = random.Random(1), CostTable({1: 0.004, 32: 0.06})
    policy, view = AdaptivePolicy(costs, [], timer=Clock()), View([0])
    for _ in range(2000):
        assert not list(policy.draft([view], []))
        policy.choose()
        verify = 0.004 * (3 if chance.random() < 0.2 else 1)
        policy.observe([[1]], {"draft": 0.0, "verify": verify, "sample": 0.003, "other": 0.001})
    assert policy.bank.balance >= STARTING_CREDIT


def test_slow_sampling_is_not_held_against_drafts() -> None:
    costs, lookup = CostTable({1: 0.004, 32: 0.006}), Guesser(Clock(), 0.0, free=True, levels=4)
    policy, view = AdaptivePolicy(costs, [None], timer=Clock()), View([0])
    for _ in range(300):
        for step in policy.draft([view], [lookup]):
            lookup.extend(step.growths)
        [draft] = policy.choose()
        committed = [1] * (1 + len(draft))
        verify = costs.seconds(1 + len(draft))
        policy.observe([committed], {"draft": 0.0, "verify": verify, "sample": 0.01 * len(committed), "other": 0.0})
    assert len(draft) == 4
    assert policy.bank.balance == policy.bank.largest


class Stubborn(Acceptance):
    """Believes in its drafters, whatever happens; then the bank is all that stands between them and a loss."""

    def rate(self, draft: Draft, first: int = 0, form: float = 1.0) -> None:
        draft.estimates[first:] = [0.95] * (len(draft) - first)

    def by_level(self, source: str) -> list[float]:
        return [0.95]


ADVERSARIES: list[Callable[[random.Random, AdaptivePolicy], Callable[[Draft], int]]] = [
    lambda chance, policy: lambda draft: 0,
    lambda chance, policy: lambda draft: chance.choice([0, 0, 0, 99]),
    lambda chance, policy: lambda draft: 99 if policy.bank.balance < LARGEST_BALANCE - 0.1 else 0,
    lambda chance, policy: lambda draft: 99 if policy.bank.balance < 0.05 else 0,
    lambda chance, policy: lambda draft: 0 if len(draft) > 2 else 99,
    lambda chance, policy: lambda draft: chance.randrange(len(draft) + 1),
    lambda chance, policy: lambda draft: 99 if policy.ledger.rounds % 40 < 20 else 0,
]


@pytest.mark.timeout(600)
def test_the_bank_s_bound_holds_for_ten_thousand_adversaries() -> None:
    """Total time <= 1.03 * plain time + credit at every moment, whatever is accepted, with costs as believed."""
    chance = random.Random(5)
    worst = 0.0
    for number in range(10_000):
        target = {1: 0.03, 2: chance.uniform(0.025, 0.06), 8: chance.uniform(0.03, 0.24), 32: chance.uniform(0.05, 1.0)}
        drafters = [model(chance.choice([0.0001, 0.002, 0.01, 0.03]))]
        if number % 3 == 0:
            drafters.append(lookup())
        credit = chance.choice([0.0, 0.05, STARTING_CREDIT])
        machine = Machine(target, *drafters, credit=credit, trees=number % 2 == 0)
        if number % 2:
            machine.policy.acceptance = Stubborn()
        right = ADVERSARIES[number % len(ADVERSARIES)](chance, machine.policy)
        for _ in range(chance.randrange(5, 40)):
            machine.round(right)
        assert machine.worst <= credit + 1e-9, (number, target, machine.worst)
        worst = max(worst, machine.worst)
    assert worst > 0.45, "the adversaries came near the bound, or they prove nothing"


@pytest.mark.parametrize(("prediction", "longest"), [((), 16), ((1, 2), 32)])
def test_a_text_with_a_prediction_gets_longer_drafts(prediction: tuple[int, ...], longest: int) -> None:
    """On a machine to which rows cost nothing, with a drafter that is always right."""
    clock = Clock()
    policy = AdaptivePolicy(CostTable({1: 0.03, 32: 0.03}), most_predicted=32, timer=clock)
    drafter, view, lengths = Guesser(clock, 0.0, free=True, levels=99), View([0], prediction=prediction), []
    for _ in range(60):
        for step in policy.draft([view], [drafter]):
            drafter.extend(step.growths)
        [draft] = policy.choose()
        lengths.append(len(draft))
        policy.observe([[1] * (len(draft) + 1)], {"draft": 0.0, "verify": 0.03, "sample": 0.0, "other": 0.0})
    assert max(lengths) == longest


def test_a_drafter_that_cannot_draft_yet_is_not_asked_and_not_given_up() -> None:
    machine = Machine(FLAT, lambda clock: Waiter(clock, 0.003))
    (waiter,) = machine.drafters
    assert isinstance(waiter, Waiter)
    for _ in range(3):
        assert len(machine.round(lambda draft: 9, beside=10)) == 0
    waiter.ready = True
    assert any(len(machine.round(lambda draft: 9)) for _ in range(3))


def test_what_reads_a_long_text_in_parts_is_asked_until_it_has_read_it() -> None:
    machine = Machine(FLAT, lambda clock: SlowReader(clock, 0.003))
    machine.view.tokens.extend([0] * 110)
    lengths = [len(machine.round(always)) for _ in range(30)]
    began = next(number for number, length in enumerate(lengths) if length)
    assert lengths[:began] == [0] * began
    assert 5 <= began <= 8, "110 tokens by 20, and a round or two that are plain"
    assert machine.policy.steps[0] is not None
    assert machine.policy.steps[0].seconds(1) < 0.006, "a step that read a part is not taken for a whole one"


class CheapReader(SlowReader):
    TOKEN = 0.0001


def test_a_try_of_what_reads_in_parts_lasts_until_it_has_drafted() -> None:
    """A drafter that was bad is tried again, long after: what it has missed takes more steps than a try has rounds."""
    machine = Machine(FLAT, lambda clock: CheapReader(clock, 0.003))
    (reader,) = machine.drafters
    assert isinstance(reader, CheapReader)
    for _ in range(150):
        machine.round(never)
    reader.read = len(machine.view.tokens) - 110
    lengths = [len(machine.round(always)) for _ in range(200)]
    began = next(number for number, length in enumerate(lengths) if length)
    assert reader.read > len(machine.view.tokens) - 20
    assert sum(map(bool, lengths[began:])) > 0.9 * len(lengths[began:])
    assert machine.gain > 1
