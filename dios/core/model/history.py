"""The records of ended things that a node keeps, divided among principals and their jobs.

Without the division, a principal that ends very many tasks would push out what is kept for all others.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar, cast

from dios.ids import Principal, TaskId

T = TypeVar("T")

_SMALL_JOBS: Final = 16
"""A job is small if it keeps at most a sixteenth of its principal's bound."""
_FORMER_MAX: Final = 64
"""Former sizes of a principal's jobs that are kept, in addition to as many as there are jobs."""


class KeptEntry(NamedTuple):
    """A kept thing, its size in the unit of the bounds, and its place in the order of time."""

    thing: object
    size: int
    number: int


class History(Generic[T]):
    """Kept things, oldest first for each job of each principal.

    Beyond a bound, the principal that keeps most gives up the oldest things of its job that keeps most, or
    its oldest things if all its jobs are small. So a principal always keeps its equal share of the whole, and
    no job takes more than a small part from others. A job of two tasks is not the first to give up one of
    them only because many jobs of one task have ended before.
    """

    __slots__ = ("_by_age", "_by_size", "_job_sizes", "_jobs", "_next", "_sizes", "_total")

    def __init__(self) -> None:
        self._jobs: Final[dict[Principal, dict[TaskId, deque[KeptEntry]]]] = {}
        self._job_sizes: Final[dict[Principal, dict[TaskId, int]]] = {}
        self._by_age: Final[dict[Principal, list[tuple[int, TaskId]]]] = {}
        """A heap of the numbers of the oldest things of jobs, also of former ones, with the jobs."""
        self._by_size: Final[dict[Principal, list[tuple[int, TaskId]]]] = {}
        """A heap of negative sizes of jobs, also of former ones, with the jobs."""
        self._sizes: Final[dict[Principal, int]] = {}
        self._total = 0
        self._next = 0

    def __len__(self) -> int:
        return sum(len(things) for jobs in self._jobs.values() for things in jobs.values())

    def __iter__(self) -> Iterator[T]:
        """Iterate over the kept things."""
        return (
            cast("T", kept.thing)
            for jobs in self._jobs.values()
            for things in jobs.values()
            for kept in things
        )

    def entries(self) -> list[tuple[Principal, TaskId, T, int]]:
        """Return the kept things with principal, job and size, in the order in which they were kept."""
        every = [
            (kept.number, principal, job, kept)
            for principal, jobs in self._jobs.items()
            for job, things in jobs.items()
            for kept in things
        ]
        every.sort(key=lambda entry: entry[0])
        return [(principal, job, cast("T", kept.thing), kept.size) for _, principal, job, kept in every]

    def count(self, thing: T) -> int:
        """Return the number of times that a thing is kept."""
        return sum(
            kept.thing is thing for jobs in self._jobs.values() for things in jobs.values() for kept in things
        )

    def keep(self, principal: Principal, job: TaskId, thing: T, size: int = 1) -> None:
        """Keep one more thing, of a job of a principal."""
        kept = KeptEntry(thing, size, self._next)
        self._next += 1
        jobs = self._jobs.setdefault(principal, {})
        if job in jobs:
            jobs[job].append(kept)
        else:
            jobs[job] = deque((kept,))
            self._note_age(principal, job)
        sizes = self._job_sizes.setdefault(principal, {})
        sizes[job] = sizes.get(job, 0) + size
        self._note_size(principal, job)
        self._sizes[principal] = self._sizes.get(principal, 0) + size
        self._total += size

    def excess(self, principal: Principal, each_max: int, total_max: int) -> Iterator[T]:
        """Give up and yield things while a principal keeps more than ``each_max``, or all together more than
        ``total_max``.
        """
        while self._sizes.get(principal, 0) > each_max:
            yield self._give_up(principal, each_max // _SMALL_JOBS)
        while self._total > total_max:
            yield self._give_up(max(self._sizes, key=self._sizes.__getitem__), each_max // _SMALL_JOBS)

    def _give_up(self, principal: Principal, small: int) -> T:
        jobs, sizes = self._jobs[principal], self._job_sizes[principal]
        job = self._largest(principal)
        if sizes[job] <= small:
            job = self._oldest(principal)
        kept = jobs[job].popleft()
        sizes[job] -= kept.size
        self._sizes[principal] -= kept.size
        self._total -= kept.size
        if not jobs[job]:
            del jobs[job], sizes[job]
        else:
            self._note_age(principal, job)
            if kept.size:
                self._note_size(principal, job)
        if not jobs:
            for table in (self._jobs, self._job_sizes, self._sizes, self._by_age, self._by_size):
                del table[principal]
        return kept.thing  # type: ignore[return-value] # only things of this type are kept

    def _note_size(self, principal: Principal, job: TaskId) -> None:
        """Record the present size of a job."""
        heap, sizes = self._by_size.setdefault(principal, []), self._job_sizes[principal]
        heapq.heappush(heap, (-sizes[job], job))
        if len(heap) > 2 * len(sizes) + _FORMER_MAX:
            heap[:] = sorted((-size, job_id) for job_id, size in sizes.items())

    def _largest(self, principal: Principal) -> TaskId:
        """Return the job that keeps most; of several equal ones that with the smallest number."""
        heap, sizes = self._by_size[principal], self._job_sizes[principal]
        while sizes.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def _note_age(self, principal: Principal, job: TaskId) -> None:
        """Record the oldest thing of a job."""
        heap, jobs = self._by_age.setdefault(principal, []), self._jobs[principal]
        heapq.heappush(heap, (jobs[job][0].number, job))
        if len(heap) > 2 * len(jobs) + _FORMER_MAX:
            heap[:] = sorted((things[0].number, job_id) for job_id, things in jobs.items())

    def _oldest(self, principal: Principal) -> TaskId:
        """Return the job with the oldest thing."""
        heap, jobs = self._by_age[principal], self._jobs[principal]
        while heap[0][1] not in jobs or jobs[heap[0][1]][0].number != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]
