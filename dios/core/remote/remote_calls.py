"""Calls whose place is not given by one reference: to a named node, to all, or to several at once (§4.8).

Not for: resolution (``away_lookup``), tasks (``away_run``), or calls on one object (``forwarding``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, cast

from dios.core import effects
from dios.core.calls import access
from dios.core.effects import WriteSource
from dios.core.model import groups
from dios.core.model.pending import Pending
from dios.core.model.references import Provenance
from dios.core.model.tasks import Task
from dios.core.remote import forwarding, proxies, requests
from dios.core.remote.peers import Cluster, Peer
from dios.core.remote.proxies import Proxy
from dios.core.step import Reply, Step
from dios.errors import Code, DiosError, InvalidError, ProtocolError, UnreachableError
from dios.ids import NodeId, PayloadId, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.types import Brand, Flag, NameKind, ObjectType, Permission, Resource

_UNREACHABLE: Final = int(Code.EHOSTUNREACH)


def named(step: Step, host: str) -> Peer | None:
    """The node that people call so; None for this one. EHOSTUNREACH when there is none, or it is dead."""
    cluster = step.state.cluster
    if cluster is None:
        raise UnreachableError(f"no node named {host!r} is known here: this one is alone")
    node = member_named(cluster, host)
    if node == cluster.here.node:
        return None
    peer = cluster.peer(node)
    if peer.dead_since is not None:
        raise requests.unreachable_error(peer, "is dead; see `dios node ls`")
    return peer


def member_named(cluster: Cluster, host: str) -> NodeId:
    """The node with this name or id; EHOSTUNREACH where there is none."""
    for member in (cluster.membership.own, *cluster.membership.members.values()):
        if host in {member.name, f"{member.node:x}"}:
            return member.node
    raise UnreachableError(f"no node named {host!r} is known here; `dios node ls` lists them")


class Gathered(NamedTuple):
    """One of several answers, and the bytes that came beside it."""

    answer: dcp.Answer
    payload: PayloadId


# -- several at once --------------------------------------------------------------------------------
def gather(
    step: Step,
    row: Pending,
    asked: Iterable[tuple[NodeId, dcp.RequestBody, WriteSource | None]],
    done: Callable[[Step, list[Gathered]], None],
) -> None:
    """Ask several, let the task's call wait, and go on once every answer is there, in their order."""
    everything = list(asked)
    answers: list[Gathered | None] = [None] * len(everything)
    kept: list[PayloadId] = []
    missing = len(everything)
    step.wait(row)

    def arrived(place: int) -> Callable[[Step, dcp.Answer], None]:
        def take(later: Step, answer: dcp.Answer) -> None:
            nonlocal missing
            answers[place] = Gathered(answer, later.payload)
            missing -= 1
            waits = later.state.pending.has(row)
            if missing:
                if waits and later.payload_size:
                    # These bytes are answered with a later event.
                    kept.append(later.payload)
                    later.emit(effects.KeepPayload(later.payload))
                return
            if waits:
                later.state.pending.remove(row)
                try:
                    done(later, cast("list[Gathered]", answers))
                except DiosError as error:
                    later.refuse(row.task, row.seq, error)
            for payload in kept:
                later.emit(effects.DropPayload(payload))

        return take

    for place, (node, body, source) in enumerate(everything):
        row.task.abroad.add(node)
        question = requests.ask(step, node, body, arrived(place), source=source)
        if question is not None:
            row.questions.append(question)


# -- vectors ----------------------------------------------------------------------------------------
def vector(
    step: Step,
    task: Task,
    seq: int,
    call: messages.Vector,
    places: list[Proxy | None],
    local: Callable[[Step, tuple[messages.PlainCall, ...]], list[Reply]],
) -> None:
    """A vector with calls for other nodes: one request to each of them, the local calls when all are back.

    The calls are independent, so that their order among each other means nothing.
    """
    parts: list[Reply | None] = [None] * len(places)
    loads: dict[tuple[NodeId, int], _Load] = {}
    for place, target in enumerate(places):
        if target is None:
            continue
        try:
            there, source = _in_vector(task, call.calls[place])
        except DiosError as error:
            parts[place] = _refusal(task, seq, error)
            continue
        # Bytes of one commit fit beside a message, and what else is about that buffer must not overtake it.
        buffer = getattr(there, "buffer", 0)
        key = (target.home, buffer if source is not None or (target.home, buffer) in loads else 0)
        load = loads.setdefault(key, _Load(target.home))
        load.calls.append(there)
        load.places.append(place)
        load.source = load.source or source
    asked = [
        (load.node, dcp.Forward(forwarding.caller_of(task), messages.Vector(tuple(load.calls))), load.source)
        for load in loads.values()
    ]
    order = [load.places for load in loads.values()]

    def done(later: Step, answers: list[Gathered]) -> None:
        for members, gathered in zip(order, answers, strict=True):
            later.payload = gathered.payload
            _take_apart(later, task, seq, call, members, gathered.answer, parts)
        own = [place for place, target in enumerate(places) if target is None]
        results = local(later, tuple(call.calls[place] for place in own))
        for place, part in zip(own, results, strict=True):
            parts[place] = part
        later.emit_answer(effects.AnswerVector(task.id, seq, tuple(cast("list[Reply]", parts))))

    gather(step, Pending(task, seq, call, ()), asked, done)


class _Load:
    """What goes to one node in one message."""

    def __init__(self, node: NodeId) -> None:
        self.node: Final = node
        self.calls: list[messages.PlainCall] = []
        self.places: list[int] = []
        self.source: WriteSource | None = None


def _in_vector(task: Task, call: messages.PlainCall) -> tuple[messages.PlainCall, WriteSource | None]:
    if isinstance(call, messages.Attach | messages.Copy):
        raise InvalidError(f"{type(call).__name__.lower()} on an object of another node stands alone")
    return forwarding.translated(task, call)


def _refusal(task: Task, seq: int, error: DiosError) -> effects.Answer:
    return effects.Answer(task.id, seq, messages.Failure(int(error.code), error.message, error.fingerprint))


def _take_apart(
    step: Step,
    task: Task,
    seq: int,
    call: messages.Vector,
    members: list[int],
    answer: dcp.Answer,
    parts: list[Reply | None],
) -> None:
    """The answers of one node, each fitted to its call; one failure may stand for all."""
    results: list[dcp.Answer]
    if isinstance(answer, messages.Results):
        results = list(answer.results)
    else:
        results = [answer] * len(members)
    if len(results) != len(members):
        raise ProtocolError("a node did not answer each call of a vector")
    offset = 0
    for place, result in zip(members, results, strict=True):
        try:
            parts[place] = forwarding.fitted(step, task, seq, call.calls[place], result, offset)
        except DiosError as error:
            parts[place] = _refusal(task, seq, error)
        if isinstance(result, messages.Buffer) and result.data is None:
            offset += result.length


# -- select -----------------------------------------------------------------------------------------
def ask_ready(step: Step, row: Pending, call: messages.Select) -> None:
    """Ask every node that has one of the references; the first that is ready is the answer.

    A reference that cannot be reached is ready: I/O on it would not wait, but fail.
    """
    task, seq = row.task, row.seq
    by_node: dict[NodeId, list[int]] = {}
    for index, ref in enumerate(call.refs):
        target = task.table.get(ref).object
        if target.home:
            by_node.setdefault(target.home, []).append(index)
    silent = len(by_node)
    questions = row.questions
    patient = (
        bool(row.watched)
        or row.limit is not None
        or not (call.flags & Flag.NON_BLOCKING or call.timeout_ns == 0)
    )

    def arrived(indexes: list[int]) -> Callable[[Step, dcp.Answer], None]:
        def take(later: Step, answer: dcp.Answer) -> None:
            nonlocal silent
            silent -= 1
            now = task.pending.get(seq)
            if now is None or now.questions is not questions:
                return  # it was answered, or given up
            index = -1
            if isinstance(answer, messages.Selected):
                index = indexes[answer.index] if 0 <= answer.index < len(indexes) else -1
            elif isinstance(answer, messages.Failure):
                index = indexes[0]
            if index >= 0 or (not silent and not patient):
                later.state.pending.remove(now)
                abandon(later, now)
                later.answer(task, seq, messages.Selected(index))

        return take

    for node, indexes in by_node.items():
        # Without an end of its own: this node keeps the time.
        there = messages.Select(
            tuple(call.refs[index] for index in indexes), call.mode, None if patient else 0, call.flags
        )
        task.abroad.add(node)
        body = dcp.Forward(forwarding.caller_of(task), there)
        question = requests.ask(step, node, body, arrived(indexes))
        if question is not None:
            questions.append(question)


def abandon(step: Step, row: Pending) -> None:
    """Nobody waits for the answers to a call any more: the other nodes need not, either."""
    for question in row.questions:
        if question.number in question.peer.asked:
            requests.give_up(step, question)
            if isinstance(question.body, dcp.Forward):
                cancel = messages.Cancel(question.number)
                requests.tell(step, question.peer.node, dcp.Forward(question.body.caller, cancel))


# -- create and copy ----------------------------------------------------------------------------------
def create(step: Step, task: Task, seq: int, call: messages.Create, peer: Peer) -> None:
    """dios_create on a named node: in groups that the task here can refer to."""
    if call.name_kind is NameKind.DETERMINISTIC:
        raise InvalidError("a deterministic name is made on the task's own node; create it here and copy it")
    if call.object_type in {ObjectType.GROUP, ObjectType.PRIVMEM_BLOB, ObjectType.TIMER_BLOB}:
        raise InvalidError(f"a {call.object_type.name} is for where the task is")
    names = groups.names_for_creation(task, call.groups)
    task.table.require_room()
    body = dcp.Forward(forwarding.caller_of(task), _placed(call), groups.described(step, names))

    def then(later: Step, answer: dcp.Answer) -> None:
        if isinstance(answer, messages.Created):
            found = proxies.adopt(later, task, peer.node, answer.reference, Provenance.CREATED)
            later.answer(task, seq, messages.Created(answer.name, found.public()))
        else:
            later.reply(forwarding.fitted(later, task, seq, call, answer))

    forwarding.send(step, task, seq, call, peer.node, body, then=then)


def _placed(call: messages.Create) -> messages.Create:
    return messages.Create(
        call.object_type,
        (),
        call.name_kind,
        call.deletion,
        call.size,
        call.buffering,
        "",
        call.flags,
        call.data,
    )


def copy(step: Step, task: Task, seq: int, call: messages.Copy, target: Proxy) -> None:
    """Delegation of an object of another node: it checks and grants, and tells the receiver's (§4.5.3)."""
    cluster = requests.cluster_of(step)
    access.held(task, call.ref, Permission.DELEGATE)
    node, receiver = receiver_of(step, cluster, task, call.task)
    if node == cluster.here.node:
        taker = step.state.tasks[receiver.task]
        taker.table.require_room()
        taker.account.require(Resource.REFERENCES, 1)
    body = dcp.Delegate(forwarding.caller_of(task), call, receiver, node)

    def then(later: Step, answer: dcp.Answer) -> None:
        if isinstance(answer, dcp.Planted):
            finish_copy(later, task, seq, answer)
        elif isinstance(answer, dcp.Offered) and node == cluster.here.node:
            _received(later, task, seq, receiver.task, target.home, answer)
        elif isinstance(answer, messages.Done):
            later.answer(task, seq, answer)
        else:
            later.reply(forwarding.fitted(later, task, seq, call, answer))

    forwarding.send(step, task, seq, call, target.home, body, then=then)


def receiver_of(step: Step, cluster: Cluster, task: Task, ref_id: int) -> tuple[NodeId, dcp.Caller]:
    """Where the task behind a reference is, and which; to write to it is to put something before it."""
    reference = access.typed(access.held(task, ref_id, Permission.WRITE), ObjectType.TASK)
    target = reference.object
    if target.home:
        # The principal is the receiver's own node's to say; nobody is asked for it before it gets something.
        return target.home, dcp.Caller(TaskId(target.id), "", target.fingerprint, Brand.PURE)
    found = access.receiving(step.state, reference)
    return cluster.here.node, forwarding.caller_of(found)


def _received(step: Step, task: Task, seq: int, receiver: TaskId, node: NodeId, answer: dcp.Offered) -> None:
    taker = step.state.tasks.get(receiver)
    if taker is None or not taker.alive or len(answer.references) != 1:
        refs = tuple(RefId(told.ref) for told in answer.references)
        requests.tell(step, node, dcp.Release(receiver, refs))
        step.answer(task, seq, messages.Failure(int(Code.ESRCH), "the receiving task has ended"))
        return
    public = proxies.adopt(step, taker, node, answer.references[0], Provenance.DELEGATED).public()
    step.tell(taker, messages.Delegated(public, task.object.fingerprint))
    if taker is task:
        step.answer(task, seq, messages.References((public,)))
    else:
        step.answer(task, seq, messages.Done(1))


def finish_copy(step: Step, task: Task, seq: int, answer: dcp.Planted) -> None:
    """A copy of the data was made on some node: the caller has a reference to it."""
    told = answer.held
    cluster = requests.cluster_of(step)
    if told.node == cluster.here.node:
        # Planted here by the node that has the original, which granted it to the task itself.
        found = task.table.find(told.reference.ref)
        if found is None:
            raise ProtocolError("a copy that is not here")
        step.answer(task, seq, messages.References((found.public(),)))
        return
    public = proxies.adopt(step, task, told.node, told.reference, Provenance.DELEGATED).public()
    step.answer(task, seq, messages.References((public,)))


# -- about nodes --------------------------------------------------------------------------------------
def list_tasks(
    step: Step, task: Task, seq: int, call: messages.ListTasks, own: tuple[messages.TaskRow, ...]
) -> None:
    """The tasks of the caller's principal on every node that answers."""
    cluster = requests.cluster_of(step)
    asked = [(peer.node, dcp.Rows(forwarding.caller_of(task)), None) for peer in cluster.living()]
    if not asked:
        step.answer(task, seq, messages.Tasks(own, _some_dead(cluster)))
        return

    def done(later: Step, gathered: list[Gathered]) -> None:
        answers = [one.answer for one in gathered]
        rows = list(own)
        for answer in answers:
            if isinstance(answer, messages.Tasks):
                rows += answer.tasks
        rows.sort(key=lambda row: row.started_ns)
        missing = any(not isinstance(answer, messages.Tasks) for answer in answers)
        later.answer(task, seq, messages.Tasks(tuple(rows), missing or _some_dead(cluster)))

    gather(step, Pending(task, seq, call, ()), asked, done)


def _some_dead(cluster: Cluster) -> bool:
    return any(peer.dead_since is not None for peer in cluster.peers.values())


def pass_on(step: Step, task: Task, seq: int, call: messages.NodeInfo | messages.SetNode, peer: Peer) -> None:
    """A call about another node is that node's to answer."""
    there = messages.NodeInfo() if isinstance(call, messages.NodeInfo) else call

    def then(later: Step, answer: dcp.Answer) -> None:
        if not isinstance(answer, messages.Info | messages.Nodes | messages.Failure):
            raise ProtocolError("an answer of the wrong kind")
        later.answer(task, seq, answer)

    forwarding.send(
        step, task, seq, call, peer.node, dcp.Forward(forwarding.caller_of(task), there), then=then
    )
