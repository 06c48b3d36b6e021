"""A generation as a stream of tokens."""

from collections.abc import Generator, Iterator
from threading import Event
from types import TracebackType

from slipstream.engine.batch import Batch, Generation
from slipstream.engine.completion import Token


class Stream:
    """Iterate over it to generate; a context manager, so that leaving early gives the KV cache back.

    `completion` is what there is so far, at any time. A round's tokens are in it before the first of them is
    handed out.
    """

    def __init__(self, batch: Batch, generation: Generation) -> None:
        self.completion = generation.completion
        self._cancelled = Event()
        # The generator does not know the stream, so a caller who walks away drops both and all is given back.
        self._tokens = _generate(batch, generation, self._cancelled)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        return next(self._tokens)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cancel(self) -> None:
        """End the generation before its next round; may be called from a signal handler or another thread."""
        self._cancelled.set()

    def close(self) -> None:
        """End the generation now. What was generated stays in `completion`."""
        self._tokens.close()


def _generate(batch: Batch, generation: Generation, cancelled: Event) -> Generator[Token, None, None]:
    try:
        batch.add(generation)
        while not (batch.finished or cancelled.is_set()):
            for _, tokens in batch.play_round():
                yield from tokens
        if generation.sequence.failure is not None:
            raise generation.sequence.failure
    finally:
        batch.close()
