"""The namespaces of a pure task, and the settings inside them.

Mounts are in ``dios.host.confinement.view``; a child inherits them from the zygote's namespace.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Final

from dios.host.confinement import linux_calls

FLAGS: Final = {
    "user": linux_calls.CLONE_NEWUSER,
    "pid": linux_calls.CLONE_NEWPID,
    "mount": linux_calls.CLONE_NEWNS,
    "net": linux_calls.CLONE_NEWNET,
    "ipc": linux_calls.CLONE_NEWIPC,
    "uts": linux_calls.CLONE_NEWUTS,
}
"""By mechanism name. The user namespace has no mappings: no id inside it stands for a user outside."""

HOST_NAME: Final = "task"


_SET_FLAGS: Final = 0x8914
_IS_UP: Final = 1


def start_loopback() -> None:
    """Let processes in the own network namespace reach each other at the loopback addresses.

    Raise ``OSError``.
    """
    request = struct.pack("16sh22x", b"lo", _IS_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SET_FLAGS, request)


def flags_for(available: Iterable[str]) -> int:
    """Return the clone flags of every namespace in ``available``; other names are ignored."""
    flags = 0
    for name in available:
        flags |= FLAGS.get(name, 0)
    return flags


def hide_host_name() -> None:
    """Set a neutral host name in the own uts namespace, which children copy. Raise ``OSError``.

    A module that was imported before may have asked ``platform``, which remembers the machine's name.
    """
    socket.sethostname(HOST_NAME)
    remembered = sys.modules.get("platform")
    if remembered is not None:
        vars(remembered)["_uname_cache"] = None
