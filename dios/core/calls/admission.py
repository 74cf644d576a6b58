"""The limits of a child: its account and its reservation, checked against every account above it."""

from __future__ import annotations

from msgspec import Struct

from dios import limits
from dios.core.calls.run_orders import Order
from dios.core.model.accounts import (
    SECOND_MS,
    UNLIMITED,
    Account,
    lower_bounds,
    require_all,
    require_each,
    whole_seconds,
)
from dios.core.model.quotas import holdings
from dios.core.model.records import (
    Holder,
    Recipe,
    Reserved,
)
from dios.core.step import Step
from dios.errors import (
    LimitError,
    WouldBlockError,
)
from dios.ids import Principal
from dios.wire.messages import Bound, Holding, Limits, Work
from dios.wire.scheduling import COORDINATOR_LABEL
from dios.wire.types import Brand, Resource, Scope

_OWN_REFERENCES = 3  # to itself, its console and its program


class NoRoomError(LimitError):
    """The node, or the principal on it, has no room for a task now, and will have some when tasks end."""


class Budget(Struct, frozen=True):
    """The child's account, and the memory and CPU time that are reserved for the child."""

    account: Account
    reserved: Reserved


def require_quota(step: Step, task: Holder, recipe: Recipe, label: str, *, scheduled: bool = False) -> None:
    """Check the quota of the cluster for a task that is to start on this node, wherever it came from.

    Raise NoRoomError if the principal may hold no more at once, or for a ``scheduled`` task WouldBlockError:
    it waits for the scheduler again. A coordinator is part of the nodes and has no quota.
    """
    if is_coordinator(recipe.brand, label, recipe.work):
        return
    why = over_quota(step, task.principal, recipe.work, scheduled=scheduled)
    if why:
        error = WouldBlockError if scheduled else NoRoomError
        raise error(f"{why}. `dios quota` shows quotas")


def is_coordinator(brand: Brand, label: str, work: Work) -> bool:
    """Return True for a coordinator, which only the nodes' own user can start: all others run pure tasks."""
    return brand is Brand.LIMBO and label == COORDINATOR_LABEL and not work.particular


def over_quota(step: Step, principal: Principal, work: Work, *, scheduled: bool) -> str:
    """Return why the quota of a principal has no room for a task on this node; empty if it has."""
    known = step.state.admission
    if known is None or principal not in known.quotas:
        return ""
    step.spend(len(step.state.tasks) // 64)
    own = (task for task in step.state.living_tasks() if task.principal == principal)
    here = holdings(own).get(principal, Holding())
    return known.excess(principal, here, Holding.of(work), step.now, scheduled=scheduled)


def admit(step: Step, task: Holder, order: Order) -> Budget:
    """Return the child's account and reservation.

    Raise LimitError if the child, or an account that it is counted with, has no room for its first objects,
    and NoRoomError if it will fit when other tasks of the node or the principal have ended.
    """
    if task.account.generation >= limits.TASK_GENERATIONS_MAX:
        raise LimitError(
            f"cannot start the task: {limits.TASK_GENERATIONS_MAX} tasks have already started each other in a"
            " chain. Let a task nearer to the session start it."
        )
    return Budget(*_budget(step, task, order.recipe))


def _budget(step: Step, parent: Holder, recipe: Recipe) -> tuple[Account, Reserved]:
    """Return the child's account and reservation, if they fit every account that counts the child."""
    asked = recipe.limits
    account = Account(Scope.TASK, "(to be started)", _bounds(step.state.defaults.task, asked), parent.account)
    members = step.state.accounts_of_groups(recipe.groups)
    short = _shortage(parent.account, Resource.TASKS, 1)
    require_all(members, Resource.TASKS, 1)
    memory = asked.memory_bytes or min(
        _default_memory(step, recipe.work), account.bounds[Resource.MEMORY_BYTES]
    )
    counted = (account, *members)
    short = short or _shortage(account, Resource.MEMORY_BYTES, memory)
    require_all(members, Resource.MEMORY_BYTES, memory)
    remaining = min(counter.left(Resource.CPU_MS) for counter in counted)
    cpu = whole_seconds(asked.cpu_ms)
    if not cpu and remaining != UNLIMITED:
        cpu = max(remaining - remaining % SECOND_MS, SECOND_MS)
    require_all(counted, Resource.CPU_MS, cpu)
    _require_references(step, parent, account, recipe)
    if short is not None:
        raise NoRoomError(short.message)
    return account, Reserved(memory, cpu)


def _default_memory(step: Step, work: Work) -> int:
    """Return the memory limit of a task that names none: the memory that is set aside for it, if any is."""
    if not work.reserves or not work.memory_bytes:
        return step.state.defaults.task_memory_bytes
    return max(limits.TASK_MEMORY_BYTES_MIN, min(work.memory_bytes, limits.TASK_MEMORY_BYTES_MAX))


def _shortage(first: Account, resource: Resource, amount: int) -> LimitError | None:
    """Return the refusal of an account that will have room for ``amount`` when tasks end, or None.

    Raise LimitError if no end of a task makes enough room, or if the limit was set for one task and what it
    starts: such a task might wait for itself.
    """
    short: LimitError | None = None
    account: Account | None = first
    while account is not None:
        bound = account.bounds[resource]
        if amount > 0 and account.used[resource] + amount > bound:
            refusal = account.refusal(resource, amount)
            if account.scope not in {Scope.PRINCIPAL, Scope.NODE} or amount > bound:
                raise refusal
            short = short or refusal
        account = account.parent
    return short


def _require_references(step: Step, parent: Holder, account: Account, recipe: Recipe) -> None:
    """Require room for the child's first references, and for its parent's reference to the child."""
    candidates = (step.state.groups.get(name) for name in recipe.groups)
    member_of = [group for group in candidates if group is not None]
    given = [*recipe.inputs, *recipe.outputs]
    count = len(given) + max(len(member_of), 1) + _OWN_REFERENCES  # a child without groups gets a fresh one
    account.require(Resource.REFERENCES, count)
    parent.account.require(Resource.REFERENCES, count + 1)
    targets = [recipe.executable, *member_of, *(item.object for item in given)]
    require_each((shared for target in targets for shared in target.sharing), Resource.REFERENCES)


def _bounds(defaults: tuple[Bound, ...], asked: Limits) -> list[Bound]:
    """Return the bounds of a child: for each resource the lower of the default and the run call's limit."""
    return [Bound(resource, value) for resource, value in lower_bounds(defaults, asked).items()]
