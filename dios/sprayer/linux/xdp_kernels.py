"""The three engine functions for rings of AF_XDP sockets (``dios.sprayer.engine``); compiled.

A core's context is an array of words: the fields for waiting, the fields listed here, then ``PORT_WORDS`` for
each port, which is one queue of one interface. Each core has its own rings for receiving and sending. The
rings with the places that the kernel may fill, and with those that it has sent, belong to all cores of a
port: a core takes a lock to use one, and if the lock is taken, tries again with its next batch. So no core
ever waits for a core that is not running.

In copy mode the kernel mostly copies a frame during the call that sends it, but some drivers use the place
itself, and frames without room in a driver wait. So a place goes back when it is released and the kernel is
done with it; ``STATES`` records which of both happened first. Sockets and rings are created in
``xdp_socket.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numba import types

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_INTERFACES_MAX, SPRAYER_QUEUES_MAX, SPRAYER_SEND_CALLS_MAX
from dios.sprayer.compile.intrinsics import (
    array_at,
    compare_and_swap,
    int64,
    load_acquire,
    prefetch,
    store_release,
    uint32,
)
from dios.sprayer.engine import function_address
from dios.sprayer.linux.wait_kernels import PORTS, WAIT_WORDS, Integer, pin_thread, wait_if_idle
from dios.sprayer.packets.packet import BACK, DROP, PACKET, Packets

if TYPE_CHECKING:
    import numpy.typing as npt

    _Words = npt.NDArray[np.int64]
    _Index = npt.NDArray[np.uint32]

_WORD: Final = np.dtype(np.int64)
_INDEX: Final = np.dtype(np.uint32)
_ROW: Final = np.dtype([("address", "u8"), ("length", "u4"), ("options", "u4")])

MEMORY: Final = WAIT_WORDS
SHIFT: Final = WAIT_WORDS + 1
"""The memory of all frames, and the binary logarithm of the size of a place."""
EACH: Final = WAIT_WORDS + 2
"""The number of places of a port, one port after the other."""
STATES: Final = WAIT_WORDS + 3
"""The state of each place, see below."""
TURN: Final = WAIT_WORDS + 4
REFUSED: Final = WAIT_WORDS + 5
"""Frames that a driver dropped, or had no room for."""
TAKEN: Final = WAIT_WORDS + 6
"""Frames that were received."""
FIRST_PORT: Final = 16

PORT_WORDS: Final = 32
SOCKET: Final = 0
TO: Final = 1
"""The port by which frames from this port leave."""
SIDE: Final = 2
STASH: Final = 3
STASHED: Final = 4
"""Places of this port that go back when the ring is free: their array and their number."""
PENDING: Final = 5
"""The number of frames in the ring for sending of which the kernel was not notified yet."""
RECEIVED: Final = 8
SENDING: Final = 13
FILL: Final = 18
DONE: Final = 24
# For each ring: the addresses of its indices and rows, the number of rows, then the position of this core, or
# the address of the lock.
_PRODUCER: Final = 0
_CONSUMER: Final = 1
_ROWS: Final = 2
_COUNT: Final = 3
NEXT: Final = 4
LOCK: Final = 4
WORDS: Final = FIRST_PORT + SPRAYER_INTERFACES_MAX * SPRAYER_QUEUES_MAX * PORT_WORDS

# States of a place.
_OURS: Final = 0
"""With us, or for the kernel to fill."""
_SENT: Final = 1
"""With the kernel, and not released."""
_RELEASED: Final = 2
"""With the kernel, and released."""

_DONT_WAIT: Final = np.int32(0x40)
_EAGAIN: Final = 11
_EBUSY: Final = 16
_MASK: Final = 0xFFFFFFFF

_int, _long = types.int32, types.int64
_sendto: Final = cast(
    "Callable[[Integer, Integer, Integer, Integer, Integer, Integer], int]",
    types.ExternalFunction("sendto", _long(_int, _long, _long, _int, _long, _int)),
)
_errno_at: Final = cast("Callable[[], int]", types.ExternalFunction("__errno_location", _long()))
_load: Final = cast("Callable[[npt.NDArray[np.uint32], int], int]", load_acquire)
_store: Final = cast("Callable[[npt.NDArray[np.uint32], int, int], None]", store_release)


def _receive(context: int, packets: int, room: int) -> int:
    words = array_at(context, (WORDS,), _WORD)
    batch = array_at(packets, (room,), PACKET)
    pin_thread(words)
    count = 0
    ports = words[PORTS]
    for step in range(ports):
        base = FIRST_PORT + (words[TURN] + step) % ports * PORT_WORDS
        _collect_sent(words, base)
        _give_back(words, base)
        if words[base + SENDING + NEXT] != _index(words[base + SENDING + _CONSUMER]):
            _start_sending(words, base)
        count = _from_ring(words, base, batch, count, room)
    words[TURN] += 1
    words[TAKEN] += count
    wait_if_idle(words, count)
    return count


@no_refcount_kernel
def _index(address: int) -> int:
    """Return an index that the kernel or another core writes."""
    return int64(_load(array_at(address, (1,), _INDEX), 0))


@no_refcount_kernel
def _set_index(address: int, value: int) -> None:
    _store(array_at(address, (1,), _INDEX), 0, uint32(value & _MASK))


@no_refcount_kernel
def _from_ring(words: _Words, base: int, batch: Packets, count: int, room: int) -> int:
    """Receive the frames of one port; return the number of packets in the batch."""
    ring = base + RECEIVED
    at = words[ring + NEXT]
    there = min((_index(words[ring + _PRODUCER]) - at) & _MASK, room - count)
    if there == 0:
        return count
    rows = array_at(words[ring + _ROWS], (words[ring + _COUNT],), _ROW)
    size = 1 << words[SHIFT]
    for step in range(there):
        row = rows[(at + step) & (words[ring + _COUNT] - 1)]
        place = np.int64(row.address)
        packet = batch[count + step]
        packet.address = words[MEMORY] + place
        packet.length = row.length
        packet.frame = place >> words[SHIFT]
        packet.side = words[base + SIDE]
        packet.room = size - (place & (size - 1))
        prefetch(packet.address)
    words[ring + NEXT] = (at + there) & _MASK
    _set_index(words[ring + _CONSUMER], at + there)
    return int(count + there)


@no_refcount_kernel
def _collect_sent(words: _Words, base: int) -> None:
    """Collect the places that the kernel has sent; those that were released before go back."""
    ring = base + DONE
    if _index(words[ring + _PRODUCER]) == _index(words[ring + _CONSUMER]):
        return
    lock = array_at(words[ring + LOCK], (1,), _WORD)
    if not compare_and_swap(lock, 0, 0, 1):
        return
    at = _index(words[ring + _CONSUMER])
    there = (_index(words[ring + _PRODUCER]) - at) & _MASK
    rows = array_at(words[ring + _ROWS], (words[ring + _COUNT],), _WORD)
    states = array_at(words[STATES], (words[PORTS] * words[EACH],), _WORD)
    for step in range(there):
        place = rows[(at + step) & (words[ring + _COUNT] - 1)] >> words[SHIFT]
        if not compare_and_swap(states, place, _SENT, _OURS):
            states[place] = _OURS
            _stash_place(words, place)
    _set_index(words[ring + _CONSUMER], at + there)
    store_release(lock, 0, 0)


@no_refcount_kernel
def _stash_place(words: _Words, place: int) -> None:
    """Store a place of any port that must go back to the kernel."""
    base = FIRST_PORT + place // words[EACH] * PORT_WORDS
    stash = array_at(words[base + STASH], (words[EACH],), _WORD)
    stash[words[base + STASHED]] = place
    words[base + STASHED] += 1


@no_refcount_kernel
def _give_back(words: _Words, base: int) -> None:
    """Return the stored places of one port to the kernel; the ring has room for all places."""
    count = words[base + STASHED]
    if count == 0:
        return
    ring = base + FILL
    lock = array_at(words[ring + LOCK], (1,), _WORD)
    if not compare_and_swap(lock, 0, 0, 1):
        return
    at = _index(words[ring + _PRODUCER])
    rows = array_at(words[ring + _ROWS], (words[ring + _COUNT],), _WORD)
    stash = array_at(words[base + STASH], (words[EACH],), _WORD)
    for step in range(count):
        rows[(at + step) & (words[ring + _COUNT] - 1)] = stash[step] << words[SHIFT]
    _set_index(words[ring + _PRODUCER], at + count)
    words[base + STASHED] = 0
    store_release(lock, 0, 0)


def _transmit(context: int, packets: int, count: int) -> int:
    words = array_at(context, (WORDS,), _WORD)
    batch = array_at(packets, (count,), PACKET)
    states = array_at(words[STATES], (words[PORTS] * words[EACH],), _WORD)
    sent = 0
    for i in range(count):
        if batch[i].verdict == DROP:
            continue
        frame = np.int64(batch[i].frame)
        came = frame // words[EACH]
        to = came if batch[i].verdict == BACK else words[FIRST_PORT + came * PORT_WORDS + TO]
        base = FIRST_PORT + to * PORT_WORDS
        ring = base + SENDING
        at = words[ring + NEXT]
        if (at - _index(words[ring + _CONSUMER])) & _MASK >= words[ring + _COUNT]:
            sent -= _start_sending(words, base)
            if (at - _index(words[ring + _CONSUMER])) & _MASK >= words[ring + _COUNT]:
                words[REFUSED] += 1
                continue
        row = array_at(words[ring + _ROWS], (words[ring + _COUNT],), _ROW)[at & (words[ring + _COUNT] - 1)]
        row.address = batch[i].address - words[MEMORY]
        row.length = batch[i].length
        row.options = 0
        states[frame] = _SENT
        words[ring + NEXT] = (at + 1) & _MASK
        words[base + PENDING] += 1
        sent += 1
    for port in range(words[PORTS]):
        base = FIRST_PORT + port * PORT_WORDS
        if words[base + PENDING] > 0:
            sent -= _start_sending(words, base)
    return sent


@no_refcount_kernel
def _start_sending(words: _Words, base: int) -> int:
    """Let the kernel send the frames of one ring; return the number that a driver dropped."""
    ring = base + SENDING
    _set_index(words[ring + _PRODUCER], words[ring + NEXT])
    words[base + PENDING] = 0
    dropped = 0
    before = _index(words[ring + _CONSUMER])
    for _ in range(SPRAYER_SEND_CALLS_MAX):
        if before == words[ring + NEXT]:
            break
        failed = _sendto(np.int32(words[base + SOCKET]), 0, 0, _DONT_WAIT, 0, np.int32(0)) < 0
        now = _index(words[ring + _CONSUMER])
        if failed:
            why = array_at(_errno_at(), (1,), _INDEX)[0]
            if why == _EBUSY:
                dropped += 1
            elif why != _EAGAIN or now == before:
                break
        before = now
    words[REFUSED] += dropped
    return dropped


def _release(context: int, frames: int, count: int) -> int:
    words = array_at(context, (WORDS,), _WORD)
    numbers = array_at(frames, (count,), _WORD)
    states = array_at(words[STATES], (words[PORTS] * words[EACH],), _WORD)
    for i in range(count):
        if not compare_and_swap(states, numbers[i], _SENT, _RELEASED):
            _stash_place(words, numbers[i])
    for port in range(words[PORTS]):
        _give_back(words, FIRST_PORT + port * PORT_WORDS)
    return count


@cache
def functions() -> tuple[int, int, int]:
    """Return the addresses of receive, transmit and release."""
    return function_address(_receive), function_address(_transmit), function_address(_release)
