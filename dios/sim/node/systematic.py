"""One short life, again and again, with one fault more at each operation of its disk in turn.

Not for: faults that meet by chance, which the random mode of ``dios.sim.node.world.simulate`` has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from dios.errors import Code
from dios.sim.disk.faults import APPLIES, Fault, NoFaults, OneFault, Operation
from dios.sim.node.checker import BrokenPromiseError
from dios.sim.node.world import OpenStore, World, open_store

DRAWS: Final = 3
"""How often each power cut is tried: which unsynced pages it keeps is drawn anew."""

CUTS_AFTER: Final = (0, 1, 3)
"""How many operations after another fault the power goes; 0: not at all."""

_ALLOWED: Final = {
    Fault.FULL: {Code.ENOSPC},
    Fault.FAIL: {Code.EIO},
    Fault.SHORT: {Code.EIO},
    Fault.LOSE: {Code.EIO},
    Fault.FLIP: {Code.EIO},
    Fault.CUT: set[Code](),
}
_OF_THE_DISK: Final = frozenset({Code.EIO, Code.ENOSPC})


class Case(Struct, frozen=True):
    """One run of the scenario: which fault strikes where, and how many operations later the power goes."""

    number: int
    operation: Operation
    fault: Fault
    cut_after: int
    draw: int


class Pass(Struct):
    """What a systematic pass did: operations of the scenario, runs, faults that struck, refusals by code."""

    operations: int
    runs: int
    faults: Counter[str]
    refusals: Counter[int]


def cases(kinds: list[Operation], stride: int = 1) -> Iterator[Case]:
    """Each fault that fits, at each ``stride``-th operation; going on, and with a power cut soon after."""
    for number in range(0, len(kinds), stride):
        for fault in Fault:
            if kinds[number] not in APPLIES[fault]:
                continue
            if fault is Fault.CUT:
                for draw in range(DRAWS):
                    yield Case(number, kinds[number], fault, 0, draw)
            else:
                for cut_after in CUTS_AFTER:
                    yield Case(number, kinds[number], fault, cut_after, 0)


def systematic(
    seed: int,
    steps: int,
    *,
    stride: int = 1,
    only: Callable[[Case], bool] = lambda _case: True,
    opener: OpenStore = open_store,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Pass:
    """Run the scenario of ``seed`` once for each case that ``only`` takes.

    ``progress`` is told of runs done and runs in all.

    Raises BrokenPromiseError, naming the case, where something acknowledged is lost, something is torn or
    invented, a refusal has the wrong code, or the node does not go on.
    """
    calm = World(seed, NoFaults(), opener, fills=False)
    calm.run(steps)
    todo = [case for case in cases(calm.device.kinds, stride) if only(case)]
    done = Pass(len(calm.device.kinds), 0, Counter(), Counter())
    for case in todo:
        _run(seed, steps, case, opener, done)
        progress(done.runs, len(todo))
    return done


def _run(seed: int, steps: int, case: Case, opener: OpenStore, done: Pass) -> None:
    plan = OneFault(case.number, case.fault, case.cut_after)
    world = World(seed, plan, opener, fills=False, draw=case.draw)
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


def _allowed(case: Case) -> set[Code]:
    # A store that stopped in the middle of a commit says so with EIO, whatever was the cause.
    stops = case.operation is Operation.WRITE_THROUGH and case.fault is Fault.FULL
    return {Code.EIO} if stops else _ALLOWED[case.fault]
