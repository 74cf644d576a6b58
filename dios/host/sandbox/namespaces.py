"""Which namespaces a pure task gets, and what is set inside them.

Not for: mounts (``dios.host.sandbox.view``), which a child inherits from the zygote's namespace.
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
"""By mechanism name. A user namespace is left without mappings: no id inside it means anybody outside."""

HOST_NAME: Final = "task"


def flags_for(available: Iterable[str]) -> int:
    """The clone flags of every namespace in ``available``; other names are not namespaces and add nothing."""
    flags = 0
    for name in available:
        flags |= FLAGS.get(name, 0)
    return flags


def hide_host_name() -> None:
    """Give the own uts namespace, which children copy, a name that says nothing. Raises ``OSError``."""
    socket.sethostname(HOST_NAME)
