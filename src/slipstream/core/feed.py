"""Prefill: bring a session's KV cache up to the tokens it lacks."""

from collections.abc import Iterator, Sequence

from slipstream.core.protocols import Model, Segment, Session


def feed(model: Model, session: Session, tokens: Sequence[int]) -> Iterator[int]:
    """Append tokens to the session in chunks of the model's `max_rows`; yields how many went in after each chunk.

    The work happens as the iterator is consumed, so a caller can stop between chunks.
    """
    for start in range(0, len(tokens), model.max_rows):
        chunk = tokens[start : start + model.max_rows]
        model.forward([Segment(session, chunk, outputs=0)])
        session.commit(range(len(chunk)))
        yield start + len(chunk)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(one), len(other))
    if list(one[:length]) == list(other[:length]):
        return length
    return next(index for index in range(length) if one[index] != other[index])
