"""The places for sessions: other users leave some for each other, and for the node's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import trio

from dios import limits
from dios.host.handover.gate import Gate
from dios.host.process.session_server import SessionServer
from dios.host.process.task_host import TaskHost
from dios.transport.unix.credentials import PeerCredentials
from tests.support.host.harness import NoTasks

FRIENDS = (70_001, 70_002, 70_003, 70_004)
PLACES = limits.CONNECTIONS_MAX - limits.CONNECTIONS_RESERVED


async def test_no_user_takes_all_places(tmp_path: Path) -> None:
    """Greedy users get half of the rest one after the other, and the node's own user always gets a place."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        async with trio.open_nursery() as nursery:
            server = SessionServer(
                listener,
                TaskHost(nursery, NoTasks(), Gate()),
                denied=lambda *_: None,
                broken=lambda *_: None,
                allowed_uids=FRIENDS,
            )

            def connections_of(uid: int) -> int:
                peer, count = PeerCredentials(1, uid, uid), 0
                while server._refusal(peer) is None and count < limits.CONNECTIONS_MAX:
                    server._open[uid] += 1
                    count += 1
                return count

            assert [connections_of(uid) for uid in FRIENDS] == [PLACES >> part for part in (1, 2, 3, 4)]
            assert connections_of(os.geteuid()) >= limits.CONNECTIONS_RESERVED
            nursery.cancel_scope.cancel()
