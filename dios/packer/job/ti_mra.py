"""TI-MRA: a job's needs over time (Packer paper, section II-A).

The text format is in ``ti_mra_toml.py``, ready-made jobs are in ``dios.packer.templates``.

A job is a graph. Nodes are tasks, and services that the job uses. Directed edges carry bandwidth; unless
``depends`` is False, their target depends on their source. Time is counted in instants of equal length.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.limits import (
    PACKER_AMOUNT_MAX,
    PACKER_CELLS_MAX,
    PACKER_EDGES_MAX,
    PACKER_INSTANTS_MAX,
    PACKER_NODES_MAX,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

Number: TypeAlias = float | np.float32 | np.int64
Demand: TypeAlias = Number | Sequence[float] | Mapping[int, Number] | Floats
"""A constant, one number for each instant, or steps: the new number by the instant of the change."""

RESOURCES: Final = ("cpu", "memory", "disk_write", "disk_read")
UNITS: Final = ("cores", "MiB", "MB/s", "MB/s")
"""The units in messages and examples; any unit works if the data centre uses the same."""


class JobError(ValueError):
    """An invalid job; ``field`` is the field at fault, as in ``tasks.map.cpu``."""

    def __init__(self, field_at_fault: str, trouble: str) -> None:
        super().__init__(f"{field_at_fault} {trouble}")
        self.field = field_at_fault
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Node:
    """A task, or a service that the job uses if ``service`` names one (v in K or C of the paper).

    ``cpu``, ``memory``, ``disk_write`` and ``disk_read`` are demands over time (delta(v, r, t)). The node
    runs from the instant ``start`` to before ``end`` (None: the job's end); outside of that time, constants
    and steps count as 0. ``after`` names nodes that must precede it although they send it nothing.
    """

    name: str
    cpu: Demand = 0.0
    memory: Demand = 0.0
    disk_write: Demand = 0.0
    disk_read: Demand = 0.0
    start: int = 0
    end: int | None = None
    after: tuple[str, ...] = ()
    service: str | None = None

    @property
    def field(self) -> str:
        """The node's name in messages."""
        return f"{'tasks' if self.service is None else 'services'}.{self.name}"


@dataclass(frozen=True, slots=True)
class Edge:
    """The traffic from ``source`` to ``target``: ``bandwidth`` over time (sigma(e, t)).

    With ``depends=False`` it is traffic only, such as the answers to requests, and may close a cycle.
    """

    source: str
    target: str
    bandwidth: Demand = 0.0
    depends: bool = True


@dataclass(frozen=True, eq=False)
class TiMra:
    """A job: nodes, edges, and ``instants`` of ``instant_s`` seconds (Packer paper, section II-A).

    ``weight`` in [0, 1] counts when bandwidth beyond the guarantees is shared (section II-C).

    Raises ``JobError``, a ``ValueError``, with the field at fault: an unknown or duplicate node, a cycle of
    dependencies, a demand that is negative, not finite or of the wrong length, or instants out of range.
    """

    name: str
    nodes: Sequence[Node]
    edges: Sequence[Edge] = ()
    instants: int = 1
    instant_s: float = 1.0
    weight: float = 0.5
    demand: Floats = field(init=False, repr=False)
    """(nodes, instants, 4), in the order of ``RESOURCES``."""
    bandwidth: Floats = field(init=False, repr=False)
    """(edges, instants)."""
    ends: Ints = field(init=False, repr=False)
    """(edges, 2): the indices of source and target in ``nodes``."""
    order: Ints = field(init=False, repr=False)
    """(nodes,): by start, and after its dependencies (SortNodes, Algorithm 1, line 5)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "edges", tuple(self.edges))
        self._check_sizes()
        index = self._index_names()
        demand = np.zeros((len(self.nodes), self.instants, len(RESOURCES)))
        for at, node in enumerate(self.nodes):
            life = self._life(node)
            for which, resource in enumerate(RESOURCES):
                given: Demand = getattr(node, resource)
                demand[at, :, which] = _over_time(f"{node.field}.{resource}", given, self.instants, life)
        ends = np.zeros((len(self.edges), 2), np.int64)
        bandwidth = np.zeros((len(self.edges), self.instants))
        for at, edge in enumerate(self.edges):
            place = f"edges[{at}]"
            for side, (key, name) in enumerate((("from", edge.source), ("to", edge.target))):
                if name not in index:
                    raise JobError(f"{place}.{key}", f"is {name!r}, but there is no such task or service")
                ends[at, side] = index[name]
            if edge.source == edge.target:
                raise JobError(f"{place}.to", f"is {edge.target!r}, the same as from; name another node")
            bandwidth[at] = _over_time(f"{place}.bandwidth", edge.bandwidth, self.instants, None)
        for name, found in (("demand", demand), ("bandwidth", bandwidth), ("ends", ends)):
            found.setflags(write=False)
            object.__setattr__(self, name, found)
        object.__setattr__(self, "order", self._sort_nodes(index))

    @classmethod
    def from_toml(cls, source: str | Path) -> TiMra:
        """Read a job from a file (a ``Path``, or a string of one line) or from a text; see docs/packer.md.

        Raises ``JobError`` with the file and the line at fault, and ``OSError``.
        """
        from dios.packer.job.ti_mra_toml import read  # noqa: PLC0415 - that module imports this one

        return read(source)

    def to_toml(self) -> str:
        """Return the job as a text; ``from_toml`` reads it back to an equal job."""
        from dios.packer.job.ti_mra_toml import to_toml  # noqa: PLC0415 - likewise

        return to_toml(self)

    def same_as(self, other: TiMra) -> bool:
        """Return True if both jobs have the same needs, even if they were written differently."""
        return (
            (self.name, self.instants, self.instant_s, self.weight)
            == (other.name, other.instants, other.instant_s, other.weight)
            and [(node.name, node.service, set(node.after)) for node in self.nodes]
            == [(node.name, node.service, set(node.after)) for node in other.nodes]
            and [edge.depends for edge in self.edges] == [edge.depends for edge in other.edges]
            and np.array_equal(self.ends, other.ends)
            and np.array_equal(self.demand, other.demand)
            and np.array_equal(self.bandwidth, other.bandwidth)
        )

    def start_of(self) -> Ints:
        """Return (nodes,): the first instant at which each node needs, sends or receives anything."""
        busy: npt.NDArray[np.bool_] = np.asarray((self.demand > 0.0).any(axis=2))
        for (source, target), flow in zip(self.ends, self.bandwidth, strict=True):
            busy[[source, target]] |= flow > 0.0
        return np.where(busy.any(axis=1), busy.argmax(axis=1), [node.start for node in self.nodes])

    def resampled(self, instant_s: float) -> TiMra:
        """Return the same job in instants of another length, with the most of all instants that overlap."""
        if not (math.isfinite(instant_s) and instant_s > 0.0):
            raise JobError("instant_s", f"is {instant_s}; it must be finite and above 0")
        if instant_s == self.instant_s:
            return self
        ratio = instant_s / self.instant_s
        # Rounding must not turn 3 * 0.1 s into four instants.
        wanted = self.instants * (self.instant_s / instant_s)
        if not wanted <= PACKER_INSTANTS_MAX:
            trouble = f"is {self.instants}, which is {wanted:g} in instants of {instant_s:g} s;"
            raise JobError("instants", f"{trouble} at most {PACKER_INSTANTS_MAX} are possible")
        count = max(1, math.ceil(wanted - 1e-9))
        first = [min(self.instants - 1, int(at * ratio + 1e-9)) for at in range(count)]
        last = [min(self.instants, max(1, math.ceil((at + 1) * ratio - 1e-9))) for at in range(count)]
        spans = [slice(a, max(b, a + 1)) for a, b in zip(first, last, strict=True)]
        demand = np.stack([self.demand[:, span].max(axis=1) for span in spans], axis=1)
        bandwidth = np.stack([self.bandwidth[:, span].max(axis=1, initial=0.0) for span in spans], axis=1)
        return self.with_arrays(demand, bandwidth, instant_s=instant_s)

    def with_arrays(self, demand: Floats, bandwidth: Floats, *, instant_s: float | None = None) -> TiMra:
        """Return the same graph with other demands (nodes, T, 4) and bandwidth (edges, T)."""
        nodes = []
        for node, (cpu, memory, write, read) in zip(self.nodes, np.moveaxis(demand, 2, 1), strict=True):
            nodes.append(Node(node.name, cpu, memory, write, read, after=node.after, service=node.service))
        edges = [
            Edge(edge.source, edge.target, bandwidth[at], depends=edge.depends)
            for at, edge in enumerate(self.edges)
        ]
        length = self.instant_s if instant_s is None else instant_s
        return TiMra(self.name, nodes, edges, demand.shape[1], length, self.weight)

    def _check_sizes(self) -> None:
        if not 1 <= self.instants <= PACKER_INSTANTS_MAX:
            raise JobError("instants", f"is {self.instants}; it must be from 1 to {PACKER_INSTANTS_MAX}")
        if not (math.isfinite(self.instant_s) and self.instant_s > 0.0):
            raise JobError("instant_s", f"is {self.instant_s}; it must be finite and above 0")
        if not 0.0 <= self.weight <= 1.0:
            raise JobError("weight", f"is {self.weight}; it must be in [0, 1]")
        if not 1 <= len(self.nodes) <= PACKER_NODES_MAX:
            raise JobError("tasks", f"are {len(self.nodes)}; a job has from 1 to {PACKER_NODES_MAX}")
        if len(self.edges) > PACKER_EDGES_MAX:
            raise JobError("edges", f"are {len(self.edges)}; at most {PACKER_EDGES_MAX} are possible")
        if (len(self.nodes) * len(RESOURCES) + len(self.edges)) * self.instants > PACKER_CELLS_MAX:
            raise JobError(
                "instants",
                f"is {self.instants}, too many for {len(self.nodes)} nodes and {len(self.edges)} edges",
            )

    def _index_names(self) -> dict[str, int]:
        index: dict[str, int] = {}
        for at, node in enumerate(self.nodes):
            if not node.name:
                raise JobError("tasks", "has an entry without a name; give it one")
            if node.name in index:
                raise JobError(node.field, "is defined twice; names must differ")
            index[node.name] = at
        return index

    def _life(self, node: Node) -> tuple[int, int]:
        end = self.instants if node.end is None else node.end
        if not 0 <= node.start < self.instants:
            raise JobError(
                f"{node.field}.start", f"is {node.start}; it must be from 0 to {self.instants - 1}"
            )
        if not node.start < end <= self.instants:
            raise JobError(
                f"{node.field}.end", f"is {end}; it must be from {node.start + 1} to {self.instants}"
            )
        return node.start, end

    def _sort_nodes(self, index: Mapping[str, int]) -> Ints:
        """Return every node after its dependencies, among the possible ones the earliest start first."""
        needed = [
            (int(source), int(target))
            for (source, target), edge in zip(self.ends, self.edges, strict=True)
            if edge.depends
        ]
        for at, node in enumerate(self.nodes):
            for name in node.after:
                if name not in index:
                    raise JobError(
                        f"{node.field}.after", f"names {name!r}, but there is no such task or service"
                    )
                needed.append((index[name], at))
        waits, follow = [0] * len(self.nodes), [[] for _ in self.nodes]  # type: list[int], list[list[int]]
        for source, target in needed:
            waits[target] += 1
            follow[source].append(target)
        start = self.start_of()
        ready = [(int(start[at]), at) for at, count in enumerate(waits) if count == 0]
        heapq.heapify(ready)
        done: list[int] = []
        while ready:
            _, at = heapq.heappop(ready)
            done.append(at)
            for target in follow[at]:
                waits[target] -= 1
                if waits[target] == 0:
                    heapq.heappush(ready, (int(start[target]), target))
        if len(done) < len(self.nodes):
            raise JobError("edges", f"form a cycle of dependencies: {self._cycle(needed, set(done))}")
        return np.array(done, np.int64)

    def _cycle(self, needed: Sequence[tuple[int, int]], done: set[int]) -> str:
        """Return the names of one cycle; each of the nodes that are left waits for another one of them."""
        before = {target: source for source, target in needed if source not in done}
        at = next(iter(before))
        seen: list[int] = []
        while at not in seen:
            seen.append(at)
            at = before[at]
        circle = [*seen[seen.index(at) :], at][::-1]
        return " -> ".join(self.nodes[each].name for each in circle)


def _over_time(place: str, given: Demand, instants: int, life: tuple[int, int] | None) -> Floats:
    """Return a demand at each instant; constants and steps are 0 outside of ``life``."""
    start, end = life or (0, instants)
    found = np.zeros(instants)
    if isinstance(given, Mapping):
        steps = sorted(given.items())
        for at, (instant, value) in enumerate(steps):
            if not 0 <= instant < instants:
                raise JobError(place, f"has a step at {instant}; it must be from 0 to {instants - 1}")
            found[instant : steps[at + 1][0] if at + 1 < len(steps) else instants] = _checked_number(
                place, value
            )
        found[:start] = found[end:] = 0.0
    elif isinstance(given, int | float | np.number):
        found[start:end] = _checked_number(place, given)
    else:
        if len(given) != instants:
            raise JobError(
                place, f"has {len(given)} numbers; it must have one for each of the {instants} instants"
            )
        try:
            found[:] = given
        except (TypeError, ValueError, OverflowError):
            raise JobError(place, "holds a value that is not a number or is too large") from None
        good = (found >= 0.0) & (found <= PACKER_AMOUNT_MAX)
        if not good.all():
            _checked_number(f"{place}[{int(np.argmin(good))}]", float(found[int(np.argmin(good))]))
        outside = np.flatnonzero(found[end:])
        if found[:start].any() or outside.size:
            raise JobError(place, f"is not 0 outside of the node's time, {start} to {end}")
    return found


def _checked_number(place: str, value: object) -> float:
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        if 0.0 <= value <= PACKER_AMOUNT_MAX:
            return float(value)
        value = (
            f"{float(value):g}" if isinstance(value, float | np.number) or abs(value) < 2**53 else "too large"
        )
        raise JobError(place, f"is {value}; it must be a number from 0 to {PACKER_AMOUNT_MAX:g}")
    raise JobError(place, f"is {value!r}; it must be a number from 0 to {PACKER_AMOUNT_MAX:g}")


NODE_FIELDS: Final = tuple(each.name for each in fields(Node) if each.name != "name")
