"""Connecting to the socket of a node, and the command that starts a node that does not answer there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from dios.client.locate import CLUSTER_FILE_NAME, PID_FILE_NAME, SOCKET_NAME, default_socket, local_cluster
from dios.errors import UnreachableError
from dios.transport.unix.client import connect as connect_socket

if TYPE_CHECKING:
    import socket

_FIRST_DATA = "node0"
"""The data directory of a user's first node, as the documents call it."""


def connect(path: Path, users: Callable[[], Collection[int]] = tuple) -> socket.socket:
    """Connect to the node's socket at ``path``; ``users`` returns the accepted users of the node.

    Raises NotPermittedError as ``dios.transport.unix.client.connect`` does, and UnreachableError with the
    command that starts the node.
    """
    try:
        return connect_socket(path, users)
    except UnreachableError as error:
        raise UnreachableError(f"{error.message}. Start it: {start_command(path)}") from error.__cause__


def data_directory(path: Path) -> Path | None:
    """Return the data directory of the node with the socket ``path``, which may be a link.

    None if it is unknown: the link does not exist, or a setting placed the socket elsewhere.
    """
    target = path.resolve()
    is_data = target.name == SOCKET_NAME or (target.parent / PID_FILE_NAME).exists()
    return target.parent if is_data and target.parent.is_dir() else None


def start_command(path: Path) -> str:
    """Return the command that starts the node with the socket ``path``.

    A node that was killed leaves the default link, which leads to its data. Without that link it is the
    user's local cluster that starts, or a first node.
    """
    data = data_directory(path)
    if data is not None:
        if (data.parent / CLUSTER_FILE_NAME).exists():
            usual = local_cluster().resolve() == data.parent
            return "dios up" if usual else f"dios up --dir {shlex.quote(str(data.parent))}"
    elif path != default_socket() or path.is_symlink():
        # Nothing leads from a socket elsewhere to the data; any other path is taken for their directory.
        elsewhere = path.is_symlink() or path.exists() or path.suffix == ".sock"
        data = Path("DIR") if elsewhere else path
    elif (local_cluster() / CLUSTER_FILE_NAME).exists():
        return "dios up"
    else:
        data = Path(_FIRST_DATA)
    return f"dios-node start --data {shlex.quote(str(data))} --detach"
