"""The node's own log: one line for each record in a file or on standard error, and the newest in memory.

A line cannot be split or coloured by the text of others, and has no secret: names of objects, grants and
tokens are replaced (``dios.host.loop.log_text``). ``correlate`` adds fields to all records of the connection
that is being served, ``begin_trace`` the ids of a traced call. The audit log is ``dios.host.audit.log``.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from dios import limits
from dios.host.loop.log_text import harmless, one_word

FieldValue: TypeAlias = str | int | float | bool | None

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
"""The priorities of syslog, which journald reads at the beginning of a line; 7 is for everything below."""

_correlation: Final[contextvars.ContextVar[Mapping[str, FieldValue] | None]] = contextvars.ContextVar(
    "dios_log_fields", default=None
)


def correlate(**fields: FieldValue) -> None:
    """Add these fields to every record of the current trio task, and of those that it starts."""
    _correlation.set({**(_correlation.get() or {}), **fields})


_trace: Final[contextvars.ContextVar[bytes]] = contextvars.ContextVar("dios_log_trace", default=b"")


def begin_trace(context: bytes) -> contextvars.Token[bytes]:
    """Add the ids of a trace and a span to every record until ``end_trace``, and to those of new trio tasks.

    ``context`` is that of a call, as it goes with it.
    """
    return _trace.set(context)


def end_trace(token: contextvars.Token[bytes]) -> None:
    """Undo ``begin_trace``."""
    _trace.reset(token)


def _ids_of(context: bytes) -> dict[str, FieldValue]:
    return {"trace_id": context[:16].hex(), "span_id": context[16:24].hex()} if context else {}


class LogLine(NamedTuple):
    """A record as it is shown. All text is bounded and has no secrets; it may have control characters."""

    position: int
    """Nanoseconds since 1970, and above those of earlier lines."""
    number: int
    """The number of the record since the start of the node, from 1."""
    level: str
    source: str
    message: str
    fields: Mapping[str, FieldValue]

    @property
    def fields_json(self) -> str:
        """The further fields as a JSON object, in ASCII."""
        return json.dumps(self.fields)


class KeptLines:
    """The newest lines: at most ``NODE_LOG_LINES_KEPT``, with at most ``NODE_LOG_BYTES_KEPT`` of text."""

    def __init__(self) -> None:
        self._lines: Final[deque[tuple[LogLine, int]]] = deque()
        self._size = 0

    def add(self, line: LogLine) -> None:
        """Add the newest line. Drop the oldest ones above a bound."""
        size = len(line.source) + len(line.message.encode()) + len(line.fields_json)
        self._lines.append((line, size))
        self._size += size
        while len(self._lines) > limits.NODE_LOG_LINES_KEPT or self._size > limits.NODE_LOG_BYTES_KEPT:
            self._size -= self._lines.popleft()[1]

    def since(self, position: int, count: int) -> tuple[list[LogLine], bool]:
        """Return the oldest lines from a position on, and True if there are more.

        They are at most ``count``, and have a quarter of ``NODE_LOG_BYTES_KEPT`` and one line more.
        """
        lines: list[LogLine] = []
        total = 0
        for line, size in self._lines:
            if line.position >= position:
                if len(lines) == count or total > limits.NODE_LOG_BYTES_KEPT // 4:
                    return lines, True
                lines.append(line)
                total += size
        return lines, False


class NodeLog(logging.Handler):
    """The handler of the daemon's log records. It never raises, and may be called in any thread."""

    def __init__(self, sink: logging.StreamHandler, *, as_json: bool, journal: bool, node: str) -> None:  # type: ignore[type-arg] # generic in stubs only
        super().__init__()
        self.kept: Final = KeptLines()
        self._sink: Final = sink
        self._as_json: Final = as_json
        self._journal: Final = journal
        self._own: Final[Mapping[str, FieldValue]] = {"node": node} if node else {}
        self._position = 0
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and keep it for readers. The caller holds the lock of this handler."""
        try:
            line = self._line_of(record)
            self.kept.add(line)
            text = self._as_text(line, record.levelno)
        except Exception:  # noqa: BLE001 - as in every handler: a defect in a log record must not end a node
            self.handleError(record)
            return
        self._sink.emit(logging.LogRecord(record.name, record.levelno, "", 0, text, None, None))

    def read(self, position: int, count: int) -> tuple[list[LogLine], bool]:
        """Return kept lines as ``KeptLines.since`` does."""
        self.acquire()
        try:
            return self.kept.since(position, count)
        finally:
            self.release()

    def close(self) -> None:
        """Close the file."""
        self._sink.close()
        super().close()

    def _line_of(self, record: logging.LogRecord) -> LogLine:
        fields: dict[str, FieldValue] = {**self._own, **(_correlation.get() or {}), **_ids_of(_trace.get())}
        fields |= {key: _value(value) for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            fields["exception"] = harmless(logging.Formatter().formatException(record.exc_info))
        _bound(fields)
        self._position = max(self._position + 1, round(record.created * 1e6) * 1_000)
        self._number += 1
        return LogLine(
            self._position,
            self._number,
            record.levelname.lower(),
            record.name,
            harmless(record.getMessage()),
            fields,
        )

    def _as_text(self, line: LogLine, level: int) -> str:
        when = dt.datetime.fromtimestamp(line.position / 1e9, dt.UTC).isoformat("T", "milliseconds")
        if self._as_json:
            # Characters outside of ASCII are escaped, so that none of them controls a terminal.
            text = json.dumps(
                {
                    "time": when,
                    "level": line.level,
                    "from": line.source,
                    "message": line.message,
                    **line.fields,
                }
            )
        else:
            message = "".join(
                character if character.isprintable() else one_word(character)[1:-1]
                for character in line.message
            )
            rest = "".join(f" {key}={one_word(value)}" for key, value in line.fields.items())
            # The journal has its own times.
            text = f"{'' if self._journal else when + ' '}{line.level} {line.source}: {message}{rest}"
        if not self._journal:
            return text
        return f"<{next((number for least, number in _PRIORITIES if level >= least), 7)}>{text}"


def _bound(fields: dict[str, FieldValue]) -> None:
    """Drop the longest fields until the rest fits ``NODE_LOG_FIELDS_CHARS_MAX`` characters of JSON."""
    while len(json.dumps(fields)) > limits.NODE_LOG_FIELDS_CHARS_MAX:
        longest = max(fields, key=lambda key: len(json.dumps(fields[key])))
        fields[longest] = "(too long)"


def _value(value: object) -> FieldValue:
    return value if isinstance(value, int | float | bool | None) else harmless(str(value))


def open_log(level: str, *, as_json: bool, file: Path | None = None, node: str = "") -> NodeLog:
    """Send the project's log records to ``file`` or to standard error. Return the handler, to be closed.

    If standard error is systemd's journal, each line begins with its priority, which the journal removes.
    ``node`` is added to each record if it is not empty.
    """
    sink: logging.StreamHandler = (  # type: ignore[type-arg] # generic in stubs only
        logging.StreamHandler(sys.stderr)
        if file is None
        else logging.FileHandler(file, delay=True, encoding="utf-8", errors="backslashreplace")
    )
    handler = NodeLog(sink, as_json=as_json, journal=file is None and _is_journal(), node=node)
    root = logging.getLogger("dios")
    root.setLevel(level.upper())
    root.propagate = False
    root.addHandler(handler)
    return handler


def close_log(handler: logging.Handler) -> None:
    """Undo ``open_log``."""
    logging.getLogger("dios").removeHandler(handler)
    handler.close()


def _is_journal() -> bool:
    """Return True if standard error is the stream to journald that systemd made for this process."""
    try:
        device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
        stderr_info = os.fstat(sys.stderr.fileno())
        return (int(device), int(inode)) == (stderr_info.st_dev, stderr_info.st_ino)
    except (OSError, ValueError, AttributeError):
        return False
