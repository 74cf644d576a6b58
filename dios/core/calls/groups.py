"""Groups: namespaces as objects, and what Table 4.2 allows (thesis §4.4).

References to groups are never delegated; ``dios.core.calls.access`` refuses that.
"""

from __future__ import annotations

from dios import limits
from dios.core import lifetimes
from dios.core.calls import access
from dios.core.model.names import home_name, is_signed
from dios.core.model.records import Holder, PhysicalObject, Session
from dios.core.model.state import State
from dios.core.remote import requests
from dios.core.step import Step
from dios.errors import LimitError, NotPermittedError
from dios.ids import Name, ObjectId, Principal
from dios.limits import NAME_BYTES
from dios.wire import dcp
from dios.wire.dcp import GroupName
from dios.wire.types import Deletion, ObjectType


def names_for_creation(task: Holder, refs: tuple[int, ...]) -> tuple[Name, ...]:
    """Names of the groups a new object goes into: any group object the task can refer to will do."""
    found: dict[Name, None] = {}
    for ref_id in refs:
        reference = access.typed(access.living(access.held(task, ref_id)), ObjectType.GROUP)
        if reference.object.name is not None:
            found[reference.object.name] = None
    return tuple(found)


def names_for_child(task: Holder, refs: tuple[int, ...]) -> tuple[Name, ...]:
    """Memberships for a child: only of groups the parent is a member of, or created (Figure 4.5)."""
    found: dict[Name, None] = {}
    for ref_id in refs:
        reference = access.typed(access.living(access.held(task, ref_id)), ObjectType.GROUP)
        if not access.may_grant(task, reference):
            raise NotPermittedError(
                "the task merely resolved this group's name; members and its creator can grant membership",
                fingerprint=reference.object.fingerprint,
            )
        if reference.object.name is not None:
            found[reference.object.name] = None
    return tuple(found)


def enter(step: Step, task: Holder, group: PhysicalObject) -> None:
    """Note a group just created by ``task``."""
    if group.name is None:
        return
    step.state.enter_group(group)
    task.created_groups.add(group.name)
    if isinstance(task, Session):
        # A session could come back at once with this group in its keyring and be made a member then,
        # so that denying it now would protect nobody (ADR 0003).
        task.memberships[group.name] = None


def is_durable(state: State, group: PhysicalObject) -> bool:
    """A group outlives the node when one of its parents does: its objects may be durable."""
    parents = [state.groups.get(name) for name in group.groups]
    return any(parent is not None and parent.recorded is not None for parent in parents)


def home_of(step: Step, principal: Principal) -> PhysicalObject:
    """The principal's home group, made at its first session (semantics, Groups)."""
    home = step.state.homes.get(principal)
    if home is None:
        home = PhysicalObject(
            ObjectId(step.state.fresh_id()),
            ObjectType.GROUP,
            home_name(step.state.secret, principal) if step.state.secret else step.state.fresh_name(),
            (),
            principal,
            deletion=Deletion.IMMORTAL,
        )
        adopt_home(step.state, home)
        step.put(home)
    return home


def adopt_home(state: State, home: PhysicalObject) -> None:
    """Enter a home group into the node's tables; it is a group without a parent that never dies."""
    state.add_object(home)
    home.pinned += 1
    state.homes[home.owner] = home
    state.enter_group(home)


def fresh_group(step: Step, principal: Principal) -> PhysicalObject:
    """The otherwise empty group of a task that was started with none (§4.4, Bootstrap)."""
    group = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        ObjectType.GROUP,
        step.state.fresh_name(),
        (),
        principal,
        deletion=Deletion.REFERENCE_COUNTED,
    )
    step.state.add_object(group)
    step.state.enter_group(group)
    return group


def owned_by(step: Step, names: tuple[Name, ...], principal: Principal) -> tuple[PhysicalObject, ...]:
    """Those of the presented groups that belong to the principal: the node injects membership of them.

    One that was made on another node of the cluster shows by its name whose it is.
    """
    state = step.state
    found: list[PhysicalObject] = []
    for name in dict.fromkeys(names):
        # Asked of every name alike: what takes how long tells nobody which groups there are.
        signed = is_signed(state.secret, name, principal)
        group = state.groups.get(name)
        if signed and group is None:
            group = group_for(step, GroupName(name, principal))
        mine = group is not None and group.owner == principal
        if group is not None and mine:
            found.append(group)
    return tuple(found)


# -- groups of other nodes --------------------------------------------------------------------------
def group_for(step: Step, told: GroupName) -> PhysicalObject | None:
    """The group of this name, made known here if it was not: a group is its name, wherever it is.

    None for one that was destroyed: who speaks of it has not heard of that yet. EDQUOT over their bound.
    """
    group = step.state.groups.get(told.name)
    if group is None and _is_disbanded(step, told.name):
        return None
    if group is None and len(step.state.groups) >= limits.GROUPS_KNOWN_MAX:
        raise LimitError(f"this node knows {len(step.state.groups)} groups, and takes no more of others")
    if group is None:
        group = PhysicalObject(
            ObjectId(step.state.fresh_id()),
            ObjectType.GROUP,
            told.name,
            (),
            Principal(told.owner),
            deletion=Deletion.IMMEDIATE,
        )
        group.size = NAME_BYTES
        step.state.add_object(group)
        step.state.enter_group(group)
    return group


def described(step: Step, names: tuple[Name, ...]) -> tuple[GroupName, ...]:
    """Groups as another node is told of them."""
    found = (step.state.groups.get(name) for name in names)
    return tuple(GroupName(group.name, group.owner) for group in found if group is not None and group.name)


def names_for(step: Step, told: tuple[GroupName, ...]) -> tuple[Name, ...]:
    """The names of those groups, made known here; without any that was destroyed."""
    found = (group_for(step, one) for one in told)
    return tuple(group.name for group in found if group is not None and group.name is not None)


def disband(step: Step, name: Name) -> None:
    """The group was destroyed on another node."""
    _remember(step, name)
    group = step.state.groups.get(name)
    if group is not None and group.deletion is not Deletion.IMMORTAL and not group.zombie:
        lifetimes.destroy(step, group)


def notify_disbanded(step: Step, group: PhysicalObject) -> None:
    """Every other node learns that a group is no more; one that is out of reach when it is back."""
    cluster = step.state.cluster
    if cluster is None or group.name is None:
        return
    _remember(step, group.name)
    for peer in cluster.peers.values():
        requests.notify_reliably(step, peer, group.name, dcp.Disband(group.name))


def _remember(step: Step, name: Name) -> None:
    cluster = step.state.cluster
    if cluster is not None:
        cluster.disbanded[name] = None
        if len(cluster.disbanded) > limits.DISBANDED_GROUPS_MAX:
            del cluster.disbanded[next(iter(cluster.disbanded))]


def _is_disbanded(step: Step, name: Name) -> bool:
    cluster = step.state.cluster
    return cluster is not None and name in cluster.disbanded
