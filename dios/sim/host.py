"""A host of the core in virtual time: bytes instead of memory, a list instead of sockets.

Not for: speed or sandboxing. It follows ``dios.core.effects`` to the letter, so that what it tells a
client is what the real host would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from blake3 import blake3
from msgspec import msgpack

from dios.core import effects, events
from dios.core.effects import Outcome, WriteSource
from dios.core.events import ObjectRecord
from dios.core.invariants import check
from dios.core.machine import Core
from dios.core.syscalls import carried_bytes
from dios.errors import Code
from dios.ids import BufferId, ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.sim.disk import Batch, SimDisk, Write
from dios.wire import messages

NODE_OWNER: Final = Principal("uid:1000")


class SimHost:
    """One node's life from start to crash.

    ``reply`` is called with task, sequence number, result and the bytes that came with it.
    """

    def __init__(
        self,
        rng: Random,
        disk: SimDisk,
        reply: Callable[[TaskId, int, messages.AnyResult, bytes | None], None],
        trace: blake3,
        *,
        now: int,
    ) -> None:
        self._rng: Final = rng
        self._disk: Final = disk
        self._reply: Final = reply
        self._trace: Final = trace
        self.core: Final = Core(rng.randbytes, NODE_OWNER)
        self.contents: dict[ObjectId, bytes] = {}
        self.buffers: dict[BufferId, bytes] = {}
        self.spawned: list[TaskId] = []
        self.killed: list[TaskId] = []
        self.now = now
        self.deadline: int | None = None
        self._payloads: dict[PayloadId, bytes] = {}
        self._next_payload = 1
        self._queue: deque[Batch] = deque()
        self._held: deque[tuple[Ticket, list[effects.Effect]]] = deque()
        self._durable = Ticket(0)
        records, contents = disk.recover()
        self.contents.update(contents)
        self.step(events.Recovered(now, tuple(records.values())))

    # -- events in ---------------------------------------------------------------------------------
    def step(self, event: events.Event) -> None:
        """One step of the core, its invariants, and its outcome."""
        self._trace.update(msgpack.encode(event))
        outcome = self.core.step(event)
        check(self.core.state)
        self._trace.update(msgpack.encode(outcome))
        self._carry_out(outcome)

    def call(self, task: TaskId, seq: int, call: messages.AnyCall) -> None:
        """A task's frame arrived."""
        first = PayloadId(self._next_payload)
        for part in call.calls if isinstance(call, messages.Vector) else (call,):
            data = None if isinstance(part, messages.Hello) else carried_bytes(part)
            if data is not None:
                self._payloads[PayloadId(self._next_payload)] = data
                self._next_payload += 1
        self.step(events.Called(self.now, task, seq, call, first))

    def advance(self, nanoseconds: int) -> None:
        """Let time pass; a deadline on the way is kept."""
        self.now += nanoseconds
        if self.deadline is not None and self.now >= self.deadline:
            self.step(events.TimerFired(self.now))

    # -- the disk ----------------------------------------------------------------------------------
    def sync(self, *, fail: bool = False) -> None:
        """The oldest batch becomes durable, or everything queued fails."""
        if not self._queue:
            return
        if fail:
            first, last = self._queue[0].ticket, self._queue[-1].ticket
            self._queue.clear()
            held, self._held = self._held, deque()
            self.step(events.PersistFailed(self.now, first, last, int(Code.ENOSPC), "no space left"))
            for _, after in held:
                self._refuse(after)
            return
        batch = self._queue.popleft()
        self._disk.write(batch)
        self._durable = batch.ticket
        self.step(events.Persisted(self.now, batch.ticket))
        self._release()

    def crash(self) -> None:
        """Lose everything but the disk, which was perhaps writing."""
        while self._queue:
            if not self._disk.crash_during(self._queue.popleft()):
                return

    def _carry_out(self, outcome: Outcome) -> None:
        self.deadline = outcome.deadline
        if outcome.persist:
            writes = tuple(self._write(operation) for operation in outcome.persist)
            self._queue.append(Batch(outcome.ticket, writes))
        if outcome.wait_for > self._durable:
            self._held.append((outcome.wait_for, outcome.after))
        else:
            self._run(outcome.after)

    def _release(self) -> None:
        while self._held and self._held[0][0] <= self._durable:
            self._run(self._held.popleft()[1])

    def _write(self, operation: effects.StoreOperation) -> Write:
        if isinstance(operation, effects.DropObject):
            return Write(operation.object, None, None)
        record: ObjectRecord = operation.record
        source = operation.source
        content = None if source is None else self._composed(record.object, source, pending=True)
        return Write(record.object, record, content)

    # -- bytes -------------------------------------------------------------------------------------
    def _composed(self, target: ObjectId, source: WriteSource, *, pending: bool = False) -> bytes:
        if source.payload:
            data = self._payloads[source.payload]
        elif source.buffer:
            data = self.buffers[source.buffer]
        elif source.content_of:
            data = self._newest(source.content_of)
        else:
            data = b""
        old = self._newest(target) if pending else self.contents.get(target, b"")
        part = data[: source.length].ljust(source.length, b"\0")
        tail = b"" if source.replace else old[source.offset + source.length :]
        return old[: source.offset] + part + tail

    def _newest(self, target: ObjectId) -> bytes:
        """An object's bytes as of the last write queued for the disk."""
        for batch in reversed(self._queue):
            for write in reversed(batch.writes):
                if write.object == target and write.content is not None:
                    return write.content
        return self.contents.get(target, b"")

    # -- effects out -------------------------------------------------------------------------------
    def _run(self, after: list[effects.Effect]) -> None:
        for effect in after:
            self._one(effect)

    def _one(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Answer():
                self._reply(effect.task, effect.seq, effect.result, None)
            case effects.AnswerRead():
                data = self.contents.get(effect.object, b"")[effect.offset : effect.offset + effect.length]
                if effect.result.buffer:
                    self.buffers[BufferId(effect.result.buffer)] = data
                self._reply(effect.task, effect.seq, effect.result, data)
            case effects.AnswerWrite():
                self._prepare(effect)
                self._reply(effect.task, effect.seq, effect.result, None)
            case effects.AnswerBytes():
                self._reply(effect.task, effect.seq, effect.result, effect.data)
            case effects.AnswerConsole():
                self._reply(effect.task, effect.seq, effect.result, bytes(effect.result.size))
            case effects.AnswerVector():
                for part in effect.parts:
                    self._one(part)
            case effects.AnswerAttach():
                self._reply(effect.task, effect.seq, messages.Attached(effect.ring_bytes), None)
            case effects.ApplyWrite():
                self.contents[effect.object] = self._composed(effect.object, effect.source)
            case effects.DuplicateContent():
                self.contents[effect.object] = self.contents.get(effect.source, b"")
            case effects.DiscardContent():
                self.contents.pop(effect.object, None)
            case effects.CloseBuffer():
                self.buffers.pop(effect.buffer, None)
            case effects.Spawn():
                self.spawned.append(effect.task)
            case effects.Kill():
                self.killed.append(effect.task)
            case _:
                pass  # pages, audit and process control leave nothing to check here

    def _prepare(self, effect: effects.AnswerWrite) -> None:
        buffer = BufferId(effect.result.buffer)
        if effect.blank and effect.reuse and buffer in self.buffers:
            return
        old = self.contents.get(effect.object, b"")[effect.offset : effect.offset + effect.length]
        self.buffers[buffer] = (b"" if effect.blank else old).ljust(effect.length, b"\0")

    def _refuse(self, after: list[effects.Effect]) -> None:
        failure = messages.Failure(int(Code.ENOSPC), "no space left")
        for effect in after:
            match effect:
                case (
                    effects.Answer()
                    | effects.AnswerRead()
                    | effects.AnswerWrite()
                    | effects.AnswerBytes()
                    | effects.AnswerConsole()
                    | effects.AnswerVector()
                ):
                    self._reply(effect.task, effect.seq, failure, None)
                case effects.CloseBuffer():
                    self.buffers.pop(effect.buffer, None)
                case _:
                    pass
