"""Addresses of network streams: resolving, formatting, and the errors of their sockets.

Names are resolved in a few threads of their own, so that a slow name server delays no other work.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias, cast

import trio

from dios import limits
from dios.errors import Code
from dios.host.loop.shared_places import SharedPlaces
from dios.ids import Principal
from dios.wire.addresses import join_address, listen_advice, split_address
from dios.wire.origins import is_local, literal_address, may_be_reached

SocketName: TypeAlias = "Sequence[object]"


class Address(NamedTuple):
    """The address of a socket: its family, and its name as the system calls use it."""

    family: socket.AddressFamily
    name: tuple[str | int | bytes, ...]


class NoAddressError(OSError):
    """A host name without an address."""


_FEW: Final = limits.NETWORK_RESOLVERS_MAX
_NO_WAY: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""The errors with which the kernel says that it has no way to an address. Its own addresses have one."""

_CODES: Final[dict[type[OSError], Code]] = {
    TimeoutError: Code.ETIMEDOUT,
    PermissionError: Code.EPERM,
}


class _Share:
    """The places of a principal, as ``trio.to_thread`` takes and releases them: when a thread has ended."""

    def __init__(self, places: SharedPlaces, principal: Principal) -> None:
        self._places: Final = places
        self._holders: Final = (principal,)

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a place."""
        del borrower
        await self._places.acquire(self._holders)

    def release_on_behalf_of(self, borrower: object) -> None:
        """Give the place back."""
        del borrower
        self._places.release(self._holders)


class Resolver:
    """A resolver of "HOST:PORT". Principals share its threads."""

    def __init__(self) -> None:
        self._places: Final = SharedPlaces(_FEW)

    async def resolve(
        self, text: str, kind: socket.SocketKind, principal: Principal, *, passive: bool
    ) -> list[Address]:
        """Return at most NETWORK_ADDRESSES_MAX addresses, best first.

        Raise OSError if the name has none, InvalidError for a text that is not an address.
        """
        host, port = split_address(text)
        flags = socket.AI_PASSIVE if passive else 0

        def find(more: int) -> list[Address]:
            infos = socket.getaddrinfo(host, port, type=kind, flags=flags | more)
            return [Address(family, name) for family, _, _, _, name in infos]

        try:
            try:
                return find(socket.AI_NUMERICHOST)
            except socket.gaierror:
                addresses = await trio.to_thread.run_sync(
                    find,
                    0,
                    limiter=cast("trio.CapacityLimiter", _Share(self._places, principal)),
                    abandon_on_cancel=True,
                )
                return addresses[: limits.NETWORK_ADDRESSES_MAX]
        except (socket.gaierror, UnicodeError) as error:
            why = error.strerror if isinstance(error, socket.gaierror) else "it is not a valid host name"
            raise NoAddressError(f"{host!r} has no address: {why}") from None


def reachable(text: str, places: Sequence[Address]) -> list[Address]:
    """Return the addresses that the host of an origin may have. Raise PermissionError if there is none.

    The owner of a name could also choose a public address of this machine, at which it answers itself more
    than it answers others. An address is left out if it is not known to be another machine's; raise OSError
    with the reason if there is no other.
    """
    host, _ = split_address(text)
    usable = [place for place in places if may_be_reached(host, str(place.name[0]))]
    if not is_local(host) and literal_address(host) is None:
        usable = _of_other_machines(usable)
    if places and not usable:
        first = str(places[0].name[0])
        raise PermissionError(
            0,
            f"the name has the address {first}, which is not public, or is this machine's. If it is the right"
            f" one, name it with the origin: https://{host}={first}",
        )
    return usable


def _of_other_machines(places: Sequence[Address]) -> list[Address]:
    others: list[Address] = []
    unknown: OSError | None = None
    for place in places:
        try:
            if not is_of_this_machine(place):
                others.append(place)
        except OSError as error:
            unknown = error
    if unknown is not None and not others:
        raise unknown
    return others


def is_of_this_machine(place: Address) -> bool:
    """Return True if the kernel would send to an address from this address itself. Nothing is sent.

    Raise OSError if that is not known at the moment.
    """
    try:
        with socket.socket(place.family, socket.SOCK_DGRAM) as probe:
            probe.connect(place.name)
            return bool(probe.getsockname()[0] == place.name[0])
    except OSError as error:
        if error.errno in _NO_WAY:
            return False
        raise


def text_of(name: SocketName) -> str:
    """Format a socket's name as "HOST:PORT"."""
    return join_address(str(name[0]), int(str(name[1])))


def network_failure(error: OSError, address: str) -> tuple[Code, str]:
    """Return the code and message for a socket that could not be opened, or failed."""
    why = os.strerror(error.errno) if error.errno else error.strerror or str(error)
    if isinstance(error, NoAddressError):
        return Code.EHOSTUNREACH, str(error)
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code, f"{address}: {why}"
    if error.errno == errno.EADDRINUSE:
        return Code.EBUSY, f"{address}: {why}. {listen_advice(error)} Port 0 is any free one."
    if error.errno == errno.EADDRNOTAVAIL:
        return Code.EHOSTUNREACH, f"{address}: {why}. {listen_advice(error)}"
    return Code.EHOSTUNREACH, f"{address}: {why}"
