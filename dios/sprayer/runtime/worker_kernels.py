"""What each core does over and over (thesis section 3.2.3, Figure 3.4); compiled.

Not for: where frames come from and go to: an engine has three functions for that (``engine.py``), and a
network function has one (``compile_handlers.py``). Both are called by their address, so this is compiled
once.

One turn: frames that others are done with go back to the interface; packets that others handed over are
taken; frames are received and parsed; connection packets of other cores are handed over; the handlers see the
rest; and what they leave is sent. Every step is bounded by ``SPRAYER_BATCH``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.kernels import kernel, no_refcount_kernel
from dios.limits import (
    SPRAYER_BATCH,
    SPRAYER_BATCH_CYCLES,
    SPRAYER_BATCH_MIN,
    SPRAYER_EXPIRY_STEP,
    SPRAYER_RING,
)
from dios.sprayer.compile.intrinsics import (
    call_at,
    cycles,
    int64,
    load_acquire,
    prefetch,
    store_release,
    uint64,
)
from dios.sprayer.flows.five_tuple import core_of_hash
from dios.sprayer.packets.packet import (
    CAUSES,
    DROP,
    FINE,
    FORWARD,
    FUNCTION,
    NOT_SENT,
    RING_FULL,
    Packet,
    Packets,
)
from dios.sprayer.packets.parse import parse

Ints = npt.NDArray[np.int64]

# What is asked of a network function.
CONNECTION: Final = int64(0)
REGULAR: Final = int64(1)
EXPIRE: Final = int64(2)
"""Look for flows that are over, in so many places."""

# What is counted, each core for itself, after one counter for each cause.
_FIRST: Final = len(CAUSES)
RECEIVED: Final = _FIRST
SENT: Final = _FIRST + 1
CONNECTION_PACKETS: Final = _FIRST + 2
REGULAR_PACKETS: Final = _FIRST + 3
HANDED_OVER: Final = _FIRST + 4
TAKEN_OVER: Final = _FIRST + 5
DEEPEST: Final = _FIRST + 6
"""The most descriptors that waited for this core in one ring."""
TURNS: Final = _FIRST + 7
IDLE_TURNS: Final = _FIRST + 8
BYTES: Final = _FIRST + 9
COUNTERS: Final = -(-(_FIRST + 10) // 8) * 8
COUNTER_NAMES: Final = (
    "received",
    "sent",
    "connection_packets",
    "regular_packets",
    "handed_over",
    "taken_over",
    "deepest",
    "turns",
    "idle_turns",
    "bytes",
)

STOP: Final = 0
NOW: Final = 8
"""Places in ``control``, on cache lines of their own."""

LINE: Final = 16
"""Indices of a ring stand so many words apart: processors fetch lines in pairs."""


class Worker(NamedTuple):
    """One core: what is its own, and the rings that it shares."""

    core: int
    cores: int
    handler: int
    """Address of the compiled network function, 0 for none: everything is forwarded."""
    handler_context: int
    receive: int
    transmit: int
    release: int
    engine_context: int
    stateless: int
    places: int
    """Of each core's table."""
    words_at: int
    table_at: int
    seen_at: int
    row_bytes: int
    """Where tables begin, and the size of a row: they are fetched ahead."""
    seed: npt.NDArray[np.uint64]
    now: Ints
    """(1,) what handlers read as ``flows.now``."""
    rules: npt.NDArray[np.uint8]
    connection: Packets
    regular: Packets
    passing: Packets
    """(batch,) each: for the handlers, and what goes on without them."""
    frames: Ints
    """(batch,) numbers of frames, on their way to the engine."""
    rings: Packets
    """(cores * cores * SPRAYER_RING,) descriptors, by producer, by consumer."""
    heads: Ints
    tails: Ints
    """(cores * cores * LINE,) how many were ever put in, and taken out."""
    returned: npt.NDArray[np.int32]
    """(cores * cores * SPRAYER_RING,) frames that come back, by who had them, by owner."""
    back_heads: Ints
    back_tails: Ints
    filling: Ints
    """(cores,) heads as they will be."""
    pace: Ints
    """(1,) the cycles that a packet took lately."""
    counters: Ints
    """(COUNTERS,)"""
    control: Ints
    """Of all cores: ``STOP`` and ``NOW``."""


@kernel
def work(worker: Worker, turns: int) -> int:
    """Take so many turns, fewer if told to stop; how many packets were received or taken over."""
    done = 0
    for _ in range(turns):
        if load_acquire(worker.control, STOP):
            break
        done += _turn(worker)
    return done


@no_refcount_kernel
def _turn(w: Worker) -> int:
    w.now[0] = load_acquire(w.control, NOW)
    _release_returned(w)
    taken = 0
    if w.cores > 1:
        taken = _receive_handed_over(w)
    got = call_at(w.receive, w.engine_context, w.regular.ctypes.data, _room(w))
    begun = cycles()
    w.counters[RECEIVED] += got
    own, regular, passing, spent = _classify(w, got, taken)
    if spent > 0:
        call_at(w.release, w.engine_context, w.frames.ctypes.data, spent)
    if passing > 0:
        _send(w, w.passing, passing)
    if own > 0:
        if w.handler:
            call_at(w.handler, w.handler_context, CONNECTION, own)
        _send(w, w.connection, own)
        w.counters[CONNECTION_PACKETS] += own
    if regular > 0:
        if w.handler:
            call_at(w.handler, w.handler_context, REGULAR, regular)
        _send(w, w.regular, regular)
        w.counters[REGULAR_PACKETS] += regular
    if own + regular > 0:
        w.pace[0] += ((cycles() - begun) // (own + regular) - w.pace[0]) // 4
    if w.handler and not w.stateless and (got + taken == 0 or w.counters[TURNS] & 15 == 0):
        call_at(w.handler, w.handler_context, EXPIRE, SPRAYER_EXPIRY_STEP)
    w.counters[TURNS] += 1
    w.counters[IDLE_TURNS] += int64(got + taken == 0)
    return got + taken


@no_refcount_kernel
def _room(w: Worker) -> int:
    """How many packets to receive: few if they take long, or those that others have overtake them."""
    return int(min(max(SPRAYER_BATCH_CYCLES // max(w.pace[0], 1), SPRAYER_BATCH_MIN), SPRAYER_BATCH))


@no_refcount_kernel
def _release_returned(w: Worker) -> None:
    """Give frames that others are done with to the engine."""
    for other in range(w.cores):
        ring = other * w.cores + w.core
        tail, head = w.back_tails[ring * LINE], load_acquire(w.back_heads, ring * LINE)
        while tail < head:
            count = min(head - tail, SPRAYER_BATCH)
            for i in range(count):
                w.frames[i] = w.returned[ring * SPRAYER_RING + ((tail + i) & (SPRAYER_RING - 1))]
            tail += count
            call_at(w.release, w.engine_context, w.frames.ctypes.data, count)
            # Room for new ones: nobody else reads or writes this one but the owner.
            w.back_tails[ring * LINE] = tail


@no_refcount_kernel
def _receive_handed_over(w: Worker) -> int:
    """Take connection packets that others handed over, at most half a batch; how many."""
    count = 0
    for step in range(1, w.cores):
        other = (w.core + step) % w.cores
        ring = other * w.cores + w.core
        tail, head = w.tails[ring * LINE], load_acquire(w.heads, ring * LINE)
        w.counters[DEEPEST] = max(w.counters[DEEPEST], head - tail)
        take = min(head - tail, SPRAYER_BATCH - count)
        for i in range(take):
            w.connection[count + i] = w.rings[ring * SPRAYER_RING + ((tail + i) & (SPRAYER_RING - 1))]
        if take > 0:
            store_release(w.tails, ring * LINE, tail + take)
        count += take
    w.counters[TAKEN_OVER] += count
    return count


@no_refcount_kernel
def _classify(w: Worker, got: int, own: int) -> tuple[int, int, int, int]:
    """Sort what was received, on top of ``own`` packets that were taken over.

    So many are for ``connection_packets`` now, for ``regular_packets``, to be sent without, and dropped.
    """
    regular = passing = spent = 0
    for core in range(w.cores):
        w.filling[core] = w.heads[(w.core * w.cores + core) * LINE]
    for i in range(got):
        packet = w.regular[i]
        packet.home = w.core
        w.counters[BYTES] += packet.length
        cause = parse(packet, w.seed[0])
        if cause != FINE:
            w.counters[cause] += 1
            if w.rules[cause] == FORWARD:
                w.passing[passing] = packet
                passing += 1
            else:
                w.frames[spent] = packet.frame
                spent += 1
            continue
        core = core_of_hash(packet.hash, w.cores)
        if w.stateless or not _is_connection_packet(packet):
            if not w.stateless:
                home = core * w.places + int64(packet.hash & uint64(w.places - 1))
                prefetch(w.words_at + home * 8)
                prefetch(w.table_at + home * w.row_bytes)
                prefetch(w.seen_at + home * 4)
            if regular != i:
                w.regular[regular] = packet
            regular += 1
        elif core == w.core:
            w.connection[own] = packet
            own += 1
        elif not _hand_over(w, packet, core):
            w.counters[RING_FULL] += 1
            w.frames[spent] = packet.frame
            spent += 1
    _publish_heads(w)
    return own, regular, passing, spent


@no_refcount_kernel
def _is_connection_packet(packet: Packet) -> bool:
    """Whether it may change what is kept of its flow: SYN, FIN, RST; all of UDP and ICMP but errors."""
    if packet.error:
        return False
    return packet.protocol != 6 or packet.syn | packet.fin | packet.rst != 0


@no_refcount_kernel
def _hand_over(w: Worker, packet: Packet, core: int) -> bool:
    """Put a descriptor into the ring to another core; whether there was room.

    Room is not what is in the ring but what did not come back yet: then there always is on the way back.
    """
    head, back = w.filling[core], (core * w.cores + w.core) * LINE
    if head - w.back_tails[back] >= SPRAYER_RING:
        return False
    w.rings[(w.core * w.cores + core) * SPRAYER_RING + (head & (SPRAYER_RING - 1))] = packet
    w.filling[core] = head + 1
    return True


@no_refcount_kernel
def _publish_heads(w: Worker) -> None:
    """Let the others see what was handed over to them, all at once."""
    for core in range(w.cores):
        mark = (w.core * w.cores + core) * LINE
        new = w.filling[core] - w.heads[mark]
        if new > 0:
            w.counters[HANDED_OVER] += new
            store_release(w.heads, mark, w.filling[core])


@no_refcount_kernel
def _send(w: Worker, packets: Packets, count: int) -> None:
    """Send those that are to go on, and let all frames go where they came from."""
    dropped = 0
    for i in range(count):
        if packets[i].verdict == DROP:
            cause = int64(packets[i].cause)
            w.counters[cause if cause < RECEIVED else FUNCTION] += 1
            dropped += 1
    sent = 0
    if dropped < count:
        sent = call_at(w.transmit, w.engine_context, packets.ctypes.data, count)
    w.counters[SENT] += sent
    w.counters[NOT_SENT] += count - dropped - sent
    own = 0
    for i in range(count):
        home = int64(packets[i].home)
        if home == w.core:
            w.frames[own] = packets[i].frame
            own += 1
            continue
        ring = w.core * w.cores + home
        head = w.back_heads[ring * LINE]
        w.returned[ring * SPRAYER_RING + (head & (SPRAYER_RING - 1))] = packets[i].frame
        store_release(w.back_heads, ring * LINE, head + 1)
    if own > 0:
        call_at(w.release, w.engine_context, w.frames.ctypes.data, own)
