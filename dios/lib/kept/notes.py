"""The notes of a group's list: the objects for which each waits, and those that may go.

A note is carried out in three steps, each of which can be repeated: the objects that it waits for are kept,
the former objects are destroyed on all nodes, and the list loses the note.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dios.errors import BadReferenceError, StaleError
from dios.lib.catalogue import Listed, Note, Part
from dios.lib.kept import replicas

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode


class WaitingNote(NamedTuple):
    """A note, and the objects of the list that have to be kept first.

    ``waits_for`` is None if one of these objects is in no entry, and no other note says what replaced it.
    Nothing shows then that a later version exists, so the note is not carried out.
    """

    note: Note
    waits_for: tuple[Part, ...] | None


def waiting_notes(notes: Sequence[Note], listed: Container[bytes]) -> tuple[WaitingNote, ...]:
    """Return the notes with the objects for which they wait; ``listed`` are the names in the entries.

    An object that was itself replaced meanwhile stands for the objects that replaced it.
    """
    replaced = {name: note for note in notes for name in note.former.local_names}
    waiting: list[WaitingNote] = []
    for note in notes:
        wanted: dict[Part, None] = {}
        followed = {note}
        rest = [note]
        lost = False
        while rest:
            for part in rest.pop().replacement:
                later = replaced.get(part.name)
                if part.name in listed:
                    wanted[part] = None
                elif later is None:
                    lost = True
                elif later not in followed:
                    followed.add(later)
                    rest.append(later)
        ends = wanted or not all(later_note.until for later_note in followed)
        waiting.append(WaitingNote(note, None if lost or not ends else tuple(wanted)))
    return tuple(waiting)


def needed_names(content: Listed) -> set[bytes]:
    """Return the objects of a list that stay whatever its notes say: those of files, unfinished or not."""
    named = {name for entry in content.entries for name in entry.local_names}
    return named | {part.name for unfinished_file in content.unfinished for part in unfinished_file.parts}


def without(content: Listed, done: Collection[Note]) -> Listed:
    """Return a list without the notes that were carried out."""
    return content._replace(notes=tuple(note for note in content.notes if note not in done))


async def destroy(node: AsyncNode, group: AsyncGroup, name: bytes) -> bool:
    """Destroy all replicas of an object; return True if every node answered and none is left."""
    for _ in range(2):
        async with replicas.references_to(node, name, group) as references:
            there = [reference for reference in references if not reference.zombie]
            if not there:
                return not references.incomplete
            for replica in there:
                with suppress(StaleError, BadReferenceError):
                    await replica.destroy()
    return False
