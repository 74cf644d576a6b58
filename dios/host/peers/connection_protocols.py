"""The interface of connections to other nodes. Any transport that offers it can be used.

``dios.transport.tcp.tls`` makes the connections.
"""

from __future__ import annotations

import socket
from typing import NamedTuple, Protocol

from dios.ids import NodeId


class RemoteIdentity(Protocol):
    """The identity of the node at the other end, taken from its certificate."""

    @property
    def node(self) -> NodeId:
        """The node's id."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def key(self) -> bytes:
        """The SHA-256 of the node's public key."""
        ...

    @property
    def roles(self) -> str:
        """The roles of the node, as in its certificate."""
        ...


class PeerConnection(Protocol):
    """One authenticated connection to another node."""

    @property
    def peer(self) -> RemoteIdentity:
        """The identity of the other node."""

    @property
    def queued_bytes(self) -> int:
        """The number of bytes that wait to be sent."""

    @property
    def round_trip_us(self) -> int:
        """An estimate of the time to the other node and back, in microseconds; 0 if it is unknown."""

    async def receive(self) -> list[bytes]:
        """Wait for frames and return their bodies, or [] at the end. Raise ProtocolError."""

    def send_nowait(self, frame: bytes, /, *, urgent: bool = False) -> None:
        """Send one frame with its length prefix; an urgent one overtakes the others that are queued.

        Raise WouldBlockError if too many bytes are queued.
        """

    def stay(self) -> None:
        """Never detach this connection: ``receive`` then returns all frames that are here."""

    async def flush(self) -> None:
        """Wait until all queued bytes are sent or the peer is gone."""

    def close(self) -> None:
        """Close the connection at once."""

    def detach(self) -> socket.socket:
        """Return the socket, in blocking mode with a timeout. Raise ProtocolError if frames are queued."""


class PeerNetwork(Protocol):
    """A dialler of other nodes."""

    async def dial(self, address: str, *, expect: NodeId | None = None) -> PeerConnection:
        """Connect to the node ``expect`` at "HOST:PORT". Raise DiosError, in bounded time."""


class NodeDescription(NamedTuple):
    """The description of this node that other nodes receive."""

    node: NodeId
    epoch: int
    name: str
    rack: str
    address: str
