"""An engine on AF_XDP sockets, which receive frames before the network stack of the kernel.

It runs a network function between interfaces of this machine, as root, as an alternative to ``af_packet.py``.
An XDP program takes each frame, and drops frames without a socket, so the kernel sees none: the machine
cannot use these interfaces itself. An MTU larger than a page is not supported.

A socket receives the frames of one receive queue. So each worker has one on every queue of every interface,
and the program (``xdp_program.py``) chooses the worker among those of the frame's queue. A core sends by one
queue of each interface. Frames are copied into our memory and out of it (XDP_COPY): few drivers support zero
copy, and they need interfaces of one kind.

VLAN tags and checksums are those in the frame: a virtual cable carries them next to the frame, and they are
lost (``ethtool -K DEV tx off txvlan off`` at the other end). Network cards have both in the frame.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dios.limits import SPRAYER_BATCH, SPRAYER_PLACES
from dios.sprayer.linux import bpf_calls
from dios.sprayer.linux import wait_kernels as waiting
from dios.sprayer.linux import xdp_kernels as kernels
from dios.sprayer.linux.engine_options import CoreStatistics, check_options, fill_waiting, parse_steering
from dios.sprayer.linux.fanout import Steering
from dios.sprayer.linux.offloads import driver, receive_queues
from dios.sprayer.linux.packet_socket import Interface, interface, promiscuous
from dios.sprayer.linux.xdp_program import program
from dios.sprayer.linux.xdp_socket import FrameMemory, XdpSocket, place_bytes
from dios.sprayer.packets.packet import INSIDE, OUTSIDE

_LOCK_WORDS: Final = 16
"""The distance of locks in words: processors load cache lines in pairs."""


_SLOWER: Final = ("veth",)
"""Drivers that copy each frame to run a program on it. In a comparison, a frame of 1,514 bytes took 5 us of
all processors in the driver, and 3.6 us if the kernel ran the program."""


class AfXdpEngine:
    """An :class:`~dios.sprayer.engine.Engine` between pairs of interfaces; a context manager, open at once.

    It has the arguments of ``AfPacketEngine``. ``native`` is True for each interface whose driver runs the
    program, and False if the kernel runs it.

    Raises InvalidError for invalid options or interfaces, NotPermittedError without the needed privileges.
    """

    frees_in_order: Final = False

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        cores: int = 1,
        *,
        steer: str = "spray",
        places: int = SPRAYER_PLACES,
        pin: Sequence[int] = (),
        secret: int | None = None,
        quic_ports: Sequence[int] = (),
    ) -> None:
        check_options(pairs, cores, places, pin)
        how = parse_steering(steer, quic_ports)
        self.cores: Final = cores
        self._quic_ports: Final = quic_ports
        self.secret: Final = secrets.randbits(64) if secret is None else secret
        self.interfaces: Final = [interface(name) for pair in pairs for name in pair]
        self.native: Final[dict[str, bool]] = {}
        self.receive, self.transmit, self.release = kernels.functions()
        self._contexts: Final = np.zeros((cores, kernels.WORDS), np.int64)
        queues = [receive_queues(device.name) for device in self.interfaces]
        self._ports: Final = [(place, queue) for place, count in enumerate(queues) for queue in range(count)]
        # A port has at least two batches for each core, whatever its share is.
        self._each: Final = cores * max(places // max(queues), 2 * SPRAYER_BATCH)
        self._states: Final = np.zeros(self._each * len(self._ports), np.int64)
        self._locks: Final = np.zeros((2, len(self._ports), _LOCK_WORDS), np.int64)
        self._sockets: Final[list[list[XdpSocket]]] = []
        self._kept: Final[list[npt.NDArray[np.int64]]] = []
        self._links: Final[list[tuple[int, int]]] = []
        """The link and the map of sockets of each interface."""
        with contextlib.ExitStack() as stack:
            size = max(place_bytes(device) for device in self.interfaces)
            self._memory: Final = FrameMemory(self._each * len(self._ports), size)
            stack.callback(self._memory.close)
            # A core may send by one port all frames that came by the ports of the other interface.
            shared = 1 << (self._each * max(queues) - 1).bit_length()
            for place, queue in self._ports:
                self._open(stack, self.interfaces[place], queue, places, shared)
            for core in range(cores):
                self._fill(core, pin[core] if pin else None)
            for place, attached in enumerate(self.interfaces):
                stack.enter_context(promiscuous(attached))
                self._attach(stack, place, how)
            self._stack: Final = stack.pop_all()

    def _open(
        self, stack: contextlib.ExitStack, device: Interface, queue: int, places: int, shared: int
    ) -> None:
        """Open a socket on one queue for each core."""
        sockets: list[XdpSocket] = []
        for _ in range(self.cores):
            sharing = sockets[0] if sockets else self._sockets[0][0] if self._sockets else None
            sock = XdpSocket(device, queue, self._memory, places, shared, sharing)
            stack.callback(sock.close)
            sockets.append(sock)
        sockets[0].offer(len(self._sockets) * self._each, self._each, self._memory.size)
        self._sockets.append(sockets)

    def _fill(self, core: int, processor: int | None) -> None:
        """Fill in the context of one core."""
        words = self._contexts[core]
        self._kept.extend(
            fill_waiting(words, [sockets[core].fileno() for sockets in self._sockets], processor)
        )
        words[kernels.MEMORY], words[kernels.SHIFT] = self._memory.address, self._memory.size.bit_length() - 1
        words[kernels.EACH], words[kernels.STATES] = self._each, self._states.ctypes.data
        for port, (place, _) in enumerate(self._ports):
            base = kernels.FIRST_PORT + port * kernels.PORT_WORDS
            mine, first = self._sockets[port][core], self._sockets[port][0]
            beyond = [at for at, (other, _) in enumerate(self._ports) if other == place ^ 1]
            stash = np.zeros(self._each, np.int64)
            self._kept.append(stash)
            words[base + kernels.SOCKET], words[base + kernels.STASH] = mine.fileno(), stash.ctypes.data
            words[base + kernels.TO] = beyond[core % len(beyond)]
            words[base + kernels.SIDE] = OUTSIDE if place & 1 else INSIDE
            for at, ring in (
                (kernels.RECEIVED, mine.received),
                (kernels.SENDING, mine.sending),
                (kernels.FILL, first.fill),
                (kernels.DONE, first.done),
            ):
                words[base + at : base + at + 4] = ring
            words[base + kernels.FILL + kernels.LOCK] = self._locks[0, port].ctypes.data
            words[base + kernels.DONE + kernels.LOCK] = self._locks[1, port].ctypes.data

    def _attach(self, stack: contextlib.ExitStack, place: int, how: Steering) -> None:
        """Attach the program that gives one interface's frames to its sockets."""
        device = self.interfaces[place]
        ports = [port for port, (other, _) in enumerate(self._ports) if other == place]
        table = bpf_calls.socket_map(len(ports) * self.cores)
        stack.callback(os.close, table)
        for at, port in enumerate(ports):
            for core, sock in enumerate(self._sockets[port]):
                bpf_calls.put(table, at * self.cores + core, sock.fileno())
        loaded = bpf_calls.load(program(how, self.cores, self.secret, table))
        stack.callback(os.close, loaded)
        native = driver(device.name) not in _SLOWER
        link, self.native[device.name] = bpf_calls.link(loaded, device.index, device.name, native=native)
        stack.callback(os.close, link)
        self._links.append((link, table))

    def change_steering(self, steer: str) -> None:
        """Steer frames differently from now on, while workers run. Raises ``OSError``."""
        how = parse_steering(steer, self._quic_ports)
        for link, table in self._links:
            loaded = bpf_calls.load(program(how, self.cores, self.secret, table))
            try:
                bpf_calls.replace(link, loaded)
            finally:
                os.close(loaded)

    def context(self, core: int) -> int:
        """Return the address of the context of a core."""
        return int(self._contexts[core].ctypes.data)

    def statistics(self, core: int) -> CoreStatistics:
        """Return the statistics of one core's sockets."""
        words = self._contexts[core]
        lost = sum(sockets[core].lost() for sockets in self._sockets)
        return CoreStatistics(
            arrived=int(words[kernels.TAKEN]) + lost,
            no_place=lost,
            cut=0,
            tagged=0,
            finished=0,
            refused=int(words[kernels.REFUSED]),
            waits=int(words[waiting.WAITS]),
        )

    def waiting(self, core: int) -> int:
        """Return the number of frames in one core's rings that it has not received yet."""
        return sum(sockets[core].waiting() for sockets in self._sockets)

    def close(self) -> None:
        """Detach the programs, and close sockets and memory; only after all workers have stopped."""
        self._stack.close()
        self._contexts[:] = 0
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
