"""Retirement of delegated references: on request, with all references derived from them, or at expiry.

A task keeps the bytes that it has read or mapped before: no memory is taken out of a process.
"""

from __future__ import annotations

from dios.core import lifetimes
from dios.core.calls import access
from dios.core.model.records import Holder, Provenance, Reference
from dios.core.remote import notices
from dios.core.step import Step
from dios.wire import messages
from dios.wire.types import Flag, Permission


def retire(step: Step, task: Holder, seq: int, call: messages.Retire) -> None:
    """Retire every reference that was delegated from a reference, directly or through other tasks.

    With EVERYONE, retire every delegated reference to the object; this needs the right to delete it. The
    reference itself stays, and so do references that other tasks resolved by name. Answers with the number
    of retired references.
    """
    flags = access.flags_of(call.flags, Flag.EVERYONE)
    reference = access.held(task, call.ref)
    step.require_unread(reference.object)
    if flags & Flag.EVERYONE:
        access.held(task, call.ref, Permission.DELETE)
        victims = _all_delegated(reference)
    else:
        victims = descendants(reference)
    reference.object.retirements += 1
    for victim in reversed(victims):
        step.audit(task, "retire", "ok", victim.object.fingerprint, f"of {victim.task.object.fingerprint}")
        _take_back(step, victim, expired=False)
    step.answer(task, seq, messages.Done(len(victims)))


def descendants(reference: Reference) -> list[Reference]:
    """Return the references delegated from a reference, directly or indirectly, each after its origin."""
    found = list(reference.descendants.values())
    for other in found:
        found.extend(other.descendants.values())
    return found


def _all_delegated(reference: Reference) -> list[Reference]:
    """Return the delegated references to an object and those derived from them, except the caller's."""
    found: dict[int, Reference] = {}
    for other in reference.object.references.values():
        if other.provenance is Provenance.DELEGATED and other.id not in found:
            found.update({derived.id: derived for derived in (other, *descendants(other))})
    return [other for other in found.values() if other.task is not reference.task]


def expire(step: Step) -> None:
    """Retire every expired reference. A reference derived from it never expires later."""
    for reference in step.state.expiries.due(step.now):
        step.audit(reference.task, "expire", "ok", reference.object.fingerprint)
        _take_back(step, reference, expired=True)


def _take_back(step: Step, reference: Reference, *, expired: bool) -> None:
    holder, target = reference.task, reference.object
    lifetimes.drop_reference(step, reference)
    if holder.alive:
        retired = messages.Retired(reference.id, target.id, target.fingerprint, reference.label, expired)
        notices.notify(step, holder, retired)
