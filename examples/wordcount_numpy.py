"""Word count with numpy: a whole block is split into words, which are sorted as numbers.

Words of up to eight bytes are counted as 64-bit numbers, longer ones by a Counter. The node's Python needs
numpy (``pip install 'dios-space[data]'``). Use large blocks: ``mapreduce.run(..., block_bytes=512 << 20)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

STEP = 16 << 20
PACKED_BYTES = 8

Numbers: TypeAlias = "NDArray[np.uint64]"
Counts: TypeAlias = "NDArray[np.int64]"


def map_block(block: memoryview) -> dict[bytes, int]:
    """Count the words of a block."""
    long: Counter[bytes] = Counter()
    counted = [count_part(part, long) for part in parts(block)]
    packed, counts = together([some for some, _ in counted], [number for _, number in counted])
    words = packed.view(f"S{PACKED_BYTES}").tolist()
    return dict(zip(words, counts.tolist(), strict=True)) | long


def parts(block: memoryview) -> Iterator[memoryview]:
    """Yield the block in parts of about STEP bytes that end with a newline."""
    start = 0
    while start < len(block):
        stop = min(start + STEP, len(block))
        if stop < len(block):
            stop = start + bytes(block[start:stop]).rfind(b"\n") + 1 or stop
        yield block[start:stop]
        start = stop


def count_part(part: memoryview, long: Counter[bytes]) -> tuple[Numbers, Counts]:
    """Return the different short words of a part as numbers with their counts; add long ones to ``long``."""
    data = np.frombuffer(part, dtype=np.uint8)
    inside = np.zeros(len(data) + 2, dtype=bool)
    inside[1:-1] = data > ord(" ")
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    lengths = ends - starts
    for index in np.flatnonzero(lengths > PACKED_BYTES):
        long[bytes(part[starts[index] : ends[index]])] += 1
    few = lengths <= PACKED_BYTES
    starts, lengths = starts[few], lengths[few]
    letters = np.zeros((len(starts), PACKED_BYTES), dtype=np.uint8)
    for place in range(int(lengths.max(initial=0))):
        has = np.flatnonzero(lengths > place)
        letters[has, place] = data[starts[has] + place]
    packed, counts = np.unique(letters.view(np.uint64).ravel(), return_counts=True)
    return packed, counts


def together(words: list[Numbers], counts: list[Counts]) -> tuple[Numbers, Counts]:
    """Add up the counts of several parts."""
    if not words:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    every, numbers = np.concatenate(words), np.concatenate(counts)
    order = np.argsort(every)
    every, numbers = every[order], numbers[order]
    first = np.flatnonzero(np.concatenate(([True], every[1:] != every[:-1])))
    return every[first], np.add.reduceat(numbers, first) if len(first) else numbers


combine = reduce = sum
