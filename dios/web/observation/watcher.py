"""Reads the cluster again and again while somebody looks, and keeps the recent past.

The pause after a reading grows with its length, so that reading takes at most ``BUSY_SHARE`` of the time,
however many viewers there are, up to ``PAUSE_S_MAX``. Without viewers nothing is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dios.client.ops.status import Status
from dios.client.sync.node import Node
from dios.errors import DiosError
from dios.web.observation.cluster_view import ClusterView, read_view, rows, with_unseen

PERIOD_S_MIN: Final = 0.5
BUSY_SHARE: Final = 0.03
HISTORY_MAX: Final = 1_200
PAUSE_S_MAX: Final = 7.0
"""The longest pause, so that a page on a busy machine is not out of date for long."""
_SILENT_PAUSE_S: Final = 5.0
"""The longest pause while a node does not answer: a reading then waits for it most of its time."""
_RETRY_S: Final = 2.0

_log: Final = logging.getLogger(__name__)


class PastShare(NamedTuple):
    """The account of a principal at an earlier moment."""

    at_s: float
    share: float
    commitment: float
    credit: float


class Watcher:
    """The newest view of a cluster, and the shares of the last minutes.

    ``connect`` opens a session with the node; it is called again after the session was lost.
    """

    def __init__(self, connect: Callable[[], Node]) -> None:
        self._connect: Final = connect
        self._viewers = 0
        self._changed: Final = threading.Condition()
        self._node: Node | None = None
        self._closing = False
        self.view = ClusterView(problems=("The cluster has not been read yet.",))
        self.version = 0
        self.shares: Final[dict[str, deque[PastShare]]] = {}
        self._thread: Final = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def add_viewer(self) -> None:
        """Read the cluster until this viewer is removed."""
        with self._changed:
            self._viewers += 1
            self._changed.notify_all()

    def remove_viewer(self) -> None:
        """Stop if this was the last viewer."""
        with self._changed:
            self._viewers -= 1

    def wait_for(self, version: int, timeout_s: float) -> bool:
        """Wait until the view is newer than ``version``; return False if the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.version > version, timeout_s)

    def close(self) -> None:
        """End the thread and the session."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._viewers or self._closing)
                if self._closing:
                    break
            began = time.monotonic()
            self._read()
            took = time.monotonic() - began
            pause = pause_after(took, PERIOD_S_MIN, _SILENT_PAUSE_S if self.view.incomplete else PAUSE_S_MAX)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)
        self._drop()

    def _read(self) -> None:
        try:
            if self._node is None:
                self._node = self._connect()
            view = with_unseen(read_view(self._node), self.view)
        except (DiosError, OSError) as error:
            self._drop()
            old = self.view
            why = f"The node does not answer, so that this is out of date: {error}"
            view = ClusterView(old.taken_s, old.nodes, old.tasks, old.status, old.shares, (why,))
            time.sleep(_RETRY_S)
        self._note_shares(view)
        with self._changed:
            self.view, self.version = view, self.version + 1
            self._changed.notify_all()

    def _note_shares(self, view: ClusterView) -> None:
        for row in rows(view.shares, "principals"):
            past = self.shares.setdefault(str(row.get("principal")), deque(maxlen=HISTORY_MAX))
            values = [row.get(key) for key in ("share", "commitment", "credit")]
            numbers = [float(value) if isinstance(value, int | float) else 0.0 for value in values]
            if not past or past[-1].at_s < view.taken_s:
                past.append(PastShare(view.taken_s, *numbers))

    def _drop(self) -> None:
        if self._node is not None:
            try:
                self._node.close()
            except (DiosError, OSError) as error:
                _log.debug("the session with the node was lost", extra={"why": str(error)})
            self._node = None


def pause_after(took_s: float, least_s: float, most_s: float = PAUSE_S_MAX) -> float:
    """Return the pause after a reading: so long that reading takes BUSY_SHARE of the time, within bounds."""
    return min(max(least_s, took_s / BUSY_SHARE - took_s), max(least_s, most_s))


def find_task(view: ClusterView, mark: str) -> Status | None:
    """Return the task with this fingerprint, if the view has it."""
    return next((task for task in view.tasks if task.fingerprint == mark), None)
