"""The faults of a kept round, carried out on real nodes at their times."""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.chaos.kept.cluster import KeptCluster, KeptNode
from tests.chaos.kept.plan import LOAD_S, Fault, Kind, Plan
from tests.support.lab.namespaces import NotHereError

_SECOND: Final = 1_000_000_000
_STROBE_PERIOD_NS: Final = 50_000_000
_SLOW_NS: Final = 50_000_000
_SPONSORS_S: Final = 5.0
_ARMED_S: Final = 0.3
"""The time for which writes are recorded before a power cut."""
_ARMED_SYNC_NS: Final = 80_000_000
"""The time that each sync takes then, so that the power is often cut during a sync."""
_BUSY_LOOPS_PER_CPU: Final = 3
_BUSY: Final = (sys.executable, "-c", "while True: pass")


class Faults:
    """Carries out a plan; ``kill_program`` ends a program and starts another one."""

    def __init__(
        self,
        cluster: KeptCluster,
        plan: Plan,
        kill_program: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        self._cluster: Final = cluster
        self._plan: Final = plan
        self._kill_program: Final = kill_program
        self._say: Final = say
        self._rng: Final = random.Random(f"power {plan.seed}")  # noqa: S311 - it guards nothing
        self._order: Final = itertools.count()
        self._due: Final[list[tuple[float, int, Callable[[], None]]]] = []
        self._away: Final[set[int]] = set()
        self._cut = False
        self._loops: Final[list[subprocess.Popen[bytes]]] = []
        self.carried_out: Final[Counter[str]] = Counter()

    def carry_out(self) -> None:
        """Carry out all faults and return when the time of the load is over; some last longer."""
        begin = time.monotonic()
        for fault in self._plan.faults:
            self._later(fault.at_s, functools.partial(self._begin, fault))
        try:
            while self._due and (at := self._due[0][0]) <= LOAD_S:
                time.sleep(max(0.0, begin + at - time.monotonic()))
                heapq.heappop(self._due)[2]()
            time.sleep(max(0.0, begin + LOAD_S - time.monotonic()))
        finally:
            self._end_loops()

    def _later(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), act))

    def _begin(self, fault: Fault) -> None:
        if fault.kind is Kind.PROGRAM:
            self._note(fault)
            self._kill_program(fault.nodes[0])
            return
        nodes = [self._cluster.nodes[number] for number in fault.nodes]
        gone = any(not node.running for node in nodes)
        # A node whose only sponsor is removed has to join again: its disk is lost, too.
        gone |= fault.kind is Kind.LOSE and time.monotonic() - nodes[0].invited_at < _SPONSORS_S
        if (
            gone
            or self._away & set(fault.nodes)
            or (fault.kind in {Kind.CUT, Kind.CUT_ONE_WAY} and self._cut)
        ):
            self._say(f"  {fault} (left out: it has another fault)")
            return
        self._note(fault)
        end = fault.at_s + fault.lasting_s
        node = nodes[0]
        match fault.kind:
            case Kind.CUT | Kind.CUT_ONE_WAY:
                self._cut = True
                self._cluster.cut(nodes, one_way=fault.kind is Kind.CUT_ONE_WAY)
                self._later(end, self._heal)
            case Kind.PAUSE:
                self._leave(fault)
                self._cluster.signal(node, signal.SIGSTOP)
                self._later(end, lambda: self._resume(node))
            case Kind.KILL | Kind.STOP | Kind.OVERLOAD:
                self._leave(fault)
                self._cluster.end(node, orderly=fault.kind is Kind.STOP)
                self._later(end, lambda: self._start(node, busy=fault.kind is Kind.OVERLOAD))
            case Kind.POWER:
                self._leave(fault)
                _set(node, journal=1, sync_delay_ns=_ARMED_SYNC_NS)
                self._later(fault.at_s + _ARMED_S, lambda: self._cut_power(node, end))
            case Kind.LOSE:
                self._leave(fault)
                self._cluster.lose(node)
                self._later(max(end, fault.at_s + 0.5), lambda: self._follow(node))
            case _:
                self._impair(fault, node)
                if fault.kind is not Kind.CLOCK:
                    self._later(end, lambda: _heal_machine(node))

    def _note(self, fault: Fault) -> None:
        self._say(f"  {fault}")
        self.carried_out[str(fault.kind)] += 1

    def _leave(self, fault: Fault) -> None:
        self._away.update(fault.nodes)

    @staticmethod
    def _impair(fault: Fault, node: KeptNode) -> None:
        amount_ns = int(fault.amount_s * _SECOND)
        match fault.kind:
            case Kind.CLOCK:
                _set(node, clock_offset_ns=amount_ns)
            case Kind.STROBE:
                _set(node, strobe_period_ns=_STROBE_PERIOD_NS, strobe_ns=amount_ns)
            case Kind.STALL:
                _set(node, stalled=1)
            case _:
                _set(node, sync_delay_ns=_SLOW_NS)

    def _heal(self) -> None:
        self._cut = False
        self._cluster.heal_network()

    def _resume(self, node: KeptNode) -> None:
        self._cluster.signal(node, signal.SIGCONT)
        self._away.discard(node.number)

    def _cut_power(self, node: KeptNode, end_s: float) -> None:
        lost = self._cluster.cut_power(node, self._rng)
        self._say(f"  {node.name} lost {lost.pages + lost.changes} of {lost.unsynced} unsynced changes")
        self._later(end_s + _ARMED_S, lambda: self._start(node))

    def _start(self, node: KeptNode, *, busy: bool = False) -> None:
        if busy:
            count = _BUSY_LOOPS_PER_CPU * (os.cpu_count() or 1)
            self._loops.extend(subprocess.Popen(_BUSY) for _ in range(count))
        self._cluster.begin(node)
        self._away.discard(node.number)

    def _follow(self, node: KeptNode) -> None:
        """Let a new node join, if the network allows it; else it joins at the end of all faults."""
        if self._cut or len(self._away) > 1:
            return
        try:
            self._cluster.follow(node)
        except NotHereError as error:
            self._say(f"  {node.name} cannot join yet: {error}")
            return
        self._away.discard(node.number)

    def _end_loops(self) -> None:
        for loop in self._loops:
            loop.kill()
        for loop in self._loops:
            loop.wait()
        self._loops.clear()


def _set(node: KeptNode, **fields: int) -> None:
    assert node.machinery is not None
    node.machinery.set(**fields)


def _heal_machine(node: KeptNode) -> None:
    assert node.machinery is not None
    node.machinery.heal()
