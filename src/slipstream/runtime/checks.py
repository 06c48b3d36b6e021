"""Checks of options that all runtimes share."""

from collections.abc import Collection

from slipstream.errors import UsageError
from slipstream.models.gguf import GgufHeader

DEFAULT_CONTEXT = 4096
"""Tokens a session gets unless asked otherwise, if the model was trained for as many.

Models are trained for up to a million; a KV cache of that length would fill the machine unasked.
"""

SHORTEST_CONTEXT = 2
"""One token of a prompt and one of an answer."""


def check_range(what: str, value: int | None, low: int, high: int) -> None:
    """Raise UsageError for a value that is neither None nor from `low` to `high`."""
    if value is not None and not low <= value <= high:
        raise UsageError(f"The {what} must be from {low} to {high}, not {value}.")


def check_choice(what: str, value: str, choices: Collection[str]) -> None:
    """Raise UsageError for a value that is not among the choices."""
    if value not in choices:
        raise UsageError(f"The {what} must be one of {', '.join(choices)}, not {value!r}.")


def check_sizes(context_length: int | None, max_sequences: int, threads: int | None, max_rows: int) -> None:
    """Raise UsageError for sizes that cannot be, whatever the model."""
    check_range("context length", context_length, SHORTEST_CONTEXT, 1 << 24)
    check_range("number of sequences", max_sequences, 1, 256)
    check_range("number of threads", threads, 1, 512)
    check_range("number of rows in one forward", max_rows, 2, 8192)


def context_for(header: GgufHeader, asked: int | None) -> int:
    """Tokens a session holds. Raises UsageError for more than the model was trained to attend to."""
    trained = header.context_length
    if asked is None:
        return max(min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT), SHORTEST_CONTEXT)
    if trained is not None and asked > trained:
        raise UsageError(
            f"{header.path.name} was trained for a context of {trained} tokens and "
            f"{asked} were asked for; choose {SHORTEST_CONTEXT} to {trained}."
        )
    return asked
