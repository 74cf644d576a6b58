"""Simple loops for comparison with network functions, and lookups without packets.

Compiled code of this module is not cached on disk. The measurements are in ``labs.benchmarks.sprayer``.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt

from dios.limits import SPRAYER_BATCH
from dios.sprayer.compile.intrinsics import array_at, call_at, callable_at, cycles, uint64
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.nat import Nat
from dios.sprayer.linux.af_packet import processors
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.packets.packet import PACKET, Flow, Packets
from dios.sprayer.runtime.workers import make_tables
from labs.papers.sprayer.lab.measure import WORKER
from labs.papers.sprayer.lab.veth_pairs import INSIDE, OUTSIDE, VethPairs

_SOL_PACKET: Final = 263
_IGNORE_OUTGOING: Final = 23
_WAIT: Final = struct.pack("=qq", 0, 100_000)
_RECEIVE_BUFFER_FORCE: Final = 33
_ALL: Final = 3
_WORD: Final = np.dtype(np.int64)
_RX, _TX, _RELEASE, _CONTEXT, _PACKETS, _FRAMES, _WORDS = range(7)
_Three = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
CLOCK_S: Final = 0.2


@contextmanager
def plain_python(cables: VethPairs) -> Iterator[npt.NDArray[np.int64]]:
    """Receive and send with Python sockets in one thread; yield the counter of frames."""
    counter = np.zeros(1, np.int64)
    ends = []
    with cables.middle.entered():
        for name in (INSIDE, OUTSIDE):
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            end.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, struct.pack("=i", 1))
            end.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 2**24)
            # A timeout of the kernel; with a timeout of Python, each receive would need two system calls.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)
            end.bind((name, _ALL))
            ends.append(end)
    over = threading.Event()
    thread = threading.Thread(target=_carry, args=(*ends, counter, over), name=f"{WORKER}of plain Python")
    thread.start()
    if pin := processors(1):
        os.sched_setaffinity(thread.native_id or 0, pin)
    try:
        yield counter
    finally:
        over.set()
        thread.join()
        for end in ends:
            end.close()


def _carry(
    inside: socket.socket, outside: socket.socket, counter: npt.NDArray[np.int64], over: threading.Event
) -> None:
    receive, send, batch = inside.recv, outside.send, range(SPRAYER_BATCH)
    while not over.is_set():
        try:
            for _ in batch:
                send(receive(2048))
        except BlockingIOError:
            continue
        counter[0] += SPRAYER_BATCH


def _bare(arguments: int, turns: int, _none: int) -> int:
    """Call the three functions of an engine and nothing else; return the cycles."""
    words = array_at(arguments, (_WORDS,), _WORD)
    packets = array_at(words[_PACKETS], (SPRAYER_BATCH,), PACKET)
    frames = array_at(words[_FRAMES], (SPRAYER_BATCH,), _WORD)
    begun = cycles()
    for _ in range(turns):
        count = call_at(words[_RX], words[_CONTEXT], words[_PACKETS], SPRAYER_BATCH)
        for i in range(count):
            frames[i] = packets[i].frame
            packets[i].verdict = 0
        call_at(words[_TX], words[_CONTEXT], words[_PACKETS], count)
        call_at(words[_RELEASE], words[_CONTEXT], words[_FRAMES], count)
    return cycles() - begun


def _now(_one: int, _two: int, _three: int) -> int:
    return cycles()


def bare_cycles(engine: MemoryEngine, turns: int) -> int:
    """Return the cycles of ``turns`` turns of an engine without workers."""
    packets, frames = np.zeros(SPRAYER_BATCH, PACKET), np.zeros(SPRAYER_BATCH, np.int64)
    words = np.array(
        [
            *(engine.receive, engine.transmit, engine.release, engine.context(0)),
            *(packets.ctypes.data, frames.ctypes.data),
        ],
        np.int64,
    )
    return int(_Three(callable_at(_bare))(words.ctypes.data, turns, 0))


def cycles_each_second() -> float:
    """Return the frequency of the cycle counter in cycles per second."""
    clock = _Three(callable_at(_now))
    begun, before = time.perf_counter(), clock(0, 0, 0)
    time.sleep(CLOCK_S)
    return float(clock(0, 0, 0) - before) / (time.perf_counter() - begun)


class Lookups(NamedTuple):
    """Lookups per second on one core."""

    one_by_one: float
    in_batches: float
    held: int


def nat_lookups(flows: int, seed: int) -> Lookups:
    """Look up each of ``flows`` flows of a NAT once, in random order."""
    function = Nat(["192.0.2.1"], flows_max=flows)
    function.prepare(1)
    (table,) = make_tables(function, 1, np.array([seed], np.uint64), 0)
    packets = np.zeros(flows, PACKET)
    order = np.random.default_rng(seed).permutation(flows)
    held = int(_fill(table, packets, order.astype(np.int64)))
    spans = []
    for look in (_look, _look_batches):
        look(table, packets[:SPRAYER_BATCH])
        begun = time.process_time()
        hits = look(table, packets)
        spans.append(time.process_time() - begun)
        if hits != held:
            raise AssertionError(f"only {hits} of {held} flows were found")
    return Lookups(flows / spans[0], flows / spans[1], held)


def _compiled(kernel: Callable[[Flows, Packets], int]) -> Callable[[Flows, Packets], int]:
    return cast("Callable[[Flows, Packets], int]", numba.njit(nogil=True, _nrt=False)(kernel))  # type: ignore[call-overload] # handed on


_Fill = Callable[[Flows, Packets, npt.NDArray[np.int64]], int]


def _filling(kernel: _Fill) -> _Fill:
    return cast(
        "_Fill",
        numba.njit(nogil=True, _nrt=False)(kernel),  # type: ignore[call-overload] # handed on
    )


@_filling
def _fill(flows: Flows, packets: Packets, order: npt.NDArray[np.int64]) -> int:
    """Insert a flow for each number, and write descriptors in an order; return the number of stored flows."""
    held = 0
    for number in range(len(order)):
        flow = Flow(
            *(uint64(0), uint64(0xFFFF0A000000 + number), uint64(0), uint64(0xFFFFC0000209)),
            *(uint64(1024 + (number & 32767)), uint64(443), uint64(6)),
        )
        held += flows.insert_local_flow(flow) is not None
        packet = packets[order[number]]
        packet.source_low, packet.target_low = flow.source_low, flow.target_low
        packet.source_port, packet.target_port = flow.source_port, flow.target_port
        packet.protocol = 6
        packet.hash = flows.hash_of(flow)
    flows.show()
    return held


@_compiled
def _look(flows: Flows, packets: Packets) -> int:
    """Call ``get_flow`` for each packet."""
    hits = 0
    for i in range(len(packets)):
        packet = packets[i]
        flow = Flow(
            *(packet.source_high, packet.source_low, packet.target_high, packet.target_low),
            *(uint64(packet.source_port), uint64(packet.target_port), uint64(packet.protocol)),
        )
        hits += flows.get_flow(flow) is not None
    return hits


@_compiled
def _look_batches(flows: Flows, packets: Packets) -> int:
    """Call ``get_flows`` for each batch, of the size that workers use."""
    hits = 0
    for begin in range(0, len(packets), SPRAYER_BATCH):
        batch = packets[begin : begin + SPRAYER_BATCH]
        flows.get_flows(batch)
        for i in range(len(batch)):
            hits += flows.hits[i]
    return hits
