"""create, delete and stat: objects and the references to them (B.1.1, B.1.4, B.1.6)."""

from __future__ import annotations

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import flows, groups, network_streams, rights, user_records
from dios.core.calls.handlers import handles
from dios.core.calls.lifecycle import end_task_by
from dios.core.effects import WriteSource
from dios.core.model.accounts import require_object
from dios.core.model.names import deterministic_name, group_name
from dios.core.model.records import (
    Holder,
    LocalHolder,
    PhysicalObject,
    Provenance,
    descriptors_of_object,
)
from dios.core.model.type_rules import TypeRules, is_blob, rules_for_creation
from dios.core.model.type_states import StreamState, TimerState
from dios.core.remote import remote_calls
from dios.core.step import Step
from dios.errors import InvalidError, NotPermittedError, TooLargeError
from dios.ids import Name, ObjectId, TaskId
from dios.wire import messages
from dios.wire.types import (
    Deletion,
    Flag,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
)

_WITH_RING = network_streams.TYPES | {ObjectType.SHMEM_STREAM}


@handles(messages.Create, messages.CreateLabelled)
def create(step: Step, task: Holder, seq: int, call: messages.Create) -> None:
    """dios_create: create a logical object and its name, and answer with a reference with every right."""
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        remote_calls.create(step, task, seq, call, peer)
    else:
        create_in(step, task, seq, call, groups.names_for_creation(task, call.groups))


def create_in(
    step: Step, task: Holder, seq: int, call: messages.Create, group_names: tuple[Name, ...]
) -> None:
    """Create an object on this node in groups given by name. The caller may be a task of another node."""
    flags = rights.flags_of(call.flags, user_records.FLAGS)
    with_ring = min(2, len(group_names)) if call.object_type in _WITH_RING else 0
    step.spend(1 + (1 + len(group_names) + with_ring) // 3)
    rules = rules_for_creation(call.object_type, call.buffering)
    network_streams.require_right(step, task, call)
    if call.name_kind is NameKind.ANONYMOUS:
        group_names = ()
    if flags & user_records.FLAGS:
        group_names = user_records.groups_for(step, task, call)
    _check_size(call, rules)
    deletion = rules.deletion if call.deletion is None else call.deletion
    if deletion is Deletion.IMMORTAL:
        raise InvalidError("only the node may create immortal objects; choose another deletion mode")
    if call.object_type is ObjectType.GROUP:
        groups.require_room(task)
    accounts = (task.account, *step.state.accounts_of_groups(group_names))
    first_bytes = _first_bytes(step, call, rules)
    task.table.require_room()
    require_object(
        accounts,
        first_bytes,
        descriptors_of_object(call.object_type, call.buffering),
        volatile=call.object_type is not ObjectType.DURABLE_BLOB,
    )
    secrecy = flows.label_for_creation(step, task, call)
    name = _new_name(step, task, call)
    target = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        call.object_type,
        name,
        group_names,
        task.principal,
        deletion=deletion,
        buffering=call.buffering,
        proximity=rules.proximity,
        accounts=accounts,
        secrecy=secrecy,
    )
    target.version.resize(first_bytes)
    _set_type_state(step, target, call)
    step.state.add_object(target)
    if target.type is ObjectType.GROUP:
        groups.enter(step, task, target)
    _first_content(step, target, rules)
    shown = lifetimes.grant_shown(step, task, target, Permission.ALL, Provenance.CREATED)
    if network_streams.begin(step, task, seq, call, target):
        return
    detail = f"{target.type.name} {call.address}" if call.address else target.type.name
    step.audit(task, "create", "ok", target.fingerprint, detail)
    step.answer(task, seq, messages.Created(name, shown))


def _check_size(call: messages.Create, rules: TypeRules) -> None:
    if call.data is not None and not rules.bytes_in_host:
        raise InvalidError(f"a {call.object_type.name} cannot have initial bytes; leave the data out")
    if call.object_type in _WITH_RING and call.size:
        if not limits.STREAM_RING_BYTES_MIN <= call.size <= limits.STREAM_RING_BYTES_MAX:
            raise InvalidError(
                f"a ring cannot have {call.size} bytes; choose a size from {limits.STREAM_RING_BYTES_MIN}"
                f" to {limits.STREAM_RING_BYTES_MAX}"
            )
    elif call.size > limits.BLOB_BYTES_MAX and call.object_type is not ObjectType.TIMER_BLOB:
        raise TooLargeError(f"cannot create {call.size} bytes: the limit is {limits.BLOB_BYTES_MAX}")


def _first_bytes(step: Step, call: messages.Create, rules: TypeRules) -> int:
    """Return the number of bytes with which the new object is counted."""
    if call.object_type is ObjectType.SHMEM_STREAM:
        return call.size or limits.STREAM_RING_BYTES_DEFAULT
    if call.object_type in network_streams.TYPES:
        return network_streams.bytes_of_rings(call)
    return step.payload_size if rules.bytes_in_host else 0


def _new_name(step: Step, task: Holder, call: messages.Create) -> Name | None:
    kind = call.name_kind
    if kind is NameKind.RANDOM and call.object_type is ObjectType.GROUP and step.state.secret:
        random = step.state.entropy(limits.NAME_BYTES // 2)
        return group_name(step.state.secrets, random, task.principal)
    if kind is NameKind.ANONYMOUS:
        return None
    if call.flags & user_records.FLAGS:
        return user_records.name_of(step.state.secret, call.flags, task.principal)
    if kind is NameKind.RANDOM:
        return step.state.fresh_name()
    own = rights.local(task)
    name = deterministic_name(own.name, own.deterministic_count)
    own.deterministic_count += 1
    return name


def _set_type_state(step: Step, target: PhysicalObject, call: messages.Create) -> None:
    if target.type is ObjectType.SHMEM_STREAM:
        target.state = StreamState(call.size or limits.STREAM_RING_BYTES_DEFAULT)
    elif target.type is ObjectType.TIMER_BLOB:
        target.state = TimerState(step.now + call.size if call.size else 0)
        target.size = 8
    elif target.type is ObjectType.GROUP:
        target.size = limits.NAME_BYTES
    else:
        target.state = network_streams.state_for(call)


def _first_content(step: Step, target: PhysicalObject, rules: TypeRules) -> None:
    source = None
    if rules.bytes_in_host:
        source = WriteSource(payload=step.payload, length=step.payload_size)
        target.size = step.payload_size
    durable = rules.persistence is Persistence.DURABLE
    if durable:
        step.put(target, source)
    elif target.type is ObjectType.GROUP and groups.is_durable(step.state, target):
        step.put(target)
    if source is not None:
        if not durable:
            step.written.add(target.id)
        step.emit(effects.ApplyWrite(target.id, source, durable=durable))


@handles(messages.Delete)
def delete(step: Step, task: Holder, seq: int, call: messages.Delete) -> None:
    """dios_delete: drop the reference, then apply the object's deletion mode (§4.2).

    Answers 0 if the object was destroyed already and only a stale reference was dropped.
    """
    flags = rights.flags_of(call.flags, Flag.HANDLE_ONLY | Flag.DESTROY)
    reference = rights.held(task, call.ref)
    target = reference.object
    was_living = not target.zombie
    step.require_unread(target)
    if flags & Flag.DESTROY:
        rights.held(task, call.ref, Permission.DELETE)
        if was_living and not rights.may_delete(task, reference):
            raise NotPermittedError(
                "the task only resolved this group's name; a member or the group's creator must destroy it",
                fingerprint=target.fingerprint,
            )
        if target.deletion is Deletion.IMMORTAL:
            raise InvalidError("an immortal object cannot be destroyed")
    if call.counted and was_living and reference.permissions & Permission.READ and is_blob(target.type):
        target.count_reads(call.counted)
        step.changed(target)
    local = task if isinstance(task, LocalHolder) else None
    itself = local is not None and reference.id == local.self_ref
    if (
        local is not None
        and target is local.object
        and (flags & Flag.DESTROY or (itself and not flags & Flag.HANDLE_ONLY))
    ):
        if step.parts is not None:
            raise InvalidError("a task cannot end itself in a vector. Send the delete alone.")
        step.answer(task, seq, messages.Done(1))
        end_task_by(step, local, task, "it deleted its self-reference")
        return
    if itself or (
        local is not None and target is local.console and reference.provenance is Provenance.INITIAL
    ):
        raise InvalidError("a task cannot drop the references to itself and its console before it ends")
    if target.type is ObjectType.TASK and flags & Flag.DESTROY:
        # The reference stays, because the caller may want to read the exit status.
        victim = step.state.tasks.get(TaskId(target.id))
        if victim is not None and victim.alive:
            end_task_by(step, victim, task, "ended by a task that holds the right to delete it")
    else:
        immediate = target.deletion is Deletion.IMMEDIATE and rights.may_delete(task, reference)
        step.depend_on(target)
        lifetimes.drop_reference(step, reference)
        if not flags & Flag.HANDLE_ONLY and (immediate or flags & Flag.DESTROY) and not target.zombie:
            step.audit(task, "delete", "ok", target.fingerprint, target.type.name)
            if target.type is ObjectType.GROUP:
                groups.notify_disbanded(step, target)
            lifetimes.destroy(step, target)
    step.answer(task, seq, messages.Done(1 if was_living else 0))


@handles(messages.Stat)
def stat(step: Step, task: Holder, seq: int, call: messages.Stat) -> None:
    """Answer with the present public attributes of a reference."""
    reference = rights.held(task, call.ref)
    step.depend_on(reference.object)
    step.answer(task, seq, messages.References((reference.public(),)))
