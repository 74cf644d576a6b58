"""The interface for users' programs: start, follow and remove kept jobs.

A kept job is a supervised service with one replica that ends. ``docs/kept-jobs.md`` shows its use.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dios import limits
from dios.client.ops.cluster import Gathered
from dios.client.ops.status import Status
from dios.client.sync.node import Node, Task
from dios.errors import DiosError, InvalidError, LimitError, TimeLimitError, UnreachableError
from dios.lib.supervised import predecessors, records
from dios.lib.supervised.arrays import ArrayShape, checked_shape
from dios.lib.supervised.kept_state import latest_state
from dios.lib.supervised.predecessors import View
from dios.lib.supervised.records import (
    Condition,
    JobArray,
    JobEnd,
    JobState,
    Predecessor,
    ReplicaNote,
    ServiceRecord,
    ServicesReport,
)
from dios.lib.supervised.services import ServiceProgram, Services

_LOOK_S: Final = limits.SERVICE_ROUND_MS / 1000


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A kept job: its present attempt, the task of that attempt while it runs, and its end.

    ``reason`` is why an attempt ended last, or could not be started; ``waits`` if the next one is started
    after a pause. ``incomplete`` if a node did not answer, so that ``task`` may be missing. The job begins
    when no run in ``after`` is left. Of an ``array``, ``running`` are the elements that run, by index.
    """

    name: str
    label: str
    attempt: int
    attempts: int
    created_ns: int
    task: Status | None = None
    end: JobEnd | None = None
    reason: str = ""
    waits: bool = False
    restarts: int = 0
    incomplete: bool = False
    after: tuple[Predecessor, ...] = ()
    array: JobArray | None = None
    running: Mapping[int, Status] = field(default_factory=dict)

    @property
    def shape(self) -> ArrayShape | None:
        """The indices of an array, and how many of its elements may run at once; None for another job."""
        return None if self.array is None else ArrayShape(self.array.indices, self.array.at_once)

    @property
    def ok(self) -> bool:
        """Return True if the program has ended with 0."""
        return self.end is not None and self.end.exit_status == 0


class JobTasks(NamedTuple):
    """The kept jobs of a user, the oldest first, and the job and slot of each task of one, by fingerprint.

    The slot is the index in an array, and 0 in other jobs.
    """

    jobs: list[JobStatus]
    places: dict[str, tuple[str, int]]


class KeptJobs:
    """The kept jobs of a user; ``node`` is a session of that user, which may end while they run."""

    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self._services: Final = Services(node)

    # -- changes --------------------------------------------------------------------------------------
    def start(
        self,
        name: str,
        program: ServiceProgram,
        *,
        attempts: int = limits.KEPT_JOB_ATTEMPTS,
        after: tuple[Predecessor, ...] = (),
        array: ArrayShape | None = None,
    ) -> None:
        """Start a job: the nodes run its program until it ends with 0, or has failed ``attempts`` times.

        An attempt that ends with its node, or for a task of higher priority, does not count. The job begins
        when the runs in ``after`` have done what they have to (``named``). With an ``array`` the program runs
        once for each index, which is its last argument. Raises InvalidError for a bad name or a name that is
        taken, LimitError, and errors of storing objects.
        """
        records.checked_name(name)
        if not 1 <= attempts <= limits.KEPT_JOB_ATTEMPTS_MAX:
            raise InvalidError(f"a job has 1 to {limits.KEPT_JOB_ATTEMPTS_MAX} attempts, not {attempts}")

        if len(after) > limits.JOB_AFTER_MAX:
            raise LimitError(f"a job begins after at most {limits.JOB_AFTER_MAX} runs, not {len(after)}")
        elements = None if array is None else JobArray(*checked_shape(array))

        def state(stored_names: list[bytes]) -> JobState:
            kept = self._services.store(b"", stored_names)
            with self._node.create_group() as group:
                name = bytes(group.read_name())
            return JobState(attempts, time.time_ns(), kept, name, after=after, array=elements)

        self._services.create_job(name, program, state)

    def free_name(self, wanted: str) -> str:
        """Return a name that no job or service has: the wanted one, or it with a number."""
        known = self._services.read()
        taken = {name for name, record in known.items() if not record.removed}
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted[:34].rstrip('-')}-{number}"
        return name

    def named(self, words: Iterable[tuple[str, Condition]]) -> tuple[Predecessor, ...]:
        """Return the runs that words name, and what each has to do before another one begins.

        A word is the name of a job, an element of one such as ``sweep.7``, a title of tasks, or the beginning
        of a fingerprint. Raises InvalidError if there is no such run.
        """
        return predecessors.all_named(self.view(), words)

    def view(self, missed: Collection[str] = ()) -> View:
        """Return the runs of the user as this session sees them now, after a view that ``missed`` tasks."""
        rows = self._node.tasks()
        complete = predecessors.is_complete(self._node.nodes(), rows)
        try:
            return View(self._services.read_known(), rows, complete, missed)
        except UnreachableError:
            return View(None, rows, complete, missed)

    def stop(self, name: str) -> None:
        """End a job, or an element of an array such as ``sweep.7``, now; it stays listed.

        Raises InvalidError if there is no such job.
        """
        now = time.time_ns()

        def change(known: dict[str, ServiceRecord]) -> ServiceRecord:
            record, index = records.found_element(known, name)
            return records.stopped(record, now, index)

        self._services.edit(change)

    def remove(self, name: str) -> None:
        """Forget a job, and end it if it runs; its output, state and own objects are destroyed."""
        record = records.found_job(self._services.read(), name)
        if record.job is not None:
            self._destroy_objects(record.job)
        self._services.edit(lambda known: records.removed(records.found_job(known, name)))

    # -- questions ------------------------------------------------------------------------------------
    def statuses(self) -> list[JobStatus]:
        """Return the status of all jobs, the oldest first."""
        statuses = [
            self._status(record, rows, report, incomplete=rows.incomplete)
            for rows, report in ((self._node.tasks(), self._services.report()),)
            for record in records.living(self._services.read(), jobs=True)
        ]
        return sorted(statuses, key=lambda status: status.created_ns)

    def among(self, rows: Gathered[Status]) -> JobTasks:
        """Return all jobs, of which these are the tasks, and which of the tasks are theirs.

        The records are those of the asked node if it has them.
        """
        known = list(records.living(self._services.read_near(), jobs=True))
        statuses = [
            self._status(record, rows, ServicesReport(), incomplete=rows.incomplete) for record in known
        ]
        places = {
            row.fingerprint: (record.name, place[0])
            for record in known
            for row in rows
            if (place := record.place(row.label)) is not None
        }
        return JobTasks(sorted(statuses, key=lambda status: status.created_ns), places)

    def status(self, name: str) -> JobStatus:
        """Return the status of one job; InvalidError if there is none of this name."""
        record = records.found_job(self._services.read(), name)
        rows = self._node.tasks()
        return self._status(record, rows, self._services.report(), incomplete=rows.incomplete)

    def wait(self, name: str, timeout: float | None = None) -> JobEnd:
        """Wait until a job has ended, and return its end; TimeLimitError after ``timeout`` seconds.

        Returns at the end of the job, not of an attempt that is followed by another one.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            job = records.found_job(self._services.read(), name).job
            if job is not None and job.end is not None:
                return job.end
            if until is not None and time.monotonic() >= until:
                raise TimeLimitError(f"the job {name} still runs after {timeout:g} s", call="wait")
            time.sleep(_LOOK_S)

    def task(self, status: JobStatus) -> Task | None:
        """Return the task of the present attempt, or None if it does not run any more."""
        name = None if status.task is None else status.task.name
        reference = None if name is None else self._node.find(name)
        return reference if isinstance(reference, Task) else None

    def output(self, name: str) -> bytes:
        """Return the last output of a job that has ended, at most KEPT_JOB_OUTPUT_BYTES_MAX bytes.

        Of an element of an array, as far as the nodes keep the output of ended tasks.
        """
        end = self.end_of(name)
        kept = None if end is None else end.output
        reference = None if kept is None else self._node.find(kept)
        if reference is None:
            return b""
        with reference:
            return reference.read_bytes()

    def end_of(self, name: str) -> JobEnd | None:
        """Return the end of a job, or of an element of an array such as ``sweep.7``; None before it."""
        record, index = records.found_element(self._services.read(), name)
        job = record.job
        if job is None or job.array is None or index is None:
            return None if job is None else job.end
        return job.array.elements()[index].end or job.end

    # -- parts ----------------------------------------------------------------------------------------
    def _status(
        self, record: ServiceRecord, rows: Iterable[Status], report: ServicesReport, *, incomplete: bool
    ) -> JobStatus:
        job = record.job
        if job is None:
            raise InvalidError(f"{record.name!r} is a service, not a job")
        here = (0, record.generation)
        places = {place: row for row in rows if not row.ended and (place := record.place(row.label))}
        running = [places[here]] if here in places and job.array is None else []
        noted = [] if job.end is not None else report.services.get(record.name, [])
        note = next((note for note in noted if note.generation == record.generation), ReplicaNote())
        return JobStatus(
            record.name,
            record.spec.label,
            record.generation,
            job.attempts,
            job.created_ns,
            running[0] if running and job.end is None else None,
            job.end,
            note.reason,
            note.waits,
            note.restarts,
            incomplete=incomplete,
            after=job.after,
            array=job.array,
            running={}
            if job.array is None
            else {slot: row for (slot, attempt), row in places.items() if record.attempt(slot) == attempt},
        )

    def _destroy_objects(self, job: JobState) -> None:
        """Destroy the objects that end with a job, and its group, as far as nodes answer."""
        copies = self._node.lookup(job.state)
        group = self._node.group(job.group)
        with suppress(DiosError):
            for name in latest_state(copies).all_objects() if group is not None else ():
                for reference in self._node.lookup(name, group=group):
                    with suppress(DiosError):
                        reference.destroy()
        for reference in copies:
            reference.close()
        if group is not None:
            with suppress(DiosError):
                group.destroy()
