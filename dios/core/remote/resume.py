"""Run the continuations of other nodes' answers: one function for each type of continuation.

``dios.core.remote.requests`` collects the answers of a step. The step calls ``resume_all`` at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Never, TypeAlias, cast

from dios.core.calls import delegation, dispatch, run_calls
from dios.core.model.records import Pending
from dios.core.remote import (
    cached_reads,
    forwarding,
    granted_leases,
    reconciliation,
    registration,
    remote_calls,
    remote_lookup,
    remote_run,
    removals,
    requests,
)
from dios.core.remote import continuations as types
from dios.core.remote.continuations import CallContinuation, Continuation
from dios.core.step import Party, Step
from dios.errors import DiosError
from dios.ids import NodeId
from dios.wire import dcp

CallHandler: TypeAlias = Callable[[Step, Pending, Never, dcp.Answer], None]
Handler: TypeAlias = Callable[[Step, Never, dcp.Answer], None]

_CALL_HANDLERS: Final[dict[type, CallHandler]] = {
    types.FitAnswer: forwarding.fit_answer,
    types.FitRead: cached_reads.answered,
    types.FitAttached: forwarding.fit_attached,
    types.AnswerCaller: forwarding.answer_caller,
    types.FitCreated: remote_calls.fit_created,
    types.FitDelegated: remote_calls.fit_delegated,
    types.FitCopied: delegation.fit_copied,
}
"""The handlers of continuations of calls that wait for a single answer."""

_HANDLERS: Final[dict[type, Handler]] = {
    types.GatherAnswer: dispatch.take_gathered,
    types.SelectAnswer: remote_calls.answer_selected,
    types.SearchAnswer: remote_lookup.store_search_answer,
    types.OfferAnswer: remote_run.store_offers,
    types.StartAnswer: run_calls.answer_started,
    types.ConfirmNotice: requests.confirm,
    types.ReconcileAnswer: reconciliation.reconcile_answered,
    types.AnswerRequest: requests.answer_request,
    types.HandedOver: delegation.handed_over,
    types.RemovalAnswer: removals.store_confirmation,
    types.IndexAnswer: remote_lookup.store_index_answer,
    types.RegisterAnswer: registration.registered,
    types.EndRead: cached_reads.end,
    types.LeaseReturned: granted_leases.returned,
}


def resume_all(step: Step) -> None:
    """Run the continuations of all answers of this step, in the order of arrival."""
    while step.answers:
        answers, step.answers = step.answers, ()
        for received in answers:
            step.payload, step.payload_size = received.payload, received.payload_size
            step.unsent = received.unsent
            try:
                resume(step, received.then, received.answer)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported and ends the party
                step.note_defect(_party_of(step, received.then), error)


def _party_of(step: Step, continuation: Continuation) -> Party:
    """Return the task whose call continues, or the node that the continuation is about."""
    call = getattr(continuation, "call", None)
    row = None if call is None else step.state.pending.find(call)
    if row is not None:
        return row.task
    task = None if call is None else step.state.tasks.get(call[0]) or step.state.remote_tasks.get(call[0])
    return task or step.require_cluster().peers.get(getattr(continuation, "node", NodeId(0)))


def resume(step: Step, continuation: Continuation, answer: dcp.Answer) -> None:
    """Run the continuation of one answer."""
    if isinstance(continuation, CallContinuation):
        _resume_call(step, continuation, answer)
    else:
        _HANDLERS[type(continuation)](step, cast("Never", continuation), answer)


def _resume_call(step: Step, continuation: CallContinuation, answer: dcp.Answer) -> None:
    """Answer a call that waits for a single answer."""
    row = step.state.pending.find(continuation.call)
    if row is None:
        return  # the task has ended; the other node drops the references that it granted
    step.state.pending.remove(row)
    try:
        _CALL_HANDLERS[type(continuation)](step, row, cast("Never", continuation), answer)
    except DiosError as error:
        step.refuse(row.task, row.seq, error)
