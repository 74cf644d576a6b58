"""The private node of this program, and the rule which callers start one (``docs/adr/0110``).

All connections of a program share its private node, which lives until the program ends, so an object of the
first connection is there for the second. A process that was forked from the program shares it, too.

- ``dios.connect``, ``dios.aio.open_node``, ``Executor`` (also as the backend of joblib), ``Sandbox``, cells
  of notebooks, ``dios sandbox run`` and ``serve``, and ``dios mcp`` start one if the user named no node and
  none listens.
- With ``start=False`` a program uses the private node that it has, and never starts one. Commands, the
  dashboard, the exporter of metrics and paths ``dios://`` do this: their users ask for objects that exist.
- A task, and a process that was forked from one, has the task's node and starts none.

``private_node`` has the process. It is loaded by programs that start one, and this module by all.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dios.client.locate import SOCKET_NAME, default_socket, names_node
from dios.errors import InvalidError, UnreachableError

if TYPE_CHECKING:
    from dios.client.private_node import PrivateNode

_LINE: Final = (
    "dios: {}, so this program has a private one until it ends;"
    " its data, durable objects included, are deleted then\n"
)

_private: PrivateNode | None = None
_lock = threading.Lock()
_in_task = False


def enter_task() -> None:
    """Record that this process is a task: neither it nor a process forked from it starts a node."""
    global _in_task
    _in_task = True


def may_start(node: str | Path | None, node_user: str | int | None) -> bool:
    """Return True if a connection with these arguments may start a private node when it finds none."""
    return not _in_task and not names_node(node, node_user)


def private_socket() -> Path | None:
    """Return the socket of the private node that this program has; None if it has none."""
    return None if _private is None else _private.data / SOCKET_NAME


def socket_after_start(pool_size: int, missing: Path) -> Path:
    """Start the private node of this program, because no node listens at ``missing``; return its socket.

    A node that another thread has started meanwhile is shared. It keeps ``pool_size`` tasks ready. Raises
    UnreachableError if it cannot start.
    """
    global _private
    from dios.client.private_node import NOT_STARTED, PrivateNode  # noqa: PLC0415 - few programs start a node

    with _lock:
        socket = private_socket()
        if socket is not None and socket != missing:
            return socket
        end_private_node()
        try:
            private = PrivateNode(pool_size)
        except OSError as error:
            raise UnreachableError(f"{NOT_STARTED}: {error}") from error
        try:
            private.wait_started()
        except BaseException:
            private.end()
            raise
        _private = private
        why = _why_none(missing) if socket is None else "the private node of this program has ended"
        sys.stderr.write(_LINE.format(why))
        return private.data / SOCKET_NAME


def _why_none(missing: Path) -> str:
    """Return the reason why a node was started, with the data directory of a default node that crashed."""
    try:
        socket = missing.readlink() if missing == default_socket() else None
    except (OSError, InvalidError):
        socket = None
    if socket is None or socket.name != SOCKET_NAME:
        return "no node was running"
    return f"no node was running (the last one was that of {socket.parent})"


@atexit.register
def end_private_node() -> None:
    """End the private node and wait until its data are deleted; in a forked process this does nothing.

    It is registered before the modules that use a node register theirs, and so runs after them.
    """
    global _private
    private, _private = _private, None
    if private is not None:
        private.end()


def _forked() -> None:
    """Replace the lock, which a thread of the parent may have held."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
