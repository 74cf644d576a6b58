"""The loop of each core (thesis section 3.2.3, Figure 3.4); compiled.

An engine has three functions for frames (``engine.py``), a network function has one for packets
(``compile_handlers.py``). Both are called by address, so this module is compiled once.

One turn does the following. Frames that other cores have finished are released to the interface. Packets that
other cores handed over are received. New frames are received and parsed. Connection packets of other cores
are handed over. The handlers see the other packets, and the packets that they do not drop are sent. Every
step is bounded by ``SPRAYER_BATCH``.
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
    SPRAYER_WAITING_BYTES,
    SPRAYER_WAITING_S,
)
from dios.sprayer.compile.intrinsics import (
    call_at,
    copy_bytes,
    cycles,
    int64,
    load_acquire,
    prefetch,
    store_release,
    uint64,
)
from dios.sprayer.flows.five_tuple import core_of_hash
from dios.sprayer.packets.neighbours import answer_neighbour, learn_hardware_address
from dios.sprayer.packets.packet import (
    CAUSES,
    DROP,
    FINE,
    FORWARD,
    FRAGMENT,
    FUNCTION,
    HANDLE,
    NOT_SENT,
    RING_FULL,
    TO_CORE,
    WAIT,
    Packet,
    Packets,
)
from dios.sprayer.packets.parse import parse
from dios.sprayer.packets.quic import QUIC_SHORT, quic_header
from dios.sprayer.runtime.progress import watch

Ints = npt.NDArray[np.int64]

# The operations of a compiled network function.
CONNECTION: Final = int64(0)
REGULAR: Final = int64(1)
EXPIRE: Final = int64(2)
"""Look for expired flows in a number of places."""

# The counters of each core, after one counter for each cause.
_FIRST: Final = len(CAUSES)
RECEIVED: Final = _FIRST
SENT: Final = _FIRST + 1
CONNECTION_PACKETS: Final = _FIRST + 2
REGULAR_PACKETS: Final = _FIRST + 3
HANDED_OVER: Final = _FIRST + 4
TAKEN_OVER: Final = _FIRST + 5
DEEPEST: Final = _FIRST + 6
"""The maximum number of descriptors that waited for this core in one ring."""
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
PERIOD: Final = 1
NOW: Final = 8
"""Indices into ``control``, on different cache lines."""

WAITING: Final = 0
_SLOTS: Final = 1
"""Indices into ``waiting_marks``."""
_OFFER_TURNS: Final = 8
"""A busy core offers packets that wait again after this number of turns."""

LINE: Final = 16
"""The distance of the indices of rings in words: processors load cache lines in pairs."""


class Worker(NamedTuple):
    """One core: its own arrays, and the rings that it shares."""

    core: int
    cores: int
    handler: int
    """The address of the compiled network function; 0 for none, which forwards everything."""
    handler_context: int
    receive: int
    transmit: int
    release: int
    engine_context: int
    stateless: int
    gathers: int
    """1 if all packets of a flow go to its designated core, except ICMP errors."""
    by_inside_end: int
    """1 if the end inside chooses the designated core; then only TCP has connection packets."""
    quic_ports: Ints
    """(N,) the UDP ports of QUIC servers."""
    watched: Ints
    """(SPRAYER_WATCHED + 1, COLUMNS) the progress of some flows of TCP, while ``PERIOD`` is not 0."""
    owned: npt.NDArray[np.uint64]
    """(N, 4) the networks for which neighbours are answered."""
    hardware: npt.NDArray[np.uint64]
    """(2,) the hardware address of the last frame of each side, shared by all cores."""
    places: int
    """The number of places of each core's table."""
    words_at: int
    table_at: int
    seen_at: int
    row_bytes: int
    """The start of the tables and the size of a row, for prefetching."""
    seed: npt.NDArray[np.uint64]
    now: Ints
    """(1,) the time for handlers, ``flows.now``."""
    rules: npt.NDArray[np.uint8]
    connection: Packets
    regular: Packets
    passing: Packets
    """(batch,) each: packets for the handlers, and packets that bypass them."""
    frames: Ints
    """(batch,) numbers of frames to be released."""
    rings: Packets
    """(cores * cores * SPRAYER_RING,) descriptors, by producer, by consumer."""
    heads: Ints
    tails: Ints
    """(cores * cores * LINE,) how many descriptors were ever put in, and taken out."""
    returned: npt.NDArray[np.int32]
    """(cores * cores * SPRAYER_RING,) frames that are returned, by the core that had them, by owner."""
    back_heads: Ints
    back_tails: Ints
    filling: Ints
    """(cores,) heads after the current batch."""
    waiting: Packets
    """(SPRAYER_WAITING,) packets that the function wants to see again; empty if it takes no fragments."""
    waiting_bytes: npt.NDArray[np.uint8]
    """(SPRAYER_WAITING * SPRAYER_WAITING_BYTES,) their copies; empty if their frames can wait."""
    waiting_marks: Ints
    """The number of packets that wait, and the slots in use, one bit each."""
    pace: Ints
    """(1,) the recent number of cycles for a packet."""
    counters: Ints
    """(COUNTERS,)"""
    control: Ints
    """``STOP`` and ``NOW``, for all cores."""


@kernel
def work(worker: Worker, turns: int) -> int:
    """Run ``turns`` turns, or fewer if stopped; return the number of packets received or taken over."""
    done = 0
    for _ in range(turns):
        if load_acquire(worker.control, STOP):
            break
        done += _turn(worker)
    return done


@kernel
def drop_waiting(worker: Worker) -> None:
    """Drop all packets that wait, so that the engine has its frames back."""
    _offer_waiting(worker, SPRAYER_WAITING_S + 1)


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
        left, wanted = _collect_handed_over(w, regular)
        _send(w, w.regular, left)
        w.counters[REGULAR_PACKETS] += regular
        if wanted > 0:
            call_at(w.handler, w.handler_context, CONNECTION, wanted)
            _send(w, w.connection, wanted)
            w.counters[CONNECTION_PACKETS] += wanted
    if w.waiting_marks[WAITING] > 0 and (got + taken == 0 or w.counters[TURNS] % _OFFER_TURNS == 0):
        taken += _offer_waiting(w, 0)
    if own + regular > 0:
        w.pace[0] += ((cycles() - begun) // (own + regular) - w.pace[0]) // 4
    if w.handler and not w.stateless and (got + taken == 0 or w.counters[TURNS] & 15 == 0):
        call_at(w.handler, w.handler_context, EXPIRE, SPRAYER_EXPIRY_STEP)
    w.counters[TURNS] += 1
    w.counters[IDLE_TURNS] += int64(got + taken == 0)
    return got + taken


@no_refcount_kernel
def _room(w: Worker) -> int:
    """Return the number of packets to receive: few if they take long, so that other cores do not overtake."""
    return int(min(max(SPRAYER_BATCH_CYCLES // max(w.pace[0], 1), SPRAYER_BATCH_MIN), SPRAYER_BATCH))


@no_refcount_kernel
def _release_returned(w: Worker) -> None:
    """Release the frames that other cores have finished."""
    for other in range(w.cores):
        ring = other * w.cores + w.core
        tail, head = w.back_tails[ring * LINE], load_acquire(w.back_heads, ring * LINE)
        while tail < head:
            count = min(head - tail, SPRAYER_BATCH)
            for i in range(count):
                w.frames[i] = w.returned[ring * SPRAYER_RING + ((tail + i) & (SPRAYER_RING - 1))]
            tail += count
            call_at(w.release, w.engine_context, w.frames.ctypes.data, count)
            # A plain store is enough: only the owner reads and writes this index.
            w.back_tails[ring * LINE] = tail


@no_refcount_kernel
def _receive_handed_over(w: Worker) -> int:
    """Receive connection packets from other cores, at most a batch; return their number."""
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
    """Sort the received packets, after ``own`` packets that were taken over.

    Return the numbers of packets for ``connection_packets``, for ``regular_packets``, to be sent without a
    handler, and dropped.
    """
    regular = passing = spent = 0
    for core in range(w.cores):
        w.filling[core] = w.heads[(w.core * w.cores + core) * LINE]
    for i in range(got):
        packet = w.regular[i]
        packet.home = w.core
        w.counters[BYTES] += packet.length
        cause = parse(packet, w.seed[0], w.by_inside_end)
        if len(w.owned):
            if packet.length >= 14:
                learn_hardware_address(packet, w.hardware)
            answer_neighbour(packet, cause, w.owned, w.hardware)
        if cause != FINE:
            if w.rules[cause] == HANDLE:
                packet.cause = cause
                if regular != i:
                    w.regular[regular] = packet
                regular += 1
                continue
            w.counters[cause] += 1
            if w.rules[cause] == FORWARD:
                w.passing[passing] = packet
                passing += 1
            else:
                w.frames[spent] = packet.frame
                spent += 1
            continue
        if len(w.quic_ports):
            packet.quic = quic_header(packet, w.quic_ports)
        if w.control[PERIOD]:
            watch(w.watched, packet, w.control[PERIOD])
        core = core_of_hash(packet.hash, w.cores)
        if w.stateless or not _is_connection_packet(w, packet):
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
def _is_connection_packet(w: Worker, packet: Packet) -> bool:
    """Return True if a packet may change its flow's entry: SYN, FIN, RST; UDP and ICMP except errors.

    QUIC behind its handshake is like TCP in the middle of a connection.
    """
    if packet.error:
        return False
    if w.gathers != 0:
        return True
    if packet.protocol != 6:
        return packet.quic != QUIC_SHORT and w.by_inside_end == 0
    return packet.syn | packet.fin | packet.rst != 0


@no_refcount_kernel
def _collect_handed_over(w: Worker, count: int) -> tuple[int, int]:
    """Give the packets that ``regular_packets`` handed over to their designated cores.

    Return the number of packets that stay in ``regular``, and of those now in ``connection``.
    """
    left = wanted = 0
    for i in range(count):
        packet = w.regular[i]
        if packet.verdict == WAIT and _keep_waiting(w, packet):
            continue
        if packet.verdict == TO_CORE:
            packet.verdict = FORWARD
            core = core_of_hash(packet.hash, w.cores)
            if core == w.core:
                w.connection[wanted] = packet
                wanted += 1
                continue
            if _hand_over(w, packet, core):
                continue
            packet.verdict, packet.cause = DROP, RING_FULL
        if left != i:
            w.regular[left] = packet
        left += 1
    _publish_heads(w)
    return left, wanted


@no_refcount_kernel
def _keep_waiting(w: Worker, packet: Packet) -> bool:
    """Store a packet that waits, with a copy of its bytes if its frame cannot; return False without room."""
    count = w.waiting_marks[WAITING]
    if count >= len(w.waiting):
        packet.verdict, packet.cause = DROP, FRAGMENT
        return False
    if w.waiting_bytes.size:
        slot = int64(0)
        while w.waiting_marks[_SLOTS] >> slot & 1:
            slot += 1
        if packet.length > SPRAYER_WAITING_BYTES:
            packet.verdict, packet.cause = DROP, FRAGMENT
            return False
        address = w.waiting_bytes.ctypes.data + slot * SPRAYER_WAITING_BYTES
        copy_bytes(address, packet.address, packet.length)
        w.waiting_marks[_SLOTS] |= int64(1) << slot
        w.frames[0] = packet.frame
        call_at(w.release, w.engine_context, w.frames.ctypes.data, 1)
        packet.address, packet.room, packet.slot = address, SPRAYER_WAITING_BYTES, slot + 1
    packet.since = w.now[0]
    w.waiting[count] = packet
    w.waiting_marks[WAITING] = count + 1
    return True


@no_refcount_kernel
def _offer_waiting(w: Worker, later: int) -> int:
    """Let the function handle the packets that wait again, unless their time is over ``later`` seconds on.

    Return the number of those that do not wait any more.
    """
    count, stays, ends = w.waiting_marks[WAITING], 0, 0
    for i in range(count):
        w.regular[i] = w.waiting[i]
        w.regular[i].verdict = FORWARD
    if later == 0:
        call_at(w.handler, w.handler_context, REGULAR, count)
    for i in range(count):
        packet = w.regular[i]
        if later or packet.verdict == WAIT:
            if w.now[0] + later - int64(packet.since) <= SPRAYER_WAITING_S:
                w.waiting[stays] = packet
                stays += 1
                continue
            packet.verdict, packet.cause = DROP, FRAGMENT
        if ends != i:
            w.regular[ends] = packet
        ends += 1
    w.waiting_marks[WAITING] = stays
    if ends > 0:
        _send(w, w.regular, ends)
    return ends


@no_refcount_kernel
def _hand_over(w: Worker, packet: Packet, core: int) -> bool:
    """Put a descriptor into the ring to another core; return False if the ring is full.

    Descriptors count until their frames come back, so that the ring for the way back always has room.
    """
    head, back = w.filling[core], (core * w.cores + w.core) * LINE
    if head - w.back_tails[back] >= SPRAYER_RING:
        return False
    w.rings[(w.core * w.cores + core) * SPRAYER_RING + (head & (SPRAYER_RING - 1))] = packet
    w.filling[core] = head + 1
    return True


@no_refcount_kernel
def _publish_heads(w: Worker) -> None:
    """Make the packets that were handed over visible to the other cores."""
    for core in range(w.cores):
        mark = (w.core * w.cores + core) * LINE
        new = w.filling[core] - w.heads[mark]
        if new > 0:
            w.counters[HANDED_OVER] += new
            store_release(w.heads, mark, w.filling[core])


@no_refcount_kernel
def _send(w: Worker, packets: Packets, count: int) -> None:
    """Send the packets that are not dropped, and return all frames to their owners."""
    dropped = 0
    for i in range(count):
        if packets[i].verdict >= TO_CORE:
            packets[i].verdict, packets[i].cause = DROP, FUNCTION
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
        if packets[i].slot:
            # Its frame was released when it began to wait.
            w.waiting_marks[_SLOTS] &= ~(int64(1) << (int64(packets[i].slot) - 1))
            continue
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
