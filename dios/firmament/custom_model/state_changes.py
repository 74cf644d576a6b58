"""Copies the state of a cluster into another process: the differences are sent, not the tables."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints, Rows
from dios.firmament.cluster.state import ClusterState
from dios.firmament.custom_model.knowledge_changes import KnowledgeSender, apply_knowledge
from dios.firmament.custom_model.orders import ColumnChange, StateChange, TreeTexts
from dios.firmament.descriptors import JobDescriptor, TaskDescriptor

_Column: TypeAlias = Ints | Floats | Flags
_NAMES: Final = ("equivalences", "principals", "machine_types")
_SUMS: Final = ("held", "promised")


class StateSender:
    """Finds the differences between a state and what was sent of it."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[str, _Column]] = {"tasks": {}, "jobs": {}, "resources": {}, "sums": {}}
        self._names = dict.fromkeys(_NAMES, 0)
        self._tasks: dict[int, TaskDescriptor] = {}
        self._jobs: dict[int, JobDescriptor] = {}
        self._waiting: list[str] = []
        self._knowledge: Final = KnowledgeSender()

    def change(self, state: ClusterState) -> StateChange:
        """Return the differences, and count them as sent."""
        tables = {name: _columns(getattr(state, name)) for name in ("tasks", "jobs", "resources")}
        tables["sums"] = {name: getattr(state, name) for name in _SUMS}
        column_changes = {name: self._changed(name, columns) for name, columns in tables.items()}
        names = {}
        for table in _NAMES:
            all_names = getattr(state, table).names
            names[table] = all_names[self._names[table] :]
            self._names[table] = len(all_names)
        shape = {"alive", "id", "parent", "level"}
        tree = None
        if any(column.name in shape for column in column_changes["resources"]):
            texts = state.resources
            tree = TreeTexts(texts.names, texts.labels, texts.children, state.machine_ids)
        tasks, jobs = state.tasks.descriptors, state.jobs.descriptors
        fresh_tasks = {
            row: descriptor for row, descriptor in tasks.items() if self._tasks.get(row) is not descriptor
        }
        fresh_jobs = {
            row: descriptor for row, descriptor in jobs.items() if self._jobs.get(row) is not descriptor
        }
        self._tasks, self._jobs = dict(tasks), dict(jobs)
        waiting = list(state.waiting_principals)
        changed_waiting = None if waiting == self._waiting else waiting
        self._waiting = waiting
        return StateChange(
            state.now,
            column_changes["tasks"],
            column_changes["jobs"],
            column_changes["resources"],
            column_changes["sums"],
            names,
            fresh_tasks,
            fresh_jobs,
            tree,
            changed_waiting,
            self._knowledge.change(state.knowledge),
        )

    def _changed(self, table: str, columns: dict[str, _Column]) -> list[ColumnChange]:
        sent, changes = self._sent[table], []
        for name, column in columns.items():
            before = sent.get(name)
            if before is None or before.shape != column.shape:
                changes.append(ColumnChange(name, len(column), None, column.tobytes()))
            else:
                # Bytes are compared, so that a value that is no number equals itself.
                differs = (
                    (before.view(np.uint8) != column.view(np.uint8)).reshape(len(column), -1).any(axis=1)
                )
                rows = np.flatnonzero(differs)
                if not len(rows):
                    continue
                changes.append(ColumnChange(name, len(column), rows.tobytes(), column[rows].tobytes()))
            sent[name] = column.copy()
        return changes


class StateCopy:
    """The copy of a state, to which differences are applied."""

    def __init__(self) -> None:
        self.state: Final = ClusterState()

    def removed(self, change: StateChange) -> tuple[list[int], list[int]]:
        """Return the rows of machines and of tasks that ``change`` removes or gives to others."""
        state = self.state
        machines: list[int] = []
        if change.tree is not None:
            ids = change.tree.machine_ids
            machines = [row for row, number in state.machine_ids.items() if ids.get(row, ABSENT) != number]
        return machines, _replaced(state.tasks, change.tasks)

    def apply(self, change: StateChange) -> tuple[list[int], list[int]]:
        """Apply the differences; return the rows of new machines and of new tasks."""
        state = self.state
        before_machines, before_tasks = dict(state.machine_ids), state.tasks.id.copy()
        state.now = change.now
        for table, changes in (
            (state.tasks, change.tasks),
            (state.jobs, change.jobs),
            (state.resources, change.resources),
        ):
            for column in changes:
                setattr(table, column.name, _updated(getattr(table, column.name), column))
            if any(changed.name == "id" for changed in changes):
                table.renumber()
        for column in change.sums:
            setattr(state, column.name, _updated(getattr(state, column.name), column))
        for name, further in change.names.items():
            for new_name in further:
                getattr(state, name).number(new_name)
        for row in [row for row in state.tasks.descriptors if not state.tasks.alive[row]]:
            del state.tasks.descriptors[row]
        for row in [row for row in state.jobs.descriptors if not state.jobs.alive[row]]:
            del state.jobs.descriptors[row]
        state.tasks.descriptors.update(change.task_descriptors)
        state.jobs.descriptors.update(change.job_descriptors)
        if change.tree is not None:
            tree = state.resources
            tree.names, tree.labels, tree.children = (
                change.tree.names,
                change.tree.labels,
                change.tree.children,
            )
            state.set_machines(change.tree.machine_ids)
        if change.knowledge is not None:
            state.knowledge = apply_knowledge(state.knowledge, change.knowledge)
        if change.waiting_principals is not None:
            state.waiting_principals = dict.fromkeys(change.waiting_principals)
        ids = state.tasks.id
        known = np.full(len(ids), ABSENT, np.int64)
        known[: len(before_tasks)] = before_tasks
        new_tasks = np.flatnonzero(state.tasks.alive & (ids != known)).tolist()
        new_machines = [
            row for row, number in state.machine_ids.items() if before_machines.get(row) != number
        ]
        return new_machines, new_tasks


def _columns(table: Rows) -> dict[str, _Column]:
    return {name: column for name, column in vars(table).items() if isinstance(column, np.ndarray)}


def _updated(column: _Column, change: ColumnChange) -> _Column:
    shape = (-1, *column.shape[1:])
    values = np.frombuffer(change.values, column.dtype).reshape(shape)
    if change.rows is None:
        return values.copy()
    column[np.frombuffer(change.rows, np.int64)] = values
    return column


def _replaced(table: Rows, changes: list[ColumnChange]) -> list[int]:
    """Return the rows in use that have another element, or none, after the changes."""
    for column in changes:
        if column.name == "id":
            after = _updated(table.id.copy(), column)
            rows = table.all()
            return [row for row in rows.tolist() if after[row] != table.id[row]]
    return []
