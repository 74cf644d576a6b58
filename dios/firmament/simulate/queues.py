"""Schedulers that serve a queue, to compare the flow network with: the two baselines of §8.2.1.

For: experiments. Not for: clusters; nothing here preempts, explains or knows a cost.

``first_fit`` is the thesis' "random first fit": the oldest waiting task goes to a random machine with a
free slot. ``load_aware`` does what it needs of Mesos: the machines that are offered have what the task
asks for in CPUs and memory, and one of them is taken at random.
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
    """A queue in order of arrival, and random machines.

    Args:
        seed: of the choices.
        load_aware: only machines that have the task's CPUs and memory free.
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
        """A machine came."""
        del now
        self._machines[machine.machine] = machine
        self._slots[machine.machine] = machine.slots
        self._free[machine.machine] = [machine.capacity.cpus, machine.capacity.memory]

    def remove_machine(self, machine: int, now: float) -> list[int]:
        """A machine went; the tasks that ran there wait again."""
        del now
        lost = [task for task, (_, place) in self._running.items() if place == machine]
        for task in lost:
            self._waiting[task] = self._running.pop(task)[0]
        for table in (self._machines, self._slots, self._free):
            del table[machine]
        return lost

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float) -> None:
        """Tasks came."""
        del job, now
        self._waiting.update((task.task, task) for task in tasks)

    def finished(self, task: int, now: float, report: FinalReport | None = None) -> None:
        """A task ended or was withdrawn."""
        del now, report
        if self._waiting.pop(task, None) is None:
            told, machine = self._running.pop(task)
            self._take(told, machine, -1)

    def measured(self, task: int, usage: Resources) -> None:
        """Measurements change nothing here."""
        del task, usage

    def round(self, now: float) -> Round:
        """Go through the queue once; a task that fits nowhere lets the next one pass."""
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
        """A place in ``room``, at random among those that will do."""
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
