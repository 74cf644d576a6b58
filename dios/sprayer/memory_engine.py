"""An engine whose frames are all in memory from the start, for tests, files and figures.

Nothing waits here, so a worker without frames has an idle turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.sprayer.compile.intrinsics import array_at, callable_at, copy_bytes, int64, uint8
from dios.sprayer.packets.packet import BACK, DROP, PACKET

_WORD: Final = np.dtype(np.int64)
_BYTE: Final = np.dtype(np.uint8)

# A core's context: addresses and sizes of its arrays, and its progress in them.
_OWN: Final = 0
_OWN_SIZE: Final = 1
_NEXT: Final = 2
_FRAMES: Final = 3
_COUNT: Final = 4
_SENT: Final = 5
_SENT_SIZE: Final = 6
_SENT_NEXT: Final = 7
_BYTES: Final = 8
_BYTES_SIZE: Final = 9
_BYTES_NEXT: Final = 10
_RELEASED: Final = 11
_REPEATS: Final = 12
_GROW: Final = 13
_WORDS: Final = 16


def _receive(context: int, packets: int, room: int) -> int:
    words = array_at(context, (_WORDS,), _WORD)
    mine = array_at(words[_OWN], (words[_OWN_SIZE],), _WORD)
    frames = array_at(words[_FRAMES], (words[_COUNT], 3), _WORD)
    batch = array_at(packets, (room,), PACKET)
    count = min(room, words[_OWN_SIZE] - words[_NEXT])
    for i in range(count):
        frame = mine[words[_NEXT] + i]
        batch[i].address, batch[i].length, batch[i].side = (
            frames[frame, 0],
            frames[frame, 1],
            frames[frame, 2],
        )
        batch[i].frame = frame
        batch[i].room = min(frames[frame, 1] + words[_GROW], 65_535)
    words[_NEXT] += count
    if words[_REPEATS] > 0 and words[_NEXT] == words[_OWN_SIZE]:
        words[_REPEATS] -= 1
        words[_NEXT] = 0
    return int(count)


def _transmit(context: int, packets: int, count: int) -> int:
    words = array_at(context, (_WORDS,), _WORD)
    batch = array_at(packets, (count,), PACKET)
    if words[_BYTES] == 0:
        sent = 0
        for i in range(count):
            sent += 1 if batch[i].verdict != DROP else 0
        return sent
    out = array_at(words[_SENT], (words[_SENT_SIZE], 4), _WORD)
    sent = 0
    for i in range(count):
        if batch[i].verdict == DROP:
            continue
        length, at = int64(batch[i].length), words[_BYTES_NEXT]
        if words[_SENT_NEXT] == words[_SENT_SIZE] or at + length > words[_BYTES_SIZE]:
            break
        copy_bytes(words[_BYTES] + at, batch[i].address, length)
        row = out[words[_SENT_NEXT]]
        row[0], row[1], row[2], row[3] = batch[i].frame, at, length, batch[i].verdict == BACK
        words[_SENT_NEXT] += 1
        words[_BYTES_NEXT] += length
        sent += 1
    return sent


def _release(context: int, frames: int, count: int) -> int:
    words = array_at(context, (_WORDS,), _WORD)
    released = array_at(words[_RELEASED], (words[_COUNT],), _BYTE)
    numbers = array_at(frames, (count,), _WORD)
    for i in range(count):
        released[numbers[i]] += uint8(1)
    return count


@cache
def _functions() -> tuple[int, int, int]:
    return callable_at(_receive), callable_at(_transmit), callable_at(_release)


class SentFrame(NamedTuple):
    """A transmitted frame."""

    frame: int
    """The index of the frame in the constructor's order."""
    core: int
    data: bytes
    back: bool = False
    """True if it left at the side where it came in."""


class MemoryEngine:
    """Frames for workers, and a record of what was transmitted.

    ``frames`` have a ``side`` each (0 by default). ``steer`` (N,) is the core of arrival of each frame, in
    this order or that of ``order``. ``room`` is the number of bytes that each core may transmit, by default
    twice the input; with 0 the output is counted and not stored. ``again`` is the number of times that each
    core receives the same frames again, for figures. A frame may grow by ``grow`` bytes.
    """

    frees_in_order: bool = True

    def __init__(
        self,
        frames: Sequence[bytes],
        cores: int = 1,
        *,
        sides: Sequence[int] = (),
        steer: npt.ArrayLike = (),
        order: npt.ArrayLike = (),
        room: int | None = None,
        again: int = 0,
        grow: int = 0,
    ) -> None:
        count = len(frames)
        self.cores: Final = cores
        self.receive, self.transmit, self.release = _functions()
        lengths = np.array([len(frame) for frame in frames], np.int64)
        self._data: Final = np.frombuffer(bytearray(bytes(grow).join([*frames, b"\0"])), np.uint8)
        self._frames: Final = np.zeros((max(count, 1), 3), np.int64)
        self._frames[:count, 0] = self._data.ctypes.data + np.cumsum(lengths + grow) - (lengths + grow)
        self._frames[:count, 1] = lengths
        self._frames[:count, 2] = sides if len(sides) else 0
        cores_of = np.asarray(steer, np.int64)
        cores_of = cores_of if cores_of.size else np.zeros(count, np.int64)
        ordered = np.asarray(order, np.int64)
        ordered = ordered if ordered.size else np.arange(count)
        self.released: Final = np.zeros(count, np.uint8)
        """(N,) the number of times that each frame was released: 1 at the end."""
        self._mine: Final = [
            np.ascontiguousarray(ordered[cores_of[ordered] == core]) for core in range(cores)
        ]
        space = 2 * int(lengths.sum()) + grow * count + 64 if room is None else room
        self._sent: Final = [np.zeros((count + 1, 4), np.int64) for _ in range(cores)]
        self._bytes: Final = [np.zeros(max(space, 1), np.uint8) for _ in range(cores)]
        self._contexts: Final = np.zeros((cores, _WORDS), np.int64)
        for core, words in enumerate(self._contexts):
            words[_OWN], words[_OWN_SIZE] = self._mine[core].ctypes.data, self._mine[core].size
            words[_FRAMES], words[_COUNT] = self._frames.ctypes.data, len(self._frames)
            words[_SENT], words[_SENT_SIZE] = self._sent[core].ctypes.data, count
            words[_BYTES], words[_BYTES_SIZE] = self._bytes[core].ctypes.data if space else 0, space
            words[_RELEASED], words[_REPEATS], words[_GROW] = self.released.ctypes.data, again, grow

    def context(self, core: int) -> int:
        """Return the address of the context of a core."""
        return int(self._contexts[core].ctypes.data)

    def waiting(self) -> int:
        """Return the number of frames that no worker has received yet."""
        words = self._contexts
        return int((words[:, _OWN_SIZE] - words[:, _NEXT] + words[:, _REPEATS] * words[:, _OWN_SIZE]).sum())

    def sent(self) -> list[SentFrame]:
        """Return the transmitted frames by core, in order of transmission."""
        return [
            SentFrame(int(frame), core, self._bytes[core][at : at + length].tobytes(), bool(back))
            for core in range(self.cores)
            for frame, at, length, back in self._sent[core][: self._contexts[core, _SENT_NEXT]]
        ]
