"""Reading former files: those that were replaced, and stay until their replacements are kept."""

from __future__ import annotations

from collections.abc import Iterator

from blake3 import blake3

from dios.errors import DamagedError, DiosError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.downloads import Moved, Output, copy_view
from dios.lib.files.group_files import GroupFiles


def copy_former(
    files: GroupFiles, entry: CatalogueEntry, file: Output, moved: Moved = lambda _: None
) -> None:
    """Write the bytes of a former file, one of ``GroupFiles.formers``, to an open one.

    Raises FileNotFoundError if they were destroyed meanwhile, and DamagedError if no replica has them.
    """
    for piece in _pieces(files, entry):
        copy_view(piece, file, moved)


def _pieces(files: GroupFiles, entry: CatalogueEntry) -> Iterator[memoryview]:
    if entry.tiered:
        from dios.lib.tier.inward import stored_pieces  # noqa: PLC0415 - other groups need no store

        return stored_pieces(files, entry)
    return files.parts(entry).checked() if entry.in_parts else iter([_sound(files, entry)])


def _sound(files: GroupFiles, entry: CatalogueEntry) -> memoryview:
    """Return the bytes of the first replica that has those of the entry's digest."""
    found = files.node.lookup(entry.name, group=files.group)
    why = ""
    try:
        for one in found:
            try:
                view = one.view_bytes()
            except DiosError as error:
                why = f"the replica on {one.node} cannot be read: {error.message}"
                continue
            if not entry.digest or blake3(view).digest() == entry.digest:
                return view
            why = f"the replica on {one.node} has other bytes"
    finally:
        for one in found:
            one.close()
    if why:
        raise DamagedError(f"the former {entry.file} is damaged: {why}. Restore it from a backup.")
    raise FileNotFoundError(2, "the former file was destroyed, or its nodes do not answer", entry.file)
