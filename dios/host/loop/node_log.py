"""The node's own log: structured records on standard error or in a file.

Names are secrets and never appear here. The audit log is ``dios.host.audit.log``.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from pathlib import Path
from typing import Final

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _StructuredFormatter(logging.Formatter):
    """A formatter that writes one line per record, as JSON or as readable text."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json: Final = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Format the record with its message and its extra fields."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat("T", "milliseconds")
        beside: dict[str, object] = {
            key: value for key, value in record.__dict__.items() if key not in _STANDARD
        }
        if record.exc_info:
            beside["exception"] = self.formatException(record.exc_info)
        if self._as_json:
            fields = {
                "time": moment,
                "level": record.levelname.lower(),
                "from": record.name,
                "message": record.getMessage(),
                **beside,
            }
            return json.dumps(fields, default=str)
        rest = "".join(f" {key}={_one_word(value)}" for key, value in beside.items())
        return f"{moment} {record.levelname.lower()} {record.name}: {record.getMessage()}{rest}"


def _one_word(value: object) -> str:
    """Return the value as text without spaces, quoted as JSON if it has any."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def open_log(level: str, *, as_json: bool, file: Path | None = None) -> logging.Handler:
    """Send the project's log records to ``file`` or to standard error. Return the handler, to be closed."""
    handler: logging.Handler
    handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, delay=True)
    handler.setFormatter(_StructuredFormatter(as_json=as_json))
    root = logging.getLogger("dios")
    root.setLevel(level.upper())
    root.propagate = False
    root.addHandler(handler)
    return handler


def close_log(handler: logging.Handler) -> None:
    """Undo ``open_log``."""
    logging.getLogger("dios").removeHandler(handler)
    handler.close()
