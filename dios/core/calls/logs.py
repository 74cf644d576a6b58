"""The output of ended tasks, stored as objects that outlive the task.

A log is a durable blob. Its name is derived from the task's name, and it is in a group that each principal
has for logs. The node of the task's parent stores a copy. The console of a running task is read directly.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import flows, groups
from dios.core.effects import WriteSource
from dios.core.events import LogLeft
from dios.core.model.accounts import require_all, require_bytes
from dios.core.model.names import log_name, logs_group
from dios.core.model.records import PhysicalObject, Task
from dios.core.model.secrecy import PUBLIC, Label
from dios.core.model.state import State
from dios.core.remote import requests
from dios.core.step import Step
from dios.errors import LimitError
from dios.ids import Name, ObjectId, PayloadId, Principal, TaskId
from dios.wire import dcp
from dios.wire.types import Deletion, ObjectType, Resource

UNKNOWN_JOB: Final = TaskId(0)


def keep_output(step: Step, event: LogLeft) -> None:
    """Store the last bytes of an ended task's console, here and on the node of its parent."""
    task = step.state.tasks.get(event.task)
    if isinstance(task, Task) and event.size and not step.state.shutting_down:
        _store_output(step, task, event.payload, event.size)


def _store_output(step: Step, task: Task, payload: PayloadId, size: int) -> None:
    home = groups.home_of(step, task.principal)
    if home.name is None:
        return
    name, group = log_name(task.name), logs_group(home.name)
    log = make(step, task.principal, task.job, name, group, payload, size, task.secrecy)
    if log is None:
        step.audit(task, "log", "denied", task.object.fingerprint, "no room for its output")
        return
    parent = task.parent
    is_known = not task.secrecy or (
        step.state.cluster is not None and flows.knows_labels(step.state.cluster.peers.get(parent.home))
    )
    if parent.home and is_known:
        body = dcp.KeepOutput(task.principal, name, group, size, task.secrecy)
        source = WriteSource(content_of=log.id, length=size)
        requests.ask(step, parent.home, body, source=source)


def make(
    step: Step,
    principal: Principal,
    job: TaskId,
    name: Name,
    group: Name,
    payload: PayloadId,
    size: int,
    secrecy: Label = PUBLIC,
) -> PhysicalObject | None:
    """Create a log object from the event's bytes. Return None if its principal has no room for it.

    ``job`` is the job that wrote it, or 0 if that is not known. ``secrecy`` is the label of its writer.
    """
    accounts = (step.state.account_of(principal),)
    try:
        require_all(accounts, Resource.OBJECTS, 1)
        require_bytes(accounts, size, volatile=False)
    except LimitError:
        return None
    log = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        ObjectType.DURABLE_BLOB,
        name,
        (group,),
        principal,
        deletion=Deletion.IMMEDIATE,
        accounts=accounts,
        secrecy=secrecy,
    )
    log.version.resize(size)
    log.size = size
    step.state.add_object(log)
    source = WriteSource(payload=payload, length=size)
    step.put(log, source)
    step.emit(effects.ApplyWrite(log.id, source, durable=True))
    remember(step.state, log, job)
    for other in step.state.logs.excess(principal, limits.LOGS_KEPT, limits.LOGS_KEPT_MAX):
        if not other.zombie:
            lifetimes.destroy(step, other)
    return log


def remember(state: State, log: PhysicalObject, job: TaskId = UNKNOWN_JOB) -> None:
    """Append a log to the history from which logs are destroyed; after a restart its job is not known."""
    state.logs.keep(log.owner, job, log)


def is_log(state: State, target: PhysicalObject) -> bool:
    """Return True if an object that was restored from the store is a log."""
    home = state.homes.get(target.owner)
    return (
        home is not None
        and home.name is not None
        and target.type is ObjectType.DURABLE_BLOB
        and target.groups == (logs_group(home.name),)
    )
