"""A packet socket of Linux with a ring of frames in shared memory (AF_PACKET, TPACKET_V2).

The ring is read in ``ring_kernels.py``; ``fanout.py`` chooses among sockets.

The ring has version 2, because version 3 hands over blocks of frames, and a block that is not full waits for
a timer of whole milliseconds. In a comparison, a frame cost the same (1.6 us of the sender's processor) and a
single frame arrived after 4 us instead of 1,000. In version 3 a frame on another core would also hold its
block.
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
"""The space that the kernel uses before a frame, rounded up: its header, an address, and room for tags."""
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
    """The current state of a network interface."""

    name: str
    index: int
    mtu: int

    @property
    def place_bytes(self) -> int:
        """The size of a frame's place in a ring, a power of two."""
        return 1 << (self.mtu + LINK_BYTES + HEADER_BYTES - 1).bit_length()


def interface(name: str) -> Interface:
    """Return an interface; raise InvalidError if it does not exist, is down, or is not Ethernet."""
    known = ", ".join(known_name for _, known_name in socket.if_nameindex())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            index = socket.if_nametoindex(name)
            (flags,) = struct.unpack_from("=H", interface_ioctl(control, _SIOCGIFFLAGS, name), 16)
            (mtu,) = struct.unpack_from("=i", interface_ioctl(control, _SIOCGIFMTU, name), 16)
            (kind,) = struct.unpack_from("=H", interface_ioctl(control, 0x8927, name), 16)
        except OSError as error:
            raise InvalidError(
                f"interface {name!r}: {error.strerror or error}; the interfaces are {known}"
            ) from None
    if not flags & _UP:
        raise InvalidError(f"interface {name!r} is down; run `ip link set {name} up`")
    if kind != _ETHERNET:
        raise InvalidError(f"interface {name!r} is not Ethernet (type {kind}); choose an Ethernet interface")
    return Interface(name, index, min(mtu, SPRAYER_FRAME_BYTES_MAX - LINK_BYTES))


def interface_ioctl(control: socket.socket, request: int, name: str) -> bytes:
    """Return the kernel's answer about an interface: its name in 16 bytes, then 16 bytes. Raises OSError."""
    return fcntl.ioctl(control, request, struct.pack("16s16x", name.encode()[:15]))


@contextlib.contextmanager
def promiscuous(device: Interface) -> Iterator[None]:
    """Put an interface into promiscuous mode during the context; for sockets of other kinds."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as held:
        held.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, _membership(device))
        yield


def _membership(device: Interface) -> bytes:
    return struct.pack("=iHH8x", device.index, _PROMISCUOUS, 0)


class PacketSocket:
    """One socket on one interface, and its ring; nothing arrives before ``open_up``.

    At most ``places`` frames wait in the ring or are in use by workers. Raises NotPermittedError without the
    needed privileges, and InvalidError with the kernel's message if the ring cannot be created.
    """

    def __init__(self, device: Interface, places: int) -> None:
        refused = NotPermittedError(
            f"reading frames of {device.name} needs root, or CAP_NET_RAW and CAP_NET_ADMIN"
        )
        try:
            # With protocol 0 nothing arrives before it is bound.
            self._socket: Final = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            raise refused from None
        self.interface: Final = device
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
                f"cannot create a ring of {places} frames of {device.place_bytes} bytes on {device.name}: "
                f"{error.strerror}; choose fewer places"
            ) from None

    def _set_up(self) -> None:
        size = self.places * self.interface.place_bytes
        block = max(_BLOCK_BYTES, self.interface.place_bytes)
        if size % block:
            raise OSError(22, f"the frames do not fill whole blocks of {block} bytes")
        self._set(_VERSION, struct.pack("=i", _TPACKET_V2))
        ring = struct.pack("=IIII", block, size // block, self.interface.place_bytes, self.places)
        self._set(_RX_RING, ring)
        self._map = mmap.mmap(self._socket.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._set(_IGNORE_OUTGOING, struct.pack("=i", 1))
        self._set(_QDISC_BYPASS, struct.pack("=i", 1))
        self._socket.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCE, _SEND_BYTES)
        # A filter that drops everything: before it joins a group, each socket would receive every frame.
        with _program(_NOTHING) as nothing:
            self._socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, nothing.description)
        self._socket.bind((self.interface.name, _ALL))
        self._set(_ADD_MEMBERSHIP, _membership(self.interface))

    def _set(self, option: int, value: bytes) -> None:
        self._socket.setsockopt(_SOL_PACKET, option, value)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def ring(self) -> npt.NDArray[np.uint8]:
        """Return the ring's memory (places, place_bytes); it must not be used during or after ``close``."""
        if self._map is None:
            raise ClosedError("this packet socket is closed")
        return np.frombuffer(self._map, np.uint8).reshape(self.places, self.interface.place_bytes)

    def join(self, group: int | None) -> int:
        """Join a group of sockets that share the interface's frames, a new group for None; return its number.

        Sockets have indices in the order of joining.
        """
        unique = _FANOUT_UNIQUE if group is None else 0
        self._set(_FANOUT, struct.pack("=I", (group or 0) | (_FANOUT_CBPF | unique) << 16))
        return int.from_bytes(self._socket.getsockopt(_SOL_PACKET, _FANOUT, 4), sys.byteorder) & 0xFFFF

    def choose_by(self, text: bytes) -> None:
        """Set the program of this socket's group."""
        with _program(text) as program:
            self._set(_FANOUT_DATA, program.description)

    def open_up(self) -> None:
        """Let frames arrive."""
        self._socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    def statistics(self) -> tuple[int, int]:
        """Return the numbers of frames so far: all for this socket, and those that found no place."""
        arrived, lost = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        self._arrived += arrived
        self._lost += lost
        return self._arrived, self._lost

    def close(self) -> None:
        """Close everything; the interface leaves promiscuous mode with its last socket."""
        self._socket.close()
        if self._map is not None:
            self._map.close()
            self._map = None


class _program:  # noqa: N801 - a context manager, used like a function
    """A program's text in memory, and the kernel's description of it."""

    def __init__(self, text: bytes) -> None:
        self._text: Final = ctypes.create_string_buffer(text, len(text))
        self.description: Final = struct.pack("@HP", len(text) // 8, ctypes.addressof(self._text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Keep the text until here."""
