"""Runs that wait in the submission queue, and the tasks that the scheduler sees (thesis ch. 6).

The calls of the scheduler are in ``dios.core.calls.scheduling_calls``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core import effects
from dios.core.calls import devices, threads, waiting_starts
from dios.core.model import scheduler_leases
from dios.core.model.records import (
    ChildIdentity,
    FormerEntry,
    HandedReference,
    Holder,
    LocalHolder,
    Pending,
    Task,
)
from dios.core.model.state import State
from dios.core.model.submission_queue import QueuedRun
from dios.core.remote import node_list
from dios.core.remote.peers import Cluster, Here
from dios.core.step import Step
from dios.errors import InvalidError, NotSupportedError, WouldBlockError
from dios.ids import Principal
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.types import Brand, Cause, Fitness, TaskState

_MS: Final = 1_000_000
_MILLI: Final = 1000
PIN: Final = "pin"
"""The word for pinned tasks in the list of what a node can enforce."""


def changed(step: Step) -> None:
    """Note a change of the submission queue, and wake the calls that wait for it."""
    queue = step.state.queue
    queue.version += 1
    if queue.waiters:
        step.woken.update(queue.waiters)


def wait(step: Step, task: Holder, seq: int, call: messages.Run, chosen: ChildIdentity) -> None:
    """Put a run in the submission queue; also again, if the chosen node had no room for it (§6.5.1).

    A run that comes back keeps its lease: the node reviews it, however often a scheduler places it where it
    cannot start.
    """
    entry = chosen.entry or FormerEntry(step.now)
    row = _row(step, task, seq, call, entry.lease)
    step.wait(row)
    chosen = replace(chosen, entry=None)
    queued = QueuedRun(row, call, chosen, fingerprint(chosen.name), entry.since, fits_since=entry.fits_since)
    step.state.queue.put(queued)
    changed(step)


def note_started(step: Step, chosen: ChildIdentity) -> None:
    """Note that a run has started, which is progress of the scheduler that placed it."""
    if chosen.placed_by is not None:
        table = step.state.queue
        table.schedulers = scheduler_leases.progressed(table.schedulers, chosen.placed_by, step.now)


def near_inputs(call: messages.Run, inputs: Iterable[HandedReference]) -> messages.Run:
    """Return a run call whose work names the nodes that have its inputs, with their bytes there (§6.3.1).

    The call stays as it is if the caller named nodes, or if the inputs are so small that any node will do.
    """
    if call.work.near:
        return call
    sizes = Counter[str]()
    for given in inputs:
        name, _ = given.object.place
        sizes[name] += given.object.size
    if sizes.total() < limits.NEAR_BYTES_MIN:
        return call
    largest = sizes.most_common(limits.WORK_NEAR_MAX)
    near = tuple(messages.Near(name, size) for name, size in largest if name and size)
    return replace(call, work=replace(call.work, near=near))


def wait_on(step: Step, queued: QueuedRun) -> None:
    """Give a submission another lease, because the node still has a scheduler."""
    former, queued.row = queued.row, _row(step, queued.row.task, queued.row.seq, queued.call)
    step.state.pending.remove(former)
    step.wait(queued.row)


def _row(step: Step, task: Holder, seq: int, call: messages.Run, lease: int | None = None) -> Pending:
    if lease is None:
        lease = max(step.state.queue.attended_until, step.now + limits.QUEUE_LEASE_MS * _MS)
    return Pending(task, seq, call, {}, lease)


def needs(work: messages.Work) -> messages.Work:
    """Return the needs of a task without the parts that restrict its place."""
    return replace(work, near=(), constraints=(), threads=())


def require_sound(work: messages.Work) -> None:
    """Raise InvalidError if the needs of a run contradict each other."""
    if work.pinned and (not work.cpus_milli or work.cpus_milli % _MILLI):
        raise InvalidError(
            f"cannot pin the task: it needs whole processors, and cpus is {work.cpus_milli / _MILLI:g}. "
            "Give 1, 2 or more."
        )
    if work.grace_ms and not work.restartable:
        raise InvalidError("a task has time to leave its node only if it is restartable")
    if work.best_effort and (work.pinned or work.gang or work.devices):
        raise InvalidError(
            "a best-effort task is not pinned, in no gang and without devices: nothing is reserved for it"
        )
    if (work.job_minimum or work.job_maximum) and not work.job:
        raise InvalidError("the least and the most running tasks are bounds of a job; name the job, too")
    if work.job_maximum and work.job_maximum < max(work.job_minimum, work.gang):
        raise InvalidError(
            f"a job cannot run at most {work.job_maximum} tasks and at least "
            f"{max(work.job_minimum, work.gang)}; give a larger maximum"
        )
    if work.best_effort and work.job_minimum:
        raise InvalidError("nobody makes room for a best-effort task, so its job has no minimum")
    if len({request.kind for request in work.devices}) < len(work.devices):
        raise InvalidError("a kind of devices is named twice; give one number for each kind")


def _named(cluster: Cluster | None) -> str:
    return "this node" if cluster is None else f"node {cluster.here.name}"


def require_fit(step: Step, work: messages.Work, brand: Brand, *, scheduled: bool = False) -> None:
    """Raise WouldBlockError if this run's reservation and those of the living tasks exceed the machine.

    Raise NotSupportedError if the task is pure, is to be pinned, or needs a device, and this node cannot do
    that. While a node does not know if it can run pure tasks, the host lets them wait. With ``scheduled``,
    the scheduler chose the node, and will choose another one.
    """
    require_sound(work)
    cluster = step.state.cluster
    if brand is Brand.PURE and step.state.fitness is Fitness.UNFIT:
        refusal = WouldBlockError if scheduled else NotSupportedError
        raise refusal(f"{_named(cluster)} cannot run pure tasks: {step.state.why_not_fit}")
    if cluster is None and work.devices:
        raise NotSupportedError(
            "this node is in no cluster, so it has no devices; `dios-node init` creates one"
        )
    if cluster is None or not work.reserves:
        return
    here = cluster.here
    why = dict(here.enforcement).get(PIN, "" if here.processors else "its processors are not known")
    if work.pinned and why:
        raise NotSupportedError(f"node {here.name} cannot pin a task to processors: {why}")
    devices.require_devices(step.state, here, work, brand)
    others = [
        task.recipe.work
        for task in step.state.living_tasks()
        if task.recipe and not task.recipe.work.best_effort
    ]
    for wanted, reserved, most, amount in (
        (work.cpus_milli, (other.cpus_milli for other in others), here.cpus * _MILLI, _processors),
        (
            work.memory_bytes,
            (other.memory_bytes for other in others),
            here.memory_bytes,
            "{} B of memory".format,
        ),
        (work.disk_io, (other.disk_io for other in others), here.disk_io, "{} B/s of its disk".format),
        (work.network, (other.network for other in others), here.network, "{} B/s of its network".format),
    ):
        total = wanted + sum(reserved)
        if wanted and most and total > most:
            raise WouldBlockError(
                f"node {here.name} has {amount(most)}; with this task {amount(total)} would be reserved"
            )


def share_of(step: Step, work: messages.Work) -> effects.TaskShare:
    """Return the part of the machine for a task that starts now, with the processors on which alone it runs.

    A processor that a living task is pinned to is given to no other one. A task that is not pinned has
    processors only if the scheduler named some, and shares them with others.
    """
    cluster = step.state.cluster
    if cluster is None or not (work.reserves or work.best_effort or work.threads):
        return effects.NO_SHARE
    here = cluster.here
    return effects.TaskShare(
        work.cpus_milli,
        here.cpus * _MILLI,
        0 if work.best_effort else work.disk_io,
        here.disk_io,
        _chosen_processors(step, here, work),
        work.best_effort,
        0 if work.best_effort else work.network,
    )


def _chosen_processors(step: Step, here: Here, work: messages.Work) -> tuple[int, ...]:
    count = work.processors or (0 if dict(here.enforcement).get(PIN) else len(work.threads))
    if not count:
        return ()
    taken = {
        processor
        for task in step.state.living_tasks()
        if task.recipe is not None and task.recipe.work.pinned
        for processor in task.processors
    }
    free = [processor for processor in here.processors if processor not in taken]
    return threads.choose_threads(here.threads or threads.flat(here.processors), free, count, work.threads)


def _processors(milli: int) -> str:
    return f"{milli / _MILLI:g} processors"


def task_rows(step: Step, principal: Principal) -> tuple[messages.TaskRow, ...]:
    """Return the tasks and the waiting runs of a principal, as `dios ps` shows them; at most a bound.

    Runs wait in a queue, or for another node that starts them and does not list them before.
    """
    state = step.state
    rows = [
        task.row(state.place)
        for task in state.tasks.values()
        if task.principal == principal and isinstance(task, Task)
    ]
    rows += islice(_waiting_rows(state, principal), limits.TASK_ROWS_MAX)
    rows += islice(waiting_starts.waiting_rows(state, principal), limits.TASK_ROWS_MAX)
    rows += islice(waiting_starts.starting_rows(state, principal), limits.TASK_ROWS_MAX)
    step.spend((len(state.tasks) + len(state.starts.starting) + len(rows)) // 16)
    return tuple(rows[: limits.TASK_ROWS_MAX])


def _waiting_rows(state: State, principal: Principal) -> Iterator[messages.TaskRow]:
    cluster = state.cluster
    barred = () if cluster is None else cluster.membership.own.barred
    names = [] if cluster is None else [cluster.name_of(node) for node in barred]
    why = f"; barred, because it placed no run: the scheduler of {', '.join(names)}" if names else ""
    return (
        messages.TaskRow(
            None,
            queued.fingerprint,
            queued.call.label,
            TaskState.WAITING,
            queued.call.brand,
            principal,
            0,
            queued.since,
            0,
            Cause.NONE,
            0,
            0,
            f"place {place} of {state.queue.count_of(principal)} in the submission queue{why}",
            queued.row.task.object.fingerprint,
            state.place,
            secrecy=queued.row.task.secrecy,
        )
        for place, queued in enumerate(state.queue.waiting_of(principal), 1)
    )


def note_end(step: Step, task: LocalHolder) -> None:
    """Record the end of a task of this node and its usage for the scheduler."""
    if isinstance(task, Task):
        step.state.queue.note_end(occupant(task, step.now))
        if task.id == step.state.queue.coordinator:
            node_list.note_coordinator(step)
        changed(step)


def note_task(step: Step, task: Task) -> None:
    """Record for the scheduler that a task of this node began, or that its process runs."""
    step.state.queue.note_task(task.id)
    changed(step)


def occupant(task: Task, now: int) -> messages.Occupant:
    """Return a task as the submission queue shows it."""
    recipe = task.recipe
    until = task.ended_ns or now
    return messages.Occupant(
        task.id,
        task.object.fingerprint,
        task.label[: limits.QUEUE_LABEL_CHARS_MAX],
        task.principal,
        task.state,
        task.pid,
        max(0, until - task.started_ns) // _MS,
        messages.Work() if recipe is None else needs(recipe.work),
        task.cpu_ms,
        task.memory_bytes,
        task.cause is Cause.EXITED and task.exit_code == 0,
        bool(task.leave_ns),
        tuple(messages.Device(device.kind, device.name) for device in task.devices),
        task.processors,
        task.progress,
        task.secrecy,
    )
