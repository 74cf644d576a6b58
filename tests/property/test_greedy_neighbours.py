"""Each kind of greedy neighbour leaves an innocent client its turns, and no turn costs more than a bound."""

from __future__ import annotations

import pytest

from labs.benchmarks.neighbours.kinds import KINDS
from tests.support.core.greedy_core import UNIT_WORK_MAX, BusyNode, drive

PARTS = 1_000


def test_there_are_many_kinds() -> None:
    """The search is as wide as the calls that a node offers."""
    assert len({row.kind for row in KINDS.values()}) >= 30


@pytest.mark.parametrize("lines", [400_000, pytest.param(4_000_000, marks=pytest.mark.extended)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_innocent_client_is_served_next_to_a_kind(kind: str, lines: int) -> None:
    """Steps, turns and the work for each charged unit are bounded; the client is answered in its turns."""
    busy = BusyNode()
    drive(busy, kind, lines, PARTS)
    assert busy.lines <= busy.units * UNIT_WORK_MAX, f"{busy.lines:,} lines for {busy.units:,} units"
