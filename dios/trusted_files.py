"""Trust in files: the check that no other user of the machine could have changed a file or a folder.

A program that obeys a file obeys everybody who can write it: its owner, the users whom its mode lets write,
and the same for each folder on the way to it, because they can put another file in its place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from dios.errors import NotPermittedError

_LINKS_MAX: Final = 40
_ACCESS_LIST: Final = "system.posix_acl_access"


class UntrustedError(NotPermittedError):
    """Another user can change a file that a program would obey. The message names the file and the remedy."""


def trusted_users() -> frozenset[int]:
    """Return the users whose files this process may obey: itself, root, and the owner of ``/``.

    The owner of ``/`` can replace every file anyway. It differs from root in a user namespace.
    """
    return frozenset({0, os.geteuid(), Path("/").stat().st_uid})


def user_text(uid: int) -> str:
    """Return a user's name and number, for messages."""
    import pwd  # noqa: PLC0415 - loaded for messages alone: tasks and commands start faster without it

    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


def weakness(path: str | os.PathLike[str]) -> str:
    """Return the reason why another user could change what is found at ``path``, or "" if none can.

    The path itself, every folder above it and every symbolic link on the way are examined. A folder with the
    sticky bit, such as ``/tmp``, may be writable by others: they cannot replace its other entries. What is
    missing is no weakness: examine it after it was created.
    """
    users = trusted_users()
    rest = list(reversed(Path(path).absolute().parts[1:]))
    place, links = Path("/"), 0
    while rest:
        part = rest.pop()
        if part == "..":
            place = place.parent
            continue
        entry = place / part
        try:
            status = entry.lstat()
            target = os.fspath(entry.readlink()) if stat.S_ISLNK(status.st_mode) else ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{entry} cannot be examined: {error.strerror}"
        sticky = bool(rest) and bool(status.st_mode & stat.S_ISVTX)
        reason = _weakness_of(entry, status, users, sticky=sticky)
        if reason:
            return reason
        if target:
            links += 1
            if links > _LINKS_MAX:
                return f"{entry} is one of too many symbolic links"
            if target.startswith("/"):
                place = Path("/")
            rest += reversed([word for word in target.split("/") if word not in {"", "."}])
            continue
        place = entry
    return ""


def weakness_within(folder: Path, levels: int) -> str:
    """Return the reason why another user could change a file in ``folder``, or some levels below, or "".

    The folder itself must be trusted. A socket may be open to others: its server decides about them.
    """
    users = trusted_users()
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                continue
            if reason := _weakness_of(path, status, users):
                return reason
            if stat.S_ISLNK(status.st_mode):
                reason = weakness(path)
            elif stat.S_ISDIR(status.st_mode) and levels > 1:
                reason = weakness_within(path, levels - 1)
            if reason:
                return reason
    return ""


def require_trusted(path: str | os.PathLike[str], description: str) -> None:
    """Raise UntrustedError if another user could change the file or folder that ``description`` names."""
    if reason := weakness(path):
        raise untrusted(path, description, reason)


def untrusted(path: str | os.PathLike[str], description: str, reason: str) -> UntrustedError:
    """Return the error for a file or folder that is not trusted for ``reason``."""
    return UntrustedError(
        f"{description} {os.fspath(path)} is not trusted: {reason}. Only {user_text(os.geteuid())} and "
        "root may own "
        "and write it and each folder above it. Correct that with chown and chmod go-w, or choose another "
        "place."
    )


def _weakness_of(path: Path, status: os.stat_result, users: frozenset[int], *, sticky: bool = False) -> str:
    """Return the reason why other users than ``users`` may change a file, folder or link itself, or ""."""
    if status.st_uid not in users:
        return f"{path} belongs to {user_text(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or sticky:
        return ""
    by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(path, status.st_gid)
    if by_group or status.st_mode & stat.S_IWOTH:
        return f"other users may write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _is_private_group(path: Path, gid: int) -> bool:
    """Return True if only trusted users are in the group, as where each user has a group of its own.

    With an access list the group's bits are those of the list, which may name anybody.
    """
    import grp  # noqa: PLC0415 - rarely needed
    import pwd  # noqa: PLC0415 - the same

    try:
        os.getxattr(path, _ACCESS_LIST, follow_symlinks=False)
    except OSError:
        pass
    else:
        return False
    try:
        listed = grp.getgrgid(gid).gr_mem
    except KeyError:
        # In a container, the group of its one user often has no entry.
        if gid != os.getegid():
            return False
        listed = []
    try:
        members = {pwd.getpwnam(name).pw_uid for name in listed}
    except KeyError:
        return False
    members |= {user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid}
    return members <= trusted_users()
