"""The real host beside the simulator's, under one core and the same calls: every reply has the same bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import trio
from blake3 import blake3

from dios import limits
from dios.core.events import Recovered, SessionOpened
from dios.core.machine import Core
from dios.host.audit.log import AuditLog
from dios.ids import TaskId
from dios.node.assembly import NodeHost
from dios.node.settings import load
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, decode_reply
from dios.wire.messages import AnyCall, AnyResult, Mapping, PlainCall
from dios.wire.types import AcquireIov, CommitIov, Flag, ObjectType, Persistence
from labs.sim.memory_store import MemoryStore
from labs.sim.node.host import SimHost
from tests.support.core.harness import OWNER, Entropy
from tests.support.host.harness import WAIT_S, NoTasks

TASK = TaskId(77)
CALLS = 250
SIZES = (0, 5, 300, 4096, limits.INLINE_BYTES_MAX + 7, limits.LOOP_COPY_BYTES_MAX + 9)


class Answers:
    """Replies by sequence number: the result, and the bytes of each part that has a buffer."""

    queued_bytes = 0

    def __init__(self) -> None:
        self.bytes: dict[int, list[bytes | None]] = {}
        self.results: dict[int, AnyResult] = {}

    def send_nowait(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Take a frame as a client would."""
        reply = decode_reply(frame[4:])
        parts = reply.result.results if isinstance(reply.result, messages.Results) else (reply.result,)
        left = list(fds)
        self.results[reply.seq] = reply.result
        self.bytes[reply.seq] = [self._read(part, left) for part in parts]

    @staticmethod
    def _read(part: AnyResult, fds: list[int]) -> bytes | None:
        if not isinstance(part, messages.Buffer):
            return None
        if part.mapping is Mapping.NONE:
            return part.data
        fd = fds.pop(0)
        return os.pread(fd, part.size, part.start) if part.mapping is Mapping.READ_ONLY else None


class Caller:
    """Draws calls on what it was told of."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - a test's choices
        self.refs: list[int] = []
        self.told: list[tuple[int, int]] = []
        self.buffers: list[int] = []
        self.own = 0

    def learn(self, seq: int, result: AnyResult) -> None:
        """Take references and buffers out of a reply."""
        if isinstance(result, messages.Created):
            self.refs.append(result.reference.ref)
        elif isinstance(result, messages.References):
            self.refs += [reference.ref for reference in result.references if reference.ref != self.own]
        elif isinstance(result, messages.Buffer) and result.buffer:
            self.told.append((seq, result.buffer))

    def data(self) -> bytes:
        """Bytes that are told apart."""
        return self.rng.randbytes(self.rng.choice((0, 5, 300, 4096, limits.INLINE_BYTES_MAX)))

    def call(self) -> AnyCall:
        """A call, sometimes a vector."""
        if self.rng.random() < 0.15:
            drawn = (self.plain() for _ in range(self.rng.randrange(1, 5)))
            # A copy of what the same vector writes is refused by the host, and only there.
            return messages.Vector(
                tuple(messages.Stat(self.own) if isinstance(part, messages.Copy) else part for part in drawn)
            )
        return self.plain()

    def plain(self) -> PlainCall:
        """A plain call, mostly on something that exists."""
        rng = self.rng
        if len(self.refs) < 2 or rng.random() < 0.15:
            kinds = (ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.PRIVMEM_BLOB)
            return messages.Create(rng.choice(kinds), data=self.data())
        ref = rng.choice(self.refs[-8:])
        buffer = rng.choice(self.buffers[-5:]) if self.buffers else 0
        offset = rng.choice((0, 0, 3))
        flags = rng.choice((0, int(Flag.REPLACE)))
        iov = rng.choice((AcquireIov.CREATE, AcquireIov.CREATE, *AcquireIov))
        commit = rng.choice((CommitIov.USE, CommitIov.USE, *CommitIov))
        named = 0 if iov in {AcquireIov.CREATE, AcquireIov.NONE} else buffer
        size = rng.choice(SIZES)
        calls: tuple[PlainCall, ...] = (
            messages.ReadOnce(ref, size, offset),
            messages.WriteOnce(ref, self.data(), offset, flags=flags),
            messages.AcquireRead(ref, size, offset, iov=iov, buffer=named),
            messages.AcquireWrite(
                ref, size, offset, iov=iov, buffer=named, flags=rng.choice((0, int(Flag.BLANK)))
            ),
            messages.CommitRead(ref, buffer, iov=commit),
            messages.CommitWrite(ref, buffer, iov=commit, flags=flags),
            messages.ReleaseRead(ref, buffer),
            messages.ReleaseWrite(ref, buffer, flags=rng.choice((0, int(Flag.RELEASE_COMMIT)))),
            messages.CommitAcquireRead(ref, buffer),
            messages.CommitAcquireWrite(ref, buffer, flags=flags),
            messages.Copy(ref, self.own, persistence=rng.choice((None, *Persistence))),
            messages.Delete(ref, int(Flag.HANDLE_ONLY)) if rng.random() < 0.2 else messages.Stat(ref),
        )
        return rng.choice(calls)


class SameBytes(Random):
    """Gives the simulator's core the entropy that the real host's core gets."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._entropy = Entropy(seed)

    def randbytes(self, n: int) -> bytes:
        """The next bytes."""
        return self._entropy(n)


class Model:
    """The simulator's host, whose every write is durable at once."""

    def __init__(self, seed: int) -> None:
        self.parts: dict[int, list[tuple[AnyResult, bytes | None]]] = {}
        self.host = SimHost(SameBytes(seed), MemoryStore(), self._reply, blake3(), now=1)

    def _reply(self, task: TaskId, seq: int, result: AnyResult, data: bytes | None) -> None:
        del task
        # The simulator answers a vector part by part.
        self.parts.setdefault(seq, []).append((result, data))

    def settle(self) -> None:
        """Write everything."""
        while self.host._queue:
            self.host.sync()


@pytest.mark.parametrize("seed", range(6))
async def test_every_read_has_the_models_bytes(tmp_path: Path, seed: int) -> None:
    """Whatever is pipelined, held, copied in threads or adopted, a read gives what the model gives."""
    store = MemoryStore()
    list(store.recover())
    audit = AuditLog(tmp_path / "audit")
    caller, model, answers = Caller(seed), Model(seed), Answers()
    async with trio.open_nursery() as nursery:
        core = Core(Entropy(seed), OWNER)
        host = NodeHost(
            load(tmp_path, environ={}),
            store,
            audit,
            NoTasks(),
            nursery,
            complete=lambda info: info,
            core=core,
        )
        host.driver.feed(Recovered(1, ()))
        host.pages.open(TASK)
        host.outbox.open(TASK, answers)  # type: ignore[arg-type] # all that the outbox asks of a channel
        opened = SessionOpened(2, TASK, 1, OWNER, (), "", 1)
        host.driver.feed(opened)
        model.host.step(opened)
        model.settle()
        welcome = model.parts[1][0][0]
        assert isinstance(welcome, messages.Welcome)
        assert welcome.version == PROTOCOL_VERSION
        caller.own = welcome.self_ref.ref
        for seq in range(2, CALLS):
            # Who uses a buffer before its acquire was answered gets what happens to be in it.
            caller.buffers = [buffer for at, buffer in caller.told[-9:] if at in answers.results]
            call = caller.call()
            host.driver.call(TASK, seq, call)
            model.host.call(TASK, seq, call)
            model.settle()
            for result, _ in model.parts[seq]:
                caller.learn(seq, result)
            if caller.rng.random() < 0.1:
                with trio.fail_after(WAIT_S):
                    await host.driver.wait_idle()
        with trio.fail_after(WAIT_S):
            await host.driver.wait_idle()
        nursery.cancel_scope.cancel()
    await host.aclose()
    audit.close()
    for seq, parts in model.parts.items():
        compare(seq, parts, answers)


def compare(seq: int, parts: list[tuple[AnyResult, bytes | None]], answers: Answers) -> None:
    """One reply of the real host beside the model's."""
    reply = answers.results[seq]
    reals = list(reply.results) if isinstance(reply, messages.Results) else [reply]
    assert len(reals) == len(parts)
    for real, data, (result, wanted) in zip(reals, answers.bytes[seq], parts, strict=True):
        assert type(real) is type(result), (seq, real, result)
        if isinstance(result, messages.Buffer) and isinstance(real, messages.Buffer):
            assert (real.buffer, real.size, real.v_w) == (result.buffer, result.size, result.v_w)
            if data is not None and wanted is not None:
                assert data == wanted, seq
        elif not isinstance(result, messages.Welcome | messages.Failure):
            assert real == result
