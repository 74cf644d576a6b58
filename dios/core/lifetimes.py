"""The creation and the end of references, buffers and objects (thesis §4.2).

An object lives while there are references to it, or until it is deleted, depending on its deletion mode.
"""

from __future__ import annotations

from dios.core import effects
from dios.core.calls import flows
from dios.core.model.accounts import charge_all
from dios.core.model.io_requests import abort, give_back
from dios.core.model.records import (
    Buffer,
    Holder,
    Pending,
    PhysicalObject,
    Provenance,
    Reference,
    RemoteBuffer,
    Session,
)
from dios.core.model.type_states import AcceptState, SocketState, StreamState
from dios.core.model.work_items import Retirement
from dios.core.remote.peers import Proxy
from dios.core.step import Step
from dios.wire import messages
from dios.wire.types import Deletion, Mode, Permission, Resource


def grant(
    step: Step,
    task: Holder,
    target: PhysicalObject,
    permissions: Permission,
    provenance: Provenance,
    label: str = "",
    origin: Reference | None = None,
    expires_ns: int = 0,
) -> Reference:
    """Give the task a new reference and its public part.

    Raises:
        NotPermittedError: the object is labelled, and the task's node has a release without labels.
    """
    if target.secrecy:
        permissions = _rights(step, task, target, permissions, provenance)
    reference = step.state.add_reference(
        task, target, permissions, provenance, label, origin, expires_ns, now=step.now
    )
    _show(step, reference, None if task.home else reference.public())
    return reference


def grant_shown(
    step: Step, task: Holder, target: PhysicalObject, permissions: Permission, provenance: Provenance
) -> messages.Reference:
    """Give the task a new reference; return its public part, for an answer."""
    if target.secrecy:
        permissions = _rights(step, task, target, permissions, provenance)
    reference = step.state.add_reference(task, target, permissions, provenance, now=step.now)
    public = reference.public()
    _show(step, reference, public)
    return public


def _rights(
    step: Step, task: Holder, target: PhysicalObject, rights: Permission, provenance: Provenance
) -> Permission:
    flows.require_knowing(step, task.home, target.secrecy)
    if provenance is Provenance.CREATED or provenance is Provenance.RESOLVED:
        return flows.initial_rights(task, target, rights)
    return rights


def _show(step: Step, reference: Reference, public: messages.Reference | None) -> None:
    task = reference.task
    step.depend_on(reference.object)
    if not task.home and public is not None:
        live = not reference.object.counters_label or reference.shows_counters
        step.after.append(effects.BindSlot(task.id, public, live))
    elif step.served is not None and step.served[0].node == task.home:
        step.served[0].note_granted(step.served[1], reference)


def close_buffer(step: Step, buffer: Buffer) -> None:
    """End a buffer for good; an active request on it is aborted."""
    if buffer.active or buffer.sole:
        abort(buffer)
        buffer.exclude_readers(sole=False)
        step.changed(buffer.object)
    task = buffer.reference.task
    task.buffers.pop(buffer.id, None)
    buffer.reference.buffers.pop(buffer.id, None)
    if buffer.owner is not None:
        buffer.owner.buffers.pop(buffer.id, None)
    charge_all(buffer.accounts, Resource.REQUESTS, -1)
    buffer.let_go()
    if not buffer.bare:
        # A commit of its bytes may still be on the way to the disk: free them after it.
        step.depend_on(buffer.object)
        step.after.append(effects.CloseBuffer(buffer.id))


def close_remote_buffer(step: Step, buffer: RemoteBuffer) -> None:
    """End a buffer whose request was on an object of another node."""
    task = buffer.reference.task
    del task.remote_buffers[buffer.id], buffer.reference.remote_buffers[buffer.id]
    task.account.charge(Resource.REQUESTS, -1)
    buffer.held.release()
    step.after.append(effects.CloseBuffer(buffer.id))


def drop_reference(step: Step, reference: Reference) -> None:
    """Remove a reference from its table; the last counted one destroys its object (§4.2)."""
    task = reference.task
    target = reference.object
    if reference.provenance is Provenance.SHARED:
        _end_share(step, reference)
    step.spend(1 + len(reference.buffers) + len(reference.remote_buffers))
    for buffer in list(reference.buffers.values()):
        if buffer.reference is reference and buffer.owner is not None:
            step.changed(target)
            give_back(buffer)
        else:
            close_buffer(step, buffer)
    for remote_buffer in list(reference.remote_buffers.values()):
        close_remote_buffer(step, remote_buffer)
    if target.waiters and task.pending:
        # Wake the task's own calls that wait on this reference, whether or not the object survives.
        step.wake_own(task, target)
    step.state.remove_reference(reference)
    if not task.home:
        step.after.append(effects.UnbindSlot(task.id, reference.slot))
    if target.home:
        _release_on_node(step, reference)
    _drop_stream_ends(step, reference)
    if not target.references and (target.home or not target.zombie):
        maybe_collect(step, target)


def _release_on_node(step: Step, reference: Reference) -> None:
    """Notify the node that has the object, unless the end of the whole task is reported to it anyway."""
    task, cluster = reference.task, step.state.cluster
    if cluster is not None:
        cluster.leases.drop(reference.object.home, reference.id)
    if cluster is not None and not task.ended_ns:
        cluster.to_release.setdefault((reference.object.home, task.id), []).append(reference.id)
    mode = _end_of(reference)
    if mode is not None:
        step.after.append(effects.CloseStreamEnd(reference.object.id, mode))


def maybe_collect(step: Step, target: PhysicalObject) -> None:
    """Destroy an object without references, unless only a delete call may do so."""
    # Nothing can reach an object without a name, so it is destroyed in every deletion mode.
    if target.home:
        if not target.references and not target.pinned:
            _forget_proxy(step, target)
        return
    kept = target.deletion is Deletion.IMMEDIATE and target.name is not None
    if kept or target.references or target.zombie:
        return
    if not target.pinned:
        destroy(step, target)
    elif target.accounts and target.pinned == step.state.failed_programs.count(target):
        # Only the node keeps it, and its creator could not make room by deleting it.
        step.state.uncount(target)


def destroy(step: Step, target: PhysicalObject) -> None:
    """Make the object a zombie, so that concurrent I/O fails safely, and remove it from the node's tables.

    Its references and buffers stay with their tasks. No request on a zombie is active any more.
    """
    target.zombie = True
    end_shares(step, target)
    target.references.clear()
    target.a_r = target.a_w = 0
    if isinstance(target.state, StreamState):
        for mode in [mode for mode in Mode if mode not in target.state.gone]:
            _close_stream_end(step, target, target.state, mode)
    step.changed(target)
    step.drop(target)
    step.state.forget_object(target)
    if target.state is None:
        step.after.append(effects.DiscardContent(target.id))
    elif isinstance(target.state, SocketState | AcceptState):
        step.after.append(effects.CloseNetwork(target.id))


# -- shares -----------------------------------------------------------------------------------------
def end_shares(step: Step, record: PhysicalObject) -> None:
    """Take back everything that sessions of this node found by a share whose record is gone."""
    holders = step.state.share_holders.pop((record.home, record.id), None)
    for task, group in (holders or {}).items():
        session = step.state.tasks.get(task)
        reference = session.shares.get(group) if isinstance(session, Session) else None
        if reference is not None and reference.object is record:
            _end_share(step, reference)


def _end_share(step: Step, record: Reference) -> None:
    """Take back everything that was found by a share, and let its session find nothing more."""
    session, target = record.task, record.object
    holders = step.state.share_holders.get((target.home, target.id))
    if holders is not None and holders.pop(session.id, None) is not None and not holders:
        del step.state.share_holders[target.home, target.id]
    if not isinstance(session, Session):
        return
    group = next((name for name, held in session.shares.items() if held is record), None)
    if group is None:
        return
    del session.shares[group]
    if session.alive and record.descendants:
        step.audit(session, "share", "ended", target.fingerprint)
        record.retiring = True  # it stays between its descendants until all of them are taken back
        session.retirements += 1
        item = Retirement(Pending(session, 0, messages.Retire(record.id), {}), [record], everyone=False)
        step.start(item)


def _drop_stream_ends(step: Step, reference: Reference) -> None:
    state = reference.object.state
    if not isinstance(state, StreamState):
        return
    target = reference.object
    for mode in Mode:
        holder = state.holder.get(mode)
        taken = holder is not None and holder != (reference.task.id, reference.id)
        could_be = holder is None and state.able[mode] > 0
        if mode not in state.gone and not taken and not could_be:
            _close_stream_end(step, target, state, mode)


def _close_stream_end(step: Step, target: PhysicalObject, state: StreamState, mode: Mode) -> None:
    """Close an end for good, because its task is gone or no task can take it; the ring carries that."""
    state.holder.pop(mode, None)
    state.gone.add(mode)
    step.after.append(effects.CloseStreamEnd(target.id, mode))
    step.changed(target)


# -- proxies ----------------------------------------------------------------------------------------
def _forget_proxy(step: Step, target: PhysicalObject) -> None:
    """Remove a proxy object without references from the table of its node."""
    cluster = step.state.cluster
    peer = None if cluster is None else cluster.peers.get(target.home)
    if peer is not None and peer.proxies.get(target.id) is target:  # a newer proxy may have replaced it
        del peer.proxies[target.id]


def _end_of(reference: Reference) -> Mode | None:
    """Return the end of a stream on another node that the reference was attached to, or None."""
    target = reference.object
    return target.ends.pop(reference.id, None) if isinstance(target, Proxy) else None
