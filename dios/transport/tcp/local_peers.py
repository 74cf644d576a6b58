"""Connections on a loopback address that only some users of this machine may make.

Every user of a machine can connect to a loopback address, and listen at another port of it. A browser sends a
cookie to all ports of a host. So a secret of HTTP alone does not keep the users of one machine apart: the
listener asks the kernel for the owner of each connection.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)

# A closed socket remains for a while, without its inode, and with root as its owner.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI")
_OWNER: Final = struct.Struct("=II")
_OWNER_OFFSET: Final = 64  # of uid and inode in struct inet_diag_msg
_NO_COOKIE: Final = struct.pack("=III", 0, 2**32 - 1, 2**32 - 1)  # after the interface, 0 for any
_ANY: Final = 2**32 - 1  # state of the socket
_ADDRESS_BYTES: Final = 16
_ANSWER_BYTES_MAX: Final = 4096
_ANSWER_S: Final = 1

_TABLES: Final[dict[int, str]] = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}
_WORD_BYTES: Final = 4
_UID, _INODE = 7, 9  # columns of the tables
_REPORTED_MAX: Final = 64


def own_users() -> frozenset[int]:
    """Return the users who may use a server of this process: its own user, and root."""
    return frozenset({0, os.geteuid()})


def random_loopback_address() -> str:
    """Return a random address of 127.0.0.0/8, other than those that programs use by default."""
    return str(ipaddress.IPv4Address(b"\x7f" + bytes(1 + secrets.randbelow(254) for _ in range(3))))


def is_address(text: str) -> bool:
    """Return True for an IP address, and False for the name of a host."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return True for a loopback address. Raise ValueError for a text that is no address."""
    return ipaddress.ip_address(address).is_loopback


def owner_of_peer(connection: socket.socket, proc: Path = Path("/proc")) -> int | None:
    """Return the user who owns the other end of a connection within this machine; None if it is unknown."""
    try:
        far, near = connection.getpeername(), connection.getsockname()
        try:
            return _owner_by_netlink(connection.family, far, near)
        except (OSError, struct.error):  # the kernel may lack this, or a container forbid it
            return _owner_in_table(connection.family, far, near, proc)
    except OSError:
        return None


def _owner_by_netlink(family: int, far: tuple[str, int], near: tuple[str, int]) -> int | None:
    """Ask for one socket (sock_diag(7)). Raise OSError or struct.error if there is no answer."""
    ends = b"".join(socket.inet_pton(family, end[0]).ljust(_ADDRESS_BYTES, b"\0") for end in (far, near))
    ports = struct.pack("!HH", far[1], near[1])
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY) + ports + ends + _NO_COOKIE
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.sendto(header + request, (0, 0))
        answer = kernel.recv(_ANSWER_BYTES_MAX)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError(errno.ENOENT, "the kernel does not know this socket")
    uid, inode = _OWNER.unpack_from(answer, _HEADER.size + _OWNER_OFFSET)
    return uid if inode else None


def _owner_in_table(family: int, far: tuple[str, int], near: tuple[str, int], proc: Path) -> int | None:
    """Find a socket in the table of all. Raise OSError."""
    table = (proc / "net" / _TABLES[family]).read_bytes()
    place = table.find(f" {_entry(family, far)} {_entry(family, near)} ".encode())
    if place < 0:
        return None
    columns = table[table.rfind(b"\n", 0, place) + 1 : table.find(b"\n", place)].split()
    return int(columns[_UID]) if int(columns[_INODE]) else None


def _entry(family: int, endpoint: tuple[str, int]) -> str:
    """Return an address and a port as the kernel's tables have them: words in the order of the machine."""
    packed = socket.inet_pton(family, endpoint[0])
    words = (packed[start : start + _WORD_BYTES] for start in range(0, len(packed), _WORD_BYTES))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{endpoint[1]:04X}"


class LocalUsers:
    """The users of this machine who may connect to a server on loopback. It logs each other one once."""

    def __init__(self, users: Collection[int]) -> None:
        self._users: Final = frozenset(users)
        self._reported: Final[set[int | None]] = set()

    def admit(self, connection: socket.socket) -> bool:
        """Return True if one of the users made a connection, and log the owner if not."""
        owner = owner_of_peer(connection)
        if owner in self._users:
            return True
        if owner not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(owner)
            _log.warning("a connection of another user was refused", extra={"uid": owner})
        return False


class LocalListener(socket.socket):
    """A socket that listens on a loopback address, and accepts connections of ``users`` only."""

    def __init__(self, address: str, port: int, users: Collection[int], *, backlog: int = 32) -> None:
        """Listen at once; port 0 means any free one. Raise OSError."""
        super().__init__(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._users = LocalUsers(users)
        try:
            # Otherwise the port of a server that was just stopped stays in use for a minute.
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((address, port))
            self.listen(backlog)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection. Raise ConnectionAbortedError for one of another user."""
        connection, endpoint = super().accept()
        if self._users.admit(connection):
            return connection, endpoint
        connection.close()
        raise ConnectionAbortedError("another user made this connection")
