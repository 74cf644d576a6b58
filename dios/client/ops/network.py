"""Network streams: connections, acceptors and datagrams, and the calls that create them.

The node has the sockets; a program reads and writes rings in shared memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, Generic, TypeVar, cast

from dios.client.ops.attributes import Handle, NodeBase
from dios.client.ops.handles import Data, nanoseconds
from dios.client.ops.nodes import refs_of
from dios.client.ops.streams import StreamOps
from dios.client.session import Operation, expect
from dios.errors import (
    ClosedError,
    DiosError,
    EndOfStreamError,
    InvalidError,
    NotPermittedError,
    TimeLimitError,
    WouldBlockError,
)
from dios.limits import DATAGRAM_BYTES_MAX
from dios.wire import messages
from dios.wire.types import Flag, Mode, NameKind, ObjectType, RequestEnd

R = TypeVar("R", bound=Handle)
N = TypeVar("N", bound=Handle)
A = TypeVar("A", bound=Handle)
U = TypeVar("U", bound=Handle)

NETWORK_NAME: Final = bytes(31) + b"\x03"
_ADDRESS_BYTES_MAX: Final = 255


class TcpOps(StreamOps):
    """A TCP connection: bytes in both directions."""

    __slots__ = ()

    def send_eof_op(self) -> Operation[None]:
        """Send the end of the stream: the peer reads everything sent, then the end. Reading still works."""
        writer = yield from self.writer_op()
        writer.close()
        self._node.ends.discard(writer)

    def end_of(self, error: EndOfStreamError) -> DiosError:
        """Return the reason for the end of the stream: the peer's own end, or a broken connection."""
        if not self._closed and self.zombie:
            return ClosedError("the connection broke; some data may be missing", fingerprint=self.fingerprint)
        return error


class UdpOps(StreamOps):
    """A UDP socket: datagrams, each with the address of its peer."""

    __slots__ = ()

    @property
    def dropped(self) -> int:
        """Return the number of datagrams that did not fit the ring, or could not be sent."""
        return self.dirty


def datagram(data: Data, address: str) -> bytes:
    """Return a datagram for ``address`` as a message of the ring; InvalidError if it is too long."""
    encoded = address.encode()
    view = memoryview(data).cast("B")
    if len(encoded) > _ADDRESS_BYTES_MAX or view.nbytes > DATAGRAM_BYTES_MAX:
        raise InvalidError(f"no datagram has {view.nbytes} bytes, or an address of {len(encoded)}")
    return bytes((len(encoded),)) + encoded + view


def taken_apart(message: bytes) -> tuple[bytes, str]:
    """Return the bytes of a datagram and the address of its peer."""
    end = 1 + message[0]
    return message[end:], message[1:end].decode()


class AcceptorOps(Handle, Generic[N]):
    """A listening socket: a stream of connections."""

    __slots__ = ()

    def accept_op(self, timeout: float | None = None) -> Operation[N]:
        """Wait for the next connection and return it; TimeLimitError after ``timeout`` seconds.

        Each connection goes to one of the waiting tasks.
        """
        if timeout is None:
            return self._taken((yield messages.ReadOnce(self._info.ref)))
        deadline = time.monotonic() + timeout
        while True:
            left = nanoseconds(max(0.0, deadline - time.monotonic()))
            ready = expect(messages.Selected, (yield messages.Select((self._info.ref,), Mode.READ, left)))
            if ready.index < 0:
                raise TimeLimitError("nobody connected in time", call="accept", fingerprint=self.fingerprint)
            try:
                return self._taken((yield messages.ReadOnce(self._info.ref, flags=int(Flag.NON_BLOCKING))))
            except WouldBlockError:
                continue  # another task was faster

    def _taken(self, answer: tuple[messages.AnyResult, tuple[int, ...]]) -> N:
        accepted = expect(messages.References, answer)
        return cast("N", self._node.handle(accepted.references[0]))


class NetworkOps(NodeBase, Generic[R, N, A, U]):
    """The calls that create network streams; the type variables are the client's classes of references,
    connections, acceptors and datagrams.
    """

    _network: Handle | None = None

    def network_op(self, origins: Iterable[str] = ()) -> Operation[R]:
        """Return the node's NETWORK object, for its own user and root.

        A task that has it as an input, with the right to write, may create network streams. With ``origins``
        such as "https://api.example.org", return a new NETWORK object that permits connections to these
        alone, at public addresses; "=ADDRESS" after an origin names the address of its host. Raises
        NotPermittedError without the right, InvalidError for a text that is no origin.
        """
        limited_to = tuple(origins)
        if limited_to:
            if not self.ambient:
                yield from self.network_op()
            call = messages.Create(
                ObjectType.NETWORK, name_kind=NameKind.ANONYMOUS, address=" ".join(limited_to)
            )
            created = expect(messages.Created, (yield call))
            return cast("R", self.handle(created.reference, created.name))
        if self._network is None:
            answer = expect(messages.References, (yield messages.Lookup(NETWORK_NAME)))
            if not answer.references:
                raise NotPermittedError(
                    "the network belongs to the node's own user; a task gets it as an input", call="network"
                )
            self._network = self.handle(answer.references[0])
        return cast("R", self._network)

    def connect_tcp_op(
        self,
        address: str,
        *,
        groups: Iterable[Handle] = (),
        ring_bytes: int = 0,
        network: Handle | None = None,
    ) -> Operation[N]:
        """Connect to "HOST:PORT" and return the open connection; raises UnreachableError.

        ``network`` is a NETWORK object that permits the connection, if the task has no right to others.
        """
        return cast("N", (yield from self._open(ObjectType.TCP_STREAM, address, groups, ring_bytes, network)))

    def record_request_op(
        self,
        network: Handle,
        origin: int,
        method: str,
        end: RequestEnd,
        *,
        status: int = 0,
        sent: int = 0,
        received: int = 0,
    ) -> Operation[None]:
        """Record the end of an HTTP request in the audit log, with the numbers of bytes.

        ``network`` is limited to origins, and ``origin`` the place of the request's origin among them.
        """
        (ref,) = refs_of((network,))
        call = messages.RecordRequest(ref, origin, method, end, status, sent, received)
        expect(messages.Done, (yield call))

    def listen_tcp_op(
        self, address: str, *, groups: Iterable[Handle] = (), ring_bytes: int = 0
    ) -> Operation[A]:
        """Listen on "HOST:PORT"; port 0 is any free port, which ``address`` of the result has.

        ``ring_bytes`` is the size of each connection's two rings; 0 is the default.
        """
        return cast("A", (yield from self._open(ObjectType.TCP_ACCEPT_STREAM, address, groups, ring_bytes)))

    def bind_udp_op(
        self, address: str, *, groups: Iterable[Handle] = (), ring_bytes: int = 0
    ) -> Operation[U]:
        """Bind a UDP socket to "HOST:PORT"; port 0 is any free port."""
        return cast("U", (yield from self._open(ObjectType.UDP_STREAM, address, groups, ring_bytes)))

    def _open(
        self,
        kind: ObjectType,
        address: str,
        groups: Iterable[Handle],
        ring_bytes: int,
        network: Handle | None = None,
    ) -> Operation[Handle]:
        if not self.ambient and network is None:
            # A user's process may use the network without an input.
            yield from self.network_op()
        refs = refs_of(groups)
        naming = NameKind.RANDOM if refs else NameKind.ANONYMOUS
        by = 0 if network is None else refs_of((network,))[0]
        call = messages.Create(kind, refs, naming, size=ring_bytes, address=address, network=by)
        created = expect(messages.Created, (yield call))
        return self.handle(created.reference, created.name)
