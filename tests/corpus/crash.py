"""Writes into a ring, for tests.

`crash.py FOLDER 200` kills writers so often, and prints how often that was, how often it left half a record, and how
often a record was missing that was done. `crash.py FOLDER NAME` writes in peace.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from slipstream.corpus.ring import LONGEST, Record, Ring, scope_key

SIZE = 1 << 21


def write_until_killed(folder: Path, name: str, said: int) -> None:
    """A byte through the pipe for every record that is there."""
    ring = Ring(folder, SIZE)
    for number in range(1_000_000):
        ring.append([Record(scope_key(name), np.full(LONGEST, number, np.uint32))])
        os.write(said, b".")


def crash(folder: Path, times: int) -> None:
    chance, torn, lost = random.Random(1), 0, 0
    for number in range(times):
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            write_until_killed(folder, str(number), said)
        os.close(said)
        os.read(heard, 1)  # it is at work
        time.sleep(chance.uniform(0, 0.004))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(heard, "rb") as rest:
            done = 1 + len(rest.read())
        torn += any((path.stat().st_size - 8) % (28 + 4 * LONGEST) for path in folder.glob("*.tokens"))
        lost += done - len(Ring(folder, SIZE).texts(scope_key(str(number)))) > 0
    print(times, torn, lost)  # noqa: T201


def write(folder: Path, name: str) -> None:
    ring = Ring(folder)
    for number in range(200):
        ring.append([Record(scope_key(name), np.full(50, number, np.uint32))])


if __name__ == "__main__":
    if sys.argv[2].isdecimal():
        crash(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        write(Path(sys.argv[1]), sys.argv[2])
