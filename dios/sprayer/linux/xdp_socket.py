"""AF_XDP sockets of Linux: frames in user memory, before the network stack of the kernel.

The engine has a socket for each core and receive queue (``af_xdp.py``). All sockets share one memory of
frames. Those of one queue also share two rings: places that the kernel may fill, and places that it has sent.
Rings are read in ``xdp_kernels.py``; ``xdp_program.py`` chooses among sockets.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import socket
import struct
import time
from typing import Final, NamedTuple

import numpy as np

from dios.errors import InvalidError, NotPermittedError
from dios.limits import SPRAYER_QUEUE_FREE_MS
from dios.sprayer.linux.packet_socket import LINK_BYTES, Interface

HEAD_BYTES: Final = 256
"""The number of bytes that the kernel reserves before each frame."""
PLACE_BYTES: Final = (2048, 4096)
"""The possible sizes of a frame's place."""

_AF_XDP: Final = 44
_SOL_XDP: Final = 283
_OFFSETS: Final = 1
_RX_RING: Final = 2
_TX_RING: Final = 3
_MEMORY: Final = 4
_FILL_RING: Final = 5
_DONE_RING: Final = 6
_STATISTICS: Final = 7
_SEND_AT_ONCE: Final = 9
_SHARED: Final = 1
_COPY: Final = 2
_WHERE: Final = {_RX_RING: 0, _TX_RING: 0x80000000, _FILL_RING: 0x100000000, _DONE_RING: 0x180000000}
_ROW: Final = {_RX_RING: 16, _TX_RING: 16, _FILL_RING: 8, _DONE_RING: 8}
_SEND_BUFFER_FORCE: Final = 32
_SEND_BYTES: Final = 4 * 2**20
_BATCH: Final = 256
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def place_bytes(device: Interface) -> int:
    """Return the size of a place for an interface's frames; raise InvalidError if the MTU is too large."""
    for size in PLACE_BYTES:
        if device.mtu + LINK_BYTES + HEAD_BYTES <= size:
            return size
    most = PLACE_BYTES[-1] - LINK_BYTES - HEAD_BYTES
    raise InvalidError(
        f"interface {device.name!r} has an MTU of {device.mtu}, but AF_XDP supports at most {most}: "
        f"run `ip link set {device.name} mtu {most}`, or choose packet sockets (af_packet)"
    )


class FrameMemory:
    """Places for frames, shared by all sockets."""

    def __init__(self, frames: int, size: int) -> None:
        self.frames: Final = frames
        self.size: Final = size
        self._map: Final = mmap.mmap(-1, frames * size)
        self.address: Final = _address(self._map)

    def description(self) -> bytes:
        """Return the kernel's description of the memory."""
        return struct.pack("=QQ4I", self.address, self.frames * self.size, self.size, 0, 0, 0)

    def close(self) -> None:
        """Unmap the memory, after all sockets are closed."""
        self._map.close()


class XdpRing(NamedTuple):
    """A ring: addresses of its indices and rows, and the number of rows, a power of two."""

    producer: int
    consumer: int
    rows: int
    places: int


_NO_RING: Final = XdpRing(0, 0, 0, 0)


class XdpSocket:
    """One socket of one core on one queue of an interface; nothing arrives before a program chooses it.

    The first socket of a queue creates its rings with ``places`` places, the first of all registers the
    memory; ``sharing`` is the socket with which this one shares them, None for the first. Raises
    NotPermittedError without the needed privileges, and InvalidError with the kernel's message.
    """

    def __init__(
        self,
        device: Interface,
        queue: int,
        memory: FrameMemory,
        rows: int,
        places: int,
        sharing: XdpSocket | None,
    ) -> None:
        self.interface: Final = device
        self.queue: Final = queue
        self._maps: Final[list[mmap.mmap]] = []
        self._creates_rings = sharing is None or (sharing.interface, sharing.queue) != (device, queue)
        try:
            self._socket: Final = socket.socket(_AF_XDP, socket.SOCK_RAW, 0)
        except PermissionError:
            raise _refused(device) from None
        except OSError as error:
            raise InvalidError(
                f"this kernel has no AF_XDP sockets ({error.strerror}): it needs CONFIG_XDP_SOCKETS; "
                "choose packet sockets (af_packet)"
            ) from None
        try:
            self._set_up(memory, rows, places, sharing)
        except PermissionError:
            self.close()
            raise _refused(device) from None
        except OSError as error:
            self.close()
            raise InvalidError(_error_text(device, queue, memory, error)) from None

    def _set_up(self, memory: FrameMemory, rows: int, places: int, sharing: XdpSocket | None) -> None:
        if sharing is None:
            self._set(_MEMORY, memory.description())
        self._socket.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCE, _SEND_BYTES)
        kinds = {_RX_RING: rows, _TX_RING: rows}
        if self._creates_rings:
            kinds |= {_FILL_RING: places, _DONE_RING: places}
        for kind, count in kinds.items():
            self._set(kind, struct.pack("=i", count))
        offsets = struct.unpack("=16Q", self._socket.getsockopt(_SOL_XDP, _OFFSETS, 128))
        rings = {kind: self._mapped(kind, count, offsets) for kind, count in kinds.items()}
        self.received, self.sending = rings[_RX_RING], rings[_TX_RING]
        # The rings of another socket are used through that socket.
        self.fill, self.done = rings.get(_FILL_RING, _NO_RING), rings.get(_DONE_RING, _NO_RING)
        try:
            # Send more frames in each call; kernels before 6.17 do not have this option.
            self._set(_SEND_AT_ONCE, struct.pack("=i", min(rows, _BATCH)))
        except OSError as error:
            if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
                raise
        flags = _COPY if sharing is None else _SHARED
        address = struct.pack(
            "=HHIII",
            _AF_XDP,
            flags,
            self.interface.index,
            self.queue,
            0 if sharing is None else sharing.fileno(),
        )
        # The kernel releases a queue some time after its last socket is closed.
        late = time.monotonic() + SPRAYER_QUEUE_FREE_MS / 1000
        while _LIBC.bind(self.fileno(), address, len(address)):
            code = ctypes.get_errno()
            if code != errno.EBUSY or time.monotonic() > late:
                raise OSError(code, os.strerror(code))
            time.sleep(SPRAYER_QUEUE_FREE_MS / 1000 / 200)

    def _mapped(self, kind: int, count: int, offsets: tuple[int, ...]) -> XdpRing:
        at = 4 * (_RX_RING, _TX_RING, _FILL_RING, _DONE_RING).index(kind)
        producer, consumer, rows, _ = offsets[at : at + 4]
        flags, rights = mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE
        memory = mmap.mmap(self.fileno(), rows + count * _ROW[kind], flags, rights, offset=_WHERE[kind])
        self._maps.append(memory)
        base = _address(memory)
        return XdpRing(base + producer, base + consumer, base + rows, count)

    def _set(self, option: int, value: bytes) -> None:
        self._socket.setsockopt(_SOL_XDP, option, value)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def offer(self, first: int, count: int, size: int) -> None:
        """Give the kernel ``count`` places to fill before the start; for the first socket of a queue."""
        rows = np.ctypeslib.as_array((ctypes.c_uint64 * self.fill.places).from_address(self.fill.rows))
        rows[:count] = (first + np.arange(count)) * size
        ctypes.c_uint32.from_address(self.fill.producer).value = count

    def waiting(self) -> int:
        """Return the number of frames that arrived and were not received yet."""
        ends = (self.received.producer, self.received.consumer)
        come, taken = (ctypes.c_uint32.from_address(address).value for address in ends)
        return (come - taken) & 0xFFFFFFFF

    def lost(self) -> int:
        """Return the number of frames since the start without a place in the ring or in memory."""
        dropped, _, _, full, _, _ = struct.unpack("=6Q", self._socket.getsockopt(_SOL_XDP, _STATISTICS, 48))
        return int(dropped + full)

    def close(self) -> None:
        """Close the socket and its rings."""
        self._socket.close()
        for mapping in self._maps:
            mapping.close()
        self._maps.clear()


def _address(memory: mmap.mmap) -> int:
    """Return the start address of a mapping; the mapping can still be closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _refused(device: Interface) -> NotPermittedError:
    return NotPermittedError(
        f"reading frames of {device.name} needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"
    )


def _error_text(device: Interface, queue: int, memory: FrameMemory, error: OSError) -> str:
    said = f"cannot open an AF_XDP socket on queue {queue} of {device.name}: {error.strerror}"
    if error.errno == errno.ENOBUFS:
        most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        size = memory.frames * memory.size
        return f"{said}; it needs {size} bytes of locked memory, the limit is {most}: choose fewer places"
    if error.errno == errno.EBUSY:
        return f"{said}; another program receives its frames"
    return f"{said}; choose packet sockets (af_packet)"
