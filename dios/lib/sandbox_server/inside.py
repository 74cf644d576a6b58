"""Runs in the session of a sandbox for the server, and answers its questions about files and variables.

The server sets ``answer`` as a variable of the session, and calls it. Code that nobody has read could change
what it returns, so ``held`` checks all of it.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dios.lib.sandbox.session import opened_file

FILE_PART_BYTES: Final = 256 * 1024
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of a file that a client reads."""
ENTRIES_MAX: Final = 10_000
JSON_CHARS_MAX: Final = 256 * 1024


def answer(operation: str, *arguments: object) -> bytes:
    """Do one of ``OPERATIONS``, and return its value as JSON, bytes as they are.

    Raises OSError, OverflowError and ValueError.
    """
    value = OPERATIONS[operation](*arguments)
    # Names that are no UTF-8 have a question mark in each place of it.
    return (
        value
        if isinstance(value, bytes)
        else json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    )


# -- files --------------------------------------------------------------------------------------------
def _entry(path: str) -> dict[str, object]:
    place = os.path.abspath(path)  # noqa: PTH100 - links are kept
    info = os.lstat(place)
    kind = "file" if stat.S_ISREG(info.st_mode) else "folder" if stat.S_ISDIR(info.st_mode) else "other"
    return {
        "name": os.path.basename(place) or "/",  # noqa: PTH119 - a text, no file
        "path": place,
        "kind": "link" if stat.S_ISLNK(info.st_mode) else kind,
        "size": info.st_size,
        "mode": stat.S_IMODE(info.st_mode),
        "modified_ns": max(0, info.st_mtime_ns),
        "target": os.readlink(place) if stat.S_ISLNK(info.st_mode) else "",  # noqa: PTH115 - the same
    }


def _list(path: str, depth: int) -> list[dict[str, object]]:
    top = os.path.abspath(path)  # noqa: PTH100 - links are kept
    rows: list[dict[str, object]] = []
    folders = [(top, 1)]
    while folders:
        folder, level = folders.pop()
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names
            if len(rows) >= ENTRIES_MAX:
                raise ValueError(f"there are more than {ENTRIES_MAX} files: list a part of them")
            row = _entry(f"{folder.rstrip('/')}/{name}")
            rows.append(row)
            if row["kind"] == "folder" and level < depth:
                folders.append((str(row["path"]), level + 1))
    return rows


def _read_part(path: str, begin: int) -> bytes:
    with open(path, "rb", opener=opened_file) as file:
        if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
            raise OverflowError(f"the file has more than {FILE_BYTES_MAX:,} bytes")
        file.seek(begin)
        return file.read(FILE_PART_BYTES)


def _make_folder(path: str) -> dict[str, object]:
    Path(path).mkdir(parents=True)
    return _entry(path)


def _make_parents(path: str) -> None:
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)


def _move(source: str, target: str) -> dict[str, object]:
    _make_parents(target)
    os.rename(source, target)  # noqa: PTH104 - texts
    return _entry(target)


# -- the session --------------------------------------------------------------------------------------
def _set_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set variables of the environment, without those that are None; return their former values."""
    former = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return former


def _enter_folder(path: str) -> str:
    if path:
        os.chdir(path)
    return os.getcwd()  # noqa: PTH109 - a text


def _last_value_json() -> str:
    """Return the last value of a cell as JSON if it is a list or a dictionary, otherwise an empty text."""
    value = sys.modules["__main__"].__dict__.get("_")
    if type(value) not in {list, dict}:
        return ""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= JSON_CHARS_MAX else ""


def _has_file(path: str) -> bool:
    return Path(path).exists()


OPERATIONS: Final[Mapping[str, Callable[..., object]]] = {  # type: ignore[explicit-any] # of any arguments
    "has_file": _has_file,
    "entry": _entry,
    "list": _list,
    "read_part": _read_part,
    "make_folder": _make_folder,
    "make_parents": _make_parents,
    "move": _move,
    "set_variables": _set_variables,
    "enter_folder": _enter_folder,
    "last_value_json": _last_value_json,
}
"""What the server asks for, by name."""
