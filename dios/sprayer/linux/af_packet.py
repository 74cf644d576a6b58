"""Frames of network interfaces for workers: packet sockets with rings, and what spreads frames over them.

For: running a network function between interfaces of this machine, as root (thesis section 3.3). Not for:
trying one without (``memory_engine.py``, and files), or offloads, which have to be off (``offloads.py``).

Each worker has a socket on every interface; the sockets of one are a group, in which the kernel runs a
program for each frame (``fanout.py``). What comes in by the first of a pair goes out by its second, and the
other way round. The kernel sees the same frames: an interface should have no address, and one from which the
kernel forwards what comes to its address is refused (``forwarding.py``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.limits import (
    SPRAYER_BATCH,
    SPRAYER_CORES_MAX,
    SPRAYER_INTERFACES_MAX,
    SPRAYER_PLACES,
    SPRAYER_PLACES_MAX,
    SPRAYER_WAIT_LONG_US,
    SPRAYER_WAIT_US,
)
from dios.sprayer.linux import ring_kernels as kernels
from dios.sprayer.linux.fanout import program, steering
from dios.sprayer.linux.forwarding import check_forwarding
from dios.sprayer.linux.offloads import RECORDS, without_offloads
from dios.sprayer.linux.packet_socket import Interface, PacketSocket, interface
from dios.sprayer.packet import INSIDE, OUTSIDE


@dataclass(frozen=True)
class CoreStatistics:
    """What the sockets of one core did, over all interfaces."""

    arrived: int
    """Frames that the kernel gave to this core."""
    no_place: int
    """Among them those that found its ring full."""
    cut: int
    """Longer than a place: the sender's segmentation offload is on."""
    tagged: int
    """VLAN tags put back into their frames."""
    finished: int
    """Checksums made that the sender had left to its hardware."""
    refused: int
    """Frames that the kernel did not take for sending."""
    waits: int


class AfPacketEngine:
    """An :class:`~dios.sprayer.engine.Engine` between pairs of interfaces; a context manager, open at once.

    ``pairs``: the inside and the outside interface of each. ``steer`` as ``fanout.steering``; ``places``:
    so many frames of each core and interface are held at most, a power of two. ``pin``: the processor of
    each worker, which its thread goes to at its first reception. ``secret`` (64 bits) is that of the hash
    that steers, chosen if none is given. Workers with it as their seed have the same hash: then TCP and UDP
    that are steered by flow arrive on their designated cores, and nothing has to cross.

    InvalidError for what cannot be, with the reason; NotPermittedError for whoever is not root.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        cores: int = 1,
        *,
        steer: str = "spray",
        places: int = SPRAYER_PLACES,
        pin: Sequence[int] = (),
        secret: int | None = None,
    ) -> None:
        _check(pairs, cores, places, pin)
        try:
            how = steering(steer)
        except ValueError as error:
            raise InvalidError(str(error)) from None
        self.cores: Final = cores
        self.interfaces: Final = [interface(name) for pair in pairs for name in pair]
        self.receive, self.transmit, self.release = kernels.functions()
        self._sockets: Final[list[list[PacketSocket]]] = []
        self._rings: Final[list[npt.NDArray[np.uint8]]] = []
        self._contexts: Final = np.zeros((cores, kernels.WORDS), np.int64)
        self._kept: Final[list[npt.NDArray[np.int64]]] = []
        self.secret: Final = secrets.randbits(64) if secret is None else secret
        text = program(how, cores, self.secret)
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            for where in self.interfaces:
                self._open(where, places, text)
            for core in range(cores):
                self._fill(core, places, pin)
            for each in self._all():
                each.open_up()
            stack.pop_all()

    def _all(self) -> list[PacketSocket]:
        return [each for sockets in self._sockets for each in sockets]

    def _open(self, where: Interface, places: int, text: bytes) -> None:
        """A socket on one interface for each core, as a group."""
        sockets: list[PacketSocket] = []
        self._sockets.append(sockets)
        group = None
        for _ in range(self.cores):
            sockets.append(PacketSocket(where, places))  # noqa: PERF401 - what is open is closed if one fails
        try:
            for each in sockets:
                group = each.join(group)
            sockets[0].choose_by(text)
        except OSError as error:
            raise InvalidError(f"{where.name}: sockets cannot share its frames: {error.strerror}") from None

    def _fill(self, core: int, places: int, pin: Sequence[int]) -> None:
        """The context of one core."""
        words = self._contexts[core]
        vectors = np.zeros((SPRAYER_BATCH, 2), np.int64)
        messages = np.zeros((SPRAYER_BATCH, kernels.MESSAGE_BYTES // 8), np.int64)
        messages[:, 2] = vectors.ctypes.data + 16 * np.arange(SPRAYER_BATCH)
        messages[:, 3] = 1
        polled = np.zeros(len(self._sockets), np.int64)
        short, long = (np.array([0, us * 1000], np.int64) for us in (SPRAYER_WAIT_US, SPRAYER_WAIT_LONG_US))
        mask = np.zeros(1024 // 64, np.uint64)
        words[kernels.PORTS], words[kernels.PLACES], words[kernels.CORES] = len(polled), places, self.cores
        words[kernels.MESSAGES], words[kernels.VECTORS] = messages.ctypes.data, vectors.ctypes.data
        words[kernels.POLLED] = polled.ctypes.data
        words[kernels.SHORT], words[kernels.LONG] = short.ctypes.data, long.ctypes.data
        if pin:
            mask[pin[core] // 64] = np.uint64(1 << pin[core] % 64)
            words[kernels.SET], words[kernels.SET_BYTES] = mask.ctypes.data, mask.nbytes
        for port, sockets in enumerate(self._sockets):
            socket, base = sockets[core], kernels.FIRST_PORT + port * kernels.PORT_WORDS
            ring = socket.ring()
            self._rings.append(ring)
            polled[port] = socket.fileno() | 1 << 32  # POLLIN
            words[base + kernels.RING], words[base + kernels.SOCKET] = ring.ctypes.data, socket.fileno()
            words[base + kernels.TO] = port ^ 1
            words[base + kernels.SIDE] = OUTSIDE if port & 1 else INSIDE
            words[base + kernels.PLACE_BYTES] = ring.shape[1]
        self._kept.extend([vectors, messages, polled, short, long, mask.view(np.int64)])

    def context(self, core: int) -> int:
        """See ``Engine``."""
        return int(self._contexts[core].ctypes.data)

    def statistics(self, core: int) -> CoreStatistics:
        """What one core's sockets did until now."""
        words = self._contexts[core]
        told = [sockets[core].statistics() for sockets in self._sockets]
        return CoreStatistics(
            arrived=sum(arrived for arrived, _ in told),
            no_place=sum(lost for _, lost in told),
            cut=int(words[kernels.CUT]),
            tagged=int(words[kernels.TAGGED]),
            finished=int(words[kernels.FINISHED]),
            refused=int(words[kernels.REFUSED]),
            waits=int(words[kernels.WAITS]),
        )

    def close(self) -> None:
        """Give sockets, rings and promiscuous mode back; only when no worker runs any more."""
        self._contexts[:] = 0
        self._rings.clear()
        for each in self._all():
            each.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def between(
    pairs: Sequence[tuple[str, str]],
    cores: int = 1,
    *,
    steer: str = "spray",
    places: int = SPRAYER_PLACES,
    pin: Sequence[int] = (),
    secret: int | None = None,
    records: Path = RECORDS,
) -> Iterator[AfPacketEngine]:
    """An engine between interfaces that have no offloads meanwhile; it takes what both take.

    Workers must have stopped before its end. Raises what ``AfPacketEngine``, ``without_offloads`` and
    ``check_forwarding`` do.
    """
    _check(pairs, cores, places, pin)
    names = [name for pair in pairs for name in pair]
    check_forwarding(names)
    with (
        without_offloads(names, records),
        AfPacketEngine(pairs, cores, steer=steer, places=places, pin=pin, secret=secret) as engine,
    ):
        yield engine


def processors(cores: int) -> list[int]:
    """A processor for each of so many workers, or none if there are fewer that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[:cores] if len(allowed) >= cores else []


def _check(pairs: Sequence[tuple[str, str]], cores: int, places: int, pin: Sequence[int]) -> None:
    names = [name for pair in pairs for name in pair]
    if not 0 < len(names) <= SPRAYER_INTERFACES_MAX or len(set(names)) < len(names):
        raise InvalidError(
            f"interfaces {', '.join(names)}: give pairs of different ones, up to {SPRAYER_INTERFACES_MAX}"
        )
    if not 0 < cores <= SPRAYER_CORES_MAX:
        raise InvalidError(f"{cores} cores: choose from 1 to {SPRAYER_CORES_MAX}")
    if not 32 <= places <= SPRAYER_PLACES_MAX or places & (places - 1):
        raise InvalidError(
            f"{places} places in a ring: choose a power of two from 32 to {SPRAYER_PLACES_MAX}"
        )
    if pin and len(pin) != cores:
        raise InvalidError(f"{len(pin)} processors for {cores} cores: give one for each, or none")
