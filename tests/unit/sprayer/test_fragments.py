"""The table of datagrams against a model of sets: which fragments pass, wait, or are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from dios.limits import SPRAYER_DATAGRAM_S
from dios.sprayer.compile.intrinsics import uint64
from dios.sprayer.packets.fragments import PASSES, REFUSED_PART, UNKNOWN, admit_fragment, make_datagrams
from dios.sprayer.packets.packet import PACKET, Packets
from tests.support.sprayer.frames import UDP, Made, parts_of
from tests.support.sprayer.kernels import fresh

SEED: Final = uint64(5)
_Admit = Callable[[Packets, npt.NDArray[np.uint64], npt.NDArray[np.int64], int, int], int]


@pytest.fixture(scope="module")
def admit() -> _Admit:
    """The kernel for the first packet of an array."""

    def first(
        packets: Packets, table: npt.NDArray[np.uint64], locks: npt.NDArray[np.int64], seed: int, now: int
    ) -> int:
        return admit_fragment(packets[0], table, locks, seed, now)

    return fresh(first)


class Model:
    """Datagrams as sets of blocks."""

    def __init__(self) -> None:
        self.datagrams: dict[int, tuple[int, set[int], list[int]]] = {}
        """By identification: the time, the blocks that have passed, and the number of all, if it is known."""

    def admit(self, name: int, blocks: range, now: int, *, more: bool) -> int:
        """Return what a fragment is."""
        known = self.datagrams.get(name)
        if known and now - known[0] > SPRAYER_DATAGRAM_S:
            known = None
        if blocks.start == 0:
            if known:
                return REFUSED_PART
            known = self.datagrams[name] = (now, set(), [])
        elif not known:
            return UNKNOWN
        _, passed, last = known
        behind = (last and (blocks.stop > last[0] or not more)) or (
            not more and max(passed, default=-1) >= blocks.stop
        )
        if behind or passed & set(blocks):
            return REFUSED_PART
        passed |= set(blocks)
        last += [] if more else [blocks.stop]
        if last and len(passed) == last[0]:
            del self.datagrams[name]
        return PASSES


@pytest.mark.parametrize("seed", range(20))
def test_fragments_are_admitted_as_a_model_says(admit: _Admit, seed: int) -> None:
    """Random parts of a few datagrams, in any order, some of them forged, over some time."""
    chance = random.Random(seed)  # noqa: S311 - test data
    table, locks = make_datagrams()
    model, now = Model(), 100
    results = []
    for _ in range(400):
        now += chance.random() < 0.05
        name, count = chance.randrange(5), 8 * chance.randrange(9, 30)
        size = 8 * chance.randrange(1, 9)
        parts = parts_of(
            Made(protocol=UDP, payload=bytes(count - 8 + chance.randrange(8))).frame(), size, name
        )
        number = 0 if chance.random() < 0.3 else chance.randrange(len(parts))
        data = np.frombuffer(bytearray(parts[number]), np.uint8)
        packets = np.zeros(1, PACKET)
        packets["address"], packets["length"] = data.ctypes.data, data.size
        packets["network"], packets["version"], packets["end"] = 14, 4, data.size
        packets["source_low"], packets["target_low"] = 1, 2
        begin = number * size // 8
        blocks = range(begin, begin + -(-(data.size - 34) // 8))
        expected = model.admit(name, blocks, now, more=number < len(parts) - 1)
        assert admit(packets, table, locks, SEED, now) == expected
        if expected == PASSES:
            assert (int(packets[0]["source_port"]), int(packets[0]["target_port"])) == (1234, 80)
        results.append(expected)
    assert {PASSES, UNKNOWN, REFUSED_PART} == set(results)
    assert not locks.any()
