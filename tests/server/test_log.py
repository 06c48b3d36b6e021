"""The log for machines: every record is one JSON object on one line."""

import json
import logging
import sys

from slipstream.server.log import FIELDS, JsonLines


def line(record: logging.LogRecord) -> dict[str, object]:
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    assert {"time", "level", "logger"} <= set(found)
    return found


def record(message: str, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("slipstream.x", level, __file__, 1, message, arguments, None)


def test_a_message_with_arguments() -> None:
    found = line(record("%s\nfailed.", "this", level=logging.ERROR))
    assert (found["message"], found["level"], found["logger"]) == ("this\nfailed.", "error", "slipstream.x")


def test_fields_take_the_message_s_place() -> None:
    one = record("for people")
    setattr(one, FIELDS, {"status": 200})
    found = line(one)
    assert found["status"] == 200
    assert "message" not in found


def test_a_traceback_is_a_field() -> None:
    one = record("It failed.", level=logging.ERROR)
    try:
        raise ZeroDivisionError("a mistake")
    except ZeroDivisionError:
        one.exc_info = sys.exc_info()
    found = line(one)
    assert found["message"] == "It failed."
    assert "ZeroDivisionError: a mistake" in str(found["traceback"])
