"""Groups: namespaces as objects, and the rights of Table 4.2 (thesis §4.4).

References to groups are never delegated; ``dios.core.calls.rights`` refuses that.
"""

from __future__ import annotations

from dios import limits
from dios.core import lifetimes
from dios.core.calls import rights
from dios.core.calls.handlers import handles
from dios.core.model.accounts import require_each
from dios.core.model.names import home_name, is_signed, logs_group
from dios.core.model.records import Holder, PhysicalObject, Provenance, Reference, Session
from dios.core.model.state import State
from dios.core.remote import requests
from dios.core.step import Step
from dios.errors import LimitError, NotPermittedError, UnreachableError
from dios.ids import Name, ObjectId, Principal
from dios.limits import NAME_BYTES
from dios.wire import dcp, messages
from dios.wire.dcp import GroupName
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, ObjectType, Permission, Resource


def names_for_creation(task: Holder, refs: tuple[int, ...]) -> tuple[Name, ...]:
    """Return the names of the groups for a new object. The task may use every group it has a reference to."""
    names: dict[Name, None] = {}
    for ref_id in refs:
        reference = rights.typed(rights.living(rights.held(task, ref_id, Permission.WRITE)), ObjectType.GROUP)
        if reference.object.name is not None:
            names[reference.object.name] = None
    return tuple(names)


def names_for_child(task: Holder, refs: tuple[int, ...]) -> tuple[Name, ...]:
    """Return a child's memberships. The parent must be a member or the creator of each (Figure 4.5)."""
    names: dict[Name, None] = {}
    for ref_id in refs:
        reference = rights.typed(rights.living(rights.held(task, ref_id)), ObjectType.GROUP)
        if not rights.may_grant(task, reference):
            raise NotPermittedError(
                "the task only resolved this group's name; a member or the group's creator must grant this",
                fingerprint=reference.object.fingerprint,
            )
        if reference.object.name is not None:
            names[reference.object.name] = None
    return tuple(names)


def require_room(task: Holder) -> None:
    """Raise LimitError if a session may not create one more group, of which it would become a member."""
    if isinstance(task, Session) and len(task.memberships) >= limits.MEMBERSHIPS_PER_TASK_MAX:
        raise LimitError(
            f"the session is a member of {len(task.memberships)} groups, the maximum. Destroy one that"
            " it has created, or connect again: a new session is only a member of the groups in its keyring."
        )


def enter(step: Step, task: Holder, group: PhysicalObject) -> None:
    """Record a group that ``task`` just created."""
    if group.name is None:
        return
    step.state.enter_group(group)
    group.creator = task.id
    if isinstance(task, Session):
        # A session could reconnect with this group in its keyring and become a member then,
        # so that denying membership now would protect nothing (ADR 0003).
        step.state.enter_member(task, group.name)


def is_durable(state: State, group: PhysicalObject) -> bool:
    """Return True if one of the group's parents is stored, so that the group may hold durable objects."""
    parents = [state.groups.get(name) for name in group.groups]
    return any(parent is not None and parent.recorded is not None for parent in parents)


def home_of(step: Step, principal: Principal) -> PhysicalObject:
    """Return the principal's home group; create it for the first session (semantics, Groups)."""
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
    """Enter a home group into the node's tables. It has no parent and is never destroyed."""
    state.add_object(home)
    home.pinned += 1
    state.homes[home.owner] = home
    if home.name is not None:
        state.log_groups.add(logs_group(home.name))
    state.enter_group(home)


def fresh_group(step: Step, principal: Principal) -> PhysicalObject:
    """Create the empty group of a task that was started without groups (§4.4, Bootstrap)."""
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


@handles(messages.Present)
def present(step: Step, task: Holder, seq: int, call: messages.Present) -> None:
    """Make a session a member of those of the named groups that its principal owns (ADR 0003)."""
    if not isinstance(task, Session):
        raise NotPermittedError(
            "only a user's process presents groups; the memberships of a task are fixed when it starts"
        )
    names = tuple(dict.fromkeys(Name(name) for name in call.groups))
    further = sum(name not in task.memberships for name in names)
    if len(task.memberships) + further > limits.MEMBERSHIPS_PER_TASK_MAX:
        raise LimitError(
            f"the session is a member of {len(task.memberships)} groups and cannot enter {further} more:"
            f" the maximum is {limits.MEMBERSHIPS_PER_TASK_MAX}. Connect again with the groups that you need."
        )
    task.table.require_room(len(names))
    task.account.require(Resource.REFERENCES, len(names))
    step.spend(1 + len(names) // 2)
    owned = owned_by(step, names, task.principal)
    require_each((account for group in owned for account in group.sharing), Resource.REFERENCES)
    shown: list[messages.Reference] = []
    for group in owned:
        if group.name is not None and group.name not in task.memberships:
            step.state.enter_member(task, group.name)
        shown.append(lifetimes.grant_shown(step, task, group, Permission.ALL, Provenance.INITIAL))
    mark = task.object.fingerprint
    if owned:
        step.audit(task, "present", "ok", mark, f"{len(owned)} groups")
    if len(owned) < len(names):
        step.audit(task, "present", "denied", mark, f"{len(names) - len(owned)} groups refused")
    step.answer(task, seq, messages.References(tuple(shown)))


def owned_by(step: Step, names: tuple[Name, ...], principal: Principal) -> tuple[PhysicalObject, ...]:
    """Return those of the presented groups that the principal owns: the node makes it a member of them.

    The name of a group from another node of the cluster carries a signature that proves the owner.
    """
    state = step.state
    groups: list[PhysicalObject] = []
    for name in dict.fromkeys(names):
        # Verify every name, so that the time a call takes does not reveal which groups exist.
        signed = is_signed(state.secrets, name, principal)
        group = state.groups.get(name)
        if signed and group is None:
            group = group_for(step, GroupName(name, principal))
        owned = group is not None and (signed or group.owner == principal)
        if group is not None and owned:
            groups.append(group)
    return tuple(groups)


def enter_share(
    step: Step,
    task: Session,
    seq: int,
    call: messages.AcceptShare,
    record: Reference | None,
    *,
    incomplete: bool,
) -> None:
    """Let a session read a group that is shared with its principal, or refuse it without a record of that."""
    group = None if record is None else group_for(step, GroupName(Name(call.group), call.issuer))
    if record is None or group is None or group.name is None:
        step.audit(task, "accept", "denied", fingerprint(call.group), f"of {call.issuer}")
        if record is not None:
            lifetimes.drop_reference(step, record)
        if incomplete:
            step.refuse(task, seq, UnreachableError("the node with the record of the share does not answer"))
            return
        step.refuse(
            task,
            seq,
            NotPermittedError(
                "there is no record of the share: it was withdrawn or revoked, or it is not for "
                f"{task.principal}, or the grant was changed. Ask its issuer for a new one."
            ),
        )
        return
    former = task.shares.get(group.name)
    if former is not None:
        lifetimes.drop_reference(step, former)
    task.shares[group.name] = record
    target = record.object
    step.state.share_holders.setdefault((target.home, ObjectId(target.id)), {})[task.id] = group.name
    shown = lifetimes.grant(step, task, group, Permission.READ, Provenance.RESOLVED, origin=record)
    step.audit(task, "accept", "ok", group.fingerprint, f"of {call.issuer}")
    step.answer(task, seq, messages.References((shown.public(),)))


# -- groups of other nodes --------------------------------------------------------------------------
def group_for(step: Step, described_group: GroupName) -> PhysicalObject | None:
    """Return the group with this name; enter it if this node does not know it, because a group is its name.

    Return None if the group was destroyed and the other node has not learned of that yet.

    Raises:
        LimitError: this node knows ``GROUPS_KNOWN_MAX`` groups already.
    """
    group = step.state.groups.get(described_group.name)
    if group is None and _is_disbanded(step, described_group):
        return None
    if group is None and len(step.state.groups) >= limits.GROUPS_KNOWN_MAX:
        raise LimitError(
            f"cannot enter a group of another node: this node knows {len(step.state.groups)} groups already"
        )
    if group is None:
        group = PhysicalObject(
            ObjectId(step.state.fresh_id()),
            ObjectType.GROUP,
            described_group.name,
            (),
            _proven_owner(step, described_group),
            deletion=Deletion.IMMEDIATE,
        )
        group.size = NAME_BYTES
        step.state.add_object(group)
        step.state.enter_group(group)
    return group


def _proven_owner(step: Step, described_group: GroupName) -> Principal:
    """Return the owner of another node's group if the name proves it, else nobody.

    Nobody becomes a member of a group without an owner by presenting its name.
    """
    secrets, name, owner = step.state.secrets, described_group.name, Principal(described_group.owner)
    is_home = bool(secrets.first) and name == home_name(secrets.first, owner)
    proven = is_home or is_signed(secrets, name, owner)
    return owner if proven else Principal("")


def described(step: Step, names: tuple[Name, ...]) -> tuple[GroupName, ...]:
    """Return the groups with these names, as they are described to another node."""
    candidates = (step.state.groups.get(name) for name in names)
    return tuple(
        GroupName(group.name, group.owner) for group in candidates if group is not None and group.name
    )


def names_for(step: Step, described_groups: tuple[GroupName, ...]) -> tuple[Name, ...]:
    """Return the names of these groups without destroyed groups; enter the groups if they are unknown."""
    candidates = (group_for(step, described_group) for described_group in described_groups)
    return tuple(group.name for group in candidates if group is not None and group.name is not None)


def disband(step: Step, name: Name) -> None:
    """Destroy a group that was destroyed on another node.

    A home group never is: its name follows from the cluster's secret, so that any node could say so.
    """
    _remember(step, name)
    group = step.state.groups.get(name)
    if group is None or group.deletion is Deletion.IMMORTAL or _is_home(step, name, group.owner):
        return
    if not group.zombie:
        lifetimes.destroy(step, group)


def _is_home(step: Step, name: Name, owner: str) -> bool:
    return bool(step.state.secret) and name == home_name(step.state.secret, owner)


def notify_disbanded(step: Step, group: PhysicalObject) -> None:
    """Notify every other node that a group was destroyed; a node that is out of reach learns of it later."""
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


def _is_disbanded(step: Step, described_group: GroupName) -> bool:
    cluster, name = step.state.cluster, described_group.name
    return (
        cluster is not None and name in cluster.disbanded and not _is_home(step, name, described_group.owner)
    )
