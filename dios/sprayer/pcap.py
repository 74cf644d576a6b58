"""Replay of pcap files through a network function, without root and without interfaces.

Classic pcap files of both byte orders, with microseconds or nanoseconds, of Ethernet are supported. A pcapng
file is refused; ``editcap -F pcap`` of Wireshark converts it.

Frames are processed in order, in parts of ``SPRAYER_REPLAY_BYTES``. The function sees the time of the file,
and frames keep their times.
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
    """The file is not a pcap file that can be read; the message gives the reason and the place."""


class Frame(NamedTuple):
    """A packet of a file."""

    time_ns: int
    data: bytes
    length: int
    """The length on the wire; ``data`` may be only the beginning."""


def read_pcap(file: BinaryIO, name: str) -> Iterator[Frame]:
    """Yield the packets of a file; raise :class:`PcapError` if it is invalid."""
    head = file.read(24)
    if len(head) < 24:
        raise PcapError(f"{name}: not a pcap file: it has {len(head)} bytes, its header alone needs 24")
    order, unit_ns = _kind(head[:4], name)
    (link,) = struct.unpack(f"{order}20xI", head)
    if link & 0x0FFFFFFF != _ETHERNET:
        raise PcapError(
            f"{name}: cannot read packets of link type {link & 0x0FFFFFFF}; only 1 (Ethernet) is supported"
        )
    at = 24
    while row := file.read(16):
        if len(row) < 16:
            raise PcapError(f"{name}: the file ends in the header of a packet, at byte {at}")
        seconds, parts, size, length = struct.unpack(f"{order}4I", row)
        if size > 4 * SPRAYER_FRAME_BYTES_MAX:
            raise PcapError(f"{name}: the file is damaged: a packet at byte {at} claims {size} bytes")
        data = file.read(size)
        if len(data) < size:
            raise PcapError(f"{name}: the file ends in a packet, at byte {at}: {len(data)} of {size} bytes")
        at += 16 + size
        yield Frame(seconds * 10**9 + parts * unit_ns, data, length)


def _kind(magic: bytes, name: str) -> tuple[str, int]:
    """Return the byte order, and the nanoseconds of one unit of time."""
    for order in "<>":
        (number,) = struct.unpack(f"{order}I", magic)
        if number in (_MICRO, _NANO):
            return order, 1 if number == _NANO else 1_000
        if number == _NG:
            raise PcapError(
                f"{name}: this is a pcapng file. Convert it to a classic one: editcap -F pcap {name} out.pcap"
            )
    raise PcapError(f"{name}: not a pcap file: it begins with the bytes {magic.hex()}")


class PcapWriter:
    """A writer of pcap files with times in nanoseconds, in the byte order of this machine."""

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file
        file.write(struct.pack("=IHHiIII", _NANO, 2, 4, 0, 0, 4 * SPRAYER_FRAME_BYTES_MAX, _ETHERNET))

    def write(self, time_ns: int, data: bytes) -> None:
        """Write one packet."""
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
) -> Statistics:
    """Send the packets of a file through a function and write the result to another file; return statistics.

    ``side`` returns 0 for a frame from inside (the default for all frames) and 1 for one from outside. With
    several ``cores`` the frames are dealt out one by one and the cores take turns: their order may change,
    but is the same in each run. ``progress`` is called with the number of bytes read so far.

    Raises :class:`PcapError`, ``OSError``, and ``HandlerError`` for handlers that cannot be compiled.
    """
    source, target = Path(source), Path(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise PcapError(f"{target}: cannot write to the file that is being read. Name another output file.")
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
                workers = Workers(function, engine, seed=1, now=now)
            else:
                # Search each whole table eight times within the idle time of a flow.
                passed = now - int(workers.control[NOW])
                workers.set_time(now)
                workers.expire_flows(8 * passed / max(workers.flows[0].idle, 1))
                workers.change_engine(engine)
            if writer is None:
                writer = PcapWriter(stack.enter_context(target.open("wb")))
            workers.drain()
            for sent_frame in sorted(engine.sent()):
                writer.write(part[sent_frame.frame].time_ns, sent_frame.data)
            done += sum(len(data) for data in frames)
            if progress:
                progress(done)
    assert workers is not None  # noqa: S101 - there is always one part
    return workers.statistics()


def _parts(frames: Iterator[Frame], grow: int) -> Iterator[list[Frame]]:
    """Yield frames in parts of one second and at most ``SPRAYER_REPLAY_BYTES``; one empty part if none.

    Each frame may grow by ``grow`` bytes.
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
