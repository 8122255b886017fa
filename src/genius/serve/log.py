"""One JSON object per line: what happened, when, and how long it took. Never what was searched for."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LOGGER = logging.getLogger("genius.serve")


class JsonLines(logging.Formatter):
    """A record as one line of JSON; the fields of `extra={"fields": …}` stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Write the lines of this server, and of what it runs on, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for logger in (LOGGER, logging.getLogger("genius.store"), logging.getLogger("uvicorn.error")):
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level if logger is LOGGER else logging.WARNING)


def log(event: str, **fields: object) -> None:
    """Note an event."""
    LOGGER.info(event, extra={"fields": fields})
