"""The commands that other installed packages add to ``dios``: entry points of the group ``dios.commands``.

The name of an entry point is the name of the command. Its value is the place of a Typer application, and this
becomes a group of ``dios``. Its module may have a table ``JSON`` for ``dios schema``. ``importlib.metadata``
would take longer to import than the rest of ``dios --help``, so this module reads the files itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

GROUP: Final = "dios.commands"


@cache
def added_commands() -> Mapping[str, str]:
    """Return the places ``module:attribute`` of added commands by name; the first on ``sys.path`` counts."""
    commands: dict[str, str] = {}
    for folder in sys.path:
        for name, place in _entry_points(Path(folder or ".")):
            commands.setdefault(name, place)
    return commands


def _entry_points(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and values of our group for the packages that are installed in a folder."""
    # A path may be an archive or may not exist. Most packages have no entry points.
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".dist-info"):
                with suppress(OSError):
                    yield from _of_group(Path(entry.path, "entry_points.txt").read_text(encoding="utf-8"))


def _of_group(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of our group in a file ``entry_points.txt``."""
    if GROUP not in text:
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == GROUP and line[:1] not in ("", "#", ";"):
            name, _, place = line.partition("=")
            yield name.strip(), place.strip()
