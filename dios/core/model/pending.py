"""Blocked system calls: rows in a table instead of waiting threads.

The code that changes an object wakes the calls that wait on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from dios import limits
from dios.core.model.records import CallId, Holder, Pending
from dios.core.model.start_queue import StartQueue
from dios.core.model.submission_queue import SubmissionQueue
from dios.errors import InvalidError, TooManyCallsError
from dios.wire import messages
from dios.wire.types import Resource


class PendingTable:
    """All waiting calls of the node, and the deadlines of those that have one."""

    __slots__ = ("_deadlines", "_queue", "_rows", "_starts", "list_readers", "next_number")

    def __init__(self, queue: SubmissionQueue, starts: StartQueue) -> None:
        self._queue: Final = queue
        self._starts: Final = starts
        self._rows: dict[tuple[int, int], Pending] = {}
        self._deadlines: list[tuple[int, int, int]] = []
        self.list_readers: dict[tuple[int, int], Pending] = {}  # they wait for a change of the list of nodes
        self.next_number = 1

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Pending]:
        return iter(list(self._rows.values()))

    def has(self, row: Pending) -> bool:
        """Return True if this very call is still waiting."""
        return self._rows.get(row.key) is row

    def find(self, call: CallId) -> Pending | None:
        """Return the call that a continuation names, or None if it does not wait any more."""
        row = self._rows.get(call[:2])
        return row if row is not None and row.number == call[2] else None

    def add(self, row: Pending) -> None:
        """Add a waiting call. The number of waiting calls of each task is bounded."""
        if row.key in self._rows:
            raise InvalidError(
                f"sequence number {row.seq} belongs to a call that is still waiting; use another number"
            )
        self.require_room(row.task)
        row.number = self.next_number
        self.next_number += 1
        self._rows[row.key] = row
        row.task.pending[row.seq] = row
        row.task.account.charge(Resource.REQUESTS, 1)
        if type(row.call) is messages.ListNodes:
            self.list_readers[row.key] = row
        for target in row.watched:
            target.waiters[row.key] = row
        for target in row.closes:
            target.closed += 1
        if row.deadline is not None:
            self.postpone(row, row.deadline)

    def postpone(self, row: Pending, deadline: int | None) -> None:
        """Give a waiting call another deadline."""
        row.deadline = deadline
        if deadline is None:
            return
        heapq.heappush(self._deadlines, (deadline, *row.key))
        # Most calls are answered long before their deadline, and their entry stays in the heap.
        if len(self._deadlines) > 2 * len(self._rows) + limits.STALE_TIMERS_MAX:
            self._deadlines = [entry for entry in self._deadlines if self._live(entry)]
            heapq.heapify(self._deadlines)

    def require_room(self, task: Holder) -> None:
        """Raise LimitError, or its TooManyCallsError, if the task may not wait in one more call.

        Calls that change something before they wait must check this first.
        """
        task.account.require(Resource.REQUESTS, 1)
        if len(task.pending) < limits.PENDING_PER_TASK_MAX:
            return
        is_coordinator = task.id == self._queue.coordinator
        most = limits.COORDINATOR_PENDING_MAX if is_coordinator else limits.PENDING_PER_TASK_MAX
        if len(task.pending) >= most:
            raise TooManyCallsError(
                f"the call would have to wait, and {most} calls of this task wait already, which is the"
                " maximum. Wait for one of them, or cancel one."
            )

    def remove(self, row: Pending) -> None:
        """Remove a call that is answered or cancelled."""
        del self._rows[row.key]
        del row.task.pending[row.seq]
        row.task.account.charge(Resource.REQUESTS, -1)
        if type(row.call) is messages.Run:
            self._queue.forget(row)
            self._starts.forget(row)
        elif type(row.call) is messages.ReadQueue:
            self._queue.forget_reader(row)
        elif type(row.call) is messages.ListNodes:
            del self.list_readers[row.key]
        for target in row.watched:
            target.waiters.pop(row.key, None)
        for target in row.closes:
            target.closed -= 1
        if row.held is not None:
            row.held.release()
            row.held = None

    def next_deadline(self) -> int | None:
        """Return the earliest deadline of a waiting call, or None."""
        heap = self._deadlines
        while heap and not self._live(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def expired(self, now: int, most: int) -> list[Pending]:
        """Return at most ``most`` calls whose deadline has passed, earliest first; they stay in the table."""
        late: list[Pending] = []
        heap = self._deadlines
        while heap and heap[0][0] <= now and len(late) < most:
            entry = heapq.heappop(heap)
            if self._live(entry):
                late.append(self._rows[entry[1:]])
        return late

    def _live(self, entry: tuple[int, int, int]) -> bool:
        row = self._rows.get(entry[1:])
        return row is not None and row.deadline == entry[0]
