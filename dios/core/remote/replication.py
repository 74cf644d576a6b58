"""Create copies on other nodes: new physical objects of the same logical object (§4.5.3, B.1.3).

The node of the original sends the bytes. The receiving node makes the object and grants a reference to the
caller. Copies on the same node are in ``dios.core.calls.delegation``.
"""

from __future__ import annotations

from msgspec.structs import replace

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import flows, groups, rights, user_records
from dios.core.effects import WriteSource
from dios.core.model.accounts import require_all, require_bytes
from dios.core.model.records import Holder, PhysicalObject, Provenance
from dios.core.model.type_rules import RULES, is_blob
from dios.core.remote import authority, keepers, proxies, remote_tasks, requests
from dios.core.remote.continuations import Continuation
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import InvalidError, NoSuchTaskError, NotPermittedError, ProtocolError, TooLargeError
from dios.ids import NodeId, ObjectId, PayloadId
from dios.wire import dcp, messages
from dios.wire.types import Brand, Buffering, ObjectType, Permission, Persistence, Proximity, Resource


def create_replica(step: Step, giver: Holder, call: messages.Copy, node: NodeId, then: Continuation) -> None:
    """Ask another node to make a copy of the object behind a reference; it answers with ReplicaCreated."""
    reference = rights.delegable(giver, call.ref)
    origin = reference.object
    kind = origin.type
    if not is_blob(kind):
        raise InvalidError(f"cannot copy a {kind.name}. Delegate it instead.", fingerprint=origin.fingerprint)
    if call.persistence is not None:
        durable = call.persistence is Persistence.DURABLE
        kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    if call.proximity is Proximity.PROCESS or kind is ObjectType.PRIVMEM_BLOB:
        kind = ObjectType.SHMEM_BLOB  # private memory cannot be on another node
    raw = call.buffering is Buffering.RAW and kind is ObjectType.SHMEM_BLOB
    body = dcp.CreateReplica(
        caller=giver.caller(),
        name=origin.name,
        groups=groups.described(step, origin.groups),
        owner=origin.owner,
        kind=kind,
        buffering=Buffering.RAW if raw else Buffering.DOUBLE,
        v_r=origin.v_r,
        v_w=origin.v_w,
        size=origin.size,
        home=giver.home or step.require_cluster().here.node,
        secrecy=origin.secrecy,
    )
    flows.require_knowing(step, node, origin.secrecy)
    keeper = step.require_cluster().peer(node)
    keepers.require(body, keeper.name, keeper.roles)
    step.depend_on(origin)
    step.audit(giver, "replicate", "ok", origin.fingerprint, f"to node {node:x}")
    source = WriteSource(content_of=origin.id, length=origin.size) if origin.size else None
    requests.ask(step, node, body, then, source=source)


def replica_requested(step: Step, peer: Peer, number: int, body: dcp.CreateReplica) -> None:
    """Make the object here, and grant a reference to the caller, a local or a remote task."""
    if body.size != step.payload_size:
        raise ProtocolError(f"cannot make the copy: {step.payload_size} bytes arrived, not {body.size}")
    if max(body.v_r, body.v_w) > limits.COUNTER_MAX // 2:
        raise TooLargeError("cannot make the copy: no object can have this many versions. Create a new one.")
    rules = RULES[body.kind]
    if not rules.bytes_in_host:
        raise ProtocolError("cannot make the copy: objects of this type have no bytes")
    cluster = step.require_cluster()
    task: Holder | None = step.state.tasks.get(body.caller.task)
    own = task is not None or body.home == cluster.here.node
    if own and (task is None or not task.alive):
        raise NoSuchTaskError("cannot make the copy: the task that asked for it has ended")
    if task is not None and not _waits_for_copy_from(peer, task):
        raise NotPermittedError("cannot make the copy: the task that it is for did not ask for it")
    if task is not None and task.principal != body.caller.principal:
        raise ProtocolError("cannot make the copy: the task that it is for has another principal")
    if task is None:
        home = remote_tasks.peer_named(cluster, body.home or peer.node)
        guessed = home is not peer
        caller = replace(body.caller, brand=Brand.PURE, label="") if guessed else body.caller
        task = remote_tasks.remote_task_for(step, home, caller, guessed=guessed)
    owner = authority.owner_of(step, peer, body.owner, task.principal)
    if user_records.is_record(step.state, body.name, owner):
        # A home group is stored, so that the node finds the record again after its restart.
        groups.home_of(step, owner)
    names = groups.names_for(step, authority.groups_of_copy(step, peer, body.groups, task.principal))
    accounts = (task.account, *step.state.accounts_of_groups(names))
    task.table.require_room()
    require_all(accounts, Resource.OBJECTS, 1)
    require_all(accounts, Resource.REFERENCES, 1)
    require_bytes(accounts, body.size, volatile=body.kind is not ObjectType.DURABLE_BLOB)
    copy = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        body.kind,
        body.name,
        names,
        owner,
        deletion=rules.deletion,
        buffering=body.buffering,
        proximity=rules.proximity,
        accounts=accounts,
        secrecy=body.secrecy,
    )
    copy.version.resize(body.size)
    copy.size, copy.v_r, copy.v_w = body.size, body.v_r, body.v_w
    step.state.add_object(copy)
    source = WriteSource(payload=step.payload if body.size else PayloadId(0), length=body.size)
    durable = rules.persistence is Persistence.DURABLE
    if durable:
        step.put(copy, source)
    step.emit(effects.ApplyWrite(copy.id, source, durable=durable))
    reference = lifetimes.grant(step, task, copy, Permission.ALL, Provenance.DELEGATED)
    step.audit(task, "replicate", "ok", copy.fingerprint, f"from node {peer.name}")
    held = dcp.HeldReference(cluster.here.node, proxies.public_part(step, reference))
    requests.reply(step, peer, number, dcp.ReplicaCreated(held))


def _waits_for_copy_from(peer: Peer, task: Holder) -> bool:
    """Return True if a task of this node waits for a copy from that node."""
    bodies = (request.body for request in (*peer.asked.values(), *peer.unsent_brief))
    return any(isinstance(body, dcp.Delegate) and body.caller.task == task.id for body in bodies)
