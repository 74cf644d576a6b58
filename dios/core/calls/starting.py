"""A child on this node: its record, its references and its first message (B.1.5)."""

from __future__ import annotations

from dios.core import effects, lifetimes
from dios.core.calls import devices, flows, groups, lifecycle, network_streams, rights, submissions
from dios.core.calls.admission import Budget
from dios.core.calls.run_orders import Order, content_of_environment
from dios.core.model.records import (
    ChildIdentity,
    Holder,
    LocalHolder,
    Pending,
    PhysicalObject,
    Provenance,
    Task,
)
from dios.core.model.type_states import LimitedNetwork
from dios.core.remote import proxies
from dios.core.step import Step
from dios.errors import (
    Code,
    DiosError,
    NoSuchTaskError,
    NotExecutableError,
    error_for,
)
from dios.ids import Name, ObjectId, TaskId
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import Limits
from dios.wire.nametext import fingerprint
from dios.wire.types import Cause, Permission, TaskState


def begin(
    step: Step, parent: Holder, order: Order, budget: Budget, chosen: ChildIdentity | None = None
) -> Task:
    """Create a task that will soon have a process, with its default references.

    ``chosen`` is its id and name, if the scheduler has placed it.
    """
    recipe, account, reserved = order.recipe, budget.account, budget.reserved
    named = (step.state.groups.get(name) for name in recipe.groups)
    member_of: tuple[PhysicalObject, ...] = tuple(group for group in named if group is not None)
    if not member_of:
        member_of = (groups.fresh_group(step, parent.principal),)
    chosen = chosen or lifecycle.fresh_identity(step, rights.local(parent))
    account.subject = fingerprint(chosen.name)
    own_object, console_object = lifecycle.own_objects(step, chosen.task, chosen.name, parent.principal)
    child = Task(
        own_object,
        console_object,
        chosen.name,
        parent.principal,
        recipe.brand,
        tuple(Name(group.name) for group in member_of if group.name is not None),
        account,
        parent=parent,
        label=order.label,
        now=step.now,
    )
    lifecycle.enter_task(step, child)
    parent.children[child.id] = child
    child.recipe = recipe
    flows.begin_child(step, parent, child, step.state.tasks.get(order.fork_of) if order.fork_of else None)
    recipe.keep()
    # The pin lasts until the task's end is known, even if the task drops its reference: see ``lifecycle``.
    recipe.executable.pinned += 1
    child.member_accounts = step.state.accounts_of_groups(recipe.groups)
    lifecycle.reserve(child, parent, reserved)
    bounds = Limits(reserved.memory_bytes, reserved.cpu_ms, recipe.limits.processes)
    share = submissions.share_of(step, recipe.work)
    child.processors = share.processors
    child.devices = devices.free_devices(step.state, recipe.work)
    archive = content_of_environment(recipe)
    step.emit(
        effects.Spawn(
            child.id,
            recipe.brand,
            order.label,
            recipe.executable.id,
            bounds,
            child.principal,
            child.job,
            recipe.template,
            recipe.forkable,
            order.fork_of,
            share,
            any(isinstance(item.object.state, LimitedNetwork) for item in recipe.inputs),
            ObjectId(0) if archive is None else archive.object.id,
            recipe.isolation,
        )
    )
    own, console, member_refs = lifecycle.default_references(step, child, member_of)
    child.defaults = (own, console, *member_refs)
    if recipe.network:
        network = network_streams.object_of(step.state)
        lifetimes.grant(step, child, network, Permission.WRITE, Provenance.INITIAL, "network")
    submissions.note_task(step, child)
    return child


def welcome_child(step: Step, child: Task, order: Order, ends: list[int]) -> None:
    """Grant a child its references, each until its expiry, and send its first message."""
    recipe = order.recipe
    all_given = (*recipe.inputs, *recipe.outputs)
    given = [
        lifetimes.grant(
            step,
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
    program = lifetimes.grant(
        step,
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
    source: bytes | None = None,
) -> None:
    """Send the child's first message, with its inputs and outputs in order, and its program.

    ``source`` is the content of the program if it came from another node. The host adds one that is here.
    """
    recipe = order.recipe
    default = child.defaults
    for item in (*recipe.inputs, *recipe.outputs):
        step.audit(child, "delegate", "ok", item.object.fingerprint, f"at start, rights {item.permissions}")
    # Not part of the caller's vector, because it is sent to the child.
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
            devices=devices.granted(step.state, child),
            program=source,
        ),
    )
    step.parts = parts


def _why_not_started(child: LocalHolder) -> DiosError:
    """Return the error of a start, as the host has given it: a caller may try again, or use another node."""
    why = child.detail or "the task could not be started"
    if isinstance(child, Task) and child.cause is Cause.SPAWN and child.exit_code in set(Code):
        return error_for(child.exit_code, why)
    return NotExecutableError(why)


def finish_run(step: Step, row: Pending) -> bool:
    """Answer a waiting run if its child runs or failed to start. Return False if it still waits."""
    target = next(iter(row.watched))
    child = step.state.tasks.get(TaskId(target.id))
    if child is None or child.state is TaskState.STARTING:
        return False
    step.state.pending.remove(row)
    reference = next(target.held_by(row.task), None)
    if reference is None:
        step.refuse(row.task, row.seq, NoSuchTaskError("the reference to the child was deleted meanwhile"))
    elif child.state is TaskState.ENDED and child.pid == 0:
        lifetimes.drop_reference(step, reference)
        step.refuse(row.task, row.seq, _why_not_started(child))
    else:
        public = proxies.public_part(step, reference) if row.task.home else reference.public()
        step.answer(row.task, row.seq, messages.Created(child.name, public))
    return True
