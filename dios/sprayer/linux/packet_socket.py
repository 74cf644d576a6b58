"""A packet socket of Linux with a ring of frames in shared memory (AF_PACKET, TPACKET_V2).

For: the engine, which has one for each core and interface. Not for: reading the ring (``ring_kernels.py``),
or choosing among sockets (``fanout.py``).

Version 2 of the ring and not 3: that one hands over blocks of frames, and a block that is not full waits for
a timer of whole milliseconds. Tried side by side, a frame costs the same (1.6 us of the sender's processor)
and a lone one arrives after 4 us and not 1,000; besides, a frame that another core has would hold its block.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dios.errors import ClosedError, InvalidError, NotPermittedError
from dios.limits import SPRAYER_FRAME_BYTES_MAX

HEADER_BYTES: Final = 128
"""What the kernel puts before a frame in its place, rounded up: its header, an address, and where tags go."""
LINK_BYTES: Final = 22
"""An Ethernet header and two tags."""

_SOL_PACKET: Final = 263
_ADD_MEMBERSHIP: Final = 1
_RX_RING: Final = 5
_STATISTICS: Final = 6
_VERSION: Final = 10
_FANOUT: Final = 18
_QDISC_BYPASS: Final = 20
_FANOUT_DATA: Final = 22
_IGNORE_OUTGOING: Final = 23
_TPACKET_V2: Final = 1
_PROMISCUOUS: Final = 1
_FANOUT_CBPF: Final = 6
_FANOUT_UNIQUE: Final = 0x2000
_ATTACH_FILTER: Final = 26
_DETACH_FILTER: Final = 27
_SEND_BUFFER_FORCE: Final = 32
_ALL: Final = 0x0003
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFMTU: Final = 0x8921
_UP: Final = 1
_ETHERNET: Final = 1
_SEND_BYTES: Final = 4 * 2**20
_BLOCK_BYTES: Final = 2**16
_NOTHING: Final = struct.pack("=HBBI", 0x06, 0, 0, 0)


@dataclass(frozen=True)
class Interface:
    """A network interface as it is now."""

    name: str
    index: int
    mtu: int

    @property
    def place_bytes(self) -> int:
        """So large is a frame's place in a ring: a power of two."""
        return 1 << (self.mtu + LINK_BYTES + HEADER_BYTES - 1).bit_length()


def interface(name: str) -> Interface:
    """Look at an interface. InvalidError if there is none of this name, if it is down, or no Ethernet."""
    known = ", ".join(each for _, each in socket.if_nameindex())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            index = socket.if_nametoindex(name)
            (flags,) = struct.unpack_from("=H", ask(asked, _SIOCGIFFLAGS, name), 16)
            (mtu,) = struct.unpack_from("=i", ask(asked, _SIOCGIFMTU, name), 16)
            (kind,) = struct.unpack_from("=H", ask(asked, 0x8927, name), 16)
        except OSError as error:
            raise InvalidError(f"interface {name!r}: {error.strerror}; there are {known}") from None
    if not flags & _UP:
        raise InvalidError(f"interface {name!r} is down; `ip link set {name} up` ends that")
    if kind != _ETHERNET:
        raise InvalidError(
            f"interface {name!r} is no Ethernet (type {kind}), and frames of others are not read"
        )
    return Interface(name, index, min(mtu, SPRAYER_FRAME_BYTES_MAX - LINK_BYTES))


def ask(asked: socket.socket, what: int, name: str) -> bytes:
    """What the kernel answers about an interface: its name in 16 bytes, and 16 bytes more. OSError."""
    return fcntl.ioctl(asked, what, struct.pack("16s16x", name.encode()[:15]))


@contextlib.contextmanager
def promiscuous(where: Interface) -> Iterator[None]:
    """Let an interface take frames for others as well, while this is open; for other kinds of sockets."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as held:
        held.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, _membership(where))
        yield


def _membership(where: Interface) -> bytes:
    return struct.pack("=iHH8x", where.index, _PROMISCUOUS, 0)


class PacketSocket:
    """One socket on one interface, and its ring; nothing arrives before ``open_up``.

    ``places`` frames at most wait in the ring or are with workers. NotPermittedError for whoever may not
    have such sockets; InvalidError with the kernel's words where the ring cannot be made.
    """

    def __init__(self, where: Interface, places: int) -> None:
        refused = NotPermittedError(
            f"frames of {where.name} are for root: start it as root, or with CAP_NET_RAW and CAP_NET_ADMIN"
        )
        try:
            # Protocol 0: nothing arrives before it is bound.
            self._socket: Final = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            raise refused from None
        self.interface: Final = where
        self.places: Final = places
        self._map: mmap.mmap | None = None
        self._arrived = self._lost = 0
        try:
            self._set_up()
        except PermissionError:
            self.close()
            raise refused from None
        except OSError as error:
            self.close()
            raise InvalidError(
                f"a ring of {places} frames of {where.place_bytes} bytes on {where.name}: {error.strerror}; "
                "choose fewer"
            ) from None

    def _set_up(self) -> None:
        size = self.places * self.interface.place_bytes
        block = max(_BLOCK_BYTES, self.interface.place_bytes)
        if size % block:
            raise OSError(22, f"frames that fill no whole blocks of {block} bytes")
        self._set(_VERSION, struct.pack("=i", _TPACKET_V2))
        ring = struct.pack("=IIII", block, size // block, self.interface.place_bytes, self.places)
        self._set(_RX_RING, ring)
        self._map = mmap.mmap(self._socket.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._set(_IGNORE_OUTGOING, struct.pack("=i", 1))
        self._set(_QDISC_BYPASS, struct.pack("=i", 1))
        self._socket.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCE, _SEND_BYTES)
        # Between binding and joining a group, each socket would get every frame.
        with _program(_NOTHING) as nothing:
            self._socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, nothing.told)
        self._socket.bind((self.interface.name, _ALL))
        self._set(_ADD_MEMBERSHIP, _membership(self.interface))

    def _set(self, option: int, value: bytes) -> None:
        self._socket.setsockopt(_SOL_PACKET, option, value)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def ring(self) -> npt.NDArray[np.uint8]:
        """The ring's memory: (places, place_bytes). It ends with ``close``, which needs it gone before."""
        if self._map is None:
            raise ClosedError("this packet socket is closed")
        return np.frombuffer(self._map, np.uint8).reshape(self.places, self.interface.place_bytes)

    def join(self, group: int | None) -> int:
        """Share the interface's frames with a group of sockets, a new one for None; its number.

        Indices are given in the order of joining.
        """
        unique = _FANOUT_UNIQUE if group is None else 0
        self._set(_FANOUT, struct.pack("=I", (group or 0) | (_FANOUT_CBPF | unique) << 16))
        return int.from_bytes(self._socket.getsockopt(_SOL_PACKET, _FANOUT, 4), sys.byteorder) & 0xFFFF

    def choose_by(self, text: bytes) -> None:
        """Set the program of the group that this socket is in."""
        with _program(text) as program:
            self._set(_FANOUT_DATA, program.told)

    def open_up(self) -> None:
        """Let frames arrive."""
        self._socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    def statistics(self) -> tuple[int, int]:
        """Frames since the beginning: all that came to this socket, and those that found no place."""
        arrived, lost = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        self._arrived += arrived
        self._lost += lost
        return self._arrived, self._lost

    def close(self) -> None:
        """Give everything back; the interface leaves promiscuous mode with its last socket."""
        self._socket.close()
        if self._map is not None:
            self._map.close()
            self._map = None


class _program:  # noqa: N801 - a context, used as a function
    """A program's text where the kernel can read it: how it is told."""

    def __init__(self, text: bytes) -> None:
        self._text: Final = ctypes.create_string_buffer(text, len(text))
        self.told: Final = struct.pack("@HP", len(text) // 8, ctypes.addressof(self._text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """The text is kept until here."""
