"""The placement of input blocks on the machines of a simulated distributed file system (§8.4).

It gives simulated tasks inputs, so that cost models with data locality have data to work with. The time
for reading is not simulated.

As in §8.4, blocks have 64 MB, and file sizes follow those of HDFS at Facebook (CAK12, Figures 1 and 3),
clamped to 64 MB and 20 GB. The thesis has 1.2 billion blocks, 75 PB. Nothing is stored here: the places of
a block are computed by hashing the file's number, so any number of files takes no memory.

Each block has three copies, placed as GFS and HDFS do: the first on any machine, two on another rack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from dios.errors import InvalidError
from dios.firmament.descriptors import Block, MachineDescriptor

BLOCK_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES_MAX: Final = 20 * 1024**3
FILE_BYTES_MEDIAN: Final = 150e6
"""The median of the file sizes in bytes. A log-normal distribution with this median and spread has most
files in a few blocks and most bytes in files of gigabytes, like the figures that the thesis cites."""
FILE_SPREAD: Final = 1.8
"""Standard deviation of the logarithm of file sizes."""
_COPIES: Final = 3

_MASK: Final = 2**64 - 1


def hash64(value: int) -> int:
    """Return a 64-bit hash in which each bit depends on all bits of the value (splitmix64's finish)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class BlockMap:
    """The files of a cluster, and the machines that hold their blocks.

    Args:
        machines: the machines that store blocks.
        seed: the seed of all block places.

    Raises:
        InvalidError: the list of machines is empty.
    """

    def __init__(self, machines: Sequence[MachineDescriptor], seed: int) -> None:
        if not machines:
            raise InvalidError("cannot place blocks: there are no machines. Give at least one")
        self._seed = hash64(seed)
        self._all = [machine.machine for machine in machines]
        self._racks: dict[str, list[int]] = {}
        for machine in machines:
            self._racks.setdefault(machine.rack, []).append(machine.machine)
        self._rack_names = list(self._racks)
        self._rack_of = {machine.machine: machine.rack for machine in machines}

    def copies(self, file: int, block: int) -> tuple[int, ...]:
        """Return the machines that hold a block: three on two racks, or fewer in a smaller cluster."""
        key = hash64(self._seed ^ hash64((file << 20) ^ block))
        first = self._all[key % len(self._all)]
        others = [name for name in self._rack_names if name != self._rack_of[first]]
        key = hash64(key)
        if not others:
            return self._spread(self._racks[self._rack_of[first]], key, first)
        rack = self._racks[others[key % len(others)]]
        return (first, *self._distinct(rack, hash64(key), _COPIES - 1))

    def input_of(self, file: int, size: int) -> tuple[Block, ...]:
        """Return the blocks of a file of ``size`` bytes; the last block may be short."""
        count = max(1, math.ceil(size / BLOCK_BYTES))
        return tuple(
            Block(min(BLOCK_BYTES, size - number * BLOCK_BYTES), self.copies(file, number))
            for number in range(count)
        )

    def _spread(self, rack: list[int], key: int, first: int) -> tuple[int, ...]:
        """Return the places of all copies in a cluster with a single rack."""
        rest = [machine for machine in rack if machine != first]
        return (first, *self._distinct(rest, key, _COPIES - 1))

    @staticmethod
    def _distinct(machines: list[int], key: int, count: int) -> list[int]:
        """Return up to ``count`` different machines: consecutive entries that begin at a hashed position."""
        start = key % len(machines) if machines else 0
        return [machines[(start + at) % len(machines)] for at in range(min(count, len(machines)))]


def file_size(quantile: float) -> int:
    """Return the given quantile of the file sizes in bytes, clamped to [64 MB, 20 GB] (§8.4).

    Args:
        quantile: the share of all files that are smaller, strictly between 0 and 1.
    """
    size = math.exp(math.log(FILE_BYTES_MEDIAN) + FILE_SPREAD * NormalDist().inv_cdf(quantile))
    return round(min(max(size, float(BLOCK_BYTES)), float(FILE_BYTES_MAX)))
