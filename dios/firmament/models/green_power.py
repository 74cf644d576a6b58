"""The power of machines and each task's share of it (§7.4), with the machines of Tables 8.3 and 8.4.

Measurements enter through ``PowerTable.observe`` and ``observe_above``. The model assumes that power is
linear in the number of busy cores; the thesis found this to hold well. A machine draws its idle power
regardless of all decisions, so all energies here are above idle (§8.2.2). Machines are always on: the thesis
leaves switching them off to others, and so does this model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Floats
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.cost_terms import running_tasks

_SAMPLES_MIN: Final = 3
"""Samples of a class on a type of machine that are needed to use their mean instead of the type's figures."""
_CHANGE_MIN: Final = 0.05
"""The relative change of a mean that makes it a new figure and raises ``version``."""
_WATTS_MAX: Final = 1e9
_CLASSES_MAX: Final = 4_096
"""Equivalence classes with measured power. Further classes use the machines' figures."""


@dataclass(frozen=True, slots=True)
class Power:
    """The power and speed of a type of machine. Speeds are relative to a core of a Dell R415."""

    idle: float
    """Watts."""
    full: float
    """Watts with all cores busy."""
    cores: int
    speed: float = 1.0
    """Work of a batch task, in seconds on a core of speed 1, that a core does in a second."""
    requests: float = 1_000.0
    """Requests per second that a service task's core answers."""

    def __post_init__(self) -> None:
        if not (0 <= self.idle <= self.full and self.cores > 0 and self.speed > 0 and self.requests > 0):
            raise InvalidError(
                f"{self}: use values with 0 <= idle <= full, and cores, speed and requests above 0"
            )

    @property
    def marginal(self) -> float:
        """Watts for each busy core."""
        return (self.full - self.idle) / self.cores

    def watts(self, busy: float) -> float:
        """Return the watts of the machine with ``busy`` busy cores."""
        return self.idle + min(busy, self.cores) * self.marginal


MACHINES: Final = {
    # Watts and cores: Tables 8.3 and 8.4 (the R420 has twelve cores, as in Table 8.1). Speed and requests are
    # estimates from clock rates and kinds of cores, because the thesis gives none.
    "pandaboard": Power(6.95, 7.58, 2, 0.18, 2_000.0),
    "wandboard": Power(9.55, 12.25, 4, 0.18, 2_500.0),
    "r420": Power(87.10, 175.04, 12, 0.92, 16_000.0),
    "r415": Power(70.60, 238.02, 12, 1.0, 19_000.0),
    "itanium": Power(544.94, 657.81, 8, 0.45, 6_000.0),
}
"""The thesis' five machines by type."""

ORDINARY: Final = Power(80.0, 200.0, 12)
"""The figures for a type without any."""


class PowerTable:
    """The figures of each type of machine, and the measured power of task classes on each type."""

    def __init__(self) -> None:
        self._types: dict[str, Power] = dict(MACHINES)
        self._sums: dict[tuple[int, int], tuple[float, int]] = {}
        self._reported: dict[tuple[int, int], float] = {}
        self.version = 0
        """Grows when a figure changes enough to change costs."""

    def note(self, machine_type: str, power: Power) -> None:
        """Set the figures of a type of machine."""
        self._types[machine_type] = power
        self.version += 1

    def of(self, machine_type: str) -> Power:
        """Return the figures of a type, or ``ORDINARY`` for an unknown type."""
        return self._types.get(machine_type, ORDINARY)

    def read_labels(self, labels: dict[str, str], machine_type: str) -> None:
        """Read a type's figures from the label ``power=idle:full:cores[:speed[:requests]]``, if present.

        Raises:
            InvalidError: the label does not consist of such numbers.
        """
        text = labels.get("power")
        if text is None:
            return
        try:
            idle, full, cores, *more = (float(word) for word in text.split(":"))
            power = Power(idle, full, round(cores), *more[:2])
        except (ValueError, TypeError):
            raise InvalidError(
                f"label power={text} is not valid; write idle:full:cores[:speed[:requests]] in watts"
            ) from None
        if self._types.get(machine_type) != power:
            self.note(machine_type, power)

    def observe(self, state: ClusterState, machine: int, watts: float) -> None:
        """Record one power sample of a whole machine (§7.4), of which the type's idle power is subtracted.

        Args:
            state: the cluster.
            machine: the machine's row.
            watts: the power at the socket.

        Raises:
            InvalidError: the row is not a machine, or ``watts`` is not from 0 to 1e9.
        """
        if state.resources.level[machine] != Level.MACHINE or not 0 <= watts < _WATTS_MAX:
            raise InvalidError(
                f"{watts} W at row {machine}: give the row of a machine and a power of at least 0"
            )
        kind = int(state.resources.machine_type[machine])
        self.observe_above(state, machine, watts - self.of(state.machine_types.names[kind]).idle)

    def observe_above(self, state: ClusterState, machine: int, above: float) -> None:
        """Record one sample of a machine's power above idle.

        It is divided among the running tasks in proportion to the cores that they use.

        Args:
            state: the cluster.
            machine: the machine's row.
            above: watts; less than 0 count as 0.

        Raises:
            InvalidError: the row is not a machine, or ``above`` is not a possible number of watts.
        """
        if state.resources.level[machine] != Level.MACHINE or not abs(above) < _WATTS_MAX:
            raise InvalidError(f"{above} W above idle at row {machine}: give the row of a machine and watts")
        tasks = state.tasks
        rows = running_tasks(state)
        rows = rows[tasks.machine[rows] == machine]
        usage = tasks.usage[rows, 0]
        cores = np.where(usage > 0, usage, tasks.demand[rows, 0])
        if not cores.sum() > 0:
            return
        kind = int(state.resources.machine_type[machine])
        for equivalence, share in zip(tasks.equivalence[rows].tolist(), cores / cores.sum(), strict=True):
            self._add((equivalence, kind), float(max(0.0, above) * share))

    def watts(self, state: ClusterState, kinds: list[int], equivalences: Floats, cpus: Floats) -> Floats:
        """Return the watts above idle of tasks on types of machines, shape (tasks, kinds).

        They are measured where there are enough samples, else computed from the type's figures.

        Args:
            state: the cluster.
            kinds: numbers of machine types.
            equivalences: the tasks' classes, shape (tasks,).
            cpus: the cores that the tasks request, shape (tasks,).
        """
        marginal = np.array([self.of(state.machine_types.names[kind]).marginal for kind in kinds])
        watts: Floats = cpus[:, None] * marginal[None, :]
        for (equivalence, kind), (total, count) in self._sums.items():
            if kind in kinds and count >= _SAMPLES_MIN:
                watts[equivalences == equivalence, kinds.index(kind)] = total / count
        return watts

    def _add(self, key: tuple[int, int], watts: float) -> None:
        if key not in self._sums and len(self._sums) >= _CLASSES_MAX:
            return
        total, count = self._sums.get(key, (0.0, 0))
        self._sums[key] = (total + watts, count + 1)
        mean = (total + watts) / (count + 1)
        reported = self._reported.get(key, 0.0)
        if count + 1 >= _SAMPLES_MIN and abs(mean - reported) > _CHANGE_MIN * reported:
            self._reported[key] = mean
            self.version += 1
