"""The submission queue of a node: runs that wait for a place, and requests to the scheduler (thesis ch. 6).

The queue has no policy. Runs wait in it while a scheduler reads it, and each is placed once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import ClassVar, Final, cast

from msgspec import Struct

from dios import limits
from dios.core.model import scheduler_leases
from dios.core.model.records import ChildIdentity, Holder, Pending
from dios.core.model.scheduler_leases import LeasedScheduler, Schedulers
from dios.ids import NodeId, Principal, TaskId
from dios.wire import messages

_MS: Final = 1_000_000


class QueuedRun(Struct):
    """A run that waits for its placement."""

    row: Pending
    call: messages.Run
    chosen: ChildIdentity
    fingerprint: str
    since: int
    version: int = 0
    """The first version of the queue that has it."""
    fits_since: int = 0
    """The time since which this node could start it, as its own reviews found; 0 if it could not."""


class SchedulerQuestion(Struct, frozen=True):
    """A request to the scheduler, and the call that waits for the answer."""

    row: Pending
    asked: messages.Asked


class SubmissionQueue:
    """The waiting runs, the open requests to the scheduler, and a version that counts the changes.

    While a scheduler waits for a change it attends the queue. ``attended_until`` is the time by which it has
    to ask again; ``own_until`` is the same for this node's own coordinator, the task ``coordinator``, which
    need not be the scheduler. ``schedulers`` are those that attend, or have lost their leases, and
    ``reviewed`` is the time at which their progress was last checked. ``shares`` are the latest shares that
    a coordinator reported, and ``shares_since`` is the version of the queue before they arrived.

    ``tasks`` has the version in which each living task changed last, in the order of versions; ``gone`` has
    the runs and tasks that have left, with versions. Both are complete since the version
    ``complete_since``: a reader of an older version has to read everything again.

    ``kept`` has the runs with a promised start, its node and its time. It changed last in the version
    ``kept_version``.
    """

    __slots__ = (
        "answers",
        "attended_until",
        "by_call",
        "by_principal",
        "complete_since",
        "coordinator",
        "ended",
        "gone",
        "kept",
        "kept_version",
        "next_question",
        "next_report",
        "own_until",
        "questions",
        "reports",
        "reviewed",
        "schedulers",
        "shares",
        "shares_since",
        "shares_version",
        "tasks",
        "version",
        "waiters",
        "waiting",
    )

    ADDED_FIELDS: ClassVar[Mapping[str, object]] = {
        "schedulers": (),
        "reviewed": 0,
        "kept": {},
        "kept_version": 0,
    }
    """Fields that snapshots of earlier releases lack, with their values."""

    def __init__(self) -> None:
        self.version = 1
        self.waiting: dict[TaskId, QueuedRun] = {}
        self.by_call: dict[tuple[int, int], TaskId] = {}
        self.by_principal: dict[Principal, dict[TaskId, None]] = {}
        self.ended: deque[tuple[int, messages.Occupant]] = deque(maxlen=limits.QUEUE_ENDED_KEPT)
        self.tasks: dict[TaskId, int] = {}
        self.gone: deque[tuple[int, TaskId]] = deque(maxlen=limits.QUEUE_GONE_KEPT)
        self.complete_since = 0
        self.kept: dict[TaskId, tuple[str, int]] = {}
        self.kept_version = 0
        self.questions: dict[int, SchedulerQuestion] = {}
        self.answers: dict[int, list[bytes]] = {}
        self.reports: deque[tuple[int, int, bytes]] = deque(maxlen=limits.SCHEDULER_REPORTS_KEPT)
        self.waiters: dict[tuple[int, int], Pending] = {}
        self.next_question = 1
        self.next_report = 1
        self.attended_until = 0
        self.schedulers: Schedulers = ()
        self.reviewed = 0
        self.own_until = 0
        self.coordinator = TaskId(0)
        self.shares_version = 0
        self.shares = b""
        self.shares_since = 0

    def attended(self, now: int) -> bool:
        """Return True if a scheduler with a lease reads this queue."""
        return now < self.attended_until or any(
            _reads(row).attend and not self.is_barred(row.task.home, now) for row in self.waiters.values()
        )

    def attending(self, now: int) -> list[LeasedScheduler]:
        """Return the schedulers with a lease that read this queue, or have asked during QUEUE_LEASE_MS."""
        reading = {row.task.home for row in self.waiters.values() if _reads(row).attend}
        return [
            known
            for known in self.schedulers
            if now >= known.barred_until
            and (known.node in reading or now - known.asked < limits.QUEUE_LEASE_MS * _MS)
        ]

    def is_barred(self, node: NodeId, now: int) -> bool:
        """Return True if the scheduler of a node has lost its lease; 0 is this node."""
        return scheduler_leases.is_barred(self.schedulers, node, now)

    def barred(self, now: int) -> list[NodeId]:
        """Return the nodes whose schedulers have lost their leases; 0 is this node."""
        return [known.node for known in self.schedulers if now < known.barred_until]

    def coordinated(self, now: int) -> bool:
        """Return True if this node has a coordinator of its own."""
        return now < self.own_until or any(_reads(row).own for row in self.waiters.values())

    def renew(self, now: int, call: messages.ReadQueue, task: Holder) -> None:
        """Extend the lease of a scheduler that asked or is answered: it has QUEUE_LEASE_MS to ask again."""
        until = now + limits.QUEUE_LEASE_MS * _MS
        if call.attend:
            self.schedulers = scheduler_leases.renewed(self.schedulers, task.home, now)
            if not self.is_barred(task.home, now):
                self.attended_until = until
        if call.own:
            self.own_until, self.coordinator = until, task.id

    def bar(self, schedulers: Schedulers, now: int) -> None:
        """Replace the schedulers after some have lost their leases; the leases of the others go on."""
        self.schedulers = schedulers
        asked = max((known.asked for known in schedulers if now >= known.barred_until), default=None)
        self.attended_until = 0 if asked is None else asked + limits.QUEUE_LEASE_MS * _MS

    def note_reader(self, row: Pending) -> None:
        """Note a call that waits for a change of the queue."""
        self.waiters[row.key] = row

    def keep_shares(self, version: int, shares: bytes) -> bool:
        """Keep these shares if they are newer; return True if they are."""
        if version <= self.shares_version:
            return False
        self.shares_version, self.shares, self.shares_since = version, shares, self.version
        return True

    def put(self, run: QueuedRun) -> None:
        """Add a run at the end of the order."""
        run.version = self.version + 1
        self.waiting.pop(run.chosen.task, None)
        self.waiting[run.chosen.task] = run
        self.by_call[run.row.key] = run.chosen.task
        self.by_principal.setdefault(run.row.task.principal, {})[run.chosen.task] = None

    def take(self, run: QueuedRun) -> None:
        """Remove a run."""
        self._note_gone(run.chosen.task)
        self.keep(run.chosen.task, "", 0)
        del self.waiting[run.chosen.task], self.by_call[run.row.key]
        principal = run.row.task.principal
        own = self.by_principal[principal]
        del own[run.chosen.task]
        if not own:
            del self.by_principal[principal]

    def keep(self, task: TaskId, node: str, start: int) -> None:
        """Note the node where room is kept for a waiting run, and its expected start; an empty node: none."""
        if node:
            self.kept[task] = node, start
        elif self.kept.pop(task, None) is None:
            return
        self.kept_version = self.version + 1

    def kept_rooms(self, now: int) -> Iterator[tuple[QueuedRun, str, int]]:
        """Yield the runs for which room is kept, its node, and the expected start; one long past is void."""
        void = now - int(limits.RESERVATION_UNKNOWN_S * 1000) * _MS
        for task, (node, start) in self.kept.items():
            if start >= void:
                yield self.waiting[task], node, start

    def waiting_of(self, principal: Principal) -> Iterable[QueuedRun]:
        """Return the waiting runs of a principal."""
        return (self.waiting[task] for task in self.by_principal.get(principal, ()))

    def count_of(self, principal: Principal) -> int:
        """Return the number of waiting runs of a principal."""
        return len(self.by_principal.get(principal, ()))

    def of_call(self, row: Pending) -> QueuedRun | None:
        """Return the run that waits by this very call, or None."""
        run = self.waiting.get(self.by_call.get(row.key, TaskId(0)))
        return run if run is not None and run.row is row else None

    def forget(self, row: Pending) -> None:
        """Remove the run of a call that does not wait any more: it was answered, or its caller ended."""
        run = self.of_call(row)
        if run is not None:
            self.take(run)
            # Nobody is woken for it: a reader learns of it with the next change, or when it asks again.
            self.version += 1

    def forget_reader(self, row: Pending) -> None:
        """Remove a reader that does not wait any more."""
        if self.waiters.get(row.key) is row:
            del self.waiters[row.key]

    def note_task(self, task: TaskId) -> None:
        """Record that a task began or changed."""
        self.tasks.pop(task, None)
        self.tasks[task] = self.version + 1

    def note_end(self, row: messages.Occupant) -> None:
        """Record that a task has ended."""
        task = TaskId(row.id)
        self.tasks.pop(task, None)
        if task == self.coordinator:
            self.own_until = 0
        self.ended.append((self.version + 1, row))
        self._note_gone(task)

    def _note_gone(self, task: TaskId) -> None:
        if len(self.gone) == limits.QUEUE_GONE_KEPT:
            self.complete_since = self.gone[0][0]
        self.gone.append((self.version + 1, task))

    def tasks_since(self, version: int) -> list[TaskId]:
        """Return the living tasks that changed after a version, the latest last.

        The work is bounded by their number.
        """
        return list(takewhile(lambda task: self.tasks[task] > version, reversed(self.tasks)))[::-1]

    def gone_since(self, version: int) -> list[TaskId]:
        """Return the runs and tasks that left after a version."""
        return [task for _, task in takewhile(lambda entry: entry[0] > version, reversed(self.gone))]

    def ended_since(self, version: int) -> list[messages.Occupant]:
        """Return the tasks that ended after a version, the first of them first; at most those kept."""
        rows = [row for _, row in takewhile(lambda entry: entry[0] > version, reversed(self.ended))]
        return rows[::-1]

    def runs_since(self, version: int, most: int) -> list[QueuedRun]:
        """Return waiting runs that came after a version, the first of them first; at most ``most`` of them.

        The work is bounded by the number of runs that came after it, unless it is 0.
        """
        if version == 0:
            return list(islice(self.waiting.values(), most))
        runs = list(takewhile(lambda run: run.version > version, reversed(self.waiting.values())))
        return runs[: -most - 1 : -1]

    def tidy(self, waits: Callable[[Pending], bool]) -> None:
        """Remove requests whose call does not wait any more: the caller ended, or cancelled it."""
        for number in [number for number, question in self.questions.items() if not waits(question.row)]:
            del self.questions[number]
            self.answers.pop(number, None)


def _reads(row: Pending) -> messages.ReadQueue:
    return cast("messages.ReadQueue", row.call)
