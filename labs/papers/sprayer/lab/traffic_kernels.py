"""The compiled loops of a sender and a sink of frames, each for a thread of its own.

``traffic`` prepares their memory. Both run until their first word is set, and pause for tens of microseconds
when there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numba import types

from dios.sprayer.compile.intrinsics import array_at, callable_at, load_acquire, peek16, peek32, store_release
from labs.papers.sprayer.lab.frames import FLOW, NUMBER

if TYPE_CHECKING:
    import numpy.typing as npt

    _Flags = npt.NDArray[np.uint32]

_WORD: Final = np.dtype(np.int64)
_FLAG: Final = np.dtype(np.uint32)
_HALF: Final = np.dtype(np.uint16)
MESSAGE_BYTES: Final = 64
SECOND: Final = 1_000_000_000
_TIMER_SLACK: Final = 29

STOP: Final = 0
SOCKET: Final = 1
PAUSE: Final = 2
"""The address of the pause, as the kernel reads it."""
CLOCK: Final = 3
"""The address to which the kernel writes the time."""
QUEUES: Final = 4
QUEUES_AT: Final = 5
BATCH: Final = 6
RATE: Final = 7
"""Frames per second, or 0 to send at the rate of processing."""
WINDOW: Final = 8
"""The largest number of frames of one queue in transit."""
STAMPS: Final = 9
"""The address of the sending time of each frame, or 0."""
REFUSED: Final = 10
LATE_MAX: Final = 11
"""The largest number of frames to catch up with after a pause; further ones are skipped."""
SKIPPED: Final = 12
SENDER_WORDS: Final = 16

# The words of a queue: its messages, their number, the frames in each, and the number of frames sent.
MESSAGES: Final = 0
SIZE: Final = 1
BURST: Final = 2
SENT: Final = 3
COUNTER: Final = 4
"""The address of the first counter of processed frames, or 0; then their number and their distance."""
COUNTERS: Final = 5
STRIDE: Final = 6
BASE: Final = 7
"""The sum of the counters at the start."""
QUEUE_WORDS: Final = 8

RING: Final = 4
PLACES: Final = 5
PLACE_BYTES: Final = 6
POSITION: Final = 7
FLOWS: Final = 8
PER_FLOW: Final = 9
"""The number of frames of each flow, which repeat."""
PAYLOAD: Final = 10
LAST: Final = 11
"""The address of the highest number of each flow."""
ARRIVED: Final = 12
LATE: Final = 13
"""The number of frames that arrived after a later one of their flow."""
LATE_3: Final = 14
"""Among them, the number of those after three or more later ones."""
DELAYS: Final = 15
DELAYS_SIZE: Final = 16
DELAYS_COUNT: Final = 17
SENT_AT: Final = 18
"""The address of the sending times, or 0."""
SINK_WORDS: Final = 24

_int, _long = types.int32, types.int64
_Whole = int | np.int32 | np.uint32 | np.int64
_Two = Callable[[_Whole, _Whole], int]
_Four = Callable[[_Whole, _Whole, _Whole, _Whole], int]
_sendmmsg: Final = cast("_Four", types.ExternalFunction("sendmmsg", _int(_int, _long, types.uint32, _int)))
_clock_gettime: Final = cast("_Two", types.ExternalFunction("clock_gettime", _int(_int, _long)))
_prctl: Final = cast("_Two", types.ExternalFunction("prctl", _int(_int, _long)))
_nanosleep: Final = cast("_Two", types.ExternalFunction("nanosleep", _int(_long, _long)))
_load: Final = cast("Callable[[npt.NDArray[np.uint32], int], np.uint32]", load_acquire)
_store: Final = cast("Callable[[npt.NDArray[np.uint32], int, np.uint32], None]", store_release)


def _send(context: int, _one: int, _two: int) -> int:
    """Send messages of all queues in turn, repeating each queue, at a rate or as their counters allow."""
    words = array_at(context, (SENDER_WORDS,), _WORD)
    queues = array_at(words[QUEUES_AT], (words[QUEUES], QUEUE_WORDS), _WORD)
    clock = array_at(words[CLOCK], (2,), _WORD)
    stamps = array_at(words[STAMPS], (1 << 60,), _WORD)
    # Keep the kernel from prolonging the pauses.
    _prctl(np.int32(_TIMER_SLACK), np.int64(1))
    _clock_gettime(np.int32(0), words[CLOCK])
    now = begun = clock[0] * SECOND + clock[1]
    while load_acquire(words, STOP) == 0:
        moved = 0
        for which in range(words[QUEUES]):
            sent, size, burst = queues[which, SENT], queues[which, SIZE], queues[which, BURST]
            at = sent // burst % size
            due = words[BATCH]
            if words[RATE]:
                _clock_gettime(np.int32(0), words[CLOCK])
                now = clock[0] * SECOND + clock[1]
                due = (now - begun) * words[RATE] // SECOND - sent - words[SKIPPED]
                words[SKIPPED] += max(due - words[LATE_MAX], 0)
            if queues[which, COUNTER]:
                room = words[WINDOW] - sent - queues[which, BASE]
                for index in range(queues[which, COUNTERS]):
                    address = queues[which, COUNTER] + index * queues[which, STRIDE]
                    room += load_acquire(array_at(address, (1,), _WORD), 0)
                due = room if room >= words[BATCH] else 0
            count = min(min(words[BATCH], due) // burst, size - at)
            if count <= 0:
                continue
            if words[STAMPS]:
                for i in range(count):
                    stamps[at + i] = now
            vector = queues[which, MESSAGES] + at * MESSAGE_BYTES
            took = np.int64(_sendmmsg(np.int32(words[SOCKET]), vector, np.uint32(count), np.int32(0)))
            words[REFUSED] += took <= 0
            gone = max(took, np.int64(0)) * burst
            queues[which, SENT] += gone
            moved += int(gone)
        if moved == 0:
            _nanosleep(words[PAUSE], np.int64(0))
    return 0


def _receive(context: int, _one: int, _two: int) -> int:
    """Count arriving frames, their order and their delays."""
    words = array_at(context, (SINK_WORDS,), _WORD)
    last = array_at(words[LAST], (words[FLOWS],), _WORD)
    stamps = array_at(words[SENT_AT], (1 << 60,), _WORD)
    delays = array_at(words[DELAYS], (words[DELAYS_SIZE],), _WORD)
    half = words[PER_FLOW] // 2
    while load_acquire(words, STOP) == 0:
        moved = 0
        for _ in range(words[PLACES]):
            at = words[RING] + words[POSITION] * words[PLACE_BYTES]
            flags: _Flags = array_at(at, (8,), _FLAG)
            if _load(flags, 0) & np.uint32(1) == 0:
                break
            moved += 1
            address = at + np.int64(array_at(at, (14,), _HALF)[6])
            number = np.int64(peek32(address + NUMBER)) // words[PAYLOAD]
            flow = np.int64(peek32(address + FLOW))
            if peek16(address + 12) == 0x0800 and number < words[PER_FLOW] and flow < words[FLOWS]:
                words[ARRIVED] += 1
                ahead = (number - last[flow]) % words[PER_FLOW]
                if ahead < half:
                    last[flow] = number
                else:
                    words[LATE] += 1
                    words[LATE_3] += words[PER_FLOW] - ahead >= 3
                if words[SENT_AT] and words[DELAYS_COUNT] < words[DELAYS_SIZE]:
                    arrived = np.int64(flags[4]) * SECOND + np.int64(flags[5])
                    delays[words[DELAYS_COUNT]] = arrived - stamps[number * words[FLOWS] + flow]
                    words[DELAYS_COUNT] += 1
            _store(flags, 0, np.uint32(0))
            words[POSITION] = (words[POSITION] + 1) % words[PLACES]
        if moved == 0:
            _nanosleep(words[PAUSE], np.int64(0))
    return 0


@cache
def functions() -> tuple[int, int]:
    """Return the addresses of the sender and of the sink."""
    return callable_at(_send), callable_at(_receive)
