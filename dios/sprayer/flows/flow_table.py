"""Flow tables: one for each core, written by that core only and read by all cores without a lock.

Handlers receive it as ``flows`` (thesis section 3.2.4, Table 3.2).

A table uses open addressing and has a fixed size. Each place has a word: 32 bits of the hash (or EMPTY, or
REMOVED) above a version that is odd while the owner writes the place. A reader copies the entry between two
reads of the word, and so never uses half of a change; changing the copy has no effect on the table. An owner
changes a copy, too; the change becomes visible to the other cores at the owner's next call here, or at the
end of its batch.
"""

from __future__ import annotations

import inspect
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from dios.kernels import force_inlined_kernel, no_refcount_kernel
from dios.limits import (
    SPRAYER_ENTRY_BYTES_MAX,
    SPRAYER_FLOWS_MAX,
    SPRAYER_PROBES_MAX,
    SPRAYER_READ_RETRIES_MAX,
)
from dios.sprayer.compile.intrinsics import fence, int64, load_acquire, prefetch, store_release, uint64
from dios.sprayer.compile.tuple_methods import add_methods
from dios.sprayer.flows.five_tuple import core_of_hash, get_five_tuple, hash_by_source, hash_flow
from dios.sprayer.packets.packet import Batch, Entries, Flow, Kept

Words = npt.NDArray[np.uint64]
Table = npt.NDArray[np.void]

EMPTY: Final = uint64(0)
REMOVED: Final = uint64(1)
_32: Final = uint64(32)
_VERSION: Final = uint64(0xFFFFFFFF)
_ODD: Final = uint64(1)

COPIES: Final = 8
"""The number of returned entries that stay valid at a time."""

# Indices into the counters of a core's table.
HELD: Final = 0
FULL: Final = 1
FOREIGN: Final = 2
BUSY: Final = 3
EXPIRED: Final = 4
PENDING: Final = 5
"""The place that was changed and is not visible yet, or -1."""
PENDING_WORD: Final = 6
NEXT_COPY: Final = 7
EXPIRY_CURSOR: Final = 8
"""The next place that the search for expired flows examines."""
FLOW_COUNTERS: Final = 16


class Flows(NamedTuple):
    """The flow tables of all cores, from the point of view of one core."""

    core: int
    """The number of this core, from 0."""
    cores: int
    now: int
    """The time in seconds."""
    flows_max: int
    """The maximum number of flows of each core."""
    idle: int
    """The number of seconds without a packet after which a flow expires."""
    seed: Words
    """(1,) the seed of the hash."""
    words: Words
    """(cores * places,) the hash and version of each place."""
    table: Table
    """(cores * places,) five-tuples and entries."""
    seen: npt.NDArray[np.uint32]
    """(cores * cores * places,) the time when a core saw a packet of a flow: by that core, then by place."""
    copies: Entries
    """(COPIES + 1,) entries for this core: the first is being changed, the last is always zero."""
    books: npt.NDArray[np.int64]
    """(FLOW_COUNTERS,)"""
    entries: Entries
    """(batch,) the results of ``get_flows``."""
    hits: npt.NDArray[np.uint8]
    """(batch,) 1 where ``get_flows`` found a flow."""
    by_source: int
    """1 if the source end of a flow chooses its core: keys have the end that is inside as their source."""
    journal: Words
    """(J,) for tests: the number of changes, then the hashes of their flows."""

    def hash_of(self, flow: Flow) -> int:
        """Return the hash by which a flow is stored."""
        if self.by_source:
            return hash_by_source(flow, self.seed[0])
        return hash_flow(flow, self.seed[0])

    def designated_core(self, flow: Flow) -> int:
        """Return the core that stores a flow; it stores the reverse, too, unless ``by_source`` is set."""
        return core_of_hash(self.hash_of(flow), self.cores)

    def get_flow(self, flow: Flow) -> Kept | None:
        """Return a copy of a flow's entry on its designated core; it stays valid for a few calls."""
        self.show()
        hashed = self.hash_of(flow)
        place = _find(self, flow, hashed, core_of_hash(hashed, self.cores), True)
        if place < 0:
            return None
        return self.copies[self.books[NEXT_COPY]]

    def get_hashed_flow(self, flow: Flow, hashed: int) -> Kept | None:
        """Return ``get_flow(flow)``, with its hash: ``packet.hash`` for the key of a regular packet."""
        self.show()
        place = _find(self, flow, hashed, core_of_hash(hashed, self.cores), True)
        if place < 0:
            return None
        return self.copies[self.books[NEXT_COPY]]

    def peek_flow(self, flow: Flow) -> Kept | None:
        """Return a copy as ``get_flow`` does; the flow does not count as seen."""
        self.show()
        hashed = self.hash_of(flow)
        place = _find(self, flow, hashed, core_of_hash(hashed, self.cores), False)
        if place < 0:
            return None
        return self.copies[self.books[NEXT_COPY]]

    def get_flows(self, batch: Batch) -> None:
        """Call ``get_flow`` for each packet of a batch: ``flows.hits[i]`` and ``flows.entries[i]``."""
        self.show()
        places = uint64(self.words.size // self.cores - 1)
        for i in range(len(batch)):
            core = core_of_hash(batch[i].hash, self.cores)
            home = core * (self.words.size // self.cores) + int64(batch[i].hash & places)
            prefetch(self.table.ctypes.data + home * self.table.itemsize)
        for i in range(len(batch)):
            hashed = batch[i].hash
            place = _find(self, get_five_tuple(batch[i]), hashed, core_of_hash(hashed, self.cores), True)
            self.hits[i] = place >= 0
            if place >= 0:
                self.entries[i] = self.copies[self.books[NEXT_COPY]]

    def get_local_flow(self, flow: Flow) -> Kept | None:
        """Return the entry of a flow of this core; it may be changed until the next call of ``flows``."""
        self.show()
        hashed = self.hash_of(flow)
        if core_of_hash(hashed, self.cores) != self.core:
            self.books[FOREIGN] += 1
            return None
        place = _find(self, flow, hashed, self.core, True)
        if place < 0:
            return None
        self.copies[0] = self.table[place].entry
        self.books[PENDING] = place
        self.books[PENDING_WORD] = int64(_tag_of(hashed))
        return self.copies[0]

    def insert_local_flow(self, flow: Flow) -> Kept | None:
        """Return a new entry of zeros, or the existing one, to be changed until the next call of ``flows``.

        Return None if the table is full or another core is the designated one; both are counted.
        """
        there = self.get_local_flow(flow)
        if there is not None:
            return there
        hashed = self.hash_of(flow)
        if core_of_hash(hashed, self.cores) != self.core:
            return None
        place = int64(-1)
        if self.books[HELD] < self.flows_max:
            place = _free(self, hashed)
        if place < 0:
            self.books[FULL] += 1
            return None
        word = self.words[place]
        store_release(self.words, place, word | _ODD)
        fence()
        row = self.table[place]
        row.source_high, row.source_low = flow.source_high, flow.source_low
        row.target_high, row.target_low = flow.target_high, flow.target_low
        row.source_port, row.target_port, row.protocol = flow.source_port, flow.target_port, flow.protocol
        row.idle = self.idle
        self.seen[self.core * self.words.size + place] = self.now
        self.copies[0] = self.copies[COPIES]
        self.books[HELD] += 1
        self.books[PENDING] = place
        self.books[PENDING_WORD] = int64(_tag_of(hashed))
        return self.copies[0]

    def remove_local_flow(self, flow: Flow) -> bool:
        """Remove a flow; return True if this core stored it."""
        self.show()
        hashed = self.hash_of(flow)
        if core_of_hash(hashed, self.cores) != self.core:
            self.books[FOREIGN] += 1
            return False
        place = _find(self, flow, hashed, self.core, True)
        if place < 0:
            return False
        _remove(self, place)
        return True

    def expire_after(self, flow: Flow, seconds: int) -> bool:
        """Let a flow of this core expire after ``seconds`` without a packet; return True if it is stored."""
        if self.get_local_flow(flow) is None:
            return False
        # Only the owner reads this field, so no reader can see half of a change.
        self.table[self.books[PENDING]].idle = seconds
        self.books[PENDING] = -1
        return True

    def holds(self, flow: Flow) -> bool:
        """Return True if this core stores a flow, expired or not; the flow does not count as seen."""
        self.show()
        return _own_place(self, flow) >= 0

    def still_seen(self, flow: Flow) -> bool:
        """Return True if this core stores a flow that is not expired; the flow does not count as seen."""
        self.show()
        place = _own_place(self, flow)
        return place >= 0 and not _is_expired(self, place)

    def remove_expired(self, flow: Flow) -> None:
        """Remove a flow of this core that has expired, and count it."""
        self.books[EXPIRED] += self.remove_local_flow(flow)

    def look_for_expired(self) -> int:
        """Examine the next place of this core's table; return it if its flow has expired, otherwise -1."""
        places = self.words.size // self.cores
        at = self.books[EXPIRY_CURSOR]
        self.books[EXPIRY_CURSOR] = (at + 1) & (places - 1)
        place = self.core * places + at
        if self.words[place] >> _32 <= REMOVED:
            return int64(-1)
        if not _is_expired(self, place):
            return int64(-1)
        self.copies[0] = self.table[place].entry
        return int(place)

    def flow_at(self, place: int) -> Flow:
        """Return the flow of a place that is in use."""
        row = self.table[place]
        return Flow(
            row.source_high,
            row.source_low,
            row.target_high,
            row.target_low,
            uint64(row.source_port),
            uint64(row.target_port),
            uint64(row.protocol),
        )

    def show(self) -> None:
        """Make the last change visible to the other cores."""
        place = self.books[PENDING]
        if place < 0:
            return
        version = (self.words[place] | _ODD) & _VERSION
        store_release(self.words, place, (self.words[place] & ~_VERSION) | version)
        fence()
        self.table[place].entry = self.copies[0]
        name = uint64(self.books[PENDING_WORD])
        store_release(self.words, place, (name << _32) | ((version + _ODD) & _VERSION))
        self.books[PENDING] = -1
        _record_change(self, place)


@force_inlined_kernel
def _tag_of(hashed: int) -> int:
    """Return the part of a hash that is stored in a word: neither EMPTY nor REMOVED."""
    return (hashed >> _32) | uint64(2)


@force_inlined_kernel
def _find(flows: Flows, flow: Flow, hashed: int, core: int, mark: bool) -> int:  # noqa: FBT001 - compiled
    """Return the place of a flow in a core's table, or -1; its entry is copied, and with ``mark`` seen."""
    places = flows.words.size // flows.cores
    base, name = core * places, _tag_of(hashed)
    at = int64(hashed & uint64(places - 1))
    for _ in range(SPRAYER_PROBES_MAX):
        for look in range(SPRAYER_READ_RETRIES_MAX):
            word = load_acquire(flows.words, base + at)
            if word >> _32 == EMPTY:
                return -1
            if word >> _32 != name:
                break
            if word & _ODD:
                flows.books[BUSY] += int64(look == 0)
                continue
            mine = _matches(flows.table[base + at], flow)
            if mine:
                copy = flows.books[NEXT_COPY] % (COPIES - 1) + 1
                flows.books[NEXT_COPY] = copy
                flows.copies[copy] = flows.table[base + at].entry
            fence()
            if load_acquire(flows.words, base + at) != word:
                continue
            if mine:
                if mark:
                    flows.seen[flows.core * flows.words.size + base + at] = flows.now
                return base + at
            break
        at = (at + 1) & (places - 1)
    return -1


@force_inlined_kernel
def _matches(row: Flow, flow: Flow) -> bool:
    # One branch for all fields, because single fields of different flows are rarely equal.
    different = (row.source_low ^ flow.source_low) | (row.target_low ^ flow.target_low)
    different |= (row.source_high ^ flow.source_high) | (row.target_high ^ flow.target_high)
    different |= uint64(row.source_port) ^ flow.source_port
    different |= uint64(row.target_port) ^ flow.target_port
    return bool(different == EMPTY and uint64(row.protocol) == flow.protocol)


@no_refcount_kernel
def _place_after(flows: Flows, hashed: int, steps: int) -> int:
    """Return a place where a flow of this core with that hash may be."""
    places = flows.words.size // flows.cores
    return flows.core * places + ((int64(hashed & uint64(places - 1)) + steps) & (places - 1))


@no_refcount_kernel
def _own_place(flows: Flows, flow: Flow) -> int:
    """Return the place of a flow that this core stores, or -1."""
    hashed = flows.hash_of(flow)
    if core_of_hash(hashed, flows.cores) != flows.core:
        return int64(-1)
    for at in range(SPRAYER_PROBES_MAX):
        place = _place_after(flows, hashed, at)
        name = flows.words[place] >> _32
        if name == EMPTY:
            break
        if name == _tag_of(hashed) and _matches(flows.table[place], flow):
            return place
    return int64(-1)


@no_refcount_kernel
def _is_expired(flows: Flows, place: int) -> bool:
    """Return True if no core saw the flow of a place within its idle time."""
    last = int64(0)
    for core in range(flows.cores):
        last = max(last, int64(flows.seen[core * flows.words.size + place]))
    return flows.now - last > int64(flows.table[place].idle)


@no_refcount_kernel
def _free(flows: Flows, hashed: int) -> int:
    """Return a free place for a hash in this core's table, or -1."""
    for at in range(SPRAYER_PROBES_MAX):
        place = _place_after(flows, hashed, at)
        if flows.words[place] >> _32 <= REMOVED:
            return place
    return -1


@no_refcount_kernel
def _remove(flows: Flows, place: int) -> None:
    """Free a place of this core; it becomes EMPTY, with those before it, if no search has to pass it."""
    places = flows.words.size // flows.cores
    base = flows.core * places
    _record_change(flows, place)
    flows.books[HELD] -= 1
    version = (flows.words[place] + uint64(2)) & _VERSION
    store_release(flows.words, place, (REMOVED << _32) | version)
    at = place - base
    if flows.words[base + ((at + 1) & (places - 1))] >> _32 != EMPTY:
        return
    for _ in range(SPRAYER_PROBES_MAX):
        word = flows.words[base + at]
        if word >> _32 != REMOVED:
            return
        store_release(flows.words, base + at, word & _VERSION)
        at = (at - 1) & (places - 1)


@no_refcount_kernel
def _record_change(flows: Flows, place: int) -> None:
    """Record the flow that was changed; for tests."""
    if flows.journal.size == 0:
        return
    flows.journal[0] += _ODD
    if flows.journal[0] < uint64(flows.journal.size):
        flow = flows.flow_at(place)
        flows.journal[int64(flows.journal[0])] = flows.hash_of(flow)


add_methods(
    types.NamedTuple,
    {name: method for name, method in vars(Flows).items() if inspect.isfunction(method) and name[0] != "_"},
    Flows,
    folded=("get_flow", "get_hashed_flow", "show"),
)


def entry_type(fields: list[tuple[str, str]]) -> np.dtype[np.void]:
    """Return the type of an entry; raise ``ValueError`` if it exceeds ``SPRAYER_ENTRY_BYTES_MAX``."""
    entry = np.dtype(fields or [("nothing", "u1")])
    if entry.itemsize > SPRAYER_ENTRY_BYTES_MAX:
        raise ValueError(
            f"an entry has {entry.itemsize} bytes, but at most {SPRAYER_ENTRY_BYTES_MAX} are allowed. "
            "Store large data in an array of self, and its index in the entry."
        )
    return entry


def table_type(entry: np.dtype[np.void]) -> np.dtype[np.void]:
    """Return the type of a place: a five-tuple and an entry, at most one cache line for a small entry."""
    fields: list[tuple[str, object, int]] = [
        ("source_high", "u8", 0),
        ("source_low", "u8", 8),
        ("target_high", "u8", 16),
        ("target_low", "u8", 24),
        ("source_port", "u2", 32),
        ("target_port", "u2", 34),
        ("idle", "u2", 36),
        ("protocol", "u1", 38),
        ("entry", entry, 40),
    ]
    size = 40 + entry.itemsize
    return np.dtype(
        {
            "names": [name for name, _, _ in fields],
            "formats": [kind for _, kind, _ in fields],
            "offsets": [offset for _, _, offset in fields],
            "itemsize": 64 if size <= 64 else -(-size // 32) * 32,
        }
    )


def slots_for(flows: int) -> int:
    """Return the number of places of a table for ``flows`` flows, a power of two.

    Raises ``ValueError`` for a number that is not positive or above ``SPRAYER_FLOWS_MAX``.
    """
    if not 0 < flows <= SPRAYER_FLOWS_MAX:
        raise ValueError(f"cannot make a table for {flows} flows: choose from 1 to {SPRAYER_FLOWS_MAX}")
    return max(1 << (flows * 3 // 2 - 1).bit_length(), 2 * SPRAYER_PROBES_MAX)
