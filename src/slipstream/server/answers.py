"""From the engine's thread to asyncio: the texts of one request as they come."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from slipstream.engine import Completion, Token
from slipstream.engine.batch import Generation
from slipstream.engine.worker import Job, Worker
from slipstream.errors import SlipstreamError

Result = TypeVar("Result")


class Piece(NamedTuple):
    """Tokens of one choice; none with its last piece, which has the completion in full.

    completion: set when the choice has ended
    """

    choice: int
    tokens: Sequence[Token]
    completion: Completion | None = None


class Answers:
    """The choices of one request, in the order in which their tokens come.

    >>> answers = Answers(worker, generations, since, timeout)     # doctest: +SKIP
    >>> async for piece in answers.pieces(): ...            # doctest: +SKIP

    Making one queues the request, or raises BusyError. Leaving `pieces`, however, ends what still runs.

    since:   when the request came, on the clock of `time.monotonic`
    timeout: seconds from then on that the answers may take, None for no end
    completions, tokens: of each choice, what there is so far
    left: choices whose end has not been handed out
    """

    def __init__(
        self,
        worker: Worker,
        generations: Sequence[Generation],
        since: float,
        timeout: float | None,
    ) -> None:
        self.completions: list[Completion] = [generation.completion for generation in generations]
        self.tokens: list[list[Token]] = [[] for _ in generations]
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece | SlipstreamError] = asyncio.Queue()
        deadline = None if timeout is None else since + timeout
        self._jobs = [
            Job(generation, self._taker(choice), self._ender(choice), deadline, since)
            for choice, generation in enumerate(generations)
        ]
        self.left = len(self._jobs)
        worker.submit(self._jobs)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Tokens as they come. Raises SlipstreamError if one of the texts fails."""
        try:
            while self.left:
                piece = await self._queue.get()
                if isinstance(piece, SlipstreamError):
                    raise piece
                self.left -= piece.completion is not None
                self.tokens[piece.choice] += piece.tokens
                yield piece
        finally:
            self.cancel()

    async def all(self) -> list[Completion]:
        """Wait for the end of all choices."""
        async for _ in self.pieces():
            pass
        return self.completions

    def cancel(self) -> None:
        """End what still runs, before its next round."""
        for job in self._jobs:
            self._worker.cancel(job)

    # --- called on the worker's thread

    def _taker(self, choice: int) -> Callable[[Sequence[Token]], None]:
        return lambda tokens: self._put(Piece(choice, tokens))

    def _ender(self, choice: int) -> Callable[[SlipstreamError | None], None]:
        completion = self.completions[choice]
        return lambda error: self._put(Piece(choice, (), completion) if error is None else error)

    def _put(self, piece: Piece | SlipstreamError) -> None:
        if not self._loop.is_closed():  # at the very end of a shutdown nobody listens any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)


async def while_connected(request: Request, work: Awaitable[Result]) -> Result | None:
    """The result of `work`, or None if the client went away before it was there; the work is then cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
