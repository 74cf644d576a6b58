"""A simulated host whose core speaks to other nodes: messages with bytes beside them, answers to deputies.

Not for: the network (``dios.sim.cluster.network``). What travels beside a message is as ``dios.host.peers``
has it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol, cast

from blake3 import blake3
from msgspec.structs import replace

from dios.core import effects, events
from dios.core.model.invariants import check
from dios.core.remote.peers import Here
from dios.ids import BufferId, NodeId, ObjectId, PayloadId, TaskId
from dios.sim.node.host import SimHost
from dios.store.protocol import Store
from dios.wire import dcp, messages

INLINE_BYTES: Final = 48  # as few as make both ways of travelling common
IDLE_CHECKED: Final = 16  # of so many steps that are gossip alone, one is checked


class Around(Protocol):
    """Where the host's words go."""

    def answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """A task of this node is answered; a vector has the bytes of each of its parts."""
        ...

    def send(self, to: NodeId, message: dcp.Message, beside: bytes) -> None:
        """Say something to another node."""
        ...

    def contact(self, to: NodeId) -> None:
        """Have a connection with a node."""
        ...

    def hang_up(self, to: NodeId) -> None:
        """Have none with it."""
        ...

    def spawn(self, effect: effects.Spawn) -> None:
        """Start a process."""
        ...

    def control(
        self, effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection
    ) -> None:
        """Do something with a process."""
        ...

    def stored(self, target: ObjectId, value: bytes) -> None:
        """An object has a new content, which tasks may see from now on."""
        ...


class ClusterHost(SimHost):
    """One life of one node of a cluster."""

    def __init__(
        self,
        rng: Random,
        store: Store,
        around: Around,
        trace: blake3,
        *,
        now: int,
        read: Callable[[ObjectId], bytes],
        here: Here,
    ) -> None:
        self._around: Final = around
        self.epoch: Final = here.epoch
        self.steps = 0
        self._idle = 0
        self._deputies: Final[dict[TaskId, NodeId]] = {}
        self._parts: list[tuple[messages.AnyResult, bytes | None]] | None = None
        super().__init__(rng, store, self._answered, trace, now=now, read=read, here=here)

    # -- events in ---------------------------------------------------------------------------------
    def receive(self, node: NodeId, epoch: int, message: dcp.Message, beside: bytes) -> None:
        """A message of another node arrived, with its bytes."""
        first = PayloadId(self._next_payload)
        if beside:
            self.contents.payloads[first] = beside
            self._next_payload += 1
        elif isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Forward):
            self._keep(message.body.call)
        self.step(events.Received(self.now, node, epoch, message, first, len(beside)))

    def _check(self, event: events.Event, outcome: effects.Outcome) -> None:
        self.steps += 1
        gossip = isinstance(event, events.TimerFired) or (
            isinstance(event, events.Received) and isinstance(event.message, dcp.Gossip)
        )
        if gossip and all(
            isinstance(one, effects.Send) and isinstance(one.message, dcp.Gossip) for one in outcome.after
        ):
            self._idle += 1
            if self._idle % IDLE_CHECKED:
                return
        check(self.core.state)

    # -- effects out -------------------------------------------------------------------------------
    def _one(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send():
                beside = b"" if effect.source is None else self.contents.taken(effect.source)
                self._around.send(effect.node, effect.message, beside)
            case effects.OpenDeputy():
                self._deputies[effect.task] = effect.node
            case effects.CloseDeputy():
                self._deputies.pop(effect.task, None)
            case effects.AnswerVector():
                self._vector(effect)
            case effects.AnswerWrite():
                self._prepare(effect)
                data = None if effect.blank else self.buffers[BufferId(effect.result.buffer)]
                self._answered(effect.task, effect.seq, effect.result, data)
            case effects.AnswerReceived():
                self._received(effect)
            case effects.Contact():
                self._around.contact(effect.node)
            case effects.HangUp():
                self._around.hang_up(effect.node)
            case effects.Spawn():
                self._around.spawn(effect)
            case effects.Kill() | effects.Suspend() | effects.Continue() | effects.CloseConnection():
                self._around.control(effect)
            case effects.KeepPayload() | effects.DropPayload():
                pass  # nothing is forgotten here
            case effects.ApplyWrite():
                super()._one(effect)
                self._around.stored(effect.object, self.contents.current(effect.object))
            case _:
                super()._one(effect)

    def _run_failed(
        self, after: list[effects.Effect], failure: messages.Failure, *, content_lost: bool = True
    ) -> None:
        for effect in after:
            if isinstance(effect, effects.Send):
                if isinstance(effect.message, dcp.Reply):
                    self._around.send(effect.node, dcp.Reply(effect.message.number, failure), b"")
            else:
                super()._run_failed([effect], failure, content_lost=content_lost)

    def _received(self, effect: effects.AnswerReceived) -> None:
        result = effect.result
        data = result.data
        if data is None:
            data = self.contents.payloads.get(effect.payload, b"")[
                effect.offset : effect.offset + result.length
            ]
        if result.buffer:
            buffer = BufferId(result.buffer)
            if effect.reuse and result.size and not data:
                data = self.buffers[buffer]
            self.buffers[buffer] = data.ljust(effect.length, b"\0")
        self._answered(effect.task, effect.seq, result, data)

    def _vector(self, effect: effects.AnswerVector) -> None:
        self._parts = []
        self._run(list(effect.parts))
        parts, self._parts = self._parts, None
        results = messages.Results(tuple(cast("messages.PlainResult", result) for result, _ in parts))
        contents = [data for _, data in parts]
        node = self._deputies.get(effect.task)
        if node is None:
            self._around.answered(effect.task, effect.seq, results, contents)
        else:
            bare = messages.Results(
                tuple(_bare(result, data) for result, data in zip(results.results, contents, strict=True))
            )
            beside = b"".join(
                data or b""
                for result, data in zip(bare.results, contents, strict=True)
                if isinstance(result, messages.Buffer) and result.data is None
            )
            self._around.send(node, dcp.Reply(effect.seq, bare), beside)

    def _answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: bytes | None) -> None:
        if self._parts is not None:
            self._parts.append((result, data))
            return
        node = self._deputies.get(task)
        if node is None:
            self._around.answered(task, seq, result, [data])
        elif not isinstance(result, messages.Welcome):
            bare = _bare(cast("messages.PlainResult", result), data)
            inside = not isinstance(bare, messages.Buffer) or bare.data is not None
            self._around.send(node, dcp.Reply(seq, bare), b"" if inside else data or b"")


def _bare(result: messages.PlainResult, data: bytes | None) -> messages.PlainResult:
    """The result as it travels to another node: few bytes inside it, many beside."""
    if not isinstance(result, messages.Buffer) or data is None:
        return result
    if len(data) <= INLINE_BYTES:
        return replace(result, data=data)
    return replace(result, length=len(data))
