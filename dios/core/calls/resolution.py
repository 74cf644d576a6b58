"""Name resolution: an external name to new references, or to none (thesis §4.3.3, B.1.2).

A name that does not exist, and a name in a group that the caller is not a member of, take the same path and
get the same empty answer. ``dios.core.remote.remote_lookup`` continues on other nodes.
"""

from __future__ import annotations

from msgspec.structs import replace

from dios.core import lifetimes
from dios.core.calls import network_streams, rights, user_records
from dios.core.calls.handlers import handles
from dios.core.model.accounts import require_each
from dios.core.model.names import CONSOLE, NETWORK, TIMER, internal_name, special_number
from dios.core.model.records import Holder, PhysicalObject, Provenance, Reference, Session
from dios.core.model.type_rules import may_be_shared
from dios.core.model.type_states import TimerState
from dios.core.remote import remote_lookup
from dios.core.step import Step
from dios.ids import InternalName, Name, ObjectId, RefId
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, Flag, ObjectType, Permission, Proximity, Resource

_NO_GROUP = Name(bytes(32))


@handles(messages.Lookup)
def lookup(step: Step, task: Holder, seq: int, call: messages.Lookup) -> None:
    """dios_lookup: answer with at most ``limit`` references to reachable physical objects of this name."""
    flags = rights.flags_of(call.flags, Flag.LOCAL_ONLY | Flag.NON_BLOCKING)
    name = Name(call.name)
    number = special_number(name)
    incomplete = False
    share = None
    records = user_records.searched(step, task, number)
    if number and records is None:
        task.table.require_room()
        task.account.require(Resource.REFERENCES, 1)  # both checked before a timer is created
        targets = _special(step, task, number)
    else:
        searched, share = _groups_to_search(task, call.group)
        if records is not None:
            name, group = records
            call, searched = replace(call, name=name), (group,)
        names = tuple(internal_name(name, group) for group in searched)
        step.spend(len(names) // 16)
        targets = (_reachable if records is None else _own_records)(step, task, names, call.limit, share)
        further = step.state.cluster is not None and not flags & Flag.LOCAL_ONLY
        if further and len(targets) < call.limit:
            if step.parts is None and not flags & Flag.NON_BLOCKING:
                shared = RefId(0) if share is None else share.id
                remote_lookup.search(step, task, seq, call, targets, names, share=shared)
                return
            incomplete = True
    targets = targets[: call.limit]
    task.table.require_room(len(targets))
    task.account.require(Resource.REFERENCES, len(targets))
    require_each((account for target in targets for account in target.sharing), Resource.REFERENCES)
    if share is None:
        references = tuple(
            lifetimes.grant_shown(step, task, target, Permission.ALL, Provenance.RESOLVED)
            for target in targets
        )
    else:
        references = tuple(
            lifetimes.grant(step, task, target, Permission.READ, Provenance.RESOLVED, origin=share).public()
            for target in targets
        )
    step.audit(task, "lookup", "ok" if references else "empty", fingerprint(name))
    step.answer(task, seq, messages.References(references, incomplete))


def _reachable(
    step: Step, task: Holder, names: tuple[InternalName, ...], limit: int, share: Reference | None
) -> tuple[PhysicalObject, ...]:
    """Return at most ``limit`` objects that the task may find.

    Private memory is found only with a reference, and by a share only types that may be shared.
    """
    every: dict[int, PhysicalObject] = {}
    for looked, target in enumerate(step.state.find_named(names)):
        if not looked % 16:
            step.spend(1)
        if share is not None and not may_be_shared(target.type):
            continue
        if target.type is not ObjectType.PRIVMEM_BLOB or any(target.held_by(task)):
            every[target.id] = target
            if len(every) >= limit:
                break
    return tuple(every.values())


def _own_records(
    step: Step, task: Holder, names: tuple[InternalName, ...], limit: int, share: Reference | None
) -> tuple[PhysicalObject, ...]:
    """Return the records of the caller's own, and nothing that another node has put under their name."""
    targets = _reachable(step, task, names, limit, share)
    return tuple(target for target in targets if target.owner == task.principal)


def _groups_to_search(task: Holder, group_ref: int) -> tuple[tuple[Name, ...], Reference | None]:
    """Return the groups to search, and the reference to the record of the share by which the caller may.

    If the caller is not a member of the given group, return a group that does not exist: the same work is
    done, so that the time of the call reveals nothing about the real group.
    """
    if not group_ref:
        return tuple(task.memberships), None
    reference = rights.typed(rights.living(rights.held(task, group_ref)), ObjectType.GROUP)
    group = reference.object.name
    if group is None or rights.is_member(task, reference):
        return (group or _NO_GROUP,), None
    held = task.shares.get(group) if isinstance(task, Session) else None
    share = None if held is None else task.table.find(held.id)
    if share is None or share.object.zombie:
        return (_NO_GROUP,), None
    return (group,), share


def _special(step: Step, task: Holder, number: int) -> tuple[PhysicalObject, ...]:
    """Resolve a special name. Its meaning depends on the caller, and no group is searched."""
    if number == CONSOLE:
        return (rights.local(task).console,)
    if number == TIMER:
        task.account.require(Resource.OBJECTS, 1)
        clock = PhysicalObject(
            ObjectId(step.state.fresh_id()),
            ObjectType.TIMER_BLOB,
            None,
            (),
            task.principal,
            deletion=Deletion.REFERENCE_COUNTED,
            proximity=Proximity.PROCESS,
            accounts=(task.account,),
        )
        clock.state = TimerState(0)
        clock.size = 8
        step.state.add_object(clock)
        return (clock,)
    if number == NETWORK and network_streams.may_resolve(step.state, task):
        return (network_streams.object_of(step.state),)
    return ()
