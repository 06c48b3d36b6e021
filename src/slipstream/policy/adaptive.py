"""Draft as much as pays, by measured costs and learned acceptance; never lose more than the bank holds.

One rule decides everything. Let `rate` be the tokens per second that are achieved now. A token is worth 1, a second
costs `rate` tokens. Drafting goes on while the expected gain exceeds `rate` times the step's time; then the nodes with
the best path probabilities S are verified, as many as maximise

    sum of S - rate * (seconds(B + n) - seconds(B))          B: sequences, n: nodes

which is Dinkelbach's method (1967) for the largest ratio of expected tokens to expected time. The same rule gives
long drafts to a lone user, short ones or none on a busy machine, and none where drafts are bad.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from slipstream.core.protocols import Drafter, Growth, SequenceView, Step
from slipstream.core.tree import ROOT, Draft
from slipstream.policy.bank import ExcessBank
from slipstream.policy.calibration import Acceptance
from slipstream.policy.costs import MOST_ROWS, CostTable
from slipstream.policy.ledger import Ledger
from slipstream.policy.probing import Probing

DEFAULT_MOST_DRAFTED = 16
LOOKAHEAD = 8
"""Levels beyond the present one that a decision to draft on looks at: costs have cliffs."""
SIBLINGS = 3
"""Nodes below one parent, where the target takes trees."""
SIBLING_GAIN = 0.1
"""About what the second and third choice at a level are worth in tokens: asked for where a row costs less."""
PRIOR = 0.6
"""P(right) of a drafter's next level before anything is known of it."""
DRIFT = 1.1
_FADE = 0.97
"""Of the achieved rate: it follows the last 30 rounds or so."""


class AdaptivePolicy:
    """Implements `core.protocols.Policy`.

    target: the target's costs
    steps:  costs of a step of each drafter, by rows it has to read; None where they are not known yet, or none
    trees:  whether the target takes them
    bank:   what may be lost
    most:   most nodes of a draft
    timer:  a simulation has one of its own
    """

    name = "auto"

    def __init__(
        self,
        target: CostTable,
        steps: Sequence[CostTable | None] = (),
        *,
        trees: bool = False,
        bank: ExcessBank | None = None,
        acceptance: Acceptance | None = None,
        most: int = DEFAULT_MOST_DRAFTED,
        timer: Callable[[], float] = perf_counter,
        on_close: Callable[["AdaptivePolicy"], None] | None = None,
    ) -> None:
        self.costs = target
        self.steps: list[CostTable | None] = list(steps)
        self.bank = bank or ExcessBank()
        self.acceptance = acceptance or Acceptance()
        self.ledger = Ledger()
        self._trees = trees
        self._most = min(most, MOST_ROWS - 1)
        self._timer = timer
        self._on_close = on_close
        self._probing = Probing()
        self._tokens, self._time = 0.0, 0.0
        self._sample, self._other = 0.0, 0.0
        self._since_plain = self._since_hiccup = 0
        self._plain_known = target.seconds(1)
        # of the present round
        self._sequences: Sequence[SequenceView] = ()
        self._drafters: Sequence[Drafter] = ()
        self._drafts: list[list[Draft]] = []
        self._limits: list[int] = []
        self._chosen: list[tuple[int, Draft]] = []
        self._nodes = 0
        self._rate = self._gain = self._base = self._spent = 0.0
        self._speed, self._cells = target.curve()

    @property
    def drafters(self) -> Sequence[Drafter]:
        """Those of the last round; none before the first."""
        return self._drafters

    # --- before the round's forward

    def draft(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter]) -> Iterator[Step]:
        """Free drafters first; then those with a price, where they promise more than was proposed for free."""
        self._open(sequences, drafters)
        if self._limits and self.bank.balance > 0 and not self._wants_plain():
            for index, drafter in enumerate(drafters):
                if drafter.free:
                    yield from self._take(index, range(len(sequences)), 1)
            if len(drafters) > sum(drafter.free for drafter in drafters):
                yield from self._draft_for_a_price()

    def _open(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter]) -> None:
        self._sequences, self._drafters = sequences, drafters
        while len(self.steps) < len(drafters):
            self.steps.append(None)
        count = len(sequences)
        self._drafts = [[Draft() for _ in drafters] for _ in sequences]
        self._spent = 0.0
        if self.costs.at(max(len(sequence.tokens) for sequence in sequences)):
            self._plain_known = self.costs.seconds(1)
        self._speed, self._cells = self.costs.curve()
        self._base = self.costs.seconds(count)
        room = MOST_ROWS - count
        self._limits = [min(self._most, room, sequence.draft_limit) for sequence in sequences] if room > 0 else []
        plain = count / self._plain_time(count)
        self._rate = plain if self._time <= 0 else max(plain, self._tokens / self._time)
        self._gain = 1 - self._rate * self._sample

    def _plain_time(self, count: int) -> float:
        """Seconds of a plain round of so many sequences."""
        return self.costs.seconds(count) + count * self._sample + self._other

    def _wants_plain(self) -> bool:
        """Now and then a round without drafts, for what a plain one takes is what all gain is counted from.

        Sooner where its time is believed to have changed although none was played.
        """
        if self._since_plain >= (32 if self.ledger.recent_gain < 1.3 else 256):
            return True
        believed, known = self.costs.seconds(1), self._plain_known
        return self._since_plain > 0 and not known / DRIFT < believed < known * DRIFT

    def _take(self, index: int, which: Sequence[int], siblings: int) -> Iterator[Step]:
        """One step of one drafter for these sequences; rates what it proposed."""
        growths, sizes = [], []
        for i in which:
            draft = self._drafts[i][index]
            limit = self._limits[i] - len(draft.tokens) if siblings == 1 else min(self._limits[i], siblings)
            if limit > 0:
                growths.append(Growth(self._sequences[i], draft, limit, siblings))
                sizes.append(len(draft.tokens))
        if not growths:
            return
        started = self._timer()
        yield Step(index, growths)
        seconds = self._timer() - started
        self._spent += seconds
        if not self._drafters[index].free:
            self._learn_step(index, growths, sizes, seconds)
        for growth, size in zip(growths, sizes, strict=True):
            self.acceptance.rate(growth.draft, size, growth.sequence.id)

    def _learn_step(self, index: int, growths: Sequence[Growth], sizes: Sequence[int], seconds: float) -> None:
        rows = sum(1 if size else lag for size, lag in zip(sizes, self._lags, strict=True))
        table = self.steps[index]
        if table is None:
            self.steps[index] = CostTable({1: seconds / max(rows, 1)})
        else:
            table.learn(rows, seconds)
        self.ledger.steps += 1

    _lags: Sequence[int] = ()

    def _draft_for_a_price(self) -> Iterator[Step]:
        """Steps of model drafters and the like, each decided on its own."""
        drafting: dict[int, list[int]] = {}
        for i, limit in enumerate(self._limits):
            if limit > 0 and (index := self._best_drafter(i)) is not None:
                drafting.setdefault(index, []).append(i)
        siblings = self._siblings()
        for index, which in drafting.items():
            first = True
            while which:
                self._lags = [self._drafters[index].lag(self._sequences[i]) if first else 1 for i in which]
                if not self._affordable(index, sum(self._lags)):
                    break
                sizes = [len(self._drafts[i][index].tokens) for i in which]
                yield from self._take(index, which, siblings)
                which = [
                    i
                    for i, size in zip(which, sizes, strict=True)
                    if len(self._drafts[i][index].tokens) > size and self._goes_on(i, index)
                ]
                first = False

    def _siblings(self) -> int:
        """How many children to ask for: as many as are worth a row each."""
        if not self._trees:
            return 1
        count = len(self._sequences)
        few, more = min(count + 3, MOST_ROWS), min(count + 8, MOST_ROWS)
        row = self._speed * (self._cells[more] - self._cells[few]) / max(more - few, 1)
        return SIBLINGS if self._rate * row < SIBLING_GAIN * self._gain else 1

    def _best_drafter(self, i: int) -> int | None:
        """Which drafter with a price should draft for a sequence, if any: expected gain above what comes for free."""
        rival = max((self._worth(draft)[0] for draft in self._drafts[i] if draft.tokens), default=0.0)
        best, found = rival, None
        for index, drafter in enumerate(self._drafters):
            if drafter.free:
                continue
            prospect = self._prospect(i, index, 1.0, 0, drafter.lag(self._sequences[i]))
            if prospect > best:
                best, found = prospect, index
            elif prospect <= rival and found is None and self._probing.due(index, self._could_ever_pay(index)):
                found = index
        if found is not None:
            self._probing.used(found, paid=best > rival)
        return found

    def _prospect(self, i: int, index: int, reached: float, depth: int, lag: int) -> float:
        """Largest expected gain of 1 to `LOOKAHEAD` more levels, in tokens, their price deducted.

        reached: P(the main chain is right so far), depth: its length, lag: rows of the first of the steps
        """
        table = self.steps[index]
        one, first = (0.0, 0.0) if table is None else (table.seconds(1), table.seconds(lag))
        name, level, sequence = self._drafters[index].name, self.acceptance.level, self._sequences[i].id
        speed, cells, rate, worth = self._speed, self._cells, self._rate, self._gain
        start = len(self._sequences) + depth
        before = cells[start]
        best, gain, time = -1.0, 0.0, first
        for ahead in range(min(LOOKAHEAD, self._limits[i] - depth)):
            reached *= level(name, depth + ahead, PRIOR, sequence)
            gain += reached
            value = worth * gain - rate * (time + speed * (cells[start + ahead + 1] - before))
            if value > best:
                best = value
            time += one
        return best

    def _could_ever_pay(self, index: int) -> bool:
        """Whether a drafter that is nearly always right would pay; without that there is nothing to find out."""
        table, count = self.steps[index], len(self._sequences)
        if table is None:
            return True
        step = table.seconds(1)
        return any(
            self._gain * 0.95 * ahead
            > self._rate * (ahead * step + self._speed * (self._cells[count + ahead] - self._cells[count]))
            for ahead in range(1, min(LOOKAHEAD, MOST_ROWS - count) + 1)
        )

    def _affordable(self, index: int, rows: int) -> bool:
        """Whether the bank covers a step and a round in which nothing is accepted."""
        table, count = self.steps[index], len(self._sequences)
        step = 0.0 if table is None else table.seconds(rows)
        return self._spent + step + self._speed * self._cells[count + 1] - self._base <= self.bank.balance

    def _goes_on(self, i: int, index: int) -> bool:
        """Whether a next step is worth its time."""
        draft = self._drafts[i][index]
        path = draft.path(draft.tip)
        if len(path) >= self._limits[i] or len(draft.tokens) >= SIBLINGS * self._limits[i]:
            return False
        reached = 1.0
        for node in path:
            reached *= draft.estimates[node]
        return self._prospect(i, index, reached, len(path), 1) > 0

    # --- what is verified

    def choose(self) -> Sequence[Draft]:
        """The nodes with the best chances across all sequences, as many as pay and as the bank covers."""
        self._chosen = [self._best_draft(drafts) for drafts in self._drafts]
        ranked = sorted(
            (-reached, i, node)
            for i, (_, draft) in enumerate(self._chosen)
            for node, reached in enumerate(_reach(draft))
        )
        count = self._worth_of(ranked)[1] if ranked else 0
        self._nodes = count
        kept: list[list[int]] = [[] for _ in self._chosen]
        for _, i, node in ranked[:count]:
            if len(kept[i]) < self._sequences[i].draft_limit:
                kept[i].append(node)
        return [
            draft.subset(sorted(nodes)) if nodes else Draft()
            for (_, draft), nodes in zip(self._chosen, kept, strict=True)
        ]

    def _best_draft(self, drafts: Sequence[Draft]) -> tuple[int, Draft]:
        """The most promising of what the drafters proposed for one sequence, and whose it is; time spent is spent."""
        best, found = 0.0, (-1, Draft())
        for index, draft in enumerate(drafts):
            if draft.tokens:
                worth = self._worth(draft)[0]
                if worth > best:
                    best, found = worth, (index, draft)
        return found

    def _worth(self, draft: Draft) -> tuple[float, int]:
        """(expected gain in tokens, nodes) of the best part of one draft."""
        return self._worth_of(sorted((-reached, 0, node) for node, reached in enumerate(_reach(draft))))

    def _worth_of(self, ranked: Sequence[tuple[float, int, int]]) -> tuple[float, int]:
        """The same for nodes by descending S. A parent comes before its children, so that a prefix is a tree."""
        start, speed, cells, rate = len(self._sequences), self._speed, self._cells, self._rate
        before, allowed = cells[start], self.bank.balance - self._spent
        best, nodes, gain = 0.0, 0, 0.0
        for count, (reached, _, _) in enumerate(ranked[: MOST_ROWS - start], 1):
            gain -= reached
            price = speed * (cells[start + count] - before)
            value = self._gain * gain - rate * price
            if value > best and price <= allowed:
                best, nodes = value, count
        return best, nodes

    # --- after it

    def observe(self, committed: Sequence[Sequence[int]], seconds: Mapping[str, float]) -> None:
        """Costs, acceptance, the rate and the bank learn from the round."""
        count = len(committed)
        tokens = sum(map(len, committed))
        expected = self.costs.learn(count + self._nodes, seconds["verify"])
        self._learn_overhead(tokens, count, seconds)
        plain = self._plain_time(count) / count * tokens
        actual = seconds["draft"] + self._without_hiccup(seconds["verify"], expected)
        actual += seconds["sample"] + seconds["other"]
        self.bank.settle(actual, plain)
        self.ledger.add(self._nodes, tokens, actual, plain)
        self._tokens = _FADE * self._tokens + tokens
        self._time = _FADE * self._time + actual
        self._since_plain += 1
        if not self._nodes:
            self._since_plain, self._plain_known = 0, self.costs.seconds(1)
        self._probing.tick()
        self._score(committed)

    def _without_hiccup(self, seconds: float, expected: float) -> float:
        """A forward's time. Once in a while one takes far too long, which would have hit plain decoding as well."""
        self._since_hiccup += 1
        if seconds <= 1.5 * expected or self._since_hiccup < 20:
            return seconds
        self._since_hiccup = 0
        return 1.5 * expected

    def _learn_overhead(self, tokens: int, count: int, seconds: Mapping[str, float]) -> None:
        """Sampling is done for every token, whoever proposed it; the rest once a round."""
        sample, other = seconds["sample"] / tokens, seconds["other"]
        weight = 0.05 if self._other else 1.0
        self._sample += weight * (min(sample, 0.2 * self._base) - self._sample)
        self._other += weight * (min(other, 0.2 * self._base) - self._other)

    def _score(self, committed: Sequence[Sequence[int]]) -> None:
        for sequence, drafts, tokens, (source, _) in zip(
            self._sequences, self._drafts, committed, self._chosen, strict=True
        ):
            for index, draft in enumerate(drafts):
                self.acceptance.score(sequence.id, index, draft, tokens, verified=index == source and self._nodes > 0)

    def end(self, sequence: SequenceView) -> None:
        self.acceptance.end(sequence.id)
        self._probing.new_text()

    def describe(self) -> dict[str, Any]:
        """Figures and a sentence: what was chosen, why, what it gained, what would have to change."""
        from slipstream.policy.explain import explain

        return {
            "name": self.name,
            "explanation": explain(self),
            "estimated_gain": self.ledger.gain,
            "plain_seconds": self.ledger.plain,
            "actual_seconds": self.ledger.actual,
            "bank_seconds": self.bank.balance,
            "tokens_per_second": self._tokens / self._time if self._time else None,
        }

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close(self)
            self._on_close = None


def _reach(draft: Draft) -> list[float]:
    """S of every node: P(the text takes the way to it)."""
    reached: list[float] = []
    for parent, estimate in zip(draft.parents, draft.estimates, strict=True):
        reached.append(estimate if parent == ROOT else estimate * reached[parent])
    return reached
