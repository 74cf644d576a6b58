"""The fields of rows about tasks by which a task could show others what it has read.

A task that has read something labelled chose them, or its parent did. Each answer passes here before it
leaves the core (``Step.answer``; ``remote.forwarding`` for answers of other nodes). It shows these fields
only to readers that may know what the task knows.
The other fields of a row are chosen by the node. The needs of a run are shown as far as a scheduler needs
them, which are the numbers and conditions that restrict its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from dios.core.model.origins import require_all_hidden
from dios.core.model.records import Holder
from dios.core.model.secrecy import Label, is_owned, missing
from dios.wire import messages
from dios.wire.types import Brand, Resource

Needs: TypeAlias = messages.Submission | messages.Occupant | messages.KeptRoom
TaskInfo: TypeAlias = messages.TaskRow | messages.LimitRow | Needs
R = TypeVar("R", bound=TaskInfo)

CHOSEN: Final[dict[type[Struct], dict[str, object]]] = {
    messages.TaskRow: {
        "label": "",
        "exit_code": 0,
        "signal": 0,
        "detail": "",
        "progress": None,
        "moves": 0,
        "restarts": 0,
        "kept_bytes": 0,
    },
    messages.LimitRow: {"label": "", "used": (0,) * len(Resource), "limits": (None,) * len(Resource)},
    messages.Submission: {"label": ""},
    messages.Occupant: {"label": "", "progress": None, "completed": True},
    messages.Work: {
        **dict.fromkeys(("equivalence", "member", "copy_of"), ""),
        **dict.fromkeys(("moves", "restarts", "kept_bytes"), 0),
    },
    messages.KeptRoom: {},
}
"""The fields that tasks choose (``origins``), and their values for other readers."""
require_all_hidden(CHOSEN)

LISTS: Final[dict[type, tuple[str, ...]]] = {
    messages.Tasks: ("tasks",),
    messages.LimitRows: ("rows",),
    messages.QueueRows: ("waiting", "tasks", "kept"),
}
"""The answers with rows about tasks, and the fields that have them."""


def concealed(row: R) -> R:
    """Return a row without what its task chose."""
    blanks = CHOSEN[type(row)]
    if isinstance(row, Needs):
        blanks = {**blanks, "work": replace(row.work, **CHOSEN[messages.Work])}
    return replace(row, **blanks)


def may_know(reader: Holder, label: Label) -> bool:
    """Return True if a reader may know what has this label without getting its tags.

    A right to declassify does not help a task here: its label does not go up with a row, so that it could
    write what it was shown after the right was taken back.
    """
    lacking = missing(label, reader.secrecy)
    return not lacking or (
        reader.brand is Brand.LEGACY and all(is_owned(tag, reader.principal) for tag in lacking)
    )


def row_for(reader: Holder, row: R) -> R:
    """Return a row as this reader may see it."""
    return concealed(row) if row.secrecy and not may_know(reader, row.secrecy) else row


def shown(reader: Holder, result: messages.AnyResult) -> messages.AnyResult:
    """Return an answer with its rows as this reader may see them."""
    for field in LISTS[type(result)]:
        rows = cast("Iterable[TaskInfo]", getattr(result, field) or ())
        if any(row.secrecy for row in rows):
            result = replace(result, **{field: tuple(row_for(reader, row) for row in rows)})
    return result
