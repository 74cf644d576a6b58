"""The numbers of all vertices except tasks: the sink, resources, jobs' unscheduled aggregators, and classes.

Vertices keep their numbers from round to round, so that a solver can continue from the last solution. Tasks
are rows of options (``task_rows``).

A class has a key: ``("class", number, ABSENT)`` for a class of the cost model, and ``("only", filter,
vertex)`` for the part of a vertex's subtree that a constraint admits (``policies.filters``).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Ints

Key = tuple[str, int, int]

SINK = 0


class VertexKind(IntEnum):
    """The kind of an upper vertex."""

    FREE = 0
    SINK = 1
    RESOURCE = 2
    JOB = 3
    CLASS = 4
    """A class of the cost model."""
    ONLY = 5
    """A vertex whose subtree is narrowed by constraints."""


class Vertices:
    """Vertex numbers from 0, the sink. A freed number is given to a later vertex."""

    def __init__(self) -> None:
        self.kind: Ints = np.zeros(64, np.int64)
        self.kind[SINK] = VertexKind.SINK
        self.row: Ints = np.full(64, ABSENT, np.int64)
        """The row of the resource or job; the number of the class; the filter of a narrowed vertex."""
        self.inner: Ints = np.full(64, ABSENT, np.int64)
        """For a narrowed vertex, the vertex that it narrows."""
        self.used = 1
        self._of_resource: Ints = np.full(64, ABSENT, np.int64)
        self._of_job: Ints = np.full(64, ABSENT, np.int64)
        self._of_class: dict[Key, int] = {}
        self._free: list[int] = []

    def resources(self, rows: Ints) -> Ints:
        """Return the vertices of resource rows; add the missing ones."""
        self._of_resource = self._known(self._of_resource, rows, VertexKind.RESOURCE)
        return self._of_resource[rows]

    def jobs(self, rows: Ints) -> Ints:
        """Return the unscheduled aggregators of job rows; add the missing ones."""
        self._of_job = self._known(self._of_job, rows, VertexKind.JOB)
        return self._of_job[rows]

    def find_resource(self, row: int) -> int:
        """Return the vertex of a resource row, or ABSENT."""
        return int(self._of_resource[row]) if row < len(self._of_resource) else ABSENT

    def key(self, key: Key) -> int:
        """Return the vertex of a class; add it if it is missing."""
        vertex = self._of_class.get(key)
        if vertex is None:
            kind = VertexKind.CLASS if key[0] == "class" else VertexKind.ONLY
            vertex = self._of_class[key] = self._take(kind, key[1], key[2])
        return vertex

    def classes(self, numbers: Ints) -> Ints:
        """Return the vertices of the cost model's classes."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        vertices = np.array([self.key(("class", int(number), ABSENT)) for number in distinct], np.int64)
        return vertices[inverse]

    def all_of(self, kind: VertexKind) -> Ints:
        """Return all vertices of a kind, ascending."""
        return np.flatnonzero(self.kind[: self.used] == kind)

    def drop_resource(self, row: int) -> int:
        """Free a resource's vertex; return its number, or ABSENT if there was none."""
        vertex = self.find_resource(row)
        if vertex != ABSENT:
            self._of_resource[row] = ABSENT
            self._release(vertex)
        return vertex

    def drop_job(self, row: int) -> None:
        """Free a job's vertex, if there is one."""
        vertex = int(self._of_job[row]) if row < len(self._of_job) else ABSENT
        if vertex != ABSENT:
            self._of_job[row] = ABSENT
            self._release(vertex)

    def keep_classes(self, kind: VertexKind, wanted: Ints) -> None:
        """Free all class vertices of a kind except ``wanted``."""
        spare = np.setdiff1d(self.all_of(kind), wanted)
        if not len(spare):
            return
        gone = set(spare.tolist())
        self._of_class = {key: vertex for key, vertex in self._of_class.items() if vertex not in gone}
        for vertex in spare:
            self._release(int(vertex))

    def _known(self, column: Ints, rows: Ints, kind: VertexKind) -> Ints:
        if len(rows) and int(rows.max()) >= len(column):
            longer = np.full(max(2 * len(column), int(rows.max()) + 1), ABSENT, np.int64)
            longer[: len(column)] = column
            column = longer
        for row in np.unique(rows[column[rows] == ABSENT]):
            column[row] = self._take(kind, int(row), ABSENT)
        return column

    def _take(self, kind: VertexKind, row: int, inner: int) -> int:
        if self._free:
            vertex = self._free.pop()
        else:
            vertex = self.used
            self.used += 1
            if vertex >= len(self.kind):
                self._grow()
        self.kind[vertex], self.row[vertex], self.inner[vertex] = kind, row, inner
        return vertex

    def _release(self, vertex: int) -> None:
        self.kind[vertex], self.row[vertex], self.inner[vertex] = VertexKind.FREE, ABSENT, ABSENT
        self._free.append(vertex)

    def _grow(self) -> None:
        size = len(self.kind)
        self.kind = np.concatenate([self.kind, np.zeros(size, np.int64)])
        self.row = np.concatenate([self.row, np.full(size, ABSENT, np.int64)])
        self.inner = np.concatenate([self.inner, np.full(size, ABSENT, np.int64)])
