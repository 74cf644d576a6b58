"""Reading the small text files of procfs and sysfs, any of which may be missing, unreadable or truncated."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios import limits

PSEUDO_DISKS: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")
"""Name prefixes of block devices that are not physical disks: they use other devices, memory or nothing."""


def text(path: Path) -> str:
    """Return a file's text without surrounding white space; an empty string if it cannot be read.

    A process may have ended, a container may hide the file, a device may not answer: all give an empty
    string. At most ``PROC_FILE_BYTES_MAX`` bytes are read.
    """
    try:
        with path.open("rb") as file:
            return file.read(limits.PROC_FILE_BYTES_MAX).decode(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, otherwise: int = -1) -> int:
    """Return the integer that a file contains, or ``otherwise``."""
    try:
        return int(text(path))
    except ValueError:
        return otherwise


def numbers(line: str, count: int) -> list[int]:
    """Return the first ``count`` numbers of a line; zeros if there are fewer."""
    parsed = [int(word) for word in line.split()[:count] if word.isdecimal()]
    return parsed if len(parsed) == count else [0] * count


def rows(content: str, separator: str = ":") -> dict[str, int]:
    """Return the rows ``name: number`` of a text; other rows and units behind numbers are ignored."""
    values: dict[str, int] = {}
    for row in content.splitlines():
        name, _, value = row.partition(separator)
        words = value.split()
        if words and words[0].isdecimal():
            values[name.strip()] = int(words[0])
    return values


def names(folder: Path) -> list[str]:
    """Return the names in a folder; an empty list if it cannot be listed."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def listed_numbers(folder: Path) -> list[int]:
    """Return the numeric names in a folder, ascending: processes, or a process's threads."""
    return sorted(int(name) for name in names(folder) if name.isdecimal())
