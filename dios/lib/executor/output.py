"""Shows the output of workers on standard error: whole lines, harmless for a terminal, and bounded.

A thread of its own writes, because standard error may be a pipe that nobody reads at the moment.
"""

from __future__ import annotations

import codecs
import contextlib
import queue
import sys
import threading
from typing import Final

from dios.client.plain_text import plain_lines
from dios.limits import KIB, MIB

OUTPUT_BYTES_MAX: Final = MIB
"""The output of one worker that is shown between two results."""

_LINE_CHARS_MAX: Final = 4 * KIB
_BATCHES_MAX: Final = 256
_END_WAIT_S: Final = 2.0


class OutputLines:
    """The output of one worker, cut into lines that begin with the number of the worker."""

    def __init__(self, number: int) -> None:
        self._prefix: Final = f"[worker {number}] "
        self._decode: Final = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._rest = ""
        self._left = OUTPUT_BYTES_MAX

    def renew(self) -> None:
        """Allow the full amount again."""
        self._left = OUTPUT_BYTES_MAX

    def feed(self, data: memoryview) -> str:
        """Return the lines that are complete with these bytes."""
        if self._left <= 0:
            return ""
        text = self._rest + self._decode(data[: self._left])
        self._left -= len(data)
        *lines, self._rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        while len(self._rest) > _LINE_CHARS_MAX:
            lines.append(self._rest[:_LINE_CHARS_MAX])
            self._rest = self._rest[_LINE_CHARS_MAX:]
        if self._left <= 0:
            lines += [self._rest, f"(the output over {OUTPUT_BYTES_MAX} bytes in one call is not shown)"]
            self._rest = ""
        return "".join(map(self._line, lines))

    def end(self) -> str:
        """Return the last line, if it has no end."""
        rest, self._rest = self._rest, ""
        return self._line(rest) if rest else ""

    def _line(self, text: str) -> str:
        return f"{self._prefix}{plain_lines(text)}\n"


class OutputWriter:
    """Writes lines to standard error; drops them if it cannot write as fast as they come."""

    def __init__(self) -> None:
        self._queue: Final[queue.Queue[str | None]] = queue.Queue(_BATCHES_MAX)
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def show(self, text: str) -> None:
        """Write lines soon, without waiting."""
        if not text:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dios executor output", daemon=True)
            self._thread.start()
        if self._dropped:
            text = f"[dios] {self._dropped} parts of the output of workers were dropped\n{text}"
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            self._dropped += 1
        else:
            self._dropped = 0

    def close(self) -> None:
        """Write the remaining lines, if standard error takes them within some seconds."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=_END_WAIT_S)
            self._thread.join(_END_WAIT_S)

    def _run(self) -> None:
        while (text := self._queue.get()) is not None:
            stream = sys.stderr
            with contextlib.suppress(OSError, ValueError, AttributeError):
                encoding = getattr(stream, "encoding", None) or "utf-8"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()
