"""The lines that each kind of call executes in client, wire, host and core: they grow on purpose only.

A real client speaks to a real host and core in one thread. What is left out are the waits on both sides: the
loops of sockets, and the turns that connections take.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

import pytest
import trio

import dios
from dios.client.sync.connection import Connection
from dios.core import events
from dios.core.machine import Core
from dios.ids import Principal, TaskId
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.codec import decode_request, encode_request
from dios.wire.types import AcquireIov, NameKind, ObjectType
from tests.support.core.harness import Entropy
from tests.support.host.harness import Rig, rig

Costs: TypeAlias = dict[str, dict[str, int]]
"""The lines of each call by the part of the package that they are in."""

PACKAGE: Final = str(Path(dios.__file__).parent) + "/"
COSTS: Final = Path(__file__).with_name("call_costs.json")
PRINCIPAL: Final = Principal("uid:1000")
TASK: Final = TaskId(78)
VERSION: Final = (3, 11)
"""The Python of which the file has the numbers; others count the lines of comprehensions differently."""


class LineCounter:
    """Counts the executed lines of the package by part."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the lines of this thread."""
        sys.settrace(self._trace)  # type: ignore[arg-type] # the function traces its own calls, too
        try:
            yield
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> object:
        del argument
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return None
        if event == "line":
            self.lines[name[len(PACKAGE) :].split("/")[0].removesuffix(".py")] += 1
        return self._trace


class NodeEnd:
    """The end of the node of a connection: a call is handled as soon as the client has sent it."""

    queued_bytes = 0
    abandoned = False

    def __init__(self, host: Rig, core: Core) -> None:
        self._driver: Final = host.host.driver
        near, self._far = socket.socketpair()
        host.host.pages.open(TASK)
        host.host.outbox.open(TASK, self)  # type: ignore[arg-type] # all that the outbox asks of a channel
        self._driver.feed(events.SessionOpened(time.monotonic_ns(), TASK, 1, PRINCIPAL, (), "test", 42))
        self.references: Final = {held.object.type: held.id for held in core.state.tasks[TASK].table}
        channel = ClientChannel(near)
        channel._send = self.handle  # type: ignore[misc, assignment] # in place of the socket
        self.connection: Final = Connection(channel)

    def handle(self, frame: bytes) -> int:
        """Handle a call as the loop of the node does with a frame from a socket."""
        request = decode_request(memoryview(frame)[4:])
        self._driver.call(TASK, request.seq, request.call)
        return len(frame)

    def send_nowait(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Send a reply."""
        socket.send_fds(self._far, [frame], fds)

    def close(self) -> None:
        """End the connection."""
        self.connection.close()
        self._far.close()


async def costs(folder: Path) -> Costs:
    """Return the lines of each call of a small history."""
    core = Core(Entropy(), PRINCIPAL)
    lines: Costs = {}
    async with rig(folder, core) as host:  # type: ignore[arg-type] # a real one
        end = NodeEnd(host, core)
        connection = end.connection
        groups = (end.references[ObjectType.GROUP],)

        def make(name: str, call: messages.AnyCall) -> messages.AnyResult:
            counter = LineCounter()
            with counter.counting():
                result, _ = connection.call(call)
            lines[name] = dict(sorted(counter.lines.items()))
            return result

        created = make("create with a name", messages.Create(ObjectType.SHMEM_BLOB, groups, data=b"x" * 100))
        assert isinstance(created, messages.Created)
        assert created.name is not None
        ref = created.reference.ref
        make("stat", messages.Stat(ref))
        make("read", messages.ReadOnce(ref))
        make("write", messages.WriteOnce(ref, b"y" * 100))
        make(
            "create without a name",
            messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"z"),
        )
        make("lookup", messages.Lookup(created.name))
        copied = make("copy", messages.Copy(ref, end.references[ObjectType.TASK]))
        assert isinstance(copied, messages.References)
        make("delete", messages.Delete(copied.references[0].ref))
        reading = make("acquire read", messages.AcquireRead(ref))
        assert isinstance(reading, messages.Buffer)
        make("commit read", messages.CommitRead(ref, reading.buffer))
        make("release read", messages.ReleaseRead(ref, reading.buffer))
        writing = make("acquire write", messages.AcquireWrite(ref, 4, iov=AcquireIov.CREATE))
        assert isinstance(writing, messages.Buffer)
        make("commit write", messages.CommitWrite(ref, writing.buffer, data=b"abcd"))
        make("release write", messages.ReleaseWrite(ref, writing.buffer))
        make("vector of 64", messages.Vector((messages.Stat(ref),) * 64))

        counter = LineCounter()
        durable = messages.Create(ObjectType.DURABLE_BLOB, groups, data=b"z")
        with counter.counting():
            end.handle(encode_request(1_000, durable))
        lines["create, durable, until it is stored"] = dict(sorted(counter.lines.items()))
        await host.settled()
        end.close()
    return lines


@pytest.mark.skipif(sys.version_info[:2] != VERSION, reason="the numbers are those of another Python")
@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces this process")
def test_a_call_executes_no_more_lines_than_it_did(tmp_path: Path) -> None:
    """A commit that makes a call longer changes the file: ``python -m tests.unit.test_call_costs``."""
    known: Costs = json.loads(COSTS.read_text())
    longer = {
        f"{name}: {part}": lines
        for name, parts in trio.run(costs, tmp_path).items()
        for part, lines in parts.items()
        if lines > known[name].get(part, 0)
    }
    assert not longer, "these calls executed fewer lines before"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        COSTS.write_text(json.dumps(trio.run(costs, Path(name)), indent=1) + "\n")
