"""Paths of files: ``group/directory/name``, where the group is an alias of the user's keyring."""

from __future__ import annotations

from typing import Final

from dios.errors import InvalidError
from dios.lib.catalogue import checked_file

PROTOCOL: Final = "dios"


def split_group(path: str) -> tuple[str, str]:
    """Return the alias of the group and the path in it; both are "" for the root.

    ``dios://`` may stand before it. Raises InvalidError for a path that cannot be stored.
    """
    alias, _, inner = path.removeprefix(f"{PROTOCOL}://").strip("/").partition("/")
    return alias, checked_path(inner) if inner else ""


def checked_path(path: str) -> str:
    """Return a path within a group in its only form; InvalidError if it is empty or leaves the group."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise InvalidError(f"the path {path[:80]!r} has '..' in it. Give the path without it.")
    return checked_file("/".join(parts))


def path_of_local(path: str) -> str:
    """Return the path under which a local file is stored: without a root, and without leading "..".

    Raises InvalidError if nothing remains.
    """
    parts = [part for part in path.split("/") if part not in {"", "."}]
    while ".." in parts:
        # As far as the last "..": the parts before it are outside of the working directory, too.
        del parts[: parts.index("..") + 1]
    return checked_file("/".join(parts))


def stored_path(file: str) -> str:
    """Return the path of a catalogue's entry; entries of earlier releases have other forms."""
    if file[:1] in {"/", "."} or "//" in file or "/." in file or file.endswith("/"):
        return "/".join(part for part in file.split("/") if part not in {"", ".", ".."})
    return file


def parent_of(path: str) -> str:
    """Return the directory of a path; "" is the group itself."""
    return path.rpartition("/")[0]
