"""The calls that show and set the limits of tasks, groups and principals.

``dios.core.model.accounts`` counts resources and enforces the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core.calls import groups, rights, waiting_starts
from dios.core.calls.handlers import handles
from dios.core.model import disclosure
from dios.core.model.accounts import Account
from dios.core.model.records import Holder, PhysicalObject, Task
from dios.core.model.secrecy import Label
from dios.core.step import Step
from dios.errors import InvalidError, NoSuchTaskError
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import ObjectType, Resource, Scope

_STEPS: Final = {
    Resource.BYTES: limits.SUM_STEP_BYTES,
    Resource.CPU_MS: limits.SUM_STEP_CPU_MS,
    Resource.MEMORY_BYTES: limits.SUM_STEP_BYTES,
    Resource.VOLATILE_BYTES: limits.SUM_STEP_BYTES,
}
_UID_DIGITS = 10
_UID_MAX = 2**32 - 2


@handles(messages.ListLimits)
def list_limits(step: Step, task: Holder, seq: int, call: messages.ListLimits) -> None:
    """List the accounts of the caller's principal; for the node's own user those of all principals."""
    del call
    rights.refuse_pure(task)
    all_rows: Iterator[messages.LimitRow] = chain(
        [step.state.account.row("")], _principals(step, task), _groups(step, task), _tasks(step, task)
    )
    if not rights.sees_exact_sums(step.state, task):
        all_rows = map(_in_steps, all_rows)
    rows = tuple(islice(all_rows, limits.LIMIT_ROWS_MAX))
    step.spend((len(rows) + len(step.state.principals) + len(step.state.tasks)) // 8)
    step.answer(task, seq, messages.LimitRows(rows))


def _principals(step: Step, task: Holder) -> Iterator[messages.LimitRow]:
    all_principals = rights.is_nodes_own(step.state, task)
    for principal, account in step.state.principals.items():
        if all_principals or principal == task.principal:
            yield account.row("")


def _groups(step: Step, task: Holder) -> Iterator[messages.LimitRow]:
    for name in task.memberships:
        group = step.state.groups.get(name)
        if group is not None and group.account is not None:
            yield group.account.row("home" if step.state.homes.get(group.owner) is group else "")


def _tasks(step: Step, task: Holder) -> Iterator[messages.LimitRow]:
    for other in step.state.living_tasks():
        if other.principal == task.principal:
            yield other.account.row(other.label, other.secrecy)


def _in_steps(row: messages.LimitRow) -> messages.LimitRow:
    """Return a row with its use rounded up to whole steps."""
    used = zip(Resource, row.used, strict=True)
    return replace(
        row,
        used=tuple(
            disclosure.in_steps(amount, _STEPS.get(resource, limits.SUM_STEP)) for resource, amount in used
        ),
    )


@handles(messages.SetLimits)
def set_limits(step: Step, task: Holder, seq: int, call: messages.SetLimits) -> None:
    """Set limits of one account. The store keeps those of principals and durable groups."""
    rights.require_nodes_own(step.state, task, "set limits")
    label = ""
    secrecy: Label = ()
    if call.scope is Scope.TASK:
        account, label, secrecy = _account_of_task(step, task, call)
        account.bind(call.bounds)
    elif call.scope is Scope.GROUP:
        group = rights.typed(rights.living(rights.held(task, call.ref)), ObjectType.GROUP).object
        if group.account is None or step.state.homes.get(group.owner) is group:
            raise InvalidError("a home group has no limits of its own; set those of its principal instead")
        account = group.account
        _store_limits(step, group, call.bounds)
    elif call.scope is Scope.NODE:
        raise InvalidError("the limits of the whole node are settings; change them in the node's settings")
    else:
        if not _is_principal(call.principal):
            raise InvalidError(f"{call.principal!r} is not a principal; write a user like uid:1000")
        principal = Principal(call.principal)
        account = step.state.account_of(principal)
        _store_limits(step, groups.home_of(step, principal), call.bounds)
    waiting_starts.serve(step)
    row = account.row(label, secrecy)
    if not rights.sees_exact_sums(step.state, task):
        row = _in_steps(row)
    changes = ", ".join(f"{bound.resource} {_value(bound)}" for bound in call.bounds)
    step.audit(
        task, "limit", "ok", "" if call.scope is Scope.PRINCIPAL else row.subject, f"{row.subject}: {changes}"
    )
    step.answer(task, seq, messages.LimitRows((row,)))


def _account_of_task(step: Step, task: Holder, call: messages.SetLimits) -> tuple[Account, str, Label]:
    """Return the account of a living task, its title, and its label."""
    reference = rights.typed(rights.held(task, call.ref), ObjectType.TASK)
    other = step.state.tasks.get(TaskId(reference.object.id))
    if not isinstance(other, Task) or not other.alive:
        raise NoSuchTaskError("the task has ended", fingerprint=reference.object.fingerprint)
    return other.account, other.label, other.secrecy


def _store_limits(step: Step, group: PhysicalObject, bounds: tuple[Bound, ...]) -> None:
    """Store limits in the record of the group. A principal's limits are in the record of its home group."""
    merged = {bound.resource: bound for bound in (*group.limits, *bounds)}
    group.limits = tuple(merged[resource] for resource in Resource if resource in merged)
    step.state.apply_limits(group)
    if group.recorded is not None:
        step.put(group)


def _value(bound: Bound) -> str:
    return "none" if bound.value is None else str(bound.value)


def _is_principal(text: str) -> bool:
    kind, _, number = text.partition(":")
    if kind != "uid" or not number.isascii() or not number.isdecimal() or len(number) > _UID_DIGITS:
        return False
    return int(number) <= _UID_MAX and number == str(int(number))
