"""The pauses before restarts: exponential, and reset when a replica has run for some time."""

from __future__ import annotations

from dataclasses import dataclass

from dios import limits


@dataclass(slots=True)
class StartPause:
    """The ends of one replica, and the time before which it is not started again, in seconds."""

    not_before: float = 0.0
    failures: int = 0
    restarts: int = 0
    reason: str = ""

    def note_end(self, now: float, ran_s: float, reason: str, *, lost: bool = False) -> None:
        """Note that the replica ended, or could not be started (it ran for 0 s).

        One that was ``lost`` with its node, or stopped by the scheduler, is started again at once.
        """
        self.reason = reason
        self.restarts += 1
        if lost:
            return
        if ran_s * 1000 >= limits.SERVICE_STABLE_MS:
            self.failures = 0
        pause_ms = min(limits.SERVICE_RESTART_MS_MIN * 2**self.failures, limits.SERVICE_RESTART_MS_MAX)
        self.failures = min(self.failures + 1, 32)
        self.not_before = now + pause_ms / 1000
