"""An engine on a thread of its own: who is served, who waits, and who is told what."""

from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from slipstream.core.stats import RoundRecord
from slipstream.draft import SuffixDrafter
from slipstream.engine import Engine, Token
from slipstream.engine.worker import Job, Worker
from slipstream.errors import BusyError, RuntimeUnavailableError, SlipstreamError, TooSlowError, UsageError
from slipstream.policy import FixedLength
from tests.fakes import FakeModel, GatedModel

NO_END = {256: -100.0}
PATIENCE = 20.0


class Waiter:
    """Somebody who waits for a text."""

    def __init__(self, engine: Engine, prompt: str = "a", *, timeout: float | None = None, **options: Any) -> None:
        given = {"max_tokens": 20, "seed": 1, "logit_bias": NO_END, **options}
        self.tokens: list[Token] = []
        self.begun, self._ended = Event(), Event()
        self.error: SlipstreamError | None = None
        self.ends = 0
        self.first_at = 0.0
        deadline = None if timeout is None else monotonic() + timeout
        self.job = Job(engine.prepare(prompt, **given), self._take, self._end, deadline)  # type: ignore[arg-type]

    def _take(self, tokens: Sequence[Token]) -> None:
        self.tokens += tokens
        self.first_at = self.first_at or monotonic()
        self.begun.set()

    def _end(self, error: SlipstreamError | None) -> None:
        self.error = error
        self.ends += 1
        self._ended.set()

    def wait(self) -> "Waiter":
        assert self._ended.wait(PATIENCE)
        assert self.ends == 1
        return self


@pytest.fixture
def model() -> GatedModel:
    return GatedModel(max_sessions=2)


@pytest.fixture
def rounds() -> list[RoundRecord]:
    return []


@pytest.fixture
def worker(model: GatedModel, rounds: list[RoundRecord]) -> Iterator[Worker]:
    engine = Engine(model, SuffixDrafter(), FixedLength(3))
    worker = Worker(engine, parallel=2, queue=2, slice_rows=4, on_round=rounds.extend)
    yield worker
    model.gate.set()
    worker.close()
    assert model.open_sessions == 0
    assert not worker.is_alive


def test_everybody_gets_the_text_that_they_would_have_alone(worker: Worker, rounds: list[RoundRecord]) -> None:
    with Engine(FakeModel(seed=1, order=1)) as alone:
        waiters = []
        for seed in range(12):
            while True:
                waiter = Waiter(worker.engine, f"prompt number {seed}", seed=seed)
                try:
                    worker.submit([waiter.job])
                    break
                except BusyError:
                    waiters[-1].wait()
            waiters.append(waiter)
        for seed, waiter in enumerate(waiters):
            expected = alone.generate(f"prompt number {seed}", max_tokens=20, seed=seed, logit_bias=NO_END)
            assert waiter.wait().error is None
            assert [token.id for token in waiter.tokens] == expected.tokens == waiter.job.completion.tokens
            assert waiter.job.completion.finish_reason == "length"
    assert sum(record.committed for record in rounds) == 12 * 20


def test_the_queue_is_bounded_and_takes_all_of_a_request_or_nothing(worker: Worker, model: GatedModel) -> None:
    model.gate.clear()
    running = [Waiter(worker.engine, max_tokens=3) for _ in range(2)]
    worker.submit([one.job for one in running])
    waiting = Waiter(worker.engine)
    worker.submit([waiting.job])
    while worker.load.active < 2:  # they have left the queue
        sleep(0.001)
    with pytest.raises(BusyError, match="busy: 1 requests are waiting and the queue holds 2"):
        worker.submit([Waiter(worker.engine).job for _ in range(2)])
    assert worker.load.waiting == 1
    worker.submit([Waiter(worker.engine).job])
    model.gate.set()
    assert waiting.wait().error is None


def test_whoever_goes_away_frees_a_place_at_once(worker: Worker, model: GatedModel) -> None:
    endless = [Waiter(worker.engine, max_tokens=200) for _ in range(2)]
    worker.submit([one.job for one in endless])
    later, never = Waiter(worker.engine), Waiter(worker.engine)
    worker.submit([later.job])
    model.gate.clear()
    worker.submit([never.job])
    worker.cancel(never.job)
    worker.cancel(endless[0].job)
    model.gate.set()
    assert endless[0].wait().error is None
    assert endless[0].job.completion.finish_reason == "cancelled"
    assert never.wait().tokens == []
    assert later.wait().error is None
    worker.cancel(later.job)  # too late to matter
    worker.cancel(endless[1].job)
    endless[1].wait()
    assert later.ends == 1


def test_what_takes_too_long_is_given_up(worker: Worker, model: GatedModel) -> None:
    slow = Waiter(worker.engine, timeout=0.0, max_tokens=200)
    worker.submit([slow.job])
    assert isinstance(slow.wait().error, TooSlowError)
    fine = Waiter(worker.engine, timeout=PATIENCE)
    worker.submit([fine.job])
    assert fine.wait().error is None


def test_what_goes_wrong_with_one_text_leaves_the_other_alone(worker: Worker, model: GatedModel) -> None:
    model.gate.clear()
    good, bad = Waiter(worker.engine), Waiter(worker.engine, logit_bias=dict.fromkeys(range(258), float("-inf")))
    worker.submit([good.job, bad.job])
    model.gate.set()
    assert isinstance(bad.wait().error, RuntimeUnavailableError)
    assert good.wait().error is None
    with Engine(FakeModel(seed=1, order=1)) as alone:
        assert good.job.completion.tokens == alone.generate("a", max_tokens=20, seed=1, logit_bias=NO_END).tokens
    alone_and_bad = Waiter(worker.engine, logit_bias=dict.fromkeys(range(258), float("-inf")))
    worker.submit([alone_and_bad.job])
    assert isinstance(alone_and_bad.wait().error, RuntimeUnavailableError)


@pytest.mark.parametrize("error", [RuntimeUnavailableError("No memory."), ZeroDivisionError("a bug")])
def test_a_failed_round_ends_its_texts_and_the_next_ones_are_served(
    worker: Worker, model: GatedModel, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    model.broken = error
    unlucky = Waiter(worker.engine)
    worker.submit([unlucky.job])
    assert isinstance(unlucky.wait().error, RuntimeUnavailableError)
    assert ("a bug" in caplog.text) == isinstance(error, ZeroDivisionError)
    lucky = Waiter(worker.engine)
    worker.submit([lucky.job])
    assert lucky.wait().error is None


def test_a_close_waits_for_what_is_running_and_tells_the_rest(model: GatedModel) -> None:
    worker = Worker(Engine(model), parallel=1, queue=5)
    done = Waiter(worker.engine)
    worker.submit([done.job])
    worker.close(PATIENCE)
    assert done.wait().error is None
    with pytest.raises(BusyError, match="shutting down"):
        worker.submit([done.job])
    worker.close()


def test_a_close_without_patience_tells_everybody(model: GatedModel) -> None:
    worker = Worker(Engine(model), parallel=1, queue=5)
    model.gate.clear()
    waiters = [Waiter(worker.engine, max_tokens=200) for _ in range(3)]
    worker.submit([one.job for one in waiters])
    worker._stop_at = 0.0
    model.gate.set()
    worker.close()
    assert all(isinstance(one.wait().error, BusyError) for one in waiters)
    assert model.open_sessions == 0


def test_several_answers_to_one_prompt_differ_and_each_can_be_had_again(worker: Worker) -> None:
    with Engine(FakeModel(seed=1, order=1, sharpness=0.5)) as engine:
        texts = []
        for choice in (0, 1, 1):
            batch = engine.batch()
            generation = engine.prepare("a", choice=choice, seed=3, max_tokens=20)
            batch.add(generation)
            while not batch.finished:
                batch.play_round()
            batch.close()
            texts.append(generation.completion.tokens)
        assert texts[0] != texts[1] == texts[2]
        assert texts[0] == engine.generate("a", seed=3, max_tokens=20).tokens


def test_a_prompt_that_several_texts_begin_with_is_read_once(worker: Worker, model: GatedModel) -> None:
    model.gate.clear()
    prompt = "the same long instructions for everybody, which take some rounds to read; " * 2
    waiters = [Waiter(worker.engine, prompt + ending) for ending in ("a", "b")]
    other = Waiter(worker.engine, "b")
    worker.submit([waiters[0].job])
    worker.submit([waiters[1].job, other.job])
    model.gate.set()
    timings = [one.wait().job.completion.timings for one in waiters]
    assert other.wait().error is None
    assert (timings[0].cache_n, timings[0].prompt_n) == (0, len(prompt) + 1)
    assert timings[1].cache_n == len(prompt)


def test_more_texts_than_there_could_ever_be_room_for_are_no_matter_of_waiting() -> None:
    engine = Engine(FakeModel(), policy=FixedLength(0))
    worker = Worker(engine, parallel=1, queue=2)
    try:
        with pytest.raises(UsageError, match="asks for 4 answers; this server takes at most 3"):
            worker.submit([Waiter(engine).job for _ in range(4)])
        assert worker.load.waiting == 0
    finally:
        worker.close()


def test_a_text_that_fails_alone_among_those_that_are_read_takes_nobody_along(
    worker: Worker, model: GatedModel
) -> None:
    model.gate.clear()
    bad = Waiter(worker.engine, logit_bias=dict.fromkeys(range(258), float("-inf")))
    reading = Waiter(worker.engine, "a prompt that takes some rounds to read")
    worker.submit([bad.job, reading.job])
    model.gate.set()
    assert isinstance(bad.wait().error, RuntimeUnavailableError)
    assert reading.wait().error is None
    assert len(reading.tokens) == 20


def test_what_breaks_while_a_text_is_begun_or_ended_is_told_and_the_next_is_served(
    worker: Worker, model: GatedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("add", "remove"):
        original = getattr(worker._batch, name)

        def broken(*_: object) -> None:
            raise MemoryError("no memory")

        monkeypatch.setattr(worker._batch, name, broken)
        unlucky = Waiter(worker.engine)
        worker.submit([unlucky.job])
        assert isinstance(unlucky.wait().error, RuntimeUnavailableError)
        monkeypatch.undo()
        if name == "remove":
            original(unlucky.job.generation)
        assert "no memory" in caplog.text
        lucky = Waiter(worker.engine)
        worker.submit([lucky.job])
        assert lucky.wait().error is None


def test_who_waits_for_a_prompt_does_not_wait_for_ever(worker: Worker, model: GatedModel) -> None:
    """The shared part is in the cache long before the other's prompt is read."""
    model.gate.clear()
    shared = "instructions for everybody, which are long enough to be shared " * 2
    long = Waiter(worker.engine, shared + "x" * 90)
    short = Waiter(worker.engine, shared + "b", max_tokens=2)
    worker.submit([long.job, short.job])
    model.gate.set()
    assert short.wait().error is None
    assert long.wait().error is None
    assert short.job.completion.timings.cache_n >= len(shared)
    assert short.first_at < long.first_at


def test_whether_there_is_room_can_be_asked(worker: Worker, model: GatedModel) -> None:
    worker.require_room(4)
    with pytest.raises(UsageError, match="at most 4"):
        worker.require_room(5)
    model.gate.clear()
    worker.submit([Waiter(worker.engine).job for _ in range(3)])
    worker.require_room(1)
    with pytest.raises(BusyError, match="busy"):
        worker.require_room(2)
    model.gate.set()


class Counting(FixedLength):
    """Says how many rounds it has seen."""

    rounds = 0

    def observe(self, committed: Sequence[Sequence[int]], seconds: Mapping[str, float]) -> None:
        super().observe(committed, seconds)
        self.rounds += 1

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "rounds": self.rounds}


def test_what_the_policy_says_is_heard_before_a_text_ends(model: GatedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.engine.worker.POLICY_AGE", 0.0)
    worker = Worker(Engine(model, policy=Counting(0)), parallel=1)
    waiter = Waiter(worker.engine)
    model.closes_after = 6
    worker.submit([waiter.job])
    while model.gate.is_set() or len(waiter.tokens) < 6:
        sleep(0.001)
    assert worker.policy["rounds"] == 6
    assert worker.load.active == 1
    model.gate.set()
    waiter.wait()
    worker.close()


def test_whoever_counts_hears_of_a_first_token_and_of_every_end(model: GatedModel) -> None:
    first: list[Job] = []
    ended: list[Job] = []
    worker = Worker(Engine(model), parallel=1, on_first=first.append, on_end=ended.append)
    model.closes_after = 3
    waiters = [Waiter(worker.engine, max_tokens=200), Waiter(worker.engine)]
    worker.submit([one.job for one in waiters])
    while model.gate.is_set():
        sleep(0.001)
    for one in waiters:
        worker.cancel(one.job)
    model.gate.set()
    assert {id(one.wait().job) for one in waiters} == {id(job) for job in ended}
    assert first == [waiters[0].job]
    assert waiters[0].job.waited is not None
    assert waiters[1].job.waited is None
    worker.close()
