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
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.limits import SPRAYER_BATCH, SPRAYER_PLACES
from dios.sprayer.linux import ring_kernels as kernels
from dios.sprayer.linux import wait_kernels as waiting
from dios.sprayer.linux.af_xdp import AfXdpEngine
from dios.sprayer.linux.engine_terms import CoreStatistics, check, fill_waiting, steered
from dios.sprayer.linux.fanout import program
from dios.sprayer.linux.forwarding import check_forwarding
from dios.sprayer.linux.offloads import RECORDS, without_offloads
from dios.sprayer.linux.packet_socket import Interface, PacketSocket, interface
from dios.sprayer.packets.packet import INSIDE, OUTSIDE

ENGINES: Final = ("af_packet", "af_xdp")


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
        check(pairs, cores, places, pin)
        how = steered(steer)
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
        files = [sockets[core].fileno() for sockets in self._sockets]
        self._kept.extend([vectors, messages, *fill_waiting(words, files, pin[core] if pin else None)])
        words[kernels.PLACES], words[kernels.CORES] = places, self.cores
        words[kernels.MESSAGES], words[kernels.VECTORS] = messages.ctypes.data, vectors.ctypes.data
        for port, sockets in enumerate(self._sockets):
            socket, base = sockets[core], kernels.FIRST_PORT + port * kernels.PORT_WORDS
            ring = socket.ring()
            self._rings.append(ring)
            words[base + kernels.RING], words[base + kernels.SOCKET] = ring.ctypes.data, socket.fileno()
            words[base + kernels.TO] = port ^ 1
            words[base + kernels.SIDE] = OUTSIDE if port & 1 else INSIDE
            words[base + kernels.PLACE_BYTES] = ring.shape[1]

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
            waits=int(words[waiting.WAITS]),
        )

    def waiting(self, core: int) -> int:
        """Frames that lie in one core's rings now, and that it did not receive yet."""
        ports = len(self._sockets)
        rings = self._rings[core * ports : (core + 1) * ports]
        states = [ring[:, :4].view(np.uint32) & (kernels.USER | kernels.TAKEN) for ring in rings]
        return sum(int(np.count_nonzero(each == kernels.USER)) for each in states)

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
    how: str = "af_packet",
    steer: str = "spray",
    places: int = SPRAYER_PLACES,
    pin: Sequence[int] = (),
    secret: int | None = None,
    records: Path = RECORDS,
) -> Iterator[AfPacketEngine | AfXdpEngine]:
    """An engine between interfaces that have no offloads meanwhile; it takes what both take.

    ``how`` is ``af_packet``, or ``af_xdp``. Workers must have stopped before its end. Raises what
    the engine, ``without_offloads`` and ``check_forwarding`` do.
    """
    check(pairs, cores, places, pin)
    if how not in ENGINES:
        raise InvalidError(f"frames by {how!r}: choose {' or '.join(ENGINES)}")
    names = [name for pair in pairs for name in pair]
    if how == "af_packet":
        check_forwarding(names)
    made = AfPacketEngine if how == "af_packet" else AfXdpEngine
    with (
        without_offloads(names, records, tags=how == "af_xdp"),
        made(pairs, cores, steer=steer, places=places, pin=pin, secret=secret) as engine,
    ):
        yield engine


def processors(cores: int) -> list[int]:
    """A processor for each of so many workers, or none if there are fewer that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[:cores] if len(allowed) >= cores else []
