"""Landlock: a second lock on files, TCP ports, abstract sockets and signals, below the namespaces.

Not for: the read-only view itself (``dios.host.sandbox.view``). The ruleset is built once and its
descriptor re-used by every child, which makes it cost microseconds.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Final

from dios.host.sandbox import kernel

_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3

_FILE_RIGHTS_OF_ABI: Final = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""Every file right that an ABI knows, by ABI: all are taken away, then reading is given for the view."""

_NET_FROM_ABI: Final = 4
_BIND_AND_CONNECT_TCP: Final = 3
_SCOPED_FROM_ABI: Final = 6
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 3


def abi() -> int:
    """The kernel's Landlock version, 1 or more. Raises ``OSError`` where there is none."""
    return kernel.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)


def ruleset(readable: Iterable[str]) -> int:
    """A ruleset that leaves reading below ``readable`` and nothing else; the caller closes the descriptor."""
    version = abi()
    files = _FILE_RIGHTS_OF_ABI[min(version, len(_FILE_RIGHTS_OF_ABI) - 1)]
    net = _BIND_AND_CONNECT_TCP if version >= _NET_FROM_ABI else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPED_FROM_ABI else 0
    attributes = struct.pack("=QQQ", files, net, scoped)
    # An older kernel refuses a structure that is longer than it knows only if the rest is not zero.
    size = 24 if scoped else 16 if net else 8
    rules = kernel.syscall("landlock_create_ruleset", attributes, size, 0)
    try:
        for path in readable:
            _allow_reading(rules, path)
    except OSError:
        os.close(rules)
        raise
    return rules


def _allow_reading(rules: int, path: str) -> None:
    tree = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE  # noqa: PTH112 - no pathlib in the zygote
        rule = struct.pack("=Qi", rights, tree)
        kernel.syscall("landlock_add_rule", rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(tree)


def restrict_self(rules: int) -> None:
    """Put the calling thread under the ruleset for good; needs no_new_privs. Raises ``OSError``."""
    kernel.syscall("landlock_restrict_self", rules, 0)
