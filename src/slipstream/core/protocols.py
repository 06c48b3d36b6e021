"""The seams: what a model, a drafter, a policy, a grammar and a stop rule promise each other.

Nothing here computes. The engine talks to these protocols only, so a runtime or a drafter is added
without touching it, and the tests drive the engine with a table-driven model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slipstream.core.tree import Draft

if TYPE_CHECKING:  # these modules import this one
    from slipstream.core.sampling import Sampler
    from slipstream.core.verify import Verdict

Logits = NDArray[np.float32]


class Vocabulary(Protocol):
    """Token ids and what they mean."""

    @property
    def size(self) -> int:
        """Number of token ids; a row of logits has this many entries."""

    @property
    def bos(self) -> int | None:
        """The token a fresh text begins with, None where the model wants none."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a generation (EOS, end of turn)."""

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        """Ids of `text`. `parse_special` reads `<|im_end|>` as the control token, not as characters."""

    def least_tokens(self, text: str, *, parse_special: bool) -> int:
        """A number of tokens that `text` has at least, found much faster than the tokens; 0 where nothing is known."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes the token stands for; empty for control tokens. May be part of a UTF-8 character."""

    def token_name(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens included (`<|im_end|>`)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded model can do; the engine asks and never guesses."""

    rollback: bool = True
    """Tokens can be taken out of the KV cache again. Without it the engine decodes plainly."""
    trees: bool = False
    """Rows may branch. Without it drafts must be chains."""
    bit_exact_rows: bool = False
    """A row's logits are the same bits whatever rows are computed beside it."""
    hidden_states: bool = False
    layer_subsets: bool = False


class Session(Protocol):
    """One sequence's KV cache in one model. Only `commit` and `truncate` change what it holds.

    Rows of a forward that were not committed are gone at the next forward: an exception or a
    cancelled round therefore leaves a session exactly as it was.
    """

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""

    @property
    def held(self) -> object | None:
        """What is held: another object after every `hold`, None when it is gone. Who holds rows compares it, to know
        whether the session still has what it held last."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep these rows of the session's last forward: row indices in its segment, each the parent of the next."""

    def hold(self, path: Sequence[int]) -> None:
        """Keep these rows of a forward through a layer subset: the next such forward continues them.

        They are drafts: not counted by `length`, and gone at the next full forward or `truncate`.
        Needs `Capabilities.layer_subsets`.
        """

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` committed tokens, which must be `reachable`."""

    def fork(self, length: int) -> "Session":
        """A new session that begins with the first `length` tokens of this one, which must be `reachable`."""

    def reachable(self, length: int) -> int:
        """The most committed tokens, up to `length`, that `truncate` and `fork` can keep: all of them, or 0.

        0 where the model has no rollback, or where the layers' windows would need what is no longer held. What was
        committed since the last `truncate` or `fork` can always be taken back, if it is no more than the longest draft.
        """

    def close(self) -> None:
        """Give the KV cache back; closing twice is harmless."""


class Segment(NamedTuple):
    """The rows of one session in one forward.

    tokens:  [n] token ids
    parents: [n] index of the parent row in this segment, -1 for the last token before them. Parents come
             first. None is a chain. A row's position is the session's length plus its depth.
    outputs: how many rows are read afterwards, counted from the last; None is all of them, 0 is prefill
    """

    session: Session
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    outputs: int | None = None


class Rows(Protocol):
    """What a forward computed for one segment; opaque, so that a device need not copy whole vocabularies.

    Valid until the model's next forward.
    """

    def logits(self, row: int) -> Logits:
        """[vocab] float32, raw, contiguous. A view: do not write into it and do not keep it."""

    def top(self, row: int, count: int) -> tuple[NDArray[np.int64], Logits]:
        """Ids and logits of the `count` largest, largest first, ties by the lowest id."""

    def hidden(self, row: int, layer: int) -> NDArray[np.float32]:
        """[width] float32 hidden state after `layer`; needs `Capabilities.hidden_states`."""


class Model(Protocol):
    """Weights and the way to run them."""

    @property
    def name(self) -> str:
        """What a person calls it, e.g. the file's name."""

    @property
    def runtime(self) -> str:
        """`llamacpp`, `native`, ..."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def notice(self) -> str | None:
        """A sentence for people about what this model cannot do, None if nothing."""

    @property
    def context_length(self) -> int:
        """Most tokens one session can hold."""

    @property
    def max_rows(self) -> int:
        """Most rows in one forward; `feed` cuts longer prompts."""

    def open_session(self) -> Session:
        """An empty session. Raises RuntimeUnavailableError when all are in use."""

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> Sequence[Rows]:
        """One pass over all segments, one `Rows` each. Sessions do not change until they commit.

        layers: run these only, ascending; their rows can be held, never committed. None is all of them
        hidden: layers whose output `Rows.hidden` gives afterwards
        """

    def memory(self) -> int:
        """Bytes: weights, KV cache and buffers."""

    def close(self) -> None: ...


class Continuation(NamedTuple):
    """Rows of one session that go on from states: what a head computes.

    tokens: [n] ids of the target's vocabulary, each the one that came behind its state
    states: [n, numbers] float32: hidden states of the target's layers side by side, or with `own` the head's own
    """

    session: Session
    tokens: Sequence[int]
    states: NDArray[np.float32]
    own: bool


class HeadModel(Model, Protocol):
    """A small model that goes on from the hidden states of another one. Row t of a text has that model's states at
    position t and token t + 1, and guesses token t + 2.
    """

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Layers of the target whose hidden states it reads, in their order (`Rows.hidden`)."""

    @property
    def draft_tokens(self) -> NDArray[np.int64] | None:
        """[logits] the target's ids of what it has logits for; None where they are all of the target's."""

    def go_on(self, batch: Sequence[Continuation]) -> Sequence[Rows]:
        """One pass over all, with logits of each one's last row. `Rows.hidden(row, 0)` is the head's own state."""


class SequenceView(Protocol):
    """What a drafter may know of a sequence."""

    @property
    def id(self) -> int: ...

    @property
    def tokens(self) -> Sequence[int]:
        """All committed ids, prompt included; the last one is pending. Grows at the end only."""

    @property
    def sampler(self) -> "Sampler":
        """The sequence's sampler, whose noise a drafter with logits shares."""

    @property
    def session(self) -> Session | None:
        """The target's session, which holds the tokens but the pending one, or what it has read of them so far.

        For drafters that use the target's own KV cache: they may `hold` rows of layer subsets in it, and forget them
        again. None for a text that is only imagined.
        """

    @property
    def draft_limit(self) -> int:
        """Most draft tokens that can be of use this round."""

    @property
    def scope(self) -> str:
        """Whose text it is: what is learned from texts of one scope must not be proposed to another."""

    @property
    def prediction(self) -> Sequence[int]:
        """Ids of the text that the user expects to come out, with changes; empty where none was given."""


class Growth(NamedTuple):
    """A draft that may grow: `extend` adds at most `limit` nodes to it.

    siblings: most nodes below one parent; 1 is a chain, and all that some targets take
    """

    sequence: SequenceView
    draft: Draft
    limit: int
    siblings: int = 1


class Step(NamedTuple):
    """What a policy wants drafted next: one `extend` of one drafter, its index among the engine's."""

    drafter: int
    growths: Sequence[Growth]


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a drafter wants to see of the target's rows, and whether it wants the target's sessions."""

    hidden_layers: tuple[int, ...] = ()
    top_rows: int = 0
    session: bool = False


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens. Nothing it does can change which tokens come out, only how many rounds they take."""

    @property
    def name(self) -> str: ...

    @property
    def requires(self) -> Requirements: ...

    @property
    def model(self) -> Model | None:
        """The model that drafts, None where none does."""

    @property
    def free(self) -> bool:
        """Whether it drafts in one step, from the committed tokens alone and in next to no time.

        Such a drafter is asked in every round, so that it is known how well it would do while it is off.
        """

    def lag(self, sequence: SequenceView) -> int:
        """Tokens that its model has to read for its next step; what it costs depends on that. 1 if it has no model.

        0 where it cannot draft in this round, and may in later ones.
        """

    def begin(self, sequence: SequenceView, reused_length: int) -> None:
        """A sequence starts; its first `reused_length` tokens were in the target's KV cache already."""

    def observe_prompt(self, sequence: SequenceView, start: int, count: int, rows: Rows) -> None:
        """The target has read tokens `start` to `start + count` of a prompt, which are the first of `rows`.

        Called where `requires` asks for hidden states only.
        """

    def extend(self, frontier: Sequence[Growth]) -> None:
        """One step: add nodes to the drafts of all these sequences. A draft left as it was is finished for this round.

        Where `lag` is less than before, but not 1 yet, the step read a part of what a sequence lacks, so that others do
        not wait long; the steps of later rounds read the rest.
        """

    def observe(self, sequence: SequenceView, draft: Draft, verdict: "Verdict", rows: Rows) -> None:
        """What became of a draft (an empty one included); `sequence.tokens` already has the committed tokens."""

    def end(self, sequence: SequenceView) -> None:
        """The sequence is over; called once for each `begin`, also when it was cancelled."""

    def memory(self) -> int:
        """Bytes beyond the target's."""

    def close(self) -> None: ...


class Policy(Protocol):
    """Decides who drafts and how much. It can change how fast tokens come, never which.

    A round calls `draft`, `choose` and `observe` once each, in this order.
    """

    def draft(self, sequences: Sequence[SequenceView], drafters: Sequence[Drafter], beside: int = 0) -> Iterator[Step]:
        """The draft steps of a round, each yielded when it is to be taken; the caller takes it and asks for the next.

        The time from one to the next is the step's.
        beside: rows of prompts that the round's forward reads as well, of these sequences or others
        """

    def choose(self) -> Sequence[Draft]:
        """What is verified, one draft for each sequence."""

    def observe(self, committed: Sequence[Sequence[int]], seconds: Mapping[str, float]) -> float | None:
        """What the round came to: committed tokens of each sequence, and where its time went by phase.

        Returns the seconds that plain decoding would have taken for the same tokens, None if that is not known.
        """

    def end(self, sequence: SequenceView) -> None:
        """A sequence is over; a policy may forget it."""

    def describe(self) -> dict[str, Any]:
        """For people and programs: at least `name` and `explanation`, a sentence or two."""

    def close(self) -> None:
        """Keep what was learned, where it is kept."""


class Emission(NamedTuple):
    """What a stop rule says about a token: text that is safe to show, and why generation ends, if it does."""

    text: str
    finish_reason: str | None


class Constraint(Protocol):
    """Which tokens a text may have next: a grammar. One sequence's; it starts before the first generated token.

    A pure function of the tokens it was advanced by: `rollback` leaves no trace, so what was drafted cannot matter.
    End tokens may come where the text is complete, and nothing after them.
    """

    def mask(self, row: Logits) -> None:
        """Set the logits of all tokens that may not come next to -inf. row: [vocab], written to.

        Raises GrammarError where that cannot be told.
        """

    def advance(self, token: int) -> bool:
        """The token comes next. False where it may not, and then nothing has changed."""

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back, and what failed after them."""

    def forced(self) -> Sequence[int]:
        """Tokens that the text almost certainly goes on with, because it has no other way to be spelt; often none."""

    def fork(self) -> "Constraint":
        """Another one in the same state, which goes its own way."""


class StopRule(Protocol):
    """Sees every chosen token once, in order."""

    def push(self, token: int) -> Emission: ...
