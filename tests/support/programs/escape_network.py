"""Hostile programs of the escape suite that want out by a network; ``attempt_of`` returns each attempt.

Not for: anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable

from escape_tools import NothingFoundError, number, text

FAMILIES = 64
"""More than any kernel has."""

WAIT_S = 2.0
OWN = 3
SO_PEERPIDFD = 77
LOOPBACK_TCP = ("127.0.0.1", "tcp")


def _send(family: int, address: tuple[str, int] | str, kind: int = socket.SOCK_STREAM) -> object:
    with socket.socket(family, kind) as out:
        out.settimeout(WAIT_S)
        out.connect(address)
        return out.send(b"loot")


def _families(numbers: Iterable[int], kind: int) -> object:
    """Open a socket of each family: those that are answered otherwise than by EPERM."""
    opened = []
    for family in numbers:
        try:
            socket.socket(family, kind).close()
            opened.append(family)
        except PermissionError as error:
            if error.errno != errno.EPERM:
                opened.append(family)
        except OSError as error:
            opened.append(error.errno or 0)
    if not opened:
        raise OSError(errno.EPERM, "every family")
    return opened


def _own() -> socket.socket:
    return socket.socket(fileno=os.dup(OWN))


# -- families -----------------------------------------------------------------------------------------
def _try_udp_over_ipv6() -> object:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as out:
        return out.sendto(b"loot", ("::1", number("udp")))


def _try_listen() -> object:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        return "listens"


def _try_ask_name_server() -> object:
    query = struct.pack("!6H", 1, 0x0100, 1, 0, 0, 0) + b"\4loot\7example\0" + struct.pack("!2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        return out.sendto(query, ("127.0.0.53", 53))


def _try_routes() -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.bind((0, 0))
        dump_of_links = 18
        return link.send(struct.pack("=IHHIIB3x", 20, dump_of_links, 0x301, 1, 0, 0))


def _try_kernel_events() -> object:
    kobject_uevent = 15
    return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, kobject_uevent)


def _try_audit_messages() -> object:
    audit = 9
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, audit)


def _try_host_of_virtual_machine() -> None:
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as out:
        out.settimeout(WAIT_S)
        host = 2
        out.connect((host, 1))


# -- Unix sockets -------------------------------------------------------------------------------------
def _try_listen_abstract() -> object:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0planted")
        return "bound"


def _try_transparent_pair() -> object:
    tipc = 30
    return socket.socketpair(tipc, socket.SOCK_STREAM)


def _try_connect_pair_elsewhere() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.connect("\0" + text("abstract"))


def _try_send_from_pair_elsewhere() -> object:
    here, there = socket.socketpair()
    with here, there:
        return here.sendto(b"loot", "\0" + text("abstract"))


def _try_message_from_pair_elsewhere() -> object:
    """The address stands in memory, where no filter looks."""
    here, there = socket.socketpair()
    with here, there:
        return here.sendmsg([b"loot"], [], 0, "\0" + text("abstract"))


# -- the one socket that it has -----------------------------------------------------------------------
def _try_connect_own() -> None:
    with _own() as own:
        own.connect("\0" + text("abstract"))


def _try_bind_own() -> None:
    with _own() as own:
        own.bind("\0planted")


def _try_listen_on_own() -> None:
    with _own() as own:
        own.listen()


def _try_accept_from_own() -> object:
    with _own() as own:
        return own.accept()


def _try_send_elsewhere_from_own() -> object:
    with _own() as own:
        return own.sendto(b"loot", "\0" + text("abstract"))


def _try_message_elsewhere_from_own() -> object:
    with _own() as own:
        return own.sendmsg([b"loot"], [], 0, "\0" + text("abstract"))


def _try_pose_as_root() -> object:
    """Say that the message comes from process 1 of user 0."""
    scm_credentials = 2
    with _own() as own:
        forged = struct.pack("=3i", 1, 0, 0)
        return own.sendmsg([b"\0"], [(socket.SOL_SOCKET, scm_credentials, forged)])


def _try_hold_of_the_daemon() -> object:
    """A descriptor of the process at the other end, by which one could act on it."""
    with _own() as own:
        return own.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)


def _try_who_is_the_daemon() -> object:
    with _own() as own:
        return own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)


def _try_groups_of_the_daemon() -> object:
    peer_groups = 59
    with _own() as own:
        return own.getsockopt(socket.SOL_SOCKET, peer_groups, 256)


def _try_ask_for_credentials() -> object:
    with _own() as own:
        return own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def _try_filter_own() -> object:
    with _own() as own:
        attach_filter = 26
        return own.setsockopt(socket.SOL_SOCKET, attach_filter, bytes(16))


def _try_raise_own_buffer() -> object:
    with _own() as own:
        force = 32
        return own.setsockopt(socket.SOL_SOCKET, force, 1 << 30)


def _try_urgent_byte() -> object:
    """Out of band data is a second stream in the first, which a careless reader trips over."""
    with _own() as own:
        return own.send(b"\0", socket.MSG_OOB)


def _try_take_a_descriptor() -> object:
    """Whatever the node sent beside its replies: a task holds what its calls gave it, and no more."""
    with _own() as own:
        own.setblocking(False)
        _, ancillary, _, _ = own.recvmsg(1, socket.CMSG_SPACE(64), socket.MSG_PEEK)
        if not ancillary:
            raise NothingFoundError
        return ancillary


def _try_give_descriptors() -> object:
    """Descriptors beside the first bytes of a lawful call."""
    handed = array.array("i", [0, 1, 2, OWN] * 8)
    with _own() as own:
        return own.sendmsg([b"\x03\x00"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])


def _try_inherited_descriptors() -> object:
    """What the daemon or the zygote left open by mistake."""
    descriptors = []
    for descriptor in range(OWN + 1, 4096):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        descriptors.append(descriptor)
    # The client of this very task maps the page of its references.
    if len(descriptors) <= 1:
        raise NothingFoundError
    return descriptors


SHORT_ATTEMPTS: dict[str, Callable[[], object]] = {
    # families
    "every_family_of_streams": lambda: _families(range(FAMILIES), socket.SOCK_STREAM),
    "every_family_of_datagrams": lambda: _families(range(FAMILIES), socket.SOCK_DGRAM),
    "every_family_of_raw_packets": lambda: _families(range(FAMILIES), socket.SOCK_RAW),
    "every_family_of_ordered_packets": lambda: _families(range(FAMILIES), socket.SOCK_SEQPACKET),
    "tcp": lambda: _send(socket.AF_INET, ("127.0.0.1", number("tcp"))),
    "tcp_abroad": lambda: _send(socket.AF_INET, ("192.0.2.1", 80)),
    "udp": lambda: _send(socket.AF_INET, ("127.0.0.1", number("udp")), socket.SOCK_DGRAM),
    "lookup_host": lambda: len(socket.getaddrinfo("localhost", 80)),
    "lookup_abroad": lambda: len(socket.getaddrinfo("loot.example.org", 80)),
    "echo_request": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "echo_request_without_right": lambda: socket.socket(
        socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP
    ),
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)),
    "kernel_ciphers": lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
    # Unix sockets
    "unix_path": lambda: _send(socket.AF_UNIX, text("unix")),
    "unix_abstract": lambda: _send(socket.AF_UNIX, "\0" + text("abstract")),
    "node_as_a_person": lambda: _send(socket.AF_UNIX, text("store") + "/node.sock"),
    "datagram_pair": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "ordered_pair": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
}
"""The attempts that are one expression; each other one is a function ``_try_NAME``."""
