"""Many texts decoded together: a new one begins as soon as another ends."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from slipstream.engine import Completion, Engine, GenerationOptions, Prompt
from slipstream.engine.batch import Batch, Generation


class Job(NamedTuple):
    """A text that is to be made. done: takes the completion; gives the job that follows it at once, or None."""

    prompt: Prompt
    options: GenerationOptions
    done: "Callable[[Completion], Job | None]"


def decode_all(engine: Engine, jobs: Iterator[Job], width: int, after_round: Callable[[], bool]) -> None:
    """Decode all jobs, `width` at a time.

    after_round: called after every round; False ends the work, and texts that are not done are lost
    """
    waiting: deque[Job] = deque()
    running: list[tuple[Job, Generation]] = []
    batch = engine.batch()
    try:
        while True:
            while len(running) < width:
                job = waiting.popleft() if waiting else next(jobs, None)
                if job is None:
                    break
                generation = engine.prepare(job.prompt, **job.options)
                batch.add(generation)
                running.append((job, generation))
            if not running:
                return
            batch.play_round()
            for ended in [one for one in running if one[1].sequence.finished]:
                running.remove(ended)
                if (following := _finish(batch, *ended)) is not None:
                    waiting.append(following)
            if not after_round():
                return
    finally:
        batch.close()


def _finish(batch: Batch, job: Job, generation: Generation) -> Job | None:
    batch.remove(generation)
    if generation.sequence.failure is not None:
        raise generation.sequence.failure
    return job.done(generation.completion)
