"""Runs configurations side by side: on each prompt all of them in turn, so that whatever else happens on the machine
happens to all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.engine import Engine, GenerationOptions
from slipstream.errors import SlipstreamError
from slipstream.measure.contestants import PROMPT_ERRORS, Contestant, EngineContestant
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Answer, Failure, Record

WARM_UP_TOKENS = 16

OnRecord = Callable[[Record], None]
Progress = Callable[[int, int, str], None]
"""Called with the answers done, the answers in all, and what is being answered."""


@dataclass(slots=True)
class Results:
    """What a run gave. `stopped`: it was ended before its end."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    stopped: bool = False


def run_bench(
    engines: Mapping[str, Engine | Contestant],
    prompts: Sequence[BenchPrompt],
    *,
    repeats: int = 1,
    max_tokens: int | None = None,
    options: GenerationOptions | None = None,
    on_record: OnRecord | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Results:
    """Let every engine answer every prompt `repeats` times; what was measured also goes to `on_record` at once.

    engines: by configuration, plain decoding among them as "off" (`configurations.PLAIN`). Engines of one target
             may share it (`Engine.sharing`)
    options: as for `Engine.generate`. The seed of repeat r is the given one plus r, the same for all configurations,
             so that they answer with the same text and repeats differ; without a seed it is 0

    Each configuration answers something short first, which is not recorded. Kinds take turns, and the order of
    configurations is drawn anew for each prompt. An engine that fails is left out from there on; a prompt that cannot
    be answered (too long, refused by the template) is left out for that engine alone. Both become failures, not
    exceptions.
    """
    given: GenerationOptions = {"seed": 0, "logprobs": False, **(options or {})}
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    contestants = {name: EngineContestant(one) if isinstance(one, Engine) else one for name, one in engines.items()}
    run = _Run(contestants, given, on_record, should_stop or (lambda: False))
    report = progress or (lambda done, total, what: None)
    turns = [(prompt, repeat) for repeat in range(repeats) for prompt in in_turn(prompts)]
    report(0, len(turns) * len(contestants), "warming up")
    for prompt in prompts[:1]:
        run.warm_up(prompt)
    for done, (prompt, repeat) in enumerate(turns):
        for place, name in enumerate(run.turn(prompt, repeat)):
            count = len(run.contestants)
            report(done * count + place, len(turns) * count, f"{prompt.kind}, {name}")
        if run.stopped:
            break
    else:
        report(len(turns), len(turns), "done")
    return run.results


def in_turn(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """First prompts of all kinds, then the second ones: a run that is ended early has seen all kinds."""
    place: dict[str, int] = {}
    rank = []
    for prompt in prompts:
        place[prompt.kind] = place.get(prompt.kind, 0) + 1
        rank.append(place[prompt.kind])
    return [prompts[index] for index in sorted(range(len(prompts)), key=rank.__getitem__)]


class _Run:
    """The state of one `run_bench`."""

    def __init__(
        self,
        contestants: dict[str, Contestant],
        options: GenerationOptions,
        on_record: OnRecord | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self.results = Results()
        self.contestants = contestants
        self._options = options
        self._seed = options["seed"] or 0
        self._on_record = on_record
        self._should_stop = should_stop
        self._order = np.random.default_rng(self._seed % 2**64)

    def warm_up(self, prompt: BenchPrompt) -> None:
        """Caches filled, weights touched: what only the first answer pays."""
        short = min(self._options.get("max_tokens") or WARM_UP_TOKENS, WARM_UP_TOKENS)
        for name in list(self.contestants):
            self._try(name, prompt, {**self._options, "max_tokens": short})

    def turn(self, prompt: BenchPrompt, repeat: int) -> Iterator[str]:
        """All contestants answer in an order of their own; yields the name of each before it does."""
        names = list(self.contestants)
        options: GenerationOptions = {**self._options, "seed": (self._seed + repeat) % 2**64}
        for order, index in enumerate(self._order.permutation(len(names))):
            name = names[index]
            if self.stopped:
                return
            yield name
            answer = self._try(name, prompt, options)
            if answer is not None:
                place = {"configuration": name, "prompt": prompt.id, "kind": prompt.kind, "repeat": repeat}
                self._add(replace(answer, order=order, seed=self._seed + repeat, **place))

    @property
    def stopped(self) -> bool:
        self.results.stopped = self.results.stopped or self._should_stop()
        return self.results.stopped

    def _try(self, name: str, prompt: BenchPrompt, options: GenerationOptions) -> Answer | None:
        """An answer; None if it failed, which is recorded, or was stopped."""
        if name not in self.contestants or self.stopped:
            return None
        try:
            return self.contestants[name].answer(prompt, options, self._should_stop)
        except PROMPT_ERRORS as error:
            self._add(Failure(str(error), name, prompt.id))
        except SlipstreamError as error:
            del self.contestants[name]
            self._add(Failure(str(error), name))
        return None

    def _add(self, record: Record) -> None:
        """A failure that is known is not said again."""
        if isinstance(record, Answer):
            self.results.answers.append(record)
        elif record in self.results.failures:
            return
        else:
            self.results.failures.append(record)
        if self._on_record is not None:
            self._on_record(record)
