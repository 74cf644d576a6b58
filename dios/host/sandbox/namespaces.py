"""The namespaces of a pure task, and the settings inside them.

Mounts are in ``dios.host.sandbox.view``; a child inherits them from the zygote's namespace.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

from dios.host.sandbox import kernel

FLAGS: Final = {
    "user": kernel.CLONE_NEWUSER,
    "pid": kernel.CLONE_NEWPID,
    "mount": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
}
"""By mechanism name. The user namespace has no mappings: no id inside it stands for a user outside."""

HOST_NAME: Final = "task"


def flags_for(available: Iterable[str]) -> int:
    """Return the clone flags of every namespace in ``available``; other names are ignored."""
    flags = 0
    for name in available:
        flags |= FLAGS.get(name, 0)
    return flags


def hide_host_name() -> None:
    """Set a neutral host name in the own uts namespace, which children copy. Raise ``OSError``."""
    socket.sethostname(HOST_NAME)
