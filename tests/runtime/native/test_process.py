"""The runtime among a process's other affairs: fork, Ctrl-C, threads, many models one after another."""

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.runtime.native import NativeModel, load_native
from tests.runtime.native.helpers import feed, same_bits
from tests.tiny_models import Shape, tiny_llama


def python(script: str, *arguments: object) -> str:
    """Run a script in a process of its own and give back what it printed."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
    import os, sys, warnings
    from slipstream.core.protocols import Segment
    from slipstream.runtime.native import load_native

    model = load_native(sys.argv[1], context_length=256, max_sequences=2, threads=int(sys.argv[2]))
    session = model.open_session()

    def bits(tokens, keep):
        rows = model.forward([Segment(session, tokens)])[0]
        result = rows.logits(len(tokens) - 1).tobytes()
        if keep:
            session.commit(range(len(tokens)))
        return result

    bits(list(range(40)), True)
    expected = bits([7, 8, 9], False)
    # Python 3.12 and later warn of any fork beside threads.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded")
    for _ in range(3):
        child = os.fork()
        if child == 0:
            same = bits([7, 8, 9], True) == expected and bits([1], False) != expected
            os._exit(0 if same else 3)
        assert bits([7, 8, 9], False) == expected  # the parent goes on beside its child
        assert os.waitpid(child, 0)[1] == 0, "the child computed something else"
    child = os.fork()  # a child that ends as programs do
    model.close()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print("done")
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_fork(file: Path, threads: int) -> None:
    assert python(FORK, file, threads) == "done\n"


INTERRUPT = """
    import os, signal, sys, threading, time
    from slipstream.core.protocols import Segment
    from slipstream.runtime.native import load_native

    # A process that a shell started in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model = load_native(sys.argv[1], context_length=2048, max_rows=2048, threads=int(sys.argv[2]))
    session = model.open_session()
    model.forward([Segment(session, list(range(40)))])
    session.commit(range(40))
    expected = model.forward([Segment(session, [7, 8])])[0].logits(1).tobytes()

    long = [Segment(session, [token % 250 for token in range(1200)], outputs=0)]
    start = time.perf_counter()
    model.forward(long)
    whole = time.perf_counter() - start

    def interrupt():
        time.sleep(whole / 10)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    start = time.perf_counter()
    try:
        model.forward(long)
    except KeyboardInterrupt:
        took = time.perf_counter() - start
    else:
        sys.exit("it was not interrupted")
    assert took < 0.7 * whole, (took, whole)
    assert session.length == 40
    assert model.forward([Segment(session, [7, 8])])[0].logits(1).tobytes() == expected
    print("done")
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c(tmp_path: Path, threads: int) -> None:
    """The forward takes about half a second and is asked every 50 ms, at the end of a layer."""
    shape = Shape(width=256, heads=4, head_size=64, feed_forward=1024, layers=24)
    path = tiny_llama(tmp_path / "it.gguf", shape=shape)
    assert python(INTERRUPT, path, threads) == "done\n"


MANY = """
    import gc, sys, threading
    from slipstream.core.protocols import Segment
    from slipstream.runtime.native import load_native

    def status(what):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))

    def one(number):
        model = load_native(sys.argv[1], context_length=2048, max_sequences=4, threads=1 + number % 3)
        model.forward([Segment(model.open_session(), list(range(200)))])
        if number % 2:  # the others are left to the collector
            model.close()

    for number in range(12):
        one(number)
    gc.collect()
    before, threads = status("VmRSS"), status("Threads")
    for number in range(100):
        one(number)
    gc.collect()
    print(status("VmRSS") - before, status("Threads") - threads)
"""


def test_a_hundred_models(tmp_path: Path) -> None:
    """Each takes 2 MB of weights and as much again for cache and buffers: lost, they would be 400 MB."""
    path = tiny_llama(tmp_path / "it.gguf", shape=Shape(width=128, heads=4, feed_forward=512, layers=2))
    grown, threads = map(int, python(MANY, path).split())
    assert grown < 20_000  # KB
    assert threads <= 0


def test_two_threads_with_a_model_each(file: Path) -> None:
    """They share a pool of threads, and take turns."""
    models = [load_native(file, context_length=256, max_sequences=2, threads=2) for _ in range(2)]
    expected = feed(models[0], models[0].open_session(), range(100))
    found: list[np.ndarray] = []

    def work(model: NativeModel) -> None:
        for _ in range(20):
            session = model.open_session()
            found.append(feed(model, session, range(100)))
            session.close()

    one, other = (threading.Thread(target=work, args=(model,)) for model in models)
    one.start()
    other.start()
    one.join()
    other.join()
    assert len(found) == 40
    assert all(same_bits(logits, expected) for logits in found)
    for model in models:
        model.close()


def test_other_python_threads_run_meanwhile(tmp_path: Path) -> None:
    """A forward holds no lock of the interpreter."""
    shape = Shape(width=256, heads=4, head_size=64, feed_forward=1024, layers=8)
    model = load_native(tiny_llama(tmp_path / "it.gguf", shape=shape), context_length=1024, max_rows=1000, threads=1)
    stop, ticks = threading.Event(), []

    def tick() -> None:
        while not stop.wait(0.002):
            ticks.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    ticker.start()
    session = model.open_session()
    start = time.perf_counter()
    feed(model, session, [token % 250 for token in range(1000)])
    end = time.perf_counter()
    stop.set()
    ticker.join()
    assert sum(start < moment < end for moment in ticks) > 3
    model.close()


def test_an_interrupted_load_leaves_nothing_behind(file: Path) -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            load_native(file, context_length=256, threads=3, progress=stop)
    assert len(list(Path("/proc/self/task").iterdir())) <= threads + 2


REENTRANT = """
    import signal, sys
    from slipstream.core.protocols import Segment
    from slipstream.runtime.native import load_native

    options = {"context_length": 8192, "max_sequences": 2, "max_rows": 8192, "threads": 2}
    models = [load_native(sys.argv[1], **options) for _ in range(2)]
    sessions = [model.open_session() for model in models]
    caught = []

    def handler(*_):  # once per forward: a second signal here would come between the two refusals
        for model, session in zip(models, sessions):  # the one that is running, and one that shares its threads
            try:
                model.forward([Segment(session, [1])])
            except RuntimeError as error:
                caught.append(str(error))

    signal.signal(signal.SIGALRM, handler)
    while not caught:  # a forward looks for signals every 50 ms, and this one takes longer
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        models[0].forward([Segment(sessions[0], [1] * 8000)])
    assert caught[:2] == ["a forward of this model is running", "a forward is running on this thread"], caught
    models[1].forward([Segment(sessions[1], [1])])
    print("done")
"""


def test_a_signal_handler_cannot_start_a_forward_within_one(tmp_path: Path) -> None:
    assert python(REENTRANT, tiny_llama(tmp_path / "m.gguf", context_length=8192, shape=Shape(layers=8))) == "done\n"


FORK_MEANWHILE = """
    import os, sys, threading, warnings
    from slipstream.core.protocols import Segment
    from slipstream.runtime.native import load_native

    options = {"context_length": 2048, "max_sequences": 2, "max_rows": 2048, "threads": 2}
    busy, other = (load_native(sys.argv[1], **options) for _ in range(2))
    session = busy.open_session()
    over = threading.Event()

    def work():
        while not over.is_set():
            busy.forward([Segment(session, [1] * 1000)])

    thread = threading.Thread(target=work)
    thread.start()
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded")
    for _ in range(5):
        child = os.fork()
        if child == 0:
            other.forward([Segment(other.open_session(), [1, 2, 3])])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()
    print("done")
"""


def test_a_fork_while_another_thread_computes(tmp_path: Path) -> None:
    assert python(FORK_MEANWHILE, tiny_llama(tmp_path / "m.gguf")) == "done\n"
