"""What sessions promise (core.protocols.Session), on every kind of cache that llama.cpp has."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.errors import ContextLimitError, RuntimeUnavailableError
from slipstream.runtime import load_llamacpp
from slipstream.runtime.llamacpp import LlamaCppModel
from slipstream.runtime.llamacpp.session import LlamaCppSession
from tests.runtime.helpers import TOLERANCE, assert_different, assert_same, compute, feed

TEXT = np.random.default_rng(5).integers(33, 250, 48).tolist()


@pytest.fixture(params=["llama", "window", "recurrent"])
def any_model(request: pytest.FixtureRequest, models: dict[str, LlamaCppModel]) -> LlamaCppModel:
    return models[request.param]


@pytest.fixture(params=["llama", "window"])
def rolling_model(request: pytest.FixtureRequest, models: dict[str, LlamaCppModel]) -> LlamaCppModel:
    return models[request.param]


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Iterator[LlamaCppSession]:
    names = [name for name in request.fixturenames if name.endswith("model")]
    opened = request.getfixturevalue(names[0]).open_session()
    yield opened
    opened.close()


def alone(model: LlamaCppModel, tokens: list[int]) -> np.ndarray:
    """Logits of the last token, computed in one go in a session of its own."""
    session = model.open_session()
    logits = compute(model, session, tokens)[-1]
    session.close()
    return logits


def test_context_matters(any_model: LlamaCppModel) -> None:
    """The tests below compare logits, which proves nothing unless other tokens give others."""
    assert_different(alone(any_model, TEXT[:20]), alone(any_model, [*TEXT[:18], 40, TEXT[19]]))


def test_chunks_give_the_logits_of_the_whole(any_model: LlamaCppModel, session: LlamaCppSession) -> None:
    whole = compute(any_model, session, TEXT[:30])
    parts = [feed(any_model, session, TEXT[start:stop]) for start, stop in ((0, 7), (7, 8), (8, 30))]
    assert_same(np.concatenate(parts), whole)
    assert session.length == 30


def test_rows_that_are_not_committed_vanish(any_model: LlamaCppModel, session: LlamaCppSession) -> None:
    feed(any_model, session, TEXT[:20])
    compute(any_model, session, [100, 101, 102])
    assert session.length == 20
    assert_same(feed(any_model, session, TEXT[20:24])[-1], alone(any_model, TEXT[:24]))


def test_a_part_of_the_rows_can_be_committed(any_model: LlamaCppModel, session: LlamaCppSession) -> None:
    feed(any_model, session, TEXT[:20])
    compute(any_model, session, [*TEXT[20:22], 100, 101])
    session.commit([0, 1])
    assert session.length == 22
    assert_same(compute(any_model, session, TEXT[22:24])[-1], alone(any_model, TEXT[:24]))


def test_an_interrupted_forward_leaves_the_session_as_it_was(
    any_model: LlamaCppModel, session: LlamaCppSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(any_model, session, TEXT[:20])
    decode_error = LlamaCppModel._decode

    def interrupt(model: LlamaCppModel, chains: object) -> None:
        decode_error(model, chains)  # the rows are in the library's cache by then
        raise KeyboardInterrupt

    monkeypatch.setattr(LlamaCppModel, "_decode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        any_model.forward([Segment(session, [100, 101, 102])])
    monkeypatch.undo()
    assert session.length == 20
    with pytest.raises(AssertionError, match="rows to commit"):
        session.commit([0])
    assert_same(compute(any_model, session, TEXT[20:24])[-1], alone(any_model, TEXT[:24]))


def test_truncating_restores_the_logits(rolling_model: LlamaCppModel, session: LlamaCppSession) -> None:
    """Also further back than the sliding window (16), which takes the full-size cache."""
    feed(rolling_model, session, TEXT)
    session.truncate(18)
    assert session.length == 18
    assert_same(feed(rolling_model, session, TEXT[18:20])[-1], alone(rolling_model, TEXT[:20]))


def test_a_long_way_back_past_the_sliding_window(files: dict[str, Path]) -> None:
    """A cache of window size (16, padded to 256 by the library) would have lost these keys."""
    model = load_llamacpp(files["window"], context_length=1024, max_rows=64, threads=1)
    session = model.open_session()
    long = (TEXT * 20)[:900]
    for start in range(0, 900, 60):
        feed(model, session, long[start : start + 60])
    session.truncate(100)
    logits = feed(model, session, [60, 61])[-1]
    session.truncate(0)
    feed(model, session, long[:60])
    assert_same(logits, feed(model, session, [*long[60:100], 60, 61])[-1])
    model.close()


def test_taking_rows_back_computes_nothing(
    rolling_model: LlamaCppModel, session: LlamaCppSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(rolling_model, session, TEXT)
    compute(rolling_model, session, [100, 101])

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(LlamaCppModel, "replay", never)
    session.truncate(20)
    compute(rolling_model, session, [100, 101])
    session.commit([0])
    session.fork(10).close()
    feed(rolling_model, session, [102])
    assert session.length == 22


def test_truncating_to_nothing_always_works(any_model: LlamaCppModel, session: LlamaCppSession) -> None:
    feed(any_model, session, TEXT)
    session.truncate(0)
    assert session.length == 0
    assert_same(compute(any_model, session, TEXT[5:10])[-1], alone(any_model, TEXT[5:10]))


def test_a_recurrent_model_refuses_to_truncate(models: dict[str, LlamaCppModel]) -> None:
    session = models["recurrent"].open_session()
    feed(models["recurrent"], session, TEXT[:10])
    with pytest.raises(RuntimeUnavailableError, match="recurrent model and cannot take tokens back"):
        session.truncate(5)
    with pytest.raises(RuntimeUnavailableError, match="cannot take tokens back"):
        session.fork(5)
    session.truncate(10)
    assert session.length == 10
    session.close()


def test_a_failed_replay_is_done_again(models: dict[str, LlamaCppModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models["recurrent"]
    session = model.open_session()
    feed(model, session, TEXT[:20])
    compute(model, session, [100])

    def fail(*_: object) -> None:
        raise RuntimeUnavailableError("no")

    monkeypatch.setattr(model, "_decode", fail)
    with pytest.raises(RuntimeUnavailableError):
        model.forward([Segment(session, [101])])
    monkeypatch.undo()
    assert_same(compute(model, session, TEXT[20:22])[-1], alone(model, TEXT[:22]))
    session.close()


def test_sessions_in_one_batch_are_as_if_alone(any_model: LlamaCppModel) -> None:
    texts = [TEXT[:20], TEXT[5:37], TEXT[3:8]]
    sessions = [any_model.open_session() for _ in texts]
    for session, text in zip(sessions, texts, strict=True):
        feed(any_model, session, text)
    drafts = [[60, 61, 62], [63], [64, 65, 66, 67, 68]]
    batch = [Segment(session, draft) for session, draft in zip(sessions, drafts, strict=True)]
    together = any_model.forward(batch)
    last = [np.array(rows.logits(len(draft) - 1)) for rows, draft in zip(together, drafts, strict=True)]
    for session in sessions:
        session.close()
    for text, draft, logits in zip(texts, drafts, last, strict=True):
        assert_same(logits, alone(any_model, text + draft))


def test_a_fork_goes_its_own_way(any_model: LlamaCppModel, session: LlamaCppSession) -> None:
    feed(any_model, session, TEXT[:20])
    compute(any_model, session, [100, 101])  # must not travel with the fork
    fork = session.fork(20)
    session.commit([0])  # and the fork must not end what the original has in flight
    feed(any_model, fork, [90, 91])
    assert_same(feed(any_model, session, [60, 61])[-1], alone(any_model, [*TEXT[:20], 100, 60, 61]))
    assert_same(feed(any_model, fork, [92])[-1], alone(any_model, [*TEXT[:20], 90, 91, 92]))
    fork.close()


def test_a_fork_may_begin_earlier(rolling_model: LlamaCppModel, session: LlamaCppSession) -> None:
    feed(rolling_model, session, TEXT[:40])
    fork = session.fork(18)
    assert (session.length, fork.length) == (40, 18)
    assert_same(feed(rolling_model, fork, [90])[-1], alone(rolling_model, [*TEXT[:18], 90]))
    assert_same(feed(rolling_model, session, TEXT[40:42])[-1], alone(rolling_model, TEXT[:42]))
    fork.close()


def test_a_sliding_window_survives_neighbours_that_come_and_go(models: dict[str, LlamaCppModel]) -> None:
    """A cache shared by sessions would give away cells outside the window; rollback needs them again."""
    model = models["window"]
    first, second = model.open_session(), model.open_session()
    feed(model, second, TEXT[:30])
    feed(model, first, TEXT)
    second.truncate(0)
    for _ in range(8):
        feed(model, second, TEXT[:24])
    first.truncate(20)
    assert_same(feed(model, first, TEXT[20:22])[-1], alone(model, TEXT[:22]))
    first.close()
    second.close()


def test_the_pool_of_sessions_runs_out_and_refills(model: LlamaCppModel) -> None:
    sessions = [model.open_session() for _ in range(3)]
    with pytest.raises(RuntimeUnavailableError, match=r"All 3 session\(s\) of llama.gguf are in use"):
        model.open_session()
    feed(model, sessions[1], TEXT[:10])
    sessions[1].close()
    sessions[1].close()  # harmless, and must not give the place back twice
    again = model.open_session()
    with pytest.raises(RuntimeUnavailableError):
        model.open_session()
    assert_same(compute(model, again, TEXT[3:9])[-1], compute(model, sessions[0], TEXT[3:9])[-1])
    for session in (again, sessions[0], sessions[2]):
        session.close()


def test_every_session_gets_its_whole_context(any_model: LlamaCppModel) -> None:
    sessions = [any_model.open_session() for _ in range(3)]
    long = (TEXT * 6)[:255]
    for session in sessions:
        for start in range(0, 255, 64):
            feed(any_model, session, long[start : start + 64])
        feed(any_model, session, [60])
        assert session.length == any_model.context_length == 256
    with pytest.raises(ContextLimitError, match=r"holds 256 tokens, 256 are in use and 1 more"):
        any_model.forward([Segment(sessions[0], [61])])
    assert sessions[0].length == 256
    for session in sessions:
        session.close()


def test_only_a_chain_from_its_start_can_be_committed(model: LlamaCppModel, session: LlamaCppSession) -> None:
    compute(model, session, TEXT[:4])
    with pytest.raises(AssertionError, match="a chain commits rows"):
        session.commit([1, 2])
    with pytest.raises(AssertionError, match="5 rows to commit of 4"):
        session.commit(range(5))
    assert session.length == 0


def test_tolerance_is_far_below_what_logits_are_apart(model: LlamaCppModel) -> None:
    top = np.sort(alone(model, TEXT[:20]))[::-1]
    assert top[0] - top[5] > 50 * TOLERANCE
