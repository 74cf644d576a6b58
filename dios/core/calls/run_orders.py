"""The child that a run call asks for: a recipe, and the origins of its references (B.1.5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.core.calls import flows, groups, rights
from dios.core.model.accounts import lower_limits
from dios.core.model.records import (
    HandedReference,
    Holder,
    Recipe,
    Reference,
    RemoteTask,
    Session,
    Task,
    narrowed,
)
from dios.core.model.secrecy import PUBLIC, union
from dios.core.model.state import State
from dios.core.model.type_rules import RULES
from dios.core.step import Step
from dios.errors import (
    InvalidError,
    NoSuchTaskError,
    NotExecutableError,
    NotPermittedError,
    StaleError,
    TooLargeError,
)
from dios.ids import TaskId
from dios.wire import environments, messages
from dios.wire.messages import Limits, Work
from dios.wire.types import Brand, Flag, Isolation, ObjectType, Permission, TaskState

Origins: TypeAlias = "tuple[Reference | None, ...]"
"""The reference from which each of the child's references is delegated. It is None if a recipe of an ended
task supplies the reference.
"""


class Order(Struct, frozen=True):
    """The child to start: its recipe, and the origins of its references.

    ``fork_of`` is the task whose process it begins as a copy of, or 0.
    """

    recipe: Recipe
    origins: Origins
    label: str
    program_origin: Reference | None
    fork_of: TaskId = TaskId(0)


def ordered(step: Step, task: Holder, call: messages.Run) -> Order:
    """Return the order of a run call, after checking the caller's rights. Change nothing."""
    brand = brand_for(step, task, call.brand)
    program = executable(task, call.executable)
    names = groups.names_for_child(task, call.groups)
    network = checked_network(step, task, call)
    inputs, outputs = _delegable(task, call.inputs), _delegable(task, call.outputs)
    recipe = Recipe(
        _program(program),
        names,
        tuple(map(_given, inputs, call.inputs)),
        tuple(map(_given, outputs, call.outputs)),
        call.arguments,
        brand,
        checked_limits(step, call),
        call.work,
        checked_template(call, brand),
        checked_forkable(call, brand),
        network,
        flows.label_of_child(
            step, task, program.object, PUBLIC, confined=_is_confined(brand, network=network)
        ),
        checked_isolation(call, brand),
    )
    require_content(task, recipe)
    return Order(recipe, (*inputs, *outputs), call.label, program)


def checked_limits(step: Step, call: messages.Run) -> Limits:
    """Return the limits of a run call, which for a sandbox are not above those of the node."""
    if not call.flags & Flag.SANDBOX:
        return call.limits
    return lower_limits(step.state.defaults.sandbox, call.limits)


def checked_template(call: messages.Run, brand: Brand) -> str:
    """Return the template or environment of a run call, empty for none.

    Raise InvalidError if its brand cannot have one, or it is no name.
    """
    if call.template and brand is not Brand.PURE:
        raise InvalidError("only a pure task can be started from a template; leave the template out")
    try:
        in_environment = environments.digest_of(call.template)
    except ValueError as error:
        raise InvalidError(f"cannot start the task: {error}") from None
    if in_environment and call.flags & Flag.FORKABLE:
        raise InvalidError("a task in an environment cannot be forked; leave out forkable")
    return call.template


def content_of_environment(recipe: Recipe) -> HandedReference | None:
    """Return the input with the archive of the task's environment, or None if there is none."""
    if not recipe.template.startswith(environments.PREFIX):
        return None
    return next((given for given in recipe.inputs if given.label == environments.CONTENT), None)


def require_content(task: Holder, recipe: Recipe) -> None:
    """Raise NotPermittedError if the node must not make an environment for the caller from its input.

    The environment stays on the node, where all later tasks of the principal can start in it.
    """
    given = content_of_environment(recipe)
    if given is None:
        return
    if task.brand is Brand.PURE:
        raise NotPermittedError("a pure task cannot add an environment to the node; leave out that input")
    if not given.permissions & Permission.READ:
        raise NotPermittedError("the archive of an environment must be an input with the right to read")
    if given.object.secrecy or recipe.secrecy:
        raise NotPermittedError(
            "nothing labelled can become an environment, because tasks without the label would see it"
        )


def checked_forkable(call: messages.Run, brand: Brand) -> bool:
    """Return True if the child can be forked later. Raise InvalidError if its brand cannot."""
    if call.flags & Flag.FORKABLE and brand is not Brand.PURE:
        raise InvalidError("only a pure task can be forked; leave out forkable")
    return bool(call.flags & Flag.FORKABLE)


def checked_isolation(call: messages.Run, brand: Brand) -> Isolation:
    """Return the kernel of the child. Raise InvalidError if such a task cannot be in gVisor."""
    if not call.flags & Flag.GVISOR:
        return Isolation.KERNEL
    if brand is not Brand.PURE:
        raise InvalidError("only a pure task can run in gVisor; leave out isolation")
    if call.flags & Flag.FORKABLE or (call.template and not environments.digest_of(call.template)):
        raise InvalidError(
            "a task in gVisor has no template and cannot be forked, because its memory is not that of a "
            "process of the node; leave these out, or isolation"
        )
    return Isolation.GVISOR


def checked_network(step: Step, task: Holder, call: messages.Run) -> bool:
    """Return True if the child may use the network of its node; raise NotPermittedError.

    A session, also one of another node, may hand the network on if it may resolve it on its own node.
    """
    wanted = bool(call.flags & Flag.WITH_NETWORK)
    if wanted and not (task.brand is Brand.LEGACY and rights.is_nodes_own(step.state, task)):
        raise NotPermittedError("only the node's own user and root may start a task with the network")
    return wanted


def _is_confined(brand: Brand, *, network: bool) -> bool:
    return brand is Brand.PURE and not network


def executable(task: Holder, ref_id: int) -> Reference:
    """Return a reference to a program that the caller may run."""
    reference = rights.living(rights.held(task, ref_id, Permission.EXECUTE))
    if not RULES[reference.object.type].executable:
        raise NotExecutableError(f"a {reference.object.type.name} cannot be run")
    return reference


def _delegable(task: Holder, handed: Iterable[messages.Handed]) -> tuple[Reference, ...]:
    references = tuple(rights.delegable(task, item.ref) for item in handed)
    if any(reference.object.type is ObjectType.PRIVMEM_BLOB for reference in references):
        raise NotPermittedError("private memory cannot be delegated to a child; make a shared copy first")
    return references


def _program(reference: Reference) -> HandedReference:
    rights = int(Permission.READ | Permission.EXECUTE)
    return _given(reference, messages.Handed(reference.id, rights, "program"))


def _given(reference: Reference, item: messages.Handed) -> HandedReference:
    target = reference.object
    return HandedReference(
        target,
        int(narrowed(reference.permissions, item.permissions)),
        item.label,
        item.lifetime_ns,
        target.v_w,
        expires_ns=reference.expires_ns,
        retirements=target.retirements,
    )


def forked(step: Step, task: Holder, call: messages.Run) -> Order:
    """Return the order of a fork of a running task, which has the inputs of the call and no others.

    The fork has the memory of that task, so this needs every right on it. Its limits are those of that task.
    """
    reference = rights.typed(rights.held(task, call.like), ObjectType.TASK)
    origin = step.state.tasks.get(TaskId(reference.object.id))
    if reference.permissions != Permission.ALL or (
        isinstance(origin, Task) and origin.principal != task.principal
    ):
        raise NotPermittedError(
            "cannot fork the task: this needs every right on it", fingerprint=reference.object.fingerprint
        )
    if not isinstance(origin, Task) or origin.state is not TaskState.RUNNING:
        raise NoSuchTaskError("cannot fork the task: it does not run on this node")
    recipe = origin.recipe
    if recipe is None or not recipe.forkable:
        raise InvalidError("cannot fork the task: start it with forkable=True")
    if recipe.program.lost(step.now):
        raise StaleError("cannot fork the task: its program was deleted, retired or has expired")
    if (
        call.executable
        or call.outputs
        or call.arguments
        or call.limits != Limits()
        or call.work != Work()
        or call.template
        or call.flags & (Flag.FORKABLE | Flag.SANDBOX | Flag.GVISOR)
    ):
        raise InvalidError("a fork keeps its program, arguments, limits and work; leave them out")
    inputs = _delegable(task, call.inputs)
    again = replace(
        recipe,
        groups=groups.names_for_child(task, call.groups),
        inputs=tuple(map(_given, inputs, call.inputs)),
        outputs=(),
        brand=brand_for(step, task, recipe.brand),
        network=False,
        secrecy=union(task.secrecy, origin.secrecy, recipe.secrecy),
    )
    return Order(again, inputs, call.label or origin.label, None, origin.id)


def repeated(step: Step, task: Holder, call: messages.Run) -> Order:
    """Return the order of an earlier task, within another program if the call gives one.

    The other program becomes the executable, and the earlier program becomes its last input.
    """
    if not isinstance(task, Session):
        raise NotPermittedError("only a session may repeat a task, because the child gets all its references")
    reference = rights.typed(rights.held(task, call.like), ObjectType.TASK)
    former = step.state.tasks.get(TaskId(reference.object.id))
    if not isinstance(former, Task) or former.recipe is None:
        raise NoSuchTaskError("cannot repeat the task: the node no longer stores its recipe")
    if reference.permissions != Permission.ALL or former.principal != task.principal:
        raise NotPermittedError(
            "cannot repeat the task: this needs every right on it. Look up its name.",
            fingerprint=reference.object.fingerprint,
        )
    if (
        call.groups
        or call.outputs
        or call.arguments
        or call.limits != Limits()
        or call.work != Work()
        or call.template
        or call.flags & (Flag.SANDBOX | Flag.GVISOR)
    ):
        raise InvalidError(
            "a repeated task keeps its groups, outputs, arguments, limits and work; leave them out"
        )
    missing = not_repeatable(former.recipe, step.now)
    if missing:
        raise StaleError(missing, fingerprint=reference.object.fingerprint)
    recipe = former.recipe
    if call.executable:
        # A person looks at the program within another one, a debugger, for as long as that takes.
        recipe = replace(recipe, work=replace(recipe.work, time_ms=0))
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
        raise TooLargeError(f"cannot start the task: it would have more than {limits.ARGUMENTS_MAX} inputs")
    brand = brand_for(step, task, recipe.brand)
    confined = _is_confined(brand, network=recipe.network)
    secrecy = flows.label_of_child(step, task, program.object, recipe.secrecy, confined=confined)
    again = replace(recipe, program=program, inputs=inputs, brand=brand, secrecy=secrecy)
    require_content(task, again)
    origins = (*origins, *(None for _ in recipe.outputs))
    return Order(again, origins, call.label or former.label, program_origin)


def not_repeatable(recipe: Recipe, now: int) -> str:
    """Return the reason why a run with this recipe is impossible at ``now``; empty if it is possible.

    A recipe cannot restore retired or expired references: they count as lost.
    """
    gone = [
        f"{kind} {given.label or given.object.fingerprint}"
        for kind, all_given in (("input", recipe.inputs), ("output", recipe.outputs))
        for given in all_given
        if given.lost(now)
    ]
    if recipe.program.lost(now):
        gone.insert(0, "its program")
    if gone:
        return f"these were deleted, retired or have expired: {', '.join(gone)}"
    if any(given.object.home for given in (recipe.program, *recipe.inputs, *recipe.outputs)):
        # The references to remote objects ended with the task, so this node may not delegate them again.
        return "its program, or another of its objects, is on another node; start it with a new run"
    return ""


def stays_here(state: State, brand: Brand) -> bool:
    """Return True if a run with this brand goes to no other node, unless its caller named that node.

    A limbo task stays at the node of its user, unless the owner of this node lets in those of other nodes:
    then it may go to nodes whose owners do so, too.
    """
    is_limbo = brand is Brand.LIMBO and not state.restricted
    return is_limbo and (state.cluster is None or not state.cluster.here.limbo_from_nodes)


def brand_for(step: Step, task: Holder, wanted: Brand) -> Brand:
    """Return the brand of a child (Table 4.7); in restricted mode limbo becomes pure."""
    if wanted is Brand.LEGACY:
        raise InvalidError("run cannot start a legacy program; the host starts those")
    if wanted is Brand.LIMBO:
        if task.brand is Brand.PURE:
            raise NotPermittedError("a pure task may only start pure tasks")
        if step.state.restricted:
            return Brand.PURE
        here = step.require_cluster().here if isinstance(task, RemoteTask) else None
        if here is not None and not here.limbo_from_nodes:
            # Only the other node's word says who asks. That must not suffice to become this node's user.
            raise NotPermittedError(
                f"{here.name} starts tasks outside the sandbox only for users of its own machine. "
                "Run it pure, or at your own node, or ask that node's owner to set `limbo_from_nodes = yes`"
            )
        if not rights.is_nodes_own(step.state, task):
            # An unconfined task would have the rights of the node's user instead of the caller's.
            raise NotPermittedError(
                "only the node's own user and root may start tasks outside the sandbox; run it pure, "
                "or start a node of your own"
            )
    return wanted
