"""Tasks on other nodes: what the child is handed is offered to it before it is started (B.1.5, §4.8).

Not for: starting tasks here (``dios.core.calls.run_calls``), or choosing the node
(``dios.core.model.placement``).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dios.core.calls import delegation, lifecycle, run_calls
from dios.core.model import groups, submission_queue
from dios.core.model.objects import PhysicalObject
from dios.core.model.pending import Pending
from dios.core.model.recipes import Given, Recipe
from dios.core.model.references import Provenance, Reference, narrowed
from dios.core.model.tasks import Task
from dios.core.model.type_rules import RULES
from dios.core.remote import forwarding, proxies, remote_tasks, requests
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import (
    BadReferenceError,
    Code,
    DiosError,
    InvalidError,
    NotExecutableError,
    ProtocolError,
    WouldBlockError,
)
from dios.ids import NodeId, ObjectId, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.nametext import fingerprint
from dios.wire.types import Flag, Permission, Resource

_PROGRAM_RIGHTS: Final = int(Permission.READ | Permission.EXECUTE)
_PROGRAM: Final = "executable"


class _Piece(Struct, frozen=True):
    """One reference that the child gets, and where it is from."""

    origin: Reference
    sharing: dcp.Sharing


def run_offered(
    step: Step,
    task: Task,
    seq: int,
    call: messages.Run,
    order: run_calls.Order,
    peer: Peer | None,
    chosen: submission_queue.Chosen | None = None,
) -> None:
    """Offer the child what it is handed, wherever that is, then have it started on ``peer``, or here.

    With ``chosen``, who it will be is settled: whoever schedules has placed it.
    """
    if step.parts is not None:
        raise InvalidError("cannot run a task with other nodes in a vector. Send the run alone.")
    if call.like:
        raise InvalidError("a run is repeated on the node that had it")
    task.table.require_room()
    task.account.require(Resource.REFERENCES, 1)
    recipe = order.recipe
    scheduled = chosen is not None
    chosen = chosen or submission_queue.Chosen(
        TaskId(step.state.fresh_id()), lifecycle.child_name(step, task)
    )
    child = dcp.Caller(chosen.task, task.principal, fingerprint(chosen.name), recipe.brand, order.label)
    pieces = [_program(order), *_pieces(order)]
    cluster = requests.cluster_of(step)
    row = Pending(task, seq, call, ())
    step.wait(row)
    held: list[dcp.Held | None] = [None] * len(pieces)
    granted: list[tuple[NodeId, RefId]] = []
    start = _Start(task, seq, call, order, peer, child, chosen, row, held, granted, scheduled)
    try:
        _offer_own(step, cluster, start, pieces)
    except DiosError:
        step.state.pending.remove(row)
        _withdraw(step, cluster, start)
        raise
    _offer_others(step, cluster, start, pieces)


class _Start(Struct):
    """A start under way: who asks for what, what is offered already, and by which nodes.

    ``peer`` is where the child will be, None for here; there nothing of this node needs to be offered.
    """

    task: Task
    seq: int
    call: messages.Run
    order: run_calls.Order
    peer: Peer | None
    child: dcp.Caller
    chosen: submission_queue.Chosen
    row: Pending
    held: list[dcp.Held | None]
    granted: list[tuple[NodeId, RefId]]
    scheduled: bool

    def no_room(self, step: Step) -> None:
        """The node has no room after all: the run goes back to the board, to be placed anew."""
        submission_queue.wait(step, self.task, self.seq, replace(self.call, host=""), self.chosen)


def _program(order: run_calls.Order) -> _Piece:
    origin = order.program_origin
    if origin is None:
        raise InvalidError("a run is repeated on the node that had it")
    return _Piece(origin, dcp.Sharing(origin.id, _PROGRAM_RIGHTS, _PROGRAM))


def _pieces(order: run_calls.Order) -> list[_Piece]:
    found: list[_Piece] = []
    given = (*order.recipe.inputs, *order.recipe.outputs)
    for item, origin in zip(given, order.origins, strict=True):
        if origin is None:
            raise InvalidError("a run is repeated on the node that had it")
        found.append(_Piece(origin, dcp.Sharing(origin.id, item.permissions, item.label, item.lifetime_ns)))
    return found


def _offer_own(step: Step, cluster: Cluster, start: _Start, pieces: list[_Piece]) -> None:
    """What is here goes to the child's deputy here; what is where it will run is handed over there."""
    deputy: Task | None = None
    for place, piece in enumerate(pieces):
        home = piece.origin.object.home
        if start.peer is None:
            continue
        if not home:
            if deputy is None:
                deputy = remote_tasks.deputy_of(step, start.peer, start.child)
            told = offered(step, deputy, piece.origin, piece.sharing)
            start.held[place] = dcp.Held(cluster.here.node, told)
            start.granted.append((cluster.here.node, RefId(told.ref)))
        elif home == start.peer.node:
            told = replace(
                piece.origin.public(),
                permissions=piece.sharing.permissions,
                label=piece.sharing.label,
                expires_ns=piece.sharing.lifetime_ns,
            )
            start.held[place] = dcp.Held(home, told)


def offered(step: Step, receiver: Task, origin: Reference, sharing: dcp.Sharing) -> messages.Reference:
    """A new reference in the table of the deputy of a task to be, as it will be told of it."""
    if origin.permissions & Permission.DELEGATE == 0 and sharing.label != _PROGRAM:
        delegation.delegable(origin.task, origin.id)
    delegation.require_room(receiver, origin.object)
    fresh = _grant(step, receiver, origin, sharing)
    step.audit(
        receiver, "delegate", "ok", origin.object.fingerprint, f"at start, rights {sharing.permissions}"
    )
    return proxies.abroad(step, fresh)


def _offer_others(step: Step, cluster: Cluster, start: _Start, pieces: list[_Piece]) -> None:
    by_node: dict[NodeId, list[int]] = {}
    for place, piece in enumerate(pieces):
        if start.held[place] is None and piece.origin.object.home:
            by_node.setdefault(piece.origin.object.home, []).append(place)
    missing = len(by_node)
    if not missing:
        _start(step, cluster, start, pieces)
        return
    failed: list[messages.Failure] = []

    def one(later: Step, node: NodeId, places: list[int], answer: dcp.Answer) -> None:
        nonlocal missing
        missing -= 1
        if isinstance(answer, dcp.Offered) and len(answer.references) == len(places):
            for place, told in zip(places, answer.references, strict=True):
                start.held[place] = dcp.Held(node, told)
                start.granted.append((node, RefId(told.ref)))
        else:
            refused = answer if isinstance(answer, messages.Failure) else requests.unreachable(None)
            failed.append(refused)
        if missing:
            return
        if failed or not later.state.pending.has(start.row):
            _withdraw(later, cluster, start)
            _refuse(later, start, failed)
        else:
            _start(later, cluster, start, pieces)

    for node, places in by_node.items():
        shared = tuple(pieces[place].sharing for place in places)
        place = cluster.here.node if start.peer is None else start.peer.node
        body = dcp.Offer(forwarding.caller_of(start.task), shared, start.child, place)

        def arrived(later: Step, answer: dcp.Answer, node: NodeId = node, places: list[int] = places) -> None:
            one(later, node, places, answer)

        question = requests.ask(step, node, body, arrived)
        if question is not None:
            start.row.questions.append(question)


def _refuse(step: Step, start: _Start, failed: list[messages.Failure]) -> None:
    if step.state.pending.has(start.row):
        step.state.pending.remove(start.row)
        step.answer(start.task, start.seq, failed[0])


def _withdraw(step: Step, cluster: Cluster, start: _Start) -> None:
    """It will not be started: what was offered is taken back."""
    deputy = None if start.peer is None else start.peer.deputies.get(start.child.task)
    if deputy is not None and start.peer is not None:
        remote_tasks.end(step, start.peer, deputy)
    for node, ref in start.granted:
        if node != cluster.here.node:
            requests.tell(step, node, dcp.Release(start.child.task, (ref,)))


def _start(step: Step, cluster: Cluster, start: _Start, pieces: list[_Piece]) -> None:
    peer = start.peer
    if peer is not None:
        _start_there(step, cluster, start, peer)
        return
    try:
        _start_here(step, start, pieces)
    except WouldBlockError as error:
        _withdraw(step, cluster, start)
        if not start.scheduled:
            _refuse(step, start, [messages.Failure(int(error.code), error.message, error.fingerprint)])
        elif step.state.pending.has(start.row):
            step.state.pending.remove(start.row)
            start.no_room(step)
    except DiosError as error:
        _withdraw(step, cluster, start)
        _refuse(step, start, [messages.Failure(int(error.code), error.message, error.fingerprint)])


def _start_here(step: Step, start: _Start, pieces: list[_Piece]) -> None:
    task, order = start.task, start.order
    if any(not piece.origin.object.home and piece.origin.id not in task.table for piece in pieces):
        raise BadReferenceError("a reference that was to be handed on was deleted meanwhile")
    submission_queue.require_fit(step, order.recipe.work)
    budget = run_calls.admit(step, task, order)
    child = run_calls.begin(step, task, order, budget, start.chosen)
    granted: list[messages.Reference] = []
    for held, piece in zip(start.held, pieces, strict=True):
        if held is not None:
            found = proxies.adopt(step, child, held.node, held.reference, Provenance.DELEGATED)
        else:
            found = _grant(step, child, piece.origin, piece.sharing)
        granted.append(found.public())
    run_calls.welcome(step, child, order, tuple(granted[1:]), granted[0])
    reference = step.grant(task, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(task, "run", "ok", child.object.fingerprint, f"{order.recipe.brand.name} {order.label}")
    step.state.pending.remove(start.row)
    if start.call.flags & Flag.NON_BLOCKING:
        step.answer(task, start.seq, messages.Created(child.name, reference.public()))
    else:
        step.wait(Pending(task, start.seq, start.call, (child.object,)))


def _grant(step: Step, receiver: Task, origin: Reference, sharing: dcp.Sharing) -> Reference:
    return step.grant(
        receiver,
        origin.object,
        narrowed(origin.permissions, sharing.permissions),
        Provenance.DELEGATED,
        sharing.label,
        origin=origin,
        expires_ns=delegation.end_of(step, sharing.lifetime_ns),
    )


def _start_there(step: Step, cluster: Cluster, start: _Start, peer: Peer) -> None:
    task, recipe = start.task, start.order.recipe
    held = [one for one in start.held if one is not None]
    inputs = len(recipe.inputs)
    plain = messages.Run(
        0,
        arguments=recipe.arguments,
        label=start.order.label,
        brand=recipe.brand,
        limits=recipe.limits,
        flags=start.call.flags & int(Flag.NON_BLOCKING),
        work=recipe.work,
    )
    body = dcp.Start(
        forwarding.caller_of(task),
        start.child.task,
        start.chosen.name,
        plain,
        groups.described(step, recipe.groups),
        held[0],
        tuple(held[1 : 1 + inputs]),
        tuple(held[1 + inputs :]),
    )
    task.abroad.add(peer.node)
    child = start.child
    task.children_away[child.task] = (peer.node, child.fingerprint, child.label)
    cluster.note_placed(peer.node)
    step.audit(
        task,
        "run",
        "ok",
        start.child.fingerprint,
        f"{recipe.brand.name} {start.order.label} on {peer.name}",
    )

    def answered(later: Step, answer: dcp.Answer) -> None:
        waits = later.state.pending.has(start.row)
        if isinstance(answer, messages.Created) and waits:
            later.state.pending.remove(start.row)
            try:
                reference = proxies.adopt(later, task, peer.node, answer.reference, Provenance.CREATED)
            except DiosError as error:
                later.refuse(task, start.seq, error)
            else:
                later.answer(task, start.seq, messages.Created(answer.name, reference.public()))
            return
        task.children_away.pop(start.child.task, None)
        if not isinstance(answer, messages.Created):
            _withdraw(later, cluster, start)
        if waits:
            later.state.pending.remove(start.row)
            if start.scheduled and isinstance(answer, messages.Failure) and answer.code == Code.EAGAIN:
                start.no_room(later)
                return
            refused = answer if isinstance(answer, messages.Failure) else requests.unreachable(peer)
            later.answer(task, start.seq, refused)

    question = requests.ask(step, peer.node, body, answered)
    if question is not None:
        start.row.questions.append(question)


# -- on the other node --------------------------------------------------------------------------------
def started_for(step: Step, peer: Peer, number: int, body: dcp.Start) -> None:
    """Start a task for one of another node: with exactly what it was offered."""
    cluster = requests.cluster_of(step)
    if ObjectId(body.child) in step.state.objects or body.child in step.state.deputies:
        raise ProtocolError("a task with an id that is taken")
    parent = remote_tasks.deputy_of(step, peer, body.caller)
    everything = (body.program, *body.inputs, *body.outputs)
    origins = [
        parent.table.get(one.reference.ref) if one.node == cluster.here.node else None for one in everything
    ]
    for origin in origins[1:]:
        if origin is not None:
            delegation.delegable(parent, origin.id)
    brand = run_calls.brand_for(step, parent, body.call.brand)
    targets = _targets(step, cluster, parent, everything, origins)
    names = groups.names_known(step, body.groups)
    given = [
        Given(
            target, one.reference.permissions, one.reference.label, one.reference.expires_ns, target.v_w, 0, 0
        )
        for target, one in zip(targets, everything, strict=True)
    ]
    inputs = len(body.inputs)
    recipe = Recipe(
        given[0],
        names,
        tuple(given[1 : 1 + inputs]),
        tuple(given[1 + inputs :]),
        body.call.arguments,
        brand,
        body.call.limits,
        body.call.work,
    )
    order = run_calls.Order(recipe, (), body.call.label, None)
    try:
        submission_queue.require_fit(step, body.call.work)
        reserved = run_calls.admit(step, parent, order)
        step.state.pending.require_room(parent)
    except DiosError:
        for target in targets:
            step.maybe_collect(target)
        raise
    child = run_calls.begin(step, parent, order, reserved, submission_queue.Chosen(body.child, body.name))
    granted = [_handed(step, child, one, origin) for one, origin in zip(everything, origins, strict=True)]
    run_calls.welcome(step, child, order, tuple(granted[1:]), granted[0])
    reference = step.grant(parent, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(parent, "run", "ok", child.object.fingerprint, f"{recipe.brand.name} {order.label}")
    if body.call.flags & Flag.NON_BLOCKING:
        step.answer(parent, number, messages.Created(child.name, proxies.abroad(step, reference)))
    else:
        step.wait(Pending(parent, number, body.call, (child.object,)))


def _targets(
    step: Step,
    cluster: Cluster,
    parent: Task,
    everything: tuple[dcp.Held, ...],
    origins: list[Reference | None],
) -> list[PhysicalObject]:
    """What the child will be handed, once nothing of it can be refused any more."""
    foreign = [one.reference for one, origin in zip(everything, origins, strict=True) if origin is None]
    if len({told.ref for told in foreign}) < len(foreign) or not all(told.ref for told in foreign):
        raise ProtocolError("two references with one id, or none")
    for one, origin in zip(everything, origins, strict=True):
        if origin is None:
            proxies.require_unknown(step, remote_tasks.home_of(cluster, one.node), one.reference)
        else:
            delegation.end_of(step, one.reference.expires_ns)
            parent.table.require_room()
    program, origin = everything[0].reference, origins[0]
    if origin is not None:
        run_calls.executable(parent, origin.id)
    elif not RULES[program.type].executable:
        raise NotExecutableError(f"a {program.type.name} cannot be run")
    return [
        proxies.known(step, cluster.peer(one.node), one.reference) if origin is None else origin.object
        for one, origin in zip(everything, origins, strict=True)
    ]


def _handed(step: Step, child: Task, one: dcp.Held, origin: Reference | None) -> messages.Reference:
    told = one.reference
    if origin is None:
        return proxies.adopt(step, child, one.node, told, Provenance.DELEGATED).public()
    return step.grant(
        child,
        origin.object,
        narrowed(origin.permissions, told.permissions),
        Provenance.DELEGATED,
        told.label,
        origin,
        delegation.end_of(step, told.expires_ns),
    ).public()
