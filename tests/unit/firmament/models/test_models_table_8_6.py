"""Further schedulers of Table 8.6 do what their papers are known for, on the real scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from dios.firmament.descriptors import (
    Constraint,
    JobDescriptor,
    Kind,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models.catalogue import make
from dios.firmament.models.hfs import fair_shares
from dios.firmament.models.paragon import completed_scores
from dios.firmament.models.tarcil import TarcilModel
from dios.firmament.scheduler import FlowScheduler
from dios.wire.types import Operator
from tests.support.firmament.clusters import MACHINE, block
from tests.support.firmament.rounds import add_machine, rounds, scheduler, submit


def tasks(first: int, count: int, **also: float) -> list[TaskDescriptor]:
    """Some tasks, with an expected run time in seconds or without."""
    runtime = also.get("runtime")
    return [TaskDescriptor(first + offset, expected_runtime=runtime) for offset in range(count)]


def submit_as(
    flow_scheduler: FlowScheduler, who: str, job: int, some: list[TaskDescriptor], now: float = 0.0
) -> None:
    """A job of a principal."""
    flow_scheduler.submit(JobDescriptor(job, who), some, now)


# HFS, CIEL --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "slots", "shares"),
    [([9, 9], 6, [3, 3]), ([1, 9], 6, [1, 5]), ([2, 2], 9, [2, 2]), ([5, 5, 5], 4, [2, 1, 1]), ([], 3, [])],
)
def test_shares_of_pools_are_max_min_fair(wanted: list[int], slots: int, shares: list[int]) -> None:
    """What a small pool does not want goes to the others; the remainder goes slot by slot."""
    assert fair_shares(np.array(wanted, np.int64), slots).tolist() == shares


def test_hfs_gives_a_starving_pool_the_newest_tasks_of_one_above_its_share() -> None:
    """One pool has all four slots. The other waits for preempt_after, then it gets its two."""
    hfs = scheduler(make("hfs", preempt_after=30), 4)
    submit_as(hfs, "first", 1, tasks(1, 6))
    assert len(rounds(hfs, 1.0)) == 4
    submit_as(hfs, "second", 2, tasks(11, 3), now=2.0)
    assert all(task < 10 for task in rounds(hfs, 31.0))
    after = rounds(hfs, 33.0, 34.0)
    assert sum(task > 10 for task in after) == 2
    assert len(after) == 4


def test_ciel_waits_for_the_holder_of_a_sweetheart_and_for_no_other() -> None:
    """Machine 0 is full: a task with most of its input there waits for ten seconds, another does not."""
    ciel = scheduler(make("ciel", patience=10), 1, 4)
    submit(ciel, TaskDescriptor(1, blocks=(block(8, 0),)))
    assert rounds(ciel, 1.0) == {1: 0}
    shared = (block(1, 0), block(1, 1), block(1, 2))
    submit(
        ciel, TaskDescriptor(2, blocks=(block(8, 0), block(1, 1))), TaskDescriptor(3, blocks=shared), now=1.0
    )
    assert rounds(ciel, 2.0) == {1: 0, 3: 1}
    assert rounds(ciel, 12.0) == {1: 0, 2: 1, 3: 1}


# alsched, TetriSched ----------------------------------------------------------------------------------


def test_alsched_puts_a_job_into_the_rack_that_holds_all_of_it() -> None:
    """Racks with one and three free slots: a job of three goes to the second, though others are near."""
    alsched = scheduler(make("alsched"), 1, 2, 1, 1, racks=2)
    submit(alsched, *tasks(1, 3))
    places = rounds(alsched, 1.0)
    assert {place % 2 for place in places.values()} == {1}
    assert len(places) == 3


def test_alsched_waits_for_a_rack_and_then_goes_anywhere() -> None:
    """No rack has room for all three: they wait for patience, then start apart."""
    alsched = scheduler(make("alsched", patience=20), 2, 2, racks=2)
    submit(alsched, *tasks(1, 3))
    assert rounds(alsched, 1.0) == {}
    assert len(rounds(alsched, 21.0)) == 3


def test_alsched_chooses_a_rack_where_the_tasks_fit() -> None:
    """The second rack has fewer free slots, and no processor left: the first one is chosen at once."""
    planner = scheduler(make("alsched"), 9, 4, racks=2)
    submit(planner, TaskDescriptor(1, demand=Resources(cpus=MACHINE.cpus), pinned=1), job=1)
    assert rounds(planner, 1.0) == {1: 1}
    submit(planner, TaskDescriptor(2, demand=Resources(cpus=1.0)), job=2, now=2.0)
    assert rounds(planner, 2.0)[2] == 0


def test_alsched_chooses_a_rack_that_the_tasks_may_use() -> None:
    """The second rack has fewer free slots, and not the label that the task needs."""
    planner = scheduler(make("alsched"))
    add_machine(planner, 0, 9, rack="r0", gpu=True)
    add_machine(planner, 1, 4, rack="r1")
    submit(planner, TaskDescriptor(1, constraints=(Constraint("gpu", Operator.PRESENT),)))
    assert rounds(planner, 1.0) == {1: 0}


@pytest.mark.parametrize(("runtime", "waits"), [(4.0, True), (60.0, False)])
def test_tetrisched_waits_for_a_preferred_machine_that_is_free_soon_enough(
    runtime: float, *, waits: bool
) -> None:
    """A task of 30 s, 15 s slower elsewhere, waits for a task of 4 s there, and not for one of 60 s."""
    tetrisched = scheduler(make("tetrisched", slow=1.5), 1, 1)
    submit(tetrisched, TaskDescriptor(1, blocks=(block(1, 0),), expected_runtime=runtime))
    assert rounds(tetrisched, 0.0) == {1: 0}
    submit(tetrisched, TaskDescriptor(2, blocks=(block(1, 0),), expected_runtime=30.0), now=0.0)
    assert (2 not in rounds(tetrisched, 0.5)) is waits


def test_tetrisched_does_not_wait_beyond_a_deadline() -> None:
    """Waiting would end earlier, but after the deadline: the task starts now."""
    tetrisched = scheduler(make("tetrisched", slow=1.5), 1, 1)
    submit(tetrisched, TaskDescriptor(1, blocks=(block(1, 0),), expected_runtime=10.0))
    assert rounds(tetrisched, 0.0) == {1: 0}
    late = TaskDescriptor(2, blocks=(block(1, 0),), expected_runtime=30.0, deadline=35.0)
    submit(tetrisched, late, now=0.0)
    assert rounds(tetrisched, 0.5)[2] == 1


# Paragon, Quasar, Tarcil ------------------------------------------------------------------------------


def test_unknown_scores_follow_from_those_of_other_classes() -> None:
    """Type 1 is twice as slow for two classes, so it is for the third one that never ran there."""
    table = np.array([[100.0, 200.0], [30.0, 60.0], [7.0, np.nan]])
    assert completed_scores(table) == pytest.approx(np.array([[100, 200], [30, 60], [7, 14]]))
    assert np.isnan(completed_scores(np.full((2, 2), np.nan))).all()


def measured_cluster(name: str, **parameters: float) -> FlowScheduler:
    """Two machines; two classes are known on both, and the class "new" on the slow one alone."""
    base = KnowledgeBase("n0", 1)
    for task_class, fast, slow in (("a", 100, 300), ("b", 500, 1500), ("new", 0, 900)):
        for kind, value in (("fast", fast), ("slow", slow)):
            if value:
                base.add(Sample(task_class, kind, kind, 1, {Metric.PS_PER_INSTRUCTION: value}, ()))
    flow_scheduler = FlowScheduler(make(name, **parameters), knowledge=base)
    for number, kind in enumerate(("slow", "fast")):
        flow_scheduler.add_machine(
            MachineDescriptor(number, kind, capacity=Resources(cpus=8.0), slots=4, machine_type=kind), 0.0
        )
    return flow_scheduler


def test_paragon_knows_the_better_type_for_a_class_that_never_ran_there() -> None:
    """The class ran on the slow machine only; others tell that the fast one is better."""
    paragon = measured_cluster("paragon")
    submit(paragon, TaskDescriptor(1, equivalence="new"))
    assert rounds(paragon, 1.0) == {1: 1}


def test_quasar_starts_as_many_tasks_as_the_deadline_needs() -> None:
    """Four tasks of 50 s until 200 s, planned at 0.8 of the time, need two at once."""
    quasar = measured_cluster("quasar", margin=0.8)
    some = [
        TaskDescriptor(number, equivalence="a", expected_runtime=50.0, deadline=200.0)
        for number in range(1, 5)
    ]
    submit(quasar, *some)
    assert len(rounds(quasar, 0.0, 0.5)) == 2


def test_tarcil_samples_more_where_good_machines_are_rarer() -> None:
    """One sample if all are good; ln(1 - confidence) / ln(share below) if half are; the most if none is."""
    model = TarcilModel(target=0.8, confidence=0.9, samples=16)
    good, half, bad = (np.array(qualities) for qualities in ([1.0, 0.9], [1.0, 0.5], [0.1, 0.2]))
    assert [model.sample_size(qualities) for qualities in (good, half, bad)] == [1, 4, 16]


def test_tarcil_waits_for_quality_and_then_takes_what_there_is() -> None:
    """All slots but one of each machine are taken: the quality is below the target until patience ends."""
    tarcil = scheduler(make("tarcil", target=0.8, patience=5), 4, 4)
    submit(tarcil, *tasks(1, 6))
    assert len(rounds(tarcil, 6.0, 7.0, 8.0)) == 6
    submit(tarcil, TaskDescriptor(9), now=8.0)
    assert 9 not in rounds(tarcil, 9.0)
    assert 9 in rounds(tarcil, 14.0, 15.0, 16.0)


# Hawk, Mercury, Bistro --------------------------------------------------------------------------------


def test_hawk_keeps_long_tasks_off_the_reserved_machines() -> None:
    """Ten machines of one slot, two of them reserved: of twelve long tasks eight run."""
    hawk = scheduler(make("hawk", reserved=0.2, cutoff=300), *[1] * 10)
    submit(hawk, *tasks(1, 12, runtime=1000.0))
    assert sorted(rounds(hawk, 1.0).values()) == list(range(8))


def test_hawk_places_short_tasks_by_stealing_where_probes_are_full() -> None:
    """Short tasks fill the reserved machines in the end, although each probes only one machine."""
    hawk = scheduler(make("hawk", reserved=0.2, probes=1, steals=10), *[1] * 10)
    submit(hawk, *tasks(1, 8, runtime=1000.0))
    assert len(rounds(hawk, 1.0)) == 8
    submit(hawk, *tasks(11, 2, runtime=5.0), job=2, now=2.0)
    placements = rounds(hawk, 3.0, 4.0, 5.0)
    assert {placements[11], placements[12]} == {8, 9}


def test_mercury_stops_queueable_tasks_for_guaranteed_ones_only() -> None:
    """Two slots: a queueable task waits for queueable ones; a guaranteed one takes a slot."""
    mercury = scheduler(make("mercury"), 2)
    submit(mercury, *tasks(1, 2))
    first = rounds(mercury, 1.0)
    assert sorted(first) == [1, 2]
    submit(mercury, TaskDescriptor(3), job=2, now=2.0)
    assert rounds(mercury, 3.0) == first
    mercury.submit(JobDescriptor(4, kind=Kind.SERVICE), [TaskDescriptor(4)], 3.0)
    after = rounds(mercury, 4.0)
    assert 4 in after
    assert len(after) == 2


def test_bistro_runs_tasks_only_at_their_data_and_jobs_take_turns() -> None:
    """Machine 0 has four slots, of which half may be used: one task of each of the two jobs runs there."""
    bistro = scheduler(make("bistro", machine_share=0.5), 4, 4)
    for job, first in ((1, 1), (2, 11)):
        some = [TaskDescriptor(first + offset, blocks=(block(1, 0),)) for offset in range(3)]
        submit(bistro, *some, job=job)
    placements = rounds(bistro, 1.0)
    assert set(placements.values()) == {0}
    assert sorted(task // 10 for task in placements) == [0, 1]
