"""The time of a scheduler that explanations may take, so that many questions do not delay its rounds."""

from __future__ import annotations

from dios.limits import EXPLAIN_S, EXPLAIN_SHARE


class ExplainAllowance:
    """A token bucket of seconds: EXPLAIN_SHARE of the time that passes, and EXPLAIN_S at once."""

    def __init__(self) -> None:
        self._left_s = EXPLAIN_S
        self._at_s: float | None = None

    def left_s(self, now_s: float) -> float:
        """Return the seconds that an explanation may take now."""
        passed = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        self._left_s = min(EXPLAIN_S, self._left_s + EXPLAIN_SHARE * passed)
        return max(self._left_s, 0.0)

    def spend(self, seconds: float) -> None:
        """Record the seconds that an explanation took; the next ones try no changes until they are over.

        A trial round takes time without an allowance, too, so that a debt is bounded.
        """
        self._left_s = max(self._left_s - seconds, -EXPLAIN_S)
