"""Store the answers to other nodes' requests, so that a repeated request is answered without a second
execution (§4.8).
"""

from __future__ import annotations

from typing import Final

from dios.core import effects
from dios.core.effects import Reply
from dios.core.model.state import State
from dios.core.remote.peers import CachedReply
from dios.ids import Ticket
from dios.wire import dcp, messages

READS: Final = (effects.AnswerRead,)


def remember(state: State, answer: Reply | effects.AnswerVector | effects.AnswerAttach) -> None:
    """Store the answer to a remote task's call for repeats of the request."""
    remote_task = state.remote_tasks.get(answer.task)
    if remote_task is None or state.cluster is None:
        return
    peer = state.cluster.peers.get(remote_task.home)
    if peer is not None and answer.seq in peer.answers:
        parts = answer.parts if isinstance(answer, effects.AnswerVector) else (answer,)
        read = [state.find_object(part.object) for part in parts if isinstance(part, READS)]
        versions = tuple((target.id, target.v_w) for target in read if target is not None)
        peer.answers[answer.seq] = CachedReply(answer, versions, Ticket(state.next_ticket))


def undo_answers(state: State, first: Ticket, failure: messages.Failure) -> None:
    """Replace the cached answers since ticket ``first`` with ``failure``: the store refused their writes."""
    if state.cluster is None:
        return
    for peer in state.cluster.peers.values():
        for number, cached in peer.answers.items():
            if cached is not None and cached.ticket >= first:
                refused = effects.Send(peer.node, dcp.PeerReply(number, failure), epoch=peer.epoch)
                peer.answers[number] = CachedReply(refused, (), cached.ticket)
