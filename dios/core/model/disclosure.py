"""The fields of answers by which a task could show others what it has read.

A task that has read something labelled chose them, or its parent did. Each row about tasks passes here before
it leaves the core (``Step.answer``; ``remote.forwarding`` for answers of other nodes), and so do the counters
of a labelled object. They are shown only to readers that may know what the task knows.
The other fields of a row are chosen by the node. The needs of a run are shown as far as a scheduler needs
them, which are the numbers and conditions that restrict its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from dios import limits
from dios.core.model.origins import BLANKS
from dios.core.model.records import Holder, PhysicalObject
from dios.wire import messages

Needs: TypeAlias = messages.Submission | messages.Occupant | messages.KeptRoom
TaskInfo: TypeAlias = messages.TaskRow | messages.LimitRow | Needs
Counted: TypeAlias = messages.Buffer | messages.Committed
R = TypeVar("R", bound=TaskInfo)
C = TypeVar("C", bound=Counted)

LISTS: Final[dict[type, tuple[str, ...]]] = {
    messages.Tasks: ("tasks",),
    messages.LimitRows: ("rows",),
    messages.QueueRows: ("waiting", "tasks", "kept"),
}
"""The answers with rows about tasks, and the fields that have them."""


def in_steps(amount: int, step: int = limits.SUM_STEP) -> int:
    """Return a sum to which tasks with labels contribute, rounded up to a whole number of steps."""
    return -(-amount // step) * step


def counts_in_steps(counts: Mapping[str, int]) -> dict[str, int]:
    """Return named sums in steps, those of bytes in steps of SUM_STEP_BYTES."""
    return {
        name: in_steps(amount, limits.SUM_STEP_BYTES if "bytes" in name else limits.SUM_STEP)
        for name, amount in counts.items()
    }


def concealed(row: R) -> R:
    """Return a row without what its task chose."""
    blanks = BLANKS[type(row)]
    if isinstance(row, Needs):
        blanks = {**blanks, "work": replace(row.work, **BLANKS[messages.Work])}
    return replace(row, **blanks)


def row_for(reader: Holder, row: R) -> R:
    """Return a row as this reader may see it."""
    return concealed(row) if row.secrecy and not reader.may_know(row.secrecy) else row


def shown(reader: Holder, result: messages.AnyResult) -> messages.AnyResult:
    """Return an answer with its rows as this reader may see them."""
    for field in LISTS[type(result)]:
        rows = cast("Iterable[TaskInfo]", getattr(result, field) or ())
        if any(row.secrecy for row in rows):
            result = replace(result, **{field: tuple(row_for(reader, row) for row in rows)})
    return result


def counters_for(reader: Holder, target: PhysicalObject, answer: C) -> C:
    """Return an answer about an object, with the object's counters if the reader may know them.

    The reader's own node hides them from a remote reader.
    """
    label = target.counters_label
    if not label or reader.home or reader.may_know(label):
        return answer
    return replace(answer, **BLANKS[type(answer)])
