"""An engine on packet sockets with rings, and the choice between it and AF_XDP.

It runs a network function between interfaces of this machine, as root (thesis section 3.3). Offloads must be
off (``offloads.py``), and frames within the MTU (``frame_sizes.py``).

Each worker has a socket on every interface; the sockets of one interface form a group, in which the kernel
runs a program for each frame (``fanout.py``). Frames from the first interface of a pair leave by the second,
and the other way round. The kernel also sees the frames: an interface should have no address, and one from
which the kernel forwards packets to its address is refused (``forwarding.py``).
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
from dios.sprayer.linux.engine_options import CoreStatistics, check_options, fill_waiting, parse_steering
from dios.sprayer.linux.fanout import program
from dios.sprayer.linux.forwarding import check_forwarding
from dios.sprayer.linux.frame_sizes import within_mtu
from dios.sprayer.linux.offloads import RECORDS, without_offloads
from dios.sprayer.linux.packet_socket import Interface, PacketSocket, interface
from dios.sprayer.packets.packet import INSIDE, OUTSIDE

ENGINES: Final = ("af_packet", "af_xdp")


class AfPacketEngine:
    """An :class:`~dios.sprayer.engine.Engine` between pairs of interfaces; a context manager, open at once.

    ``pairs``: the inside and the outside interface of each pair. ``steer`` as in ``fanout.steering``.
    ``places``: the maximum number of frames of each core and interface, a power of two. ``pin``: the
    processor of each worker, to which its thread moves at its first reception. ``secret`` (64 bits) is the
    seed of the hash that steers, random by default. Workers with the same seed have the same hash: then TCP
    and UDP frames that are steered by flow arrive on their designated cores. ``quic_ports``: packets
    of QUIC of these UDP ports are sprayed, too.

    Raises InvalidError for invalid options or interfaces, NotPermittedError without the needed privileges.
    """

    frees_in_order: Final = True

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
        steering = parse_steering(steer, quic_ports)
        self.cores: Final = cores
        self._quic_ports: Final = quic_ports
        self.interfaces: Final = [interface(name) for pair in pairs for name in pair]
        self.receive, self.transmit, self.release = kernels.functions()
        self._sockets: Final[list[list[PacketSocket]]] = []
        self._rings: Final[list[npt.NDArray[np.uint8]]] = []
        self._contexts: Final = np.zeros((cores, kernels.WORDS), np.int64)
        self._kept: Final[list[npt.NDArray[np.int64]]] = []
        self.secret: Final = secrets.randbits(64) if secret is None else secret
        text = program(steering, cores, self.secret)
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            for device in self.interfaces:
                self._open(device, places, text)
            for core in range(cores):
                self._fill(core, places, pin)
            for sock in self._all():
                sock.open_up()
            stack.pop_all()

    def _all(self) -> list[PacketSocket]:
        return [sock for sockets in self._sockets for sock in sockets]

    def _open(self, device: Interface, places: int, text: bytes) -> None:
        """Open a socket on one interface for each core, as a group."""
        sockets: list[PacketSocket] = []
        self._sockets.append(sockets)
        group = None
        for _ in range(self.cores):
            sockets.append(PacketSocket(device, places))  # noqa: PERF401 - what is open is closed if one fails
        try:
            for sock in sockets:
                group = sock.join(group)
            sockets[0].choose_by(text)
        except OSError as error:
            raise InvalidError(
                f"{device.name}: cannot share its frames among sockets: {error.strerror}"
            ) from None

    def _fill(self, core: int, places: int, pin: Sequence[int]) -> None:
        """Fill in the context of one core."""
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

    def change_steering(self, steer: str) -> None:
        """Steer frames differently from now on, while workers run. Raises ``OSError``."""
        text = program(parse_steering(steer, self._quic_ports), self.cores, self.secret)
        for sockets in self._sockets:
            sockets[0].choose_by(text)

    def context(self, core: int) -> int:
        """Return the address of the context of a core."""
        return int(self._contexts[core].ctypes.data)

    def statistics(self, core: int) -> CoreStatistics:
        """Return the statistics of one core's sockets."""
        words = self._contexts[core]
        counts = [sockets[core].statistics() for sockets in self._sockets]
        return CoreStatistics(
            arrived=sum(arrived for arrived, _ in counts),
            no_place=sum(lost for _, lost in counts),
            cut=int(words[kernels.CUT]),
            tagged=int(words[kernels.TAGGED]),
            finished=int(words[kernels.FINISHED]),
            refused=int(words[kernels.REFUSED]),
            waits=int(words[waiting.WAITS]),
        )

    def waiting(self, core: int) -> int:
        """Return the number of frames in one core's rings that it has not received yet."""
        ports = len(self._sockets)
        rings = self._rings[core * ports : (core + 1) * ports]
        states = [ring[:, :4].view(np.uint32) & (kernels.USER | kernels.TAKEN) for ring in rings]
        return sum(int(np.count_nonzero(state == kernels.USER)) for state in states)

    def close(self) -> None:
        """Close sockets and rings and leave promiscuous mode; only after all workers have stopped."""
        self._contexts[:] = 0
        self._rings.clear()
        for sock in self._all():
            sock.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def open_engine(
    pairs: Sequence[tuple[str, str]],
    cores: int = 1,
    *,
    how: str = "af_packet",
    steer: str = "spray",
    places: int = SPRAYER_PLACES,
    pin: Sequence[int] = (),
    secret: int | None = None,
    quic_ports: Sequence[int] = (),
    records: Path = RECORDS,
) -> Iterator[AfPacketEngine | AfXdpEngine]:
    """Open an engine between interfaces, and switch their offloads off in the meantime.

    ``how`` is ``af_packet`` or ``af_xdp``. Workers must have stopped before the end of the context. Raises
    the errors of the engine, of ``without_offloads`` and of ``check_forwarding``.
    """
    check_options(pairs, cores, places, pin)
    if how not in ENGINES:
        raise InvalidError(f"unknown engine {how!r}: choose {' or '.join(ENGINES)}")
    names = [name for pair in pairs for name in pair]
    if how == "af_packet":
        check_forwarding(names)
    engine_class = AfPacketEngine if how == "af_packet" else AfXdpEngine
    with (
        # Before offloads: attaching a program may switch one on.
        within_mtu(names if how == "af_packet" else []),
        without_offloads(names, records, tags=how == "af_xdp"),
        engine_class(
            pairs, cores, steer=steer, places=places, pin=pin, secret=secret, quic_ports=quic_ports
        ) as engine,
    ):
        yield engine


def processors(cores: int) -> list[int]:
    """Return a processor for each worker, or none if this process may use fewer processors."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[:cores] if len(allowed) >= cores else []
