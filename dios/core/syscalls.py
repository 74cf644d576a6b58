"""The interface of the core: which function handles which call (Table 4.4, appendix B).

Not for: what the calls do. A refusal is turned into a Failure here, and denials into audit records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Never, TypeAlias, cast

from dios.core import (
    compound_calls,
    delegation,
    introspection,
    io_calls,
    limit_calls,
    object_calls,
    resolution,
    retirement,
    run_calls,
    task_calls,
)
from dios.core.effects import AnswerVector
from dios.core.step import Step
from dios.core.tasks import Task
from dios.errors import Code, DiosError, InvalidError
from dios.ids import PayloadId
from dios.wire import messages

# Each handler takes just the call it stands beside; the table's key is what makes that true.
Handler: TypeAlias = Callable[[Step, Task, int, Never], None]

_HANDLERS: Final[dict[type, Handler]] = {
    messages.Create: object_calls.create,
    messages.Lookup: resolution.lookup,
    messages.Copy: delegation.copy,
    messages.Delete: object_calls.delete,
    messages.Run: run_calls.run,
    messages.Pause: task_calls.pause,
    messages.Resume: task_calls.resume,
    messages.AcquireRead: io_calls.acquire_read,
    messages.CommitRead: io_calls.commit_read,
    messages.ReleaseRead: io_calls.release,
    messages.AcquireWrite: io_calls.acquire_write,
    messages.CommitWrite: io_calls.commit_write,
    messages.ReleaseWrite: io_calls.release,
    messages.Select: task_calls.select,
    messages.ReadOnce: compound_calls.read_once,
    messages.WriteOnce: compound_calls.write_once,
    messages.CommitAcquireRead: compound_calls.commit_acquire_read,
    messages.CommitAcquireWrite: compound_calls.commit_acquire_write,
    messages.Attach: task_calls.attach,
    messages.Retire: retirement.retire,
    messages.Stat: object_calls.stat,
    messages.ConsoleOf: introspection.console_of,
    messages.ListTasks: introspection.list_tasks,
    messages.NodeInfo: introspection.node_info,
    messages.Cancel: task_calls.cancel,
    messages.Shutdown: introspection.shutdown,
    messages.Describe: introspection.describe,
    messages.ListLimits: limit_calls.list_limits,
    messages.SetLimits: limit_calls.set_limits,
}

_DENIALS: Final = frozenset({Code.EPERM, Code.EBADF, Code.EDQUOT})
_PAYLOAD_CALLS: Final = (
    messages.Create,
    messages.WriteOnce,
    messages.CommitWrite,
    messages.CommitAcquireWrite,
)


def carried_bytes(call: messages.PlainCall) -> bytes | None:
    """The inline bytes of a call: what the host keeps as a payload. One place for both sides."""
    return call.data if isinstance(call, _PAYLOAD_CALLS) else None


def dispatch(step: Step, task: Task, seq: int, call: messages.PlainCall, payload: PayloadId) -> None:
    """Handle one call, whose inline bytes stand in the host under ``payload``; a refusal changes nothing."""
    data = carried_bytes(call)
    if data is None:
        step.payload, step.payload_size = PayloadId(0), 0
    else:
        step.payload, step.payload_size = payload, len(data)
    try:
        _HANDLERS[type(call)](step, task, seq, cast("Never", call))
    except DiosError as error:
        if error.code in _DENIALS:
            step.audit(task, type(call).__name__.lower(), "denied", error.fingerprint, error.message)
        step.refuse(task, seq, error)


def dispatch_vector(step: Step, task: Task, seq: int, vector: messages.Vector, payload: PayloadId) -> None:
    """Handle the calls of a vector in order and answer them in one message.

    The inline bytes of its calls stand in the host under ids that count up from ``payload``.
    """
    step.parts = []
    for call in vector.calls:
        if isinstance(call, messages.Cancel | messages.Shutdown):
            step.refuse(task, seq, InvalidError(f"{type(call).__name__.lower()} stands alone"))
            continue
        dispatch(step, task, seq, call, payload)
        if carried_bytes(call) is not None:
            payload = PayloadId(payload + 1)
    parts, step.parts = step.parts, None
    step.emit_answer(AnswerVector(task.id, seq, tuple(parts)))
