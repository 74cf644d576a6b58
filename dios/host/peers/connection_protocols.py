"""What the host asks of connections to other nodes, so that any transport that can do this will serve.

Not for: making them; ``dios.transport.tcp.tls`` does.
"""

from __future__ import annotations

import socket
from typing import NamedTuple, Protocol

from dios.ids import NodeId


class Far(Protocol):
    """Who is at the other end, as its certificate says."""

    @property
    def node(self) -> NodeId:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...


class Line(Protocol):
    """One authenticated connection to another node."""

    @property
    def peer(self) -> Far:
        """Who is at the other end."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the other end to read."""
        ...

    async def receive(self) -> list[bytes]:
        """Wait for frames and return their bodies; [] at the end. Raises ProtocolError."""
        ...

    def send_nowait(self, frame: bytes, /) -> None:
        """Send one frame, length included; raises WouldBlockError when too much waits already."""
        ...

    async def flush(self) -> None:
        """Wait until what was queued is sent, or the peer is gone."""
        ...

    def close(self) -> None:
        """Close at once."""
        ...

    def detach(self) -> socket.socket:
        """Give the connection away, blocking with a time limit; ProtocolError if frames are underway."""
        ...


class Network(Protocol):
    """What dials other nodes."""

    async def dial(self, address: str, *, expect: NodeId | None = None) -> Line:
        """Connect to the node ``expect`` at "HOST:PORT"; raises DiosError, in bounded time."""
        ...


class Myself(NamedTuple):
    """What this node says of itself to others."""

    node: NodeId
    epoch: int
    name: str
    rack: str
    address: str
