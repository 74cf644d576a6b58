"""Redundancy elimination, as far as the middlebox on this side goes: what was sent before is found out.

Not for: leaving it out, for which another middlebox would have to put it in again.

The cache of packets is global state that every packet reads and writes (thesis Table 3.1), which spraying
does not make easier: all cores share one, whoever writes last wins, and a lost fingerprint costs a saving,
never a packet.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.compiled import borrowing
from dios.sprayer.flow_table import Flows
from dios.sprayer.machine import natural, peek8, peek64, whole
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packet import Batch

PACKETS, BYTES, AGAIN, AGAIN_BYTES = range(4)
_PRIME: Final = natural(0x9E3779B97F4A7C15)
_SHIFT: Final = natural(29)


class Redundancy(NetworkFunction):
    """Counts payloads that went through before, among about so many of the last ones (a power of two)."""

    stateless = True

    def __init__(self, remembered: int = 2**16) -> None:
        if remembered < 1 or remembered & (remembered - 1):
            raise ValueError(f"{remembered} payloads: choose a power of two")
        self.cache = np.zeros(remembered, np.uint64)
        """(remembered,) fingerprints, each in the place that it chooses; shared by all cores."""

    def prepare(self, cores: int) -> None:
        """Counters for each core."""
        self.counts = self.counters(cores, "payloads", "bytes", "again", "again_bytes")

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Look each payload up, and remember it."""
        mine = self.counts[flows.core]
        for packet in batch:
            size = packet.end - packet.payload
            if packet.error or size <= 0:
                continue
            mark = fingerprint(packet.address + packet.payload, size)
            place = whole(mark & natural(self.cache.size - 1))
            mine[PACKETS] += 1
            mine[BYTES] += size
            if self.cache[place] == mark:
                mine[AGAIN] += 1
                mine[AGAIN_BYTES] += size
            else:
                self.cache[place] = mark


@borrowing
def fingerprint(address: int, size: int) -> int:
    """64 bits of so many bytes at an address, never 0."""
    mixed = natural(natural(size) * _PRIME)
    for at in range(0, size - 7, 8):
        mixed = (mixed ^ peek64(address + at)) * _PRIME
        mixed ^= mixed >> _SHIFT
    for at in range(size - size % 8, size):
        mixed = (mixed ^ natural(peek8(address + at))) * _PRIME
    mixed ^= mixed >> _SHIFT
    return natural(mixed * _PRIME) | natural(1)
