"""Files of packets as they are: replayed through a network function, without root and without interfaces.

For: ``dios nf replay`` and tests. Classic pcap of either byte order, in micro- and nanoseconds, of
Ethernet. Not for: pcapng, which is refused; ``editcap -F pcap`` of Wireshark makes classic files of it.

Frames go through in their order, in parts of ``SPRAYER_REPLAY_BYTES``; the time that the function sees is
that of the file, and frames keep their times.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from dios.errors import InvalidError
from dios.limits import SPRAYER_FRAME_BYTES_MAX, SPRAYER_REPLAY_BYTES
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import INSIDE
from dios.sprayer.runtime.worker_kernels import NOW
from dios.sprayer.runtime.workers import Statistics, Workers

_MICRO: Final = 0xA1B2C3D4
_NANO: Final = 0xA1B23C4D
_NG: Final = 0x0A0D0D0A
_ETHERNET: Final = 1


class PcapError(InvalidError):
    """The file is no pcap that can be read; the message says what it is instead, and where."""


class Frame(NamedTuple):
    """A packet of a file."""

    time_ns: int
    data: bytes
    length: int
    """What it was on the wire, of which ``data`` may be the beginning only."""


def read_pcap(file: BinaryIO, name: str) -> Iterator[Frame]:
    """The packets of a file, one after the other. :class:`PcapError`."""
    head = file.read(24)
    if len(head) < 24:
        raise PcapError(f"{name}: {len(head)} bytes are no pcap file: its header alone has 24")
    order, unit_ns = _kind(head[:4], name)
    (link,) = struct.unpack(f"{order}20xI", head)
    if link & 0x0FFFFFFF != _ETHERNET:
        raise PcapError(f"{name}: packets of link type {link & 0x0FFFFFFF}: only Ethernet, 1, is understood")
    at = 24
    while row := file.read(16):
        if len(row) < 16:
            raise PcapError(f"{name}: the file ends within the header of a packet, at byte {at}")
        seconds, parts, size, length = struct.unpack(f"{order}4I", row)
        if size > 4 * SPRAYER_FRAME_BYTES_MAX:
            raise PcapError(f"{name}: a packet of {size} bytes at byte {at}: the file is damaged")
        data = file.read(size)
        if len(data) < size:
            raise PcapError(
                f"{name}: the file ends within a packet, at byte {at}: {len(data)} bytes of {size}"
            )
        at += 16 + size
        yield Frame(seconds * 10**9 + parts * unit_ns, data, length)


def _kind(magic: bytes, name: str) -> tuple[str, int]:
    """The byte order, and nanoseconds for each unit of time."""
    for order in "<>":
        (number,) = struct.unpack(f"{order}I", magic)
        if number in (_MICRO, _NANO):
            return order, 1 if number == _NANO else 1_000
        if number == _NG:
            raise PcapError(
                f"{name}: this is pcapng; make a classic file of it: editcap -F pcap {name} out.pcap"
            )
    raise PcapError(f"{name}: it begins with {magic.hex()}, as no pcap file does")


class PcapWriter:
    """Writes packets into a file, with times in nanoseconds, of this machine's byte order."""

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file
        file.write(struct.pack("=IHHiIII", _NANO, 2, 4, 0, 0, 4 * SPRAYER_FRAME_BYTES_MAX, _ETHERNET))

    def write(self, time_ns: int, data: bytes) -> None:
        """One more packet."""
        seconds, rest = divmod(time_ns, 10**9)
        self._file.write(struct.pack("=4I", seconds, rest, len(data), len(data)) + data)


def replay(
    source: Path,
    target: Path,
    function: NetworkFunction | None,
    *,
    cores: int = 1,
    side: Callable[[bytes], int] | None = None,
    progress: Callable[[int], None] | None = None,
    seed: int = 1,
) -> Statistics:
    """Let a file's packets go through a function, into another file; what was counted.

    ``side`` tells by a frame's bytes whether it came from inside (0, and so it is without) or outside (1).
    With several ``cores`` frames are dealt to them one by one, which take turns: the order of what comes
    out may be another then, and it is the same each time. ``progress`` is told how many bytes of frames
    were read. :class:`PcapError`, ``OSError``; ``HandlerError`` for handlers that cannot be compiled.
    """
    source, target = Path(source), Path(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise PcapError(f"{target}: it would be written while it is read; name another file for the result")
    workers: Workers | None = None
    with ExitStack() as stack:
        file = stack.enter_context(source.open("rb"))
        writer: PcapWriter | None = None
        done = 0
        grow = function.grows if function else 0
        for part in _parts(read_pcap(file, str(source)), grow):
            frames = [frame.data for frame in part]
            sides = [side(data) if side else INSIDE for data in frames]
            steer = np.arange(len(frames)) % cores
            engine = MemoryEngine(frames, cores, sides=sides, steer=steer, grow=grow)
            now = part[0].time_ns // 10**9 + 1 if part else 1
            if workers is None:
                workers = Workers(function, engine, seed=seed, now=now)
            else:
                # All of each table eight times in the time that a flow may be idle.
                passed = now - int(workers.control[NOW])
                workers.tell_time(now)
                workers.tend(8 * passed / max(workers.flows[0].idle, 1))
                workers.change_engine(engine)
            if writer is None:
                writer = PcapWriter(stack.enter_context(target.open("wb")))
            workers.drain()
            for each in sorted(engine.sent()):
                writer.write(part[each.frame].time_ns, each.data)
            done += sum(len(data) for data in frames)
            if progress:
                progress(done)
    assert workers is not None  # noqa: S101 - there is always one part
    return workers.statistics()


def _parts(frames: Iterator[Frame], grow: int) -> Iterator[list[Frame]]:
    """Frames of one second and so many bytes together; one empty part if there are none.

    Each may become ``grow`` bytes longer.
    """
    part: list[Frame] = []
    size = 0
    first = True
    for frame in frames:
        large = size + len(frame.data) + grow > SPRAYER_REPLAY_BYTES
        if part and (large or _second(frame) != _second(part[0])):
            first = False
            yield part
            part, size = [], 0
        part.append(frame)
        size += len(frame.data) + grow
    if part or first:
        yield part


def _second(frame: Frame) -> int:
    return frame.time_ns // 10**9
