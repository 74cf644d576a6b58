"""A defect in serving one connection, or in an effect, ends that one; one that leaves a step ends the node.

Not for: broken frames, which are the peer's fault (``tests/integration/test_node.py``), or defects that the
core contains (``tests/unit/core/test_containment.py``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path

import pytest
import trio

from dios.core import effects as fx
from dios.core.effects import Outcome
from dios.core.events import Called, DefectFound, Disconnected, SessionOpened, TimerFired
from dios.errors import InvariantError
from dios.host.audit.reader import AuditReader
from dios.host.loop.commit_results import CommitResult
from dios.host.loop.driver import _DeferredEffects
from dios.host.process.session_server import SessionServer
from dios.host.process.task_host import DEFECT
from dios.ids import ObjectId, PayloadId, TaskId, Ticket
from dios.transport.unix.server import TaskChannel, close_listener, open_listener
from dios.wire.codec import PROTOCOL_VERSION, encode_request
from dios.wire.messages import Buffer, Done, Hello, Stat
from dios.wire.types import Mode
from tests.support.host.harness import TASK, WAIT_S, RecordingChannel, Rig, rig

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
    await host.host.tasks.serve_session(SESSION, 7, 1, channel)  # type: ignore[arg-type] # all that is asked of a channel


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


async def test_a_defect_that_leaves_a_step_passes(tmp_path: Path) -> None:
    """What the core could not contain is never taken for one connection's trouble."""
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


def outcome(*after: fx.Effect) -> Outcome:
    """A step with these effects."""
    return Outcome([], list(after), Ticket(0), Ticket(0), None)


class Broken:
    """An effect's handler that does what none should, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, effect: fx.Effect) -> None:
        """Meet a defect."""
        self.calls += 1
        raise KeyError(type(effect).__name__)


DEFECTIVE: dict[str, fx.Effect] = {
    "an answer": fx.Answer(TASK, 1, Done()),
    "a page": fx.UnbindSlot(TASK, 0),
    "a process": fx.Suspend(TASK),
    "a stream": fx.AnswerAttach(TASK, 1, ObjectId(3), Mode.READ, 4096),
    "bytes for the store's own use": fx.KeepPayload(PayloadId(1)),
}


@pytest.mark.parametrize("case", DEFECTIVE)
async def test_a_defect_of_an_effect_ends_its_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """The core is told of the task, the log has the exception, and the rest of the step is carried out."""
    effect = DEFECTIVE[case]
    async with rig(tmp_path) as host:
        broken = Broken()
        host.host.effector._handlers[type(effect)] = broken
        host.core.outcomes.append(outcome(effect, fx.AnswerBytes(TASK, 3, Buffer(0, 0, 0, 0), b"x")))
        with caplog.at_level(logging.ERROR):
            host.host.driver.feed(TimerFired(1))
        assert broken.calls >= 1
        assert "an internal error was contained" in caplog.text
        assert {event.task for event in host.core.seen(DefectFound)} == {TASK}
        assert host.host.driver.sound


async def test_a_defect_of_an_effect_leaves_its_call_without_an_answer(tmp_path: Path) -> None:
    """Nobody is told that a call failed that may have been made; the other answers of the step arrive."""
    async with rig(tmp_path) as host:
        host.host.effector._handlers[fx.AnswerAttach] = Broken()
        host.core.outcomes.append(outcome(DEFECTIVE["a stream"], fx.Answer(TASK, 2, Done(2))))
        host.host.driver.feed(TimerFired(1))
        assert host.replies == [(2, Done(2))]


async def test_content_of_a_defect_is_used_by_nobody(tmp_path: Path) -> None:
    """The core is told to destroy an object whose bytes could not be made current."""
    async with rig(tmp_path) as host:
        effect = fx.ApplyWrite(ObjectId(3), fx.WriteSource())
        host.host.effector._handlers[fx.ApplyWrite] = Broken()
        host.core.outcomes.append(outcome(effect, fx.Answer(TASK, 1, Done())))
        host.host.driver.feed(TimerFired(1))
        (defect,) = host.core.seen(DefectFound)
        assert (defect.task, defect.object, defect.ends_object) == (TASK, 3, True)


@pytest.mark.parametrize(
    "effect",
    [
        fx.Audit(1, "create", "ok", "uid:0", "", "", ""),
        fx.BeginShutdown(),
        fx.ApplyWrite(ObjectId(3), fx.WriteSource(), durable=True),
    ],
)
async def test_a_defect_of_an_essential_effect_ends_the_node(tmp_path: Path, effect: fx.Effect) -> None:
    """Without a record, an end or the bytes in the store the node's promises would be broken."""
    async with rig(tmp_path) as host:
        host.host.effector._handlers[type(effect)] = Broken()
        host.core.outcomes.append(outcome(effect))
        with pytest.raises(KeyError):
            host.host.driver.feed(TimerFired(1))
        assert not host.host.driver.sound


async def test_an_interrupted_step_is_never_hidden(tmp_path: Path) -> None:
    """The node ends also if the work that caused the step catches every exception."""
    async with rig(tmp_path) as host:
        host.host.driver._take = Broken()  # type: ignore[assignment,misc] # the only way in
        with contextlib.suppress(KeyError):
            host.host.driver.feed(TimerFired(1))
        with pytest.raises(InvariantError) as raised:
            await host.host.driver.watch()
        assert isinstance(raised.value.__cause__, KeyError)


async def test_a_defect_of_an_essential_effect_that_waited_for_the_disk_ends_the_node(
    tmp_path: Path,
) -> None:
    """What is carried out after a ticket is durable is a step like any other."""
    async with rig(tmp_path) as host:
        host.host.effector._handlers[fx.BeginShutdown] = Broken()
        host.host.driver._held.append(_DeferredEffects(Ticket(1), [fx.BeginShutdown()], {}, 1))
        with pytest.raises(KeyError):
            host.host.driver.persisted([CommitResult(Ticket(1), Ticket(1), None)])
        assert not host.host.driver.sound
        with pytest.raises(InvariantError):
            await host.host.driver.watch()


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
    host.host.journal.settle_all()
    host.host.journal.flush()
    records = [entry.record for entry in AuditReader(folder / "audit").poll()]
    return "\n".join(
        f"{record.action} {record.outcome} {record.principal} {record.detail}"
        for record in records
        for _ in range(record.count)
    )


async def test_a_server_outlives_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble before the first call costs that connection, leaves a record, and the server serves on."""

    async def receive(self: TaskChannel) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async with rig(tmp_path) as host:
        monkeypatch.setattr(TaskChannel, "receive", receive)
        said = await _served(host, tmp_path)
        assert said.count(f"disconnect denied uid:{os.geteuid()} {DEFECT}") == 2
