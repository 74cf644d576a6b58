"""Send requests to other nodes, repeat them, and answer repeated requests without a second execution
(thesis §4.6 Handling failures, §4.8).

Messages may be lost, duplicated, late and out of order. Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dios import limits
from dios.core import effects, lifetimes
from dios.core.effects import WriteSource
from dios.core.model.io_requests import abort
from dios.core.model.records import Buffer, CallId, Pending, RequestId
from dios.core.model.state import State
from dios.core.model.work_items import LostPeer, RepeatedNotices
from dios.core.remote import mandate_table, validation
from dios.core.remote.cached_replies import READS
from dios.core.remote.continuations import (
    AnswerRequest,
    ConfirmNotice,
    Continuation,
    EndRead,
    EntranceProgress,
    GatherProgress,
    ReadProgress,
)
from dios.core.remote.peers import CachedReply, Cluster, Peer, PendingRequest, RequestQueue
from dios.core.step import Step
from dios.errors import Code, ProtocolError, UnreachableError
from dios.ids import BufferId, NodeId, ObjectId, Ticket
from dios.wire import dcp, gossip, messages
from dios.wire.call_table import Effect, kinds
from dios.wire.dcp_table import RequestFlag, requests_with

_MS: Final = 1_000_000
_OPENS: Final = (effects.AnswerRead, effects.AnswerWrite)
_OPENED_AT_ONCE: Final = 2
"""The requests that take the place of one that is over; two, so that more are open after a time with few."""
_TRY_AGAIN: Final = "Try again later, or look for another replica."
MAYBE: Final = "The call may have been made. Read the present state before you repeat it."
_STALE: Final = messages.Failure(
    int(Code.ECANCELED), "the answer was lost, and what it read has changed since. Make the call again."
)
_READING: Final = kinds(lambda row: row.effect in {Effect.READS, Effect.ENDS_READ})
"""The calls that change nothing that outlives their task's connection to the object."""
_READING_REQUESTS: Final = requests_with(RequestFlag.READS)
_GATHERED: Final = requests_with(RequestFlag.GATHERED)


# -- requests to other nodes ------------------------------------------------------------------------
def ask(
    step: Step,
    node: NodeId,
    body: dcp.RequestBody,
    then: Continuation | None = None,
    *,
    source: WriteSource | None = None,
    call: CallId | None = None,
) -> PendingRequest | None:
    """Send a request to another node, at once or when there is room for one more open request to it.

    ``then`` continues with the answer, or with a Failure EHOSTUNREACH or EAGAIN, after this function has
    returned. ``call`` is the waiting call that it is for. Return None if the request fails at once.
    """
    cluster = step.require_cluster()
    peer = cluster.peers.get(node)
    if peer is None or not peer.epoch or peer.dead_since is not None or peer.cut_off:
        _continue(step, then, unreachable(peer), unsent=True)
        return None
    request = PendingRequest(peer, body, then, source, step.now, call)
    queue = peer.unsent_lasting if request.is_lasting else peer.unsent_brief
    if peer.may_open(request) and not queue.has(request.principal):
        _open(step, cluster, request)
    elif len(queue) < limits.DCP_REQUESTS_UNSENT_MAX:
        queue.put(request)
    else:
        why = f"{len(queue)} requests to node {peer.name} wait to be sent, the maximum. Try again."
        _continue(step, then, _failure(Code.EAGAIN, why), unsent=True)
        return None
    return request


def _open(step: Step, cluster: Cluster, request: PendingRequest) -> None:
    peer = request.peer
    peer.open(request)
    request.silent_since = request.confirmed_ns = request.moving_since = step.now
    request.version = _version_of(step.state, request.source)
    _send(step, cluster, request)


def refuse_unsent(step: Step, peer: Peer, why_not: Callable[[dcp.RequestBody], str]) -> None:
    """Fail the requests to a node that were never sent, and for which ``why_not`` returns a reason."""
    waiting = (*peer.asked.values(), *peer.unsent_brief, *peer.unsent_lasting)
    step.spend(len(waiting) // 64)
    refused = [(request, why) for request in waiting if not request.sent and (why := why_not(request.body))]
    for request, why in refused:
        peer.take(request.number)
        _continue(step, request.then, _failure(Code.EPERM, why), unsent=True)
    for _ in refused:
        _open_next(step, peer)


def _close(step: Step, peer: Peer, number: int) -> PendingRequest | None:
    """Remove a request that is over, and send the ones that have waited for its place."""
    closed = peer.take(number)
    _open_next(step, peer)
    return closed


def _open_next(step: Step, peer: Peer) -> None:
    """Send requests that have waited for the place of one that is over."""
    cluster = step.require_cluster()
    for _ in range(_OPENED_AT_ONCE):
        unsent = peer.next_to_open() if peer.unsent_brief or peer.unsent_lasting else None
        if unsent is None:
            break
        step.spend(1)
        row = None if unsent.call is None else step.state.pending.find(unsent.call)
        held_as = (peer.node, unsent.number)
        _open(step, cluster, unsent)
        if row is not None:
            row.requests = [
                (peer.node, unsent.number) if request_id == held_as else request_id
                for request_id in row.requests
            ]


def _continue(step: Step, then: Continuation | None, answer: dcp.Answer, *, unsent: bool = False) -> None:
    if then is not None:
        step.continue_with(then, answer, unsent=unsent)


def ask_for_call(
    step: Step,
    row: Pending,
    node: NodeId,
    body: dcp.RequestBody,
    then: Continuation,
    *,
    source: WriteSource | None = None,
) -> None:
    """Send a request for a waiting call. The request is abandoned when the call is over."""
    request = ask(step, node, body, then, source=source, call=row.id)
    if request is not None:
        row.requests.append((node, request.number))


def notify_node(step: Step, node: NodeId, body: dcp.RequestBody) -> None:
    """Send a request whose answer does not matter. It is repeated until it is answered or times out."""
    ask(step, node, body)


def notify_reliably(step: Step, peer: Peer, key: bytes | int, body: dcp.RequestBody) -> None:
    """Send a notice that the node must receive. If it fails now, it is sent again when the node returns.

    A new notice replaces the one with the same ``key``. The oldest notice is dropped when there are too many.
    """
    peer.notices[key] = body
    if len(peer.notices) > limits.UNSENT_NOTICES_MAX:
        del peer.notices[next(iter(peer.notices))]
    ask(step, peer.node, body, ConfirmNotice(peer.node, key))


def repeat_notices(step: Step, peer: Peer) -> None:
    """Send the unconfirmed notices again to a node that has returned."""
    if peer.notices:
        step.start(RepeatedNotices(peer.node, list(reversed(peer.notices))))


def repeat_some_notices(step: Step, item: RepeatedNotices) -> bool:
    """Send some unconfirmed notices; return True if none is left."""
    peer = step.require_cluster().peer(item.node)
    while item.keys:
        if step.exhausted:
            return False
        step.spend(1)
        key = item.keys.pop()
        body = peer.notices.get(key)
        if body is not None:
            ask(step, peer.node, body, ConfirmNotice(peer.node, key))
    return True


def confirm(step: Step, then: ConfirmNotice, answer: dcp.Answer) -> None:
    """Forget a notice that the node has confirmed."""
    if not isinstance(answer, messages.Failure):
        step.require_cluster().peer(then.node).notices.pop(then.key, None)


def _send(step: Step, cluster: Cluster, request: PendingRequest) -> None:
    peer = request.peer
    if peer.connected:
        source = None if request.source is None else step.state.find_object(request.source.content_of)
        if source is not None:
            step.depend_on(source)  # its content may not be on disk yet
        extensions = mandate_table.attach(step, cluster, request)
        message = dcp.Ask(
            request.number,
            next(iter(peer.asked)),
            request.body,
            peer.numbers_to_name(),
            mandates=request.mandates,
        )
        step.emit(effects.Send(peer.node, message, request.source, peer.epoch, extensions))
        request.sent = True
    elif not cluster.membership.probes_all:
        # In a large cluster a connection is made for the first gossip; then the request is repeated.
        hello = gossip.encode(gossip.News(cluster.membership.own))
        step.emit(effects.Send(peer.node, dcp.Gossip(hello)))
    # A node with many open requests is busy, and repeats would take time from its answers.
    pause = (limits.DCP_REPEAT_MS_MIN << min(request.repeats, 8)) * (
        1 + len(peer.asked) // limits.DCP_REPEAT_OPEN
    )
    cluster.repeat_later(request, step.now + (min(pause, limits.DCP_REPEAT_MS_MAX) + _bulk_ms(request)) * _MS)


def _version_of(state: State, source: WriteSource | None) -> int:
    """Return the version of the object whose content goes with a request: 0 for none, -1 if it is gone."""
    if source is None or not source.content_of:
        return 0
    target = state.find_object(source.content_of)
    return -1 if target is None else target.v_w


def _repeat(step: Step, cluster: Cluster, request: PendingRequest) -> None:
    """Repeat a request, but only with the same bytes as before."""
    if _version_of(step.state, request.source) != request.version:
        reason = "the object was written before its bytes could be sent again. The copy may have been made."
        _finish(step, request, _failure(Code.EHOSTUNREACH, reason))
    elif not _is_buffer_open(step.state, request):
        reason = "the buffer was closed before its bytes could be sent again. They may have been written."
        _finish(step, request, _failure(Code.EHOSTUNREACH, reason))
    else:
        _send(step, cluster, request)


def _is_buffer_open(state: State, request: PendingRequest) -> bool:
    """Return True if the buffer with a commit's bytes is still open, or if the request needs none."""
    source, body = request.source, request.body
    if source is None or not source.buffer or not isinstance(body, dcp.Forward):
        return True
    task = state.tasks.get(body.caller.task)
    return task is not None and source.buffer in task.remote_buffers


def give_up_all(step: Step, row: Pending) -> list[PendingRequest]:
    """Abandon every request of a call that is over. Return those that were not answered yet."""
    unanswered = [
        request for request_id in row.requests if (request := _abandon(step, request_id)) is not None
    ]
    if isinstance(row.progress, ReadProgress):
        _continue(
            step, EndRead(row.progress, row.task.principal), _failure(Code.ECANCELED, "the call is over")
        )
    elif isinstance(row.progress, GatherProgress):
        for payload in row.progress.kept:
            step.emit(effects.DropPayload(payload))
    elif isinstance(row.progress, EntranceProgress):
        for payload in row.progress.payloads:
            step.emit(effects.DropPayload(payload))
        step.require_cluster().leases.forget_waiting(row)
    return unanswered


def _abandon(step: Step, request_id: RequestId) -> PendingRequest | None:
    node, number = request_id
    peer = step.require_cluster().peers.get(node)
    return None if peer is None else _close(step, peer, number)


def repeat_due(step: Step) -> None:
    """Repeat the requests that are due, and fail those that have timed out."""
    cluster = step.require_cluster()
    for request in cluster.due(step.now, limits.STEP_UNITS // 4):
        if request.confirmed and request.confirmed_until > step.now:
            cluster.repeat_later(request, request.confirmed_until)
            continue
        silent_ms = _silent_ms(step, cluster, request)
        if silent_ms >= limits.DCP_PATIENCE_MS:
            # The path to the node must be broken. Other nodes may still reach it.
            request.peer.cut_off = True
            _fail_unsent(step, request.peer)
        if request.peer.cut_off or silent_ms >= _patience_ms(request):
            fail(step, request)
        elif _unconfirmed_ms(step, cluster, request) >= _unconfirmed_ms_max(request):
            fail(step, request, "lives, but has lost the request")
        else:
            request.repeats += 1
            _repeat(step, cluster, request)


def _fail_unsent(step: Step, peer: Peer) -> None:
    """Fail the requests that were not sent, because their node is out of reach."""
    unsent = [*peer.unsent_brief, *peer.unsent_lasting]
    if unsent:
        peer.unsent_brief, peer.unsent_lasting = RequestQueue(), RequestQueue()
        step.start(LostPeer(peer.node, "does not answer", unsent[::-1], [], [], (0, 0)))


def _silent_ms(step: Step, cluster: Cluster, request: PendingRequest) -> int:
    """Return the time since the last sign of life of a request's node, at most since the request began.

    Any message is a sign of life, so that a request to a slow node has no clock of its own.
    """
    peer = request.peer
    quiet_since = max(request.silent_since, peer.heard_ns, peer.excused_until, cluster.resumed_ns)
    return (step.now - quiet_since) // _MS - _bulk_ms(request)


def _unconfirmed_ms(step: Step, cluster: Cluster, request: PendingRequest) -> int:
    """Return the time since the node last reported that it has the request, or since the request began."""
    since = max(
        request.silent_since,
        request.confirmed_ns,
        request.moving_since,
        request.peer.excused_until,
        cluster.resumed_ns,
    )
    return (step.now - since) // _MS - _bulk_ms(request)


def _bulk_ms(request: PendingRequest) -> int:
    """Return the time that the bytes of a request may need on their way."""
    return 0 if request.source is None else request.source.length // limits.DCP_BYTES_PER_MS_MIN


def note_heard(step: Step, peer: Peer) -> None:
    """Record that a message arrived from a node. Repeat its notices if it was cut off."""
    peer.heard_ns = step.now
    if peer.cut_off:
        peer.cut_off = False
        repeat_notices(step, peer)


def reset_silence(step: Step, cluster: Cluster) -> None:
    """Restart all silence timers, because this node itself was stalled."""
    cluster.resumed_ns = step.now


def _asks_all(request: PendingRequest) -> bool:
    """Return True for a request to several nodes. If one is silent, the others' answers are enough."""
    return type(request.body) in _GATHERED


def _patience_ms(request: PendingRequest) -> int:
    return limits.LOOKUP_PATIENCE_MS if _asks_all(request) else limits.DCP_PATIENCE_MS


def _unconfirmed_ms_max(request: PendingRequest) -> int:
    if isinstance(request.body, dcp.FindNames):
        return limits.LOOKUP_PATIENCE_MS  # a request to all nodes comes next
    return limits.LOOKUP_UNCONFIRMED_MS if _asks_all(request) else limits.DCP_UNCONFIRMED_MS


def answered(step: Step, peer: Peer, reply: dcp.PeerReply) -> None:
    """Handle a reply. Ignore it if its request was abandoned."""
    result = reply.result
    numbers = (reply.number, *result.also) if isinstance(result, dcp.Working) else (reply.number,)
    highest = max(numbers)
    if highest >= peer.next_number:
        raise ProtocolError(f"cannot accept an answer to request {highest}: it was never made")
    if isinstance(result, dcp.Working):
        step.spend(len(numbers) // 64)
        for number in numbers:
            waiting = peer.asked.get(number)
            if waiting is not None:
                waiting.confirmed, waiting.confirmed_ns = True, step.now
                until_ms = result.again_ms + limits.DCP_REPEAT_MS_MAX
                waiting.confirmed_until = step.now + until_ms * _MS
        return
    request = peer.asked.get(reply.number)
    if request is None:
        return
    validation.require_answer(step.state, step.require_cluster(), request, result)
    mandate_table.confirm(request, result)
    _finish(step, request, result)


def _finish(step: Step, request: PendingRequest, answer: dcp.Answer) -> None:
    _close(step, request.peer, request.number)
    _continue(step, request.then, answer)


def take_all(peer: Peer) -> list[PendingRequest]:
    """Remove and return all requests to a node, which the caller fails, the first one last."""
    taken = [*peer.asked.values(), *peer.unsent_brief, *peer.unsent_lasting]
    peer.asked, peer.lasting = {}, {}
    peer.unsent_brief, peer.unsent_lasting = RequestQueue(), RequestQueue()
    return taken[::-1]


def fail(step: Step, request: PendingRequest, event: str = "does not answer") -> None:
    """Fail a request without an answer. Only a request that was never sent has certainly changed nothing."""
    peer = request.peer
    _close(step, peer, request.number)
    if not request.sent:
        _continue(step, request.then, unreachable(peer), unsent=True)
    elif changes_nothing(request.body):
        _continue(step, request.then, unreachable(peer, f"{event}. {_TRY_AGAIN}"))
    else:
        _continue(step, request.then, unreachable(peer, f"{event}. {MAYBE}"))


def changes_nothing(body: dcp.RequestBody) -> bool:
    """Return True if it does not matter to the asking task whether a request was carried out."""
    if not isinstance(body, dcp.Forward):
        return type(body) in _READING_REQUESTS
    return is_reading(body.call)


def is_reading(call: messages.AnyCall) -> bool:
    """Return True if a call changes nothing that matters to a task that does not get its answer."""
    return all(type(inner) in _READING for inner in messages.calls_of(call))


def repeat_all(step: Step, peer: Peer) -> None:
    """Repeat all requests on a new connection, because the old one may have lost some."""
    cluster = step.require_cluster()
    for place, request in enumerate(list(peer.asked.values())):
        request.silent_since = step.now
        if place < limits.STEP_UNITS:
            _repeat(step, cluster, request)
        else:
            cluster.repeat_later(request, step.now)


def unreachable(peer: Peer | None, why: str = "") -> messages.Failure:
    """Return the failure for a node that does not answer (§4.6)."""
    name = "that has it" if peer is None or not peer.name else peer.name
    reason = why or f"cannot be reached, and nothing was changed there. {_TRY_AGAIN}"
    return _failure(Code.EHOSTUNREACH, f"node {name} {reason}")


def ended_while_lost(row: Pending) -> messages.Failure:
    """Return the answer to a call that ended here because its node was taken for dead."""
    reason = _TRY_AGAIN if is_reading(row.call) else MAYBE
    return _failure(Code.EHOSTUNREACH, f"your node was out of reach, so that the call ended. {reason}")


def unreachable_error(peer: Peer | None, why: str = "") -> UnreachableError:
    """Return ``unreachable`` as an exception."""
    return UnreachableError(unreachable(peer, why).message)


def _failure(code: Code, message: str) -> messages.Failure:
    return messages.Failure(int(code), message)


# -- requests of other nodes --------------------------------------------------------------------------
def is_new(step: Step, peer: Peer, message: dcp.Ask) -> bool:
    """Return True if a request must be handled. Answer a repeat from the cached replies (§4.8)."""
    if peer.settled.learn(message):
        for number in [number for number in peer.answers if peer.settled.has(number)]:
            peer.forget_answer(number, step.now)
    if peer.settled.has(message.number):
        return False  # the sender has its answer, or no longer wants it
    if message.number not in peer.answers:
        if len(peer.answers) >= 2 * limits.DCP_REQUESTS_MAX:
            raise ProtocolError(f"cannot accept more than {2 * limits.DCP_REQUESTS_MAX} requests at once")
        peer.answers[message.number] = None
        first_at = step.now + limits.DCP_WORKING_PERIOD_MS * _MS
        if peer.working_at is None or peer.working_at > first_at:
            cluster = step.require_cluster()
            peer.working_at = first_at
            cluster.reported[peer.node] = None
            cluster.working_at = min(cluster.working_at or first_at, first_at)
        return True
    cached = peer.answers[message.number]
    if cached is None or step.require_cluster().index.holds(peer.node, message.number):
        _send_reply(step, peer, message.number, dcp.Working())
    else:
        _answer_again(step, peer, message.number, cached)
    return False


def report_working(step: Step, cluster: Cluster) -> None:
    """Report to the nodes that are due which of their requests wait here.

    They neither repeat these nor give them up.
    """
    moments: list[int] = []
    for node in list(cluster.reported):
        peer = cluster.peers.get(node)
        is_due = peer is not None and peer.working_at is not None and peer.working_at <= step.now
        if peer is not None and is_due and not step.exhausted:
            _report_to(step, peer)
        if peer is None or peer.working_at is None:
            del cluster.reported[node]
        else:
            moments.append(peer.working_at)
    cluster.working_at = min(moments, default=None)


def _report_to(step: Step, peer: Peer) -> None:
    step.spend(1 + len(peer.answers) // 64)
    open_numbers = [number for number, cached in peer.answers.items() if cached is None]
    if not open_numbers:
        peer.working_at, peer.working_ms = None, 0
        return
    # Requests that have waited for long will wait for longer: they are reported less and less often.
    newest = max(open_numbers)
    peer.working_ms = (
        limits.DCP_WORKING_PERIOD_MS
        if newest > peer.working_since or not peer.working_ms
        else min(2 * peer.working_ms, limits.DCP_WORKING_PERIOD_MS_MAX)
    )
    peer.working_since = newest
    peer.working_at = step.now + peer.working_ms * _MS
    if peer.connected and peer.dead_since is None:
        also = tuple(open_numbers[1 : limits.DCP_REQUESTS_MAX + 1])
        _send_reply(step, peer, open_numbers[0], dcp.Working(also, peer.working_ms))


def _answer_again(step: Step, peer: Peer, number: int, cached: CachedReply) -> None:
    # The operations behind the cached reply may not be on disk yet.
    step.depend_on_everything()
    effect = cached.effect
    for part in effect.parts if isinstance(effect, effects.AnswerVector) else (effect,):
        target = step.state.find_object(part.object) if isinstance(part, READS) else None
        if target is not None:
            # A close of the reply's buffer must complete after this reply has opened it again.
            target.ticket = max(target.ticket, Ticket(step.state.next_ticket - 1))
    changed = {
        target
        for target, version in cached.versions
        if (read := step.state.find_object(target)) is None or read.v_w != version
    }
    if isinstance(effect, effects.AnswerVector):
        # Only the stale parts are replaced: the other calls of the vector were made.
        parts = tuple(
            effects.Answer(effect.task, effect.seq, _replaced(step, part))
            if _is_stale(step, part, changed)
            else part
            for part in effect.parts
        )
        step.emit(effects.AnswerVector(effect.task, effect.seq, parts))
    elif _is_stale(step, effect, changed):
        _send_reply(step, peer, number, _replaced(step, effect))
    elif isinstance(effect, effects.AnswerAttach):
        reason = "the answer was lost, and the end of the stream is closed. Create a new stream."
        _send_reply(step, peer, number, _failure(Code.EPIPE, reason))
    else:
        step.emit(effect)


def _is_stale(step: Step, part: effects.Effect, changed: set[ObjectId]) -> bool:
    """Return True if the bytes of a cached reply have changed, or if its buffer was closed."""
    if isinstance(part, READS) and part.object in changed:
        return True
    return isinstance(part, _OPENS) and bool(part.result.buffer) and _buffer_of(step, part) is None


def _buffer_of(step: Step, part: effects.AnswerRead | effects.AnswerWrite) -> Buffer | None:
    remote_task = step.state.remote_tasks.get(part.task)
    return None if remote_task is None else remote_task.buffers.get(BufferId(part.result.buffer))


def _replaced(step: Step, part: effects.Effect) -> messages.Committed | messages.Failure:
    """Return the answer in place of a stale one, and end the request that the stale one began.

    A call that has also made a commit keeps the outcome of the commit.
    """
    if not isinstance(part, _OPENS):
        return _STALE
    buffer = _buffer_of(step, part)
    if buffer is not None:
        if part.reuse:
            abort(buffer)
            step.changed(buffer.object)
        else:
            lifetimes.close_buffer(step, buffer)
    return messages.Committed(part.result.v_r, part.result.v_w) if part.committed else _STALE


def _send_reply(step: Step, peer: Peer, number: int, result: dcp.Answer) -> None:
    step.emit(effects.Send(peer.node, dcp.PeerReply(number, result), epoch=peer.epoch))


def reply(step: Step, peer: Peer, number: int, result: dcp.Answer) -> None:
    """Answer a request that is not a task's call."""
    effect = effects.Send(peer.node, dcp.PeerReply(number, result), epoch=peer.epoch)
    if number in peer.answers:
        peer.answers[number] = CachedReply(effect, (), Ticket(step.state.next_ticket))
    step.emit(effect)


def answer_request(step: Step, then: AnswerRequest, result: dcp.Answer) -> None:
    """Answer a request whose answer depended on a third node."""
    peer = step.require_cluster().peer(then.node)
    if peer.epoch == then.epoch:  # after a restart, the number may belong to another request
        reply(step, peer, then.number, result)
