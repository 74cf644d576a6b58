"""Runs a recorded node again: the same events and entropy must give the same outcomes in a new core.

A recording is a sequence of frames, each a 4-byte little-endian length and a MessagePack ``Recorded``. The
first frame is the header. ``dios.host.loop.recorder`` writes recordings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3
from msgspec import msgpack

from dios.core import snapshot
from dios.core.effects import Outcome
from dios.core.events import Event
from dios.core.machine import Core
from dios.core.model.invariants import check
from dios.core.model.story import StoryEntry
from dios.core.recording import RECORDING_VERSION, Recorded, RecordingHeader
from dios.errors import InvalidError, InvariantError

_LENGTH: Final = struct.Struct("<I")


class ReplayedStep(NamedTuple):
    """A step of a replay; the first one has the number 1.

    ``difference`` is "outcome", "entropy", "state" or "defect", and empty if the step is as recorded. States
    are compared where the recording has a digest. The core is of no use after a difference.
    """

    number: int
    event: Event
    outcome: Outcome | None
    story: tuple[StoryEntry, ...]
    difference: str


class Replay:
    """A new core that takes the events of a recording one at a time, while ``steps`` is iterated over.

    Raises InvalidError if the bytes are no recording of this version.
    """

    def __init__(self, data: bytes) -> None:
        self._frames: Final = _frames(data)
        self._entropy: Final = bytearray()
        header = self._header()
        self.core: Final = Core(
            self._draw,
            header.owner,
            restricted=header.restricted,
            defaults=header.defaults,
            here=header.here,
            forgotten=header.forgotten,
        )

    def steps(self) -> Iterator[ReplayedStep]:
        """Yield each step after the core has taken it, and end after the first difference.

        Raises InvalidError if a frame is no step of this version.
        """
        for number, frame in enumerate(self._frames, 1):
            try:
                recorded = msgpack.decode(frame, type=Recorded)
            except (msgspec.DecodeError, ValueError) as error:
                raise InvalidError(f"cannot replay step {number}: {error}") from None
            self._entropy[:] = recorded.entropy
            story = self.core.state.story
            former = story[-1] if story else None
            outcome, difference = self._step(recorded)
            new = tuple(takewhile(lambda entry: entry is not former, reversed(story)))  # noqa: B023 - used here
            yield ReplayedStep(number, recorded.event, outcome, new[::-1], difference)
            if difference:
                return

    def _header(self) -> RecordingHeader:
        try:
            header = msgpack.decode(next(self._frames, b""), type=RecordingHeader)
        except (msgspec.DecodeError, ValueError):
            raise InvalidError(
                "this is no recording of a node. The setting `record` of a node names the file."
            ) from None
        if header.version != RECORDING_VERSION:
            raise InvalidError(
                f"the recording has version {header.version}, and this program reads {RECORDING_VERSION}. "
                "Replay it with the release that wrote it."
            )
        return header

    def _step(self, recorded: Recorded) -> tuple[Outcome | None, str]:
        """Return the outcome of a step, and how it differs from the recorded one."""
        try:
            outcome = self.core.step(recorded.event)
            check(self.core.state)
        except InvariantError:
            return None, "defect"  # of the step that is looked for; the core is used no more
        if blake3(msgpack.encode(outcome)).digest() != recorded.digest:
            return outcome, "outcome"
        if self._entropy:
            return outcome, "entropy"
        if recorded.state and snapshot.digest(self.core.state) != recorded.state:
            return outcome, "state"
        return outcome, ""

    def _draw(self, size: int) -> bytes:
        if len(self._entropy) < size:
            raise ValueError("the step draws more entropy than the recorded one")
        drawn = bytes(self._entropy[:size])
        del self._entropy[:size]
        return drawn


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield whole frames; the last one may be cut off because the node was killed."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if start + length > len(data):
            return
        yield data[start : start + length]
        start += length
