"""The identity of the peer of a Unix socket, as the kernel reports it (SO_PEERCRED)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import NotPermittedError
from dios.trusted_files import user_text

_CREDENTIALS: Final = struct.Struct("iII")


class PeerCredentials(NamedTuple):
    """The identity of the peer: of a client when it connected, of a server when it began to listen."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> PeerCredentials:
    """Return the identity of the peer of ``sock`` from the kernel (SO_PEERCRED)."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerCredentials(*_CREDENTIALS.unpack(raw))


def require_server(
    sock: socket.socket, path: Path, users: Callable[[], Collection[int]] = tuple
) -> PeerCredentials:
    """Return the identity of the process that listens at ``path``.

    Raise NotPermittedError unless it runs as root, as this process's own user, or as one of ``users()``:
    another user could have put a socket there to learn the secrets that clients send.
    """
    peer = peer_of(sock)
    if peer.uid not in {0, os.geteuid()} and peer.uid not in users():
        owner = user_text(peer.uid)
        raise NotPermittedError(
            f"nothing was sent to the program that listens at {path}: it runs as {owner}, who would learn "
            f"the names of groups. If {owner} shall run the node, set DIOS_NODE_USER={peer.uid}, or "
            f"node_user = {peer.uid} in client.toml."
        )
    return peer
