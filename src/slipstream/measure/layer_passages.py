"""How often some of a model's layers agree with all of them, on answers that the model gave before.

The answers are known, so nothing has to be drafted to tell: a chunk of an answer goes through the layers in one
forward, and each of its rows is asked what a drafter would have proposed there. Before the chunk there is the model's
own KV cache, inside it that of the layers, as in a draft.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from slipstream.core.feed import feed
from slipstream.core.protocols import Segment, Session
from slipstream.core.sampling import Sampler
from slipstream.engine import Engine, GenerationOptions
from slipstream.engine.options import sampling_params
from slipstream.measure.contestants import PROMPT_ERRORS
from slipstream.measure.looping import LOOPING, repeated_share
from slipstream.measure.prompts import BenchPrompt
from slipstream.models.layer_sets import Layers

TEMPERATURES = (0.0, 1.0)
CHUNK = 8
"""Tokens that go through the layers one after the other: about a draft's length."""
SEED = 7
T = TypeVar("T")
SEARCHED, CHECKED = 6, 3
"""Prompts whose answers the search looks at, and others that its result is held against."""
CONTEXT = 384
"""Most tokens of prompt and answer together: sessions for all of them are open at once."""
TURNS = 25
"""Pairs of forwards that a cost is the median of."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A prompt and the model's answer, as ids. checked: the search does not look at it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    checked: bool

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Passage":
        """What `dataclasses.asdict` gave, through JSON."""
        return cls(tuple(given["prompt"]), tuple(given["answer"]), given["temperature"], given["checked"])

    def params(self) -> GenerationOptions:
        """How it was sampled, but for what the model's file recommends."""
        return {"temperature": self.temperature, "seed": SEED}


class Agreement(NamedTuple):
    """Tokens that were proposed rightly, of how many, by temperature."""

    right: Mapping[float, int]
    asked: Mapping[float, int]

    def rate(self, temperature: float) -> float | None:
        """Share that was right, None if nothing was asked."""
        asked = self.asked.get(temperature, 0)
        return self.right.get(temperature, 0) / asked if asked else None


def sessions_needed() -> int:
    """Sessions that `Passages` opens at most."""
    return len(TEMPERATURES) * (2 * SEARCHED + CHECKED)


def answered(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    report: Callable[[float], None],
    should_stop: Callable[[], bool],
) -> list[Passage]:
    """The model's answers to the first prompts that are short enough, at each temperature.

    Every third prompt is for checking. Prompts whose answers repeat themselves are left out.
    report: called with the fraction that is done
    """
    passages: list[Passage] = []
    wanted = {False: SEARCHED, True: CHECKED}
    for number, prompt in enumerate(prompts):
        checked = number % 3 == 2
        if should_stop() or not wanted[checked]:
            continue
        found = _answers(engine, prompt, max_tokens, checked)
        wanted[checked] -= bool(found)
        passages += found
        report(1 - sum(wanted.values()) / (SEARCHED + CHECKED))
    return passages


def _answers(engine: Engine, prompt: BenchPrompt, max_tokens: int, checked: bool) -> list[Passage]:
    found = []
    for temperature in TEMPERATURES:
        options: GenerationOptions = {"temperature": temperature, "seed": SEED, "logprobs": False}
        try:
            ids = engine.tokenize(prompt.for_model(has_template=engine.template is not None), fitting=True)
            options["max_tokens"] = max(min(max_tokens, engine.target.context_length - len(ids)), 1)
            completion = engine.generate(ids, **options)
        except PROMPT_ERRORS:
            return []
        if len(completion.tokens) > 1 and repeated_share(completion.tokens) <= LOOPING:
            found.append(Passage(tuple(ids), tuple(completion.tokens), temperature, checked))
    return found


class Passages:
    """Passages in the KV cache of the model that gave them; `opened` closes it.

    A chunk is tried in a fork of its passage's session, so that nothing has to be read again.
    """

    def __init__(self, engine: Engine, passages: Sequence[Passage], sessions: Sequence[Session]) -> None:
        self._engine = engine
        self._held = list(zip(passages, sessions, strict=True))

    def agreement(self, layers: Layers, *, checked: bool = False) -> Agreement:
        """How often these layers propose what the model said. checked: on the passages that the search has not seen."""
        held = [(passage, session) for passage, session in self._held if passage.checked == checked]
        samplers = [self._sampler(passage) for passage, _ in held]
        right, asked = dict.fromkeys(TEMPERATURES, 0), dict.fromkeys(TEMPERATURES, 0)
        longest = max((len(passage.answer) for passage, _ in held), default=0)
        for start in range(0, longest, CHUNK):
            chunk = [
                (passage, session, sampler)
                for (passage, session), sampler in zip(held, samplers, strict=True)
                if start < len(passage.answer)
            ]
            for part in _fitting(chunk, self._engine.target.max_rows // CHUNK):
                for temperature, hits, rows in self._tried(part, start, layers):
                    right[temperature] += hits
                    asked[temperature] += rows
        return Agreement(right, asked)

    def cost(self, layers: Layers) -> float:
        """What a forward of one row through these layers takes, in forwards of one row through all of them.

        They are taken in turn, as they are where a model drafts for itself, and each is compared with its neighbour:
        the machine's speed may change meanwhile.
        """
        model, (passage, session) = self._engine.target, self._held[0]
        ratios = []
        with _forks([(session, session.length)]) as [fork]:
            row = Segment(fork, passage.answer[-1:])
            for _ in range(TURNS):
                started = perf_counter()
                model.forward([row])
                between = perf_counter()
                model.forward([row], layers=layers)
                ratios.append((perf_counter() - between) / (between - started))
        return median(ratios)

    def _tried(
        self, part: Sequence[tuple[Passage, Session, Sampler]], start: int, layers: Layers
    ) -> Iterator[tuple[float, int, int]]:
        """(temperature, right, asked) of the same chunk of several passages."""
        model = self._engine.target
        places = [len(passage.prompt) + start for passage, _, _ in part]
        with _forks([(session, at - 1) for (_, session, _), at in zip(part, places, strict=True)]) as forks:
            texts = [(*passage.prompt, *passage.answer) for passage, _, _ in part]
            rows = [text[at - 1 : at - 1 + CHUNK][: len(text) - at] for text, at in zip(texts, places, strict=True)]
            batch = [Segment(fork, tokens) for fork, tokens in zip(forks, rows, strict=True)]
            forwarded = model.forward(batch, layers=layers)
            for (passage, _, sampler), text, at, segment, found in zip(
                part, texts, places, batch, forwarded, strict=True
            ):
                hits, count = 0, len(segment.tokens)
                for row in range(count):
                    guess = sampler.propose(found.logits(row), at + row, text[at : at + row])
                    hits += guess.tokens[:1] == [text[at + row]]
                for token in text[at : at + count]:
                    sampler.accept(token)
                yield passage.temperature, hits, count

    def _sampler(self, passage: Passage) -> Sampler:
        params = sampling_params(self._engine.defaults, passage.params())
        return Sampler(params, self._engine.target.vocabulary.size, passage.prompt)


@contextmanager
def opened(engine: Engine, passages: Sequence[Passage]) -> Iterator[Passages]:
    """Read the passages, each into a session of its own. Raises RuntimeUnavailableError without enough of them."""
    engine.sessions.close()
    with ExitStack() as stack:
        sessions = []
        for passage in passages:
            session = engine.target.open_session()
            stack.callback(session.close)
            for _ in feed(engine.target, session, [*passage.prompt, *passage.answer][:-1]):
                pass
            sessions.append(session)
        yield Passages(engine, passages, sessions)


@contextmanager
def _forks(wanted: Sequence[tuple[Session, int]]) -> Iterator[list[Session]]:
    """Sessions that begin as others do: (which, how long)."""
    with ExitStack() as stack:
        forks = []
        for session, length in wanted:
            fork = session.fork(length)
            stack.callback(fork.close)
            forks.append(fork)
        yield forks


def _fitting(several: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(several), max(most, 1)):
        yield several[start : start + max(most, 1)]
