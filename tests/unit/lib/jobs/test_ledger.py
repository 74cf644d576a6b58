from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.errors import InvalidError
from dios.lib.jobs.ledger import GivePart, GiveUp, Ledger, Role, StartJobTask, Stop


class World:
    """Tasks that do what a ledger says, in any order, and fail at random: the model to hold it against."""

    def __init__(self, ledger: Ledger, seed: int, failures: int, *, keeps: bool = False) -> None:
        self.ledger = ledger
        self.keeps = keeps
        self.rng = random.Random(seed)  # noqa: S311 - a seeded order of events, no secret
        self.failures = failures
        self.mappers: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.reducers: dict[int, int] = {}
        self.has: dict[int, set[int]] = {}
        self.most = 0

    def act(self) -> None:
        """Do the steps the ledger gives, and copy a mapper now and then."""
        for step in self.ledger.next_steps():
            assert not isinstance(step, GiveUp)
            if isinstance(step, Stop):
                if self.mappers.pop((step.number, step.attempt), None) is not None:
                    self.ledger.mapper_stopped(step.number, step.attempt)
            elif isinstance(step, GivePart):
                if self.rng.random() < 0.3:
                    self.ledger.part_lost(step.mapper)
                elif step.reducer in self.reducers:
                    attempt = self.reducers[step.reducer]
                    self.ledger.took(step.reducer, attempt, step.mapper)
                    self.has[step.reducer].add(step.mapper)
            elif step.role is Role.REDUCER:
                assert step.number not in self.reducers
                self.reducers[step.number] = step.attempt
                self.has[step.number] = set()
            else:
                assert not self.attempts_of(step.number)
                self.start(step)
        if self.mappers and self.rng.random() < 0.3:
            number, _ = self.rng.choice(sorted(self.mappers))
            copy = self.ledger.copy(number)
            if copy is not None:
                assert len(self.attempts_of(number)) == 1
                self.start(copy)
        self.most = max(self.most, len(self.mappers))

    def attempts_of(self, number: int) -> list[int]:
        """The running attempts of a mapper."""
        return [attempt for other, attempt in self.mappers if other == number]

    def start(self, step: StartJobTask) -> None:
        """Start an attempt of a mapper, with streams to the present attempts of its reducers."""
        to = [(reducer, self.reducers[reducer]) for reducer in step.partitions]
        self.mappers[step.number, step.attempt] = to

    def happen(self) -> None:
        """One random thing happens."""
        choices = [(Role.MAPPER, number, attempt) for number, attempt in self.mappers]
        choices += [(Role.REDUCER, number, attempt) for number, attempt in self.reducers.items()]
        if not choices:
            return
        role, number, attempt = self.rng.choice(sorted(choices))
        fails = self.failures > 0 and self.rng.random() < 0.4
        self.failures -= fails
        if role is Role.MAPPER:
            self.map(number, attempt, fails=fails)
        elif fails:
            self.ledger.reducer_ended(number, self.reducers.pop(number), "killed")
        elif len(self.has[number]) == self.ledger.mappers:
            self.ledger.reducer_ended(number, self.reducers.pop(number), None)

    def map(self, number: int, attempt: int, *, fails: bool) -> None:
        """A mapper serves its reducers, or only some of them."""
        to = self.mappers.pop((number, attempt))
        gone = [pair for pair in to if self.reducers.get(pair[0]) != pair[1]]
        served = [pair for pair in to if pair not in gone]
        if fails:
            served = [pair for pair in served if self.rng.random() < 0.5]
        for reducer, reducer_attempt in served:
            self.ledger.heard(reducer, reducer_attempt, number, attempt)
            self.ledger.took(reducer, reducer_attempt, number)
            self.has[reducer].add(number)
        self.ledger.mapper_ended(number, attempt, "killed" if fails else None)
        if self.keeps and not fails:
            self.ledger.part_kept(number)


@given(
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(0, 2**32),
    st.integers(0, 1),
)
def test_a_job_ends_well_after_any_few_failures(
    mappers: int, reducers: int, workers: int, failures: int, seed: int, kept: int
) -> None:
    """Whatever dies and in whatever order things happen, every reducer ends with every mapper's pairs."""
    ledger = Ledger(mappers, reducers, workers, attempts=8)
    world = World(ledger, seed, failures, keeps=bool(kept))
    for _ in range(2_000):
        world.act()
        if ledger.done:
            break
        world.happen()
    assert ledger.done
    assert all(len(has) == mappers for has in world.has.values())
    assert world.most <= workers


def test_a_task_that_always_fails_ends_the_job() -> None:
    """After the last attempt the job gives up, naming the task and the last reason."""
    ledger = Ledger(1, 1, 1, attempts=2)
    for attempt in (1, 2):
        steps = ledger.next_steps()
        assert StartJobTask(Role.MAPPER, 0, attempt, (0,)) in steps
        ledger.mapper_ended(0, attempt, f"reason {attempt}")
    assert ledger.next_steps() == [GiveUp(Role.MAPPER, 0, 2, "reason 2")]


def test_a_dead_reducers_mappers_run_again_for_it_alone() -> None:
    """When a reducer dies, mappers are started for that reducer's part only."""
    ledger = Ledger(2, 2, 2, attempts=3)
    ledger.next_steps()
    for mapper in (0, 1):
        for reducer in (0, 1):
            ledger.took(reducer, 1, mapper)
        ledger.mapper_ended(mapper, 1, None)
    ledger.reducer_ended(0, 1, "killed")
    assert ledger.next_steps() == [
        StartJobTask(Role.REDUCER, 0, 2),
        StartJobTask(Role.MAPPER, 0, 2, (0,)),
        StartJobTask(Role.MAPPER, 1, 2, (0,)),
    ]


def test_a_new_reducer_gets_what_was_kept() -> None:
    """Only a mapper whose kept pairs are lost, too, is run again."""
    ledger = Ledger(2, 2, 2, attempts=3)
    ledger.next_steps()
    for mapper in (0, 1):
        for reducer in (0, 1):
            ledger.took(reducer, 1, mapper)
        ledger.mapper_ended(mapper, 1, None)
        ledger.part_kept(mapper)
    ledger.reducer_ended(0, 1, "killed")
    assert ledger.next_steps() == [StartJobTask(Role.REDUCER, 0, 2), GivePart(0, 0), GivePart(1, 0)]
    ledger.took(0, 2, 0)
    ledger.part_lost(1)
    assert ledger.next_steps() == [StartJobTask(Role.MAPPER, 1, 2, (0,))]


def test_a_mapper_that_nobody_will_hear_is_stopped() -> None:
    """A mapper whose reducer died before listening is stopped, and that is not counted as its failure."""
    ledger = Ledger(1, 1, 1, attempts=2)
    ledger.next_steps()
    ledger.reducer_ended(0, 1, "killed")
    assert Stop(0, 1) in ledger.next_steps()
    ledger.mapper_stopped(0, 1)
    assert ledger.next_steps() == [StartJobTask(Role.MAPPER, 0, 2, (0,))]
    ledger.mapper_ended(0, 2, "crashed")
    assert ledger.next_steps() == [StartJobTask(Role.MAPPER, 0, 3, (0,))]


def test_old_news_changes_nothing() -> None:
    """Reports of an attempt that is over are not counted for the next one."""
    ledger = Ledger(1, 1, 1, attempts=3)
    ledger.next_steps()
    ledger.reducer_ended(0, 1, "killed")
    ledger.next_steps()
    ledger.took(0, 1, 0)
    ledger.reducer_ended(0, 1, None)
    assert ledger.taken == 0
    assert not ledger.done


@pytest.mark.parametrize(("mappers", "reducers", "workers"), [(-1, 1, 1), (1, 0, 1), (1, 65, 1), (1, 1, 0)])
def test_a_job_has_bounds(mappers: int, reducers: int, workers: int) -> None:
    """Numbers of tasks out of bounds are refused."""
    with pytest.raises(InvalidError):
        Ledger(mappers, reducers, workers, attempts=1)


def test_tasks_that_leave_their_node_do_not_fail() -> None:
    """However often they are moved, the job goes on; a mapper that lost its reader so may fail as well."""
    ledger = Ledger(1, 1, 1, attempts=1)
    for attempt in range(1, 6):
        assert [
            (step.role, step.attempt) for step in ledger.next_steps() if isinstance(step, StartJobTask)
        ] == [
            (Role.REDUCER, attempt),
            (Role.MAPPER, attempt),
        ]
        ledger.heard(0, attempt, 0, attempt)
        ledger.reducer_ended(0, attempt, "moved", counts=False)
        ledger.mapper_ended(0, attempt, "its reader is gone")
    assert not any(isinstance(step, GiveUp) for step in ledger.next_steps())
    ledger.mapper_ended(0, 6, "moved", counts=False)
    assert not any(isinstance(step, GiveUp) for step in ledger.next_steps())
    ledger.mapper_ended(0, 7, "killed")
    assert isinstance(ledger.next_steps()[0], GiveUp)


def copied(reducers: int = 1, workers: int = 2) -> Ledger:
    """A job whose only mapper has a copy, attempt 2."""
    ledger = Ledger(1, reducers, workers, attempts=2)
    ledger.next_steps()
    assert ledger.copy(0) == StartJobTask(Role.MAPPER, 0, 2, tuple(range(reducers)))
    assert ledger.next_steps() == []
    return ledger


@pytest.mark.parametrize(("first", "other"), [(1, 2), (2, 1)])
def test_the_attempt_that_ends_first_stops_the_other(first: int, other: int) -> None:
    """The end of the stopped attempt is no failure, and the mapper does not run again."""
    ledger = copied()
    ledger.mapper_ended(0, first, None)
    assert ledger.next_steps() == [Stop(0, other)]
    ledger.mapper_stopped(0, other)
    assert ledger.next_steps() == []
    ledger.took(0, 1, 0)
    ledger.reducer_ended(0, 1, None)
    assert ledger.done


def test_a_copy_takes_the_place_of_an_original_that_fails() -> None:
    """The failure counts, and no third attempt begins while the copy runs. The next failure is the last."""
    ledger = copied()
    ledger.mapper_ended(0, 1, "killed")
    assert ledger.next_steps() == []
    ledger.mapper_ended(0, 2, "killed as well")
    assert ledger.next_steps() == [GiveUp(Role.MAPPER, 0, 2, "killed as well")]


def test_the_failure_of_a_copy_is_none_of_the_job() -> None:
    """The original goes on, and is not copied again."""
    ledger = copied()
    ledger.mapper_ended(0, 2, "killed")
    assert ledger.next_steps() == []
    assert ledger.copy(0) is None


def test_a_copy_serves_only_reducers_that_still_wait() -> None:
    """One that has the pairs already gets no second stream; with all served, or no worker free, none runs."""
    ledger = Ledger(1, 2, 2, attempts=2)
    ledger.next_steps()
    ledger.took(1, 1, 0)
    assert ledger.copy(0) == StartJobTask(Role.MAPPER, 0, 2, (0,))
    for workers in (1, 2):
        ledger = Ledger(1, 2, workers, attempts=2)
        ledger.next_steps()
        if workers > 1:
            ledger.took(0, 1, 0)
            ledger.took(1, 1, 0)
        assert ledger.copy(0) is None


def test_a_copy_that_loses_its_reader_is_stopped() -> None:
    """A new reducer has no stream from it."""
    ledger = copied(reducers=2)
    ledger.heard(0, 1, 0, 1)
    ledger.reducer_ended(0, 1, "killed")
    steps = ledger.next_steps()
    assert Stop(0, 2) in steps
    assert Stop(0, 1) not in steps


def test_what_an_earlier_controller_has_is_not_started() -> None:
    """Of a reducer that is done and a mapper whose pairs are kept, only the rest of the job begins."""
    ledger = Ledger(2, 2, 2, attempts=1)
    ledger.reduced_before(0)
    ledger.part_kept(1)
    assert ledger.next_steps() == [
        StartJobTask(Role.REDUCER, 1, 1),
        GivePart(1, 1),
        StartJobTask(Role.MAPPER, 0, 1, (1,)),
    ]
    for mapper in (0, 1):
        ledger.took(1, 1, mapper)
    ledger.reducer_ended(1, 1, None)
    assert ledger.done
