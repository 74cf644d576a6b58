"""A listening socket: connections that wait until somebody takes them.

Not for: what becomes of a connection (``dios.host.network.tcp``).

At most ACCEPT_WAITING_MAX connections wait here, and the system's own backlog holds some more: a flood of
them costs that one listener, and neither memory nor descriptors of the node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import trio

from dios import limits
from dios.host.network.addresses import text_of

_number: Final = itertools.count(1)


class Acceptor:
    """Accepts connections; ``arrived`` is told the number and the peer's address of each.

    ``room`` says whether the node takes one more socket.
    """

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        arrived: Callable[[int, str], None],
        room: Callable[[], bool],
    ) -> None:
        self._socket: Final = sock
        self._arrived: Final = arrived
        self._room: Final = room
        self._waiting: Final[dict[int, trio.socket.SocketType]] = {}
        self._places: Final = trio.Semaphore(limits.ACCEPT_WAITING_MAX)
        self._scope: Final = trio.CancelScope()
        nursery.start_soon(self._run, name="tcp accept")

    @property
    def waiting(self) -> int:
        """How many connections nobody took yet."""
        return len(self._waiting)

    def take(self, number: int) -> trio.socket.SocketType | None:
        """The connection of that number, which is the caller's from now on."""
        sock = self._waiting.pop(number, None)
        if sock is not None:
            self._places.release()
        return sock

    def close(self) -> None:
        """Take no more, and close what waits."""
        self._scope.cancel()
        self._socket.close()
        for number in list(self._waiting):
            sock = self.take(number)
            if sock is not None:
                sock.close()

    async def _run(self) -> None:
        with self._scope:
            while True:
                await self._places.acquire()
                while not self._room():  # noqa: ASYNC110 - much can make room, and seldom must it
                    await trio.sleep(limits.NETWORK_RETRY_MS / 1000)
                sock, peer = await self._accept()
                number = next(_number)
                self._waiting[number] = sock
                self._arrived(number, text_of(peer))

    async def _accept(self) -> tuple[trio.socket.SocketType, tuple[object, ...]]:
        while True:
            try:
                return await self._socket.accept()
            except OSError:
                # The peer went away again, or there are no descriptors just now.
                await trio.sleep(limits.NETWORK_RETRY_MS / 1000)
