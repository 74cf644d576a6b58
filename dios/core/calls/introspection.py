"""Calls that show tasks and the node, and the call that stops the node.

Use and limits of resources are in ``dios.core.calls.limit_calls``.
"""

from __future__ import annotations

from typing import Final

from dios.core import effects, lifetimes
from dios.core.calls import delegation, devices, flows, rights, submissions
from dios.core.calls.handlers import handles
from dios.core.calls.run_orders import not_repeatable
from dios.core.model import disclosure
from dios.core.model.records import Holder, Provenance, Session, Task
from dios.core.remote import forwarding, remote_calls
from dios.core.step import Step
from dios.errors import NoSuchTaskError, shortened
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.types import Flag, ObjectType, Permission


@handles(messages.ConsoleOf)
def console_of(step: Step, task: Holder, seq: int, call: messages.ConsoleOf) -> None:
    """Answer with a read-only reference to the console of a task that the caller may read."""
    reference = rights.typed(rights.held(task, call.task, Permission.READ), ObjectType.TASK)
    other = step.state.tasks.get(TaskId(reference.object.id))
    if other is None:
        raise NoSuchTaskError("the node no longer stores this task's console")
    delegation.require_room(task, other.console)
    # With ``origin``, the reference to the console is dropped together with the reference to the task.
    granted = lifetimes.grant(
        step, task, other.console, Permission.READ, Provenance.DELEGATED, origin=reference
    )
    step.answer(task, seq, messages.References((granted.public(),)))


@handles(messages.ListTasks)
def list_tasks(step: Step, task: Holder, seq: int, call: messages.ListTasks) -> None:
    """List every task of the caller's own principal, sessions excluded, on all nodes of the cluster."""
    flags = rights.flags_of(call.flags, Flag.LOCAL_ONLY)
    rights.refuse_pure(task)
    rows = submissions.task_rows(step, task.principal)
    if step.state.cluster is None or flags & Flag.LOCAL_ONLY or step.parts is not None:
        step.answer(task, seq, messages.Tasks(rows))
    else:
        remote_calls.list_tasks(step, task, seq, call, rows)


IN_STEPS: Final = "in_steps"
"""The count that says that others are shown in steps; the host does the same with its own."""
_OF_TASKS: Final = frozenset(("tasks", "tasks_of_users", "sessions", "moving", "defects", "cached_bytes_max"))
"""The counts of what is listed anyway, or is not chosen by tasks."""


@handles(messages.NodeInfo)
def node_info(step: Step, task: Holder, seq: int, call: messages.NodeInfo) -> None:
    """Answer with counts of this node; the host adds facts about the machine."""
    rights.refuse_pure(task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    state = step.state
    step.spend(len(state.tasks) // 16)
    counts = {
        "objects": len(state.objects) + state.dormant_count,
        "names": len(state.names) + state.dormant_count,
        "tasks": sum(1 for _ in state.living_tasks()),
        # A node starts its coordinator again whenever it ends, so it is not one of the tasks of users.
        "tasks_of_users": sum(task.id != state.queue.coordinator for task in state.living_tasks()),
        "sessions": sum(1 for other in state.tasks.values() if isinstance(other, Session)),
        "references": sum(len(other.table) for other in state.tasks.values()),
        "buffers": sum(len(other.buffers) for other in state.tasks.values()),
        "moving": sum(bool(task.leave_ns) for task in state.living_tasks()),
        "waiting": len(state.pending),
        "logs": len(state.logs),
        "defects": state.defects.total,
    }
    if state.cluster is not None:
        cache = state.cluster.versions
        counts |= {
            "cached_versions": len(cache.versions),
            "cached_bytes": cache.bytes,
            "cached_bytes_max": cache.bytes_max,
            "reads_from_cache": cache.served,
            "reads_into_cache": cache.fetched,
            "reads_under_leases": state.cluster.leases.served,
            "leases_held": len(state.cluster.leases.held),
            "leased_objects": len(state.cluster.leases.granted),
        }
    if not rights.sees_exact_sums(state, task):
        chosen = {name: counts[name] for name in counts if name not in _OF_TASKS}
        counts |= {**disclosure.counts_in_steps(chosen), IN_STEPS: 1}
    step.answer(task, seq, messages.Info("", "", counts, {}))


@handles(messages.Shutdown)
def shutdown(step: Step, task: Holder, seq: int, call: messages.Shutdown) -> None:
    """Stop the node. Only the principal that runs it and root may do so."""
    del call
    rights.require_nodes_own(step.state, task, "stop it")
    step.audit(task, "shutdown", "ok", task.object.fingerprint)
    step.answer(task, seq, messages.Done(1))
    step.emit(effects.BeginShutdown())


@handles(messages.Describe)
def describe(step: Step, task: Holder, seq: int, call: messages.Describe) -> None:
    """Describe a task's recipe, limits and usage to a caller that may read the task."""
    reference = rights.typed(rights.held(task, call.task, Permission.READ), ObjectType.TASK)
    other = step.state.tasks.get(TaskId(reference.object.id))
    if not isinstance(other, Task) or other.recipe is None:
        raise NoSuchTaskError("the node no longer stores the recipe of this task")
    recipe, groups = other.recipe, step.state.groups
    flows.require_knowing(step, task.home, other.secrecy)
    step.spend((len(recipe.inputs) + len(recipe.outputs)) // 4)
    step.answer(
        task,
        seq,
        messages.TaskDetail(
            status=other.row(step.state.place),
            usage=other.account.row(other.label),
            memory_limit_bytes=other.bounds.memory_bytes,
            cpu_limit_ms=other.bounds.cpu_ms,
            cpu_ms=other.cpu_ms,
            memory_bytes=other.memory_bytes,
            groups=tuple(groups[name].fingerprint for name in recipe.groups if name in groups),
            inputs=tuple(given.row(task) for given in recipe.inputs),
            outputs=tuple(given.row(task) for given in recipe.outputs),
            arguments=recipe.arguments,
            executable=recipe.executable.fingerprint,
            repeatable=shortened(not_repeatable(recipe, step.now)),
            processors=other.processors,
            devices=tuple(grant for grant in devices.granted(step.state, other) if grant.names),
            time_ms=recipe.work.time_ms,
        ),
    )
