"""The workload of the cluster-mix experiment: five programs that stress different resources (Table 8.2).

It serves Figures 8.1 to 8.4. At most ten seconds after a job's last task has ended, a new job of the same
program is submitted. The numbers are chosen so that a unit of each program's work takes about a second on
an idle machine of type M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from dios.firmament.descriptors import Interference, JobDescriptor, Resources, TaskDescriptor
from labs.simulate.workloads.events import Happening, JobSubmission, MachineUp, SimulatedTask
from labs.simulate.workloads.interference import ProgramModel
from labs.simulate.workloads.machines import MIB

RESUBMITTED_S: Final = 10.0
"""§8.2.1: completed jobs are resubmitted at most ten seconds after they finish."""
STARTED_S: Final = 5.0
"""Seconds over which the first jobs are spread, so that they do not run in lockstep."""
WORK_SPREAD: Final = 0.03
"""Variation of the work of a program's tasks: the standard deviation of its logarithm."""


class MixEntry(NamedTuple):
    """One row of Table 8.2."""

    program: ProgramModel
    units: float
    """Units of work of a task: about the seconds that it takes on an idle machine of type M."""
    demand: Resources
    """The resource request (CoCo, §8.2.1)."""
    tasks_small: int
    """Tasks of a job on the SRG cluster."""
    jobs_small: int
    tasks_large: int
    """Tasks of a job on the model data centre."""
    jobs_large: int


CPU_SPIN: Final = ProgramModel("cpu_spin", cpu=1.0, instructions=2.4e9, interference=Interference.TURTLE)
MEM_FIT: Final = ProgramModel(
    "mem_stream_l3",
    cpu=0.2,
    traffic=12.8e9,
    working_set=8 * MIB,
    instructions=1.6e9,
    interference=Interference.RABBIT,
)
"""Swaps words in an array of a million words, which fits in the cache if the program runs alone."""
MEM_BIG: Final = ProgramModel(
    "mem_stream_llc",
    cpu=0.1,
    traffic=3.6e9,
    working_set=400 * MIB,
    instructions=0.5e9,
    interference=Interference.DEVIL,
)
"""The same with fifty million words: more than any last-level cache holds."""
IO_READ: Final = ProgramModel(
    "io_read", cpu=0.05, disk=114e6, working_set=1 * MIB, instructions=0.1e9, interference=Interference.DEVIL
)
IO_WRITE: Final = ProgramModel(
    "io_write", cpu=0.08, disk=110e6, working_set=1 * MIB, instructions=0.1e9, interference=Interference.DEVIL
)

_GIB: Final = 2.0**30

TABLE_8_2: Final = (
    MixEntry(CPU_SPIN, 60.0, Resources(1.0, 0.1 * _GIB), 10, 4, 10, 8),
    MixEntry(MEM_FIT, 60.0, Resources(1.0, 0.1 * _GIB), 10, 4, 10, 8),
    MixEntry(MEM_BIG, 60.0, Resources(1.0, 0.5 * _GIB), 10, 4, 10, 8),
    MixEntry(IO_READ, 36.0, Resources(0.1, 0.1 * _GIB, disk_io=80e6), 5, 1, 7, 2),
    MixEntry(IO_WRITE, 37.0, Resources(0.1, 0.1 * _GIB, disk_io=80e6), 5, 1, 7, 2),
)
"""cpu_spin for 60 s, mem_stream with arrays of 1M and 50M words, fio reading and writing 4 GB."""


class MixWorkload:
    """The jobs of Table 8.2 on given machines.

    Args:
        machines: from ``machines.thesis_machines``.
        seed: the seed of arrival times and of the tasks' variation.
        large: use the jobs of the model data centre instead of those of the SRG cluster.
        entries: the table's rows.
    """

    def __init__(
        self,
        machines: Sequence[MachineUp],
        seed: int,
        *,
        large: bool,
        entries: Sequence[MixEntry] = TABLE_8_2,
    ) -> None:
        self._machines = machines
        self._random = np.random.default_rng([seed, 2])
        self._large = large
        self._entries = entries
        self._entry_of: dict[int, MixEntry] = {}
        self._jobs = 0
        self._tasks = 0

    def events(self) -> Iterator[Happening]:
        """Yield the machines, then the first jobs."""
        yield from self._machines
        first = [
            self._job(entry, float(self._random.uniform(0.0, STARTED_S)))
            for entry in self._entries
            for _ in range(entry.jobs_large if self._large else entry.jobs_small)
        ]
        yield from sorted(first, key=lambda job: job.time)

    def job_done(self, job: int, now: float) -> JobSubmission | None:
        """Return a new job of the same program, at most ten seconds later."""
        entry = self._entry_of.pop(job)
        return self._job(entry, now + float(self._random.uniform(0.0, RESUBMITTED_S)))

    def _job(self, entry: MixEntry, at: float) -> JobSubmission:
        number, self._jobs = self._jobs, self._jobs + 1
        self._entry_of[number] = entry
        program = entry.program
        count = entry.tasks_large if self._large else entry.tasks_small
        works = entry.units * np.exp(self._random.normal(0.0, WORK_SPREAD, count))
        tasks = tuple(
            SimulatedTask(
                TaskDescriptor(
                    task=self._tasks + at_in_job,
                    demand=entry.demand,
                    equivalence=program.name,
                    interference=program.interference,
                    expected_runtime=float(work),
                ),
                float(work),
                program,
            )
            for at_in_job, work in enumerate(works)
        )
        self._tasks += count
        return JobSubmission(at, JobDescriptor(number, name=program.name), tasks)
