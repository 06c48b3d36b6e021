"""Draft as much as pays (`policy.rule`), by measured costs and learned acceptance, within what the bank covers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from slipstream.core.protocols import Drafter, Growth, SequenceView, Step
from slipstream.core.tree import ROOT, Draft
from slipstream.policy.bank import ExcessBank
from slipstream.policy.calibration import Acceptance
from slipstream.policy.costs import MOST_ROWS, CostTable
from slipstream.policy.explain import explain
from slipstream.policy.ledger import Ledger
from slipstream.policy.probing import FIRST_CREDIT, Probing
from slipstream.policy.rule import LOOKAHEAD, Rule

DEFAULT_MOST_DRAFTED = 16
DEFAULT_MOST_PREDICTED = 32
"""Levels of a draft where a text has a prediction: on machines to which rows are cheap as many are worth it."""
SIBLINGS = 3
"""Nodes below one parent, where the target takes trees."""
SIBLING_GAIN = 0.3
"""Tokens that a row may cost for siblings to be asked for; which are verified is decided when they are there."""
TYPICAL_TOKENS, TYPICAL_ROUND = 64, 3
"""Tokens that a text is expected to go on for at least, and tokens of a round."""
SLEEP = 32
"""Rounds for which a drafter that could not pay if it were always right is not thought about."""
CROWD, IDLE, TURN = 4, 8, 4
"""Where so many sequences are decoded together, free drafters are asked about one for which nothing was verified in
`IDLE` rounds, and that no grammar constrains, in every `TURN`th only: lookup is nearly free for one text, and not for
sixteen."""
SHARED_WORTH = 0.8
"""Of a token that is drafted for one text of a crowd. It ends that text sooner, but the others' rows take their time
all the same, unless somebody waits for the place; and what another row costs is known to some percent only."""
FIRST_READ = 64
"""Tokens. A text's first token, which the forward gives that reads its prompt, does not wait for a draft model that has
more than this to read."""
DRIFT = 1.1
"""By how much a plain round's time may seem to change before one is played to see."""
_FADE = 0.97
"""Of the achieved rate: it follows the last 30 rounds or so."""


class _Proposal:
    """What one drafter proposes for one sequence.

    reached: S of every node, P(the text takes the way to it)
    depth:   levels of the main chain
    form:    the drafter's on this text
    """

    __slots__ = ("_tip", "depth", "draft", "form", "reached")

    def __init__(self, form: float) -> None:
        self.draft = Draft()
        self.reached: list[float] = []
        self.depth, self.form, self._tip = 0, form, ROOT

    def take_in(self) -> bool:
        """Take nodes in that were added and rated; whether there were any."""
        draft, reached = self.draft, self.reached
        if len(draft.tokens) == len(reached):
            return False
        parents, estimates = draft.parents, draft.estimates
        for node in range(len(reached), len(parents)):
            parent = parents[node]
            reached.append(estimates[node] if parent == ROOT else estimates[node] * reached[parent])
        node = draft.tip
        while node not in (self._tip, ROOT):
            self.depth, node = self.depth + 1, parents[node]
        if node != self._tip:  # the drafter began another main chain
            self.depth = len(draft.path(draft.tip))
        self._tip = draft.tip
        return True

    @property
    def tip(self) -> float:
        """S at the end of the main chain."""
        return 1.0 if self._tip == ROOT else self.reached[self._tip]

    @property
    def is_chain(self) -> bool:
        return self.depth == len(self.reached)


class _Offer(NamedTuple):
    """What a drafter with a price could do for a sequence; all but the first are arguments of the rule's questions.

    levels, form: acceptance by level, and what it is multiplied with on this text
    first, one:   seconds of the first step and of each one after it
    """

    drafter: int
    levels: Sequence[float]
    most: int
    form: float
    first: float
    one: float


class AdaptivePolicy:
    """Implements `core.protocols.Policy`.

    target: the target's costs
    steps:  costs of a step of each drafter, by rows it has to read; None where they are not known yet, or none
    trees:  whether the target takes them
    bank:   what may be lost
    tries:  seconds that tries of drafters which did not pay may take already
    most:   most levels of a draft; `most_predicted`: of one for a text that has a prediction, None is as many
    most_rows: rows that the target takes in one forward
    timer:  a simulation has one of its own
    on_close: called once, to keep what was learned
    """

    name = "auto"

    def __init__(
        self,
        target: CostTable,
        steps: Sequence[CostTable | None] = (),
        *,
        trees: bool = False,
        bank: ExcessBank | None = None,
        tries: float = FIRST_CREDIT,
        acceptance: Acceptance | None = None,
        most: int = DEFAULT_MOST_DRAFTED,
        most_predicted: int | None = None,
        most_rows: int = MOST_ROWS,
        timer: Callable[[], float] = perf_counter,
        on_close: Callable[["AdaptivePolicy"], None] | None = None,
    ) -> None:
        self.costs = target
        self.steps: list[CostTable | None] = list(steps)
        self.bank = bank or ExcessBank()
        self.acceptance = acceptance or Acceptance()
        self.ledger = Ledger()
        self.too_dear = 0.0
        """Seconds of the last first step that the bank did not cover, or that was not expected to be repaid."""
        self.drafters: Sequence[Drafter] = ()
        """Those of the last round; none before the first."""
        self._trees = trees
        self._most = min(most, MOST_ROWS - 1)
        self._most_predicted = self._most if most_predicted is None else min(most_predicted, MOST_ROWS - 1)
        self._most_rows = min(most_rows, MOST_ROWS)
        self._timer = timer
        self._on_close = on_close
        self._probing = Probing(tries)
        self._tokens = self._time = 0.0
        self._sample = self._other = 0.0
        self._since_plain = self._since_hiccup = 0
        self._plain_known = target.seconds(1)
        self._begun_at: dict[int, int] = {}
        self._asleep_until: dict[int, int] = {}
        self._muted: dict[tuple[int, int], int] = {}
        self._idle: dict[int, int] = {}
        self._model_drafts = 0.25
        """Of the sequences of recent rounds of a crowd, the share for which a drafter with a price drafted. Few until
        that is seen: a prompt that is read for nothing is lost time, one that is read later is not."""
        self._late = 0.0
        # of the present round
        self._sequences: Sequence[SequenceView] = ()
        self._beside = 0
        self._proposals: list[list[_Proposal]] = []
        self._limits: list[int] = []
        self._verified: list[int] = []
        self._nodes = 0
        self._noted: dict[tuple[int, int], tuple[float, int]] = {}
        self._spent = self._best_rate = 0.0
        self._rule = Rule(target, 1, 1 / target.seconds(1), 0.0)

    # --- before the round's forward

    def draft(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter], beside: int = 0) -> Iterator[Step]:
        """Free drafters first; then those with a price, where they promise more than was proposed for free."""
        self._open(sequences, drafters, beside)
        if not self._limits or self.bank.balance <= 0 or self._wants_plain():
            return
        asked = self._in_turn()
        for index, drafter in enumerate(drafters):
            if drafter.free and (growths := self._free_growths(index, asked)):
                started = self._timer()
                yield Step(index, growths)
                self._spent += self._timer() - started
                for i in self._rate(index, asked):
                    self._best_rate = max(self._best_rate, self._rule.best_rate_of(self._descending(i, index)))
        for index, which in self._assigned().items():
            yield from self._draft_for_a_price(index, which)

    def _open(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter], beside: int) -> None:
        self._sequences, self.drafters, self._beside = sequences, tuple(drafters), beside
        count = len(sequences)
        if len(self.steps) < len(drafters):
            self.steps += [None] * (len(drafters) - len(self.steps))
        form = self.acceptance.form
        self._proposals = [
            [_Proposal(form(drafter.name, sequence.id)) for drafter in drafters] for sequence in sequences
        ]
        self._spent = self._best_rate = 0.0
        self._noted = {}
        if self.costs.at(max([len(sequence.tokens) for sequence in sequences])):
            self._plain_known = self.costs.seconds(1)
        rate = self._tokens / self._time if self._time > 0 else 0.0
        worth = SHARED_WORTH if count >= CROWD else 1.0
        self._rule = Rule(self.costs, count, rate, self._sample, self._most_rows, beside, worth)
        room = self._most_rows - count - beside
        self._limits = [min(self._most_for(one), room, one.draft_limit) for one in sequences] if room > 0 else []

    def _most_for(self, sequence: SequenceView) -> int:
        return self._most_predicted if sequence.prediction else self._most

    def _wants_plain(self) -> bool:
        """Now and then a round without drafts, for what a plain one takes is what all gain is counted from.

        Sooner where its time is believed to have changed although none was played.
        """
        if self._beside:
            return False  # such a round would not tell
        if self._since_plain >= (32 if self.ledger.recent_gain < 1.3 else 256):
            return True
        believed, known = self.costs.seconds(1), self._plain_known
        return self._since_plain > 0 and not known / DRIFT < believed < known * DRIFT

    def _in_turn(self) -> Sequence[int]:
        """The sequences that free drafters are asked about in this round."""
        sequences = self._sequences
        if len(sequences) < CROWD:
            return range(len(sequences))
        idle, now = self._idle, self.ledger.rounds
        return [
            i
            for i, one in enumerate(sequences)
            if idle.get(one.id, 0) < IDLE or (now + one.id) % TURN == 0 or one.sampler.constraint is not None
        ]

    def _growths(self, index: int, which: Sequence[int], siblings: int) -> list[Growth]:
        """What one drafter is asked for in one step."""
        growths = []
        for i in which:
            draft, limit = self._proposals[i][index].draft, self._limits[i]
            limit = min(limit, siblings) if siblings > 1 else limit - len(draft.tokens)
            if limit > 0:
                growths.append(Growth(self._sequences[i], draft, limit, siblings))
        return growths

    def _free_growths(self, index: int, which: Sequence[int]) -> list[Growth]:
        """What a free drafter is asked for, in its one step; which of its nodes are verified is decided afterwards."""
        siblings = SIBLINGS if self._trees else 1
        return [
            Growth(self._sequences[i], self._proposals[i][index].draft, self._limits[i], siblings)
            for i in which
            if self._limits[i] > 0
        ]

    def _rate(self, index: int, which: Sequence[int]) -> list[int]:
        """Rate what a drafter added; returns the sequences whose drafts grew."""
        grown, rate = [], self.acceptance.rate
        for i in which:
            proposal = self._proposals[i][index]
            sources = proposal.draft.sources
            if sources and sources[0] != self.drafters[index].name:  # it asked another one
                proposal.form = self.acceptance.form(sources[0], self._sequences[i].id)
            rate(proposal.draft, len(proposal.reached), proposal.form)
            if proposal.take_in():
                grown.append(i)
        return grown

    def _draft_for_a_price(self, index: int, which: list[int]) -> Iterator[Step]:
        """Steps of a drafter, each decided on its own: worth its time, and covered by the bank."""
        siblings, levels = self._siblings(), self.acceptance.by_level(self.drafters[index].name)
        lags = self._affordable(index, which)
        which, rows = list(lags), sum(lags.values())
        while which and (growths := self._growths(index, which, siblings)):
            started = self._timer()
            yield Step(index, growths)
            seconds = self._timer() - started
            self._spent += seconds
            grown = self._rate(index, which)
            unread = self._unread(index, lags) if len(grown) < len(which) else {}
            if grown:
                self._note_step(index, rows - sum(unread.values()), seconds)
            if len(grown) < len(which):
                self._mute(index, [i for i in which if not self._proposals[i][index].reached and i not in unread])
            lags = {}
            share = self._step_seconds(index, len(grown)) / max(len(grown), 1)
            which = [i for i in grown if self._goes_on(i, index, levels, share)]
            rows = len(which)
            if self._spent + self._step_seconds(index, rows) > self._allowed:
                return

    @property
    def tries(self) -> float:
        """Seconds that tries of drafters which did not pay may take by now."""
        return self._probing.credit

    @property
    def _allowed(self) -> float:
        """Seconds of drafting that the bank covers in a round in which nothing is accepted."""
        return self.bank.balance - max(self._rule.extra(1), 0.0)

    def _step_seconds(self, index: int, rows: int) -> float:
        table = self.steps[index]
        return 0.0 if table is None or rows == 0 else table.seconds(rows)

    def _affordable(self, index: int, which: list[int]) -> dict[int, int]:
        """The sequences whose first step the bank covers, and how many rows each has to read for it.

        One that has a long text to catch up on must not keep the others from drafting.
        """
        lags = {i: self.drafters[index].lag(self._sequences[i]) for i in which}
        while lags and self._spent + self._step_seconds(index, sum(lags.values())) > self._allowed:
            largest = max(lags, key=lags.__getitem__)
            self.too_dear = self._step_seconds(index, lags.pop(largest))
            self.bank.make_room(self.too_dear)
        return lags

    def _unread(self, index: int, lags: Mapping[int, int]) -> dict[int, int]:
        """Sequences that got no draft because a step reads a part of what they have missed, and how much is left.

        lags: what was to be read before the step
        """
        drafter, left = self.drafters[index], {}
        for i, before in lags.items():
            if before > 1 and not self._proposals[i][index].reached:
                after = drafter.lag(self._sequences[i])
                if 1 < after < before:
                    left[i] = after
        if left:
            self._probing.goes_on(index, sum([self._step_seconds(index, rows) for rows in left.values()]))
        return left

    def _mute(self, index: int, which: Sequence[int]) -> None:
        """It had nothing at all to propose: do not ask for these sequences again for a while."""
        for i in which:
            self._muted[index, self._sequences[i].id] = self.ledger.rounds + SLEEP

    def _note_step(self, index: int, rows: int, seconds: float) -> None:
        """Steps of a round that read as many rows are learned from together, when it is over."""
        if self.steps[index] is None:
            self.steps[index] = CostTable({1: max(seconds / rows, 1e-9)})
            return
        noted = self._noted.get((index, rows))
        self._noted[index, rows] = (seconds, 1) if noted is None else (noted[0] + seconds, noted[1] + 1)

    def _learn_steps(self) -> None:
        for (index, rows), (seconds, count) in self._noted.items():
            table = self.steps[index]
            assert table is not None, "its first step made it"
            table.learn(rows, seconds / count)

    def _assigned(self) -> dict[int, list[int]]:
        """Which drafter with a price drafts for which sequences."""
        drafting: dict[int, list[int]] = {}
        now = self.ledger.rounds
        awake = [i for i, one in enumerate(self.drafters) if not one.free and self._asleep_until.get(i, 0) <= now]
        if not awake:
            return drafting
        offers = [self._offers(i, awake) if limit > 0 else [] for i, limit in enumerate(self._limits)]
        best = max([self._rule.best_rate(*offer[1:]) for some in offers for offer in some], default=0.0)
        if best > 0:
            self._best_rate = max(best, self._best_rate)
            self._rule.temper(self._best_rate)
        for i, some in enumerate(offers):
            if some and (index := self._best_drafter(i, some)) is not None:
                drafting.setdefault(index, []).append(i)
        return drafting

    def _offers(self, i: int, awake: Sequence[int]) -> list[_Offer]:
        """What drafters with a price could do for a sequence."""
        offers, sequence = [], self._sequences[i]
        together = sum([limit > 0 for limit in self._limits])  # one step serves them all
        for index in awake:
            if self._muted and self._muted.get((index, sequence.id), 0) > self.ledger.rounds:
                continue
            drafter = self.drafters[index]
            first = one = self._step_seconds(index, together) / together
            lag = drafter.lag(sequence)
            if lag == 0 or (lag > FIRST_READ and self._beside and not self._generated(sequence)):
                continue
            if lag > 1:
                first += self._amortised(sequence, self._step_seconds(index, lag) - self._step_seconds(index, 1))
            levels = self.acceptance.by_level(drafter.name)
            offers.append(_Offer(index, levels, self._limits[i], self._proposals[i][index].form, first, one))
        return offers

    def _siblings(self) -> int:
        """How many children to ask for: as many as are worth a row each."""
        if not self._trees:
            return 1
        few, more = 3, min(8, MOST_ROWS - self._rule.rows)
        row = (self._rule.extra(more) - self._rule.extra(few)) / (more - few) if more > few else self._rule.base
        return SIBLINGS if self._rule.rate * row < SIBLING_GAIN * self._rule.gain else 1

    def _best_drafter(self, i: int, offers: Sequence[_Offer]) -> int | None:
        """Which drafter with a price should draft for a sequence, if any: expected gain above what comes for free."""
        rival = max([self._worth(i, index) for index, one in enumerate(self._proposals[i]) if one.reached], default=0.0)
        best, found, tried, price = rival, None, None, 0.0
        for offer in offers:
            prospect = self._rule.prospect(*offer[1:])
            if prospect > best:
                best, found = prospect, offer.drafter
            elif offer.first > 2 * offer.one and self._rule.prospect(*offer[1:4], offer.one, offer.one) > best:
                self.too_dear = self._step_seconds(offer.drafter, self.drafters[offer.drafter].lag(self._sequences[i]))
            elif not self._could_ever_pay(offer.one):
                self._asleep_until[offer.drafter] = self.ledger.rounds + SLEEP
            elif found is None and tried is None:
                price = self._price_of_trying(offer.drafter, self._sequences[i])
                if self._probing.due(offer.drafter, price):
                    tried = offer.drafter
        if found is not None:
            self._probing.used(found, 0.0, paid=True)
        elif tried is not None:
            self._probing.used(tried, price, paid=False)
        return tried if found is None else found

    def _price_of_trying(self, index: int, sequence: SequenceView) -> float:
        """About what a step and the verification of one node take."""
        return self._rule.extra(1) + self._step_seconds(index, self.drafters[index].lag(sequence))

    def _amortised(self, sequence: SequenceView, seconds: float) -> float:
        """A round's share of the time in which a model reads what it lacks: that is paid once and serves all to come.

        How many rounds there will be nobody knows; a text goes on for about as long as it has been going on, and a bit.
        In a crowd many of them draft nothing, because prompts come in beside them or rows have become dear.
        """
        tokens = min(max(TYPICAL_TOKENS, self._generated(sequence)), sequence.draft_limit + 1)
        share = self._model_drafts if len(self._sequences) >= CROWD else 1.0
        return max(seconds, 0.0) / max(share * tokens / TYPICAL_ROUND, 1.0)

    def _generated(self, sequence: SequenceView) -> int:
        """Tokens of a text since it was first looked at."""
        length = len(sequence.tokens)
        return length - self._begun_at.setdefault(sequence.id, length)

    def _could_ever_pay(self, step: float) -> bool:
        """Whether a drafter that is nearly always right would pay; without that there is nothing to find out."""
        most = min(LOOKAHEAD, MOST_ROWS - self._rule.rows)
        return self._rule.worthwhile(1.0, [0.95], 0, most, 1.0, step)

    def _goes_on(self, i: int, index: int, levels: Sequence[float], step: float) -> bool:
        """Whether the next step of a draft is worth its time."""
        proposal, limit = self._proposals[i][index], self._limits[i]
        if proposal.depth >= limit or len(proposal.reached) >= SIBLINGS * limit:
            return False
        return self._rule.worthwhile(proposal.tip, levels, proposal.depth, limit, proposal.form, step)

    # --- what is verified

    def choose(self) -> Sequence[Draft]:
        """The nodes with the best chances across all sequences, as many as pay and as the bank covers."""
        if not self._limits:
            self._verified, self._nodes = [-1] * len(self._sequences), 0
            return [Draft() for _ in self._sequences]
        self._verified = [self._best_proposal(i, proposals) for i, proposals in enumerate(self._proposals)]
        if len(self._verified) == 1:
            kept = [self._best_of_one()]
        else:
            kept = self._best_of_all()
        self._nodes = sum(map(len, kept))
        for sequence, nodes in zip(self._sequences, kept, strict=True):
            self._idle[sequence.id] = 0 if nodes else self._idle.get(sequence.id, 0) + 1
        return [
            proposals[index].draft.subset(nodes) if nodes else Draft()
            for proposals, index, nodes in zip(self._proposals, self._verified, kept, strict=True)
        ]

    def _best_proposal(self, i: int, proposals: Sequence[_Proposal]) -> int:
        """The most promising of what the drafters proposed for one sequence, -1 if there is nothing; spent is spent."""
        filled = [index for index, proposal in enumerate(proposals) if proposal.reached]
        if len(filled) <= 1:
            return filled[0] if filled else -1
        return max(filled, key=lambda index: self._worth(i, index))

    def _worth(self, i: int, index: int) -> float:
        """Expected gain in tokens of the best part of a proposal, if it were the only one."""
        return self._rule.best_part(self._descending(i, index), self.bank.balance - self._spent)[0]

    def _descending(self, i: int, index: int) -> Sequence[float]:
        """S of a proposal's nodes, largest first."""
        proposal = self._proposals[i][index]
        return proposal.reached if proposal.is_chain else sorted(proposal.reached, reverse=True)

    def _best_of_one(self) -> list[int]:
        """Chosen nodes of the only sequence, ascending."""
        if self._verified[0] < 0:
            return []
        proposal, allowed = self._proposals[0][self._verified[0]], self.bank.balance - self._spent
        reached, limit = proposal.reached, self._sequences[0].draft_limit
        if proposal.is_chain:
            return list(range(min(self._rule.best_part(reached, allowed)[1], limit)))
        order = sorted(range(len(reached)), key=reached.__getitem__, reverse=True)  # stable: parents stay first
        _, count = self._rule.best_part([reached[node] for node in order], allowed)
        return sorted(order[: min(count, limit)])

    def _best_of_all(self) -> list[list[int]]:
        """Chosen nodes of every sequence, ascending, from one ranking."""
        ranked = sorted(
            [
                (-one, i, node)
                for i, index in enumerate(self._verified)
                if index >= 0
                for node, one in enumerate(self._proposals[i][index].reached)
            ]
        )
        _, count = self._rule.best_part([-one for one, _, _ in ranked], self.bank.balance - self._spent)
        kept: list[list[int]] = [[] for _ in self._verified]
        for _, i, node in ranked[:count]:
            if len(kept[i]) < self._sequences[i].draft_limit:
                kept[i].append(node)
        for nodes in kept:
            nodes.sort()
        return kept

    # --- after it

    def observe(self, committed: Sequence[Sequence[int]], seconds: Mapping[str, float]) -> float:
        """Costs, acceptance, the rate and the bank learn from the round."""
        started = self._timer()
        count, tokens = len(committed), sum(map(len, committed))
        verify, expected = self._verification(count, seconds["verify"])
        self._learn_steps()
        self._learn_overhead(tokens, seconds)
        verified = self._without_hiccup(verify, expected)
        decoding = verified + seconds["sample"] + seconds["other"]
        actual = seconds["draft"] + decoding + self._late
        plain = self._plain(count, tokens, seconds["sample"]) if self._nodes else decoding
        self.bank.settle(actual, plain)
        self.ledger.add(self._nodes, tokens, actual, plain)
        self._tokens = _FADE * self._tokens + tokens
        self._time = _FADE * self._time + actual
        self._since_plain += 1
        if not self._nodes and not self._beside:
            self._since_plain, self._plain_known = 0, self.costs.seconds(1)
        self._probing.tick(plain)
        self._score(committed)
        if count >= CROWD:
            drafted = self._nodes and sum([one >= 0 and not self.drafters[one].free for one in self._verified])
            self._model_drafts += (1 - _FADE) * (drafted / count - self._model_drafts)
        self._late = self._timer() - started  # what this took is the next round's
        return plain

    def _plain(self, count: int, tokens: int, sample: float) -> float:
        """What plain decoding would have taken for the tokens of a round with drafts.

        They would have been sampled just so. A round without drafts needs no estimate: it was plain decoding, however
        long it took on this machine at this moment.
        """
        plain = (self.costs.seconds(count) + self._other) / count * tokens + sample
        unconfirmed = self.costs.seconds(1) / (DRIFT * self._plain_known)
        return plain / max(unconfirmed, 1.0)  # no credit for a slowness that no plain round has shown yet

    def _verification(self, count: int, seconds: float) -> tuple[float, float]:
        """(what verification took, what was expected), without the time of prompts that the forward read as well.

        Such a forward teaches nothing: rows of a prompt give no logits, and there may be more than the table has.
        """
        rows = count + self._nodes
        if not self._beside:
            return seconds, self.costs.learn(rows, seconds)
        if rows + self._beside > MOST_ROWS:
            expected = self.costs.seconds(rows)
            return expected, expected  # nobody knows what the prompts took
        base, whole = self.costs.seconds(count + self._beside), self.costs.seconds(rows + self._beside)
        expected = self.costs.seconds(count) + max(whole - base, 0.0)  # what the drafts added is theirs
        return expected * seconds / whole, expected

    def _without_hiccup(self, seconds: float, expected: float) -> float:
        """A forward's time. Once in a while one takes far too long, which would have hit plain decoding as well."""
        self._since_hiccup += 1
        if seconds <= 1.5 * expected or self._since_hiccup < 20:
            return seconds
        self._since_hiccup = 0
        return 1.5 * expected

    def _learn_overhead(self, tokens: int, seconds: Mapping[str, float]) -> None:
        """Sampling is done for every token, whoever proposed it; the rest once a round, here a plain one."""
        most, weight = self._rule.base, 0.05 if self._other else 1.0
        self._sample += weight * (min(seconds["sample"] / tokens, most) - self._sample)
        if not self._nodes:
            self._other += weight * (min(seconds["other"], most) - self._other)

    def _score(self, committed: Sequence[Sequence[int]]) -> None:
        score = self.acceptance.score
        for i, tokens in enumerate(committed):
            number, verified = self._sequences[i].id, self._verified[i] if self._nodes else -1
            for index, proposal in enumerate(self._proposals[i]):
                if score(number, index, proposal.draft, tokens, verified=index == verified):
                    self._probing.was_right(index)
                if not proposal.reached:
                    self.acceptance.rest(self.drafters[index].name, number)

    def end(self, sequence: SequenceView) -> None:
        self.acceptance.end(sequence.id)
        self._begun_at.pop(sequence.id, None)
        self._idle.pop(sequence.id, None)
        if self._muted:
            self._muted = {key: until for key, until in self._muted.items() if key[1] != sequence.id}
        self._probing.new_text()

    def describe(self) -> dict[str, Any]:
        """Figures and a sentence: what was chosen, why, what it gained, what would have to change."""
        return {
            "name": self.name,
            "explanation": explain(self),
            "estimated_gain": self.ledger.gain,
            "plain_seconds": self.ledger.plain,
            "actual_seconds": self.ledger.actual,
            "bank_seconds": self.bank.balance,
            "tokens_per_second": self._tokens / self._time if self._time else None,
            "rate": self._rule.rate,
        }

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close(self)
            self._on_close = None
