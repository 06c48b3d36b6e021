"""A model of another vocabulary drafts: what it says is read as text, and the text is spelled in the target's tokens.

(SLEM, Timor et al. 2025, arXiv 2502.05202. There a draft is accepted where it equals what the target says; here that
is so for all drafters, and nothing needs to be known of the draft model's distribution.)

Two texts are kept apart. What was committed is spelled in the draft model's tokens, of which only the last few are
made anew when the text goes on. What is drafted is spelled in the target's tokens, with the last of what was committed
before it, and anew with each draft token, because a word's end can change how its beginning is spelled.
"""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np

from slipstream.core.blocks import at_least
from slipstream.core.feed import common_prefix, feed
from slipstream.core.noise import Ids
from slipstream.core.pool import SessionPool, Slot
from slipstream.core.protocols import Growth, Logits, Model, Segment, SequenceView, Vocabulary
from slipstream.core.sampling import Proposal
from slipstream.core.tree import ROOT, Draft
from slipstream.draft.base import BaseDrafter
from slipstream.draft.shares import MOST_READ, shares
from slipstream.errors import UnsupportedModelError

PRIOR = 0.5
"""How often the first draft tokens are believed to be right, before it is known."""
LOOK_BEHIND = 8
"""Tokens before the end of a text that are made anew when it goes on, or looked at when a draft begins."""
CANDIDATES, REACH = 64, 5.0
"""One is drawn among so many of the draft model's likeliest tokens, none of whose logits is further below the largest
than this, in units of the temperature (but 0.8 at least): what is less likely comes less than once in 100 times."""
MOST_FORWARDS = 4
"""Draft tokens in one step that bring no token of the target's: parts of a character, mostly."""
DOUBTFUL = 0.7
"""Where fewer of the last tokens stay when the text goes on, a chain does not end with one. A tree gets branches."""
NOTHING = Proposal([], [])


class Spelled(NamedTuple):
    """A text in a vocabulary's tokens.

    ends: for each token, how many bytes of the text it and those before it stand for
    """

    tokens: list[int]
    ends: list[int]


def text_of(vocabulary: Vocabulary, token: int) -> bytes:
    """What a token is in a text for another model: a control token is its name."""
    return vocabulary.token_bytes(token) or vocabulary.token_name(token).encode()


def spell(vocabulary: Vocabulary, text: str, *, parse_special: bool) -> Spelled:
    """The text's tokens, without a BOS.

    Some vocabularies put a space before the first word, which is no part of the text. Where tokens say something else
    than the text (a vocabulary that drops what it cannot spell), the ends are about right, and the last is.
    """
    tokens = vocabulary.tokenize(text, add_bos=False, parse_special=parse_special)
    data = text.encode()
    ends = list(_ends([text_of(vocabulary, token) for token in tokens], data))
    if ends:
        ends[-1] = len(data)
    return Spelled(tokens, ends)


def _ends(pieces: Iterable[bytes], data: bytes) -> Iterator[int]:
    end = 0
    for piece in pieces:
        added = piece[:1] == b" " and not data.startswith(piece, end) and data.startswith(piece[1:], end)
        end = min(end + len(piece) - added, len(data))
        yield end


class Reading:
    """A sequence's committed text in the draft model's tokens, and the draft that hangs below it.

    tokens:  the draft model's, its BOS included; ends: bytes of the text up to each, 0 for the BOS
    agreed:  so many of the tokens are those of the session, whatever comes after them
    drafted: the draft model's tokens since then; said: their bytes
    spelled: the target's tokens for what is drafted
    held:    committed tokens of the target's that are not in the text yet, because the last of them ends within a
             character; what is drafted begins with the character's first bytes, `begun`
    """

    def __init__(self, target: Vocabulary, own: Vocabulary) -> None:
        self._target, self._own = target, own
        self.tokens: list[int] = [] if own.bos is None else [own.bos]
        self.ends = [0] * len(self.tokens)
        self.agreed, self.room = 0, 0
        self.slot: Slot | None = None
        self._first = len(self.tokens)
        self._text = bytearray()
        self._read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.drafted: list[int] = []
        self.said = bytearray()
        self.spelled: list[int] = []
        self.held: list[int] = []
        self.begun = b""
        self._before, self._prefix = "", ""

    @property
    def placed(self) -> Slot:
        """The draft model's session for the sequence."""
        assert self.slot is not None, "it gets one when the sequence begins"
        return self.slot

    def update(self, committed: Sequence[int]) -> None:
        """Read what the target has committed since the last time."""
        start, self._read = self._read, len(committed)
        if start == self._read:
            return
        if start == 0 and committed[0] == self._target.bos:
            start = 1
        new = self._decoder.decode(b"".join([text_of(self._target, token) for token in committed[start:]]))
        if new:
            self._go_on(new)

    def _go_on(self, new: str) -> None:
        """Spell the end of the text anew, with more text behind it."""
        kept = max(len(self.tokens) - LOOK_BEHIND, self._first)
        while kept > self._first and _within_character(self._text, self.ends[kept - 1]):
            kept -= 1
        start = self.ends[kept - 1] if kept > self._first else 0
        self._text += new.encode()
        made = spell(self._own, self._text[start:].decode(), parse_special=True)
        ends = [start + end for end in made.ends]
        places = {end: place for place, end in enumerate(ends, 1)}
        old, place = kept, 0
        if kept > self._first:  # the first token has lost what was before it, so it is taken from before
            old, place = next(
                ((i + 1, places[end]) for i, end in enumerate(self.ends[kept:], kept) if end in places), (kept, 0)
            )
        self.tokens[old:], self.ends[old:] = made.tokens[place:], ends[place:]
        self.agreed = min(self.agreed, old)

    def lag(self, committed: Sequence[int]) -> int:
        """Tokens that the session lacks; about, where nothing was drafted that would have to be taken back."""
        if self.drafted:
            self.update(committed)
        held = common_prefix(self.placed.tokens[self.agreed :], self.tokens[self.agreed :])
        return len(self.tokens) - self.agreed - held + len(committed) - self._read

    def begin_draft(self, committed: Sequence[int]) -> None:
        """Nothing is drafted yet."""
        self.drafted, self.said, self.spelled = [], bytearray(), []
        self.begun = self._decoder.getstate()[0]
        data, count = b"", 0
        while (len(data) < len(self.begun) or _within_character(data, 0)) and count < min(LOOK_BEHIND, len(committed)):
            count += 1
            data = text_of(self._target, committed[-count]) + data
        before = len(committed) - count
        self.held = list(committed[before:])
        self._prefix = data[: len(data) - len(self.begun)].decode(errors="replace")
        self._before = self._text_before(committed[max(before - LOOK_BEHIND, 0) : before])

    def _text_before(self, committed: Sequence[int]) -> str:
        """The last of the committed text, as far as no control token interrupts it."""
        data = b""
        for token in reversed(committed):
            piece = self._target.token_bytes(token)
            if not piece:
                break
            data = piece + data
        while _within_character(data, 0):
            data = data[1:]
        return data.decode(errors="replace")

    @property
    def ends_within_character(self) -> bool:
        """Whether the draft does not end where a character does."""
        return codecs.utf_8_decode(self.said, "replace", False)[1] < len(self.said)

    def say(self, token: int) -> bool:
        """The draft goes on with one of the draft model's tokens. False where the target cannot have meant that."""
        self.drafted.append(token)
        self.said += self._own.token_bytes(token)
        text = self._prefix + codecs.utf_8_decode(self.said, "replace", False)[0]
        if not text or len(self.said) < len(self.begun):
            return True
        spelled = spell_after(self._target, self._before, text)
        held = len(self.held)
        self.spelled = spelled[held:]
        return bool(spelled) and spelled[:held] == self.held


def _within_character(data: bytes | bytearray, place: int) -> bool:
    """Whether a character goes on at this byte."""
    return place < len(data) and 0x80 <= data[place] < 0xC0


def spell_after(vocabulary: Vocabulary, before: str, text: str) -> list[int]:
    """The tokens that `text` goes on with after `before`; empty where they would say something else.

    Where a token would reach from one into the other, the target has decided otherwise already, and what is before
    does not count.
    """
    for beginning in (before, "\n", ""):
        size = len(beginning.encode())
        tokens, ends = spell(vocabulary, beginning + text, parse_special=False)
        if size and size not in ends:
            continue
        rest = tokens[ends.index(size) + 1 :] if size else tokens
        if b"".join([vocabulary.token_bytes(token) for token in rest]) == text.encode():
            return rest
    return []


class OtherTokenizerDrafter(BaseDrafter):
    """Drafts a token of its own model a step, and proposes what that adds to the text in the target's tokens.

    The draft model's probabilities are summed over what its tokens begin with for the target, and the target's sampler
    draws from that, with its own noise, filters and penalties: whoever says the same says it at the same noise. Which
    of the draft model's tokens go on with the drawn beginning is then the likeliest one.

    What a control token of the target means the draft model cannot know. It reads its name, as the control token of
    that name where it has one, and a BOS of its own in place of the target's.

    model:  a loaded model with rollback
    target: the target's vocabulary
    """

    def __init__(self, model: Model, target: Vocabulary, *, source: str = "model") -> None:
        if not model.capabilities.rollback:
            raise UnsupportedModelError(
                f"{model.name} cannot take tokens back, so it cannot draft; use another draft model or --draft suffix."
            )
        self.name = source
        self.model: Model = model
        self._target = target
        self._pool = SessionPool(model)
        self._readings: dict[int, Reading] = {}
        self._spellings: dict[int, list[int]] = {}
        self._staying = 1.0
        """Share of the drafts' last tokens that were the same with another of the draft model's behind them."""

    def lag(self, sequence: SequenceView) -> int:
        """Tokens to read before the next draft begins; about, because a refused draft may have to be taken back."""
        reading = self._readings.get(sequence.id)
        return max(len(sequence.tokens) if reading is None else reading.lag(sequence.tokens), 1)

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        reading = Reading(self._target, self.model.vocabulary)
        reading.update(sequence.tokens)
        reading.slot = self._pool.acquire(reading.tokens)
        reading.agreed = len(reading.slot.tokens)
        self._readings[sequence.id] = reading

    def end(self, sequence: SequenceView) -> None:
        reading = self._readings.pop(sequence.id, None)
        if reading is not None:
            self._pool.release(reading.placed, reading.placed.tokens)

    def extend(self, frontier: Sequence[Growth]) -> None:
        growing = [growth for growth in frontier if self._is_ready(growth)]
        for _ in range(MOST_FORWARDS):
            growing = [growth for growth in growing if self._fits(growth)]
            if not growing:
                return
            growing = self._step(growing)

    def memory(self) -> int:
        """The model's, and its tokenizer's, which a model of the target's vocabulary would share."""
        return self.model.memory() + int(getattr(self.model.vocabulary, "memory", 0))

    def keep_sessions(self, most: int) -> None:
        """How many sessions may stay open for texts to come (`core.pool.SessionPool`)."""
        self._pool.most = most

    def close(self) -> None:
        self._pool.close()
        self.model.close()

    def _is_ready(self, growth: Growth) -> bool:
        """Prepare a step: read what was committed, and show what is left of the last draft token."""
        reading = self._readings[growth.sequence.id]
        reading.update(growth.sequence.tokens)
        reading.room = growth.limit
        if not growth.draft.tokens:
            reading.begin_draft(growth.sequence.tokens)
        elif len(reading.spelled) > len(growth.draft.path(growth.draft.tip)):
            self._grow(growth, reading, NOTHING)
        return reading.room > 0

    def _fits(self, growth: Growth) -> bool:
        """Whether the draft model's context has room, and something to go on from."""
        reading = self._readings[growth.sequence.id]
        return 0 < len(reading.tokens) + len(reading.drafted) <= self.model.context_length

    def _step(self, growing: Sequence[Growth]) -> list[Growth]:
        """One forward. Returns those of which nothing can be shown yet."""
        readings = [self._readings[growth.sequence.id] for growth in growing]
        lacking = [self._catch_up(one) for one in readings]
        most = self.model.max_rows if self._is_alone else min(self.model.max_rows, MOST_READ)
        granted = shares([len(tokens) for tokens in lacking], most)
        batch = [
            Segment(one.placed.session, tokens[:count], outputs=int(count == len(tokens)))
            for one, tokens, count in zip(readings, lacking, granted, strict=True)
        ]
        unfinished = []
        for growth, reading, segment, rows in zip(growing, readings, batch, self.model.forward(batch), strict=True):
            segment.session.commit(range(len(segment.tokens)))
            reading.placed.tokens.extend(segment.tokens)
            if segment.outputs and self._go_on(growth, reading, rows.logits(len(segment.tokens) - 1)):
                unfinished.append(growth)
        return unfinished

    @property
    def _is_alone(self) -> bool:
        """Whether no other text is decoded, which would wait while one is read."""
        return len(self._readings) == 1

    def _catch_up(self, reading: Reading) -> Sequence[int]:
        """Make the session hold a prefix of what is to be continued; returns the rest, 1 token or more.

        For a text that is alone, so few that one forward takes them.
        """
        slot, agreed = reading.placed, min(reading.agreed, len(reading.tokens) - 1)
        wanted = [*reading.tokens[agreed:], *reading.drafted]
        kept = slot.keep(agreed + min(common_prefix(slot.tokens[agreed:], wanted), len(wanted) - 1))
        if kept < agreed:  # it could not go back so far
            wanted, agreed = [*reading.tokens[kept:agreed], *wanted], kept
        reading.agreed = min(kept, len(reading.tokens) - 1)
        lacking = wanted[kept - agreed :]
        early = max(len(lacking) - self.model.max_rows, 0) if self._is_alone else 0
        for done in feed(self.model, slot.session, lacking[:early]):
            slot.tokens[kept:] = lacking[:done]
        return lacking[early:]

    def _go_on(self, growth: Growth, reading: Reading, logits: Logits) -> bool:
        """Take the next draft token; whether one more is needed before anything can be shown."""
        ids, values = _likeliest(logits, REACH * max(growth.sequence.sampler.params.temperature, 0.8))
        if not len(ids):
            return False
        missing = reading.begun[len(reading.said) :]
        if missing or reading.ends_within_character:
            token, proposal = self._completing(ids, values, missing), NOTHING
        else:
            token, proposal = self._drawn(growth, reading, ids, values)
        before = reading.spelled
        if token is None or not reading.say(token):
            return False
        if before:
            self._staying += 0.05 * ((reading.spelled[: len(before)] == before) - self._staying)
        return self._grow(growth, reading, proposal)

    def _completing(self, ids: Ids, values: Logits, missing: bytes) -> int | None:
        """The likeliest token within a character, of which these bytes are known."""
        for token in ids[np.argsort(-values, kind="stable")].tolist():
            piece = self.model.vocabulary.token_bytes(token)
            if piece and (piece.startswith(missing) or missing.startswith(piece)):
                return int(token)
        return None

    def _drawn(self, growth: Growth, reading: Reading, ids: Ids, values: Logits) -> tuple[int | None, Proposal]:
        """The draft token that the target's sampler draws by what it begins with; None ends the draft."""
        likeliest = int(ids[values.argmax()])
        if not self._spelling(likeliest):  # part of a character, or the end of the text
            return (likeliest if self.model.vocabulary.token_bytes(likeliest) else None), NOTHING
        largest = float(values.max())
        masses: dict[int, float] = {}
        holders: dict[int, tuple[float, int]] = {}
        for token, value in zip(ids.tolist(), values.tolist(), strict=True):
            if spelling := self._spelling(token):
                first = spelling[0]
                masses[first] = masses.get(first, 0.0) + exp(value - largest)
                holders[first] = max(holders.get(first, (-np.inf, 0)), (value, -token))
        firsts = sorted(masses)
        sums = np.array([largest + log(masses[first]) for first in firsts], np.float32)
        sequence, spelled, count = growth.sequence, reading.spelled, min(growth.siblings, reading.room)
        place = len(sequence.tokens) + len(spelled)
        proposal = sequence.sampler.propose_among(np.array(firsts), sums, place, spelled, count)
        if not proposal.tokens:
            return None, NOTHING
        return -holders[proposal.tokens[0]][1], proposal

    def _spelling(self, token: int) -> list[int]:
        """The target's tokens for one of the draft model's; empty for control tokens and parts of characters."""
        known = self._spellings.get(token)
        if known is None:
            try:
                text = self.model.vocabulary.token_bytes(token).decode()
            except UnicodeDecodeError:
                text = ""
            known = self._spellings[token] = spell_after(self._target, "", text) if text else []
        return known

    def _grow(self, growth: Growth, reading: Reading, proposal: Proposal) -> bool:
        """Add what the draft has become in the target's tokens; whether there was nothing to add.

        Where it is no longer spelled as before, a tree gets a branch, and a chain ends.
        """
        draft, spelled = growth.draft, reading.spelled
        if growth.siblings == 1 and self._staying < DOUBTFUL:
            spelled = spelled[:-1]
        path = draft.path(draft.tip)
        shared = common_prefix([draft.tokens[node] for node in path], spelled)
        if shared < len(path):
            if growth.siblings == 1:
                return False
            draft.tip = path[shared - 1] if shared else ROOT
        parent, before = draft.tip, len(draft.tokens)
        greedy = growth.sequence.sampler.params.temperature == 0
        drawn = proposal if spelled[shared : shared + 1] == proposal.tokens[:1] and shared == len(path) else NOTHING
        for place, token in enumerate(spelled[shared:]):
            margin = drawn.margins[0] if drawn.tokens and place == 0 else None
            if not self._follow(draft, reading, token, _bucket(margin, 0, greedy=greedy)):
                break
        for rank, (token, margin) in enumerate(zip(drawn.tokens, drawn.margins, strict=True)):
            if rank and reading.room > 0 and draft.child(parent, token) is None:
                estimate, bucket = (1 - PRIOR) / 2**rank, _bucket(margin, rank, greedy=greedy)
                draft.add(token, parent, source=self.name, estimate=estimate, bucket=bucket)
                reading.room -= 1
        return len(draft.tokens) == before and reading.room > 0

    def _follow(self, draft: Draft, reading: Reading, token: int, bucket: int) -> bool:
        """Make the main chain longer, along a branch that is there or by a node; False where there is no room."""
        child = draft.child(draft.tip, token)
        if child is not None:
            draft.tip = child
        elif reading.room > 0:
            draft.append(token, source=self.name, estimate=PRIOR, bucket=bucket)
            reading.room -= 1
        else:
            return False
        return True


def _likeliest(row: Logits, reach: float) -> tuple[Ids, Logits]:
    """Ids, ascending, and logits of the candidates; none where the row has no numbers."""
    ids, values = at_least(row, float(row.max()) - reach)
    if len(ids) > CANDIDATES:
        kept = np.sort(np.argpartition(-values, CANDIDATES)[:CANDIDATES])
        ids, values = ids[kept], values[kept]
    return ids, values


def _bucket(margin: float | None, rank: int, *, greedy: bool) -> int:
    """Feature bucket: how clearly the best beat the runner-up, or how far behind it a sibling is, by rank.

    In steps that double; 7 is beyond doubt, 8 a token that nothing was drawn for: the rest of a longer one, or of a
    word that is spelled anew. Margins with noise mean something else than margins without.
    """
    size = 8 if margin is None else 7 if margin >= 16 else min(int(margin * 4), 2**30).bit_length()
    return size + 9 * (min(rank, 3) + 4 * greedy)
