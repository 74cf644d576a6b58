"""Reads requirements from files: those that tools lock with digests, and groups of a ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.limits import ENVIRONMENT_LOCK_BYTES_MAX

MARK: Final = "@"
"""The beginning of an item that names a file: ``@requirements.txt``, ``@pyproject.toml:GROUP``."""

_PYPROJECT: Final = "pyproject.toml"
_HASH: Final = re.compile(r"\s+--hash[=\s]sha256:([0-9a-f]{64})(?=\s|\Z)")
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_NESTED_MAX: Final = 16


def requirements_in(item: str) -> list[str]:
    """Return the requirements that an item names by its file; digests of wheels follow their requirement.

    Raise InvalidError for a file that cannot be read, or has more than requirements.
    """
    place, is_group, group = item.removeprefix(MARK).partition(f"{_PYPROJECT}:")
    path = Path(place + _PYPROJECT if is_group else place)
    try:
        with path.open("rb") as file:
            content = file.read(ENVIRONMENT_LOCK_BYTES_MAX + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    if len(content) > ENVIRONMENT_LOCK_BYTES_MAX:
        raise _unreadable(path, f"it has over {ENVIRONMENT_LOCK_BYTES_MAX} bytes")
    if path.name == _PYPROJECT:
        return _of_project(path, text, group)
    return [line for line in _lines(text) if line]


def _unreadable(path: Path, reason: str) -> InvalidError:
    return InvalidError(f"cannot read the packages in {path}: {reason}. Name a file of requirements")


def digests_of(requirement: str) -> tuple[str, list[str]]:
    """Return a requirement without the digests of its wheels, and these."""
    return _HASH.sub("", requirement), _HASH.findall(requirement)


def _lines(text: str) -> Iterator[str]:
    """Yield the logical lines of a file of requirements, without comments."""
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        yield " ".join(_COMMENT.sub("", line).split())


def _of_project(path: Path, text: str, group: str) -> list[str]:
    """Return the dependencies of a project, or those of one of its groups."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, str(error)) from error
    if not group:
        return _texts(path, _table(tables, "project").get("dependencies", []))
    groups = _table(tables, "dependency-groups")
    if group in groups:
        return list(_of_group(path, groups, group, 0))
    extras = _table(_table(tables, "project"), "optional-dependencies")
    if group in extras:
        return _texts(path, extras[group])
    known = ", ".join(sorted({*groups, *extras})) or "none"
    raise InvalidError(f"{path} has no group {group!r} of dependencies. Its groups: {known}")


def _of_group(path: Path, groups: dict[str, object], group: str, depth: int) -> Iterator[str]:
    rows = groups.get(group)
    if not isinstance(rows, list) or depth > _NESTED_MAX:
        raise _unreadable(path, f"the group {group!r} is no list, or includes itself")
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("include-group"), str):
            yield from _of_group(path, groups, row["include-group"], depth + 1)
        else:
            yield from _texts(path, [row])


def _table(tables: dict[str, object], name: str) -> dict[str, object]:
    table = tables.get(name, {})
    return table if isinstance(table, dict) else {}


def _texts(path: Path, rows: object) -> list[str]:
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise _unreadable(path, "the dependencies are no list of texts")
    return [str(row) for row in rows]
