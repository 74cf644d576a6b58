"""Reading former files: those that were replaced, and stay until their replacements are kept."""

from __future__ import annotations

from collections.abc import Iterator

from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.downloads import Moved, Output, copy_view
from dios.lib.files.group_files import GroupFiles


def copy_former(
    files: GroupFiles, entry: CatalogueEntry, file: Output, moved: Moved = lambda _: None
) -> None:
    """Write the bytes of a former file, one of ``GroupFiles.formers``, to an open one.

    Raises StaleError if they were destroyed meanwhile, and DamagedError or UnreachableError if no replica has
    them; see ``SoundReplicas``.
    """
    for piece in _pieces(files, entry):
        copy_view(piece, file, moved)


def _pieces(files: GroupFiles, entry: CatalogueEntry) -> Iterator[memoryview]:
    if entry.tiered:
        from dios.lib.tier.inward import stored_pieces  # noqa: PLC0415 - other groups need no store

        return stored_pieces(files, entry)
    return files.parts(entry).checked() if entry.in_parts else iter([files.replicas(entry).checked_view()])
