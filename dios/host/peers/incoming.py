"""The requests of one node that wait for their turn while its other messages are processed at once.

A node under load has more requests than one turn can do. Gossip, answers and reports of progress arrive on
the same connection and must not wait behind them: a node whose gossip waits is taken for dead.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.wire import dcp


class WaitingRequest(NamedTuple):
    """A request, the bytes inside its frame, and the size of the frame."""

    asked: dcp.Ask
    inline: bytes | None
    frame_bytes: int


class IncomingQueue:
    """The requests of one connection, in the order of their arrival.

    Each connection has a queue of its own and takes turns with the others, so that no node delays the
    requests of another one. Above ``INCOMING_BYTES_MAX`` the connection is not read.
    """

    def __init__(self) -> None:
        self._waiting: Final[deque[WaitingRequest]] = deque()
        self._numbers: Final[set[int]] = set()
        self._bytes = 0
        self._room = trio.Event()
        self.is_served = False
        """True while a task takes requests from this queue."""

    def __len__(self) -> int:
        return len(self._waiting)

    def has(self, number: int) -> bool:
        """Return True if a request with this number waits."""
        return number in self._numbers

    def put(self, asked: dcp.Ask, inline: bytes | None, frame_bytes: int) -> None:
        """Append a request."""
        self._waiting.append(WaitingRequest(asked, inline, frame_bytes))
        self._numbers.add(asked.number)
        self._bytes += frame_bytes + limits.INCOMING_ENTRY_BYTES

    def take(self) -> WaitingRequest:
        """Remove and return the request that has waited longest."""
        taken = self._waiting.popleft()
        self._numbers.discard(taken.asked.number)
        self._bytes -= taken.frame_bytes + limits.INCOMING_ENTRY_BYTES
        if self._bytes <= limits.INCOMING_BYTES_MAX:
            self._wake()
        return taken

    def clear(self) -> None:
        """Drop all requests, because the connection has ended."""
        self._waiting.clear()
        self._numbers.clear()
        self._bytes = 0
        self._wake()

    def _wake(self) -> None:
        self._room.set()

    async def wait_for_room(self) -> None:
        """Wait while too many bytes wait."""
        while self._bytes > limits.INCOMING_BYTES_MAX:
            self._room = trio.Event()
            await self._room.wait()
