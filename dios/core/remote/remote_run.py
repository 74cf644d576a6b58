"""Start tasks on other nodes, and tasks here with references to other nodes' objects (B.1.5, §4.8).

First, the nodes of the objects grant the child's references ("offers"); then the child is started.
``dios.core.model.placement`` chooses the node. ``dios.core.calls.starting`` starts tasks on this node.
"""

from __future__ import annotations

from typing import Final, cast

from msgspec.structs import replace

from dios.core import lifetimes
from dios.core.calls import (
    admission,
    delegation,
    flows,
    groups,
    lifecycle,
    rights,
    run_orders,
    starting,
    submissions,
    waiting_starts,
)
from dios.core.model.records import (
    ChildIdentity,
    HandedReference,
    Holder,
    LocalHolder,
    Pending,
    PhysicalObject,
    Provenance,
    Recipe,
    Reference,
    narrowed,
)
from dios.core.model.type_rules import RULES
from dios.core.remote import authority, proxies, remote_tasks, requests
from dios.core.remote.continuations import OfferAnswer, StartAnswer, StartProgress
from dios.core.remote.peers import Cluster, Peer, Proxy
from dios.core.step import Step
from dios.errors import (
    BadReferenceError,
    Code,
    DiosError,
    InvalidError,
    LimitError,
    NotExecutableError,
    NotPermittedError,
    NotSupportedError,
    ProtocolError,
    WouldBlockError,
)
from dios.ids import NodeId, ObjectId, RefId
from dios.wire import dcp, messages
from dios.wire.mandates import Purpose
from dios.wire.nametext import fingerprint
from dios.wire.types import Flag, Permission, Resource

_PROGRAM_RIGHTS: Final = int(Permission.READ | Permission.EXECUTE)
_PROGRAM: Final = "executable"
_NO_OFFER: Final = (
    "has an object of the run and does not answer. No task was started."
    " Try again later, or use another replica."
)


def run_offered(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.Run,
    order: run_orders.Order,
    peer: Peer | None,
    chosen: ChildIdentity | None = None,
) -> None:
    """Collect the offers for a child, then start it on ``peer``, or on this node if ``peer`` is None.

    With ``chosen``, the child's identity is fixed already, because the run has waited.
    """
    if step.parts is not None:
        raise InvalidError("cannot run a task with other nodes in a vector. Send the run alone.")
    if call.like:
        raise InvalidError(
            "cannot repeat a run on another node or with objects of other nodes. Start a new run."
        )
    task.table.require_room()
    task.account.require(Resource.REFERENCES, 1)
    recipe = order.recipe
    if peer is not None:
        flows.require_knowing(step, peer.node, recipe.secrecy)
        if recipe.work.time_ms and peer.version < dcp.TIME_VERSION:
            who = peer.name or f"{peer.node:x}"
            raise NotSupportedError(
                f"node {who} has a release that bounds no times of runs, or was not met yet: it gets no run "
                "with a time. Update it, or use another node."
            )
    scheduled = chosen is not None and chosen.placed_by is not None
    identity = chosen or lifecycle.fresh_identity(step, rights.local(task))
    child = dcp.Caller(identity.task, task.principal, fingerprint(identity.name), recipe.brand, order.label)
    origins = _origins(order)
    start = StartProgress(
        recipe,
        order.label,
        NodeId(0) if peer is None else peer.node,
        child,
        identity,
        _sharings(order, origins),
        [None] * len(origins),
        [],
        scheduled,
        since=step.now,
    )
    row = Pending(task, seq, call, {})
    row.progress = start
    recipe.keep()
    step.wait(row)
    step.state.starts.note_starting(row, child.task)
    try:
        if peer is not None:
            _offer_local(step, start, peer, origins)
    except DiosError:
        step.state.pending.remove(row)
        _withdraw(step, start)
        raise
    _request_offers(step, row, start, origins)


def _was_submitted(start: StartProgress) -> bool:
    """Return True if a run comes from the submission queue, to which it may return."""
    return start.scheduled or start.identity.entry is not None


def _requeue(step: Step, row: Pending, start: StartProgress) -> None:
    """Return a run to the submission queue, because its node had no room."""
    call = cast("messages.Run", row.call)
    submissions.wait(step, row.task, row.seq, replace(call, host=start.identity.host), start.identity)


def _origins(order: run_orders.Order) -> list[Reference]:
    """Return the references to delegate to the child, the program's first."""
    origins = [origin for origin in (order.program_origin, *order.origins) if origin is not None]
    if len(origins) <= len(order.origins):
        raise InvalidError(
            "cannot repeat a run on another node or with objects of other nodes. Start a new run."
        )
    return origins


def _sharings(order: run_orders.Order, origins: list[Reference]) -> tuple[dcp.SharedReference, ...]:
    handed = (*order.recipe.inputs, *order.recipe.outputs)
    return (
        dcp.SharedReference(origins[0].id, _PROGRAM_RIGHTS, _PROGRAM),
        *(
            dcp.SharedReference(origin.id, item.permissions, item.label, item.lifetime_ns)
            for item, origin in zip(handed, origins[1:], strict=True)
        ),
    )


def _offer_local(step: Step, start: StartProgress, peer: Peer, origins: list[Reference]) -> None:
    """Grant the references to local objects, and list those to objects of the child's node.

    The child's node grants the latter itself when it starts the child.
    """
    here = step.require_cluster().here.node
    remote_task: Holder | None = None
    for place, (origin, sharing) in enumerate(zip(origins, start.shared, strict=True)):
        home = origin.object.home
        if not home:
            if remote_task is None:
                remote_task = remote_tasks.remote_task_for(step, peer, start.child)
            public = offer(step, remote_task, origin, sharing)
            start.held[place] = dcp.HeldReference(here, public)
            start.granted.append((here, RefId(public.ref)))
        elif home == peer.node:
            public = replace(
                origin.described(),
                permissions=sharing.permissions,
                label=sharing.label,
                expires_ns=sharing.lifetime_ns,
            )
            start.held[place] = dcp.HeldReference(home, public)


def offer(
    step: Step, receiver: Holder, origin: Reference, sharing: dcp.SharedReference
) -> messages.Reference:
    """Grant a reference to the record of a future task. Return its public part for that task."""
    if origin.permissions & Permission.DELEGATE == 0 and sharing.label != _PROGRAM:
        rights.delegable(origin.task, origin.id)
    delegation.require_room(receiver, origin.object)
    fresh = _grant(step, receiver, origin, sharing)
    step.audit(
        receiver, "delegate", "ok", origin.object.fingerprint, f"at start, rights {sharing.permissions}"
    )
    return proxies.public_part(step, fresh)


def _request_offers(step: Step, row: Pending, start: StartProgress, origins: list[Reference]) -> None:
    by_node: dict[NodeId, list[int]] = {}
    for place, origin in enumerate(origins):
        if start.held[place] is None and origin.object.home:
            by_node.setdefault(origin.object.home, []).append(place)
    start.missing = len(by_node)
    if not by_node:
        _start(step, row, start)
        return
    runs_on = start.node or step.require_cluster().here.node
    for node, places in by_node.items():
        shared = tuple(start.shared[place] for place in places)
        body = dcp.Offer(row.task.caller(), shared, start.child, runs_on)
        requests.ask_for_call(step, row, node, body, OfferAnswer(row.id, node, tuple(places)))


def store_offers(step: Step, then: OfferAnswer, answer: dcp.Answer) -> None:
    """Store one node's offers to the child. After the last answer, start the child or refuse the run."""
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, StartProgress):
        return
    start = row.progress
    start.missing -= 1
    if isinstance(answer, dcp.Offered) and len(answer.references) == len(then.places):
        for place, public in zip(then.places, answer.references, strict=True):
            start.held[place] = dcp.HeldReference(then.node, public)
            start.granted.append((then.node, RefId(public.ref)))
    elif start.failure is None:
        start.failure = answer if isinstance(answer, messages.Failure) else requests.unreachable(None)
        if start.failure.code == Code.EHOSTUNREACH:
            start.failure = requests.unreachable(step.require_cluster().peer(then.node), _NO_OFFER)
    if start.missing:
        return
    if start.failure is None:
        _start(step, row, start)
    else:
        _withdraw(step, start)
        _refuse(step, row, start.failure)


def _refuse(step: Step, row: Pending, failure: messages.Failure) -> None:
    step.state.pending.remove(row)
    step.answer(row.task, row.seq, failure)


def _withdraw(step: Step, start: StartProgress) -> None:
    """Release the child's references, because it will not be started."""
    cluster = step.require_cluster()
    if start.node:
        peer = cluster.peer(start.node)
        remote_task = peer.remote_tasks.get(start.child.task)
        if remote_task is not None:
            remote_tasks.end(step, peer, remote_task)
    for node, ref in start.granted:
        if node != cluster.here.node:
            requests.notify_node(step, node, dcp.Release(start.child.task, (ref,)))


def _start(step: Step, row: Pending, start: StartProgress) -> None:
    if start.node:
        _start_remotely(step, row, start)
        return
    try:
        start_offered(step, row, start)
    except admission.NoRoomError as error:
        if not waiting_starts.may_wait(step, row.task, cast("messages.Run", row.call)):
            _withdraw(step, start)
            _refuse(step, row, _failure(error))
            return
        try:
            waiting_starts.wait(step, row, start.identity)
        except LimitError as full:
            _withdraw(step, start)
            _refuse(step, row, _failure(full))
    except WouldBlockError as error:
        _withdraw(step, start)
        if _was_submitted(start):
            step.state.pending.remove(row)
            _requeue(step, row, start)
        else:
            _refuse(step, row, _failure(error))
    except DiosError as error:
        _withdraw(step, start)
        _refuse(step, row, _failure(error))


def _failure(error: DiosError) -> messages.Failure:
    return messages.Failure(int(error.code), error.message, error.fingerprint)


def start_offered(step: Step, row: Pending, start: StartProgress) -> None:
    """Start a child on this node with the offered references. Raise NoRoomError if it must wait."""
    task = row.task
    own: list[Reference | None] = []
    for held, sharing in zip(start.held, start.shared, strict=True):
        own.append(task.table.find(sharing.ref) if held is None else None)
        if held is None and own[-1] is None:
            raise BadReferenceError("cannot start the task: one of its references has been deleted")
    order = run_orders.Order(start.recipe, (), start.label, None)
    is_first = not step.state.starts.has(row)
    submissions.require_fit(step, start.recipe.work, start.recipe.brand, scheduled=_was_submitted(start))
    budget = admission.admit(step, task, order)
    if is_first:
        waiting_starts.require_turn(step, task, cast("messages.Run", row.call))
    scheduled = start.scheduled and is_first
    admission.require_quota(step, task, start.recipe, start.label, scheduled=scheduled)
    child = starting.begin(step, task, order, budget, start.identity)
    submissions.note_started(step, start.identity)
    child.ends_with_session = bool(cast("messages.Run", row.call).flags & Flag.WITH_SESSION)
    granted: list[messages.Reference] = []
    for held, origin, sharing in zip(start.held, own, start.shared, strict=True):
        if held is not None:
            adopted = proxies.adopt(step, child, held.node, held.reference, Provenance.DELEGATED)
            granted.append(adopted.public())
        elif origin is not None:
            granted.append(_grant(step, child, origin, sharing).public())
    starting.welcome(step, child, order, tuple(granted[1:]), granted[0])
    reference = lifetimes.grant(step, task, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(task, "run", "ok", child.object.fingerprint, f"{start.recipe.brand.name} {start.label}")
    step.state.pending.remove(row)
    call = cast("messages.Run", row.call)
    if call.flags & Flag.NON_BLOCKING:
        step.answer(task, row.seq, messages.Created(child.name, reference.public()))
    else:
        step.wait(Pending(task, row.seq, call, {child.object: ()}))


def _grant(step: Step, receiver: Holder, origin: Reference, sharing: dcp.SharedReference) -> Reference:
    return lifetimes.grant(
        step,
        receiver,
        origin.object,
        narrowed(origin.permissions, sharing.permissions),
        Provenance.DELEGATED,
        sharing.label,
        origin=origin,
        expires_ns=delegation.end_of(step, sharing.lifetime_ns),
    )


def _start_remotely(step: Step, row: Pending, start: StartProgress) -> None:
    task, recipe, child = row.task, start.recipe, start.child
    cluster = step.require_cluster()
    held = [holding for holding in start.held if holding is not None]
    inputs = len(recipe.inputs)
    plain = messages.Run(
        0,
        arguments=recipe.arguments,
        label=start.label,
        brand=recipe.brand,
        limits=recipe.limits,
        flags=cast("messages.Run", row.call).flags
        & int(Flag.NON_BLOCKING | Flag.WITH_SESSION | Flag.WITH_NETWORK),
        work=recipe.work,
        template=recipe.template,
    )
    body = dcp.Start(
        task.caller(),
        child.task,
        start.identity.name,
        plain,
        groups.described(step, recipe.groups),
        held[0],
        tuple(held[1 : 1 + inputs]),
        tuple(held[1 + inputs :]),
        secrecy=recipe.secrecy,
        scheduled=start.scheduled,
    )
    task.remote_nodes.add(start.node)
    rights.local(task).remote_children[child.task] = (start.node, child.fingerprint, child.label)
    cluster.note_placed(start.node)
    step.audit(
        task,
        "run",
        "ok",
        child.fingerprint,
        f"{recipe.brand.name} {start.label} on {cluster.peer(start.node).name}",
    )
    requests.ask_for_call(step, row, start.node, body, StartAnswer(row.id, child.task))


def answer_started(step: Step, then: StartAnswer, answer: dcp.Answer) -> Pending | None:
    """Answer a run call after the request to start its child on another node.

    Return the call if it must be placed again: nothing was started, and the caller did not choose the node.
    """
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, StartProgress):
        parent = step.state.tasks.get(then.call[0])
        if parent is not None:
            parent.remote_children.pop(then.child, None)
        return None
    task, start = rights.local(row.task), row.progress
    step.state.pending.remove(row)
    if isinstance(answer, messages.Created):
        submissions.note_started(step, start.identity)
        try:
            reference = proxies.adopt(step, task, start.node, answer.reference, Provenance.CREATED)
        except DiosError as error:
            step.refuse(task, row.seq, error)
        else:
            _renew_offers(step, start)
            cast("Proxy", reference.object).ended = start.ended
            step.answer(task, row.seq, messages.Created(answer.name, reference.public()))
        return None
    task.remote_children.pop(then.child, None)
    _withdraw(step, start)
    peer = step.require_cluster().peer(start.node)
    failure = answer if isinstance(answer, messages.Failure) else requests.unreachable(peer)
    never_sent = step.unsent and failure.code == Code.EHOSTUNREACH
    unfit = failure.code == Code.ENOSYS and step.require_cluster().is_unfit(start.node)
    if _was_submitted(start) and (never_sent or unfit or failure.code == Code.EAGAIN):
        _requeue(step, row, start)
    elif never_sent and not cast("messages.Run", row.call).host:
        return row
    else:
        step.answer(task, row.seq, failure)
    return None


def _renew_offers(step: Step, start: StartProgress) -> None:
    """Count the references that a started child got from this node as new: its node knows them only now."""
    remote_task = step.require_cluster().peer(start.node).remote_tasks.get(start.child.task)
    for reference in () if remote_task is None else remote_task.table:
        reference.granted_ns = step.now


def note_ended(peer: Peer, parent: LocalHolder, event: messages.ChildEnded) -> None:
    """Keep the reported end of a child, so that it is still known when the child's node fails."""
    target = peer.proxies.get(ObjectId(event.object))
    if target is not None:
        target.ended = event.status
    for row in parent.pending.values():
        if isinstance(row.progress, StartProgress) and row.progress.child.task == event.object:
            row.progress.ended = event.status


# -- on the other node --------------------------------------------------------------------------------
def start_requested(step: Step, peer: Peer, number: int, body: dcp.Start) -> None:
    """Start a task on behalf of another node's task, or let the run wait until there is room for it."""
    parent = remote_tasks.remote_task_for(step, peer, body.caller)
    try:
        start_for_node(step, peer, number, body)
    except admission.NoRoomError:
        if not waiting_starts.may_wait(step, parent, body.call):
            raise
    else:
        return
    row = Pending(parent, number, body.call, {})
    step.wait(row)
    try:
        # A waiting run does not keep the content of its program here: the child reads it.
        kept = replace(body, source=None)
        waiting_starts.wait(step, row, ChildIdentity(body.child, body.name), peer.node, kept)
    except DiosError:
        step.state.pending.remove(row)
        raise


def start_for_node(
    step: Step, peer: Peer, number: int, body: dcp.Start, waited: Pending | None = None
) -> None:
    """Start a task on behalf of another node's task, with exactly the references that were offered to it.

    ``waited`` is the call if it has waited for room. It remains waiting if this raises an error.
    """
    cluster = step.require_cluster()
    if waited is not None:
        authority.require(step, peer, body)  # the mandate may have ended meanwhile
    if step.state.chose_id(body.child):
        raise ProtocolError("cannot start the task: its id is already in use")
    if step.state.find_object(ObjectId(body.child)) is not None:
        # Another node has chosen it, which may have learned it from an offer: the sender is not to blame.
        raise NotPermittedError("cannot start the task: another node uses its id here. Start it again.")
    parent = remote_tasks.remote_task_for(step, peer, body.caller)
    all_held = (body.program, *body.inputs, *body.outputs)
    origins = [
        parent.table.get(held.reference.ref) if held.node == cluster.here.node else None for held in all_held
    ]
    for origin in origins[1:]:
        if origin is not None:
            rights.delegable(parent, origin.id)
    authority.require_groups(step, peer, body.groups, parent.principal, Purpose.TASKS)
    brand = run_orders.brand_for(step, parent, body.call.brand)
    targets = _targets(step, cluster, parent, all_held, origins)
    names = groups.names_for(step, body.groups)
    handed = [
        HandedReference(
            target,
            held.reference.permissions,
            held.reference.label,
            held.reference.expires_ns,
            target.v_w,
            0,
            0,
        )
        for target, held in zip(targets, all_held, strict=True)
    ]
    inputs = len(body.inputs)
    recipe = Recipe(
        handed[0],
        names,
        tuple(handed[1 : 1 + inputs]),
        tuple(handed[1 + inputs :]),
        body.call.arguments,
        brand,
        body.call.limits,
        body.call.work,
        run_orders.checked_template(body.call, brand),
        network=run_orders.checked_network(step, parent, body.call),
        secrecy=body.secrecy,
    )
    order = run_orders.Order(recipe, (), body.call.label, None)
    try:
        run_orders.require_content(parent, recipe)
        submissions.require_fit(step, body.call.work, brand)
        scheduled = body.scheduled and waited is None
        admission.require_quota(step, parent, recipe, order.label, scheduled=scheduled)
        reserved = admission.admit(step, parent, order)
        if waited is None:
            waiting_starts.require_turn(step, parent, body.call)
            step.state.pending.require_room(parent)
    except DiosError:
        for target in targets:
            lifetimes.maybe_collect(step, target)
        raise
    if waited is not None:
        step.state.pending.remove(waited)
        step.served = peer, number  # its caller learns of the references with the answer to that request
    child = starting.begin(step, parent, order, reserved, ChildIdentity(body.child, body.name))
    child.ends_with_session = bool(body.call.flags & Flag.WITH_SESSION)
    granted = [
        _grant_handed(step, peer, child, held, origin) for held, origin in zip(all_held, origins, strict=True)
    ]
    starting.welcome(step, child, order, tuple(granted[1:]), granted[0], _source(peer, body))
    reference = lifetimes.grant(step, parent, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(parent, "run", "ok", child.object.fingerprint, f"{recipe.brand.name} {order.label}")
    if body.call.flags & Flag.NON_BLOCKING:
        step.answer(parent, number, messages.Created(child.name, proxies.public_part(step, reference)))
    else:
        step.wait(Pending(parent, number, body.call, {child.object: ()}))
    if waited is not None:
        step.served = None


def _source(peer: Peer, body: dcp.Start) -> bytes | None:
    """Return the content of the program if it came with the request, from the node that has the object."""
    held = body.program
    if body.source is None or held.node != peer.node or len(body.source) != held.reference.size:
        return None
    return body.source


def _targets(
    step: Step,
    cluster: Cluster,
    parent: Holder,
    all_held: tuple[dcp.HeldReference, ...],
    origins: list[Reference | None],
) -> list[PhysicalObject]:
    """Check the child's references, and return their objects."""
    foreign = [held.reference for held, origin in zip(all_held, origins, strict=True) if origin is None]
    if len({public.ref for public in foreign}) < len(foreign) or not all(public.ref for public in foreign):
        raise ProtocolError("cannot start the task: two of its references have the same id, or one has id 0")
    for held, origin in zip(all_held, origins, strict=True):
        if origin is None:
            proxies.require_unknown(step, remote_tasks.peer_named(cluster, held.node), held.reference)
        else:
            delegation.end_of(step, held.reference.expires_ns)
            parent.table.require_room()
    program, origin = all_held[0].reference, origins[0]
    if origin is not None:
        run_orders.executable(parent, origin.id)
    elif not RULES[program.type].executable:
        raise NotExecutableError(f"cannot run a {program.type.name}: it is not executable")
    return [
        proxies.proxy_for(step, cluster.peer(held.node), held.reference) if origin is None else origin.object
        for held, origin in zip(all_held, origins, strict=True)
    ]


def _grant_handed(
    step: Step, peer: Peer, child: Holder, held: dcp.HeldReference, origin: Reference | None
) -> messages.Reference:
    public = held.reference
    if origin is None:
        hearsay = held.node != peer.node
        return proxies.adopt(step, child, held.node, public, Provenance.DELEGATED, hearsay=hearsay).public()
    return lifetimes.grant(
        step,
        child,
        origin.object,
        narrowed(origin.permissions, public.permissions),
        Provenance.DELEGATED,
        public.label,
        origin,
        delegation.end_of(step, public.expires_ns),
    ).public()
