"""The network of a round for other programs and for readers: DIMACS with names, and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.network.flow_network import RoundNetwork
from dios.firmament.network.vertices import VertexKind, Vertices
from dios.firmament.solvers import FlowProblem
from dios.limits import SCHED_EXPORT_ARCS_MAX


class TooLargeError(InvalidError):
    """The network is too large for a picture; export it instead."""


class VertexNames:
    """The names of upper vertices as they were in a round, even if the cluster has changed since."""

    def __init__(self, vertices: Vertices, state: ClusterState) -> None:
        self.kind: Ints = vertices.kind[: vertices.used].copy()
        self.row: Ints = vertices.row[: vertices.used].copy()
        self.inner: Ints = vertices.inner[: vertices.used].copy()
        self._resources = dict(state.resources.names)
        self._machines: Ints = state.resources.machine.copy()
        self._jobs = {
            row: descriptor.name or f"job {descriptor.job}"
            for row, descriptor in state.jobs.descriptors.items()
        }

    def __call__(self, vertex: int) -> str:
        """Return the name of a vertex."""
        kind, row = self.kind[vertex], int(self.row[vertex])
        if kind == VertexKind.SINK:
            return "sink"
        if kind == VertexKind.RESOURCE:
            return self.resource(row)
        if kind == VertexKind.JOB:
            return f"waiting ({self._jobs.get(row, 'ended job')})"
        if kind == VertexKind.CLASS:
            return f"class {row}"
        if kind == VertexKind.ONLY:
            return f"{self(int(self.inner[vertex]))} (as allowed)"
        return "unused"

    def resource(self, row: int) -> str:
        """Return a resource's name; the part of a machine has the machine's name before its own."""
        own, machine = self._resources.get(row, "?"), int(self._machines[row])
        return own if machine in {ABSENT, row} else f"{self._resources.get(machine, '?')}/{own}"


@dataclass(frozen=True, eq=False)
class NamedProblem:
    """A round's network as a problem, with the names of its vertices."""

    problem: FlowProblem
    names: list[str]
    """The names by vertex."""

    def to_dimacs(self, path: str | Path) -> None:
        """Write DIMACS' format with a comment for each vertex: ``c vertex 7 n2``, numbered from 1."""
        self.problem.to_dimacs(path)
        comments = "".join(f"c vertex {at} {name}\n" for at, name in enumerate(self.names, start=1))
        written = Path(path).read_text(encoding="utf-8")
        Path(path).write_text(comments + written, encoding="utf-8")

    def to_links(self, flow: Ints) -> list[tuple[str, str, int, int]]:
        """Return the used arcs: names of tail and head, units of ``flow`` (E,), and the cost of a unit.

        Raises:
            TooLargeError: more than ``SCHED_EXPORT_ARCS_MAX`` used arcs.
        """
        problem = self.problem
        used = np.flatnonzero(flow > 0)
        if len(used) > SCHED_EXPORT_ARCS_MAX:
            raise TooLargeError(
                f"{len(used)} used arcs do not fit a picture (at most {SCHED_EXPORT_ARCS_MAX}): export DIMACS"
            )
        return [
            (
                self.names[problem.tail[arc]],
                self.names[problem.head[arc]],
                int(flow[arc]),
                int(problem.cost[arc]),
            )
            for arc in used.tolist()
        ]

    def to_dot(self, flow: Ints | None = None) -> str:
        """Return a picture for Graphviz: arcs show cost and capacity; with ``flow`` (E,) used arcs are bold.

        Raises:
            TooLargeError: more than ``SCHED_EXPORT_ARCS_MAX`` arcs.
        """
        problem = self.problem
        if problem.arcs > SCHED_EXPORT_ARCS_MAX:
            raise TooLargeError(
                f"{problem.arcs} arcs do not fit a picture (at most {SCHED_EXPORT_ARCS_MAX}): export DIMACS"
            )
        touched = np.unique(np.concatenate([problem.tail, problem.head]))
        lines = ["digraph network {", "  rankdir=LR;"]
        for vertex in touched.tolist():
            supply = int(problem.supply[vertex])
            shown = f"{self.names[vertex]} {supply:+d}" if supply else self.names[vertex]
            lines.append(f'  {vertex} [label="{_quoted(shown)}"];')
        for arc in range(problem.arcs):
            units = 0 if flow is None else int(flow[arc])
            style = (
                f", penwidth={1 + min(units, 5)}" if units else ", style=dashed" if flow is not None else ""
            )
            label = f"{problem.cost[arc]}, {units}/{problem.capacity[arc]}"
            lines.append(f'  {problem.tail[arc]} -> {problem.head[arc]} [label="{label}"{style}];')
        return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def named_problem(network: RoundNetwork, names: VertexNames, tasks: Ints) -> NamedProblem:
    """Return a round's network with names; ``tasks`` are the identifiers of its task rows."""
    upper = [names(vertex) for vertex in range(network.vertices)]
    return NamedProblem(network.problem(), upper + [f"task {task}" for task in tasks.tolist()])
