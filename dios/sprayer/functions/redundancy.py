"""Redundancy elimination: a payload that crossed a link before is sent again as a short token.

It needs two middleboxes, one at each end of the link, with their inside away from the link. ``remove``
replaces payloads that it sent before by tokens, ``restore`` puts them back, ``both`` does one for each
direction, and ``count`` only measures the possible savings. Payloads match only as a whole: data that a
sender splits at other places is not found. Encrypted data never repeats.

The cache of packets is global state that every packet reads and writes (thesis Table 3.1). Here each core
writes its own part, and all cores read all parts without a lock: a word for each payload is odd during a
write and different afterwards. A payload that is found is compared byte by byte before it is left out. The
other end finds it by 112 bits of a fingerprint with a shared key.

Failures cost a packet that TCP sends again, but never a connection and never a wrong byte:

- A token may arrive before its payload, because spraying changes the order, or after the payload was removed
  from the cache. It is dropped, counted as ``not_known``. A segment that is sent again (same flow and
  sequence number) and a UDP datagram that is repeated are always sent whole, among the last ``SEGMENTS``
  times ``remembered`` segments of each core.
- The other end may restart with an empty cache. If nearly all tokens are followed by a repetition of their
  segments, a core sends ``RELEARNED`` known payloads whole before it tries tokens again.
- The checksum of TCP or UDP crosses the link unchanged and is wrong there. It is right again after the
  payload is restored, so the receiver checks the work of both middleboxes. Nothing between them may check it.
- A payload that begins like a token, by chance or on purpose, is sent with eight bytes before it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.sprayer.compile.intrinsics import (
    copy_bytes,
    fence,
    int64,
    load_acquire,
    peek16,
    peek32,
    peek64,
    poke64,
    store_release,
    uint64,
)
from dios.sprayer.flows.five_tuple import drop
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.payloads import (
    PAYLOAD_BYTES_MAX,
    fingerprint,
    key_numbers,
    move_down,
    move_up,
    same_bytes,
)
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import INSIDE, NOT_KNOWN, OUTSIDE, TOO_LONG, Batch, Packet
from dios.sprayer.packets.rewrite import set_payload_size

PAYLOADS, BYTES, AGAIN, AGAIN_BYTES, REPEATED, TOKENS, SAVED, RESTORED, MISSING, ESCAPED = range(10)
COUNTERS: Final = (
    *("payloads", "bytes", "again", "again_bytes", "repeated"),
    *("tokens", "saved_bytes", "restored", "missing", "escaped"),
)
PAYLOAD_BYTES_MIN: Final = 64
"""Shorter payloads are not worth a token."""
TOKEN_BYTES: Final = 24
"""A mark, a fingerprint of 64 and of 48 bits, and a length."""
ESCAPE_BYTES: Final = 8
SEGMENTS: Final = 4
WAYS: Final = 4
"""The places of a core for one payload; a new payload replaces the oldest."""
TRIAL_TOKENS: Final = 64
"""The number of tokens after which a core checks how many of them failed."""
RELEARNED: Final = 1024

_TOKEN: Final = 0
_ESCAPE: Final = 1
_SEGMENT: Final = 2
"""Indices into the numbers of the key: marks, and the number that identifies segments."""
_FIRST_PART: Final = 4
_PRIME: Final = uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = uint64(29)
_BITS: Final = uint64(16)
_ONE: Final = uint64(1)
_AS_TOKEN: Final = uint64(2)
"""The bit in a segment's number for a segment that was sent as a token."""
_TRIES, _VAIN, _WHOLE = range(3)


class Redundancy(NetworkFunction):
    """Redundancy elimination: finds payloads that were sent before; removes or restores them by ``role``.

    Both ends need the same ``key``. Each core stores about ``remembered`` of the last payloads (a power of
    two), with 1.5 KiB each; the end that restores needs at least the same number, and as many cores. Raises
    ``ValueError`` for an unknown role or an invalid number.
    """

    stateless = True

    def __init__(self, role: str = "count", key: str = "", remembered: int = 2**14) -> None:
        if role not in {"count", "remove", "restore", "both"}:
            raise ValueError(f"role {role!r}: choose count, remove, restore or both")
        if remembered < WAYS or remembered & (remembered - 1):
            raise ValueError(f"{remembered} payloads: choose a power of two, at least {WAYS}")
        self.counting = role == "count"
        self.removes = role in {"remove", "both"}
        self.restores = role in {"restore", "both"}
        self.grows = PAYLOAD_BYTES_MAX - TOKEN_BYTES if self.restores else ESCAPE_BYTES * self.removes
        self.remembered = remembered
        self.numbers = key_numbers(key)

    def prepare(self, cores: int) -> None:
        """Create the part of the cache, segments and counters of each core."""
        places = cores * self.remembered
        self.words = np.zeros(places, np.uint64)
        """(places,) twice the number of writes to each place; odd during a write."""
        self.marks = np.zeros((places, 4), np.uint64)
        """(places, 4) fingerprints, lengths, and the age: the core's clock at the write."""
        self.clock = np.zeros((cores, 16), np.uint64)
        """(cores, ...) the number of payloads that each core has stored."""
        self.data = np.zeros(places * PAYLOAD_BYTES_MAX, np.uint8)
        self.segments = np.zeros((cores, SEGMENTS * self.remembered), np.uint64)
        """(cores, segments) the recent segments, by a number for each."""
        self.trials = np.zeros((cores, 16), np.int64)
        """(cores, ...) tokens tried, tokens that failed, and payloads that must still be sent whole."""
        self.counts = self.counters(cores, *COUNTERS)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Remove payloads from inside, restore those from the link."""
        for packet in batch:
            if packet.error or packet.protocol not in (6, 17):
                continue
            # Both ends skip packets that do not fill their frame.
            if packet.end != packet.length:
                continue
            # No valid header has this checksum. Changed and changed back, it would become 0.
            if packet.version == 4 and peek16(packet.address + packet.network + 10) == 0xFFFF:
                continue
            here = packet.address + packet.transport
            if packet.protocol == 17 and packet.transport + int64(peek16(here + 4)) != packet.end:
                continue
            size = int64(packet.end) - packet.payload
            if self.counting or (self.removes and packet.side == INSIDE):
                self.remove(packet, packet.address + packet.payload, size, flows.core)
            elif self.restores and packet.side == OUTSIDE:
                self.restore(packet, packet.address + packet.payload, size, flows.core)

    def remove(self, packet: Packet, at: int, size: int, core: int) -> None:
        """Replace a known payload by a token, and store an unknown one."""
        if self.removes and self.looks_like_token(at, size):
            if set_payload_size(packet, size + ESCAPE_BYTES):
                move_up(at, size, ESCAPE_BYTES)
                poke64(at, self.numbers[_ESCAPE])
                self.counts[core, ESCAPED] += 1
            else:
                drop(packet, TOO_LONG)
            return
        if size < PAYLOAD_BYTES_MIN or size > PAYLOAD_BYTES_MAX:
            return
        mark, check = fingerprint(at, size, self.numbers[_FIRST_PART:])
        mine = self.counts[core]
        mine[PAYLOADS] += 1
        mine[BYTES] += size
        name = self.segment(packet, mark)
        repeated = self.record_segment(name, core)
        if not self.knows(at, size, mark, check):
            self.remember(at, size, mark, check, core)
            return
        mine[AGAIN] += 1
        mine[AGAIN_BYTES] += size
        if repeated:
            mine[REPEATED] += 1
        elif self.removes and self.may_send_token(core) and set_payload_size(packet, TOKEN_BYTES):
            self.segments[core, self.segment_place(name)] = name | _AS_TOKEN
            poke64(at, self.numbers[_TOKEN])
            poke64(at + 8, mark)
            poke64(at + 16, check << _BITS | uint64(size))
            mine[TOKENS] += 1
            mine[SAVED] += size - TOKEN_BYTES

    def restore(self, packet: Packet, at: int, size: int, core: int) -> None:
        """Replace a token by its payload, and store other payloads."""
        if size == TOKEN_BYTES and peek64(at) == self.numbers[_TOKEN]:
            self.put_back(packet, at, core)
        elif size >= ESCAPE_BYTES and peek64(at) == self.numbers[_ESCAPE]:
            move_down(at + ESCAPE_BYTES, size - ESCAPE_BYTES, ESCAPE_BYTES)
            set_payload_size(packet, size - ESCAPE_BYTES)
            self.counts[core, ESCAPED] += 1
        elif PAYLOAD_BYTES_MIN <= size <= PAYLOAD_BYTES_MAX:
            mark, check = fingerprint(at, size, self.numbers[_FIRST_PART:])
            self.counts[core, PAYLOADS] += 1
            self.counts[core, BYTES] += size
            if not self.knows(at, size, mark, check):
                self.remember(at, size, mark, check, core)

    def put_back(self, packet: Packet, at: int, core: int) -> None:
        """Replace a token by its payload, or drop the packet."""
        mark, told = peek64(at + 8), peek64(at + 16)
        size = int64(told & uint64(0xFFFF))
        if not PAYLOAD_BYTES_MIN <= size <= PAYLOAD_BYTES_MAX or not set_payload_size(packet, size):
            drop(packet, TOO_LONG)
            return
        for n in range(len(self.segments) * WAYS):
            place = self.place(mark, n)
            word = load_acquire(self.words, place)
            if self.is_at(place, word, size, mark, told >> _BITS):
                copy_bytes(at, self.data.ctypes.data + place * PAYLOAD_BYTES_MAX, size)
                fence()
                if load_acquire(self.words, place) == word:
                    self.counts[core, RESTORED] += 1
                    return
        self.counts[core, MISSING] += 1
        drop(packet, NOT_KNOWN)

    def looks_like_token(self, at: int, size: int) -> bool:
        """Return True if a payload begins like a token or an escape."""
        if size < ESCAPE_BYTES:
            return False
        begin = peek64(at)
        return bool(begin == self.numbers[_ESCAPE] or (size == TOKEN_BYTES and begin == self.numbers[_TOKEN]))

    def may_send_token(self, core: int) -> bool:
        """Return True if one more token may be sent."""
        doubts = self.trials[core]
        if doubts[_WHOLE] > 0:
            doubts[_WHOLE] -= 1
            return False
        if doubts[_TRIES] >= TRIAL_TOKENS:
            # Reordered segments are also sent again, but not nearly all of them.
            if 8 * doubts[_VAIN] >= 7 * doubts[_TRIES]:
                doubts[_WHOLE] = RELEARNED
            doubts[_TRIES] = doubts[_VAIN] = 0
        doubts[_TRIES] += 1
        return True

    def segment(self, packet: Packet, mark: int) -> int:
        """Return a number for a segment, by flow and sequence number; for a datagram, by flow and payload."""
        sequence = mark
        if packet.protocol == 6:
            sequence = uint64(peek32(packet.address + packet.transport + 4))
        # The hash is equal for both directions, so the source is added.
        way = packet.source_low * _PRIME + uint64(packet.source_port)
        name = (packet.hash ^ self.numbers[_SEGMENT]) + (sequence ^ (way << _BITS)) * _PRIME
        name ^= name >> _SHIFT
        return uint64(name * _PRIME) & ~_AS_TOKEN | _ONE

    def segment_place(self, name: int) -> int:
        """Return the index at which each core records a segment."""
        return int64(name >> _SHIFT) % self.segments.shape[1]

    def record_segment(self, name: int, core: int) -> bool:
        """Record a segment; return True if any core has recorded it before."""
        place = self.segment_place(name)
        as_token = as_whole = False
        for other in range(len(self.segments)):
            as_token |= bool(self.segments[other, place] == name | _AS_TOKEN)
            as_whole |= bool(self.segments[other, place] == name)
        self.segments[core, place] = name
        self.trials[core, _VAIN] += int64(as_token and not as_whole)
        return as_token or as_whole

    def place(self, mark: int, n: int) -> int:
        """Return the n-th place for a fingerprint: ``WAYS`` places of the first core, and so on."""
        sets = uint64(self.remembered // WAYS - 1)
        return n // WAYS * self.remembered + int64((mark >> _BITS) & sets) * WAYS + n % WAYS

    def is_at(self, place: int, word: int, size: int, mark: int, check: int) -> bool:
        """Return True if a place has the payload of a fingerprint; ``word`` was read before."""
        row = self.marks[place]
        return bool(word & _ONE == 0 and row[0] == mark and row[1] == check and row[2] == uint64(size))

    def knows(self, at: int, size: int, mark: int, check: int) -> bool:
        """Return True if a core has stored the same bytes."""
        for n in range(len(self.segments) * WAYS):
            place = self.place(mark, n)
            word = load_acquire(self.words, place)
            if self.is_at(place, word, size, mark, check):
                same = same_bytes(at, self.data.ctypes.data + place * PAYLOAD_BYTES_MAX, size)
                fence()
                if same and load_acquire(self.words, place) == word:
                    return True
        return False

    def remember(self, at: int, size: int, mark: int, check: int, core: int) -> None:
        """Store a payload in this core's part, in place of the oldest of its set."""
        place = self.place(mark, core * WAYS)
        for n in range(1, WAYS):
            other = self.place(mark, core * WAYS + n)
            if self.marks[other, 3] < self.marks[place, 3]:
                place = other
        self.clock[core, 0] += _ONE
        word = self.words[place]
        store_release(self.words, place, word | _ONE)
        fence()
        row = self.marks[place]
        row[0], row[1], row[2], row[3] = mark, check, uint64(size), self.clock[core, 0]
        copy_bytes(self.data.ctypes.data + place * PAYLOAD_BYTES_MAX, at, size)
        store_release(self.words, place, word + uint64(2))
