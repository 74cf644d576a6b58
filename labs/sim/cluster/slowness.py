"""Slow nodes and slow links: everything takes its time, and nothing is lost.

A slow node handles one input at a time. As in the real host, new requests of other nodes wait behind each
other and the calls of tasks, while gossip, answers and timers overtake them; a repeat of a request that waits
is answered at once. A slow link carries one message at a time, control messages first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from dios import limits
from dios.ids import NodeId
from dios.wire import dcp, messages
from labs.sim.event_queue import MS, US, EventQueue


class Slowness(Struct, frozen=True):
    """The time that a node needs for one input, and a link for one message: least and most nanoseconds."""

    work_ns: tuple[int, int] = (1 * MS, 20 * MS)
    control_ns: tuple[int, int] = (50 * US, 500 * US)
    frame_ns: tuple[int, int] = (100 * US, 4 * MS)
    delay_ns: tuple[int, int] = (5 * MS, 150 * MS)
    tasks_max: int = 6


def random_slowness(rng: Random) -> Slowness:
    """Return the slowness of one node and of the links to it."""
    most = rng.choice((2, 10, 40, 90)) * MS
    return Slowness((most // 10, most), delay_ns=(1 * MS, rng.choice((5, 60, 150)) * MS))


def is_control(message: dcp.Message) -> bool:
    """Return True for the messages that overtake others on a connection, as in the real host."""
    if isinstance(message, dcp.PeerReply):
        return isinstance(message.result, dcp.Working | messages.Done | messages.Failure)
    return isinstance(message, dcp.Gossip | dcp.Leased)


class SlowServer:
    """Serves one action after the other, each for a time of its own; urgent ones come before the others."""

    def __init__(self, queue: EventQueue, rng: Random) -> None:
        self._queue: Final = queue
        self._rng: Final = rng
        self._urgent: Final[deque[tuple[Callable[[], None], tuple[int, int]]]] = deque()
        self._others: Final[deque[tuple[Callable[[], None], tuple[int, int]]]] = deque()
        self._urgent_run = 0
        self._is_busy = False
        self.longest = 0
        """The largest number of actions that have waited at the same time."""

    def put(self, action: Callable[[], None], span_ns: tuple[int, int], *, urgent: bool) -> None:
        """Append an action; it occupies the server for a random time of ``span_ns`` after it has run."""
        (self._urgent if urgent else self._others).append((action, span_ns))
        self.longest = max(self.longest, len(self._urgent) + len(self._others))
        if not self._is_busy:
            self._is_busy = True
            self._queue.after(0, self._serve)

    def clear(self) -> None:
        """Drop every action that waits."""
        self._urgent.clear()
        self._others.clear()

    def _serve(self) -> None:
        is_others_turn = self._others and self._urgent_run >= limits.DCP_CONTROL_RUN_MAX
        if self._urgent and not is_others_turn:
            self._urgent_run += 1
            action, span_ns = self._urgent.popleft()
        elif self._others:
            self._urgent_run = 0
            action, span_ns = self._others.popleft()
        else:
            self._is_busy = False
            return
        action()
        self._queue.after(self._rng.randint(*span_ns), self._serve)


class SlowNode:
    """The inputs of a slow node that wait, and the numbers of the requests among them."""

    def __init__(self, slowness: Slowness, queue: EventQueue, rng: Random) -> None:
        self.slowness: Final = slowness
        self.server: Final = SlowServer(queue, rng)
        self.requests: Final[set[tuple[NodeId, int]]] = set()

    def put(self, action: Callable[[], None], *, urgent: bool) -> None:
        """Append an input."""
        span_ns = self.slowness.control_ns if urgent else self.slowness.work_ns
        self.server.put(action, span_ns, urgent=urgent)

    def clear(self) -> None:
        """Drop every input, because the node has stopped."""
        self.server.clear()
        self.requests.clear()
