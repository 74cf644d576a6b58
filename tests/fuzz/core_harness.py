"""A harness for one core with the frame generator: frames in, checked answers out, without process and I/O.

It takes the part of the host: it reports stored changes, starts and ends of tasks, and the time. The same
bytes give the same run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, TypeAlias

import msgspec

from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.model.invariants import check
from dios.errors import Code, ProtocolError
from dios.ids import ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.wire import messages
from dios.wire.codec import decode_reply, decode_request, encode_reply
from dios.wire.messages import AnyResult
from dios.wire.types import Cause
from labs.sim.step_work import bounded
from tests.fuzz.bending import Bent
from tests.fuzz.frames import Frames
from tests.fuzz.known import Known
from tests.support.core.harness import OWNER, Entropy

STRANGER: Final = Principal("uid:2000")
SEATS: Final = 3
"""The number of attackers at one core: two of its owner, and one of another user."""

OTHERS: Final = 8
"""The kinds of input: a frame from each attacker, and events of the host."""

_HEAD: Final = struct.Struct("<BH")
_TASK_BITS: Final = 1 << 50

_Buffered: TypeAlias = effects.AnswerRead | effects.AnswerWrite | effects.AnswerBytes | effects.AnswerConsole


class CoreHarness:
    """One core and its clients. ``checked``: check invariants after every event, not only at the end."""

    def __init__(self, *, checked: bool) -> None:
        self.core: Final = Core(Entropy(7), OWNER)
        self._checked: Final = checked
        self._now = 1_000
        self._payload = 0
        self._tasks = _TASK_BITS
        self._outstanding: list[Ticket] = []
        self._started: list[TaskId] = []
        self._buffers: list[tuple[TaskId, int, ObjectId]] = []
        self.answers: Final[dict[tuple[TaskId, int], AnyResult]] = {}
        self.outcomes = 0
        self.seats: Final = [self._session(seat) for seat in range(SEATS)]

    def _session(self, seat: int) -> TaskId:
        self._tasks += 1
        task = TaskId(self._tasks)
        principal = STRANGER if seat == SEATS - 1 else OWNER
        self._step(events.SessionOpened(self._now, task, 1, principal, (), "fuzz", 42))
        return task

    # -- in -----------------------------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        """Feed any bytes: each input has a kind, a length, and that number of bytes."""
        for kind, body in split(data):
            if kind < SEATS:
                self.frame(kind, body)
            else:
                self.host(kind, body)
        check(self.core.state)

    def frame(self, seat: int, body: bytes) -> None:
        """Feed the body of an attacker's frame; an invalid one closes the connection."""
        task = self.seats[seat]
        try:
            request = decode_request(body)
        except ProtocolError:
            self._step(events.Disconnected(self._now, task, "malformed"))
            self.seats[seat] = self._session(seat)
            return
        self._payload += 2_000
        self._step(events.Called(self._now, task, request.seq, request.call, PayloadId(self._payload)))
        if task not in self.core.state.tasks:
            self.seats[seat] = self._session(seat)

    def host(self, kind: int, body: bytes) -> None:
        """Feed an event of the host."""
        self._now += len(body) * 1_000_000 + 1
        now = self._now
        if kind == SEATS:
            self._step(events.TimerFired(now))
        elif kind == SEATS + 1 and self._outstanding:
            last = self._outstanding[-1]
            self._outstanding.clear()
            self._step(events.Persisted(now, last))
        elif kind == SEATS + 2 and self._outstanding:
            first, last = self._outstanding[0], self._outstanding[-1]
            self._outstanding.clear()
            self._step(events.PersistFailed(now, first, last, int(Code.ENOSPC), "the disk is full"))
        elif kind == SEATS + 3 and self._started:
            self._step(events.TaskEnded(now, self._started.pop(), Cause.EXITED, len(body) % 256))
        elif kind == SEATS + 4 and self._buffers:
            task, buffer, target = self._buffers.pop()
            self._step(events.EffectFailed(now, task, buffer, target, int(Code.ENOMEM), "no memory"))

    # -- out ----------------------------------------------------------------------------------------
    def _step(self, event: events.Event) -> None:
        todo = [event]
        while todo:
            outcome = bounded(self.core, todo.pop(0))
            self.outcomes += 1
            if self._checked:
                check(self.core.state)
            msgspec.msgpack.encode(outcome)
            todo += self._carried_out(outcome)

    def _carried_out(self, outcome: Outcome) -> Iterator[events.Event]:
        if outcome.persist:
            self._outstanding.append(outcome.ticket)
        for effect in outcome.after:
            match effect:
                case effects.Spawn(task):
                    self._started.append(task)
                    yield events.TaskStarted(self._now, task, 100)
                case effects.Kill(task) if task in self._started:
                    self._started.remove(task)
                    yield events.TaskEnded(self._now, task, Cause.KILLED)
                case effects.CloseConnection(task):
                    yield events.Disconnected(self._now, task, "closed by the node")
                case effects.AnswerVector(task, seq, parts):
                    self._answer(task, seq, _results(parts))
                case effects.AnswerAttach(task, seq):
                    self._answer(task, seq, effect.result)
                case (
                    effects.Answer(task, seq, result)
                    | effects.AnswerRead(task, seq, result)
                    | effects.AnswerWrite(task, seq, result)
                    | effects.AnswerBytes(task, seq, result)
                    | effects.AnswerConsole(task, seq, result)
                ):
                    self._answer(task, seq, result)
                    if isinstance(effect, effects.AnswerRead | effects.AnswerWrite):
                        self._buffers.append((task, effect.result.buffer, effect.object))
                case _:
                    pass

    def _answer(self, task: TaskId, seq: int, result: AnyResult) -> None:
        """Check that every answer can be encoded, and is the same after decoding."""
        reply = decode_reply(encode_reply(seq, result)[4:])
        assert (reply.seq, reply.result) == (seq, result)
        self.answers[task, seq] = result


class RandomInputs:
    """Attackers at a harness; their actions are recorded as bytes for ``CoreHarness.feed``."""

    def __init__(self, rng: Random, *, checked: bool) -> None:
        self.harness: Final = CoreHarness(checked=checked)
        self.script: Final = bytearray()
        self._rng: Final = rng
        self._knowns: Final = [Known() for _ in range(SEATS)]
        self._sources: Final = [Frames(rng, known, grave=True) for known in self._knowns]
        self._bents: Final = [Bent(rng, source) for source in self._sources]
        for seat in range(SEATS):
            self._greet(seat)

    def _greet(self, seat: int) -> None:
        welcome = self.harness.answers.get((self.harness.seats[seat], 1))
        if isinstance(welcome, messages.Welcome):
            self._knowns[seat].welcome(welcome)

    def move(self) -> None:
        """Send one frame of an attacker, rarely an invalid one, or one event of the host."""
        rng, harness = self._rng, self.harness
        dice = rng.random()
        if dice < 0.1:
            kind, body = SEATS + int(rng.random() * (OTHERS - SEATS)), b"." * int(rng.random() * 40)
            self._note(kind, body)
            harness.host(kind, body)
            return
        seat = int(rng.random() * SEATS)
        task = harness.seats[seat]
        body = self._bents[seat].frame()[4:] if dice > 0.97 else self._sources[seat].good()
        if len(body) > 0xFFFF:
            return
        self._note(seat, body)
        harness.frame(seat, body)
        if harness.seats[seat] != task:
            self._greet(seat)
        for seq in [seq for owner, seq in harness.answers if owner == task]:
            self._sources[seat].answered(seq, harness.answers.pop((task, seq)))

    def _note(self, kind: int, body: bytes) -> None:
        self.script.extend(_HEAD.pack(kind, len(body)) + body)


def _results(
    parts: Sequence[effects.Answer | effects.AnswerReceived | effects.AnswerAttach | _Buffered],
) -> messages.Results:
    """Return a vector's answers as one message."""
    results: list[messages.PlainResult] = []
    for part in parts:
        assert not isinstance(part.result, messages.Results | messages.Welcome)
        results.append(part.result)
    return messages.Results(tuple(results))


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield inputs and their kinds; the last input may be cut off."""
    start = 0
    while start + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, start)
        start += _HEAD.size
        yield kind % OTHERS, data[start : start + length]
        start += length
