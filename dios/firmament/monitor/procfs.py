"""Reading the small text files of procfs and sysfs, where any may be missing, closed or cut short.

For: ``topology``, ``profiling`` and ``load``. Not for: what their fields mean, or files of a store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios import limits

PSEUDO_DISKS: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")
"""How block devices are called that stand on others, on memory, or on nothing."""


def text(path: Path) -> str:
    """A file without the white space around it; empty when it cannot be read, for whatever reason.

    A process may be gone, a container may hide the file, a device may have no answer: here these are
    all the same. At most ``PROC_FILE_BYTES_MAX`` bytes are read.
    """
    try:
        with path.open("rb") as file:
            return file.read(limits.PROC_FILE_BYTES_MAX).decode(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, otherwise: int = -1) -> int:
    """The one number in a file; ``otherwise`` when there is none."""
    try:
        return int(text(path))
    except ValueError:
        return otherwise


def numbers(line: str, count: int) -> list[int]:
    """The first numbers of a line; zeros when they are not all there."""
    found = [int(word) for word in line.split()[:count] if word.isdecimal()]
    return found if len(found) == count else [0] * count


def rows(told: str, separator: str = ":") -> dict[str, int]:
    """The rows ``name: number`` of a text; others are left out, and so is a unit behind a number."""
    found: dict[str, int] = {}
    for row in told.splitlines():
        name, _, value = row.partition(separator)
        words = value.split()
        if words and words[0].isdecimal():
            found[name.strip()] = int(words[0])
    return found


def names(folder: Path) -> list[str]:
    """What stands in a folder; nothing when it cannot be listed."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def listed_numbers(folder: Path) -> list[int]:
    """The entries of a folder that are numbers, ascending: processes, or a process's threads."""
    return sorted(int(name) for name in names(folder) if name.isdecimal())
