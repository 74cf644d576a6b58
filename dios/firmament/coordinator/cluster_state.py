"""The cluster as one coordinator knows it: nodes' queues, turned into events for a scheduler (§6.5.1).

The rows of a node's queue are the truth about that node, but they are old by the time they are read. Three
changes may be under way: a placement that was sent, a task that was started and is in no queue yet, and a
placement that came back because its node had no room. ``TrackedCluster`` distinguishes them by the versions
of the queues, so that no task is submitted twice, and no task counts as lost when it is only late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Protocol

from msgspec import structs

from dios.core.calls.threads import choose_threads
from dios.firmament.coordinator.best_effort import IdleRoom, NodeLoad
from dios.firmament.coordinator.stated_bounds import JobBounds
from dios.firmament.coordinator.translate import (
    described_job,
    described_machine,
    described_task,
    job_of,
    thread_name,
)
from dios.firmament.descriptors import (
    BadDescriptorError,
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    TaskDescriptor,
)
from dios.limits import PROGRESS_WHOLE
from dios.wire.messages import Occupant, Placed, QueueRows, Submission
from dios.wire.types import TaskState

_MOMENT_S = 1.0
"""A run that has waited for less is on its way."""
_LOOKED_AT_MAX = 64
_STARTING_S_MAX = 5.0
"""A task that has been starting for this time does not keep others from being started."""
_PLACED_S_MAX = 10.0
"""A placed task that is in no queue after this time was never started, or it ended unseen."""


class TaskScheduler(Protocol):
    """The events that a scheduler receives, and the questions that a tracked cluster asks it.

    ``FlowScheduler`` and ``FirstFitScheduler`` have these methods. Times are in seconds.
    """

    def add_machine(self, machine: MachineDescriptor, now: float) -> None:
        """Add a machine."""

    def remove_machine(self, machine: int, now: float) -> list[int]:
        """Remove a machine; return the tasks that ran there, which wait again."""

    def drain(self, machine: int, drained: bool) -> None:  # noqa: FBT001 - as FlowScheduler has it
        """Place nothing new on a machine, or allow that again."""

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float) -> None:
        """Add waiting tasks of a job; raise BadDescriptorError for tasks that can never be placed."""

    def set_bounds(self, job: int, minimum: int, maximum: int | None) -> None:
        """Change E_j and F_j of a known job; an unknown job is ignored."""

    def finished(self, task: int, now: float, report: FinalReport | None = None) -> None:
        """Remove a task."""

    def started(self, task: int, machine: int, now: float, thread: str = "", ran: float = 0.0) -> None:
        """Record the machine of a waiting task that has started, and the name of its thread if known.

        ``ran`` is the number of seconds for which it has run.
        """

    def progressed(self, task: int, share: float) -> None:
        """Record the share of its work that a running task has done."""

    def rejected(self, task: int, now: float) -> None:
        """Record that the machine refused the task, which waits again."""

    def job(self, job: int) -> JobDescriptor | None:
        """Return a known job's description."""

    def is_running(self, task: int) -> bool:
        """Return True if the scheduler knows the task and has placed it."""


class Phase(Enum):
    """The phase of a task, as far as the coordinator knows."""

    WAITING = 0
    SENT = 1
    """Its placement is on the way to its caller's node."""
    PLACED = 2
    """Its caller's node has removed it from its queue."""
    RUNNING = 3
    LEAVING = 4
    """The scheduler asked it to stop, and has removed it already."""


@dataclass(slots=True)
class TrackedTask:
    """One task that waits or runs."""

    row: Submission | Occupant
    host: str
    """The node of its caller while it waits; the node that runs it afterwards."""
    phase: Phase
    job: int
    target: str = ""
    """The node where it was placed, in the phases SENT and PLACED."""
    since: float = 0.0
    """The time at which its phase began."""
    version: int = 0
    """The version of its caller's queue when the task was removed from it."""
    listed: int = 0
    """The last version of its caller's queue that showed it, if its placement was on the way then."""
    began: float | None = None
    """The time at which it began to run, as its node shows it."""
    threads: tuple[int, ...] = ()
    """The hardware threads that were chosen for it, in the phases SENT and PLACED."""
    gone: int = 0
    """The last version that no longer had it, if its placement was on the way then."""

    @property
    def place(self) -> str:
        """The node that runs it or will run it; empty while it waits or leaves."""
        return {Phase.RUNNING: self.host, Phase.SENT: self.target, Phase.PLACED: self.target}.get(
            self.phase, ""
        )


class TrackedCluster:
    """The tasks and nodes that a coordinator knows, and the scheduler that receives their changes."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._scheduler = scheduler
        self.tasks: dict[int, TrackedTask] = {}
        self._numbers: dict[str, int] = {}
        """The identifiers of the tasks by fingerprint."""
        self._waiting: dict[str, dict[int, None]] = {}
        """The waiting tasks by the node of their caller."""
        self._here: dict[str, dict[int, None]] = {}
        """The running and leaving tasks by node."""
        self._placed: dict[int, None] = {}
        """The tasks that were placed and are in no queue yet, the first of them first."""
        self._starting: dict[str, dict[int, float]] = {}
        """By node: the tasks that were sent there and do not run yet, and since when."""
        self.idle = IdleRoom()
        self.patient: dict[int, None] = {}
        """The best-effort tasks that wait until a node's measured use leaves room for them."""
        self._offered: dict[int, None] = {}
        """The best-effort tasks that the scheduler has for one node, and that do not run there yet."""
        self._listing: dict[str, set[int]] = {}
        """By node: the waiting tasks that were listed so far, while its queue is read in parts."""
        self._places: dict[str, int] = {}
        """The identifiers of the nodes by name."""
        self.nodes: dict[str, QueueRows] = {}
        """The last queue of each node on which tasks may be placed, by name."""
        self._gangs: dict[int, dict[int, TrackedTask]] = {}
        """Tasks of gangs that are not complete yet, by job."""
        self._bounds = JobBounds()
        """The bounds that the tasks state of their jobs."""
        self._machines: dict[str, MachineDescriptor] = {}
        self._inside = False
        """True if the scheduler has the insides of machines."""
        self.machine_types: dict[str, str] = {}
        """Machine types by node, as their coordinators report them."""
        self.problems: dict[int, str] = {}
        """Why the scheduler refused a task; it is submitted again when a machine joins."""

    def adopt(self, other: TrackedCluster, now: float) -> None:
        """Take over the tasks and nodes of another tracked cluster, and submit them to the own scheduler.

        ``other`` must not be used afterwards. A placement under way counts as running on its target, so that
        its room stays taken and the task is not placed a second time.
        """
        self.tasks, self.nodes, self._gangs = other.tasks, other.nodes, other._gangs
        self._machines, self.machine_types = other._machines, other.machine_types
        self._numbers = other._numbers
        self._waiting, self._here, self._placed = other._waiting, other._here, other._placed
        self._starting, self._listing, self._places = other._starting, other._listing, other._places
        self.idle, self._inside, self._bounds = other.idle, other._inside, other._bounds
        for name, queue in self.nodes.items():
            self._scheduler.add_machine(self._machines[name], now)
            if queue.draining:
                self._scheduler.drain(queue.node, True)
        incomplete = {task for gang in self._gangs.values() for task in gang}
        jobs: dict[int, list[TrackedTask]] = {}
        for task, tracked in self.tasks.items():
            if tracked.phase is not Phase.LEAVING and task not in incomplete:
                jobs.setdefault(tracked.job, []).append(tracked)
        for tasks in jobs.values():
            # A gang of which some tasks run already has started: the others need not wait for each other.
            self._submit(tasks, now, started=any(tracked.place for tracked in tasks))
            for tracked in tasks:
                if tracked.place in self.nodes:
                    self._mark_started(tracked.row.id, self.nodes[tracked.place], now)

    # Insides of machines --------------------------------------------------------------------------------

    def set_inside(self, inside: bool, now: float) -> None:  # noqa: FBT001 - it follows the cost model
        """Describe the insides of machines to the scheduler from now on, or no longer."""
        if inside == self._inside:
            return
        self._inside = inside
        for name, queue in self.nodes.items():
            wanted = described_machine(queue, self.machine_types.get(name, ""), inside=inside)
            self._describe_again(queue, wanted, now)

    def _describe_again(self, queue: QueueRows, wanted: MachineDescriptor, now: float) -> None:
        """Describe a node differently to the scheduler; the tasks that run there go on."""
        running = self._scheduler.remove_machine(queue.node, now)
        self._scheduler.add_machine(wanted, now)
        self._machines[queue.name] = wanted
        self._scheduler.drain(queue.node, queue.draining)
        for task in running:
            self._mark_started(task, queue, now)

    def choose_threads(self, task: int, target: str, named: str) -> tuple[int, ...]:
        """Choose the hardware threads for a task that is placed, if it is pinned or the scheduler named one.

        Threads of pinned tasks are left out. Those with the fewest other tasks come first.
        """
        tracked, node = self.tasks[task], self.nodes.get(target)
        work = tracked.row.work
        if node is None or not node.threads or work.best_effort or not (work.pinned or named):
            return ()
        use = Counter[int]()
        taken: set[int] = set()
        for other in self._placed_on(target):
            threads = other.row.processors if isinstance(other.row, Occupant) else other.threads
            use.update(threads)
            if other.row.work.pinned:
                taken.update(threads)
        count = max(1, -(-work.cpus_milli // 1000))
        first = [processor.thread for processor in node.threads if thread_name(processor.thread) == named]
        free = [processor for processor in node.threads if processor.thread not in taken]
        least = sorted(use[processor.thread] for processor in free)[:count]
        usable = [processor.thread for processor in free if least and use[processor.thread] <= least[-1]]
        tracked.threads = choose_threads(node.threads, [*usable, *first], count, first)
        return tracked.threads

    def _placed_on(self, name: str) -> list[TrackedTask]:
        """Return the tasks that run on a node or are on their way to it."""
        coming = (self.tasks[task] for task in self._starting.get(name, ()))
        there = {tracked.row.id: tracked for tracked in (*self.tasks_on(name), *coming)}
        return list(there.values())

    # Best effort --------------------------------------------------------------------------------------

    def note_load(self, name: str, load: NodeLoad) -> None:
        """Record the measured use of a node."""
        self.idle.loads[name] = load

    def offer_best_effort(self, now: float) -> None:
        """Submit the best-effort tasks for which a node's measured use leaves room, each for that node alone.

        Those that were not placed since the last call, or came back from their node, wait again.
        """
        self.idle.expire(now)
        for task in list(self._offered):
            phase = self.tasks[task].phase
            if phase is Phase.WAITING:
                self.idle.refused(task, now)
                self._scheduler.finished(task, now, FinalReport(0.0, completed=False))
                self.patient[task] = None
            if phase not in {Phase.SENT, Phase.PLACED}:
                del self._offered[task]
        machines = {
            name: machine for name, machine in self._machines.items() if not self.nodes[name].draining
        }
        for task in sorted(self.patient, key=lambda candidate: -self.tasks[candidate].row.work.priority):
            tracked = self.tasks[task]
            name = self.idle.choose(task, tracked.row.work, machines, pure=_is_pure(tracked))
            if not name:
                continue
            del self.patient[task]
            self.idle.book(task, name, tracked.row.work, now)
            self._submit_now([tracked], now, pinned=self._places[name])
            if task not in self.problems:
                self._offered[task] = None

    def why_patient(self, task: int) -> list[str]:
        """Return the reasons why no node has room for a best-effort task."""
        tracked = self.tasks[task]
        obstacles = [
            self.idle.obstacle(tracked.row.work, machine, pure=_is_pure(tracked))
            for machine in self._machines.values()
        ]
        return [why for why in obstacles if why]

    def tasks_on(self, name: str) -> list[TrackedTask]:
        """Return the tasks that run on a node, with those that are about to leave it."""
        return [self.tasks[task] for task in self._here.get(name, ())]

    # Counts -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return sum(map(len, self._waiting.values()))

    def has_waiting(self, name: str) -> bool:
        """Return True if any run waits on a node."""
        return bool(self._waiting.get(name))

    def waiting_principals(self, now: float, most: int) -> tuple[str, ...]:
        """Return principals whose runs have waited for more than a moment, at most ``most`` of them.

        Only the runs that wait longest on each node count.
        """
        names: dict[str, None] = {}
        for waiting in self._waiting.values():
            for task in islice(waiting, _LOOKED_AT_MAX):
                tracked = self.tasks[task]
                if now - tracked.since > _MOMENT_S:
                    names[tracked.row.principal] = None
                if len(names) == most:
                    break
        return tuple(sorted(names)[:most])

    def starting(self, name: str, now: float) -> int:
        """Return the number of tasks that were sent to a node lately and do not run yet."""
        sent_at = self._starting.get(name)
        if not sent_at:
            return 0
        # The oldest come first.
        while sent_at and now - next(iter(sent_at.values())) > _STARTING_S_MAX:
            del sent_at[next(iter(sent_at))]
        return len(sent_at)

    def mark_starting(self, task: int, target: str, now: float) -> None:
        """Record that a placement goes out."""
        self._starting.setdefault(target, {})[task] = now

    def _enter(self, task: int, tracked: TrackedTask) -> None:
        """Add a task, or one whose phase or node has changed, to the tables of its phase."""
        if task not in self.tasks:
            self._bounds.add(tracked.job, tracked.row.work)
        self.tasks[task] = tracked
        self._numbers[tracked.row.fingerprint] = task
        if tracked.phase is Phase.WAITING:
            self._waiting.setdefault(tracked.host, {})[task] = None
        elif tracked.phase in {Phase.RUNNING, Phase.LEAVING}:
            self._here.setdefault(tracked.host, {})[task] = None
        elif tracked.phase is Phase.PLACED:
            self._placed[task] = None

    def _leave(self, task: int, tracked: TrackedTask) -> None:
        """Remove a task from the tables of its phase, before that changes."""
        if tracked.phase is Phase.WAITING:
            self._waiting.get(tracked.host, {}).pop(task, None)
        elif tracked.phase in {Phase.RUNNING, Phase.LEAVING}:
            self._here.get(tracked.host, {}).pop(task, None)
        elif tracked.phase is Phase.PLACED:
            self._placed.pop(task, None)

    def _change(self, task: int, tracked: TrackedTask, phase: Phase, host: str, target: str = "") -> None:
        """Change the phase of a task."""
        self._leave(task, tracked)
        if tracked.target and not target:
            self._started(task, tracked.target)
        tracked.phase, tracked.host, tracked.target = phase, host, target
        self._enter(task, tracked)

    def _started(self, task: int, name: str) -> None:
        self._starting.get(name, {}).pop(task, None)

    # Queues -------------------------------------------------------------------------------------------

    def read(
        self, queue: QueueRows, now: float, *, attend: bool, machine: bool, after_s: float = 0.0
    ) -> None:
        """Record a node's queue: with ``attend`` its submissions, with ``machine`` the tasks that run there.

        Submissions that have waited for less than ``after_s`` seconds are skipped. The work depends on the
        rows of the answer; only a whole answer is compared with all known tasks of the node.
        """
        if machine:
            self._update_machine(queue, now)
            self._read_tasks(queue, now)
        if attend:
            self._read_submissions(queue, after_s, now)

    def remove_node(self, name: str, now: float) -> None:
        """Forget a node that is dead or that another coordinator is responsible for, and its tasks."""
        queue = self.nodes.pop(name, None)
        self._machines.pop(name, None)
        self._places.pop(name, None)
        self._starting.pop(name, None)
        self.idle.forget(name)
        for task, tracked in list(self.tasks.items()):
            there = tracked.target == name and tracked.phase is Phase.PLACED
            # A task on its way to another node is settled by that node's answer.
            if there or (tracked.host == name and tracked.phase is not Phase.PLACED):
                self._forget(task, now, completed=False)
        if queue is not None:
            self._scheduler.remove_machine(queue.node, now)

    def expire_placements(self, now: float) -> None:
        """Forget tasks that were placed and have been in no queue for 10 seconds: they were never started."""
        while self._placed:
            task = next(iter(self._placed))
            if now - self.tasks[task].since <= _PLACED_S_MAX:
                return
            self._forget(task, now, completed=False)

    def release_submissions(self, name: str, now: float) -> None:
        """Forget a node's submissions, which another coordinator places from now on."""
        for task in list(self._waiting.get(name, ())):
            self._forget(task, now, completed=False)

    def _update_machine(self, queue: QueueRows, now: float) -> None:
        known = self.nodes.get(queue.name)
        if known is not None and known.node == queue.node and not queue.whole:
            queue = structs.replace(queue, threads=known.threads)
        wanted = described_machine(queue, self.machine_types.get(queue.name, ""), inside=self._inside)
        if known is not None and known.node != queue.node:
            self.remove_node(queue.name, now)
            known = None
        if known is not None and self._machines[queue.name] != wanted:
            # Only changed tasks are in a queue, so those that run must not be forgotten.
            self._describe_again(queue, wanted, now)
        if known is None:
            self._scheduler.add_machine(wanted, now)
            self._machines[queue.name] = wanted
            self._places[queue.name] = queue.node
            refused = [self.tasks[task] for task in self.problems]
            self.problems.clear()
            for job in {tracked.job: None for tracked in refused}:
                self._submit([tracked for tracked in refused if tracked.job == job], now)
        if known is None or known.draining != queue.draining:
            self._scheduler.drain(queue.node, queue.draining)
        self.nodes[queue.name] = queue

    def _read_tasks(self, queue: QueueRows, now: float) -> None:
        alive = {row.id for row in queue.tasks if row.state is not TaskState.ENDED}
        ended = {row.id: row for row in queue.tasks if row.state is TaskState.ENDED}
        for row in queue.tasks:
            if row.state is not TaskState.ENDED:
                self._read_running(queue, row, now)
        here = self._here.get(queue.name, {})
        for task in [task for task in (here if queue.whole else queue.gone) if task in here]:
            if task not in alive:
                self._forget(task, now, ended=ended.get(task))
        for task, row in ended.items():
            tracked = self.tasks.get(task)
            if tracked is not None and tracked.target == queue.name and tracked.phase is Phase.PLACED:
                self._forget(task, now, ended=row)

    def _read_running(self, queue: QueueRows, row: Occupant, now: float) -> None:
        tracked = self.tasks.get(row.id)
        if tracked is None:
            tracked = TrackedTask(row, queue.name, Phase.RUNNING, job_of(row), began=_begin_of(row, now))
            self._submit([tracked], now)
            self._mark_started(row.id, queue, now)
            return
        tracked.began = _begin_of(row, now)
        if row.state is not TaskState.STARTING:
            self._started(row.id, queue.name)
        if tracked.phase is Phase.LEAVING:
            return
        if tracked.phase is Phase.RUNNING and tracked.host == queue.name:
            tracked.row = row
            self._note_progress(row)
            return
        if tracked.phase is Phase.WAITING or tracked.target != queue.name:
            # Another coordinator placed it.
            self._wait_again(row.id, now)
            self._leave_gang(row, tracked, now)
            if row.id in self.patient:
                del self.patient[row.id]
                self._submit_now([tracked], now)
            self._mark_started(row.id, queue, now)
        begun = self._starting.get(queue.name, {}).get(row.id)
        tracked.row, tracked.since = row, now
        self._note_progress(row)
        self._change(row.id, tracked, Phase.RUNNING, queue.name)
        if begun is not None:
            # Its process does not run yet.
            self._starting[queue.name][row.id] = begun

    def _read_submissions(self, queue: QueueRows, after_s: float, now: float) -> None:
        waiting = {row.id for row in queue.waiting}
        for row in queue.waiting:
            if row.waited_ms < after_s * 1000:
                continue
            tracked = self.tasks.get(row.id)
            if tracked is None:
                self._add_submission(queue.name, row, now)
            elif tracked.phase is Phase.PLACED and queue.version > tracked.version:
                self._wait_again(row.id, now)
                tracked.row, tracked.since = row, now
                self._change(row.id, tracked, Phase.WAITING, queue.name)
            elif tracked.phase is Phase.SENT and tracked.host == queue.name:
                tracked.listed = queue.version
            elif tracked.phase is Phase.WAITING:
                tracked.row = row
        for task in queue.gone:
            if task not in waiting:
                self._leave_queue(task, queue, now)
        if queue.whole:
            self._listing[queue.name] = set()
        listing = self._listing.get(queue.name)
        if listing is None:
            return
        listing |= waiting
        if not queue.partial:
            del self._listing[queue.name]
            known = self._waiting.get(queue.name, {})
            for task in [task for task in known if task not in listing]:
                self._forget(task, now, completed=False)

    def _leave_queue(self, task: int, queue: QueueRows, now: float) -> None:
        """Record that a submission was placed, or that its call was cancelled."""
        tracked = self.tasks.get(task)
        if tracked is None or tracked.host != queue.name:
            return
        if tracked.phase is Phase.WAITING:
            self._forget(task, now, completed=False)
        elif tracked.phase is Phase.SENT:
            tracked.gone = queue.version

    def _add_submission(self, host: str, row: Submission, now: float) -> None:
        tracked = TrackedTask(row, host, Phase.WAITING, job_of(row), since=now)
        if row.work.gang and self._scheduler.job(tracked.job) is None:
            gang = self._gangs.setdefault(tracked.job, {})
            gang[row.id] = tracked
            self._enter(row.id, tracked)
            if len(gang) >= max(row.work.tasks, row.work.gang):
                del self._gangs[tracked.job]
                self._submit(list(gang.values()), now)
            return
        self._submit([tracked], now)

    def gang_of(self, task: int) -> tuple[int, int] | None:
        """Return the present and the final number of tasks of its gang; None once the gang is complete."""
        tracked = self.tasks[task]
        gang = self._gangs.get(tracked.job)
        if gang is None:
            return None
        return len(gang), max(tracked.row.work.tasks, tracked.row.work.gang)

    def _leave_gang(self, row: Occupant, tracked: TrackedTask, now: float) -> None:
        """Submit a task of an incomplete gang that runs already, as a task of its own."""
        gang = self._gangs.get(tracked.job)
        if gang is not None and gang.pop(row.id, None) is not None:
            if not gang:
                del self._gangs[tracked.job]
            tracked.row = row
            self._submit([tracked], now)

    def _submit(self, tasks: list[TrackedTask], now: float, *, started: bool = False) -> None:
        """Submit tasks of one job to the scheduler; ``started`` says that its gang need not wait.

        Best-effort tasks with needs wait until a node's measured use leaves room for them.
        """
        for tracked in tasks:
            # Their bounds count from the beginning.
            self._enter(tracked.row.id, tracked)
        patient = [task for task in tasks if _is_patient(task)]
        for tracked in patient:
            self.patient[tracked.row.id] = None
        if len(patient) < len(tasks):
            self._submit_now([task for task in tasks if not _is_patient(task)], now, started=started)

    def _submit_now(
        self, tasks: list[TrackedTask], now: float, *, started: bool = False, pinned: int | None = None
    ) -> None:
        first = tasks[0]
        job = self._scheduler.job(first.job)
        try:
            if job is None:
                job = described_job(first.row, first.job)
                job = replace(job, gang=0) if started else job
            job = self._bounded(job)
            described = [
                described_task(tracked.row, self._places, now, pinned, self.original_of(tracked.row))
                for tracked in tasks
            ]
            self._scheduler.submit(job, described, now)
        except BadDescriptorError as error:
            self.problems.update((tracked.row.id, error.message) for tracked in tasks)

    def _bounded(self, job: JobDescriptor) -> JobDescriptor:
        """Return a job with the bounds that its tasks state; if the scheduler knows it, change them there."""
        minimum, maximum = self._bounds.of(job.job, job.gang)
        self._scheduler.set_bounds(job.job, minimum, maximum)
        return replace(job, minimum_running=minimum, maximum_running=maximum)

    def _drop(self, task: int, tracked: TrackedTask) -> None:
        """Remove a task from all tables."""
        self._leave(task, tracked)
        del self.tasks[task]
        self._numbers.pop(tracked.row.fingerprint, None)
        job = self._scheduler.job(tracked.job)
        if self._bounds.remove(tracked.job, tracked.row.work) and job is not None:
            self._bounded(job)

    def original_of(self, copy: Submission | Occupant) -> int | None:
        """Return the task of which another one is a copy; None if it is none, or not of the same user."""
        original = self._numbers.get(copy.work.copy_of) if copy.work.copy_of else None
        if original is None or self.tasks[original].row.principal != copy.principal:
            return None
        return original

    def _wait_again(self, task: int, now: float) -> None:
        if self._scheduler.is_running(task):
            self._scheduler.rejected(task, now)

    def _mark_started(self, task: int, queue: QueueRows, now: float) -> None:
        if task not in self.problems and not self._scheduler.is_running(task):
            tracked = self.tasks[task]
            row = tracked.row
            threads = row.processors if isinstance(row, Occupant) else tracked.threads
            named = thread_name(threads[0]) if self._inside and threads else ""
            ran = 0.0 if tracked.began is None else max(0.0, now - tracked.began)
            self._scheduler.started(task, queue.node, now, named, ran)
            if isinstance(row, Occupant):
                self._note_progress(row)

    def _note_progress(self, row: Occupant) -> None:
        """Pass on the progress that a task reported."""
        if row.progress is not None and self._scheduler.is_running(row.id):
            self._scheduler.progressed(row.id, row.progress / PROGRESS_WHOLE)

    def _forget(
        self, task: int, now: float, *, ended: Occupant | None = None, completed: bool = True
    ) -> None:
        tracked = self.tasks[task]
        self._drop(task, tracked)
        self._started(task, tracked.target or tracked.host)
        self._offered.pop(task, None)
        if tracked.phase is Phase.LEAVING:
            return
        if self.patient.pop(task, 0) is None or self.problems.pop(task, None) is not None:
            return
        gang = self._gangs.get(tracked.job)
        if gang is not None and gang.pop(task, None) is not None:
            if not gang:
                del self._gangs[tracked.job]
            return
        report = FinalReport(0.0, completed=completed)
        if ended is not None:
            report = FinalReport(
                ended.age_ms / 1000,
                ended.cpu_ms / 1000,
                memory_peak=ended.memory_bytes,
                completed=ended.completed,
            )
        self._scheduler.finished(task, now, report)

    # Placements -----------------------------------------------------------------------------------------

    def mark_sent(self, task: int, target: str, now: float) -> TrackedTask | None:
        """Record that a placement is sent; return None if the task no longer waits."""
        tracked = self.tasks.get(task)
        if tracked is None or tracked.phase is not Phase.WAITING:
            return None
        tracked.since, tracked.listed, tracked.gone = now, 0, 0
        self._change(task, tracked, Phase.SENT, tracked.host, target)
        return tracked

    def mark_leaving(self, task: int, host: str, now: float) -> None:
        """Record that a task has to stop. Its caller submits it again under another number."""
        tracked = self.tasks[task]
        self._change(task, tracked, Phase.LEAVING, host)
        self._scheduler.finished(task, now, FinalReport(0.0, completed=False))

    def mark_not_stopped(self, task: int) -> None:
        """Forget a task that its node did not stop; the node's next queue brings it back."""
        tracked = self.tasks.get(task)
        if tracked is not None and tracked.phase is Phase.LEAVING:
            self._drop(task, tracked)

    def record_answer(self, host: str, tasks: list[int], answer: Placed | None, now: float) -> list[str]:
        """Record a node's answer to placements, None for no answer; return the reasons of refusals.

        The node's queue may have been read after the node has carried them out: a submission that it did not
        have any more was placed, or its call was cancelled, and one that it listed later came back.
        """
        refused = (
            dict(answer.refused) if answer is not None else dict.fromkeys(tasks, f"{host} does not answer")
        )
        for task in tasks:
            tracked = self.tasks.get(task)
            if tracked is None or tracked.phase is not Phase.SENT:
                continue
            version = answer.version if answer is not None else 0
            if answer is not None and task in refused and tracked.gone > tracked.listed:
                self._forget(task, now, completed=False)
                continue
            placed = tracked.gone > tracked.listed if answer is None else task not in refused
            tracked.since = now
            if not placed or tracked.listed > max(version, tracked.gone):
                self._change(task, tracked, Phase.WAITING, tracked.host)
                self._wait_again(task, now)
            else:
                tracked.version = version
                self._change(task, tracked, Phase.PLACED, tracked.host, tracked.target)
        return [refused[task] for task in tasks if task in refused]


def _begin_of(row: Occupant, now: float) -> float:
    """Return the time at which a task began to run."""
    return now - row.age_ms / 1000


def _is_pure(tracked: TrackedTask) -> bool:
    return isinstance(tracked.row, Submission) and tracked.row.pure


def _is_patient(tracked: TrackedTask) -> bool:
    """Return True for a best-effort task that waits for resources which others leave idle."""
    work = tracked.row.work
    return work.best_effort and work.names_resources and tracked.phase is Phase.WAITING
