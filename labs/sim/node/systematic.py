"""Repeats one short run with one additional fault at each disk operation in turn.

Combinations of random faults are in ``labs.sim.node.world.simulate``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from dios.errors import Code
from labs.sim.disk.faults import APPLIES, DiskFault, NoFaults, OneFault, Operation
from labs.sim.node.checker import BrokenPromiseError
from labs.sim.node.world import NodeWorld, OpenStore, open_store

DRAWS: Final = 3
"""The number of runs for each power cut; each run keeps other unsynced pages."""

CUTS_AFTER: Final = (0, 1, 3)
"""The number of operations between another fault and a power cut; 0 means no power cut."""

_ALLOWED: Final = {
    DiskFault.FULL: {Code.ENOSPC},
    DiskFault.FAIL: {Code.EIO},
    DiskFault.SHORT: {Code.EIO},
    DiskFault.LOSE: {Code.EIO},
    DiskFault.FLIP: {Code.EIO},
    DiskFault.CUT: set[Code](),
}
_OF_THE_DISK: Final = frozenset({Code.EIO, Code.ENOSPC})


class FaultCase(Struct, frozen=True):
    """One run of the scenario: the fault, its operation, and how many operations later the power is cut."""

    number: int
    operation: Operation
    fault: DiskFault
    cut_after: int
    draw: int


class SystematicReport(Struct):
    """The result of a systematic pass: operations of the scenario, runs, faults, and refusals by code."""

    operations: int
    runs: int
    faults: Counter[str]
    refusals: Counter[int]


def cases(kinds: list[Operation], stride: int = 1) -> Iterator[FaultCase]:
    """Yield each possible fault at each ``stride``-th operation, with and without a power cut soon after."""
    for number in range(0, len(kinds), stride):
        for fault in DiskFault:
            if kinds[number] not in APPLIES[fault]:
                continue
            if fault is DiskFault.CUT:
                for draw in range(DRAWS):
                    yield FaultCase(number, kinds[number], fault, 0, draw)
            else:
                for cut_after in CUTS_AFTER:
                    yield FaultCase(number, kinds[number], fault, cut_after, 0)


def systematic(
    seed: int,
    steps: int,
    *,
    stride: int = 1,
    only: Callable[[FaultCase], bool] = lambda _case: True,
    opener: OpenStore = open_store,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> SystematicReport:
    """Run the scenario of ``seed`` once for each case that ``only`` accepts.

    ``progress`` is called with the number of finished runs and the total.

    Raises BrokenPromiseError with the name of the case if something acknowledged is lost, something is torn
    or invented, a refusal has the wrong code, or the node does not continue.
    """
    calm = NodeWorld(seed, NoFaults(), opener, fills=False)
    calm.run(steps)
    todo = [case for case in cases(calm.device.kinds, stride) if only(case)]
    done = SystematicReport(len(calm.device.kinds), 0, Counter(), Counter())
    for case in todo:
        _run(seed, steps, case, opener, done)
        progress(done.runs, len(todo))
    return done


def _run(seed: int, steps: int, case: FaultCase, opener: OpenStore, done: SystematicReport) -> None:
    plan = OneFault(case.number, case.fault, case.cut_after)
    world = NodeWorld(seed, plan, opener, fills=False, draw=case.draw)
    cut = f", a power cut {case.cut_after} later" if case.cut_after else ""
    place = f"{case.fault} at operation {case.number} ({case.operation}){cut}, draw {case.draw}"
    try:
        report = world.run(steps)
    except BrokenPromiseError as error:
        raise BrokenPromiseError(f"{place}: {error}") from error
    codes = {code: count for code, count in report.refusals.items() if code in _OF_THE_DISK}
    if not codes.keys() <= _allowed(case):
        raise BrokenPromiseError(f"{place}: refused with {sorted(codes)}")
    done.runs += 1
    done.faults.update(report.faults)
    done.refusals.update(codes)


def _allowed(case: FaultCase) -> set[Code]:
    # A store that stopped in the middle of a commit reports EIO, whatever the cause was.
    stops = case.operation is Operation.WRITE_THROUGH and case.fault is DiskFault.FULL
    return {Code.EIO} if stops else _ALLOWED[case.fault]
