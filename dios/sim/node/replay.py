"""Replays a recorded node: the same events and entropy must give the same outcomes in a new core.

A recording is a sequence of frames, each a 4-byte little-endian length and a MessagePack ``Recorded``. The
first frame has the node's owner and mode. Recordings are made by ``dios.host.loop.recorder``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3
from msgspec import Struct, msgpack

from dios.core import snapshot
from dios.core.events import Event
from dios.core.machine import Core
from dios.core.model.invariants import check
from dios.core.recording import Recorded, RecordingHeader

_LENGTH: Final = struct.Struct("<I")


class ReplayResult(Struct, frozen=True):
    """The number of events that were replayed as recorded, and the place of the first that was not.

    ``difference`` is "outcome", "entropy" or "state", and empty where every step was as recorded. States are
    compared after every step with a recorded digest.
    """

    events: int
    first_difference: int | None
    difference: str = ""


def replay(path: Path) -> ReplayResult:
    """Run a recording through a new core; check invariants and the digest of every outcome."""
    frames = _frames(path.read_bytes())
    header = msgpack.decode(next(frames), type=RecordingHeader)
    entropy = bytearray()

    def draw(size: int) -> bytes:
        if len(entropy) < size:
            raise ValueError("the replay draws more entropy than was recorded")
        drawn = bytes(entropy[:size])
        del entropy[:size]
        return drawn

    core = Core(
        draw,
        header.owner,
        restricted=header.restricted,
        defaults=header.defaults,
        here=header.here,
        forgotten=header.forgotten,
    )
    count = 0
    for frame in frames:
        recorded = msgpack.decode(frame, type=Recorded)
        entropy[:] = recorded.entropy
        event: Event = recorded.event
        outcome = core.step(event)
        check(core.state)
        if blake3(msgpack.encode(outcome)).digest() != recorded.digest:
            return ReplayResult(count, count, "outcome")
        if entropy:
            return ReplayResult(count, count, "entropy")
        if recorded.state and snapshot.digest(core.state) != recorded.state:
            return ReplayResult(count, count, "state")
        count += 1
    return ReplayResult(count, None)


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield whole frames; the last frame may be cut off because the node was killed."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if start + length > len(data):
            return
        yield data[start : start + length]
        start += length
