"""File systems in memory: made as mounts that are nowhere yet, and placed at a path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from dios.host.confinement import linux_calls

READ_ONLY: Final = 1
NO_SUID: Final = 2
NO_DEV: Final = 4
NO_EXEC: Final = 8

AT_FDCWD: Final = -100
_CLOEXEC: Final = 1
_SET_STRING: Final = 1
_CREATE: Final = 6
_EMPTY_FROM: Final = 4
_DETACH: Final = 2


def new(options: Mapping[str, str], attributes: int = 0) -> int:
    """Return a new, empty file system in memory, whose mount has these attributes. Raise ``OSError``."""
    context = linux_calls.syscall("fsopen", b"tmpfs\0", _CLOEXEC)
    try:
        for key, value in options.items():
            text = value.encode() + b"\0"
            linux_calls.syscall("fsconfig", context, _SET_STRING, key.encode() + b"\0", text, 0)
        linux_calls.syscall("fsconfig", context, _CREATE, None, None, 0)
        return linux_calls.syscall("fsmount", context, _CLOEXEC, attributes)
    finally:
        os.close(context)


def place(mount: int, path: str) -> None:
    """Attach a mount that is nowhere yet at ``path``. Raise ``OSError``."""
    target = os.fsencode(path) + b"\0"
    linux_calls.syscall("move_mount", mount, b"\0", AT_FDCWD, target, _EMPTY_FROM)


def replace(path: str, other: str) -> None:
    """Unmount what is at ``path``, and move the mount at ``other`` there. Raise ``OSError``."""
    target, source = os.fsencode(path) + b"\0", os.fsencode(other) + b"\0"
    linux_calls.syscall("umount2", target, _DETACH)
    linux_calls.syscall("move_mount", AT_FDCWD, source, AT_FDCWD, target, 0)
