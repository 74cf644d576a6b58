"""The node's own rule for runs that wait in its queue, and the progress of the schedulers that attend it.

A node knows its waiting runs and its free resources. A scheduler that leaves a run waiting which the node
could start loses its lease. Without a scheduler the node starts the runs that fit on it: those of the
principal first that holds the least of the node, within the quotas of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from dios import limits
from dios.core.calls import admission, submissions
from dios.core.model.quotas import holdings
from dios.core.model.submission_queue import QueuedRun
from dios.core.remote import node_list
from dios.core.remote.peers import Here
from dios.core.step import Step
from dios.errors import NotSupportedError, WouldBlockError
from dios.ids import Principal
from dios.wire.admission import Holding
from dios.wire.node_labels import satisfies
from dios.wire.types import Brand, Fitness, Resource

_MS: Final = 1_000_000
_REVIEW_NS: Final = 1_000 * _MS
_PRINCIPALS_MAX: Final = 64
"""The principals whose first runs one review looks at."""
_RUNS_MAX: Final = 8
"""The runs of a principal among which the first that this node may start is looked for."""


# -- schedulers without progress ------------------------------------------------------------------------
def review(step: Step) -> bool:
    """Check the progress of the schedulers that attend, at most once a second; return True if that was done.

    Each end of a submission's lease is an occasion.
    """
    table = step.state.queue
    if step.now - table.reviewed < _REVIEW_NS:
        return False
    table.reviewed = step.now
    fitting = [queued for queued in _first_runs(step) if _note_fit(step, queued)]
    if fitting:
        _judge(step, min(fitting, key=lambda queued: queued.fits_since))
    node_list.note_barred(step)
    return True


def _judge(step: Step, oldest: QueuedRun) -> None:
    """Bar the attending schedulers that should have placed a run, and have placed neither it nor others."""
    table, now = step.state.queue, step.now
    kept = _is_kept(step)
    late = [
        scheduler
        for scheduler in table.attending(now)
        if scheduler.is_late(oldest.fits_since, now, kept=kept)
    ]
    if not late:
        return
    for scheduler in late:
        waited_s = (now - max(oldest.fits_since, scheduler.since)) // (1_000 * _MS)
        name = step.require_cluster().name_of(scheduler.node)
        step.audit_node(
            "bar",
            "ok",
            oldest.fingerprint,
            f"the scheduler of {name} placed no run of this node for {waited_s} s, and this run fits here",
        )
    schedulers = table.schedulers
    table.bar(tuple(known.barred(now) if known in late else known for known in schedulers), now)


def _is_kept(step: Step) -> bool:
    """Return True if the room here is kept for a run of this queue that does not fit yet."""
    table, name = step.state.queue, step.require_cluster().here.name
    owners = [owner for owner, node, _ in table.kept_rooms(step.now) if node == name]
    return any(_suits(step, owner) and not _has_room(step, owner) for owner in owners)


# -- the rule ---------------------------------------------------------------------------------------------
def next_run(step: Step) -> QueuedRun | None:
    """Return the run that this node starts next by itself, or None.

    While a scheduler attends, that is a run which has fitted for SCHEDULER_HOLD_MS_MAX and was passed over.
    Without one it is any that reserves resources; all others are placed where the fewest tasks run.
    """
    table = step.state.queue
    is_attended = table.attended(step.now)
    held = holdings(step.state.living_tasks())
    here = step.require_cluster().here
    for queued in sorted(
        _first_runs(step), key=lambda run: _part_of(here, held.get(run.row.task.principal, Holding()))
    ):
        if not _note_fit(step, queued):
            continue
        passed_over_ns = step.now - queued.fits_since
        if is_attended and passed_over_ns < limits.SCHEDULER_HOLD_MS_MAX * _MS:
            continue
        if is_attended and _is_kept(step):
            continue
        if is_attended or queued.call.work.particular:
            return queued
    return None


def _part_of(here: Here, held: Holding) -> float:
    """Return the largest part of a node's resources that a holding is."""
    return max(
        held.tasks / max(here.slots, 1),
        held.cpus_milli / max(here.cpus * 1000, 1),
        held.memory_bytes / max(here.memory_bytes, held.memory_bytes, 1),
    )


def _first_runs(step: Step) -> Iterator[QueuedRun]:
    """Yield for each principal the first of its waiting runs that this node may start."""
    table = step.state.queue
    principals: list[Principal] = list(islice(table.by_principal, _PRINCIPALS_MAX))
    for principal in principals:
        step.spend(1)
        runs = islice(table.waiting_of(principal), _RUNS_MAX)
        first = next((queued for queued in runs if _suits(step, queued)), None)
        if first is not None:
            yield first


def _note_fit(step: Step, queued: QueuedRun) -> bool:
    """Return True if this node has room for a run now, and note since when that is so."""
    fits = _has_room(step, queued)
    queued.fits_since = (queued.fits_since or step.now) if fits else 0
    return fits


def _suits(step: Step, queued: QueuedRun) -> bool:
    """Return True if this node may run a task, as soon as it has room."""
    cluster = step.require_cluster()
    here, call, work = cluster.here, queued.call, queued.call.work
    if call.host not in {"", here.name} or cluster.membership.own.draining:
        return False
    if work.gang or work.affinity or work.job_minimum or work.job_maximum or work.reservation:
        return False
    if work.best_effort:
        return False
    if (call.brand is Brand.PURE or step.state.restricted) and step.state.fitness is not Fitness.FIT:
        return False
    labels = {"node": here.name, "rack": here.rack, **dict(here.labels)}
    if not all(
        satisfies(labels, constraint.key, constraint.operator, constraint.value)
        for constraint in work.constraints
        if constraint.hard
    ):
        return False
    amounts = (
        (work.cpus_milli, here.cpus * 1000),
        (work.memory_bytes, here.memory_bytes),
        (work.disk_io, here.disk_io),
        (work.network, here.network),
    )
    return all(wanted <= most or not most for wanted, most in amounts)


def _has_room(step: Step, queued: QueuedRun) -> bool:
    """Return True if a run fits next to the tasks of this node, within all limits and quotas."""
    task, work = queued.row.task, queued.call.work
    if task.account.left(Resource.TASKS) <= 0:
        return False
    living = sum(1 for _ in step.state.living_tasks())
    step.spend(1 + living // 64)
    if living >= step.require_cluster().here.slots:
        return False
    try:
        submissions.require_fit(step, work, queued.call.brand)
    except (NotSupportedError, WouldBlockError):
        return False
    return not admission.over_quota(step, task.principal, work, scheduled=False)
