"""Make calls to a named node, to all nodes, or to several nodes at once (§4.8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, cast

from msgspec.structs import replace

from dios.core import effects
from dios.core.calls import flows, groups, rights
from dios.core.effects import Reply, WriteSource
from dios.core.model.records import Holder, Pending, PhysicalObject, Provenance
from dios.core.model.secrecy import normal
from dios.core.remote import forwarding, keepers, notices, proxies, requests
from dios.core.remote.continuations import (
    FitCreated,
    FitDelegated,
    GatherAnswer,
    GatheredAnswer,
    GatherProgress,
    SelectAnswer,
    SelectProgress,
    TaskListPlan,
    VectorPlan,
)
from dios.core.remote.peers import Cluster, Peer, Proxy
from dios.core.step import Step
from dios.errors import Code, DiosError, InvalidError, InvariantError, ProtocolError, UnreachableError
from dios.ids import NodeId, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.types import Brand, Flag, NameKind, ObjectType, Permission, Resource, TaskState

_UNREACHABLE: Final = int(Code.EHOSTUNREACH)


def peer_named(step: Step, host: str) -> Peer | None:
    """Return the node with this name or id, or None for this node.

    Raise UnreachableError if there is no such node, or if it is dead.
    """
    cluster = step.state.cluster
    if cluster is None:
        raise UnreachableError(
            f"cannot reach node {host!r}: this node is not in a cluster. `dios up` makes one."
        )
    node = member_named(cluster, host)
    if node == cluster.here.node:
        return None
    peer = cluster.peer(node)
    if peer.dead_since is not None:
        raise requests.unreachable_error(
            peer, "is dead, so that nothing was changed. `dios node ls` lists the nodes."
        )
    return peer


def member_named(cluster: Cluster, host: str) -> NodeId:
    """Return the id of the node with this name or id; raise UnreachableError if there is none."""
    member = cluster.member_named(host)
    if member is None:
        raise UnreachableError(f"there is no node {host!r} here. `dios node ls` lists the nodes.")
    return member.node


# -- several nodes at once --------------------------------------------------------------------------
def gather(
    step: Step,
    row: Pending,
    plan: VectorPlan | TaskListPlan,
    asked: Sequence[tuple[NodeId, dcp.RequestBody, WriteSource | None]],
) -> None:
    """Send requests to one or more nodes. The task's call waits until every answer has arrived."""
    row.progress = GatherProgress(plan, [None] * len(asked), [], len(asked))
    step.wait(row)
    for place, (node, body, source) in enumerate(asked):
        row.task.remote_nodes.add(node)
        requests.ask_for_call(step, row, node, body, GatherAnswer(row.id, place), source=source)


def take_gathered(
    step: Step, then: GatherAnswer, answer: dcp.Answer
) -> tuple[Pending, GatherProgress] | None:
    """Store one of several answers. After the last one, return the call and all its answers, else None."""
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, GatherProgress):
        return None
    progress = row.progress
    progress.answers[then.place] = GatheredAnswer(answer, step.payload)
    progress.missing -= 1
    if progress.missing:
        if step.payload_size:
            # The host must keep these bytes, because the call is answered in a later step.
            progress.kept.append(step.payload)
            step.emit(effects.KeepPayload(step.payload))
        return None
    step.state.pending.remove(row)
    return row, progress


# -- vectors ----------------------------------------------------------------------------------------
def vector(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.Vector,
    places: list[Proxy | None],
    closes: tuple[PhysicalObject, ...],
) -> tuple[Pending, VectorPlan] | None:
    """Make a vector with calls for other nodes. The local calls run once all other nodes have answered.

    The calls of a vector are independent, so their order does not matter. No lease is granted until then on
    the objects that it ``closes``. If every call for another node is refused here, there is no answer to wait
    for: return the call and its plan, else None.
    """
    refused: dict[int, effects.Answer] = {}
    batches: dict[tuple[NodeId, int], _NodeBatch] = {}
    for place, target in enumerate(places):
        if target is None:
            continue
        try:
            inner = call.calls[place]
            if step.state.labelled:
                inner, rise = flows.admit(step, task, inner)
                flows.apply(step, task, rise)
            remote_call, source = _translate_in_vector(task, inner)
        except DiosError as error:
            refused[place] = _refusal(task, seq, error)
            continue
        # A message has room for the bytes of one commit, and calls on the same buffer must keep their order.
        buffer = getattr(remote_call, "buffer", 0)
        key = (target.home, buffer if source is not None or (target.home, buffer) in batches else 0)
        batch = batches.setdefault(key, _NodeBatch(target.home))
        batch.calls.append(remote_call)
        batch.places.append(place)
        batch.source = batch.source or source
    asked = [
        (batch.node, dcp.Forward(task.caller(), messages.Vector(tuple(batch.calls))), batch.source)
        for batch in batches.values()
    ]
    plan = VectorPlan(
        tuple(tuple(batch.places) for batch in batches.values()),
        tuple(place for place, target in enumerate(places) if target is None),
        refused,
    )
    row = Pending(task, seq, call, {}, closes=closes)
    if not asked:
        return row, plan
    gather(step, row, plan, asked)
    return None


def remote_parts(
    step: Step, row: Pending, call: messages.Vector, plan: VectorPlan, answers: list[GatheredAnswer | None]
) -> dict[int, Reply]:
    """Return the answers to the forwarded calls of a vector, by their places in it."""
    parts: dict[int, Reply] = dict(plan.refused)
    for members, gathered in zip(plan.remote, answers, strict=True):
        if gathered is None:
            raise InvariantError("a vector is merged before every node has answered")
        step.payload = gathered.payload
        _split_answer(step, row.task, row.seq, call, members, gathered.answer, parts)
    return parts


class _NodeBatch:
    """The calls of a vector that go to one node in one message."""

    def __init__(self, node: NodeId) -> None:
        self.node: Final = node
        self.calls: list[messages.PlainCall] = []
        self.places: list[int] = []
        self.source: WriteSource | None = None


def _translate_in_vector(
    task: Holder, call: messages.PlainCall
) -> tuple[messages.PlainCall, WriteSource | None]:
    if isinstance(call, messages.Attach | messages.Copy):
        raise InvalidError(
            f"cannot {type(call).__name__.lower()} an object of another node in a vector. Send it alone."
        )
    return forwarding.translate(task, call)


def _refusal(task: Holder, seq: int, error: DiosError) -> effects.Answer:
    return effects.Answer(task.id, seq, messages.Failure(int(error.code), error.message, error.fingerprint))


def _split_answer(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.Vector,
    members: tuple[int, ...],
    answer: dcp.Answer,
    parts: dict[int, Reply],
) -> None:
    """Split a node's answer into one for each of its calls. A single failure answers all of them."""
    results: list[dcp.Answer]
    if isinstance(answer, messages.Results):
        results = list(answer.results)
    else:
        results = [answer] * len(members)
    if len(results) != len(members):
        raise ProtocolError("cannot accept the answer to a vector: it does not have one result per call")
    offset = 0
    for place, result in zip(members, results, strict=True):
        try:
            parts[place] = forwarding.fit(step, task, seq, call.calls[place], result, offset)
        except DiosError as error:
            parts[place] = _refusal(task, seq, error)
        if isinstance(result, messages.Buffer) and result.data is None:
            offset += result.length


# -- select -----------------------------------------------------------------------------------------
def ask_ready(step: Step, row: Pending, call: messages.Select) -> None:
    """Send a select call to every node that has one of its objects. The first ready reference is the result.

    A reference to an unreachable object counts as ready, because I/O on it would fail at once.
    """
    task = row.task
    by_node: dict[NodeId, list[int]] = {}
    for index, ref in enumerate(call.refs):
        target = task.table.get(ref).object
        if target.home:
            by_node.setdefault(target.home, []).append(index)
    waits = (
        bool(row.watched)
        or row.limit is not None
        or not (call.flags & Flag.NON_BLOCKING or call.timeout_ns == 0)
    )
    row.progress = SelectProgress(len(by_node), waits)
    for node, indexes in by_node.items():
        # No timeout for the other node: this node keeps the time.
        remote_call = messages.Select(
            tuple(call.refs[index] for index in indexes), call.mode, None if waits else 0, call.flags
        )
        task.remote_nodes.add(node)
        body = dcp.Forward(task.caller(), remote_call)
        requests.ask_for_call(step, row, node, body, SelectAnswer(row.id, tuple(indexes)))


def answer_selected(step: Step, then: SelectAnswer, answer: dcp.Answer) -> None:
    """Answer a select call when a reference is ready, or when it may not wait and no answer is missing."""
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, SelectProgress):
        return  # the call was answered or cancelled before
    row.progress.silent -= 1
    index = -1
    if isinstance(answer, messages.Selected):
        index = then.indexes[answer.index] if 0 <= answer.index < len(then.indexes) else -1
    elif isinstance(answer, messages.Failure):
        index = then.indexes[0]
    if index >= 0 or not (row.progress.silent or row.progress.waits):
        step.state.pending.remove(row)
        abandon(step, row)
        step.answer(row.task, row.seq, messages.Selected(index))


def abandon(step: Step, row: Pending) -> None:
    """Cancel the requests of a call that no longer needs their answers."""
    for request in requests.give_up_all(step, row):
        is_opened = request.number > 0
        if is_opened and isinstance(request.body, dcp.Forward | dcp.Start):
            cancel = messages.Cancel(request.number)
            requests.notify_node(step, request.peer.node, dcp.Forward(request.body.caller, cancel))


# -- create and copy ----------------------------------------------------------------------------------
def create(step: Step, task: Holder, seq: int, call: messages.Create, peer: Peer) -> None:
    """Create an object on a named node, in groups that the task can refer to here."""
    if call.name_kind is NameKind.DETERMINISTIC:
        raise InvalidError(
            "cannot make a deterministic name on another node. Create the object here, then copy it."
        )
    if call.object_type in {ObjectType.GROUP, ObjectType.PRIVMEM_BLOB, ObjectType.TIMER_BLOB}:
        raise InvalidError(f"cannot create a {call.object_type.name} on another node")
    names = groups.names_for_creation(task, call.groups)
    if isinstance(call, messages.CreateLabelled):
        call = replace(call, secrecy=normal(call.secrecy, task.principal))
        flows.require_knowing(step, peer.node, call.secrecy)
    task.table.require_room()
    body = dcp.Forward(task.caller(), _without_placement(call), groups.described(step, names))
    keepers.require(body, peer.name, peer.roles)

    row = forwarding.wait(step, task, seq, call, peer.node)
    requests.ask_for_call(step, row, peer.node, body, FitCreated(row.id, peer.node))


def fit_created(step: Step, row: Pending, then: FitCreated, answer: dcp.Answer) -> None:
    """Answer a create call with a reference to the object on the other node."""
    call = cast("messages.Create", row.call)
    if isinstance(answer, messages.Created):
        adopted = proxies.adopt(step, row.task, then.node, answer.reference, Provenance.CREATED)
        step.answer(row.task, row.seq, messages.Created(answer.name, adopted.public()))
    else:
        step.reply(forwarding.fit(step, row.task, row.seq, call, answer))


def _without_placement(call: messages.Create) -> messages.Create:
    return replace(call, groups=(), host="", address="", network=0)


def copy(step: Step, task: Holder, seq: int, call: messages.Copy, target: Proxy) -> None:
    """Delegate an object of another node: that node checks, grants, and notifies the receiver's (§4.5.3)."""
    cluster = step.require_cluster()
    rights.held(task, call.ref, Permission.DELEGATE)
    node, receiver = receiver_of(step, cluster, task, call.task)
    if node == cluster.here.node:
        receiving_task = step.state.tasks[receiver.task]
        receiving_task.table.require_room()
        receiving_task.account.require(Resource.REFERENCES, 1)
    body = dcp.Delegate(task.caller(), call, receiver, node)

    row = forwarding.wait(step, task, seq, call, target.home)
    then = FitDelegated(row.id, target.home, node, receiver.task)
    requests.ask_for_call(step, row, target.home, body, then)


def fit_delegated(step: Step, row: Pending, then: FitDelegated, answer: dcp.Answer) -> None:
    """Answer a copy call on an object of another node."""
    task, seq = row.task, row.seq
    if isinstance(answer, dcp.ReplicaCreated):
        finish_copy(step, task, seq, answer)
    elif isinstance(answer, dcp.Offered) and then.node == step.require_cluster().here.node:
        _enter_received(step, task, seq, then.receiver, then.home, answer)
    elif isinstance(answer, messages.Done):
        step.answer(task, seq, answer)
    else:
        step.reply(forwarding.fit(step, task, seq, cast("messages.Copy", row.call), answer))


def receiver_of(step: Step, cluster: Cluster, task: Holder, ref_id: int) -> tuple[NodeId, dcp.Caller]:
    """Return the node and the identity of the task behind a reference, which must permit writing."""
    reference = rights.typed(rights.held(task, ref_id, Permission.WRITE), ObjectType.TASK)
    target = reference.object
    if target.home:
        # The principal is not known here; the receiver's node reports it with the receiver's first request.
        return target.home, dcp.Caller(TaskId(target.id), "", target.fingerprint, Brand.PURE)
    receiver = rights.receiving(step.state, reference)
    return cluster.here.node, receiver.caller()


def _enter_received(
    step: Step, task: Holder, seq: int, receiver: TaskId, node: NodeId, answer: dcp.Offered
) -> None:
    receiving_task = step.state.tasks.get(receiver)
    if receiving_task is None or not receiving_task.alive or len(answer.references) != 1:
        refs = tuple(RefId(offered.ref) for offered in answer.references)
        requests.notify_node(step, node, dcp.Release(receiver, refs))
        step.answer(task, seq, messages.Failure(int(Code.ESRCH), "cannot delegate: the receiver has ended"))
        return
    public = proxies.adopt(step, receiving_task, node, answer.references[0], Provenance.DELEGATED).public()
    notices.notify(step, receiving_task, messages.Delegated(public, task.object.fingerprint))
    if receiving_task is task:
        step.answer(task, seq, messages.References((public,)))
    else:
        step.answer(task, seq, messages.Done(1))


def finish_copy(step: Step, task: Holder, seq: int, answer: dcp.ReplicaCreated) -> None:
    """Answer a copy call that made a new object with the caller's reference to it."""
    held = answer.held
    cluster = step.require_cluster()
    if held.node == cluster.here.node:
        # The node of the original had the copy made here, and the task has its reference already.
        record = task.table.find(held.reference.ref)
        if record is None:
            raise ProtocolError("cannot accept the copy: the task has no reference to it")
        step.answer(task, seq, messages.References((record.public(),)))
        return
    public = proxies.adopt(step, task, held.node, held.reference, Provenance.DELEGATED, hearsay=True).public()
    step.answer(task, seq, messages.References((public,)))


# -- lists of tasks -----------------------------------------------------------------------------------
def list_tasks(
    step: Step, task: Holder, seq: int, call: messages.ListTasks, own: tuple[messages.TaskRow, ...]
) -> None:
    """List the tasks of the caller's principal on all reachable nodes."""
    cluster = step.require_cluster()
    asked = [(peer.node, dcp.Rows(task.caller()), None) for peer in cluster.living()]
    if not asked:
        any_dead = cluster.any_dead()
        step.answer(task, seq, messages.Tasks(own, any_dead, dead_only=any_dead))
        return

    gather(step, Pending(task, seq, call, {}), TaskListPlan(own), asked)


def finish_list(step: Step, row: Pending, plan: TaskListPlan, answers: list[GatheredAnswer | None]) -> None:
    """Answer a list call with the tasks of every node that answered."""
    rows = list(plan.own)
    any_dead, any_silent = step.require_cluster().any_dead(), False
    for gathered in answers:
        if gathered is not None and isinstance(gathered.answer, messages.Tasks):
            rows += gathered.answer.tasks
        else:
            any_silent = True
    rows = sorted(_unique(rows), key=attrgetter("started_ns"))
    answer = messages.Tasks(tuple(rows), any_dead or any_silent, dead_only=any_dead and not any_silent)
    step.answer(row.task, row.seq, answer)


def _unique(rows: Iterable[messages.TaskRow]) -> Iterable[messages.TaskRow]:
    """Return one row for each task: while a node starts a task for another node, both may list it."""
    unique: dict[str, messages.TaskRow] = {}
    for row in rows:
        if row.fingerprint not in unique or unique[row.fingerprint].state is TaskState.WAITING:
            unique[row.fingerprint] = row
    return unique.values()
