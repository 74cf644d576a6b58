"""A defect in serving one connection ends that one; a defect in a step ends the node.

Not for: broken frames, which are the peer's fault (``tests/integration/test_node.py``).
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest
import trio

from dios.core.events import Called, Disconnected, SessionOpened
from dios.host.audit.reader import AuditReader
from dios.host.process.session_server import SessionServer, principal_of
from dios.host.process.task_host import DEFECT
from dios.ids import TaskId
from dios.transport.unix.server import TaskChannel, close_listener, open_listener
from dios.wire.codec import PROTOCOL_VERSION, encode_request
from dios.wire.messages import Hello, Stat
from tests.support.host.harness import WAIT_S, RecordingChannel, Rig, rig

SESSION = TaskId(5)
HELLO = encode_request(1, Hello(PROTOCOL_VERSION))[4:]
CALL = encode_request(2, Stat(1))[4:]


class RaisingChannel(RecordingChannel):
    """A peer that says Hello and makes a call; then its channel does what no channel should."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self._come = [[HELLO], [CALL]]
        self._error = error

    async def receive(self) -> list[bytes]:
        """What is there, and then the error, or the end."""
        await trio.lowlevel.checkpoint()
        if self._come:
            return self._come.pop(0)
        if self._error is not None:
            raise self._error
        return []


async def serve(host: Rig, error: BaseException | None) -> None:
    """Serve such a session."""
    channel = RaisingChannel(error)
    await host.host.tasks.serve_session(SESSION, principal_of(7), 1, channel)  # type: ignore[arg-type] # all that is asked of a channel


async def test_a_defect_of_a_channel_ends_its_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A session whose channel raises ends with a reason that the core records; the next one is served."""
    async with rig(tmp_path) as host:
        with caplog.at_level(logging.ERROR):
            await serve(host, ZeroDivisionError("nobody thought of it"))
        assert "an internal error ended a connection" in caplog.text
        assert "nobody thought of it" in caplog.text
        assert [event.reason for event in host.core.seen(Disconnected)] == [DEFECT]
        assert host.host.tasks.sessions == 0
        await serve(host, None)
        assert [event.reason for event in host.core.seen(Disconnected)] == [DEFECT, ""]
        assert len(host.core.seen(SessionOpened)) == 2


async def test_a_defect_of_a_step_passes(tmp_path: Path) -> None:
    """What is raised by the core itself is never taken for one connection's trouble."""
    async with rig(tmp_path) as host:
        step = host.core.step

        def broken(event: object) -> object:
            if isinstance(event, Called):
                raise ZeroDivisionError("the core is wrong")
            return step(event)  # type: ignore[arg-type] # whatever the driver gives

        host.host.driver._take = broken  # type: ignore[assignment,misc] # the only way in
        assert host.host.driver.sound
        with pytest.raises(ZeroDivisionError):
            await serve(host, None)
        assert not host.host.driver.sound


async def _served(host: Rig, folder: Path) -> str:
    """Connect to a server twice; what the audit log says of a denial."""
    path = folder / "socket"
    listener = open_listener(path)
    server = SessionServer(
        listener, host.host.tasks, denied=host.host.denied_connection, broken=host.host.broken_connection
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(str(path))
                peer.setblocking(False)
                peer.send(encode_request(1, Hello(PROTOCOL_VERSION)))
                with trio.fail_after(WAIT_S):
                    await trio.lowlevel.wait_readable(peer)
        close_listener(listener, path)
        nursery.cancel_scope.cancel()
    host.host._audit.flush()
    records = [entry.record for entry in AuditReader(folder / "audit").poll()]
    return "\n".join(f"{each.action} {each.outcome} {each.principal} {each.detail}" for each in records)


async def test_a_server_outlives_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble before the first call costs that connection, leaves a record, and the server serves on."""

    async def receive(self: TaskChannel) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async with rig(tmp_path) as host:
        monkeypatch.setattr(TaskChannel, "receive", receive)
        said = await _served(host, tmp_path)
        assert said.count(f"disconnect denied uid:{os.geteuid()} {DEFECT}") == 2
