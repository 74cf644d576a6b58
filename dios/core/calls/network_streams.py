"""Network streams (Table 4.1): the right to create them, their creation and their end.

A task with a writable reference to the node's NETWORK object may create network streams on this node. This
reference can be delegated like any other. Its holder may create further NETWORK objects that are limited to
origins: the holder of such an object may connect to these, and record HTTP requests to them in the audit log.
A create call is answered when the socket is open. A TCP_ACCEPT_STREAM is a stream of references: each read
returns one connection, to one reader.

The host has the sockets, and the bytes pass through rings in shared memory, never through the core.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import rights
from dios.core.calls.handlers import handles
from dios.core.events import ConnectionArrived, DatagramsDropped, NetworkFailed, NetworkOpened
from dios.core.model.accounts import require_bytes
from dios.core.model.records import Holder, Pending, PhysicalObject, Provenance, Reference, Session
from dios.core.model.state import State
from dios.core.model.type_states import AcceptState, LimitedNetwork, NetworkState, SocketState
from dios.core.step import Step
from dios.errors import Code, InvalidError, NotPermittedError
from dios.ids import ObjectId
from dios.wire import messages
from dios.wire.addresses import split_address
from dios.wire.origins import parse_origins
from dios.wire.types import Deletion, Mode, ObjectType, Permission, RequestEnd, Resource

TYPES: Final = frozenset({ObjectType.UDP_STREAM, ObjectType.TCP_STREAM, ObjectType.TCP_ACCEPT_STREAM})

_RINGS_OF_SOCKET: Final = 2


# -- the right --------------------------------------------------------------------------------------
def object_of(state: State) -> PhysicalObject:
    """Return the node's only NETWORK object, which has no name and is immortal."""
    if state.network is None:
        network = PhysicalObject(
            ObjectId(state.fresh_id()),
            ObjectType.NETWORK,
            None,
            (),
            state.node_owner,
            deletion=Deletion.IMMORTAL,
        )
        network.pinned = 1
        state.add_object(network)
        state.network = network
    return state.network


def may_resolve(state: State, task: Holder) -> bool:
    """Return True if the task may resolve the special name NETWORK.

    Sessions of the node's own user and of root may. Other tasks need a delegated reference.
    """
    return isinstance(task, Session) and rights.is_nodes_own(state, task)


def require_right(step: Step, task: Holder, call: messages.Create) -> None:
    """Check the right to create a network stream, and the address.

    Raises:
        NotPermittedError: the task has no writable reference to the NETWORK object.
        InvalidError: the address is wrong, or does not fit the type.
    """
    if call.object_type is ObjectType.NETWORK:
        if not call.address or call.network:
            raise InvalidError("a NETWORK object is limited to origins: name them as its address")
        _require_full_right(step, task, call)
        limited_state(call)
        return
    if call.object_type not in TYPES:
        if call.address or call.network:
            raise InvalidError(f"a {call.object_type.name} has no network address; leave the address out")
        return
    if step.parts is not None:
        raise InvalidError("cannot create a network stream in a vector: it has to wait. Send it alone.")
    if call.network:
        _, limited = _limited(task, call.network)
        if call.object_type is not ObjectType.TCP_STREAM or call.address not in limited.destinations:
            raise NotPermittedError(
                f"this NETWORK object permits connections to {', '.join(limited.origins)}, and nothing else"
            )
    else:
        _require_full_right(step, task, call)
    split_address(call.address)
    step.state.pending.require_room(task)


def _require_full_right(step: Step, task: Holder, call: messages.Create) -> None:
    references = () if step.state.network is None else step.state.network.held_by(task)
    if not any(held.permissions & Permission.WRITE for held in references):
        raise NotPermittedError(
            f"a {call.object_type.name} requires a reference to the NETWORK object with the right to write; "
            "the node's own user gets it by `node.network()`, and can delegate it as an input"
        )


def _limited(task: Holder, ref: int) -> tuple[PhysicalObject, LimitedNetwork]:
    """Return a NETWORK object that is limited to origins, which the task may use."""
    target = rights.for_io(task, ref, Mode.WRITE).object
    if not isinstance(target.state, LimitedNetwork):
        raise InvalidError("needs a reference to a NETWORK object that is limited to origins")
    return target, target.state


def limited_state(call: messages.Create) -> LimitedNetwork:
    """Return the state of a new NETWORK object. Raise InvalidError for a text that is no origin."""
    origins = parse_origins(call.address.split(" "))
    return LimitedNetwork(tuple(map(str, origins)), tuple(origin.destination for origin in origins))


@handles(messages.RecordRequest)
def record_request(step: Step, task: Holder, seq: int, call: messages.RecordRequest) -> None:
    """Record the end of an HTTP request to an origin in the audit log.

    Raises:
        NotPermittedError: the reference lacks the right to write.
        InvalidError: it is not to a limited NETWORK object, which has this origin, or the method is no word.
    """
    target, limited = _limited(task, call.ref)
    if call.origin >= len(limited.origins):
        raise InvalidError(f"this NETWORK object has {len(limited.origins)} origins")
    if not (call.method.isascii() and call.method.isalpha()):
        raise InvalidError("a method has letters alone")
    end = call.end
    request = f"{call.method} {limited.origins[call.origin]}"
    if end is RequestEnd.REFUSED:
        # Without numbers, so that equal refusals become one record.
        step.audit(task, "request", "denied", target.fingerprint, request)
    else:
        outcome = "ok" if end is RequestEnd.ANSWERED else "failed"
        text = str(call.status) if end is RequestEnd.ANSWERED else str(end)
        detail = f"{request} {text}, {call.sent} bytes sent, {call.received} received"
        step.audit(task, "request", outcome, target.fingerprint, detail)
    step.answer(task, seq, messages.Done())


# -- creation -----------------------------------------------------------------------------------------
def _ring_bytes(call: messages.Create) -> int:
    return call.size or limits.NETWORK_RING_BYTES_DEFAULT


def bytes_of_rings(call: messages.Create) -> int:
    """Return the number of bytes with which the new object is counted."""
    return 0 if call.object_type is ObjectType.TCP_ACCEPT_STREAM else _RINGS_OF_SOCKET * _ring_bytes(call)


def state_for(call: messages.Create) -> NetworkState | LimitedNetwork | None:
    """Return the state of a new network stream or NETWORK object, or None for other types."""
    if call.object_type is ObjectType.NETWORK:
        return limited_state(call)
    if call.object_type not in TYPES:
        return None
    if call.object_type is ObjectType.TCP_ACCEPT_STREAM:
        return AcceptState(_ring_bytes(call))
    return SocketState(_ring_bytes(call))


def begin(step: Step, task: Holder, seq: int, call: messages.Create, target: PhysicalObject) -> bool:
    """Open the socket, and let the call wait for it. Return False if the type has no socket."""
    if not isinstance(target.state, SocketState | AcceptState):
        return False
    step.emit(
        effects.OpenNetwork(
            target.id,
            target.type,
            call.address,
            target.state.ring_bytes,
            bool(call.network),
            task.principal,
        )
    )
    step.wait(Pending(task, seq, call, {target: ()}))
    return True


def finish(step: Step, row: Pending) -> None:
    """Answer a waiting create if its socket is open or failed."""
    target = next(iter(row.watched))
    state = target.state
    if not isinstance(state, SocketState | AcceptState) or not (state.opened or target.zombie):
        return
    step.state.pending.remove(row)
    reference = next(target.held_by(row.task), None)
    origin = _origin_of(row)
    if reference is None or target.zombie:
        failure = state.failure or messages.Failure(
            int(Code.ESTALE), "cannot create the stream: it was deleted before its socket was open"
        )
        detail = f"{target.type.name} {failure.message}{origin}"
        step.audit(row.task, "create", "failed", target.fingerprint, detail)
        if reference is not None:
            lifetimes.drop_reference(step, reference)
        step.answer(row.task, row.seq, failure)
        return
    step.audit(row.task, "create", "ok", target.fingerprint, f"{target.type.name} {target.address}{origin}")
    step.answer(row.task, row.seq, messages.Created(target.name, reference.public()))


def _origin_of(row: Pending) -> str:
    """Return the origin of a connection as the audit log has it; empty if the connection has no such bound.

    A gateway that ends before it has recorded a request leaves the record of the connection alone.
    """
    call = row.call
    network = row.task.table.find(call.network) if isinstance(call, messages.Create) else None
    limited = None if network is None else network.object.state
    if not isinstance(call, messages.Create) or not isinstance(limited, LimitedNetwork):
        return ""
    pairs = zip(limited.origins, limited.destinations, strict=True)
    return " for " + " or ".join(origin for origin, place in pairs if place == call.address)


def drop_cancelled_create(step: Step, row: Pending) -> None:
    """Drop the reference of a create that was cancelled, because its caller will not learn of it."""
    if isinstance(row.call, messages.Create) and row.watched:
        for reference in list(next(iter(row.watched)).held_by(row.task)):
            lifetimes.drop_reference(step, reference)


# -- events of the host -----------------------------------------------------------------------------
def _find(step: Step, object_id: ObjectId) -> tuple[PhysicalObject, NetworkState] | None:
    target = step.state.objects.get(object_id)
    if target is None or not isinstance(target.state, SocketState | AcceptState):
        return None
    return target, target.state


def opened(step: Step, event: NetworkOpened) -> None:
    """Note that the socket is open."""
    stream = _find(step, event.object)
    if stream is not None:
        target, state = stream
        state.opened = True
        target.address = event.address
        step.changed(target)


def failed(step: Step, event: NetworkFailed) -> None:
    """Note that the socket could not be opened, or broke, so that readers do not see a normal end."""
    stream = _find(step, event.object)
    if stream is not None:
        target, state = stream
        state.failure = messages.Failure(event.code, event.message, target.fingerprint)
        # Published before the rings end, so that a reader that finds the end can see that it is not normal.
        target.zombie = True
        step.changed(target)
        step.flush_counters()
        lifetimes.destroy(step, target)


def dropped(step: Step, event: DatagramsDropped) -> None:
    """Count datagrams that a full ring dropped in the counter of failed writes."""
    stream = _find(step, event.object)
    if stream is not None:
        stream[0].dirty += event.count
        step.changed(stream[0])


def arrived(step: Step, event: ConnectionArrived) -> None:
    """Queue a connection until a reader accepts it."""
    stream = _find(step, event.object)
    if stream is not None and isinstance(stream[1], AcceptState):
        stream[1].arrived.append((event.number, event.address))
        stream[0].size = len(stream[1].arrived)
        stream[0].v_w += 1
        step.changed(stream[0])


# -- connections ----------------------------------------------------------------------------------------
def hand_out(step: Step, reference: Reference, state: AcceptState, seq: int) -> None:
    """Answer a read of a TCP_ACCEPT_STREAM: the next connection becomes an object of the reader.

    If the reader has no room for it, the call is refused and the connection stays for the next reader.
    """
    task, acceptor = reference.task, reference.object
    rights.living(reference)
    size = _RINGS_OF_SOCKET * state.ring_bytes
    task.table.require_room()
    task.account.require(Resource.REFERENCES, 1)
    task.account.require(Resource.OBJECTS, 1)
    task.account.require(Resource.DESCRIPTORS, limits.SOCKET_DESCRIPTORS)
    require_bytes((task.account,), size, volatile=True)
    number, address = state.arrived.popleft()
    target = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        ObjectType.TCP_STREAM,
        None,
        (),
        task.principal,
        deletion=Deletion.REFERENCE_COUNTED,
        accounts=(task.account,),
        secrecy=reference.object.secrecy,
    )
    target.version.resize(size)
    target.state = SocketState(state.ring_bytes, opened=True)
    target.address = address
    step.state.add_object(target)
    step.emit(effects.AdoptConnection(target.id, number, state.ring_bytes, task.principal))
    fresh = lifetimes.grant(step, task, target, Permission.ALL, Provenance.CREATED)
    acceptor.size = len(state.arrived)
    acceptor.v_r += 1
    step.changed(acceptor)
    step.audit(task, "accept", "ok", target.fingerprint, f"{address} on {acceptor.fingerprint}")
    step.answer(task, seq, messages.References((fresh.public(),)))
