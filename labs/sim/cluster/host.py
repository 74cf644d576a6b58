"""A simulated host that talks to other nodes: messages with attached bytes, replies to remote tasks.

The attached bytes follow the rules of ``dios.host.peers``. The network is in ``labs.sim.cluster.network``.
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
from dios.store.protocol import Store
from dios.wire import dcp, messages
from dios.wire.types import Resource
from labs.sim.node.host import SimHost

INLINE_BYTES: Final = 48  # small, so that both ways to send bytes are common
CACHE_BYTES: Final = 400  # of a node for other nodes' versions, which are mostly 16 bytes long
IDLE_CHECKED: Final = 16  # among this number of steps with gossip only, one is checked


class HostOutputs(Protocol):
    """The receiver of what a host sends to tasks, processes and other nodes."""

    def answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """Answer a task of this node; a vector has the bytes of each of its parts."""

    def send(self, to: NodeId, message: dcp.Message, attached: bytes) -> None:
        """Send a message to another node."""

    def contact(self, to: NodeId, *, on_demand: bool) -> None:
        """Keep a connection to a node, or make one when gossip is sent to it."""

    def hang_up(self, to: NodeId) -> None:
        """Close the connection to a node."""

    def end_connection(self, to: NodeId) -> None:
        """End the connection to a node, which is then made again."""

    def spawn(self, effect: effects.Spawn) -> None:
        """Start a process."""

    def control(
        self, effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection
    ) -> None:
        """Stop, suspend or continue a process, or close a connection."""

    def stored(self, target: ObjectId, value: bytes) -> None:
        """Record a new content of an object, which tasks may read from now on."""


class ClusterHost(SimHost):
    """One node of a cluster from start to crash."""

    def __init__(
        self,
        rng: Random,
        store: Store,
        outputs: HostOutputs,
        trace: blake3,
        *,
        now: int,
        read: Callable[[ObjectId], bytes],
        here: Here,
        tasks_max: int | None = None,
        checked: bool = True,
    ) -> None:
        self._outputs: Final = outputs
        self.epoch: Final = here.epoch
        self.steps = 0
        self._idle = 0
        self._remote_tasks: Final[dict[TaskId, NodeId]] = {}
        self._parts: list[tuple[messages.AnyResult, bytes | None]] | None = None
        super().__init__(rng, store, self._answered, trace, now=now, read=read, here=here, checked=checked)
        if self.core.state.cluster is not None:
            self.core.state.cluster.versions.least = 1
        if tasks_max is not None:
            self.core.state.account.bind((messages.Bound(Resource.TASKS, tasks_max),))

    # -- events in ---------------------------------------------------------------------------------
    def receive(self, node: NodeId, epoch: int, message: dcp.Message, attached: bytes) -> None:
        """Handle a message of another node with its attached bytes."""
        first = PayloadId(self._next_payload)
        if attached:
            self.contents.payloads[first] = attached
            self._next_payload += 1
        elif isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Forward):
            self._keep(message.body.call)
        self.step(events.Received(self.now, node, epoch, message, first, len(attached)))

    def report_working(self, node: NodeId, number: int) -> None:
        """Answer a repeated request whose first one still waits in the host."""
        self._outputs.send(node, dcp.PeerReply(number, dcp.Working()), b"")

    def _check(self, event: events.Event, outcome: effects.Outcome) -> None:
        self.steps += 1
        gossip = isinstance(event, events.TimerFired) or (
            isinstance(event, events.Received) and isinstance(event.message, dcp.Gossip)
        )
        if gossip and all(
            isinstance(effect, effects.Send) and isinstance(effect.message, dcp.Gossip)
            for effect in outcome.after
        ):
            self._idle += 1
            if self._idle % IDLE_CHECKED:
                return
        check(self.core.state)

    # -- effects out -------------------------------------------------------------------------------
    def _one(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send():
                attached = b"" if effect.source is None else self.contents.taken(effect.source)
                self._outputs.send(effect.node, effect.message, attached)
            case effects.OpenRemoteTask():
                self._remote_tasks[effect.task] = effect.node
            case effects.CloseRemoteTask():
                self._remote_tasks.pop(effect.task, None)
            case effects.AnswerVector():
                self._vector(effect)
            case effects.AnswerWrite():
                self._prepare(effect)
                data = None if effect.blank else self.buffers[BufferId(effect.result.buffer)]
                self._answered(effect.task, effect.seq, effect.result, data)
            case effects.AnswerRead() if effect.known:
                content = self.contents.current(effect.object)
                data = content[effect.offset : effect.offset + effect.length]
                self.buffers[BufferId(effect.result.buffer)] = data
                self._answered(effect.task, effect.seq, effect.result, None)
            case effects.AnswerReceived():
                self._received(effect)
            case effects.Contact():
                self._outputs.contact(effect.node, on_demand=effect.on_demand)
            case effects.HangUp():
                self._outputs.hang_up(effect.node)
            case effects.EndConnection():
                self._outputs.end_connection(effect.node)
            case effects.Spawn():
                self._outputs.spawn(effect)
            case effects.Kill() | effects.Suspend() | effects.Continue() | effects.CloseConnection():
                self._outputs.control(effect)
            case effects.KeepPayload():
                pass  # the simulated host keeps all payloads until they are dropped
            case effects.DropPayload() if self._held:
                # The steps that wait have their payloads, as in the host of a node.
                self._held[-1].after.append(effect)
            case effects.DropPayload():
                self.contents.payloads.pop(effect.payload, None)
            case effects.ApplyWrite():
                super()._one(effect)
                self._outputs.stored(effect.object, self.contents.current(effect.object))
            case _:
                super()._one(effect)

    def _run_failed(
        self, after: list[effects.Effect], failure: messages.Failure, step: int, *, content_lost: bool = True
    ) -> None:
        for effect in after:
            if isinstance(effect, effects.Send):
                if isinstance(effect.message, dcp.PeerReply):
                    self._outputs.send(effect.node, dcp.PeerReply(effect.message.number, failure), b"")
            else:
                super()._run_failed([effect], failure, step, content_lost=content_lost)

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
        self._run(list(effect.parts), self._steps)
        parts, self._parts = self._parts, None
        results = messages.Results(tuple(cast("messages.PlainResult", result) for result, _ in parts))
        contents = [data for _, data in parts]
        node = self._remote_tasks.get(effect.task)
        if node is None:
            self._outputs.answered(effect.task, effect.seq, results, contents)
        else:
            sent = messages.Results(
                tuple(
                    _for_transport(result, data)
                    for result, data in zip(results.results, contents, strict=True)
                )
            )
            attached = b"".join(
                data or b""
                for result, data in zip(sent.results, contents, strict=True)
                if isinstance(result, messages.Buffer) and result.data is None
            )
            self._outputs.send(node, dcp.PeerReply(effect.seq, sent), attached)

    def _answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: bytes | None) -> None:
        if self._parts is not None:
            self._parts.append((result, data))
            return
        node = self._remote_tasks.get(task)
        if node is None:
            self._outputs.answered(task, seq, result, [data])
        elif not isinstance(result, messages.Welcome):
            sent = _for_transport(cast("messages.PlainResult", result), data)
            inside = not isinstance(sent, messages.Buffer) or sent.data is not None
            self._outputs.send(node, dcp.PeerReply(seq, sent), b"" if inside else data or b"")

    """Return the result as it is sent to another node: few bytes inside it, many bytes attached."""


def _for_transport(result: messages.PlainResult, data: bytes | None) -> messages.PlainResult:
    """The result as it travels to another node: few bytes inside it, many attached."""
    if not isinstance(result, messages.Buffer) or data is None:
        return result
    if len(data) <= INLINE_BYTES and not (data and data[-1] & 1):
        return replace(result, data=data)
    return replace(result, length=len(data))
