"""The new bytes of TCP that a function carries, without those that were sent again.

A steering that lets packets overtake each other makes senders repeat data, and so carries more bytes with
less use. Each core watches some flows: for each direction the highest sequence number, and all payload. The
meter takes the highest number of all cores, since a sprayed flow passes several.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_WATCHED
from dios.sprayer.compile.intrinsics import int64, peek32, uint64
from dios.sprayer.packets.packet import Packet

Ints = npt.NDArray[np.int64]

# The columns of a row for one direction of a flow.
TAG: Final = 0
PERIOD: Final = 1
"""The last period in which it was seen."""
FIRST: Final = 2
HIGHEST: Final = 3
PAYLOAD: Final = 4
COLUMNS: Final = 8
_CIRCLE: Final = 2**32


def make_watched(cores: int) -> Ints:
    """Return the rows of all cores (cores, SPRAYER_WATCHED + 1, COLUMNS); the last has all payload of TCP."""
    return np.zeros((cores, SPRAYER_WATCHED + 1, COLUMNS), np.int64)


@no_refcount_kernel
def watch(watched: Ints, packet: Packet, period: int) -> None:
    """Record a packet of TCP in this core's rows, which are for some flows in each ``period`` (from 1)."""
    size = int64(packet.end) - int64(packet.payload)
    if packet.protocol != 6 or packet.error or size <= 0:
        return
    watched[SPRAYER_WATCHED, PAYLOAD] += size
    tag = int64(packet.hash >> uint64(2)) * 2 + int64(packet.side)
    row = watched[tag & (SPRAYER_WATCHED - 1)]
    sequence = int64(peek32(packet.address + packet.transport + 4))
    if row[TAG] != tag:
        if row[PERIOD] == period:
            return
        row[TAG], row[FIRST], row[HIGHEST], row[PAYLOAD] = tag, sequence, sequence, 0
    row[PERIOD] = period
    ahead = (sequence + size - row[HIGHEST]) & (_CIRCLE - 1)
    if ahead < _CIRCLE // 2:
        row[HIGHEST] = (row[HIGHEST] + ahead) & (_CIRCLE - 1)
    row[PAYLOAD] += size


class ProgressMeter:
    """Compares watched flows between two calls of ``repeated``."""

    def __init__(self) -> None:
        self._flows: dict[int, tuple[int, int]] = {}
        """By tag: the highest sequence number of all cores, and the payload so far."""
        self._payload = 0

    def repeated(self, watched: Ints, period: int) -> float:
        """Return the bytes of payload since the last call that were sent again, estimated for all of TCP.

        ``period`` is the one that ends. The estimate has the ratio of the watched flows.
        """
        total, self._payload = self._payload, int(watched[:, SPRAYER_WATCHED, PAYLOAD].sum())
        flows: dict[int, tuple[int, int]] = {}
        seen = new = 0
        rows = watched[:, :SPRAYER_WATCHED]
        parts_by_tag: dict[int, list[tuple[int, int, int]]] = {}
        for core, at in zip(*np.nonzero(rows[:, :, PERIOD] == period), strict=True):
            row = rows[core, at]
            parts_by_tag.setdefault(int(row[TAG]), []).append(
                (int(row[FIRST]), int(row[HIGHEST]), int(row[PAYLOAD]))
            )
        for tag, parts in parts_by_tag.items():
            base = self._flows[tag][0] if tag in self._flows else _lowest([first for first, _, _ in parts])
            payload = sum(part[2] for part in parts)
            carried = payload - (self._flows[tag][1] if tag in self._flows else 0)
            ahead = max(_ahead(highest, base) for _, highest, _ in parts)
            flows[tag] = (base + ahead) % _CIRCLE, payload
            if carried > 0:
                seen += carried
                new += min(max(ahead, 0), carried)
        self._flows = flows
        return (self._payload - total) * (1 - new / seen) if seen else 0.0


def _ahead(number: int, base: int) -> int:
    """Return how far a sequence number is ahead of another; below 0 if it is behind."""
    return (number - base + _CIRCLE // 2) % _CIRCLE - _CIRCLE // 2


def _lowest(numbers: list[int]) -> int:
    return min(numbers, key=lambda number: _ahead(number, numbers[0]))
