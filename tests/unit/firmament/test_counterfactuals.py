"""Changes that an explanation calls sufficient are made in the real state, and real rounds start the task."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dios.firmament.cluster.columns import ABSENT, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    JobDescriptor,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.explain.amounts import STEPS, in_steps
from dios.firmament.explain.counterfactuals import CounterfactualSearch
from dios.firmament.explain.explanation import Counterfactual, CounterfactualKind, Explanation
from dios.firmament.models.catalogue import MODELS, make
from dios.firmament.models.protocol import Options
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.models.spread import SpreadModel
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.policies.room_in_time import known_ends
from dios.firmament.policies.stored_shares import RESOURCES
from dios.firmament.rounds.model_guard import ModelError
from dios.firmament.scheduler import FlowScheduler
from dios.limits import EXPLAIN_ROUNDS
from dios.wire.types import Affinity

GIB = 2.0**30
STATES = 500
CHUNKS = 100
LEAST_S = 1e-9
"""A time in which no change is tried, but rounds are played."""


def build(seed: int) -> FlowScheduler:
    """Return a crowded small cluster after some rounds; equal seeds give equal clusters."""
    chance = random.Random(seed)  # noqa: S311 - a seed, not a secret
    model = list(MODELS)[seed % len(MODELS)]
    ledger = PrincipalAccounts(wall=1.0) if chance.random() < 0.9 else None
    scheduler = FlowScheduler(make(model), ledger=ledger)
    count = chance.randint(2, 4)
    for number in range(count):
        size = Resources(chance.choice((1, 2, 4)), chance.choice((2, 4, 8)) * GIB)
        labels = (("gpu", "yes"),) if chance.random() < 0.4 else ()
        name, rack = f"n{number}", f"r{number % 2}"
        scheduler.add_machine(
            MachineDescriptor(number, name, rack, size, chance.randint(1, 6), labels=labels), 0.0
        )
    number, running = 0, []
    for now in range(chance.randint(2, 5)):
        for _ in range(chance.randint(1, 3)):
            number = _submit(scheduler, chance, number, float(now), count)
        running = [task for delta in scheduler.round(float(now)).deltas for task in [delta.task]]
        if running and chance.random() < 0.3:
            _end_or_refuse(scheduler, chance, chance.choice(running), now + 0.5)
        if ledger is not None and chance.random() < 0.2:
            quota = {chance.choice(("tasks", "cpus")): float(chance.randint(1, 3))}
            ledger.set_terms(scheduler.state, chance.choice("ab"), None, dict(quota))
    if chance.random() < 0.2:
        scheduler.drain(chance.randrange(count), drained=True)
    return scheduler


def _end_or_refuse(scheduler: FlowScheduler, chance: random.Random, task: int, now: float) -> None:
    if not scheduler.is_running(task):
        return
    if chance.random() < 0.5:
        scheduler.finished(task, now)
    else:
        scheduler.rejected(task, now)


def _submit(scheduler: FlowScheduler, chance: random.Random, number: int, now: float, machines: int) -> int:
    tasks = chance.choice((1, 1, 1, 2, 3))
    gang = tasks if chance.random() < 0.25 and tasks > 1 else 0
    bound = 1 if not gang and chance.random() < 0.1 else None
    affinity = chance.choice((Affinity.NONE,) * 5 + (Affinity.SPREAD_NODES, Affinity.SAME_NODE))
    job = JobDescriptor(
        1000 + number,
        chance.choice("ab"),
        f"job {number}",
        gang=gang,
        maximum_running=bound,
        affinity=affinity,
    )
    described = []
    for task in range(number, number + tasks):
        demand = Resources(chance.choice((0.5, 1, 1, 2, 3)), chance.choice((0, 0.5, 1, 3)) * GIB)
        described.append(
            TaskDescriptor(
                task,
                demand,
                priority=chance.choice((0, 0, 0, 1)),
                constraints=(Constraint("gpu", value="yes"),) if chance.random() < 0.2 else (),
                pinned=chance.randrange(machines) if chance.random() < 0.1 else None,
                restartable=chance.random() < 0.5,
                expected_runtime=chance.choice((None, 10.0, 30.0)),
            )
        )
    try:
        scheduler.submit(job, described, now)
    except BadDescriptorError:
        return number  # a gang larger than the cluster is refused
    return number + tasks


def starts(scheduler: FlowScheduler, task: int, now: float | None = None) -> bool:
    """Play real rounds; return True if the task starts in one of them."""
    at = scheduler.state.now if now is None else now
    return any(scheduler.round(at).stands and scheduler.is_running(task) for _ in range(EXPLAIN_ROUNDS))


def waiting(scheduler: FlowScheduler) -> list[int]:
    """Return the tasks that wait."""
    return sorted(scheduler.waiting())


def group_of(scheduler: FlowScheduler, task: int) -> list[TaskDescriptor]:
    """Return the tasks that start together with a task."""
    job, described = scheduler.described(task)
    if not job.gang:
        return [described]
    together = [scheduler.described(other) for other in waiting(scheduler)]
    return [descriptor for owner, descriptor in together if owner.job == job.job]


def redescribe(
    scheduler: FlowScheduler, task: int, changed: Callable[[TaskDescriptor], TaskDescriptor]
) -> None:
    """Change the descriptions of a task and its gang."""
    for descriptor in group_of(scheduler, task):
        scheduler.redescribe(changed(descriptor))


def end_on(scheduler: FlowScheduler, machine: int | None, count: int) -> float:
    """End the next tasks on a machine, or on all; return the time of the last known end."""
    state = scheduler.state
    table = state.tasks
    rows = np.flatnonzero(table.alive & (table.status == RUNNING))
    if machine is not None:
        rows = rows[table.machine[rows] == state.machine_row(machine)]
    ends = known_ends(state, rows, Runtimes(float("nan")))
    order = [at for at in np.lexsort((table.id[rows], ends)).tolist() if not np.isnan(ends[at])][:count]
    at = float(ends[order[-1]])
    for task in table.id[rows[order]].tolist():
        scheduler.finished(task, at)
    return at


def withdraw(scheduler: FlowScheduler, tasks: list[int]) -> None:
    """Withdraw waiting tasks."""
    for task in tasks:
        scheduler.finished(task, scheduler.state.now)


def make_change(scheduler: FlowScheduler, task: int, change: Counterfactual) -> float | None:
    """Make a change in a real scheduler; return the time of its rounds, or None for the present."""
    job, _ = scheduler.described(task)
    if change.also is not None:
        make_change(scheduler, task, replace(change, kind=change.also, value=change.also_value, also=None))
    match change.kind:
        case CounterfactualKind.DEMAND:
            most = Resources(*[math.inf] * len(Resources._fields))._replace(**change.amounts)
            redescribe(
                scheduler,
                task,
                lambda descriptor: replace(descriptor, demand=Resources(*map(min, descriptor.demand, most))),
            )
        case CounterfactualKind.CONSTRAINT:
            redescribe(
                scheduler,
                task,
                lambda descriptor: replace(
                    descriptor,
                    constraints=tuple(kept for kept in descriptor.constraints if kept.key != change.value),
                ),
            )
        case CounterfactualKind.PIN:
            redescribe(scheduler, task, lambda descriptor: replace(descriptor, pinned=None))
        case CounterfactualKind.AFFINITY:
            scheduler.redescribe_job(replace(job, affinity=Affinity.NONE))
        case CounterfactualKind.GANG:
            scheduler.redescribe_job(replace(job, gang=int(change.value)))
        case CounterfactualKind.SERIES:
            scheduler.set_bounds(job.job, job.minimum_running, None)
        case CounterfactualKind.END:
            return end_on(scheduler, change.freed, change.ended)
        case CounterfactualKind.QUOTA:
            assert scheduler.ledger is not None
            scheduler.ledger.set_terms(scheduler.state, job.principal, None, dict.fromkeys(RESOURCES))
        case CounterfactualKind.KEPT_ROOM | CounterfactualKind.TURN | CounterfactualKind.OWN_TASKS:
            withdraw(scheduler, others_of(scheduler, task, change.kind))
    return None


def others_of(scheduler: FlowScheduler, task: int, kind: CounterfactualKind) -> list[int]:
    """Return the waiting tasks that a kind of change withdraws."""
    own = {descriptor.task for descriptor in group_of(scheduler, task)}
    principal = scheduler.described(task)[0].principal
    there = scheduler.waiting()
    several = {
        CounterfactualKind.KEPT_ROOM: [other for other in scheduler.reservations.present if other in there],
        CounterfactualKind.TURN: [other for other, who in there.items() if who != principal],
        CounterfactualKind.OWN_TASKS: [other for other, who in there.items() if who == principal],
    }
    return [other for other in several[kind] if other not in own and other in there]


def smaller_changes(scheduler: FlowScheduler, task: int, change: Counterfactual) -> list[Counterfactual]:
    """Return the changes that are one step smaller."""
    demand = scheduler.described(task)[1].demand
    smaller = []
    for name, amount in change.amounts.items():
        more = in_steps(name, amount + getattr(STEPS, name))
        if more < getattr(demand, name):
            smaller.append(replace(change, amounts={**change.amounts, name: more}))
    if change.kind is CounterfactualKind.GANG and int(change.value) + 1 < scheduler.described(task)[0].gang:
        smaller.append(replace(change, value=str(int(change.value) + 1)))
    if change.ended > 1:
        smaller.append(replace(change, ended=change.ended - 1))
    return smaller


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.extended(keep=2)
def test_sufficient_changes_start_the_task_and_smaller_ones_do_not(chunk: int) -> None:
    """In 500 states, each change that is called sufficient is; a step less, or no change, is not."""
    for seed in range(chunk, STATES, CHUNKS):
        scheduler = build(seed)
        for task in waiting(scheduler)[-1:]:
            told = scheduler.explain(task)
            at = f"seed {seed}, task {task}, model {told.model}"
            soon = " places it on " in told.reason
            assert starts(build(seed), task) is soon, f"{at}: {told.reason}"
            assert not (soon and told.counterfactuals), at
            assert told.counterfactuals or told.unsolved or soon, at
            for change in told.counterfactuals:
                changed = build(seed)
                when = make_change(changed, task, change)
                assert starts(changed, task, when), f"{at}: {change}"
                for smaller in smaller_changes(scheduler, task, change):
                    changed = build(seed)
                    when = make_change(changed, task, smaller)
                    assert not starts(changed, task, when), (
                        f"{at}: {smaller} is enough, so {change} is not least"
                    )


def is_excluded(scheduler: FlowScheduler, task: int, row: int, reason: str) -> bool:
    """Return True if a machine, as resource row, cannot be used by a task for the stated reason."""
    state = scheduler.state
    tree = state.resources
    job, described = scheduler.described(task)
    demand = np.array(described.demand)
    mine = [
        int(state.tasks.machine[other])
        for other in state.tasks.all().tolist()
        if state.tasks.status[other] == RUNNING and state.jobs.id[state.tasks.job[other]] == job.job
    ]
    if reason.startswith("the task is pinned"):
        return state.machine_ids[row] != described.pinned
    if reason.startswith("lack gpu"):
        return tree.labels[row].get("gpu") != "yes"
    if reason.startswith("too small"):
        return bool(((tree.capacity[row] > 0) & (tree.capacity[row] < demand)).any())
    if reason.startswith("drained"):
        return not tree.usable[row]
    if reason.startswith("the job runs there already"):
        return row in mine
    if reason.startswith("not the machine on which"):
        return row not in mine
    if reason.startswith("not enough free"):
        return bool((state.available(np.array([row]))[0] < demand).any())
    if reason.startswith("room is kept"):
        spare = scheduler.reservations.spare[row]
        return bool(spare[0] < 1 or (spare[1:] < demand).any())
    return reason in {"refused the task a short while ago", "the cost model offers no way there"}


def wanted_by(scheduler: FlowScheduler, task: int) -> Floats:
    """Return what a task and its gang demand together, with their number."""
    total: Floats = np.array([(1.0, *descriptor.demand) for descriptor in group_of(scheduler, task)]).sum(
        axis=0
    )
    return total


def holds(scheduler: FlowScheduler, task: int, told: Explanation) -> bool:
    """Return True if the reason of a task that waits agrees with the state."""
    job = scheduler.described(task)[0]
    others = [who for other, who in scheduler.waiting().items() if other != task]
    reason = told.reason
    if reason.startswith("no machine can take it"):
        everywhere = sum(exclusion.machines for exclusion in told.excluded) == told.total_machines
        return everywhere and (" now" in reason) == any(exclusion.passes for exclusion in told.excluded)
    if reason.startswith("its principal may hold no more"):
        state, ledger = scheduler.state, scheduler.ledger
        assert ledger is not None
        number = state.principal(job.principal)
        wanted = state.held[number] + wanted_by(scheduler, task)
        if "of its waiting tasks come" in reason:
            return job.principal in others
        return bool((wanted > ledger.quota()[number] + 1e-9).any())
    if reason.startswith("it is not its turn"):
        return any(who != job.principal for who in others)
    if reason.startswith("it is next"):
        rows = scheduler.state.resources.at(Level.MACHINE)
        usable = rows[scheduler.state.resources.usable[rows]]
        free = scheduler.state.available(usable).clip(min=0).sum(axis=0)
        wanted = wanted_by(scheduler, task)
        slots = scheduler.state.resources.slots[usable] - scheduler.state.resources.running[usable]
        # Tasks that were admitted before it take a part of what is free.
        return bool(others) or bool((wanted[1:] > free).any()) or wanted[0] > int(slots.sum())
    if reason.startswith("tasks of its principal come before it"):
        return job.principal in others
    if "gang" in reason:
        return job.gang > 0
    if "series" in reason:
        return job.maximum_running is not None
    return told.cost is not None and bool(told.places)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.extended(keep=5)
def test_reasons_hold_in_the_state(chunk: int) -> None:
    """In 500 states, each reason against a machine and each reason to wait is true after the next rounds."""
    for seed in range(chunk, STATES, CHUNKS):
        scheduler = build(seed)
        told = {task: scheduler.explain(task, budget_s=LEAST_S) for task in waiting(scheduler)[-3:]}
        for _ in range(EXPLAIN_ROUNDS):
            scheduler.round(scheduler.state.now)
        rows = {scheduler.state.resources.names[row]: row for row in scheduler.state.machine_ids}
        for task, explanation in told.items():
            if " places it on " in explanation.reason:
                continue
            at = f"seed {seed}, task {task}, model {explanation.model}"
            assert holds(scheduler, task, explanation), f"{at}: {explanation.reason}"
            for excluded in explanation.excluded:
                for name in excluded.names:
                    assert is_excluded(scheduler, task, rows[name], excluded.reason), (
                        f"{at}: {name}: {excluded}"
                    )


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.extended(keep=5)
def test_a_reason_that_does_not_pass_holds_in_an_empty_cluster(chunk: int) -> None:
    """If no machine can take a task, and not only now, it does not start when all other tasks are gone."""
    for seed in range(chunk, STATES, CHUNKS):
        scheduler = build(seed)
        for task in waiting(scheduler)[-3:]:
            told = scheduler.explain(task, budget_s=LEAST_S)
            if told.reason.startswith("no machine can take it") and " now" not in told.reason:
                empty = build(seed)
                rows = empty.state.tasks.all()
                withdraw(empty, [other for other in empty.state.tasks.id[rows].tolist() if other != task])
                assert not starts(empty, task), f"seed {seed}, task {task}: {told.reason}"


@pytest.mark.long
def test_explaining_leaves_no_trace() -> None:
    """Each task of a crowd is explained, and then the rounds decide as if nothing had been asked."""
    for seed in range(3):
        asked, plain = build(seed), build(seed)
        for task in waiting(asked):
            asked.explain(task)
            asked.explain(task, budget_s=0.0)
        for now in (10.0, 11.0, 12.0):
            assert asked.round(now).deltas == plain.round(now).deltas, f"seed {seed}"


def test_time_that_is_used_up_is_said_and_nothing_is_guessed() -> None:
    """Without time there is no change, and a sentence says that none was tried."""
    scheduler = build(0)
    told = scheduler.explain(waiting(scheduler)[-1], budget_s=LEAST_S)
    assert told.counterfactuals == []
    assert "further changes were not tried" in told.unsolved


def small(*sizes: tuple[float, float], ledger: bool = True) -> FlowScheduler:
    """Return a scheduler with a machine for each size: processors, and GiB of memory."""
    scheduler = FlowScheduler(make("spread"), ledger=PrincipalAccounts(wall=1.0) if ledger else None)
    for number, (cpus, memory) in enumerate(sizes):
        machine = MachineDescriptor(number, f"n{number}", "r", Resources(cpus, memory * GIB), 8)
        scheduler.add_machine(machine, 0.0)
    return scheduler


def kinds(told: Explanation) -> list[CounterfactualKind]:
    """Return the kinds of sufficient changes, in order."""
    return [counterfactual.kind for counterfactual in told.counterfactuals]


def test_two_amounts_are_named_when_none_alone_is_sufficient() -> None:
    """A task too large in two resources gets the pair that is the smallest change, on one machine."""
    scheduler = small((2, 64), (8, 4), (4, 16))
    scheduler.submit(JobDescriptor(1, "a"), [TaskDescriptor(1, Resources(16, 128 * GIB))], 0.0)
    (change,) = scheduler.explain(1).counterfactuals
    assert change.amounts == {"cpus": 2, "memory": 64 * GIB}
    assert change.least


def test_the_smallest_change_comes_first() -> None:
    """Of one resource the largest amount that starts is named; changes of the run are before others."""
    scheduler = small((4, 8), (2, 8))
    held = TaskDescriptor(1, Resources(1.5), restartable=False, expected_runtime=100.0)
    scheduler.submit(JobDescriptor(1, "a"), [held, replace(held, task=2)], 0.0)
    scheduler.round(0.0)
    scheduler.submit(JobDescriptor(2, "a"), [TaskDescriptor(3, Resources(4, GIB))], 1.0)
    scheduler.round(1.0)
    told = scheduler.explain(3)
    assert kinds(told)[:2] == [CounterfactualKind.DEMAND, CounterfactualKind.END]
    free = max(machine.free["cpus"] or 0 for machine in told.free)
    assert told.counterfactuals[0].amounts == {"cpus": free}
    assert told.counterfactuals[1].size == pytest.approx(99.0)
    assert told.free[0].free["cpus"] == free


def test_a_task_of_a_long_queue_is_explained_where_it_waits() -> None:
    """Outside the tables, too, a change starts a task only if the tasks before it do not."""
    scheduler = small((2, 8))
    many = [TaskDescriptor(number, Resources(2), restartable=False) for number in range(200)]
    scheduler.submit(JobDescriptor(1, "a"), many, 0.0)
    scheduler.round(0.0)
    told = scheduler.explain(199)
    assert told.before
    assert CounterfactualKind.OWN_TASKS not in kinds(told)
    assert CounterfactualKind.DEMAND not in kinds(told)


def test_a_constraint_and_an_amount_are_tried_together() -> None:
    """A task that is too large and finds no label gets both changes, when neither alone is sufficient."""
    scheduler = small((2, 8))
    gpu = (Constraint("gpu", value="yes"),)
    scheduler.submit(JobDescriptor(1, "a"), [TaskDescriptor(1, Resources(4), constraints=gpu)], 0.0)
    (change,) = scheduler.explain(1).counterfactuals
    assert (change.kind, change.amounts) == (CounterfactualKind.DEMAND, {"cpus": 2})
    assert (change.also, change.also_value) == (CounterfactualKind.CONSTRAINT, "gpu")


def test_smaller_needs_raise_no_member_of_a_gang() -> None:
    """The amount of a gang is the most that each task may need; one that needs less stays as it is."""
    scheduler = small((3, 8))
    tasks = [TaskDescriptor(1, Resources(3)), TaskDescriptor(2, Resources(1))]
    scheduler.submit(JobDescriptor(1, "a", gang=2), tasks, 0.0)
    change = scheduler.explain(1).counterfactuals[0]
    assert (change.amounts, change.least) == ({"cpus": 2}, True)
    assert "at most 2 CPUs instead of 3 for each task of its gang" in change.text


class Uncopied(SpreadModel):
    """A model that has no second state, as one in another process."""

    def __deepcopy__(self, memo: dict[int, object]) -> Uncopied:
        """Refuse."""
        raise ModelError("it has no second state")


def test_a_model_without_a_second_state_is_explained_without_changes() -> None:
    """The reason and the excluded machines are there, and a sentence says why no change was tried."""
    scheduler = FlowScheduler(Uncopied(), ledger=PrincipalAccounts(wall=1.0))
    scheduler.add_machine(MachineDescriptor(0, "n0", "r", Resources(2, GIB), 2), 0.0)
    scheduler.submit(JobDescriptor(1, "a"), [TaskDescriptor(1, Resources(4))], 0.0)
    scheduler.round(0.0)
    told = scheduler.explain(1)
    assert "too small" in told.reason
    assert told.counterfactuals == []
    assert told.unsolved == "no changes were tried: it has no second state"
    unpaid = scheduler.explain(1, budget_s=0.0)
    assert unpaid.unsolved == "no changes were tried: explanations have used up their time"
    assert unpaid.reason == told.reason


class Failing(SpreadModel):
    """A model that fails in some states."""

    def __init__(self, fails: Callable[[ClusterState], bool]) -> None:
        super().__init__()
        self._fails = fails

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Fail, or offer the machines."""
        if self._fails(state):
            raise ModelError("it fails in this state")
        return super().task_options(state, tasks)


def slots_of(state: ClusterState) -> int:
    """Return the number of slots of the cluster."""
    return int(state.resources.slots[state.resources.at(Level.MACHINE)].sum())


def slot_short(model: SpreadModel, *constraints: Constraint) -> FlowScheduler:
    """Return a scheduler whose only machine has its two slots in use, and whose task 3 waits for one."""
    scheduler = FlowScheduler(model)
    scheduler.add_machine(MachineDescriptor(0, "n0", "r", Resources(8, GIB), 2), 0.0)
    for task in (1, 2, 3):
        described = TaskDescriptor(task, Resources(1), restartable=False)
        if task == 3:
            described = replace(described, constraints=constraints)
        scheduler.submit(JobDescriptor(task), [described], 0.0)
        scheduler.round(0.0)
    return scheduler


def test_a_sufficient_slot_is_no_failure_of_all_changes() -> None:
    """No sentence says that nothing would start a task which one more slot starts."""
    told = slot_short(SpreadModel()).explain(3)
    assert [remedy.machine for remedy in told.enough if remedy.kind == "slot"] == [0]
    assert told.counterfactuals == []
    assert told.unsolved == ""


def test_a_slot_that_was_not_tried_is_unknown() -> None:
    """If the round with the slot fails, or there is no time for it, a sentence says so."""
    scheduler = slot_short(Failing(lambda state: slots_of(state) > 2))
    told = scheduler.explain(3)
    assert [remedy.machine for remedy in told.enough if remedy.kind == "slot"] == []
    assert told.unsolved.startswith("further changes were not tried: a round failed: ")
    search = CounterfactualSearch(scheduler, 3, 0.0)
    assert not search.starts_with_slot(0)
    assert search.remark == "further changes were not tried: the 0 s for that are used up"


def test_a_failed_round_leaves_no_rule_lifted() -> None:
    """After a round failed that was without a constraint, the constraint holds for the next trial."""

    def fails(state: ClusterState) -> bool:
        described = state.tasks.descriptors[state.tasks.row(3)] if state.tasks.find(3) != ABSENT else None
        return described is not None and described.demand.cpus < 1 and not described.constraints

    scheduler = slot_short(Failing(fails), Constraint("gpu", value="yes"))
    search = CounterfactualSearch(scheduler, 3, float("inf"))
    assert search.solve() == []
    assert not search.starts_with_slot(0)


def test_without_time_no_slot_is_called_sufficient() -> None:
    """A slot that was not tried in rounds is not named; of a running task no changes are tried."""
    scheduler = slot_short(Uncopied())
    told = scheduler.explain(3, budget_s=0.0)
    assert [remedy for remedy in told.enough if remedy.machine is not None] == []
    assert told.unsolved == "no changes were tried: explanations have used up their time"
    assert scheduler.explain(1, budget_s=0.0).unsolved == ""
