"""One other node: where it is, and the connection with it while there is one.

Not for: making connections (``dios.host.peers.links``), or what is said over them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from dios import limits
from dios.errors import ProtocolError
from dios.host.peers.bulk import Allowance, Arrived, DataReceiver
from dios.host.peers.line import Line
from dios.host.peers.sending import Sending
from dios.ids import NodeId


class Standing:
    """A control connection that stands, and the data connections beside it.

    ``ours`` says that this node made it; ``fault`` why it must end, if it must.
    """

    def __init__(self, line: Line, epoch: int, sending: Sending, *, ours: bool) -> None:
        self.line = line
        self.epoch = epoch
        self.ours = ours
        self.sending = sending
        self.fault: Exception | None = None
        self.allowance = Allowance()
        self.receivers: set[DataReceiver] = set()
        self.ends: set[Callable[[], None]] = set()
        """What else ends with it."""
        self.closed = False
        self._quiet = trio.Event()
        self._quiet.set()

    def receive_on(
        self,
        sock: socket.socket,
        arrived: Callable[[Arrived], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        """Take transfers from this socket; raises ProtocolError over the number of data connections."""
        if len(self.receivers) >= limits.DATA_CONNECTIONS:
            sock.close()
            raise ProtocolError(f"over {limits.DATA_CONNECTIONS} data connections from one node")

        def over(reason: Exception | None) -> None:
            self.receivers.discard(receiver)
            if not self.receivers:
                self._quiet.set()
            ended(reason)

        self._quiet = trio.Event()
        receiver = DataReceiver(sock, self.allowance, arrived=arrived, ended=over)
        self.receivers.add(receiver)

    def end(self, fault: Exception | None = None) -> None:
        """End it; whoever serves it finds out by itself."""
        if self.closed:
            return
        self.closed = True
        self.fault = fault
        self.line.close()
        self.sending.close()
        self.allowance.close()
        for receiver in self.receivers:
            receiver.close()
        for end in list(self.ends):
            end()

    async def wait_ended(self) -> None:
        """Wait until nothing of it is under way any more, after ``end``."""
        await self.sending.wait_empty()
        await self._quiet.wait()


class Link:
    """What this node knows of another one."""

    def __init__(self, node: NodeId, name: str, address: str) -> None:
        self.node = node
        self.name = name
        self.address = address
        self.standing: Standing | None = None
        self.dialling: trio.CancelScope | None = None
        """While a connection is being made."""
        self.keeping: trio.CancelScope | None = None
        """While somebody looks after it."""
        self.lost = trio.Event()
        self.trouble = ""
        """Why it could not be reached last."""
        self.told: int | None = None
        """The epoch with which the core was told that it is up; None when it was told that it is down."""
