"""Schedulers that serve a queue: the two baselines of §8.2.1, for comparison with the flow network.

They do not preempt, explain or compute costs.

``first_fit`` is the thesis' "random first fit": the oldest waiting task goes to a random machine with a
free slot. ``load_aware`` imitates the part of Mesos that the comparison needs: it considers only machines
whose free CPUs and memory suffice for the task, and chooses one of them at random.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from dios.firmament.descriptors import (
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.rounds.results import Change, Delta, Round


class QueueScheduler:
    """A scheduler with a first-in, first-out queue and random choice of machines.

    Args:
        seed: the seed of the choices.
        load_aware: consider only machines whose free CPUs and memory suffice for the task.
    """

    def __init__(self, seed: int = 0, *, load_aware: bool = False) -> None:
        self.name = "queue, load-aware" if load_aware else "queue, random first fit"
        self._load_aware = load_aware
        self._random = np.random.default_rng([seed, 7])
        self._machines: dict[int, MachineDescriptor] = {}
        self._slots: dict[int, int] = {}
        self._free: dict[int, list[float]] = {}
        self._waiting: dict[int, TaskDescriptor] = {}
        self._running: dict[int, tuple[TaskDescriptor, int]] = {}
        self._rounds = 0

    def add_machine(self, machine: MachineDescriptor, now: float) -> None:
        """Add a machine that joined the cluster."""
        del now
        self._machines[machine.machine] = machine
        self._slots[machine.machine] = machine.slots
        self._free[machine.machine] = [machine.capacity.cpus, machine.capacity.memory]

    def remove_machine(self, machine: int, now: float) -> list[int]:
        """Remove a machine and return the tasks that ran there, which wait again."""
        del now
        lost = [task for task, (_, place) in self._running.items() if place == machine]
        for task in lost:
            self._waiting[task] = self._running.pop(task)[0]
        for table in (self._machines, self._slots, self._free):
            del table[machine]
        return lost

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float) -> None:
        """Append tasks to the queue."""
        del job, now
        self._waiting.update((task.task, task) for task in tasks)

    def finished(self, task: int, now: float, report: FinalReport | None = None) -> None:
        """Remove a task that ended or was withdrawn."""
        del now, report
        if self._waiting.pop(task, None) is None:
            descriptor, machine = self._running.pop(task)
            self._take(descriptor, machine, -1)

    def measured(self, task: int, usage: Resources) -> None:
        """Ignore a measurement: nothing here depends on it."""
        del task, usage

    def round(self, now: float) -> Round:
        """Go through the queue once. A task that fits no machine does not block the tasks behind it."""
        began = time.perf_counter()
        deltas: list[Delta] = []
        room = [machine for machine, free in self._slots.items() if free]
        for task in list(self._waiting.values()):
            if not room:
                break
            at = self._choose(task, room)
            if at is None:
                continue
            machine = room[at]
            del self._waiting[task.task]
            self._running[task.task] = task, machine
            self._take(task, machine, 1)
            deltas.append(Delta(Change.PLACE, task.task, -1, machine))
            if not self._slots[machine]:
                room[at] = room[-1]
                room.pop()
        self._rounds += 1
        taken = time.perf_counter() - began
        return Round(
            number=self._rounds,
            now=now,
            model=self.name,
            algorithm="queue",
            deltas=deltas,
            waiting=len(self._waiting),
            running=len(self._running),
            solve_s=taken,
            total_s=taken,
        )

    def _choose(self, task: TaskDescriptor, room: list[int]) -> int | None:
        """Return the index in ``room`` of a random suitable machine, or None."""
        if not self._load_aware:
            return int(self._random.integers(len(room)))
        fitting = [at for at, machine in enumerate(room) if self._fits(task, machine)]
        return fitting[int(self._random.integers(len(fitting)))] if fitting else None

    def _fits(self, task: TaskDescriptor, machine: int) -> bool:
        capacity = self._machines[machine].capacity
        cpus, memory = self._free[machine]
        return (not capacity.cpus or task.demand.cpus <= cpus) and (
            not capacity.memory or task.demand.memory <= memory
        )

    def _take(self, task: TaskDescriptor, machine: int, times: int) -> None:
        self._slots[machine] -= times
        self._free[machine][0] -= times * task.demand.cpus
        self._free[machine][1] -= times * task.demand.memory
