"""The discrete-event simulator: order, rates, what is lost and what is not, and the command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from dios.errors import InvalidError, InvariantError
from dios.firmament.cluster.state import RUNNING
from dios.firmament.descriptors import Resources
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.models.catalogue import MODELS
from dios.firmament.rounds.results import Delta
from dios.firmament.scheduler import FlowScheduler
from labs.simulate.scheduling.check import check
from labs.simulate.scheduling.outcome import SimulationOutcome
from labs.simulate.scheduling.report import summarise
from labs.simulate.scheduling.run import SimulationConfig, SimulationProgress, simulate
from labs.simulate.scheduling.scheduler_bridge import Bridge
from labs.simulate.scheduling.schedulers import scheduler_for
from labs.simulate.scheduling.world import HostDue, World
from labs.simulate.workloads.events import (
    Happening,
    JobSubmission,
    MachineDown,
    SimulationEvents,
    UsageSample,
    Withdrawal,
)
from labs.simulate.workloads.google_like import GoogleLike, GoogleWorkload
from labs.simulate.workloads.interference import pace_alone, paces_together
from labs.simulate.workloads.machines import MACHINE_TYPES, SRG_CLUSTER, google_machines, thesis_machines
from labs.simulate.workloads.mix import CPU_SPIN, IO_READ, TABLE_8_2, MixWorkload
from tests.support.firmament.scripted import (
    ScriptedScheduler,
    ScriptedWorkload,
    machine,
    migrate,
    place,
    preempt,
    submission,
)

SEED = 11
SAMPLE = Path(__file__).parents[3] / "data" / "google-trace"


def run(
    happenings: Sequence[Happening],
    decisions: dict[float, Sequence[Delta]],
    *,
    seconds: float = 100,
    follows: dict[int, JobSubmission] | None = None,
    **config: float | None,
) -> tuple[SimulationOutcome, ScriptedScheduler]:
    """A scripted simulation, rounds every second unless told otherwise."""
    scheduler = ScriptedScheduler(decisions)
    workload = ScriptedWorkload(happenings, follows or {})
    settings = SimulationConfig(workload, scheduler, seconds, **config)  # type: ignore[arg-type]
    return simulate(settings), scheduler


# Order and time -------------------------------------------------------------------------------------


def test_one_time_keeps_its_order() -> None:
    """What is put down first happens first, and rounds come after all else of their time."""
    agenda = SimulationEvents[str]()
    for at, event, order in ((2.0, "c", 0), (1.0, "round", 1), (1.0, "a", 0), (1.0, "b", 0)):
        agenda.put(at, event, order)
    assert [agenda.take()[1] for _ in range(4)] == ["a", "b", "round", "c"]
    assert agenda.next_time() == math.inf


def test_a_task_runs_from_its_placement_for_its_work() -> None:
    """It waits until the round that places it, and ends its work later."""
    outcome, scheduler = run([machine(1), submission(0.5, 1, {7: 10.0})], {1.0: [place(7, 1)]})
    (record,) = outcome.ended
    assert (record.waited, record.started, record.ended, record.runtime) == (0.5, 1.0, 11.0, 10.0)
    assert "11: task 7 ended, after 10" in scheduler.heard


def test_rounds_come_at_multiples_of_the_interval_while_there_is_work() -> None:
    """An empty cluster needs no rounds; the next one is at a multiple of the interval again."""
    happenings: list[Happening] = [
        machine(1),
        submission(0.0, 1, {1: 3.0}),
        submission(41.5, 2, {2: 1.0}),
    ]
    _, scheduler = run(happenings, {0.0: [place(1, 1)], 42.0: [place(2, 1)]}, round_interval=2.0)
    assert scheduler.rounds == [0, 2, 4, 42]


def test_the_time_bounds_a_run() -> None:
    """What is beyond the end does not happen, and what runs then is unfinished."""
    outcome, _ = run([machine(1), submission(0.0, 1, {1: 500.0})], {0.0: [place(1, 1)]}, seconds=60)
    assert not outcome.ended
    assert [record.running for record in outcome.unfinished] == [True]
    assert outcome.utilisation == pytest.approx(0.5)
    assert outcome.seconds == 60


def test_a_job_brings_the_next_one() -> None:
    """When its last task has ended the workload says what follows, and when."""
    outcome, scheduler = run(
        [machine(1), submission(0.0, 1, {1: 2.0, 2: 5.0})],
        {0.0: [place(1, 1), place(2, 1)], 9.0: [place(3, 1)]},
        follows={1: submission(8.5, 2, {3: 1.0})},
    )
    assert "8.5: job 2 brings 3" in scheduler.heard
    assert [record.task for record in outcome.ended] == [1, 2, 3]


def test_what_comes_at_the_time_of_a_round_comes_before_it() -> None:
    """A job that follows at 4 s, when a round has been due for long, is decided about in that round."""
    outcome, scheduler = run(
        [machine(1), submission(0.0, 1, {1: 3.5}), submission(0.0, 2, {2: 50.0})],
        {0.0: [place(1, 1), place(2, 1)], 4.0: [place(3, 1)]},
        follows={1: submission(4.0, 3, {3: 1.0})},
    )
    assert scheduler.rounds[:5] == [0, 1, 2, 3, 4]
    assert [(record.task, record.ended) for record in outcome.ended] == [(1, 3.5), (3, 5.0), (2, 50.0)]


def test_a_workload_may_not_go_back_in_time() -> None:
    """Events out of order are a defect of the workload, and stop the run."""
    with pytest.raises(InvariantError, match="comes after one at 5"):
        run([machine(1), submission(5.0, 1, {1: 1.0}), submission(4.0, 2, {2: 1.0})], {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0.0},
        {"seconds": math.inf},
        {"round_interval": -1.0},
        {"round_interval": 0.0},
        {"decision_s": -0.1},
        {"sample_interval": 0.0},
    ],
)
def test_a_configuration_that_cannot_end_is_refused(wrong: dict[str, float]) -> None:
    """Times have to be positive, and rounds back to back have to take time."""
    with pytest.raises(InvalidError):
        SimulationConfig(ScriptedWorkload([]), ScriptedScheduler(), **{"seconds": 1.0, **wrong})  # type: ignore[arg-type]


# Stopping, moving and losing ------------------------------------------------------------------------


@pytest.mark.parametrize(("keeps_work", "ended", "wasted"), [(False, 17.0, 4.0), (True, 13.0, 0.0)])
def test_a_preempted_task_begins_again_unless_work_is_kept(
    keeps_work: bool,  # noqa: FBT001 - a parameter of the test
    ended: float,
    wasted: float,
) -> None:
    """It waits a second, runs 4 of its 10, waits two, and is placed again at 7 s."""
    outcome, _ = run(
        [machine(1), submission(0.0, 1, {1: 10.0})],
        {1.0: [place(1, 1)], 5.0: [preempt(1, 1)], 7.0: [place(1, 1)]},
        keeps_work=keeps_work,
    )
    (record,) = outcome.ended
    assert (record.ended, record.wasted, record.preemptions, record.waited) == (ended, wasted, 1, 3.0)


def test_a_migrated_task_runs_elsewhere() -> None:
    """It stops here and starts there at once."""
    outcome, _ = run(
        [machine(1), machine(2), submission(0.0, 1, {1: 10.0})],
        {0.0: [place(1, 1)], 4.0: [migrate(1, 1, 2)]},
        keeps_work=True,
    )
    (record,) = outcome.ended
    assert (record.ended, record.machine, record.migrations, record.waited) == (10.0, 2, 1, 0.0)


def test_stops_come_before_starts() -> None:
    """In one round a task takes the slot that another leaves, in whatever order they are listed."""
    outcome, _ = run(
        [machine(1, slots=1), submission(0.0, 1, {1: 10.0, 2: 10.0})],
        {0.0: [place(1, 1)], 4.0: [place(2, 1), preempt(1, 1)]},
    )
    assert [record.task for record in outcome.ended] == [2]


def test_a_machine_that_goes_loses_no_task() -> None:
    """What ran there waits again; its work is lost, the task is not."""
    outcome, scheduler = run(
        [machine(1), machine(2), submission(0.0, 1, {1: 10.0, 2: 10.0}), MachineDown(3.0, 1)],
        {0.0: [place(1, 1), place(2, 2)], 5.0: [place(1, 2)]},
    )
    assert {record.task: record.ended for record in outcome.ended} == {2: 10.0, 1: 15.0}
    assert "3: machine 1 down" in scheduler.heard
    assert sum(record.machine_losses for record in outcome.ended) == 1


def test_a_withdrawn_task_leaves_whether_it_waits_or_runs() -> None:
    """Both are told of, and neither completes."""
    outcome, scheduler = run(
        [machine(1), submission(0.0, 1, {1: 10.0, 2: 10.0}), Withdrawal(2.0, 1), Withdrawal(2.0, 2)],
        {0.0: [place(1, 1)]},
    )
    assert [(record.task, record.completed, record.withdrawn) for record in outcome.ended] == [
        (1, False, True),
        (2, False, True),
    ]
    assert "2: task 1 ended, after 2" in scheduler.heard
    assert "2: task 2 ended, withdrawn" in scheduler.heard


def test_a_task_withdrawn_after_it_was_stopped_has_no_run() -> None:
    """Its run was lost when it was stopped; no report speaks of it."""
    outcome, scheduler = run(
        [machine(1), submission(0.0, 1, {1: 10.0}), Withdrawal(6.5, 1)],
        {0.0: [place(1, 1)], 4.0: [preempt(1, 1)]},
    )
    (record,) = outcome.ended
    assert math.isnan(record.runtime)
    assert (record.waited, record.wasted) == (2.5, 4.0)
    assert "6.5: task 1 ended, withdrawn" in scheduler.heard


def test_a_measurement_reaches_who_runs() -> None:
    """A trace's measurement of a task that runs is told; of one that waits it is not."""
    used = Resources(cpus=0.5)
    _, scheduler = run(
        [
            machine(1),
            submission(0.0, 1, {1: 9.0, 2: 9.0}),
            UsageSample(3.0, 1, used),
            UsageSample(3.0, 2, used),
        ],
        {0.0: [place(1, 1)]},
        seconds=10,
    )
    assert [line for line in scheduler.heard if "uses" in line] == ["task 1 uses 0.5 cpus"]


# While the scheduler decides ------------------------------------------------------------------------


def test_what_happens_during_a_decision_is_told_after_it() -> None:
    """A round of two seconds: the end at 9 is heard of at 10, when the round has landed."""
    outcome, scheduler = run(
        [machine(1), submission(0.0, 1, {1: 7.0})], {0.0: [place(1, 1)]}, round_interval=4.0, decision_s=2.0
    )
    assert outcome.ended[0].ended == 9.0
    assert "10: task 1 ended, after 7" in scheduler.heard


def test_a_task_that_ended_during_the_decision_is_not_moved() -> None:
    """The delta comes too late and does nothing; so does one for a machine that has gone."""
    outcome, scheduler = run(
        [
            machine(1),
            machine(2),
            submission(0.0, 1, {1: 7.0}),
            submission(7.5, 2, {2: 5.0}),
            MachineDown(9.5, 2),
        ],
        {0.0: [place(1, 1)], 8.0: [migrate(1, 1, 2), place(2, 2)], 12.0: [place(2, 1)]},
        round_interval=4.0,
        decision_s=2.0,
    )
    assert [(record.task, record.migrations, record.ended) for record in outcome.ended] == [
        (1, 0, 9.0),
        (2, 0, 19.0),
    ]
    assert scheduler.heard.index("10: task 1 ended, after 7") < scheduler.heard.index("10: machine 2 down")


def test_rounds_back_to_back_wait_for_each_other() -> None:
    """Without an interval the next round begins when the last one has landed and something came."""
    _, scheduler = run(
        [machine(1), submission(0.0, 1, {1: 30.0}), submission(1.0, 2, {2: 30.0})],
        {0.0: [place(1, 1)], 2.5: [place(2, 1)]},
        round_interval=0.0,
        decision_s=2.5,
        seconds=6,
    )
    assert scheduler.rounds == [0.0, 2.5, 5.0]


# What no scheduler may do ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decisions", "told"),
    [
        ({0.0: [place(1, 1), place(2, 1), place(3, 1)]}, "no free slot"),
        ({0.0: [place(1, 1)], 1.0: [place(1, 2)]}, "started twice"),
        ({0.0: [place(1, 1)], 1.0: [place(1, 1)]}, "started twice"),
    ],
)
def test_what_no_machine_could_do_is_refused(decisions: dict[float, Sequence[Delta]], told: str) -> None:
    """A slot too many, or a task in two places, stops the run."""
    with pytest.raises(InvariantError, match=told):
        run([machine(1), machine(2), submission(0.0, 1, {1: 9.0, 2: 9.0, 3: 9.0})], decisions)


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("swapped", "places of tasks"),
        ("forgotten", "waiting tasks"),
        ("counted", "were counted"),
        ("crowded", "in 0 slots"),
    ],
)
def test_a_scheduler_whose_tables_are_wrong_is_found_out(lie: str, told: str) -> None:
    """The check finds tasks elsewhere, a waiting task that is gone, a wrong sum, and a full machine."""
    scheduler, world = scheduler_for("trivial", seed=SEED), World(SimulationEvents[HostDue]().put)
    bridge = Bridge(scheduler, world)
    for number in (1, 2):
        up = machine(number, slots=1)
        world.machine_up(up.machine, up.model)
        bridge.send(up, 0.0)
    job = submission(0.0, 1, {1: 50.0, 2: 50.0, 3: 50.0})
    for task in job.tasks:
        world.submit(job.job, task, 0.0)
    bridge.send(job, 0.0)
    bridge.apply_deltas(bridge.decide(0.0).deltas, 0.0)
    check(scheduler, world)

    assert isinstance(scheduler, FlowScheduler)
    tasks, resources = scheduler.state.tasks, scheduler.state.resources
    running = [int(row) for row in tasks.all() if tasks.status[row] == RUNNING]
    (waiting,) = set(tasks.all().tolist()) - set(running)
    machines = [int(tasks.machine[row]) for row in running]
    if lie == "swapped":
        tasks.machine[running] = machines[::-1]
    elif lie == "forgotten":
        tasks.remove(int(tasks.id[waiting]))
    elif lie == "counted":
        resources.running[machines[0]] += 1
    else:
        resources.slots[machines[0]] = 0
    with pytest.raises(InvariantError, match=told):
        check(scheduler, world)


# Rates ----------------------------------------------------------------------------------------------


def test_a_task_gets_on_faster_when_another_leaves() -> None:
    """Two readers of a disk; when the short one has ended, the other goes on at the pace it has alone."""
    model = MACHINE_TYPES["M"]
    both, single = paces_together([IO_READ, IO_READ], model)[0].stretch, pace_alone(IO_READ, model).stretch
    outcome, _ = run(
        [machine(1, model="M"), submission(0.0, 1, {1: 5.0, 2: 12.0}, IO_READ)],
        {0.0: [place(1, 1), place(2, 1)]},
    )
    first, second = outcome.ended
    assert first.ended == pytest.approx(5 * both)
    assert second.ended == pytest.approx(5 * both + 7 * single)
    assert second.normalised == pytest.approx(second.runtime / (12 * single))


def test_counters_are_those_of_the_work() -> None:
    """Instructions follow from the work, cycles from the time on a core."""
    outcome, _ = run([machine(1, model="C"), submission(0.0, 1, {1: 10.0}, CPU_SPIN)], {0.0: [place(1, 1)]})
    (record,) = outcome.ended
    assert record.instructions == pytest.approx(10 * CPU_SPIN.instructions)
    assert record.cycles == pytest.approx(record.runtime * MACHINE_TYPES["C"].clock_hz)
    assert record.report().completed


def test_whoever_comes_and_goes_each_task_does_its_work() -> None:
    """Over hundreds of changes of pace the instructions of each run are those of its work."""
    mix = MixWorkload(thesis_machines(SRG_CLUSTER), SEED, large=False)
    outcome = simulate(SimulationConfig(mix, scheduler_for("queue", seed=SEED), 400))
    rates = {entry.program.name: entry.program.instructions for entry in TABLE_8_2}
    completed = [record for record in outcome.ended if record.completed]
    assert len(completed) > 200
    for record in completed:
        assert record.instructions == pytest.approx(record.work * rates[record.name]), f"seed {SEED}"
        assert record.normalised >= 1 - 1e-9, f"seed {SEED}: faster than the ideal"


def test_the_ideal_is_the_best_machine_there() -> None:
    """Runtimes are normalised by the best machine of the cluster, wherever a task ran (§8.2.1)."""
    outcome, _ = run(
        [machine(1, model="B"), machine(2, model="A"), submission(0.0, 1, {1: 10.0}, CPU_SPIN)],
        {0.0: [place(1, 1)]},
    )
    expected = (
        pace_alone(CPU_SPIN, MACHINE_TYPES["B"]).stretch / pace_alone(CPU_SPIN, MACHINE_TYPES["A"]).stretch
    )
    assert outcome.ended[0].normalised == pytest.approx(expected)


def test_a_knowledge_base_learns_what_a_coordinator_would() -> None:
    """Samples of running tasks and final reports give a profile by machine type (§6.5.3)."""
    knowledge = KnowledgeBase("simulation", 1)
    mix = MixWorkload(thesis_machines(SRG_CLUSTER), SEED, large=False)
    simulate(
        SimulationConfig(mix, scheduler_for("queue", seed=SEED), 200, sample_interval=10, knowledge=knowledge)
    )
    profile = knowledge.profile("cpu_spin", "B")
    assert profile is not None
    scored = profile.score()
    assert scored is not None
    alone_ps = pace_alone(CPU_SPIN, MACHINE_TYPES["B"]).stretch * 1e12 / CPU_SPIN.instructions
    assert scored[1] == pytest.approx(alone_ps, rel=0.1)
    assert profile.finished > 0


# The real scheduler ---------------------------------------------------------------------------------


def failing_google(machines: int) -> ScriptedWorkload:
    """A Google-like workload, some of whose machines go and come back."""
    events: list[Happening] = list(
        GoogleWorkload(GoogleLike(machines, seed=SEED, load=0.7, seconds=300, rate=8.0)).events()
    )
    ups = list(google_machines(machines, SEED))
    for number in range(0, machines, 3):
        events += [MachineDown(40.5 + number, number), ups[number]._replace(time=100.5 + number)]
    return ScriptedWorkload(sorted(events, key=lambda event: event.time))


@pytest.mark.long
@pytest.mark.extended(keep=2)
@pytest.mark.parametrize("model", ["queue", "queue-load", *MODELS])
def test_nothing_is_lost_and_nothing_is_there_twice(model: str) -> None:
    """With machines that go and come, every task ends once or waits or runs; tables and world agree."""
    outcome = simulate(
        SimulationConfig(
            failing_google(12), scheduler_for(model, seed=SEED), 300, round_interval=5, checked=True
        )
    )
    records = [*outcome.ended, *outcome.unfinished]
    assert len(records) == outcome.submitted == len({record.task for record in records})
    assert sum(record.machine_losses for record in records) > 0, f"seed {SEED}: no machine took tasks along"
    assert all(level.running <= level.slots for level in outcome.levels)
    assert sum(record.running for record in outcome.unfinished) == outcome.levels[-1].running
    assert not outcome.faults


@pytest.mark.parametrize("model", ["queue", "random-fit", "quincy"])
def test_a_seed_gives_one_run(model: str) -> None:
    """The same configuration gives the same deltas at the same times; another seed gives others."""

    def deltas(seed: int) -> SimulationOutcome:
        workload = GoogleWorkload(GoogleLike(12, seed=seed, load=0.8, seconds=120, rate=8.0, blocks=True))
        config = SimulationConfig(
            workload, scheduler_for(model, seed=seed), 120, round_interval=5, keep_deltas=True
        )
        return simulate(config)

    first, again, other = deltas(SEED), deltas(SEED), deltas(SEED + 1)
    assert first.deltas == again.deltas
    assert first.digest == again.digest != other.digest
    assert len(first.deltas) == first.placed + first.preempted + first.migrated > 0


def test_real_time_may_be_let_in() -> None:
    """Measured rounds land after they began; nothing is lost or doubled by it."""
    outcome = simulate(
        SimulationConfig(
            failing_google(6),
            scheduler_for("trivial", seed=SEED),
            150,
            round_interval=0,
            measured=True,
            checked=True,
            keep_deltas=True,
        )
    )
    began = {line.at for line in outcome.rounds}
    assert outcome.deltas
    assert not [at for at, _ in outcome.deltas if at in began]
    assert len(outcome.ended) + len(outcome.unfinished) == outcome.submitted


def test_ctrl_c_leaves_what_was_found() -> None:
    """A run that is interrupted says so, and its records are there."""

    def interrupt(at: SimulationProgress) -> None:
        if at.now >= 30:
            raise KeyboardInterrupt

    workload = GoogleWorkload(GoogleLike(5, seed=SEED))
    outcome = simulate(SimulationConfig(workload, scheduler_for("queue"), 3600), interrupt)
    assert outcome.interrupted
    assert outcome.seconds == 30
    assert len(outcome.ended) + len(outcome.unfinished) == outcome.submitted
    assert summarise(outcome).interrupted
