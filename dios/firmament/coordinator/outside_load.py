"""The load of machines by programs that are no tasks of the cluster, for cost models that spread load.

A cost model knows what tasks ask for. Other programs of a machine take processors and memory as well, and
only measurements show it. They vary from second to second, and a placement that followed each of them would
flap. So they count in quarters of a machine, and a change counts once it has lasted.

Nodes of one machine, which have the same boot id, have one load together: the tasks of one of them are no
programs from outside for another one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dios import limits
from dios.firmament.coordinator.best_effort import NodeLoad

_QUARTERS: Final = 4
"""The levels of load of a machine; below the first one, nothing counts."""
_FALL: Final = 0.5
"""The part of a quarter by which the load has to be below a level before the level falls."""


class NodeTotals(NamedTuple):
    """The size of a node, and the number of its running tasks."""

    processors: int
    memory_bytes: int
    tasks: int


@dataclass(slots=True)
class _Machine:
    """The load of one machine; a level counts after it has been measured for LOAD_HOLD_MS."""

    tasks_use: dict[str, float] = field(default_factory=dict)
    """The processors that the tasks of each of its nodes use."""
    level: int = 0
    memory_short: bool = False
    measured: tuple[int, bool] = (0, False)
    """The level and the shortage of memory by the last measurement."""
    since: float = 0.0
    """The time since which the measurements say so."""


class OutsideLoad:
    """The measured load from outside of all nodes, and the part of it that counts."""

    def __init__(self) -> None:
        self._machines: dict[str, _Machine] = {}
        self._machine_of: dict[str, str] = {}
        self._processors: dict[str, int] = {}

    def record(self, node: str, boot: str, load: NodeLoad, totals: NodeTotals, now: float) -> None:
        """Record a node's measurement. ``boot`` is the boot id of its machine, empty if it is not known.

        A task without a measurement of its own counts as one processor: it has started or ended a moment ago.
        """
        key = boot or f"node {node}"
        if self._machine_of.get(node, key) != key:
            self._forget(node)
        self._machine_of[node], self._processors[node] = key, totals.processors
        machine = self._machines.setdefault(key, _Machine(since=now))
        unmeasured = max(0, totals.tasks - len(load.tasks))
        machine.tasks_use[node] = sum(task.cpus_milli for task in load.tasks) / 1000 + unmeasured
        outside = load.cpus_milli / 1000 - sum(machine.tasks_use.values())
        measured = (
            _next_level(machine.measured[0], _QUARTERS * outside / max(1, totals.processors)),
            _is_short(load.memory_bytes, totals.memory_bytes, was_short=machine.measured[1]),
        )
        if measured != machine.measured:
            machine.measured, machine.since = measured, now

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes but these."""
        for node in self._machine_of.keys() - nodes:
            self._forget(node)

    def _forget(self, node: str) -> None:
        """Forget a node, and its machine if no other node is there."""
        key = self._machine_of.pop(node, None)
        self._processors.pop(node, None)
        if key is not None:
            machine = self._machines[key]
            machine.tasks_use.pop(node, None)
            if not machine.tasks_use:
                del self._machines[key]

    def processors(self, node: str, now: float) -> float:
        """Return the number of a node's processors that others use; 0 without a measurement.

        A machine whose memory is short counts as all in use, in addition to its processors.
        """
        machine = self._machines.get(self._machine_of.get(node, ""))
        if machine is None:
            return 0.0
        if now - machine.since >= limits.LOAD_HOLD_MS / 1000:
            machine.level, machine.memory_short = machine.measured
        quarters = machine.level + _QUARTERS * machine.memory_short
        return self._processors[node] * quarters / _QUARTERS


def _next_level(level: int, quarters: float) -> int:
    """Return the level of a load: a level rises when it is reached, and falls when it is missed clearly."""
    if quarters >= level + 1 or quarters < level - _FALL:
        return max(0, min(int(quarters), _QUARTERS))
    return level


def _is_short(used: int, total: int, *, was_short: bool) -> bool:
    percent = limits.MEMORY_PLENTY_PERCENT if was_short else limits.MEMORY_SHORT_PERCENT
    return total > 0 and used * 100 >= total * percent
