"""The sockets of all network streams, by object: opening, adopting and closing them.

The core has decided who may have one. Sockets between nodes are in ``dios.host.peers``.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import trio
from msgspec import UNSET
from msgspec.structs import replace

from dios import limits
from dios.core.effects import AdoptConnection, CloseNetwork, OpenNetwork
from dios.core.events import ConnectionArrived, DatagramsDropped, Event, NetworkFailed, NetworkOpened
from dios.errors import Code, DiosError
from dios.host.content.streams import Streams
from dios.host.handover import format as form
from dios.host.handover.gate import Gate
from dios.host.loop.clock import Clock
from dios.host.network.acceptor import ListeningSocket, continue_numbers, next_number
from dios.host.network.addresses import Address, Resolver, network_failure, reachable, text_of
from dios.host.network.socket_pump import SocketBackend, os_error_of
from dios.host.network.tcp import TcpBackend
from dios.host.network.udp import UdpBackend
from dios.ids import ObjectId, Principal
from dios.wire.types import ObjectType

_NOBODY: Final = Principal("")
_OpenSocket: TypeAlias = "SocketBackend | ListeningSocket"


class Sockets:
    """The node's network streams. ``post`` queues an event for the core."""

    def __init__(
        self,
        nursery: trio.Nursery,
        streams: Streams,
        clock: Clock,
        post: Callable[[Event], None],
        gate: Gate,
    ) -> None:
        self._nursery: Final = nursery
        self._gate: Final = gate
        self._streams: Final = streams
        self._clock: Final = clock
        self._post: Final = post
        self._resolver: Final = Resolver()
        # Names in datagrams are resolved apart, so that they keep no new stream waiting.
        self._datagram_resolver: Final = Resolver()
        self._endpoints: Final[dict[ObjectId, _OpenSocket]] = {}
        self._addresses: Final[dict[ObjectId, str]] = {}
        self._opening: Final[dict[ObjectId, trio.CancelScope]] = {}
        self._lingering: Final[dict[SocketBackend, Principal]] = {}
        self._principals: Final[dict[ObjectId, Principal]] = {}
        half = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._most: Final = min(limits.NETWORK_SOCKETS_MAX, half // limits.SOCKET_DESCRIPTORS)

    def __len__(self) -> int:
        accepted = sum(
            listener.waiting for listener in self._endpoints.values() if isinstance(listener, ListeningSocket)
        )
        return len(self._endpoints) + len(self._opening) + len(self._lingering) + accepted

    def _leaves_room(self, principal: Principal) -> bool:
        """Return True if a principal may have one more socket, or one more connection at its listeners."""
        own = sum(holder == principal for holder in self._lingering.values())
        for target in (*self._endpoints, *self._opening):
            if self._principals.get(target, _NOBODY) == principal:
                endpoint = self._endpoints.get(target)
                own += 1 + (endpoint.waiting if isinstance(endpoint, ListeningSocket) else 0)
        return limits.may_take(own, len(self), self._most)

    # -- the successor of this process -----------------------------------------------------------------
    @property
    def unfinished(self) -> bool:
        """True while a socket is being opened or closed, or has something that cannot be handed over."""
        busy = any(backend.busy for backend in self._endpoints.values() if isinstance(backend, SocketBackend))
        return bool(self._opening or self._lingering or busy)

    def hand_over(self) -> tuple[tuple[form.Socket, ...], int]:
        """Describe all sockets for the successor, and return the number of the next accepted connection."""
        sockets: list[form.Socket] = []
        for target, endpoint in self._endpoints.items():
            address = self._addresses.get(target, "the peer")
            if isinstance(endpoint, ListeningSocket):
                fd, accepted = endpoint.hand_over()
                kind = ObjectType.TCP_ACCEPT_STREAM
                described = form.Socket(target, kind, address, fd, accepted=accepted)
            else:
                is_tcp = isinstance(endpoint, TcpBackend)
                kind = ObjectType.TCP_STREAM if is_tcp else ObjectType.UDP_STREAM
                pumps, reported = endpoint.hand_over()
                described = form.Socket(target, kind, address, endpoint.socket.fileno(), pumps, reported)
            sockets.append(replace(described, principal=self._principals.get(target, UNSET)))
        return tuple(sockets), next_number() + 1

    def take_over(self, sockets: Iterable[form.Socket], next_accepted: int) -> None:
        """Continue with the sockets of the predecessor."""
        continue_numbers(next_accepted)
        for described in sockets:
            target, sock = ObjectId(described.object), _taken(described.fd)
            self._principals[target] = Principal(described.principal or "")
            if described.kind is ObjectType.TCP_ACCEPT_STREAM:
                accepted = [(connection.number, _taken(connection.fd)) for connection in described.accepted]
                self._start_listening(target, sock, described.address, accepted)
                continue
            backend = self._create(described.kind, target, sock, described.address)
            ends = self._streams.continue_serving(target, backend, described.pumps)
            backend.take_over(ends, reported=described.reported)

    # -- effects --------------------------------------------------------------------------------------
    def open(self, effect: OpenNetwork) -> None:
        """Start to open a socket."""
        if not self._leaves_room(effect.principal):
            said = (
                f"cannot open a socket: of the node's {self._most} network streams no more are left for "
                "others. Close some."
            )
            self._post(NetworkFailed(self._clock.now(), effect.object, int(Code.EDQUOT), said))
        elif not self._nursery.cancel_scope.cancel_called:
            self._principals[effect.object] = effect.principal
            scope = self._opening[effect.object] = trio.CancelScope()
            self._nursery.start_soon(self._open, effect, scope, name="open a socket")

    def adopt(self, effect: AdoptConnection) -> None:
        """Give an accepted connection to an object."""
        for endpoint in list(self._endpoints.values()):
            sock = endpoint.take(effect.number) if isinstance(endpoint, ListeningSocket) else None
            if sock is not None:
                self._principals[effect.object] = effect.principal
                self._connected(effect.object, sock, "the peer")
                return
        self._failed(effect.object, OSError(0, "the listener was closed"), "the peer")

    def close(self, effect: CloseNetwork) -> None:
        """Close the socket of a deleted object."""
        scope = self._opening.pop(effect.object, None)
        if scope is not None:
            scope.cancel()
        self._addresses.pop(effect.object, None)
        principal = self._principals.pop(effect.object, _NOBODY)
        endpoint = self._endpoints.pop(effect.object, None)
        if isinstance(endpoint, SocketBackend):
            self._lingering[endpoint] = principal
        if endpoint is not None:
            endpoint.close()

    def close_all(self) -> None:
        """Close all sockets, at the node's end."""
        for scope in self._opening.values():
            scope.cancel()
        for endpoint in (*self._endpoints.values(), *self._lingering):
            if isinstance(endpoint, SocketBackend):
                endpoint.abort()
            else:
                endpoint.close()
        self._endpoints.clear()

    # -- opening --------------------------------------------------------------------------------------
    async def _open(self, effect: OpenNetwork, scope: trio.CancelScope) -> None:
        with scope:
            try:
                with trio.move_on_after(limits.NETWORK_CONNECT_MS_MAX / 1000) as patience:
                    if effect.kind is ObjectType.TCP_STREAM:
                        await self._connect(effect)
                    elif effect.kind is ObjectType.UDP_STREAM:
                        await self._bind(effect)
                    else:
                        await self._listen(effect)
                if patience.cancelled_caught:
                    raise TimeoutError(0, "no answer in time")  # noqa: TRY301 - it is reported like the others
            except Exception as error:  # noqa: BLE001 - no address and no peer may end the node
                self._failed(effect.object, os_error_of(error), effect.address)
        self._opening.pop(effect.object, None)

    async def _connect(self, effect: OpenNetwork) -> None:
        failed: OSError | None = None
        places = await self._resolver.resolve(
            effect.address, socket.SOCK_STREAM, effect.principal, passive=False
        )
        if effect.origin:
            places = reachable(effect.address, places)
        # An address that does not answer must leave time for the others.
        timeout_s = limits.NETWORK_CONNECT_MS_MAX / 1000 / max(len(places), 1)
        for place in places:
            sock = trio.socket.socket(place.family, socket.SOCK_STREAM)
            try:
                with trio.fail_after(timeout_s):
                    await sock.connect(place.name)
            except trio.TooSlowError:
                sock.close()
                failed = TimeoutError(0, "no answer in time")
                continue
            except OSError as error:
                sock.close()
                failed = error
                continue
            except BaseException:
                sock.close()
                raise
            self._connected(effect.object, sock, effect.address)
            self._opened(effect.object, text_of(sock.getpeername()))
            return
        raise failed or OSError(0, "no address")

    async def _listen(self, effect: OpenNetwork) -> None:
        places = await self._resolver.resolve(
            effect.address, socket.SOCK_STREAM, effect.principal, passive=True
        )
        sock = _bound(places[0], socket.SOCK_STREAM)
        target = effect.object

        try:
            sock.listen(limits.ACCEPT_BACKLOG)
        except OSError:
            sock.close()
            raise
        self._start_listening(target, sock, effect.address)
        self._opened(target, text_of(sock.getsockname()))

    def _start_listening(
        self,
        target: ObjectId,
        sock: trio.socket.SocketType,
        address: str,
        accepted: Iterable[tuple[int, trio.socket.SocketType]] = (),
    ) -> None:
        def arrived(number: int, peer: str) -> None:
            self._post(ConnectionArrived(self._clock.now(), target, number, peer))

        def broke(error: Exception) -> None:
            self._failed(target, os_error_of(error), address)

        self._addresses[target] = address
        self._endpoints[target] = ListeningSocket(
            sock,
            self._nursery,
            arrived,
            lambda: self._leaves_room(self._principals.get(target, _NOBODY)),
            broke,
            self._gate,
            accepted,
        )

    async def _bind(self, effect: OpenNetwork) -> None:
        places = await self._resolver.resolve(
            effect.address, socket.SOCK_DGRAM, effect.principal, passive=True
        )
        sock = _bound(places[0], socket.SOCK_DGRAM)
        target = effect.object

        self._serve(ObjectType.UDP_STREAM, target, sock, effect.address)
        self._opened(target, text_of(sock.getsockname()))

    def _connected(self, target: ObjectId, sock: trio.socket.SocketType, address: str) -> None:
        self._serve(ObjectType.TCP_STREAM, target, sock, address)

    def _create(
        self, kind: ObjectType, target: ObjectId, sock: trio.socket.SocketType, address: str
    ) -> SocketBackend:
        """Create the backend of a connected or bound socket, and keep it as that of the object."""

        def broke(error: OSError) -> None:
            self._failed(target, error, address)

        def closed() -> None:
            self._lingering.pop(backend, None)

        def dropped(count: int) -> None:
            self._post(DatagramsDropped(self._clock.now(), target, count))

        backend: SocketBackend
        if kind is ObjectType.TCP_STREAM:
            backend = TcpBackend(sock, self._nursery, broke, closed, self._gate)
        else:
            resolver, principal = self._datagram_resolver, self._principals.get(target, _NOBODY)
            backend = UdpBackend(sock, self._nursery, broke, closed, resolver, dropped, self._gate, principal)
        self._addresses[target] = address
        self._endpoints[target] = backend
        return backend

    def _serve(self, kind: ObjectType, target: ObjectId, sock: trio.socket.SocketType, address: str) -> None:
        backend = self._create(kind, target, sock, address)
        try:
            self._streams.serve(target, backend)
        except (DiosError, OSError) as error:
            self._failed(target, OSError(0, str(error)), address)

    def _opened(self, target: ObjectId, address: str) -> None:
        self._opening.pop(target, None)
        self._post(NetworkOpened(self._clock.now(), target, address))

    def _failed(self, target: ObjectId, error: OSError, address: str) -> None:
        self._opening.pop(target, None)
        code, message = network_failure(error, address)
        self._post(NetworkFailed(self._clock.now(), target, int(code), message))


def _taken(number: int) -> trio.socket.SocketType:
    """Return the socket of a predecessor."""
    return trio.socket.from_stdlib_socket(socket.socket(fileno=number))


def _bound(place: Address, kind: socket.SocketKind) -> trio.socket.SocketType:
    # The address is resolved already, so binding does not block.
    sock = socket.socket(place.family, kind)
    try:
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place.name)
    except BaseException:
        sock.close()
        raise
    return trio.socket.from_stdlib_socket(sock)
