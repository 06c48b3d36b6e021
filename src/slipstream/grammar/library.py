"""The library behind grammars, imported when the first one is used, and what it may spend on one."""

from functools import cache
from typing import Any

from slipstream.errors import RuntimeUnavailableError


@cache
def library() -> Any:
    """The module `llguidance`. Raises RuntimeUnavailableError, which says what to install."""
    try:
        import llguidance
    except ImportError as error:
        raise RuntimeUnavailableError(
            "Structured output needs the package llguidance; install it with: pip install 'slipstream-decoding[server]'"
        ) from error
    return llguidance


@cache
def limits() -> Any:
    """The library's own limits of work (states, items, steps), with messages that do not repeat the text."""
    return library().LLParserLimits(verbose_errors=False)


def one_line(message: str) -> str:
    """An error of the library as the tail of a sentence."""
    if message.startswith("NoExtension"):
        return "no text can fulfil it"
    text = " ".join(message.replace("<non-verbose/>", "").split())
    return text[:300].rstrip(".")
