"""Taking references back: on request, with all that was delegated from them, or at their end.

A holder keeps what it has read or mapped before: no memory is taken out of a process.
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
    """Take back everything that was delegated from a reference, by its holder and by the receivers on.

    With EVERYONE, whatever was delegated of the object, from whichever reference: for who may delete it.
    The reference itself stays, and so do those that others resolved by name. Answers how many went.
    """
    flags = access.flags_of(call.flags, Flag.EVERYONE)
    reference = access.held(task, call.ref)
    step.require_unread(reference.object)
    if flags & Flag.EVERYONE:
        access.held(task, call.ref, Permission.DELETE)
        victims = _everybody(reference)
    else:
        victims = descendants(reference)
    reference.object.retirements += 1
    for victim in reversed(victims):
        step.audit(task, "retire", "ok", victim.object.fingerprint, f"of {victim.task.object.fingerprint}")
        _take_back(step, victim, expired=False)
    step.answer(task, seq, messages.Done(len(victims)))


def descendants(reference: Reference) -> list[Reference]:
    """What was delegated from a reference, directly and further on; each after what it came from."""
    found = list(reference.descendants.values())
    for other in found:
        found.extend(other.descendants.values())
    return found


def _everybody(reference: Reference) -> list[Reference]:
    """What was delegated of an object, to any task but the caller, and what came from that further on."""
    found: dict[int, Reference] = {}
    for other in reference.object.references.values():
        if other.provenance is Provenance.DELEGATED and other.id not in found:
            found.update({one.id: one for one in (other, *descendants(other))})
    return [one for one in found.values() if one.task is not reference.task]


def expire(step: Step) -> None:
    """Take back every reference whose time is over; what came from it was never given longer."""
    for reference in step.state.expiries.due(step.now):
        step.audit(reference.task, "expire", "ok", reference.object.fingerprint)
        _take_back(step, reference, expired=True)


def _take_back(step: Step, reference: Reference, *, expired: bool) -> None:
    holder, target = reference.task, reference.object
    lifetimes.drop_reference(step, reference)
    if holder.alive:
        retired = messages.Retired(reference.id, target.id, target.fingerprint, reference.label, expired)
        notices.notify(step, holder, retired)
