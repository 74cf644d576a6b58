"""The places of tasks' input data: the bytes that a task has to fetch, by machine, by rack and at the worst.

The functions compute, for many tasks at once, the data terms of Quincy (C.3) and of other models with data
locality. Each model sets its own cost of a byte.

A task reads a block from the nearest copy: on the machine itself (free), in its rack, or in another rack. A
copy on a machine that the cluster does not know counts as a copy in another rack.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level


class Holdings(NamedTuple):
    """The bytes of each task's input by place; ``task`` columns hold indices into the requested tasks."""

    total: Ints
    """Bytes of input, shape (n,)."""
    machine_task: Ints
    """Indices of tasks, ascending; one row for each pair of a task and a machine with some of its input."""
    machine: Ints
    """Resource rows of the machines."""
    machine_bytes: Ints
    """Bytes of the task's input on that machine."""
    machine_rack_bytes: Ints
    """Bytes of the task's input in that machine's rack, the machine included."""
    rack_task: Ints
    """Indices of tasks, ascending; one row for each pair of a task and a rack with some of its input."""
    rack: Ints
    rack_bytes: Ints
    rack_least: Ints
    """Bytes on the machine of the rack with the least of the task's input, often 0."""
    outside: Flags
    """True if a rack with machines holds nothing of the task's input, shape (n,)."""


class _Copies(NamedTuple):
    """The known copies of blocks, one row for each copy."""

    task: Ints
    block: Ints
    size: Ints
    machine: Ints


def holdings(state: ClusterState, tasks: Ints) -> Holdings:
    """Return the places of the input of the tasks at these rows (any order, no row twice)."""
    descriptors = [state.tasks.descriptors[int(row)] for row in tasks]
    blocks = [block for descriptor in descriptors for block in descriptor.blocks]
    owner = np.repeat(np.arange(len(tasks)), [len(descriptor.blocks) for descriptor in descriptors])
    sizes = np.fromiter((block.size for block in blocks), np.int64, len(blocks))
    total = np.zeros(len(tasks), np.int64)
    np.add.at(total, owner, sizes)
    counts = np.fromiter((len(block.machines) for block in blocks), np.int64, len(blocks))
    named = np.fromiter(chain.from_iterable(block.machines for block in blocks), np.int64, int(counts.sum()))
    different, which = np.unique(named, return_inverse=True)
    known = np.array([state.machine_row(int(identifier)) for identifier in different], np.int64)
    machine = known[which]
    block = np.repeat(np.arange(len(blocks)), counts)
    here = machine >= 0
    block, machine = _distinct(block[here], machine[here])
    return _sums(state, total, _Copies(owner[block], block, sizes[block], machine))


def _distinct(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the distinct pairs, ascending; a block may name a machine twice."""
    width = int(second.max(initial=0)) + 1
    # Sorting is several times faster here than the hash table of np.unique.
    pairs = np.sort(first * width + second)
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    return pairs // width, pairs % width


def _summed(first: Ints, second: Ints, amount: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct pairs, ascending, and the sum of the amounts of each."""
    width = int(second.max(initial=0)) + 1
    pairs, which = np.unique(first * width + second, return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, which, amount)
    return pairs // width, pairs % width, sums


def _sums(state: ClusterState, total: Ints, copies: _Copies) -> Holdings:
    rack_of = state.resources.rack
    machine_task, machine, machine_bytes = _summed(copies.task, copies.machine, copies.size)
    # Two copies of a block in a rack count once for that rack.
    block, rack = _distinct(copies.block, rack_of[copies.machine])
    first_copy = np.searchsorted(copies.block, block)
    rack_task, racks, rack_bytes = _summed(copies.task[first_copy], rack, copies.size[first_copy])
    width = len(state.resources.alive)
    place = np.searchsorted(rack_task * width + racks, machine_task * width + rack_of[machine])
    holders = np.bincount(place, minlength=len(racks))
    least = np.full(len(racks), np.iinfo(np.int64).max)
    np.minimum.at(least, place, machine_bytes)
    machines = np.bincount(rack_of[state.resources.at(Level.MACHINE)], minlength=width)
    least = np.where(holders < machines[racks], 0, least)
    holding_racks = np.bincount(rack_task, minlength=len(total))
    return Holdings(
        total=total,
        machine_task=machine_task,
        machine=machine,
        machine_bytes=machine_bytes,
        machine_rack_bytes=rack_bytes[place],
        rack_task=rack_task,
        rack=racks,
        rack_bytes=rack_bytes,
        rack_least=least,
        outside=holding_racks < np.count_nonzero(machines),
    )


def held_at(state: ClusterState, inputs: Holdings, machines: Ints) -> tuple[Ints, Ints]:
    """Return the bytes of each task's input on one given machine and in that machine's rack.

    Args:
        state: the cluster of ``inputs``.
        inputs: the places of the input of n tasks.
        machines: one row of a machine for each task, shape (n,).

    Returns:
        Two vectors of bytes, shape (n,) each. The bytes in the rack include those on the machine.
    """
    task = np.arange(len(machines))
    width = len(state.resources.alive)
    on_machine = _at(
        inputs.machine_task * width + inputs.machine, inputs.machine_bytes, task * width + machines
    )
    racks = state.resources.rack[machines]
    in_rack = _at(inputs.rack_task * width + inputs.rack, inputs.rack_bytes, task * width + racks)
    return on_machine, in_rack


def _at(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Return the values at the wanted keys, 0 for missing keys; ``keys`` ascends."""
    if len(keys) == 0:
        return np.zeros(len(wanted), np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def largest(task: Ints, amount: Ints, most: int) -> Flags:
    """Return True for the ``most`` largest arcs of each task; among equal ones the first win."""
    order = np.lexsort((-amount, task))
    starts = np.searchsorted(task[order], task[order])
    chosen = np.zeros(len(task), np.bool_)
    chosen[order] = np.arange(len(task)) - starts < most
    return chosen


class TaskDataIndex:
    """An index from machines to the tasks with data there, used when a machine joins or leaves.

    The index consists of columns that only grow. Dead rows stay until they are more than half of all rows.
    """

    def __init__(self) -> None:
        self._task = np.zeros(64, np.int64)
        self._machine = np.zeros(64, np.int64)
        self._generation = np.zeros(64, np.int64)
        self._used = 0
        self._dead = 0
        self._generations: dict[int, tuple[int, int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._generations)

    def add(self, state: ClusterState, tasks: Ints) -> None:
        """Add new tasks."""
        for row in tasks.tolist():
            named = {machine for block in state.tasks.descriptors[row].blocks for machine in block.machines}
            if not named:
                continue
            self.remove(row)
            self._reserve(len(named))
            places = slice(self._used, self._used + len(named))
            self._task[places], self._generation[places] = row, self._next
            self._machine[places] = sorted(named)
            self._generations[row] = (self._next, len(named))
            self._used, self._next = places.stop, self._next + 1

    def remove(self, task: int) -> None:
        """Remove a task; a task without data is not an error."""
        _, count = self._generations.pop(task, (0, 0))
        self._dead += count
        if self._dead > 64 and 2 * self._dead > self._used:
            keep = self._live(np.arange(self._used))
            self._used = len(keep)
            for column in (self._task, self._machine, self._generation):
                column[: self._used] = column[keep]
            self._dead = 0

    def of(self, machines: list[int]) -> Ints:
        """Return the rows of the tasks with data on any of these machines (identifiers), ascending."""
        copies = np.flatnonzero(np.isin(self._machine[: self._used], machines))
        return np.unique(self._task[self._live(copies)])

    def _live(self, places: Ints) -> Ints:
        generations = zip(self._task[places].tolist(), self._generation[places].tolist(), strict=True)
        alive = [self._generations.get(task, (-1, 0))[0] == generation for task, generation in generations]
        return places[np.array(alive, np.bool_)]

    def _reserve(self, more: int) -> None:
        if self._used + more > len(self._task):
            extra = np.zeros(max(more, len(self._task)), np.int64)
            self._task = np.concatenate([self._task, extra])
            self._machine = np.concatenate([self._machine, extra])
            self._generation = np.concatenate([self._generation, extra])
