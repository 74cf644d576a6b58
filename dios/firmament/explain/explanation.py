"""Why a task waits or runs where it is, from a round rehearsed for the question: values and sentences.

For: people, by ``dios explain``. What is said to be enough was tried: each change is made in the round's
network, the network is solved again, and only what places the task is told.
Not for: decisions; nothing reads an explanation but people.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

Status = Literal["waits", "runs"]


@dataclass(frozen=True, slots=True)
class Step:
    """One arc of the way that a task's unit of flow takes."""

    source: str
    target: str
    cost: int


@dataclass(frozen=True, slots=True)
class Place:
    """A machine where the task could go, if there were room."""

    machine: int
    name: str
    cost: int
    """Of the cheapest way there, whether there is room or not."""
    against_chosen: int
    """How much more that is than what the task costs now; negative: it would be better there."""
    free_slots: int
    full: str = ""
    """The arc on the way that has no room left, or nothing."""
    remark: str = ""
    """The cost model's own words."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Machines that are out of the question, by reason."""

    machines: int
    reason: str


@dataclass(frozen=True, slots=True)
class Enough:
    """A change after which the task runs (or, when it runs, moves or stops); it was tried."""

    what: Literal["slot", "waiting cost", "staying cost"]
    machine: int | None
    """The machine with one more slot."""
    cost: int | None
    """The cost of its arc that has to be passed."""
    worth: int
    """How much the whole cluster's cost falls by the slot, or how far the cost is away."""
    seconds: float | None
    """When that will be, if the cost goes on growing as it does; None: nobody knows, or never."""
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything there is to say about one task."""

    task: int
    job: int
    status: Status
    reason: str
    """One sentence."""
    machine: int | None
    """Where it runs."""
    round: int
    """The last one that was made."""
    model: str
    cost: int
    """Of the task's way in the rehearsed solution."""
    path: list[Step] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    """The best ones, the cheapest first."""
    total_machines: int = 0
    excluded: list[Excluded] = field(default_factory=list)
    binding: str = ""
    """The arc without room on the way to the best place, and what room there is worth."""
    enough: list[Enough] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Plain values for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The same for people."""
        said = [f"task {self.task} of job {self.job} {self.status}: {self.reason}"]
        if self.path:
            way = " -> ".join([self.path[0].source, *(step.target for step in self.path)])
            costs = " + ".join(str(step.cost) for step in self.path)
            said.append(
                f"its way: {way}; cost {costs} = {self.cost} (round {self.round}, model {self.model})"
            )
        for place in self.places:
            sign = "more" if place.against_chosen >= 0 else "less"
            room = place.full or f"{place.free_slots} slots free"
            remark = f" ({place.remark})" if place.remark else ""
            said.append(f"  {place.name}: {place.cost}, {abs(place.against_chosen)} {sign}; {room}{remark}")
        said.extend(
            f"{one.machines} of {self.total_machines} machines: {one.reason}" for one in self.excluded
        )
        if self.binding:
            said.append(f"what binds: {self.binding}")
        said.extend(one.text for one in self.enough)
        return said
