"""The log on standard error: lines for people, or one JSON object a line."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

FIELDS = "fields"
"""What a record carries under this name (`extra={FIELDS: {...}}`) a JSON line has instead of a message."""


class JsonLines(logging.Formatter):
    """Every record as one line: time, level, who logs, a message or fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        line |= getattr(record, FIELDS, None) or {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_log(form: Literal["text", "json"]) -> None:
    """Send what Slipstream tells, and what anybody warns of, to standard error."""
    logging.raiseExceptions = False  # a full disk costs lines of the log, nothing else
    logging.captureWarnings(capture=True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("slipstream").setLevel(logging.INFO)
