"""The data that single object types have in addition to the common record (Figure 4.2).

A blob or a group has none; the data of a task is in ``dios.core.model.records``.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from dios.ids import TaskId
from dios.wire.messages import Failure
from dios.wire.types import Mode, Permission

_RIGHTS: Final = ((Mode.READ, Permission.READ), (Mode.WRITE, Permission.WRITE))


class StreamState:
    """The two ends of a SHMEM_STREAM: the holder of each, and the ends that are gone for good.

    ``able`` is the number of references with the right to attach to each end. ``attached`` are the ends that
    a task has attached to, also if they are gone since.
    """

    __slots__ = ("able", "attached", "gone", "holder", "ring_bytes")

    def __init__(self, ring_bytes: int) -> None:
        self.ring_bytes: Final = ring_bytes
        self.holder: dict[Mode, tuple[TaskId, int]] = {}  # mode -> task and reference
        self.gone: set[Mode] = set()
        self.attached: set[Mode] = set()
        self.able = {Mode.READ: 0, Mode.WRITE: 0}

    def count(self, permissions: Permission, change: int) -> None:
        """Count a reference with these permissions, or with a ``change`` of -1 no longer."""
        for mode, right in _RIGHTS:
            if permissions & right:
                self.able[mode] += change


class TimerState:
    """The moment at which the timer becomes ready; 0 is the clock itself, which is always ready."""

    __slots__ = ("due_ns",)

    def __init__(self, due_ns: int) -> None:
        self.due_ns: Final = due_ns


class ConsoleState:
    """The number of bytes that ever arrived, and a flag that no more can."""

    __slots__ = ("arrived", "closed", "task")

    def __init__(self, task: TaskId) -> None:
        self.task: Final = task
        self.arrived = 0
        self.closed = False


class SocketState(StreamState):
    """A bidirectional stream with a socket behind it: its two ends are the ends of two rings.

    ``failure`` is the reason for which the socket could not be opened.
    """

    __slots__ = ("failure", "opened")

    def __init__(self, ring_bytes: int, *, opened: bool = False) -> None:
        super().__init__(ring_bytes)
        self.opened = opened
        self.failure: Failure | None = None


class AcceptState:
    """Connections that no task has taken yet: the host's number of each and its peer's address."""

    __slots__ = ("arrived", "failure", "opened", "ring_bytes")

    def __init__(self, ring_bytes: int) -> None:
        self.ring_bytes: Final = ring_bytes
        self.arrived: deque[tuple[int, str]] = deque()
        self.opened = False
        self.failure: Failure | None = None


class LimitedNetwork:
    """The origins that a NETWORK object is limited to, and the addresses to connect to, in the same order."""

    __slots__ = ("destinations", "origins")

    def __init__(self, origins: tuple[str, ...], destinations: tuple[str, ...]) -> None:
        self.origins: Final = origins
        self.destinations: Final = destinations


NetworkState: TypeAlias = SocketState | AcceptState
TypeState: TypeAlias = StreamState | TimerState | ConsoleState | AcceptState | LimitedNetwork | None
