"""Retirement of delegated references: on request, with all references derived from them, or at expiry.

A task keeps the bytes that it has read or mapped before: no memory is taken out of a process.
"""

from __future__ import annotations

from dios import limits
from dios.core import lifetimes
from dios.core.calls import rights
from dios.core.calls.handlers import handles
from dios.core.model.records import Holder, Pending, PhysicalObject, Provenance, Reference, last_value
from dios.core.model.work_items import Retirement
from dios.core.remote import notices
from dios.core.step import Step
from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.types import Flag, Permission


@handles(messages.Retire)
def retire(step: Step, task: Holder, seq: int, call: messages.Retire) -> None:
    """Retire every reference that was delegated from a reference, directly or through other tasks.

    With EVERYONE, retire every delegated reference to the object; this needs the right to delete it. With a
    holder, too, retire only those that it holds, and those derived from them. The reference itself stays, and
    so do references that other tasks resolved by name. The call is answered with the number of retired
    references when all are retired, which may take several steps.

    Raises:
        InvalidError: there is a holder without EVERYONE.
        NotPermittedError: EVERYONE without the right to delete.
    """
    flags = rights.flags_of(call.flags, Flag.EVERYONE)
    if call.holder and not flags:
        raise InvalidError("cannot retire the references of one holder without the flag EVERYONE")
    reference = rights.held(task, call.ref)
    target = reference.object
    step.require_unread(target)
    everyone = bool(flags & Flag.EVERYONE)
    if everyone:
        rights.held(task, call.ref, Permission.DELETE)
    is_short = _is_short(target if everyone else reference)
    row = Pending(task, seq, call, {}, closes=(target,))
    if not is_short:
        step.wait(row)
    target.retirements += 1
    task.retirements += 1
    roots = [reference]
    if everyone:
        roots = [
            root
            for root in reversed(target.references.values())
            if call.holder in {"", root.task.object.fingerprint}
        ]
    item = Retirement(row, roots, everyone=everyone)
    if is_short:
        former, step.units_max = step.units_max, limits.STEP_WORK_MAX
        retire_some(step, item)
        step.units_max = former
        step.answer(task, seq, messages.Done(item.count))
    else:
        step.start(item)


def _is_short(above: Reference | PhysicalObject) -> bool:
    """Return True if the references below a reference, or those to an object, can be retired in this step."""
    room = limits.STEP_UNITS // 2
    if isinstance(above, PhysicalObject) and len(above.references) > room:
        return False
    references = list(above.references.values()) if isinstance(above, PhysicalObject) else [above]
    for reference in references:
        room -= 2 + len(reference.buffers)
        if room < len(reference.descendants):
            return False
        references.extend(reference.descendants.values())
    return True


def retire_some(step: Step, item: Retirement) -> bool:
    """Retire references of a retirement; return True after the last one, when its call is answered.

    Each reference goes after those that are derived from it.
    """
    while item.roots:
        if step.exhausted:
            return False
        step.spend(1)
        root = item.roots[-1]
        root.retiring = True
        if not _retire_below(step, item, root):
            return False
        root.retiring = False
        item.roots.pop()
        if root.dropped:
            root.disown()
        elif item.everyone and root.provenance is Provenance.DELEGATED and root.task is not item.row.task:
            _retire_one(step, item, root)
    row = item.row
    row.task.retirements -= 1
    if step.state.pending.has(row):
        step.state.pending.remove(row)
        step.answer(row.task, row.seq, messages.Done(item.count))
    return True


def _retire_below(step: Step, item: Retirement, root: Reference) -> bool:
    """Retire the references derived from one reference; return False if some are left for further steps."""
    is_root_included = not item.everyone or root.provenance is Provenance.DELEGATED
    place = item.place or root
    if place.is_cut_out:
        place = root  # its task has ended since the last step
    while is_root_included and (place is not root or root.descendants):
        if step.exhausted:
            item.place = place
            return False
        step.spend(1)
        if place.descendants:
            place = last_value(place.descendants)
            continue
        above = place.origin or root
        beyond = above.origin or root
        if place.dropped:
            place.disown()
        elif item.everyone and place.task is item.row.task:
            place.move_beside(root)
        else:
            _retire_one(step, item, place)
        place = beyond if above.is_cut_out else above
    item.place = None
    return True


def _retire_one(step: Step, item: Retirement, victim: Reference) -> None:
    holder = victim.task.object.fingerprint
    step.audit(item.row.task, "retire", "ok", victim.object.fingerprint, f"of {holder}")
    _take_back(step, victim, expired=False)
    item.count += 1


def expire(step: Step, units: int) -> None:
    """Retire expired references, until this step has done ``units`` of work; the next steps retire the rest.

    A reference derived from another one never expires later.
    """
    while step.units < units and (reference := step.state.expiries.due(step.now)) is not None:
        try:
            step.audit(reference.task, "expire", "ok", reference.object.fingerprint)
            _take_back(step, reference, expired=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported and ends the holder
            step.note_defect(reference.task, error)
            return  # the reference is still due


def _take_back(step: Step, reference: Reference, *, expired: bool) -> None:
    holder, target = reference.task, reference.object
    lifetimes.drop_reference(step, reference)
    if holder.alive:
        retired = messages.Retired(reference.id, target.id, target.fingerprint, reference.label, expired)
        notices.notify(step, holder, retired)
