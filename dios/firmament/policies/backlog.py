"""The backlog: waiting tasks that are not in the tables of a round yet, in the order of their turns.

A round costs as much as the tables hold. Therefore only as many waiting tasks enter the tables as could be
placed in the next round, and some more (the window); the others wait here, whatever their number.

Each principal's tasks enter by priority, then by submission. Tasks with the same needs are of one kind. If
tasks of a kind found no place although the cluster had room for their needs, only few of that kind stay in
the window, so that they do not keep other kinds out. If a principal has more kinds than its window holds, the
kinds take turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from dios.firmament.descriptors import COUNT_MAX, Constraint, JobDescriptor, Resources, TaskDescriptor
from dios.limits import BACKLOG_KIND_TASKS, BACKLOG_PRINCIPALS, BACKLOG_SPARE_TASKS
from dios.wire.types import Affinity

_TURNS: Final = 4
"""A principal may have this many times the turns of another one, because its tasks are smaller."""
_KINDS_KEPT: Final = 1024
_SHORT: Final = 2
"""The tasks in the window of a kind that found no place."""


_Order: TypeAlias = tuple[int, float, int, int]


class _Kind(NamedTuple):
    """The needs that decide where tasks may run; tasks of one kind are interchangeable."""

    demand: Resources
    constraints: tuple[Constraint, ...]
    pinned: int | None
    priority: int
    job: int | None
    """The job, if its tasks depend on each other."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Kind:
        """Return the value itself, which never changes."""
        return self


def _kind_of(job: JobDescriptor, described: TaskDescriptor) -> _Kind:
    together = job.affinity is not Affinity.NONE or job.maximum_running is not None
    return _Kind(
        described.demand,
        described.constraints,
        described.pinned,
        described.priority,
        job.job if together else None,
    )


@dataclass(slots=True, eq=False)
class BackloggedTask:
    """A task that waits, in the backlog or in the tables."""

    job: JobDescriptor
    described: TaskDescriptor
    submitted: float
    kind: _Kind
    number: int
    """The order of submissions."""
    version: int = 0
    """The number of its earlier descriptions."""
    inside: bool = False
    """True if it is in the tables."""
    gone: bool = False

    @property
    def order(self) -> _Order:
        """Its place among the tasks of its principal."""
        return -self.described.priority, self.submitted, self.number, self.version

    def __deepcopy__(self, memo: dict[int, object]) -> BackloggedTask:
        """Return a copy; there are thousands of them, so it is made without the general way."""
        return replace(self)


_Heap: TypeAlias = list[tuple[_Order, BackloggedTask]]


@dataclass(slots=True)
class _KindQueue:
    """The waiting tasks of one kind of one principal."""

    outside: _Heap = field(default_factory=list)
    inside: dict[int, BackloggedTask] = field(default_factory=dict)
    most: int = 0
    """The most tasks in the window; 0 for no limit of its own."""
    placed: int = 0
    """The last round that placed a task of it."""
    parked: bool = False
    """True if no machine can ever take its tasks; they wait until a machine joins."""

    def head(self) -> BackloggedTask | None:
        """Return its first task outside the window."""
        while self.outside and (self.outside[0][1].gone or self.outside[0][1].inside):
            heapq.heappop(self.outside)
        return self.outside[0][1] if self.outside else None


@dataclass(slots=True)
class _PrincipalQueue:
    """The waiting tasks of one principal: the kinds in the order of their first tasks."""

    kinds: dict[_Kind, _KindQueue] = field(default_factory=dict)
    order: list[tuple[_Order, _Kind]] = field(default_factory=list)
    """A heap with an entry for the first task of each kind that has tasks outside; others are outdated."""
    turns: dict[_Kind, None] = field(default_factory=dict)
    """The kinds with tasks outside, the one that was tried longest ago first."""
    parked: dict[_Kind, None] = field(default_factory=dict)
    inside: int = 0
    outside: int = 0


class Backlog:
    """The waiting tasks of a cluster, and which of them are in the tables.

    ``touched`` counts the tasks and kinds that were looked at, for tests and for figures.

    Args:
        is_possible: returns False for a task that no machine could take even if it were empty.
        running: returns the number of running tasks of a job.
    """

    def __init__(
        self, is_possible: Callable[[TaskDescriptor], bool], running: Callable[[int], int] = lambda _: 0
    ) -> None:
        self._is_possible = is_possible
        self._running = running
        self._possible: dict[_Kind, bool] = {}
        """The answers of ``is_possible`` for the present machines."""
        self._tasks: dict[int, BackloggedTask] = {}
        self.principals: dict[str, _PrincipalQueue] = {}
        """Those with waiting tasks, tried longest ago first; other modules only read the names."""
        self._jobs: dict[int, tuple[JobDescriptor, int]] = {}
        """Jobs with tasks outside the tables, and their number."""
        self._next = 0
        self._round = 0
        self.outside = 0
        """The number of tasks outside the tables."""
        self.touched = 0

    def __contains__(self, task: int) -> bool:
        backlogged = self._tasks.get(task)
        return backlogged is not None and not backlogged.inside

    def knows(self, task: int) -> bool:
        """Return True if a task is here, in the tables or outside; tasks of gangs are not."""
        return task in self._tasks

    def described(self, task: int) -> tuple[JobDescriptor, TaskDescriptor]:
        """Return the descriptions of the job and of a task that is here."""
        return self._tasks[task].job, self._tasks[task].described

    def waiting(self) -> dict[int, str]:
        """Return the principals of the tasks outside the tables."""
        return {
            task: backlogged.job.principal
            for task, backlogged in self._tasks.items()
            if not backlogged.inside
        }

    def job(self, job: int) -> JobDescriptor | None:
        """Return the description of a job with tasks outside the tables."""
        entry = self._jobs.get(job)
        return None if entry is None else entry[0]

    def add(self, job: JobDescriptor, described: TaskDescriptor, now: float) -> None:
        """Add a task that begins to wait."""
        self._next += 1
        task = BackloggedTask(job, described, now, _kind_of(job, described), self._next)
        self._tasks[described.task] = task
        self._put(task)

    def set_job(self, job: JobDescriptor, inside: Iterable[int]) -> list[int]:
        """Give the tasks of a job another description of it; return those outside the tables.

        ``inside`` are its tasks in the tables, waiting or not.
        """
        tasks = [self._tasks[task] for task in inside if task in self._tasks]
        if job.job in self._jobs:
            tasks += [task for task in self._tasks.values() if task.job.job == job.job and not task.inside]
            self._jobs[job.job] = job, self._jobs[job.job][1]
        others = [task for task in tasks if _kind_of(job, task.described) != task.kind]
        for task in tasks:
            task.job = job
        others.sort(key=lambda backlogged: backlogged.order)
        for task in reversed(others):
            # The last one first, so that the head of its kind changes once.
            self.remove(task.described.task)
        for task in others:
            self._put_again(task, job, task.described)
        return [task.described.task for task in tasks if not task.inside]

    def redescribe(self, described: TaskDescriptor) -> None:
        """Give a task another description; it keeps its place among those of its principal."""
        task = self._tasks[described.task]
        self.remove(described.task)
        self._put_again(task, task.job, described)

    def _put_again(self, task: BackloggedTask, job: JobDescriptor, described: TaskDescriptor) -> None:
        # A version of its own: entries of equal order cannot be in one heap.
        kind, version = _kind_of(job, described), task.version + 1
        again = BackloggedTask(job, described, task.submitted, kind, task.number, version)
        self._tasks[described.task] = again
        self._put(again)
        if task.inside:
            self.enter(described.task)

    def may_enter(self, task: int) -> bool:
        """Return True if some machine could take a task, and none of its principal waits before it."""
        backlogged = self._tasks[task]
        queue = self.principals[backlogged.job.principal]
        if len(queue.kinds[backlogged.kind].inside) >= self._startable(backlogged.job):
            return False
        return queue.outside == 1 and not self._is_parked(queue, backlogged.kind)

    def remove(self, task: int) -> BackloggedTask | None:
        """Forget a task that was placed, ended or withdrawn; return it, or None if it is not known."""
        backlogged = self._tasks.pop(task, None)
        if backlogged is None:
            return None
        backlogged.gone = True
        queue = self.principals[backlogged.job.principal]
        kind = queue.kinds[backlogged.kind]
        was_head = bool(kind.outside) and kind.outside[0][1] is backlogged
        if backlogged.inside:
            self._leave(backlogged, queue)
        else:
            queue.outside -= 1
            self._count_job(backlogged, -1)
        following = kind.head()
        if following is None:
            queue.turns.pop(backlogged.kind, None)
            if not kind.inside:
                del queue.kinds[backlogged.kind]
        elif was_head:
            heapq.heappush(queue.order, (following.order, backlogged.kind))
        if not (queue.inside or queue.outside):
            del self.principals[backlogged.job.principal]
        return backlogged

    def enter(self, task: int) -> BackloggedTask:
        """Record that a task enters the tables, and return it."""
        backlogged = self._tasks[task]
        queue = self.principals[backlogged.job.principal]
        backlogged.inside = True
        queue.outside -= 1
        queue.inside += 1
        self._count_job(backlogged, -1)
        kind = queue.kinds[backlogged.kind]
        kind.inside[task] = backlogged
        following = kind.head()
        if following is None:
            queue.turns.pop(backlogged.kind, None)
        else:
            heapq.heappush(queue.order, (following.order, backlogged.kind))
        return backlogged

    def put_back(self, task: int) -> None:
        """Record that a task has left the tables and waits here again, at its former place."""
        backlogged = self._tasks[task]
        self._leave(backlogged, self.principals[backlogged.job.principal])
        backlogged.inside = False
        self._put(backlogged)

    def place_of(self, task: int) -> int:
        """Return the number of tasks of its principal that come before a task outside the tables."""
        backlogged = self._tasks[task]
        before = self.principals[backlogged.job.principal].inside
        return before + sum(
            other.order < backlogged.order
            for other in self._tasks.values()
            if not other.inside and other.job.principal == backlogged.job.principal
        )

    # The window -----------------------------------------------------------------------------------------

    def fill(
        self, shares: Callable[[], Mapping[str, float]], free: Sequence[float], starts: float
    ) -> tuple[list[BackloggedTask], list[int]]:
        """Return tasks to enter the tables as far as the window has room, and tasks that leave them first.

        Args:
            shares: returns shares by principal: those with the least go first if there are many principals.
            free: the free slots of the cluster, then its free resources; infinity for unknown ones.
            starts: the tasks that may start in the next round.
        """
        self._round += 1
        if not self.outside:
            return [], []
        size = int(min(free[0], starts, 2**31)) + BACKLOG_SPARE_TASKS
        sizes = dict.fromkeys(self.principals, size)
        leaving: list[int] = []
        if len(sizes) > BACKLOG_PRINCIPALS:
            sizes = self._in_turn(shares(), size)
            for name, queue in list(self.principals.items()):
                if name not in sizes and queue.inside:
                    inside = [task for kind in queue.kinds.values() for task in kind.inside]
                    leaving += inside
                    for task in inside:
                        self.put_back(task)
        self.touched += len(self.principals)
        entering: list[BackloggedTask] = []
        for name, most in sizes.items():
            entering += self._fill_principal(self.principals[name], most, free)
        return entering, leaving

    def _in_turn(self, shares: Mapping[str, float], size: int) -> dict[str, int]:
        """Return the sizes of windows: of the principals with the least shares, and of some in turn."""
        half = BACKLOG_PRINCIPALS // 2
        others = list(islice(self.principals, half))
        for name in others:
            self.principals[name] = self.principals.pop(name)
        least = heapq.nsmallest(size, self.principals, key=lambda name: shares.get(name, 0.0))
        # All of less share have had as many turns before the next one has another.
        sizes = {name: min(size, -(-_TURNS * size // rank)) for rank, name in enumerate(least, start=1)}
        return dict.fromkeys(others, BACKLOG_KIND_TASKS) | sizes

    def _fill_principal(
        self, queue: _PrincipalQueue, size: int, free: Sequence[float]
    ) -> list[BackloggedTask]:
        entered: list[BackloggedTask] = []
        spare = min(BACKLOG_SPARE_TASKS, size) // 2
        skipped: list[tuple[_Order, _Kind]] = []
        looked = 0
        while queue.order and queue.inside < size - spare and looked < size + BACKLOG_SPARE_TASKS:
            looked += 1
            entry = heapq.heappop(queue.order)
            kind = queue.kinds.get(entry[1])
            head = kind.head() if kind is not None else None
            if kind is None or head is None or head.order != entry[0] or self._is_parked(queue, entry[1]):
                continue
            if len(kind.inside) >= self._room(kind, entry[1], free):
                skipped.append(entry)
                continue
            entered.append(self.enter(head.described.task))
        for entry in skipped:
            heapq.heappush(queue.order, entry)
        self.touched += looked
        # Kinds that do not come first take turns in the rest of the window.
        for kind_of in [kind_of for kind_of, _ in zip(queue.turns, range(2 * spare), strict=False)]:
            kind = queue.kinds[kind_of]
            self.touched += 1
            head = kind.head()
            if head is None or self._is_parked(queue, kind_of):
                del queue.turns[kind_of]
            elif queue.inside < size:
                del queue.turns[kind_of]
                queue.turns[kind_of] = None
                if not kind.inside and self._room(kind, kind_of, free) > 0:
                    entered.append(self.enter(head.described.task))
        return entered

    def _is_parked(self, queue: _PrincipalQueue, of: _Kind) -> bool:
        """Return True if no machine can take the tasks of a kind, which then waits for another machine."""
        kind = queue.kinds[of]
        head = kind.head()
        if head is not None and of not in self._possible:
            if len(self._possible) == _KINDS_KEPT:
                self._possible.clear()
            self._possible[of] = self._is_possible(head.described)
        kind.parked = head is not None and not self._possible[of]
        if kind.parked:
            queue.parked[of] = None
        return kind.parked

    def machines_changed(self) -> None:
        """Let the tasks that no machine could take try again."""
        self._possible.clear()
        for queue in self.principals.values():
            for of in queue.parked:
                kind = queue.kinds.get(of)
                head = kind.head() if kind is not None else None
                if kind is not None and head is not None:
                    kind.parked = False
                    heapq.heappush(queue.order, (head.order, of))
                    queue.turns.setdefault(of)
            queue.parked.clear()

    def _room(self, kind: _KindQueue, of: _Kind, free: Sequence[float]) -> int:
        """Return the number of tasks of a kind that the window may hold."""
        fits = free[0]
        for wanted, left in zip(of.demand, free[1:], strict=True):
            if wanted > 0:
                fits = min(fits, left // wanted)
        most = int(min(fits, 2**31)) + BACKLOG_KIND_TASKS
        head = kind.head()
        if head is not None:
            most = min(most, self._startable(head.job))
        return min(most, kind.most) if kind.most else most

    def _startable(self, job: JobDescriptor) -> int:
        """Return the number of tasks of a job that may start within its F_j."""
        most = job.maximum_running
        return COUNT_MAX if most is None else most - self._running(job.job)

    def placed(self, task: int) -> None:
        """Record that a task of the window was placed: its kind may have more there."""
        backlogged = self.remove(task)
        if backlogged is None:
            return
        queue = self.principals.get(backlogged.job.principal)
        kind = queue.kinds.get(backlogged.kind) if queue is not None else None
        if kind is not None and kind.placed != self._round:
            kind.placed = self._round
            kind.most = 0 if kind.most >= BACKLOG_SPARE_TASKS else 2 * kind.most

    def failed(self, tasks: Iterable[int]) -> list[int]:
        """Record tasks that found no place although there was room; return those that leave the window.

        The first ones of each kind stay, because room for them may appear.
        """
        leaving: list[int] = []
        kinds: dict[int, tuple[_PrincipalQueue, _KindQueue]] = {}
        for task in tasks:
            self.touched += 1
            backlogged = self._tasks.get(task)
            if backlogged is not None and backlogged.inside:
                queue = self.principals[backlogged.job.principal]
                kind = queue.kinds[backlogged.kind]
                if queue.outside and kind.placed != self._round:
                    kinds[id(kind)] = queue, kind
        for _, kind in kinds.values():
            kind.most = _SHORT
            by_order = sorted(kind.inside.values(), key=lambda member: member.order)
            leaving += [member.described.task for member in by_order[_SHORT:]]
        # A principal with more kinds than its window holds: those that were tried go, and others come.
        for queue in {id(queue): queue for queue, _ in kinds.values()}.values():
            over = queue.inside - len(leaving) - BACKLOG_SPARE_TASKS // 2
            if over > 0 and queue.turns:
                leaving += self._latest(queue, over, set(leaving))
        for task in leaving:
            self.put_back(task)
        return leaving

    @staticmethod
    def _latest(queue: _PrincipalQueue, count: int, without: set[int]) -> list[int]:
        inside = (
            backlogged for kind in queue.kinds.values() for backlogged in kind.inside.values() if kind.most
        )
        latest = heapq.nlargest(count, inside, key=lambda backlogged: backlogged.order)
        return [
            backlogged.described.task for backlogged in latest if backlogged.described.task not in without
        ]

    # Parts ----------------------------------------------------------------------------------------------

    def _put(self, task: BackloggedTask) -> None:
        queue = self.principals.setdefault(task.job.principal, _PrincipalQueue())
        kind = queue.kinds.setdefault(task.kind, _KindQueue())
        before = kind.head()
        heapq.heappush(kind.outside, (task.order, task))
        if not kind.parked:
            if before is None or task.order < before.order:
                heapq.heappush(queue.order, (task.order, task.kind))
            queue.turns.setdefault(task.kind)
        queue.outside += 1
        self._count_job(task, 1)

    def _leave(self, task: BackloggedTask, queue: _PrincipalQueue) -> None:
        queue.inside -= 1
        del queue.kinds[task.kind].inside[task.described.task]

    def _count_job(self, task: BackloggedTask, sign: int) -> None:
        self.outside += sign
        count = self._jobs.get(task.job.job, (task.job, 0))[1] + sign
        if count:
            self._jobs[task.job.job] = task.job, count
        else:
            del self._jobs[task.job.job]
