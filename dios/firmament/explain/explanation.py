"""Explanations of why a task waits or runs where it does: values and sentences for ``dios explain``.

They come from a trial round. Every change that an explanation names as sufficient was tried: it was made in
the round's network, the network was solved again, and the change is named only if it places the task. No
program decides anything by an explanation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from dios.firmament.explain.amounts import amount_text

Status = Literal["waits", "runs"]


class CounterfactualKind(StrEnum):
    """The kinds of changes that are solved for a waiting task, those that its user can make first."""

    DEMAND = "demand"
    CONSTRAINT = "constraint"
    PIN = "pin"
    AFFINITY = "affinity"
    GANG = "gang"
    SERIES = "series"
    END = "end"
    KEPT_ROOM = "kept room"
    OWN_TASKS = "own tasks"
    QUOTA = "quota"
    TURN = "turn"

    @property
    def rank(self) -> int:
        """Its place in the order of kinds."""
        return list(CounterfactualKind).index(self)


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A change after which rounds of the scheduler place the task; it was made in a copy and solved."""

    kind: CounterfactualKind
    text: str
    machine: int
    """The identifier of the machine on which the task would start."""
    size: float
    """The order of changes of one kind: the part of the demands, or the seconds until the end."""
    amounts: dict[str, float]
    """The changed demands, by resource."""
    value: str
    """The key of the constraint that is left out, or the size of the gang; else empty."""
    freed: int | None
    """The identifier of the machine on which tasks end; None for all machines, and for other changes."""
    ended: int
    """The number of tasks that end there: the next ones by their known ends."""
    least: bool
    """True if a smaller change of the same kind was solved and is not sufficient, or there is none."""
    also: CounterfactualKind | None = None
    """The kind of a second change, without amounts, that has to be made as well."""
    also_value: str = ""
    """The ``value`` of the second change."""


@dataclass(frozen=True, slots=True)
class FreeAmounts:
    """The free amounts of a machine, and its capacity; None if the capacity is not known."""

    machine: int
    name: str
    free_slots: int
    slots: int
    free: dict[str, float | None]
    """By resource that the task demands."""
    capacity: dict[str, float | None]
    kept: bool
    """True if room there is kept for another task."""

    def text(self) -> str:
        """Return the amounts in one line."""
        parts = [
            f"{amount_text(name, amount)} of {amount_text(name, self.capacity[name] or 0.0)} "
            + {"cpus": "CPUs"}.get(name, name.replace("_", " "))
            for name, amount in self.free.items()
            if amount is not None
        ]
        kept = "; room there is kept for another task" if self.kept else ""
        return f"free on {self.name}: {', '.join([*parts, f'{self.free_slots} of {self.slots} slots'])}{kept}"


@dataclass(frozen=True, slots=True)
class PathStep:
    """One arc of the path that a task's unit of flow takes."""

    source: str
    target: str
    cost: int


@dataclass(frozen=True, slots=True)
class CandidateMachine:
    """A machine on which the task could run if there were room."""

    machine: int
    name: str
    cost: int
    """The cost of the cheapest path there, with or without room."""
    against_chosen: int
    """That cost minus the cost of the task's present path; negative: the machine would be better."""
    free_slots: int
    full: str = ""
    """The first arc without room on the path, or an empty string."""
    remark: str = ""
    """A remark of the cost model."""


@dataclass(frozen=True, slots=True)
class ExcludedMachines:
    """The machines that the task cannot use, for one reason."""

    machines: int
    """Their number."""
    reason: str
    names: tuple[str, ...] = ()
    """The names of the first EXCLUDED_NAMES of them."""
    passes: bool = False
    """True if the reason may end without a change of the task or of the machines, as when tasks end."""


@dataclass(frozen=True, slots=True)
class SufficientChange:
    """A change that was tried and makes the task run (or, if it runs, move or stop)."""

    kind: Literal["slot", "waiting cost", "staying cost"]
    machine: int | None
    """The machine that gets one more slot."""
    cost: int | None
    """The cost of the arc at which the change takes effect."""
    worth: int
    """The fall of the cluster's total cost by the slot, or the distance of the present cost to ``cost``."""
    seconds: float | None
    """The time until the cost is reached at its present growth; None: unknown, or never."""
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one task."""

    task: int
    job: int
    status: Status
    reason: str
    """One sentence."""
    machine: int | None
    """The identifier of the machine on which it runs."""
    round: int
    """The number of the last round."""
    model: str
    cost: int | None
    """The cost of the task's path in the trial solution; None if it has no path there."""
    path: list[PathStep] = field(default_factory=list)
    places: list[CandidateMachine] = field(default_factory=list)
    """The best machines, cheapest first."""
    total_machines: int = 0
    excluded: list[ExcludedMachines] = field(default_factory=list)
    binding: str = ""
    """The arc without room on the path to the best machine, and the worth of room on it."""
    enough: list[SufficientChange] = field(default_factory=list)
    promised: str = ""
    """The machines that are kept for it, and when it is expected to start there."""
    before: int | None = None
    """The number of waiting tasks of its principal that come before it; None if it takes part in rounds."""
    free: list[FreeAmounts] = field(default_factory=list)
    """The free amounts of up to EXPLAIN_NODES machines, the nearest to the demand of a waiting task first."""
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    """Changes that would start a waiting task, the smallest first."""
    unsolved: str = ""
    """A sentence about changes that were not solved, or about the lack of a sufficient one."""

    def lines(self) -> list[str]:
        """Return the explanation as lines of text."""
        said = [f"task {self.task} of job {self.job} {self.status}: {self.reason}"]
        if self.path:
            way = " -> ".join([self.path[0].source, *(step.target for step in self.path)])
            costs = " + ".join(str(step.cost) for step in self.path)
            said.append(
                f"its path: {way}; cost {costs} = {self.cost} (round {self.round}, model {self.model})"
            )
        for place in self.places:
            sign = "more" if place.against_chosen >= 0 else "less"
            room = place.full or f"{place.free_slots} slots free"
            remark = f" ({place.remark})" if place.remark else ""
            said.append(f"  {place.name}: {place.cost}, {abs(place.against_chosen)} {sign}; {room}{remark}")
        said.extend(
            f"{exclusion.machines} of {self.total_machines} machines: {exclusion.reason}"
            for exclusion in self.excluded
        )
        if self.binding:
            said.append(f"bottleneck: {self.binding}")
        if self.promised:
            said.append(self.promised)
        said.extend(amounts.text() for amounts in self.free)
        said.extend(counterfactual.text for counterfactual in self.counterfactuals)
        said.extend(change.text for change in self.enough)
        if self.unsolved:
            said.append(self.unsolved)
        if self.before is not None:
            said.append(f"{self.before} waiting tasks of its principal come before it")
        return said
