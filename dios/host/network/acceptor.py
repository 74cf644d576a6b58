"""A listening socket: accepts connections, which wait until a task takes them.

At most ACCEPT_WAITING_MAX connections wait here, and some more in the system's own backlog. A flood of
connections affects only that listener and uses up neither memory nor descriptors of the node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Final

import trio

from dios import limits
from dios.host.handover import format as form
from dios.host.handover.gate import Gate
from dios.host.network.addresses import text_of

_number = itertools.count(1)


def continue_numbers(first: int) -> None:
    """Number the next connection of this process ``first``, because a predecessor numbered those before."""
    global _number
    _number = itertools.count(first)


def next_number() -> int:
    """Draw a number and return it: all later ones are above it."""
    return next(_number)


class ListeningSocket:
    """An acceptor of connections; ``arrived`` is called with the number and the peer's address of each.

    ``room`` returns True if the node may open one more socket. ``broke`` is called with the exception if an
    internal error ends the acceptor, which is closed then.
    """

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        arrived: Callable[[int, str], None],
        room: Callable[[], bool],
        broke: Callable[[Exception], None],
        gate: Gate | None = None,
        accepted: Iterable[tuple[int, trio.socket.SocketType]] = (),
    ) -> None:
        self._gate: Final = Gate() if gate is None else gate
        self._socket: Final = sock
        self._arrived: Final = arrived
        self._room: Final = room
        self._broke: Final = broke
        self._waiting: Final[dict[int, trio.socket.SocketType]] = {}
        self._places: Final = trio.Semaphore(limits.ACCEPT_WAITING_MAX)
        self._scope: Final = trio.CancelScope()
        for number, waiting in accepted:
            self._waiting[number] = waiting
            self._places.acquire_nowait()
        nursery.start_soon(self._run, name="tcp accept")

    def hand_over(self) -> tuple[int, tuple[form.Accepted, ...]]:
        """Return the descriptor, and describe the waiting connections: a successor continues with them."""
        waiting = tuple(form.Accepted(number, sock.fileno()) for number, sock in self._waiting.items())
        return self._socket.fileno(), waiting

    @property
    def waiting(self) -> int:
        """The number of accepted connections that no task took yet."""
        return len(self._waiting)

    def take(self, number: int) -> trio.socket.SocketType | None:
        """Return the connection of that number, which the caller owns from now on, or None."""
        sock = self._waiting.pop(number, None)
        if sock is not None:
            self._places.release()
        return sock

    def close(self) -> None:
        """Stop accepting, and close the waiting connections."""
        self._scope.cancel()
        self._socket.close()
        for number in list(self._waiting):
            sock = self.take(number)
            if sock is not None:
                sock.close()

    async def _run(self) -> None:
        try:
            await self._accept_all()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this listener alone
            self.close()
            self._broke(error)

    async def _accept_all(self) -> None:
        with self._scope:
            while True:
                await self._places.acquire()
                while not self._room():  # noqa: ASYNC110 - room appears for many reasons, and this is rare
                    await trio.sleep(limits.NETWORK_RETRY_MS / 1000)
                with self._gate.passing() as stopped:
                    sock, peer = await self._accept()
                if stopped.cancelled_caught:
                    self._places.release()
                    await self._gate.wait_open()
                    continue
                number = next(_number)
                self._waiting[number] = sock
                self._arrived(number, text_of(peer))

    async def _accept(self) -> tuple[trio.socket.SocketType, tuple[object, ...]]:
        while True:
            try:
                return await self._socket.accept()
            except OSError:
                # The peer closed the connection again, or descriptors are exhausted at the moment.
                await trio.sleep(limits.NETWORK_RETRY_MS / 1000)
