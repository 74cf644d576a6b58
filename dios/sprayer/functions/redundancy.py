"""Redundancy elimination: what went over a link before goes again as a few bytes that stand for it.

It takes two middleboxes, one at each end of the link, with their insides away from it: ``remove`` replaces
payloads that it sent before by tokens, ``restore`` puts them back, ``both`` does one for each direction, and
``count`` only finds out what there would be to save. Payloads are known as a whole: what a sender cuts at
other places is another one. Not for: what is encrypted, which never is the same.

The cache of packets is global state that every packet reads and writes (thesis Table 3.1). Here each core
writes a part of its own and all read all, without a lock: a word beside each payload is odd while it is
written, and another one afterwards. A payload found is compared byte by byte before it is left out; the other
end finds it by 112 bits of a fingerprint with a key that both share.

What can go wrong costs a packet that TCP sends again, never a connection and never a wrong byte:

- A token may come before what it stands for, since spraying changes the order, or after it was forgotten. It
  is dropped then, as ``not_known``. What comes again, by flow and sequence number, always goes whole, as the
  same datagram of UDP does: by the last ``SEGMENTS`` times ``remembered`` segments of each core.
- The other end may be begun anew, and remember nothing. So where nearly all tokens are followed by their
  segments again, a core sends ``RELEARNED`` known payloads whole before it tries once more.
- The checksum of TCP or UDP goes over the link as it was, and is wrong there. It is right again when the
  payload is, so that the receiver checks what both middleboxes did. What stands between them must not look.
- Payloads that begin as a token does by chance, or by somebody who saw one, go with eight bytes before them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.sprayer.compile.intrinsics import (
    copy_bytes,
    fence,
    load_acquire,
    natural,
    peek16,
    peek32,
    peek64,
    poke64,
    store_release,
    whole,
)
from dios.sprayer.flows.five_tuple import drop
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.payloads import (
    LONGEST,
    fingerprint,
    move_down,
    move_up,
    numbers_of,
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
SHORTEST: Final = 64
"""Shorter payloads are not worth a token."""
TOKEN_BYTES: Final = 24
"""A mark, a fingerprint of 64 and of 48 bits, and a length."""
ESCAPE_BYTES: Final = 8
SEGMENTS: Final = 4
WAYS: Final = 4
"""Places of a core where one payload may be: the oldest there makes room."""
TRIED: Final = 64
"""After so many tokens a core looks how many of them were in vain."""
RELEARNED: Final = 1024

_TOKEN: Final = 0
_ESCAPE: Final = 1
_SEGMENT: Final = 2
"""Places among the key's numbers: marks, and what segments are told apart with."""
_FIRST_PART: Final = 4
_PRIME: Final = natural(0x9E3779B97F4A7C15)
_SHIFT: Final = natural(29)
_BITS: Final = natural(16)
_ONE: Final = natural(1)
_AS_TOKEN: Final = natural(2)
"""In a segment's number: it went as a token."""
_TRIES, _VAIN, _WHOLE = range(3)


class Redundancy(NetworkFunction):
    """Finds payloads that went through before, and leaves them out or puts them in again, by its ``role``.

    Both ends have the same ``key``. Each core remembers about so many of the last payloads (a power of
    two), with 1.5 KiB for each; the end that restores should have as many, and as many cores, at least.
    ``ValueError`` for another role or number.
    """

    stateless = True

    def __init__(self, role: str = "count", key: str = "", remembered: int = 2**14) -> None:
        if role not in {"count", "remove", "restore", "both"}:
            raise ValueError(f"role {role!r}: choose count, remove, restore or both")
        if remembered < WAYS or remembered & (remembered - 1):
            raise ValueError(f"{remembered} payloads: choose a power of two, {WAYS} at least")
        self.counting = role == "count"
        self.removes = role in {"remove", "both"}
        self.restores = role in {"restore", "both"}
        self.grows = LONGEST - TOKEN_BYTES if self.restores else ESCAPE_BYTES * self.removes
        self.remembered = remembered
        self.numbers = numbers_of(key)

    def prepare(self, cores: int) -> None:
        """A part of the cache, segments and counters for each core."""
        places = cores * self.remembered
        self.words = np.zeros(places, np.uint64)
        """(places,) how often each place was written, twice; odd while it is."""
        self.marks = np.zeros((places, 4), np.uint64)
        """(places, 4) fingerprints, lengths, and how many were remembered by that core before."""
        self.clock = np.zeros((cores, 16), np.uint64)
        """(cores, ...) how many each core remembered."""
        self.data = np.zeros(places * LONGEST, np.uint8)
        self.segments = np.zeros((cores, SEGMENTS * self.remembered), np.uint64)
        """(cores, segments) those that went through, by a number for each."""
        self.doubts = np.zeros((cores, 16), np.int64)
        """(cores, ...) tokens that were tried, those in vain, and payloads that are still to go whole."""
        self.counts = self.counters(cores, *COUNTERS)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """What comes from inside is looked up, what comes from the link is as it was again."""
        for packet in batch:
            if packet.error or packet.protocol not in (6, 17):
                continue
            # What is followed by something else, in its frame or its packet, is left alone at both ends.
            if packet.end != packet.length:
                continue
            # No header has this checksum rightly. Changed and changed back it would come out as 0.
            if packet.version == 4 and peek16(packet.address + packet.network + 10) == 0xFFFF:
                continue
            here = packet.address + packet.transport
            if packet.protocol == 17 and packet.transport + whole(peek16(here + 4)) != packet.end:
                continue
            size = whole(packet.end) - packet.payload
            if self.counting or (self.removes and packet.side == INSIDE):
                self.remove(packet, packet.address + packet.payload, size, flows.core)
            elif self.restores and packet.side == OUTSIDE:
                self.restore(packet, packet.address + packet.payload, size, flows.core)

    def remove(self, packet: Packet, at: int, size: int, core: int) -> None:
        """Let a payload that is known go as a token, and remember one that is not."""
        if self.removes and self.misleads(at, size):
            if set_payload_size(packet, size + ESCAPE_BYTES):
                move_up(at, size, ESCAPE_BYTES)
                poke64(at, self.numbers[_ESCAPE])
                self.counts[core, ESCAPED] += 1
            else:
                drop(packet, TOO_LONG)
            return
        if size < SHORTEST or size > LONGEST:
            return
        mark, check = fingerprint(at, size, self.numbers[_FIRST_PART:])
        mine = self.counts[core]
        mine[PAYLOADS] += 1
        mine[BYTES] += size
        name = self.segment(packet, mark)
        repeated = self.went_before(name, core)
        if not self.knows(at, size, mark, check):
            self.remember(at, size, mark, check, core)
            return
        mine[AGAIN] += 1
        mine[AGAIN_BYTES] += size
        if repeated:
            mine[REPEATED] += 1
        elif self.removes and self.trusts(core) and set_payload_size(packet, TOKEN_BYTES):
            self.segments[core, self.segment_place(name)] = name | _AS_TOKEN
            poke64(at, self.numbers[_TOKEN])
            poke64(at + 8, mark)
            poke64(at + 16, check << _BITS | natural(size))
            mine[TOKENS] += 1
            mine[SAVED] += size - TOKEN_BYTES

    def restore(self, packet: Packet, at: int, size: int, core: int) -> None:
        """Put back what a token stands for, and remember all else."""
        if size == TOKEN_BYTES and peek64(at) == self.numbers[_TOKEN]:
            self.put_back(packet, at, core)
        elif size >= ESCAPE_BYTES and peek64(at) == self.numbers[_ESCAPE]:
            move_down(at + ESCAPE_BYTES, size - ESCAPE_BYTES, ESCAPE_BYTES)
            set_payload_size(packet, size - ESCAPE_BYTES)
            self.counts[core, ESCAPED] += 1
        elif SHORTEST <= size <= LONGEST:
            mark, check = fingerprint(at, size, self.numbers[_FIRST_PART:])
            self.counts[core, PAYLOADS] += 1
            self.counts[core, BYTES] += size
            if not self.knows(at, size, mark, check):
                self.remember(at, size, mark, check, core)

    def put_back(self, packet: Packet, at: int, core: int) -> None:
        """Put a token's payload in its place, or drop it."""
        mark, told = peek64(at + 8), peek64(at + 16)
        size = whole(told & natural(0xFFFF))
        if not SHORTEST <= size <= LONGEST or not set_payload_size(packet, size):
            drop(packet, TOO_LONG)
            return
        for n in range(len(self.segments) * WAYS):
            place = self.place(mark, n)
            word = load_acquire(self.words, place)
            if self.is_at(place, word, size, mark, told >> _BITS):
                copy_bytes(at, self.data.ctypes.data + place * LONGEST, size)
                fence()
                if load_acquire(self.words, place) == word:
                    self.counts[core, RESTORED] += 1
                    return
        self.counts[core, MISSING] += 1
        drop(packet, NOT_KNOWN)

    def misleads(self, at: int, size: int) -> bool:
        """Whether a payload looks like something of ours."""
        if size < ESCAPE_BYTES:
            return False
        begin = peek64(at)
        return bool(begin == self.numbers[_ESCAPE] or (size == TOKEN_BYTES and begin == self.numbers[_TOKEN]))

    def trusts(self, core: int) -> bool:
        """Whether one more token is to be tried."""
        doubts = self.doubts[core]
        if doubts[_WHOLE] > 0:
            doubts[_WHOLE] -= 1
            return False
        if doubts[_TRIES] >= TRIED:
            # Segments that overtake each other are sent again as well, but not nearly all of them.
            if 8 * doubts[_VAIN] >= 7 * doubts[_TRIES]:
                doubts[_WHOLE] = RELEARNED
            doubts[_TRIES] = doubts[_VAIN] = 0
        doubts[_TRIES] += 1
        return True

    def segment(self, packet: Packet, mark: int) -> int:
        """A number for a segment, by flow and sequence number; for a datagram, by flow and payload."""
        sequence = mark
        if packet.protocol == 6:
            sequence = natural(peek32(packet.address + packet.transport + 4))
        # The hash of a flow is that of its reverse.
        way = packet.source_low * _PRIME + natural(packet.source_port)
        name = (packet.hash ^ self.numbers[_SEGMENT]) + (sequence ^ (way << _BITS)) * _PRIME
        name ^= name >> _SHIFT
        return natural(name * _PRIME) & ~_AS_TOKEN | _ONE

    def segment_place(self, name: int) -> int:
        """Where each core notes a segment."""
        return whole(name >> _SHIFT) % self.segments.shape[1]

    def went_before(self, name: int, core: int) -> bool:
        """Whether the same segment went through lately, on any core; from now on it did."""
        place = self.segment_place(name)
        as_token = as_whole = False
        for other in range(len(self.segments)):
            as_token |= bool(self.segments[other, place] == name | _AS_TOKEN)
            as_whole |= bool(self.segments[other, place] == name)
        self.segments[core, place] = name
        self.doubts[core, _VAIN] += whole(as_token and not as_whole)
        return as_token or as_whole

    def place(self, mark: int, n: int) -> int:
        """The n-th place where a payload with a fingerprint may be: ``WAYS`` of the first core, and so on."""
        sets = natural(self.remembered // WAYS - 1)
        return n // WAYS * self.remembered + whole((mark >> _BITS) & sets) * WAYS + n % WAYS

    def is_at(self, place: int, word: int, size: int, mark: int, check: int) -> bool:
        """Whether a place has the payload of a fingerprint, by what its word was."""
        row = self.marks[place]
        return bool(word & _ONE == 0 and row[0] == mark and row[1] == check and row[2] == natural(size))

    def knows(self, at: int, size: int, mark: int, check: int) -> bool:
        """Whether a core remembers the same bytes."""
        for n in range(len(self.segments) * WAYS):
            place = self.place(mark, n)
            word = load_acquire(self.words, place)
            if self.is_at(place, word, size, mark, check):
                same = same_bytes(at, self.data.ctypes.data + place * LONGEST, size)
                fence()
                if same and load_acquire(self.words, place) == word:
                    return True
        return False

    def remember(self, at: int, size: int, mark: int, check: int, core: int) -> None:
        """Keep a payload in this core's part, instead of the oldest one where it may be."""
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
        row[0], row[1], row[2], row[3] = mark, check, natural(size), self.clock[core, 0]
        copy_bytes(self.data.ctypes.data + place * LONGEST, at, size)
        store_release(self.words, place, word + natural(2))
