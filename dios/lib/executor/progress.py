"""The progress of ``Executor.map`` on standard error."""

from __future__ import annotations

import sys
import time
from typing import Final

_EVERY_S: Final = 0.2


class Progress:
    """A line with the number of results, their rate and the remaining time, if the total is known."""

    def __init__(self, total: int | None) -> None:
        self._total: Final = total
        self._done = 0
        self._began: Final = time.monotonic()
        self._shown = 0.0
        self._is_terminal: Final = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """Count further results."""
        self._done += count
        now = time.monotonic()
        if self._is_terminal and (now - self._shown >= _EVERY_S or self._done == self._total):
            self._shown = now
            self._show(now, "\r")

    def close(self) -> None:
        """Leave the last line."""
        if self._is_terminal:
            sys.stderr.write("\n")
        else:
            self._show(time.monotonic(), "")
            sys.stderr.write("\n")
        sys.stderr.flush()

    def _show(self, now: float, start: str) -> None:
        passed = max(now - self._began, 1e-9)
        rate = self._done / passed
        total = self._done if self._total is None else self._total
        left = (total - self._done) / rate if rate else 0.0
        rest = f", {left:.0f} s left" if self._done < total else f" in {passed:.1f} s"
        known = "" if self._total is None else f" of {total:,}"
        sys.stderr.write(f"{start}{self._done:,}{known} results, {rate:,.0f}/s{rest}    ")
        sys.stderr.flush()
