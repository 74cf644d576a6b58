"""run: a child with exactly the memberships, references and limits that it is handed (B.1.5).

Not for: how tasks begin and end (``dios.core.calls.lifecycle``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.core import effects
from dios.core.calls import access, lifecycle
from dios.core.calls.delegation import delegable, end_of
from dios.core.model import groups, submission_queue
from dios.core.model.accounts import UNLIMITED, Account, require_all, require_each
from dios.core.model.objects import PhysicalObject
from dios.core.model.pending import Pending
from dios.core.model.recipes import ChildIdentity, Given, Recipe, Reserved
from dios.core.model.references import Provenance, Reference, earlier, narrowed
from dios.core.model.tasks import Task
from dios.core.model.type_rules import RULES
from dios.core.remote import proxies, remote_calls, remote_run
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import (
    InvalidError,
    NoSuchTaskError,
    NotExecutableError,
    NotPermittedError,
    OutOfMemoryError,
    StaleError,
    TooLargeError,
    WouldBlockError,
)
from dios.ids import Name, TaskId
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import Bound, Limits, Work
from dios.wire.nametext import fingerprint
from dios.wire.types import Brand, Flag, ObjectType, Permission, Resource, Scope, TaskState

_SECOND_MS = 1_000
_OWN_REFERENCES = 3  # to itself, its console and its program

Origins: TypeAlias = "tuple[Reference | None, ...]"
"""What each handed reference is delegated from; None where a recipe has it from a task that is over."""


class Order(Struct, frozen=True):
    """What the child shall be: a recipe, and where its references come from."""

    recipe: Recipe
    origins: Origins
    label: str
    program_origin: Reference | None


def run(step: Step, task: Task, seq: int, call: messages.Run, chosen: ChildIdentity | None = None) -> None:
    """dios_run: a child with exactly the memberships and references it is handed.

    ``chosen`` says who it will be, where whoever schedules has placed it; a node that has no room for it
    is then no refusal: WouldBlockError, or it waits on the board again.
    """
    flags = access.flags_of(call.flags, Flag.NON_BLOCKING | Flag.SPAWN_LOCAL)
    peer = _place(step, call, flags)
    order = _repeated(step, task, call) if call.like else ordered(step, task, call)
    if sum(len(text.encode()) for text in order.recipe.arguments) > limits.ARGUMENT_BYTES_MAX:
        raise TooLargeError(
            f"arguments take more than {limits.ARGUMENT_BYTES_MAX} bytes; use an input object"
        )
    if peer is not None or _is_handed_from_elsewhere(order):
        remote_run.run_offered(step, task, seq, call, order, peer, chosen)
        return
    submission_queue.require_fit(step, order.recipe.work)
    given = (*order.recipe.inputs, *order.recipe.outputs)
    ends = [earlier(end_of(step, one.lifetime_ns), one.expires_ns) for one in given]
    task.table.require_room()
    if not flags & Flag.NON_BLOCKING:
        if step.parts is not None:
            raise WouldBlockError("inside a vector, run needs NON_BLOCKING")
        step.state.pending.require_room(task)
    child = begin(step, task, order, admit(step, task, order), chosen)
    _welcome_child(step, child, order, ends)
    reference = step.grant(task, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(task, "run", "ok", child.object.fingerprint, f"{order.recipe.brand.name} {order.label}")
    if flags & Flag.NON_BLOCKING:
        step.answer(task, seq, messages.Created(child.name, reference.public()))
    else:
        step.wait(Pending(task, seq, call, (child.object,)))


def _place(step: Step, call: messages.Run, flags: Flag) -> Peer | None:
    """The node that the child shall run on; None for this one."""
    cluster = step.state.cluster
    if flags & Flag.SPAWN_LOCAL:
        return None
    if call.host:
        return remote_calls.named(step, call.host)
    if cluster is None or step.parts is not None or call.like:
        return None
    candidates = [
        cluster.loaded(member) for member in cluster.membership.alive() if cluster.peer(member.node).connected
    ]
    own = cluster.membership.own
    busy = sum(1 for task in step.state.tasks.values() if task.alive and not task.is_session)
    own = replace(own, load=replace(own.load, tasks=busy))
    chosen = cluster.placement.choose(candidates, own, call.limits)
    return None if chosen.node == cluster.here.node else cluster.peer(chosen.node)


def _is_handed_from_elsewhere(order: Order) -> bool:
    """Whether the child gets references to objects of other nodes, which have to know of it first."""
    handed = (order.program_origin, *order.origins)
    return any(origin is not None and origin.object.home for origin in handed)


# -- what is ordered --------------------------------------------------------------------------------
def ordered(step: Step, task: Task, call: messages.Run) -> Order:
    """What a run call asks for, if its caller may; changes nothing."""
    brand = brand_for(step, task, call.brand)
    program = executable(task, call.executable)
    names = groups.names_for_child(task, call.groups)
    inputs, outputs = _delegable(task, call.inputs), _delegable(task, call.outputs)
    recipe = Recipe(
        _program(program),
        names,
        tuple(map(_given, inputs, call.inputs)),
        tuple(map(_given, outputs, call.outputs)),
        call.arguments,
        brand,
        call.limits,
        call.work,
    )
    return Order(recipe, (*inputs, *outputs), call.label, program)


def executable(task: Task, ref_id: int) -> Reference:
    """A reference to something that the caller may run."""
    reference = access.living(access.held(task, ref_id, Permission.EXECUTE))
    if not RULES[reference.object.type].executable:
        raise NotExecutableError(f"a {reference.object.type.name} cannot be run")
    return reference


def _delegable(task: Task, handed: Iterable[messages.Handed]) -> tuple[Reference, ...]:
    found = tuple(delegable(task, item.ref) for item in handed)
    if any(reference.object.type is ObjectType.PRIVMEM_BLOB for reference in found):
        raise NotPermittedError("private memory is not handed on; make a shared copy")
    return found


def _program(reference: Reference) -> Given:
    rights = int(Permission.READ | Permission.EXECUTE)
    return _given(reference, messages.Handed(reference.id, rights, "program"))


def _given(reference: Reference, item: messages.Handed) -> Given:
    target = reference.object
    return Given(
        target,
        int(narrowed(reference.permissions, item.permissions)),
        item.label,
        item.lifetime_ns,
        target.v_w,
        expires_ns=reference.expires_ns,
        retirements=target.retirements,
    )


def _repeated(step: Step, task: Task, call: messages.Run) -> Order:
    """The order of a task that was run before, with another program around it if one is given."""
    if not task.is_session:
        raise NotPermittedError("only a person's session repeats a task: it gets all that the task had")
    reference = access.typed(access.held(task, call.like), ObjectType.TASK)
    former = step.state.tasks.get(TaskId(reference.object.id))
    if former is None or former.recipe is None:
        raise NoSuchTaskError("the node does not keep how this task was run")
    if reference.permissions != Permission.ALL or former.principal != task.principal:
        raise NotPermittedError(
            "repeating a task needs every right on it: look its name up",
            fingerprint=reference.object.fingerprint,
        )
    if call.groups or call.outputs or call.arguments or call.limits != Limits() or call.work != Work():
        raise InvalidError(
            "groups, outputs, arguments, limits and work are those of the task that is repeated"
        )
    missing = not_repeatable(former.recipe, step.now)
    if missing:
        raise StaleError(missing, fingerprint=reference.object.fingerprint)
    recipe = former.recipe
    added = _delegable(task, call.inputs)
    inputs = (*recipe.inputs, *map(_given, added, call.inputs))
    origins: Origins = (*(None for _ in recipe.inputs), *added)
    program, program_origin = recipe.program, None
    if call.executable:
        program_origin = executable(task, call.executable)
        inputs = (*inputs, recipe.program)
        origins = (*origins, None)
        program = _program(program_origin)
    if len(inputs) > limits.ARGUMENTS_MAX:
        raise TooLargeError(f"more than {limits.ARGUMENTS_MAX} inputs")
    brand = brand_for(step, task, recipe.brand)
    again = replace(recipe, program=program, inputs=inputs, brand=brand)
    origins = (*origins, *(None for _ in recipe.outputs))
    return Order(again, origins, call.label or former.label, program_origin)


def not_repeatable(recipe: Recipe, now: int) -> str:
    """Why a run with this recipe is impossible at ``now``; empty when it is possible.

    A recipe is no way around having been taken something back: what was retired or expired since is gone.
    """
    gone = [
        f"{what} {given.label or given.object.fingerprint}"
        for what, all_given in (("input", recipe.inputs), ("output", recipe.outputs))
        for given in all_given
        if given.lost(now)
    ]
    if recipe.program.lost(now):
        gone.insert(0, "its program")
    if gone:
        return f"these are gone, or were taken back: {', '.join(gone)}"
    if any(given.object.home for given in (recipe.program, *recipe.inputs, *recipe.outputs)):
        # What it held of them went with it: nobody here may hand them on.
        return "its program, or something that it was handed, is on another node; run it anew"
    return ""


def brand_for(step: Step, task: Task, wanted: Brand) -> Brand:
    """Table 4.7: what may be started by run, and what restricted mode makes of it."""
    if wanted is Brand.LEGACY:
        raise InvalidError("a legacy program is started by the host, not by run")
    if wanted is Brand.LIMBO:
        if task.brand is Brand.PURE:
            raise NotPermittedError("a pure task starts pure tasks only")
        if step.state.restricted:
            return Brand.PURE
        if not access.is_nodes_own(step.state, task):
            # Unconfined, it would have the rights of the node's user, which are not the caller's.
            raise NotPermittedError(
                "only the node's own user and root may start tasks outside the sandbox; run it pure, "
                "or start a node of your own"
            )
    return wanted


# -- what it may use --------------------------------------------------------------------------------
class Budget(Struct, frozen=True):
    """The child's account, and what is set aside for it."""

    account: Account
    reserved: Reserved


def admit(step: Step, task: Task, order: Order) -> Budget:
    """What the child may use, if it and those above it have room for everything it is started with."""
    if task.account.generation >= limits.TASK_GENERATIONS_MAX:
        raise OutOfMemoryError(
            f"tasks were started one by the other {limits.TASK_GENERATIONS_MAX} times; let one that stands"
            " further up start this one"
        )
    return Budget(*_budget(step, task, order.recipe))


def _budget(step: Step, parent: Task, recipe: Recipe) -> tuple[Account, Reserved]:
    """The child's account, if everything it is started with fits it and those above it."""
    asked = recipe.limits
    account = Account(Scope.TASK, "(to be started)", _bounds(step.state.defaults.task, asked), parent.account)
    members = step.state.accounts_of_groups(recipe.groups)
    parent.account.require(Resource.TASKS, 1)
    require_all(members, Resource.TASKS, 1)
    memory = asked.memory_bytes or min(
        step.state.defaults.task_memory_bytes, account.bounds[Resource.MEMORY_BYTES]
    )
    counted = (account, *members)
    require_all(counted, Resource.MEMORY_BYTES, memory)
    left = min(one.left(Resource.CPU_MS) for one in counted)
    cpu = whole_seconds(asked.cpu_ms)
    if not cpu and left != UNLIMITED:
        cpu = max(left - left % _SECOND_MS, _SECOND_MS)
    require_all(counted, Resource.CPU_MS, cpu)
    _require_references(step, parent, account, recipe)
    return account, Reserved(memory, cpu)


def _require_references(step: Step, parent: Task, account: Account, recipe: Recipe) -> None:
    """Room for all that the child begins with, and above it for its parent's reference to it, too."""
    found = (step.state.groups.get(name) for name in recipe.groups)
    member_of = [group for group in found if group is not None]
    given = [*recipe.inputs, *recipe.outputs]
    count = len(given) + max(len(member_of), 1) + _OWN_REFERENCES  # a group of its own where none is named
    account.require(Resource.REFERENCES, count)
    parent.account.require(Resource.REFERENCES, count + 1)
    targets = [recipe.executable, *member_of, *(item.object for item in given)]
    require_each((one for target in targets for one in target.sharing), Resource.REFERENCES)


def whole_seconds(cpu_ms: int) -> int:
    """What the kernel makes of a limit of CPU time: a second that has begun is given whole."""
    return -(-cpu_ms // _SECOND_MS) * _SECOND_MS


def _bounds(defaults: tuple[Bound, ...], asked: Limits) -> list[Bound]:
    """The narrower of what every task has and what the run call says."""
    wanted = {
        Resource.OBJECTS: asked.objects,
        Resource.BYTES: asked.bytes,
        Resource.REFERENCES: asked.references,
        Resource.REQUESTS: asked.requests,
        Resource.TASKS: asked.tasks,
        Resource.CPU_MS: asked.total_cpu_ms or whole_seconds(asked.cpu_ms),
        Resource.MEMORY_BYTES: asked.total_memory_bytes or asked.memory_bytes,
        Resource.VOLATILE_BYTES: asked.volatile_bytes,
    }
    found = {bound.resource: bound.value for bound in defaults if bound.value is not None}
    for resource, value in wanted.items():
        if value:
            found[resource] = min(value, found.get(resource, value))
    return [Bound(resource, value) for resource, value in found.items()]


# -- the child --------------------------------------------------------------------------------------
def begin(
    step: Step, parent: Task, order: Order, budget: Budget, chosen: ChildIdentity | None = None
) -> Task:
    """A task that will have a process soon, with its default references; ``chosen`` is given where its id and
    name were settled before.
    """
    recipe, account, reserved = order.recipe, budget.account, budget.reserved
    named = (step.state.groups.get(name) for name in recipe.groups)
    member_of: tuple[PhysicalObject, ...] = tuple(group for group in named if group is not None)
    if not member_of:
        member_of = (groups.fresh_group(step, parent.principal),)
    chosen = chosen or ChildIdentity(TaskId(step.state.fresh_id()), lifecycle.child_name(step, parent))
    account.subject = fingerprint(chosen.name)
    child = lifecycle.make_task(
        step,
        chosen.task,
        chosen.name,
        parent.principal,
        recipe.brand,
        tuple(Name(group.name) for group in member_of if group.name is not None),
        account,
        parent=parent,
        is_session=False,
        label=order.label,
    )
    child.recipe = recipe
    # Until its end is known, whatever it lets go of: see ``lifecycle``.
    recipe.executable.pinned += 1
    child.member_accounts = step.state.accounts_of_groups(recipe.groups)
    lifecycle.reserve(child, parent, reserved)
    bounds = Limits(reserved.memory_bytes, reserved.cpu_ms, recipe.limits.processes)
    step.emit(effects.Spawn(child.id, recipe.brand, order.label, recipe.executable.id, bounds))
    own, console, member_refs = lifecycle.default_references(step, child, member_of)
    child.defaults = (own, console, *member_refs)
    submission_queue.changed(step)
    return child


def _welcome_child(step: Step, child: Task, order: Order, ends: list[int]) -> None:
    recipe = order.recipe
    all_given = (*recipe.inputs, *recipe.outputs)
    given = [
        step.grant(
            child,
            item.object,
            Permission(item.permissions),
            Provenance.DELEGATED,
            item.label,
            origin,
            expires_ns,
        ).public()
        for item, origin, expires_ns in zip(all_given, order.origins, ends, strict=True)
    ]
    program = step.grant(
        child,
        recipe.executable,
        Permission.READ | Permission.EXECUTE,
        Provenance.DELEGATED,
        "executable",
        order.program_origin,
        recipe.program.expires_ns,
    )
    welcome(step, child, order, tuple(given), program.public())


def welcome(
    step: Step,
    child: Task,
    order: Order,
    given: tuple[messages.Reference, ...],
    program: messages.Reference,
) -> None:
    """The child's first message: its inputs and outputs in order, and its program."""
    recipe = order.recipe
    default = child.defaults
    for item in (*recipe.inputs, *recipe.outputs):
        step.audit(child, "delegate", "ok", item.object.fingerprint, f"at start, rights {item.permissions}")
    # Never inside the caller's vector: this answer is the child's first message.
    parts, step.parts = step.parts, None
    step.answer(
        child,
        0,
        messages.Welcome(
            version=PROTOCOL_VERSION,
            name=child.name,
            brand=child.brand,
            self_ref=default[0].public(),
            console=default[1].public(),
            groups=tuple(reference.public() for reference in default[2:]),
            inputs=given[: len(recipe.inputs)],
            outputs=given[len(recipe.inputs) :],
            arguments=recipe.arguments,
            executable=program,
            label=order.label,
        ),
    )
    step.parts = parts


def finish_run(step: Step, row: Pending) -> bool:
    """Answer a waiting run once its child runs, or never will."""
    target = row.watched[0]
    child = step.state.tasks.get(TaskId(target.id))
    if child is None or child.state is TaskState.STARTING:
        return False
    step.state.pending.remove(row)
    reference = next(iter(row.task.table.holding(target)), None)
    if reference is None:
        step.refuse(row.task, row.seq, NoSuchTaskError("the reference to the child was deleted"))
    elif child.state is TaskState.ENDED and child.pid == 0:
        step.drop_reference(reference)
        step.refuse(row.task, row.seq, NotExecutableError(child.detail or "the task could not be started"))
    else:
        public = proxies.abroad(step, reference) if row.task.home else reference.public()
        step.answer(row.task, row.seq, messages.Created(child.name, public))
    return True
