"""The pauses before restarts, and the pauses before the supervisor asks a node that has refused once more.

Both are exponential. The former are reset when a replica has run for some time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from dios import limits


@dataclass(slots=True)
class StartPause:
    """The ends of one replica, and the time before which it is not started again, in seconds."""

    not_before: float = 0.0
    failures: int = 0
    restarts: int = 0
    reason: str = ""

    def note_end(self, now: float, ran_s: float, reason: str, *, lost: bool = False) -> None:
        """Note that the replica ended after it ran for ``ran_s``.

        One that was ``lost`` with its node, or stopped by the scheduler, is started again at once.
        """
        self.reason = reason
        self.restarts += 1
        if lost:
            return
        if ran_s * 1000 >= limits.SERVICE_STABLE_MS:
            self.failures = 0
        self._grow(now)

    def note_refusal(self, now: float, reason: str) -> None:
        """Note that its program was not started: that is no restart, and says nothing about the program."""
        self.reason = reason
        self._grow(now)

    def wait(self, until: float, reason: str) -> None:
        """Wait for a node that may start it: nothing was tried now."""
        self.reason = reason
        self.not_before = until

    def _grow(self, now: float) -> None:
        pause_ms = min(limits.SERVICE_RESTART_MS_MIN * 2**self.failures, limits.SERVICE_RESTART_MS_MAX)
        self.failures = min(self.failures + 1, 32)
        self.not_before = now + pause_ms / 1000


class NodeRefusals:
    """The nodes that did not start the program of a service: each is passed over until its pause is over."""

    def __init__(self) -> None:
        self._pauses: Final[dict[tuple[str, str], StartPause]] = {}

    def note(self, service: str, node: str, now: float, reason: str) -> None:
        """Note that a node did not start it. The pause grows until the node starts it."""
        self._pauses.setdefault((service, node), StartPause()).note_refusal(now, reason)

    def is_open(self, service: str, node: str, now: float) -> bool:
        """Return True if this node may be asked now."""
        pause = self._pauses.get((service, node))
        return pause is None or now >= pause.not_before

    def next(self, service: str, nodes: Iterable[str]) -> StartPause:
        """Return the pause that ends first among those of these nodes, all of which have one."""
        return min((self._pauses[service, node] for node in nodes), key=lambda pause: pause.not_before)

    def forget(self, service: str, node: str) -> None:
        """Forget the refusals of a node that has started it."""
        self._pauses.pop((service, node), None)

    def keep(self, services: Container[str]) -> None:
        """Forget the refusals for all other services."""
        for key in [key for key in self._pauses if key[0] not in services]:
            del self._pauses[key]

    def clear(self) -> None:
        """Forget all."""
        self._pauses.clear()
