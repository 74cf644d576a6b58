"""The state of a job: the pairs that each reducer has of each mapper, and the next tasks to start.

``dios.lib.jobs.controller`` carries out the steps of ``next_steps``. A job is done when every reducer has
succeeded; a reducer can succeed only if it has every mapper's pairs. Everything follows from one table,
``taken``: when a reducer dies its row is emptied, and mappers are run again for exactly the gaps.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Final, NamedTuple, TypeAlias

from dios.errors import InvalidError
from dios.limits import (
    JOB_ATTEMPTS_MAX,
    JOB_MAPPERS_MAX,
    JOB_REDUCERS_MAX,
    JOB_UNREAD_STREAMS_MAX,
    JOB_WORKERS_MAX,
)


class Role(enum.StrEnum):
    """The role of a job's task."""

    MAPPER = "mapper"
    REDUCER = "reducer"


class StartJobTask(NamedTuple):
    """Start an attempt; for a mapper, with the reducers to serve (each in its present attempt)."""

    role: Role
    number: int
    attempt: int
    partitions: tuple[int, ...] = ()


class Stop(NamedTuple):
    """End a mapper's running attempt, which waits for a reducer that will never read."""

    number: int
    attempt: int


class GivePart(NamedTuple):
    """Give the kept pairs of a mapper to a reducer's present attempt."""

    mapper: int
    reducer: int


class GiveUp(NamedTuple):
    """End the job: this task failed too often, the last time for ``reason``."""

    role: Role
    number: int
    attempts: int
    reason: str


Step: TypeAlias = StartJobTask | Stop | GivePart | GiveUp

_KEPT: Final = 0
"""In place of an attempt: the pairs of the kept part are on their way."""


class Ledger:
    """One job of ``mappers`` and ``reducers``, of which at most ``workers`` mappers run at a time.

    A failed task is started ``attempts`` times in all. Raises InvalidError for numbers out of range.
    """

    def __init__(self, mappers: int, reducers: int, workers: int, attempts: int) -> None:
        for role, number, most in (
            ("mappers", mappers, JOB_MAPPERS_MAX),
            ("reducers", reducers, JOB_REDUCERS_MAX),
            ("workers", workers, JOB_WORKERS_MAX),
            ("attempts", attempts, JOB_ATTEMPTS_MAX),
        ):
            least = 0 if role == "mappers" else 1
            if not least <= number <= most:
                raise InvalidError(f"a job has {least} to {most} {role}, not {number}")
        self.mappers: Final = mappers
        self.reducers: Final = reducers
        self._workers: Final = workers
        self._attempts: Final = attempts
        self._taken: Final[list[set[int]]] = [set() for _ in range(reducers)]
        self._heard: Final[list[set[tuple[int, int]]]] = [set() for _ in range(reducers)]
        self._serving: Final[dict[int, StartJobTask]] = {}
        self._copies: Final[dict[int, StartJobTask]] = {}
        self._copied: Final[set[int]] = set()
        self._sent: Final[list[dict[int, int]]] = [{} for _ in range(reducers)]
        self._reducing: Final[dict[int, int]] = {}
        self._reduced: Final[set[int]] = set()
        self._begun: Final[Counter[tuple[Role, int]]] = Counter()
        self._failed: Final[Counter[tuple[Role, int]]] = Counter()
        self._excused: Final[set[tuple[int, int]]] = set()
        self._kept: Final[set[int]] = set()
        self._given_up: GiveUp | None = None
        self._stops: list[Stop] = []

    @property
    def done(self) -> bool:
        """Return True if every reducer's output is written."""
        return len(self._reduced) == self.reducers

    @property
    def taken(self) -> int:
        """Return the number of mappers' parts that have arrived, for display."""
        return sum(map(len, self._taken))

    # -- what happened ----------------------------------------------------------------------------
    def heard(self, reducer: int, attempt: int, mapper: int, mapper_attempt: int) -> None:
        """Record that a reducer's attempt reads the stream of a mapper's attempt."""
        if self._reducing.get(reducer) == attempt:
            self._heard[reducer].add((mapper, mapper_attempt))

    def took(self, reducer: int, attempt: int, mapper: int) -> None:
        """Record that a reducer's attempt has all of a mapper's pairs."""
        if self._reducing.get(reducer) == attempt and 0 <= mapper < self.mappers:
            self._taken[reducer].add(mapper)

    def mapper_ended(self, number: int, attempt: int, failure: str | None, *, counts: bool = True) -> None:
        """Record the end of a mapper's attempt; ``failure`` is the reason if its work is incomplete.

        Unless it ``counts``, the attempt is made again however often that happens.
        """
        copy, running = self._copies.get(number), self._serving.get(number)
        if copy is not None and copy.attempt == attempt:
            del self._copies[number]
            if failure is None:
                self._replace_by(copy)
            return
        if running is None or running.attempt != attempt:
            return
        del self._serving[number]
        if failure is None:
            self._stop_copy(number)
            return
        for reducer in running.partitions:
            # Parts that no reducer took are lost; if one takes them later, they count.
            if self._sent[reducer].get(number) == attempt:
                del self._sent[reducer][number]
        if copy is not None:
            # It goes on in the place of its original.
            del self._copies[number]
            self._serving[number] = copy
            self._send(copy)
        excused = (number, attempt) in self._excused
        self._fail(Role.MAPPER, number, failure, counts=counts and not excused)

    def _replace_by(self, copy: StartJobTask) -> None:
        """Stop a mapper's attempt whose copy has served the reducers before it."""
        original = self._serving.pop(copy.number)
        self._stops.append(Stop(original.number, original.attempt))
        self._send(copy)

    def _stop_copy(self, number: int) -> None:
        copy = self._copies.pop(number, None)
        if copy is not None:
            self._stops.append(Stop(copy.number, copy.attempt))

    def _send(self, start: StartJobTask) -> None:
        for reducer in start.partitions:
            self._sent[reducer][start.number] = start.attempt

    def part_kept(self, mapper: int) -> None:
        """Record that all pairs of a mapper are kept, for reducers that begin again."""
        self._kept.add(mapper)

    def part_lost(self, mapper: int) -> None:
        """Record that the kept pairs of a mapper cannot be read; it runs again for reducers without them."""
        self._kept.discard(mapper)
        for reducer, sent in enumerate(self._sent):
            if sent.get(mapper) == _KEPT and mapper not in self._taken[reducer]:
                del sent[mapper]

    def reduced_before(self, reducer: int) -> None:
        """Record, before the first step, that an earlier controller has the output of a reducer."""
        self._taken[reducer] = set(range(self.mappers))
        self._reduced.add(reducer)

    def mapper_stopped(self, number: int, attempt: int) -> None:
        """Record the end of a mapper's attempt by a Stop, which is not a failure."""
        self.mapper_ended(number, attempt, "stopped", counts=False)

    def reducer_ended(self, number: int, attempt: int, failure: str | None, *, counts: bool = True) -> None:
        """Record the end of a reducer's attempt; ``failure`` is the reason if its output is missing.

        Unless it ``counts``, the attempt is made again however often that happens.
        """
        if self._reducing.get(number) != attempt:
            return
        del self._reducing[number]
        if failure is None and len(self._taken[number]) == self.mappers:
            self._reduced.add(number)
            return
        for start in self._serving.values():
            waits = number in start.partitions and self._sent[number].get(start.number) == start.attempt
            if waits and (start.number, start.attempt) not in self._heard[number]:
                self._stops.append(Stop(start.number, start.attempt))
            if number in start.partitions and not counts:
                # It lost its reader, so it may fail as well.
                self._excused.add((start.number, start.attempt))
        for copy in list(self._copies.values()):
            if number in copy.partitions:
                self._stop_copy(copy.number)
        self._taken[number].clear()
        self._heard[number].clear()
        self._sent[number].clear()
        self._fail(Role.REDUCER, number, failure or "ended before it had every mapper's pairs", counts=counts)

    def _fail(self, role: Role, number: int, reason: str, *, counts: bool) -> None:
        self._failed[role, number] += counts
        if self._failed[role, number] >= self._attempts and self._given_up is None:
            self._given_up = GiveUp(role, number, self._begun[role, number], reason)

    # -- what to do -------------------------------------------------------------------------------
    def next_steps(self) -> list[Step]:
        """Return the next steps; each is returned once and counts as begun."""
        if self._given_up is not None:
            return [self._given_up]
        steps: list[Step] = [*self._stops]
        self._stops = []
        for reducer in range(self.reducers):
            if reducer not in self._reduced and reducer not in self._reducing:
                start = self._begin(Role.REDUCER, reducer)
                self._reducing[reducer] = start.attempt
                steps.append(start)
        for mapper in sorted(self._kept):
            for reducer in self._gaps(mapper):
                self._sent[reducer][mapper] = _KEPT
                steps.append(GivePart(mapper, reducer))
        for mapper in range(self.mappers):
            if not self._has_room:
                break
            gaps = self._gaps(mapper)
            if gaps and mapper not in self._serving:
                start = self._begin(Role.MAPPER, mapper, gaps)
                self._serving[mapper] = start
                self._send(start)
                steps.append(start)
        return steps

    def copy(self, number: int) -> StartJobTask | None:
        """Return a second attempt of a running mapper, to start now; the first to end stops the other.

        Return None if no worker is free, if the mapper does not run, or if it was copied before. The failure
        of a copy does not count.
        """
        running = self._serving.get(number)
        if running is None or number in self._copied or not self._has_room:
            return None
        waiting = tuple(reducer for reducer in running.partitions if self._waits_for(reducer, running))
        if not waiting:
            return None
        self._copied.add(number)
        self._copies[number] = self._begin(Role.MAPPER, number, waiting)
        return self._copies[number]

    @property
    def _has_room(self) -> bool:
        """Return True if another mapper may run."""
        return len(self._serving) + len(self._copies) < self._workers

    def _waits_for(self, reducer: int, start: StartJobTask) -> bool:
        """Return True if a reducer runs that has not got its pairs of this attempt yet."""
        sent, taken = self._sent[reducer].get(start.number), self._taken[reducer]
        return reducer in self._reducing and sent == start.attempt and start.number not in taken

    def _gaps(self, mapper: int) -> tuple[int, ...]:
        """Return the reducers without this mapper's pairs, to which none are on their way."""
        return tuple(
            reducer
            for reducer in self._reducing
            if mapper not in self._taken[reducer]
            and mapper not in self._sent[reducer]
            # The queue of unread streams of a slow reducer is bounded.
            and len(self._sent[reducer]) - len(self._taken[reducer]) < JOB_UNREAD_STREAMS_MAX
        )

    def _begin(self, role: Role, number: int, partitions: tuple[int, ...] = ()) -> StartJobTask:
        self._begun[role, number] += 1
        return StartJobTask(role, number, self._begun[role, number], partitions)
