"""The model that a cluster begins with keeps each claim of its docstring, in rounds of the real scheduler."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dios.firmament.descriptors import MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.spread import PRIORITY_MAX, SpreadModel
from dios.firmament.scheduler import FlowScheduler
from tests.support.firmament import rounds
from tests.support.firmament.clusters import GB, block

AGES = 1e9
"""Thirty years of waiting, in seconds."""


def task(
    number: int, priority: int = 0, *, only: int | None = None, data: tuple[int, ...] = ()
) -> TaskDescriptor:
    """A task of one processor: perhaps for one machine only, perhaps with 1 GB of input on some."""
    blocks = (block(1, *data),) if data else ()
    return TaskDescriptor(number, Resources(1, GB), priority, pinned=only, blocks=blocks)


def cluster(*slots: int, **parameters: int) -> FlowScheduler:
    """Machines 0, 1, ... of eight processors, with so many slots."""
    return rounds.scheduler(SpreadModel(**parameters), *slots)


def counts(places: dict[int, int]) -> list[int]:
    """How many tasks run on each machine, by the machine's number."""
    loads = Counter(places.values())
    return [loads[machine] for machine in range(max(loads, default=-1) + 1)]


@pytest.mark.parametrize("tasks", [1, 3, 7, 9, 24])
def test_one_round_loads_machines_evenly(tasks: int) -> None:
    """However many come at once, no machine gets two more than another."""
    spread = cluster(8, 8, 8)
    rounds.submit(spread, *map(task, range(tasks)))
    loads = Counter(dict.fromkeys(range(3), 0))
    loads.update(rounds.rounds(spread, 0.0).values())
    assert loads.total() == tasks
    assert max(loads.values()) - min(loads.values()) <= 1


def test_who_comes_later_fills_up_what_is_emptier() -> None:
    """Machines that run some already get fewer in the next round."""
    spread = cluster(8, 8)
    rounds.submit(spread, *(task(number, only=0) for number in range(4)))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, *(task(10 + number) for number in range(6)), job=2)
    assert counts(rounds.rounds(spread, 1.0)) == [5, 5]


def test_a_large_task_counts_as_what_it_asked_for() -> None:
    """Beside one that asked for four processors come four fewer."""
    spread = cluster(8, 8)
    rounds.submit(spread, TaskDescriptor(1, Resources(4), pinned=0))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, *(task(10 + number) for number in range(4)), job=2)
    assert counts(rounds.rounds(spread, 1.0)) == [1, 4]


@pytest.mark.parametrize(("outside", "places"), [(0, [3, 3]), (2, [2, 4]), (5, [1, 5]), (8, [0, 6])])
def test_other_programs_count_for_the_part_that_tasks_leave(outside: float, places: list[int]) -> None:
    """The more processors of machine 0 other programs use, the more tasks go to the other machine."""
    spread = cluster(8, 8)
    spread.set_outside({0: outside})
    rounds.submit(spread, *map(task, range(6)))
    assert counts(rounds.rounds(spread, 0.0)) == places


@pytest.mark.parametrize("outside", [8.0, 16.0])
def test_a_loaded_machine_with_room_comes_before_a_full_one(outside: float) -> None:
    """However high the load from outside: the last task does not wait for a machine that tasks fill."""
    spread = cluster(9, 9)
    spread.set_outside({1: outside})
    rounds.submit(spread, *(task(number, only=0) for number in range(8)))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(10), job=2)
    assert rounds.rounds(spread, 1.0)[10] == 1
    # A machine that joins under the same identifier has been measured by nobody.
    spread.remove_machine(1, 2.0)
    spread.add_machine(MachineDescriptor(1, "m1", "r", Resources(8, 64 * GB), 9), 2.0)
    assert not spread.state.resources.outside.any()


def test_a_machine_is_filled_to_its_slots_in_one_round() -> None:
    """A single machine takes all at once that it has slots for."""
    spread = cluster(30)
    rounds.submit(spread, *(TaskDescriptor(number, Resources(0.1)) for number in range(40)))
    assert counts(rounds.rounds(spread, 0.0)) == [30]


def test_a_task_goes_where_all_of_its_input_is() -> None:
    """Though that machine runs more than another."""
    spread = cluster(8, 8)
    rounds.submit(spread, *(task(number, only=1) for number in range(5)))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(10, data=(1,)), job=2)
    assert rounds.rounds(spread, 1.0)[10] == 1


def test_of_two_machines_with_input_the_one_with_more_is_nearer() -> None:
    """Three quarters of the input outweigh a quarter."""
    spread = cluster(8, 8, 8)
    asks = TaskDescriptor(1, Resources(1), blocks=(block(1, 1), block(3, 2)))
    rounds.submit(spread, asks)
    assert rounds.rounds(spread, 0.0) == {1: 2}


@pytest.mark.parametrize(("more", "place"), [(3, 1), (5, 0)])
@pytest.mark.parametrize("copies", [(1,), (1, 2, 9)])
def test_all_of_the_input_is_worth_near_however_many_copies(
    more: int, place: int, copies: tuple[int, ...]
) -> None:
    """``near`` of four tasks' load is worth three more and not five; copies elsewhere change nothing."""
    spread = cluster(8, 8, 0, near=500, load=1000)
    rounds.submit(spread, *(task(number, only=1) for number in range(more)))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(10, data=copies), job=2)
    assert rounds.rounds(spread, 1.0)[10] == place


def test_half_of_the_input_is_worth_half_of_near() -> None:
    """Against a load of one, two or three tasks with ``near`` at four tasks' load."""
    for more, place in ((1, 1), (3, 0)):
        spread = cluster(8, 8, near=500, load=1000)
        rounds.submit(spread, *(task(number, only=1) for number in range(more)))
        rounds.rounds(spread, 0.0)
        rounds.submit(spread, TaskDescriptor(10, Resources(1), blocks=(block(1, 1), block(1, 9))), job=2)
        assert rounds.rounds(spread, 1.0)[10] == place, f"{more} more"


@pytest.mark.parametrize(
    ("size", "more", "place"), [(0.001, 0, 1), (1, 2, 0), (3, 2, 0), (5, 2, 1), (5, 3, 0), (64, 3, 1)]
)
def test_little_input_is_worth_less(size: float, more: int, place: int) -> None:
    """All is worth four tasks' load: of a kilobyte one, of 3 MB less than two, of 64 MB more than three."""
    spread = cluster(8, 8, near=500, load=1000, half_bytes=4_000_000)
    rounds.submit(spread, task(9, only=0), *(task(number, only=1) for number in range(more + 1)))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, TaskDescriptor(10, Resources(1), blocks=(block(size / 1000, 1),)), job=2)
    assert rounds.rounds(spread, 1.0)[10] == place


def test_tasks_with_the_same_input_are_spread_over_its_copies() -> None:
    """In one round: even where all machines that have it are as near."""
    spread = cluster(8, 8, 8)
    rounds.submit(spread, *(task(number, data=(0, 1)) for number in range(8)))
    assert counts(rounds.rounds(spread, 0.0)) == [4, 4]


def test_too_many_tasks_with_the_same_input_go_elsewhere() -> None:
    """In one round: once the machine with it is busier by what ``near`` is worth."""
    spread = cluster(8, 8, near=500, load=1000)
    rounds.submit(spread, *(task(number, data=(1,)) for number in range(8)))
    assert counts(rounds.rounds(spread, 0.0)) == [2, 6]


def test_tasks_without_input_make_room_for_those_that_have_it() -> None:
    """In one round: those with input are at theirs, and all together are spread evenly."""
    spread = cluster(8, 8)
    rounds.submit(spread, *(task(number, data=(1,)) for number in range(4)), *map(task, range(4, 8)))
    placements = rounds.rounds(spread, 0.0)
    assert counts(placements) == [4, 4]
    assert [placements[number] for number in range(4)] == [1] * 4


def test_equal_priorities_never_preempt_however_long_they_wait() -> None:
    """Also not those that have input there, or may go nowhere else."""
    spread = cluster(1, 1)
    rounds.submit(spread, task(1), task(2))
    before = rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(3), task(4, data=(0, 1)), task(5, only=1), job=2)
    assert rounds.rounds(spread, 1.0, AGES, 2 * AGES) == before


@pytest.mark.parametrize("lower", [0, 1, PRIORITY_MAX - 1])
def test_the_next_higher_priority_preempts_at_once(lower: int) -> None:
    """From the lowest to the highest step, against a task that has run for ages."""
    spread = cluster(1)
    rounds.submit(spread, task(1, lower))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(2, lower + 1), job=2, now=AGES)
    assert rounds.rounds(spread, AGES) == {2: 0}
    assert rounds.rounds(spread, 2 * AGES) == {2: 0}


def test_the_lowest_priority_gives_way() -> None:
    """Of three that run the least important one, wherever it is, though the input is elsewhere."""
    spread = cluster(1, 1, 1)
    rounds.submit(spread, task(1, 2, only=0), task(2, 1, only=1), task(3, 2, only=2))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(4, 3, data=(0,)), job=2)
    assert rounds.rounds(spread, 1.0) == {1: 0, 3: 2, 4: 1}


def test_waiting_never_outgrows_a_step_of_priority() -> None:
    """A free slot goes to the more important, who has just come; among equals to who has waited longest."""
    spread = cluster(1, per_second=10**6)
    rounds.submit(spread, task(1, 5))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(2, 1), job=2)
    rounds.rounds(spread, 1.0)
    spread.finished(1, AGES)
    rounds.submit(spread, task(3, 2), job=3, now=AGES)
    assert rounds.rounds(spread, AGES) == {3: 0}


def test_among_equals_who_has_waited_longest_goes_first() -> None:
    """A free slot goes to the older of two."""
    spread = cluster(1)
    rounds.submit(spread, task(1, 5))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(3), job=2, now=1.0)
    rounds.submit(spread, task(2), job=3, now=2.0)
    rounds.rounds(spread, 3.0)
    spread.finished(1, 4.0)
    assert rounds.rounds(spread, 4.0) == {3: 0}


def test_no_place_is_so_loaded_that_a_task_waits_for_a_better_one() -> None:
    """A free slot is taken, whatever runs beside it and whatever load costs."""
    spread = cluster(1000, load=SpreadModel().load * 100)
    rounds.submit(spread, *(TaskDescriptor(number, Resources()) for number in range(64)))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, *(TaskDescriptor(100 + number, Resources()) for number in range(64)), job=2)
    assert counts(rounds.rounds(spread, 1.0)) == [128]


def test_nothing_moves_to_an_emptier_machine() -> None:
    """A machine that joins gets what comes, and nothing of what runs."""
    spread = cluster(8)
    rounds.submit(spread, *map(task, range(8)))
    before = rounds.rounds(spread, 0.0)
    rounds.add_machine(spread, 1, 8)
    assert rounds.rounds(spread, 1.0, AGES) == before


def test_nothing_moves_to_its_input() -> None:
    """A task that ran elsewhere because its input's machine was full stays there when that has room."""
    spread = cluster(1, 8)
    rounds.submit(spread, task(1, only=0))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(2, data=(0,)), job=2)
    assert rounds.rounds(spread, 1.0) == {1: 0, 2: 1}
    spread.finished(1, 2.0)
    assert rounds.rounds(spread, 3.0, AGES) == {2: 1}


def test_nobody_moves_to_make_room() -> None:
    """Neither for one whose input is there, nor for one that may go nowhere else."""
    spread = cluster(1)
    rounds.submit(spread, task(2))
    assert rounds.rounds(spread, 1.0) == {2: 0}
    rounds.add_machine(spread, 1, 8)
    rounds.submit(spread, task(3, data=(0,)), task(4, only=0), job=3, now=1.0)
    assert rounds.rounds(spread, 2.0, AGES) == {2: 0, 3: 1}


def test_who_gives_way_to_a_higher_priority_waits_and_is_placed_anew() -> None:
    """It is stopped and not moved, and has another machine in the next round."""
    spread = cluster(1)
    rounds.submit(spread, task(1))
    rounds.rounds(spread, 0.0)
    rounds.add_machine(spread, 1, 8)
    rounds.submit(spread, task(2, 1, only=0), job=2)
    assert rounds.rounds(spread, 1.0) == {2: 0}
    assert rounds.rounds(spread, 2.0) == {1: 1, 2: 0}


def test_input_on_a_machine_that_comes_later_counts_from_then_on() -> None:
    """A task that waits meanwhile goes there, and not to whoever stands in the row of one that left."""
    spread = cluster(1, 1)
    rounds.submit(spread, task(1), task(2))
    rounds.rounds(spread, 0.0)
    rounds.submit(spread, task(3, data=(7,)), job=2)
    rounds.rounds(spread, 1.0)
    rounds.add_machine(spread, 6, 1)
    rounds.add_machine(spread, 7, 1)
    assert rounds.rounds(spread, 2.0)[3] == 7


def test_explanations_say_what_the_cost_is_made_of() -> None:
    """The load's and the input's costs that are told add up to the cost of the place, and are right."""
    spread = cluster(1, 8, 8, half_bytes=0)
    rounds.submit(spread, task(1, only=0, priority=1), *(task(number, only=1) for number in (2, 3)))
    rounds.rounds(spread, 0.0)
    asks = TaskDescriptor(9, Resources(1), blocks=(block(3, 0, 2), block(1, 1)))
    rounds.submit(spread, asks, job=2)
    told = {place.name: place for place in spread.explain(9).places}
    assert {name: place.cost for name, place in told.items()} == {"m0": 1250, "m1": 3375, "m2": 1125}
    for place in told.values():
        assert sum(map(int, re.findall(r"costs (\d+)", place.remark))) == place.cost
    assert "2 of 8 processors are taken" in told["m1"].remark
    assert "1 GB of 4 GB of input are there" in told["m1"].remark


def test_of_a_running_task_it_is_said_that_it_stays() -> None:
    """Only a higher priority stops it, and nothing moves it."""
    spread = cluster(1, 1)
    rounds.submit(spread, task(1))
    rounds.rounds(spread, 0.0)
    [other] = spread.explain(1).places
    assert "it is not moved" in other.remark


@pytest.mark.parametrize("name", ["load", "near"])
def test_a_term_that_would_outweigh_priorities_is_refused(name: str) -> None:
    """The message names the parameter and the bound."""
    with pytest.raises(BadModelError, match=rf"model spread: {name} is 4000001; .* to 500000"):
        SpreadModel(**{name: 4_000_001})
