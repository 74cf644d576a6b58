"""Changes that an explanation calls sufficient are made in the real state, and real rounds start the task."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dios.firmament.cluster.state import RUNNING
from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.explain.amounts import STEPS, in_steps
from dios.firmament.explain.explanation import Counterfactual, CounterfactualKind
from dios.firmament.models.catalogue import MODELS, make
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.policies.room_in_time import known_ends
from dios.firmament.policies.stored_shares import RESOURCES
from dios.firmament.scheduler import FlowScheduler
from dios.limits import EXPLAIN_ROUNDS
from dios.wire.types import Affinity

GIB = 2.0**30
STATES = 500
CHUNKS = 100


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
    return [one for owner, one in together if owner.job == job.job]


def redescribe(
    scheduler: FlowScheduler, task: int, changed: Callable[[TaskDescriptor], TaskDescriptor]
) -> None:
    """Change the descriptions of a task and its gang."""
    for one in group_of(scheduler, task):
        scheduler.redescribe(changed(one))


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
    match change.kind:
        case CounterfactualKind.DEMAND:
            redescribe(
                scheduler, task, lambda one: replace(one, demand=one.demand._replace(**change.amounts))
            )
        case CounterfactualKind.CONSTRAINT:
            redescribe(
                scheduler,
                task,
                lambda one: replace(
                    one, constraints=tuple(kept for kept in one.constraints if kept.key != change.value)
                ),
            )
        case CounterfactualKind.PIN:
            redescribe(scheduler, task, lambda one: replace(one, pinned=None))
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
    own = {one.task for one in group_of(scheduler, task)}
    principal = scheduler.described(task)[0].principal
    there = scheduler.waiting()
    several = {
        CounterfactualKind.KEPT_ROOM: [one for one in scheduler.reservations.present if one in there],
        CounterfactualKind.TURN: [one for one, who in there.items() if who != principal],
        CounterfactualKind.OWN_TASKS: [one for one, who in there.items() if who == principal],
    }
    return [one for one in several[kind] if one not in own]


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
