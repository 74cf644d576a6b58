"""Landlock: a second lock on files, TCP ports, abstract sockets and signals, in addition to the namespaces.

The ruleset is built once and all children use its descriptor, so that each spends only microseconds on it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Final

from dios.host.confinement import linux_calls

_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_CHANGE: Final = _WRITE_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14
"""Writing and truncating files; making, removing and renaming regular files and directories."""

_FILE_RIGHTS_OF_ABI: Final = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""All file rights of each ABI: all are removed, then reading is permitted for the view."""

_NET_FROM_ABI: Final = 4
_BIND_AND_CONNECT_TCP: Final = 3
_SCOPED_FROM_ABI: Final = 6
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 3


def abi() -> int:
    """Return the kernel's Landlock version, 1 or higher. Raise ``OSError`` without Landlock."""
    return linux_calls.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)


def ruleset(
    readable: Iterable[str],
    writable: Iterable[str] = (),
    executable: Iterable[str] = (),
    devices: Iterable[str] = (),
    *,
    with_network: bool = False,
) -> int:
    """Return a ruleset that permits only reading below ``readable``, and changes below ``writable``.

    ``executable`` are files that may be executed; no other file may. ``devices`` may be read and written; the
    calls that control a device (ioctl) are permitted for none. ``with_network`` leaves TCP as it is. The
    caller closes the descriptor. Raise ``OSError``.
    """
    version = abi()
    files = _FILE_RIGHTS_OF_ABI[min(version, len(_FILE_RIGHTS_OF_ABI) - 1)]
    net = _BIND_AND_CONNECT_TCP if version >= _NET_FROM_ABI and not with_network else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPED_FROM_ABI else 0
    attributes = struct.pack("=QQQ", files, net, scoped)
    # An older kernel accepts a longer structure only if the additional bytes are zero.
    size = 24 if scoped else 16 if net else 8
    rules = linux_calls.syscall("landlock_create_ruleset", attributes, size, 0)
    try:
        for path in readable:
            _allow(rules, path, _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(rules, path, (_READ_FILE | _READ_DIR | _CHANGE) & files)
        for path in executable:
            _allow(rules, path, 0, _READ_FILE | _EXECUTE)
        for path in devices:
            _allow(rules, path, 0, _READ_FILE | _WRITE_FILE)
    except OSError:
        os.close(rules)
        raise
    return rules


def _allow(rules: int, path: str, below: int, of_file: int = _READ_FILE) -> None:
    tree = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = below if os.path.isdir(path) else of_file  # noqa: PTH112 - no pathlib in the zygote
        rule = struct.pack("=Qi", rights, tree)
        linux_calls.syscall("landlock_add_rule", rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(tree)


def restrict_self(rules: int) -> None:
    """Apply the ruleset to the calling thread for good; needs no_new_privs. Raise ``OSError``."""
    linux_calls.syscall("landlock_restrict_self", rules, 0)
