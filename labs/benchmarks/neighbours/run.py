"""The course of a run: the kinds take turns next to the innocent client, and then they work all together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from dios.errors import DiosError
from labs.benchmarks.neighbours.clients import OTHER_UID, may_change_user, start
from labs.benchmarks.neighbours.innocent import Innocent
from labs.benchmarks.neighbours.kinds import KINDS
from labs.benchmarks.neighbours.results import NONE, TOGETHER, KindResult
from labs.benchmarks.nodes import node_in, workspace

CLIENTS: Final = 3
"""The number of clients of each kind."""

LIMITS: Final = "tasks=64 objects=100000 volatile=1GiB bytes=8GiB"
"""The limits of each user."""

_WARM_S: Final = 1.0
_CALM_S: Final = 30.0
_ENDED: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
_COUNTS: Final = ("sessions", "waiting", "buffers")


class NeighboursRun:
    """A run; each kind gets a node of its own. ``troubles`` are the findings."""

    def __init__(self, seconds: float, say: Callable[[str], object]) -> None:
        self.troubles: Final[list[str]] = []
        self._seconds: Final = seconds
        self._say: Final = say
        self._rows: Final[list[KindResult]] = []

    def go(self, kinds: Collection[str]) -> list[KindResult]:
        """Measure without a neighbour, with each kind, with all kinds together, and without one again."""
        self._measure(NONE, ())
        for kind in kinds:
            self._measure(kind, [kind] * CLIENTS)
        self._measure(TOGETHER, kinds)
        self._measure(NONE, ())
        return self._rows

    def _measure(self, name: str, kinds: Collection[str]) -> None:
        settings: dict[str, str] = {
            "pool_size": "2",
            "accept_weaker_sandbox": "yes",
            "principal_limits": LIMITS,
        }
        if may_change_user():
            settings["allowed_uids"] = str(OTHER_UID)
        with workspace() as folder:
            folder.chmod(0o711)
            socket = folder / "open.sock"
            settings["socket"] = str(socket)
            with node_in(folder, None, **settings):
                try:
                    row = self._next_to(name, kinds, socket)
                except (AssertionError, DiosError) as error:
                    self.troubles.append(f"{name}: {error}")
                else:
                    self._rows.append(row)
                    self._say(row.line())

    def _next_to(self, name: str, kinds: Collection[str], socket: Path) -> KindResult:
        innocent = Innocent(socket)
        innocent.work(_WARM_S)
        before = _state(innocent)
        pids = [start(kind, socket) for kind in kinds]
        try:
            time.sleep(_WARM_S)
            times = innocent.work(self._seconds)
            ended = sum(os.waitid(os.P_PID, pid, _ENDED) is not None for pid in pids)
            if ended:
                self.troubles.append(f"{name}: {ended} neighbours ended by themselves")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for pid in pids:
                os.waitpid(pid, 0)
        load = os.getloadavg()[0]
        deadline = time.monotonic() + _CALM_S
        while (state := _state(innocent)) != before and time.monotonic() < deadline:
            time.sleep(0.1)
        self.troubles.extend(
            f"{name}: {count} {kind} instead of {before[kind]} {_CALM_S:g} s after the neighbours were killed"
            for kind, count in state.items()
            if count != before[kind]
        )
        innocent.close()
        return KindResult.of(name, times, load)


def _state(innocent: Innocent) -> dict[str, int]:
    counts = innocent.counts()
    return {name: counts[name] for name in _COUNTS}


def chosen(only: str) -> list[str]:
    """Return the kinds of a comma-separated list, or all kinds."""
    names = [name for name in only.split(",") if name] or list(KINDS)
    unknown = sorted(set(names) - set(KINDS))
    if unknown:
        raise SystemExit(f"there is no kind called {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return names
