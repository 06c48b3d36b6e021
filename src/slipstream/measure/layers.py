"""What `slipstream layers` does: answers, the search on them, and the profile that `--draft layers` uses from then on.

Everything that was measured is written down after each evaluation, so that a search that was ended, by whatever, goes
on where it was.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

from slipstream.engine import Engine
from slipstream.errors import UnsupportedModelError, UsageError
from slipstream.measure.layer_passages import Passage, Passages, answered, opened
from slipstream.measure.layer_search import Costs, Finding, Memory, Search
from slipstream.measure.prompts import BenchPrompt
from slipstream.models import GgufHeader, layer_profiles
from slipstream.models.layer_profiles import LayerProfile, read_json, write_json
from slipstream.models.layer_sets import Layers, spelled, without_the_middle
from slipstream.models.profiles import today
from slipstream.models.pruned import layer_count
from slipstream.policy import CostTable
from slipstream.policy.profile import profile

FORMAT = 1
SEARCHING = 0.85
"""Of the time; the rest is for subsets around the best one."""
PROFILE_SECONDS = 1.5
SIZES = (0.0, 0.25, 0.5, 0.75)
"""Shares of the layers, the smallest at least one, at which a draft step's cost is measured."""
Progress = Callable[[float, str], None]
"""Called with the share of the time that has gone, 0 to 1, and what is being done."""


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """What is searched for.

    seconds:    about what it may take
    max_tokens: of an answer
    keep:       layers that are in every subset
    fresh:      forget what an earlier search with the same prompts found
    """

    seconds: float
    max_tokens: int
    keep: Layers = ()
    fresh: bool = False


@dataclass(slots=True)
class LayerReport:
    """What came out.

    default:   the subset that is used where nobody has searched
    subsets:   those that are kept, the best first
    evaluated: subsets that were looked at, in earlier programs too
    resumed:   how many of them in earlier programs
    complete:  nothing better is left to be looked for
    partial:   ended by the user
    profile:   the file that was written, None if nothing was found yet
    """

    target: str
    count: int
    default: Finding | None = None
    subsets: list[Finding] = field(default_factory=list)
    evaluated: int = 0
    resumed: int = 0
    complete: bool = False
    partial: bool = False
    profile: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "layers": self.count,
            "default": None if self.default is None else self.default.as_dict(),
            "subsets": [one.as_dict() for one in self.subsets],
            "evaluated": self.evaluated,
            "resumed": self.resumed,
            "complete": self.complete,
            "partial": self.partial,
            "profile": None if self.profile is None else str(self.profile),
        }


def find_layers(
    engine: Engine,
    header: GgufHeader,
    prompts: Sequence[BenchPrompt],
    request: LayerRequest,
    *,
    progress: Progress = lambda share, what: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> LayerReport:
    """Search, and keep the result for `--draft layers`.

    engine: plain decoding of the file of `header`, with `layer_passages.sessions_needed` sessions, unused so far

    Raises UsageError where no prompt can be used, UnsupportedModelError for targets without layer subsets or with
    one layer, StorageError where the cache cannot be written.
    """
    count = layer_count(header)
    _check(engine, count)
    clock = _Clock(request.seconds, progress)
    state = _State(_state_path(header, prompts, request), fresh=request.fresh)
    report = LayerReport(engine.target.name, count, resumed=len(state.memory.agreements))
    _prepare(engine, prompts, request, state, clock, should_stop)
    if not should_stop():
        with opened(engine, state.passages) as passages:
            search = _searched(passages, count, request, state, clock, should_stop)
            _report(report, search, state)
    report.partial = should_stop()
    if report.subsets:
        subsets = tuple(one.layers for one in report.subsets)
        speedups = tuple(one.speedup for one in report.subsets)
        rates = tuple(fmean(one.rates.values()) for one in report.subsets)
        kept = LayerProfile(engine.target.name, count, subsets, speedups, today(), rates)
        report.profile = layer_profiles.save(header.path, kept)
    return report


def _prepare(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    request: LayerRequest,
    state: "_State",
    clock: "_Clock",
    should_stop: Callable[[], bool],
) -> None:
    """Answers, and what the whole model's forwards cost, unless they are known from an earlier search."""
    if not state.passages:
        told = clock.says("answering prompts")
        passages = answered(engine, prompts, request.max_tokens, told, should_stop)
        if should_stop():  # half of them would be taken for all of them the next time
            return
        if not any(not passage.checked for passage in passages):
            raise UsageError("None of the prompts has an answer that can be used; give others, or longer ones.")
        state.passages = passages
    if not state.memory.rows:
        engine.sessions.close()
        state.memory.rows = profile(engine.target, PROFILE_SECONDS).as_dict()
    state.save()


def _searched(
    passages: Passages,
    count: int,
    request: LayerRequest,
    state: "_State",
    clock: "_Clock",
    should_stop: Callable[[], bool],
) -> Search:
    clock.tell("measuring costs")
    search = Search(
        passages,
        count,
        _costs(passages, count, state.memory),
        state.memory,
        keep=request.keep,
        save=lambda: state.save_and_tell(clock, search),
        stop=lambda: should_stop() or (clock.over and search.evaluated > 0),  # one subset in any case
    )
    clock.ends_at = SEARCHING
    search.run()
    clock.ends_at = 1.0
    search.look_for_nested()
    return search


def _check(engine: Engine, count: int) -> None:
    target = engine.target
    if not target.capabilities.layer_subsets:
        raise UnsupportedModelError(
            f"{target.name} runs on {target.runtime}, and a search needs the native runtime, which can leave layers "
            "out; name the layers yourself, such as --draft layers:0-5,24-29."
        )
    if count < 2:
        raise UnsupportedModelError(f"{target.name} has 1 layer, of which none can be left out; use another draft.")


def _costs(passages: Passages, count: int, memory: Memory) -> Costs:
    """Measure what is not remembered."""
    if not memory.costs:
        sizes = sorted({max(round(share * count), 1) for share in SIZES})
        memory.costs = {str(size): passages.cost(tuple(range(size))) for size in sizes if size < count}
    return _costs_of(memory, count)


def _costs_of(memory: Memory, count: int) -> Costs:
    """Raises ValueError where what was measured is damaged."""
    table = CostTable.from_dict(memory.rows)
    points = {int(size): cost for size, cost in memory.costs.items()}
    return Costs.measured(points, count, lambda rows: table.seconds(rows) / table.seconds(1))


def _report(report: LayerReport, search: Search, state: "_State") -> None:
    checked = any(passage.checked for passage in state.passages)
    subsets = search.nested()
    report.subsets = [search.check(one.layers) for one in subsets] if checked else subsets
    report.evaluated, report.complete = search.evaluated, search.complete
    default = without_the_middle(report.count, 0.5)
    if spelled(default) in state.memory.agreements:
        report.default = search.check(default) if checked else search.finding(default)


def _state_path(header: GgufHeader, prompts: Sequence[BenchPrompt], request: LayerRequest) -> Path:
    """Of the search with these prompts."""
    asked = [(prompt.id, prompt.kind, prompt.text, prompt.messages) for prompt in prompts]
    told = json.dumps([asked, request.max_tokens, list(request.keep)], default=str)
    place = layer_profiles.profile_path(header.path)
    return place.with_name(f"{place.stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.search")


class _State:
    """What is kept between programs. A file that is damaged counts as absent."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self.passages: list[Passage] = []
        self.memory = Memory()
        given = {} if fresh else read_json(path)
        try:
            if given.get("format") == FORMAT:
                self.passages = [Passage.from_dict(one) for one in given["passages"]]
                self.memory = Memory.from_dict(given["memory"])
                _costs_of(self.memory, 2)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.passages, self.memory = [], Memory()

    def save(self) -> None:
        """Raises StorageError."""
        passages = [asdict(passage) for passage in self.passages]
        write_json(self._path, {"format": FORMAT, "passages": passages, "memory": asdict(self.memory)})

    def save_and_tell(self, clock: "_Clock", search: Search) -> None:
        self.save()
        best = "" if search.best is None else f", best {search.best.speedup:.2f}x with {len(search.best.layers)} layers"
        clock.tell(f"subset {search.evaluated}{best}")


class _Clock:
    """The time that is left."""

    def __init__(self, seconds: float, progress: Progress) -> None:
        self._started, self._seconds, self._progress = monotonic(), seconds, progress
        self.ends_at = 1.0

    @property
    def _gone(self) -> float:
        return (monotonic() - self._started) / self._seconds if self._seconds > 0 else 1.0

    @property
    def over(self) -> bool:
        """Whether the share of the time is over that may be used."""
        return self._gone >= self.ends_at

    def tell(self, what: str) -> None:
        self._progress(min(self._gone, 1.0), what)

    def says(self, what: str) -> Callable[[float], None]:
        """For work that tells how much of it is done."""
        return lambda done: self.tell(f"{what} ({done:.0%})")
