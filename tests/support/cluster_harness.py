"""Several cores that speak to each other, with a host that only remembers: for tests of the core.

Messages wait in ``Cluster.wire`` until they are delivered, so that a test can lose, repeat or reorder them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from blake3 import blake3
from core_harness import OWNER, Client, Entropy, Node

from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.invariants import check
from dios.core.machine import Core
from dios.core.peers import Here
from dios.ids import Name, NodeId, PayloadId, TaskId
from dios.wire import dcp, messages
from dios.wire.codec import decode_message, encode_message
from dios.wire.types import Cause

SECRET = blake3(b"a cluster's secret").digest()
MS = 1_000_000


class Parcel(NamedTuple):
    """A message under way, and the bytes beside it."""

    sender: NodeId
    to: NodeId
    epoch: int
    message: dcp.Message
    beside: bytes


class ClusterNode(Node):
    """One node of a cluster; its bytes are plain ``bytes``."""

    def __init__(self, cluster: Cluster, number: int, rack: str, *, epoch: int = 1) -> None:
        super().__init__(number)
        self.cluster = cluster
        self.node = NodeId(number)
        self.rack = rack
        self.epoch = epoch
        here = Here(self.node, epoch, f"n{number}", rack, f"10.0.0.{number}:7117", SECRET, 2)
        self.core = Core(Entropy(number * 1_000 + epoch), OWNER, here=here)
        self.now = cluster.now
        self.seq = number * 1_000_000
        self.contents: dict[int, bytes] = {}
        self.buffers: dict[int, bytes] = {}
        self.payloads: dict[int, bytes] = {}
        self.received: dict[tuple[int, int], bytes] = {}
        self.tasks = (number << 50) + (epoch << 40)

    def step(self, event: events.Event) -> Outcome:
        """One step, then every invariant."""
        if isinstance(event, events.Called):
            self._keep_payloads(event.call, event.payload)
        return super().step(event)

    def _keep_payloads(self, call: messages.AnyCall, payload: int) -> None:
        for part in call.calls if isinstance(call, messages.Vector) else (call,):
            data = getattr(part, "data", None)
            if data is not None:
                self.payloads[payload] = data
                payload += 1

    def take(self, parcel: Parcel) -> None:
        """A message arrives."""
        self.payload += 100
        message = decode_message(encode_message(parcel.message))
        if parcel.beside:
            self.payloads[self.payload] = parcel.beside
        elif isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Forward):
            self._keep_payloads(message.body.call, self.payload)
        self.step(
            events.Received(
                self.now, parcel.sender, parcel.epoch, message, PayloadId(self.payload), len(parcel.beside)
            )
        )

    def _source(self, source: effects.WriteSource) -> bytes:
        if source.payload:
            data = self.payloads[source.payload]
        elif source.buffer:
            data = self.buffers[source.buffer]
        else:
            data = self.contents.get(source.content_of, b"")
        return data[: source.length]

    def _note(self, effect: object) -> None:
        super()._note(effect)
        task = getattr(effect, "task", None)
        away = task in self.core.state.deputies
        match effect:
            case effects.ApplyWrite():
                source = effect.source
                old = self.contents.get(effect.object, b"").ljust(source.offset, b"\0")
                data = self._source(source)
                tail = b"" if source.replace else old[source.offset + source.length :]
                self.contents[effect.object] = old[: source.offset] + data + tail
            case effects.DuplicateContent():
                self.contents[effect.object] = self.contents.get(effect.source, b"")
            case effects.Send():
                beside = b"" if effect.source is None else self._source(effect.source)
                self.cluster.post(self, effect.node, effect.message, beside)
            case effects.AnswerReceived():
                self.answers[effect.task, effect.seq] = effect.result
                inline = effect.result.data
                if inline is not None:
                    data = inline
                else:
                    beside = self.payloads.get(effect.payload, b"")
                    data = beside[effect.offset : effect.offset + effect.result.size]
                self.received[effect.task, effect.seq] = data
                if effect.result.buffer:
                    self.buffers[effect.result.buffer] = data.ljust(effect.length, b"\0")
            case effects.AnswerVector() if away:
                parts = [self._result(part) for part in effect.parts]
                beside = b"".join(data for _, data in parts)
                results = messages.Results(tuple(cast("messages.PlainResult", one) for one, _ in parts))
                self.cluster.reply(self, effect.task, effect.seq, results, beside)
            case (
                effects.Answer() | effects.AnswerRead() | effects.AnswerBytes() | effects.AnswerConsole()
            ) if away:
                result, beside = self._result(effect)
                self.cluster.reply(self, effect.task, effect.seq, result, beside)
            case effects.Contact():
                self.cluster.wanted.add((self.node, effect.node))
            case effects.Spawn():
                self.cluster.spawned.append((self, effect.task))

    def _result(self, effect: object) -> tuple[dcp.Answer, bytes]:
        if isinstance(effect, effects.AnswerRead):
            content = self.contents.get(effect.object, b"")
            return effect.result, content[effect.offset : effect.offset + effect.length]
        if isinstance(effect, effects.AnswerBytes):
            return messages.Buffer(0, len(effect.data), 0, 0, data=effect.data), b""
        assert isinstance(effect, effects.Answer | effects.AnswerConsole)
        return effect.result, b""  # type: ignore[return-value]

    def crash(self) -> None:
        """Be started anew: durable objects and their contents are all that is left."""
        records = tuple(self.stored.values())
        contents: dict[int, bytes] = {
            record.object: self.contents.get(record.object, b"") for record in records
        }
        stored = dict(self.stored)
        self.__init__(self.cluster, self.node, self.rack, epoch=self.epoch + 1)  # type: ignore[misc]
        self.stored, self.contents = stored, contents
        self.step(events.Recovered(self.now, records))


class Cluster:
    """Some nodes, each connected with each, and what is under way between them."""

    def __init__(self, racks: tuple[str, ...] = ("r1", "r1", "r2")) -> None:
        self.now = 1_000 * MS
        self.wire: list[Parcel] = []
        self.wanted: set[tuple[NodeId, NodeId]] = set()
        self.spawned: list[tuple[ClusterNode, TaskId]] = []
        self.cut: set[frozenset[NodeId]] = set()
        self.drop: Callable[[Parcel], bool] = lambda parcel: False  # noqa: ARG005 - by default nothing is lost
        self.nodes = [ClusterNode(self, number, rack) for number, rack in enumerate(racks, 1)]
        for one in self.nodes:
            for other in self.nodes:
                if one is not other:
                    self.connect(one, other)
        self.settle()

    def connect(self, one: ClusterNode, other: ClusterNode) -> None:
        """Tell ``one`` that it is connected with ``other``."""
        name, address = f"n{other.node}", f"10.0.0.{other.node}:7117"
        one.step(events.PeerUp(one.now, other.node, other.epoch, name, other.rack, address))

    def by_id(self, node: NodeId) -> ClusterNode:
        """The node with an id."""
        return self.nodes[node - 1]

    def post(self, sender: ClusterNode, to: NodeId, message: dcp.Message, beside: bytes = b"") -> None:
        """Something is said."""
        if frozenset({sender.node, to}) not in self.cut:
            self.wire.append(Parcel(sender.node, to, sender.epoch, message, beside))

    def reply(self, sender: ClusterNode, task: int, seq: int, result: dcp.Answer, beside: bytes) -> None:
        """An answer to a deputy."""
        home = sender.core.state.deputies[TaskId(task)].home
        self.post(sender, home, dcp.Reply(seq, result), beside)

    def settle(self) -> None:
        """Deliver everything, and what follows from it."""
        for _ in range(100_000):
            if not self.wire:
                return
            parcel = self.wire.pop(0)
            if not self.drop(parcel) and frozenset({parcel.sender, parcel.to}) not in self.cut:
                self.by_id(parcel.to).take(parcel)
        raise AssertionError("the nodes do not stop talking")

    def advance(self, milliseconds: int, grain: int = 20) -> None:
        """Let time pass for all, in small pieces."""
        for _ in range(max(milliseconds // grain, 1)):
            self.now += grain * MS
            for node in self.nodes:
                node.now = self.now
                node.step(events.TimerFired(self.now))
            self.settle()

    def part(self, one: ClusterNode, other: ClusterNode) -> None:
        """Cut the connection of two."""
        self.cut.add(frozenset({one.node, other.node}))
        for here, there in ((one, other), (other, one)):
            here.step(events.PeerDown(here.now, there.node, there.epoch, "cut"))

    def heal(self) -> None:
        """Connect all again."""
        pairs, self.cut = [sorted(pair) for pair in self.cut], set()
        for one, other in pairs:
            self.connect(self.by_id(one), self.by_id(other))
            self.connect(self.by_id(other), self.by_id(one))
        self.settle()

    def wait(self, client: Client, seq: int, milliseconds: int = 20_000) -> object:
        """The answer to a call, which may take some time."""
        self.settle()
        for _ in range(milliseconds // 20):
            answer = client.answer(seq)
            if answer is not None:
                return answer
            self.advance(20)
        raise AssertionError("no answer came in time")

    def call(self, client: Client, call: messages.AnyCall) -> object:
        """Make a call and wait for its answer."""
        return self.wait(client, client.send(call))

    def start_spawned(self) -> list[Client]:
        """Let the processes of new tasks begin; each as a client."""
        found: list[Client] = []
        for node, task in self.spawned:
            welcome = node.answers[task, 0]
            assert isinstance(welcome, messages.Welcome)
            node.step(events.TaskStarted(node.now, task, 100))
            found.append(Client(node, task, welcome))
        self.spawned.clear()
        self.settle()
        return found

    def end(self, client: Client, cause: Cause = Cause.EXITED) -> None:
        """A task's process ends."""
        client.node.step(events.TaskEnded(client.node.now, client.task, cause))
        self.settle()

    def check(self) -> None:
        """Every node is right, and the nodes agree on who holds what."""
        for node in self.nodes:
            check(node.core.state)
            cluster = node.core.state.cluster
            assert cluster is not None
            for peer in cluster.peers.values():
                there = self.by_id(peer.node).core.state
                for target in peer.stand_ins.values():
                    for reference in target.references.values():
                        deputy = there.deputies.get(reference.task.id)
                        held = deputy is not None and reference.id in deputy.table
                        assert held or target.zombie, "a stand-in's reference is not over there"

    def session(self, node: ClusterNode, groups: tuple[bytes, ...] = ()) -> Client:
        """A person's session on a node."""
        return node.session(OWNER, tuple(Name(name) for name in groups))
