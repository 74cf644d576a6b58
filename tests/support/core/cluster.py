"""Several cores that speak to each other, with a host that only remembers: for tests of the core.

Messages wait in ``Cluster.wire`` until they are delivered, so that a test can lose, repeat or reorder them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.model.invariants import check
from dios.core.model.records import RemoteTask
from dios.core.remote.peers import Here
from dios.ids import Name, NodeId, PayloadId, Principal, TaskId
from dios.wire import dcp, messages
from dios.wire.codec import decode_message, encode_message
from dios.wire.mandates import extend, key_digest, public_bytes, read_register
from dios.wire.node_roles import NodeRole
from dios.wire.types import Cause
from tests.support.core.harness import OWNER, Client, Entropy, Node
from tests.support.core.snapshot import snapshot

AUTHORITY = blake3(b"a cluster's authority").digest()
SECRET = blake3(b"a cluster's secret").digest()
MS = 1_000_000
CACHE_BYTES = 1_000


_AnyAnswer: TypeAlias = (
    effects.Answer
    | effects.AnswerRead
    | effects.AnswerWrite
    | effects.AnswerBytes
    | effects.AnswerConsole
    | effects.AnswerReceived
    | effects.AnswerVector
)
_ANSWERS = (
    effects.Answer,
    effects.AnswerRead,
    effects.AnswerWrite,
    effects.AnswerBytes,
    effects.AnswerConsole,
    effects.AnswerReceived,
    effects.AnswerVector,
)
_BOOKS = frozenset({
    "_moments", "_read_before", "answers", "asked", "granted", "heard_ns", "membership", "next_number",
    "order_out", "placement", "publish_at", "requests", "requests_unnamed", "settled", "to_publish",
    "unsettled", "working_at",
})  # fmt: skip
"""What changes with every request, whatever becomes of it."""


class Removal(NamedTuple):
    """What the hosts of nodes tell each other below the core: these nodes are removed."""

    nodes: tuple[NodeId, ...]
    call: tuple[TaskId, int, int] | None = None


class LabelsWritten(NamedTuple):
    """A host has stored the labels of its node, or not."""

    call: tuple[TaskId, int, int]
    failure: str


class RegisterPassed(NamedTuple):
    """A host passes on the register of principals that it has stored."""

    register: bytes
    call: tuple[TaskId, int, int] | None = None


class SecretsPassed(NamedTuple):
    """A host passes on the later secrets of the cluster that it has stored."""

    secrets: tuple[bytes, ...]
    withheld: frozenset[NodeId]
    call: tuple[TaskId, int, int] | None = None


class Parcel(NamedTuple):
    """A message under way, and the bytes beside it."""

    sender: NodeId
    to: NodeId
    epoch: int
    message: dcp.Message | Removal | LabelsWritten | RegisterPassed | SecretsPassed
    beside: bytes


def _bare(result: dcp.Answer, data: bytes) -> dcp.Answer:
    """As it travels when its bytes are beside it."""
    if isinstance(result, messages.Buffer) and result.data is None:
        return replace(result, length=len(data))
    return result


def node_key(number: int) -> Ed25519PrivateKey:
    """The key of a node."""
    return Ed25519PrivateKey.from_private_bytes(blake3(b"key of node %d" % number).digest())


def key_digest_of(number: int) -> bytes:
    """The digest of a node's public key, as in its certificate."""
    return key_digest(public_bytes(node_key(number)))


class ClusterNode(Node):
    """One node of a cluster; its bytes are plain ``bytes``."""

    def __init__(self, cluster: Cluster, number: int, rack: str, *, epoch: int = 1) -> None:
        super().__init__(number)
        self.cluster = cluster
        self.node = NodeId(number)
        self.rack = rack
        self.epoch = epoch
        address = f"10.0.0.{number}:7117"
        here = Here(
            self.node,
            epoch,
            f"n{number}",
            rack,
            address,
            SECRET,
            2,
            cache_bytes=CACHE_BYTES,
            roles=str(cluster.roles.get(number, NodeRole.MEMBER)),
            cluster=AUTHORITY,
            key=key_digest_of(number),
        )
        self.core = Core(Entropy(number * 1_000 + epoch), OWNER, here=here)
        self.drift = cluster.drifts.get(number, 0)
        self.now = cluster.now + self.drift
        self.seq = number * 1_000_000
        self.contents: dict[int, bytes] = {}
        self.buffers: dict[int, bytes] = {}
        self.writing: set[int] = set()
        """The buffers whose bytes a host could send: those that a task writes."""
        self.payloads: dict[int, bytes] = {}
        self.received: dict[tuple[int, int], bytes] = {}
        self.parts: dict[tuple[int, int], list[tuple[dcp.Answer, bytes]]] = {}
        self.tasks = (number << 50) + (epoch << 40)
        self.inline_bytes = 0
        """As many bytes are sent inside an answer instead of beside it."""
        self.removed: set[NodeId] = set()
        self.refuses_removals = False
        self.secrets: SecretsPassed | None = None
        """The later secrets that the host has stored."""
        self.labels_failure = ""
        self.stored_labels: tuple[str, tuple[tuple[str, str], ...]] | None = None

    def step(self, event: events.Event) -> Outcome:
        """One step, then every invariant."""
        if isinstance(event, events.Called):
            self._keep_payloads(event.call, event.payload)
        return super().step(event)

    def let_limbo_in(self) -> None:
        """Let tasks of other nodes start limbo tasks here, as the setting of the node's owner does."""
        cluster = self.core.state.cluster
        assert cluster is not None
        cluster.here = replace(cluster.here, limbo_from_nodes=True)

    def _keep_payloads(self, call: messages.AnyCall, payload: int) -> None:
        for part in call.calls if isinstance(call, messages.Vector) else (call,):
            data = getattr(part, "data", None)
            if data is not None:
                self.payloads[payload] = data
                payload += 1

    def take(self, parcel: Parcel) -> None:
        """A message arrives."""
        if isinstance(parcel.message, Removal):
            self._take_removal(parcel.message)
            return
        if isinstance(parcel.message, LabelsWritten):
            self.step(events.LabelsStored(self.now, *parcel.message))
            return
        if isinstance(parcel.message, RegisterPassed):
            self._take_register(parcel.message)
            return
        if isinstance(parcel.message, SecretsPassed):
            self._take_secrets(parcel.message)
            return
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

    def _take_removal(self, removal: Removal) -> None:
        """Store which nodes are removed, tell the others, and report it to the core."""
        new = self.removed | set(removal.nodes)
        if new != self.removed:
            self.removed = new
            for other in self.cluster.nodes:
                if other is not self and other.node not in new:
                    self.cluster.post(self, other.node, Removal(tuple(sorted(new))))
        if not self.refuses_removals:
            self.step(events.NodesRemoved(self.now, tuple(sorted(new)), removal.call))

    def _take_register(self, passed: RegisterPassed) -> None:
        """Store the register, pass it on, and report it to the core."""
        register = read_register(passed.register)
        if passed.call is not None:
            for other in self.cluster.nodes:
                if other is not self:
                    self.cluster.post(self, other.node, RegisterPassed(passed.register))
        keys = tuple((Principal(principal), key) for principal, key in register.keys.items())
        self.step(events.RegisterStored(self.now, passed.register, keys, passed.call))

    def _take_secrets(self, passed: SecretsPassed) -> None:
        """Store later secrets, pass them on, and report them to the core."""
        self.secrets = passed._replace(call=None)
        if passed.call is not None:
            for other in self.cluster.nodes:
                if other is not self and other.node not in passed.withheld:
                    self.cluster.post(self, other.node, SecretsPassed(passed.secrets, passed.withheld))
        mark = 1 + len(passed.secrets)
        withheld = tuple(sorted(passed.withheld))
        self.step(events.SecretsStored(self.now, passed.secrets, mark, withheld, passed.call))

    def _rotate(self, call: tuple[TaskId, int, int]) -> None:
        secrets = self.core.state.later_secrets
        secret = blake3(b"secret %d of %d" % (len(secrets), self.node)).digest()
        self.cluster.post(self, self.node, SecretsPassed((*secrets, secret), frozenset(self.removed), call))

    def _signed(self, effect: effects.Send) -> dcp.Message:
        """The message with the extensions that the host signs."""
        if not effect.extensions:
            return effect.message
        signed = tuple(
            extend(
                extension.mandate,
                node_key(self.node),
                effect.node,
                key_digest_of(effect.node),
                extension.purposes,
                extension.end_ms,
            )
            for extension in effect.extensions
        )
        return replace(cast("dcp.Ask", effect.message), extensions=signed)

    def _source(self, source: effects.WriteSource) -> bytes:
        if source.payload:
            data = self.payloads[source.payload]
        elif source.buffer:
            assert source.buffer in self.writing, "a host has no bytes of a buffer that was not to be written"
            data = self.buffers[source.buffer]
        else:
            data = self.contents.get(source.content_of, b"")
        return data[: source.length]

    def _note(self, effect: object) -> None:
        super()._note(effect)
        if isinstance(effect, _ANSWERS):
            self._answered(effect)
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
                self.cluster.post(self, effect.node, self._signed(effect), beside)
            case effects.AnswerAttachRemote():
                self.answers[effect.task, effect.seq] = messages.Attached(effect.ring_bytes)
            case effects.RemoveNode():
                self.cluster.post(self, self.node, Removal((effect.node,), effect.call))
            case effects.StoreLabels():
                self.stored_labels = effect.rack, effect.labels
                self.cluster.post(self, self.node, LabelsWritten(effect.call, self.labels_failure))
            case effects.RotateSecret():
                self._rotate(effect.call)
            case effects.StoreRegister():
                self.cluster.post(self, self.node, RegisterPassed(effect.register, effect.call))
            case effects.DropPayload():
                self.payloads.pop(effect.payload, None)
            case effects.Contact():
                self.cluster.wanted.add((self.node, effect.node))
            case effects.Spawn():
                self.cluster.spawned.append((self, effect.task))

    def _answered(self, effect: _AnyAnswer) -> None:
        """Give an answer to who waits for it, here or on another node."""
        parts = effect.parts if isinstance(effect, effects.AnswerVector) else (effect,)
        answers = [self._filled(part) for part in parts]
        beside = b"".join(data for _, data in answers)
        if effect.task in self.core.state.remote_tasks:
            answers = [(_bare(result, data), data) for result, data in answers]
            result = answers[0][0]
            if isinstance(effect, effects.AnswerVector):
                result = messages.Results(tuple(cast("messages.PlainResult", plain) for plain, _ in answers))
            elif isinstance(effect, effects.AnswerBytes):
                result, beside = replace(effect.result, data=beside), b""
            elif isinstance(result, messages.Buffer) and 0 < len(beside) <= self.inline_bytes:
                result, beside = replace(result, data=beside), b""
            self.cluster.reply(self, effect.task, effect.seq, result, beside)
            return
        self.parts[effect.task, effect.seq] = answers
        self.received[effect.task, effect.seq] = beside
        if isinstance(effect, effects.AnswerReceived):
            self.answers[effect.task, effect.seq] = effect.result

    def _filled(self, effect: object) -> tuple[dcp.Answer, bytes]:
        """An answer's result and its bytes, which stand in its buffer from now on."""
        data = b""
        match effect:
            case effects.AnswerRead():
                data = self.contents.get(effect.object, b"")[effect.offset :][: effect.length]
            case effects.AnswerWrite() if effect.reuse and effect.blank:
                data = self.buffers[effect.result.buffer]
            case effects.AnswerWrite():
                content = b"" if effect.blank else self.contents.get(effect.object, b"")
                data = content[effect.offset :][: effect.length].ljust(effect.length, b"\0")
            case effects.AnswerBytes():
                data = effect.data
            case effects.Answer(result=messages.Buffer(data=bytes() as inline)):
                data = inline
            case effects.AnswerReceived():
                data = effect.result.data or b""
                if effect.result.data is None:
                    data = self.payloads.get(effect.payload, b"")[effect.offset :][: effect.result.length]
                if effect.reuse and effect.result.size and not data:
                    data = self.buffers[effect.result.buffer]
                data = data.ljust(effect.length, b"\0") if effect.writable else data
        result = cast("_AnyAnswer", effect).result  # type: ignore[union-attr]
        if isinstance(result, messages.Buffer) and result.buffer:
            self.buffers[result.buffer] = data
            if isinstance(effect, effects.AnswerWrite) or getattr(effect, "writable", False):
                self.writing.add(result.buffer)
        if isinstance(effect, effects.AnswerRead) and effect.known:
            data = b""
        if isinstance(effect, effects.AnswerRead):
            result = replace(effect.result, length=len(data))
        return cast("dcp.Answer", result), data

    def session(self, principal: Principal = OWNER, groups: tuple[bytes, ...] = ()) -> Citizen:
        """Open a session."""
        client = super().session(principal, groups)
        return Citizen(self, client.task, client.welcome)

    def crash(self) -> None:
        """Be started anew: durable objects and their contents are all that is left."""
        records = tuple(self.stored.values())
        contents: dict[int, bytes] = {
            record.object: self.contents.get(record.object, b"") for record in records
        }
        stored, secrets = dict(self.stored), self.secrets
        self.__init__(self.cluster, self.node, self.rack, epoch=self.epoch + 1)  # type: ignore[misc]
        self.stored, self.contents = stored, contents
        self.step(events.Recovered(self.now, records))
        if secrets is not None:
            self._take_secrets(secrets)


class Citizen(Client):
    """A task or session whose calls may concern other nodes."""

    node: ClusterNode

    def call(self, call: messages.AnyCall) -> object:
        """Make a call and let the nodes speak until it is answered."""
        return self.node.cluster.call(self, call)

    def read(self, ref: int, size: int = 0, offset: int = 0) -> bytes:
        """An object's bytes."""
        seq = self.send(messages.ReadOnce(ref, size, offset))
        answer = self.node.cluster.wait(self, seq)
        assert isinstance(answer, messages.Buffer | effects.AnswerBytes), answer
        return self.node.received[self.task, seq]

    def many(self, *calls: messages.PlainCall) -> list[tuple[dcp.Answer, bytes]]:
        """The answers to the calls of a vector, with their bytes."""
        seq = self.send(messages.Vector(calls))
        self.node.cluster.wait(self, seq)
        return self.node.parts[self.task, seq]

    def refused(self, call: messages.AnyCall) -> int:
        """Make a call that must be refused; its error code. Nothing may change on any node."""
        before = self.node.cluster.snapshot()
        failure = self.ask(messages.Failure, call)
        assert failure.message
        after = self.node.cluster.snapshot()
        changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
        assert after == before, f"a refusal of {call} changed the state: {changed[:5]}"
        return failure.code


def record_of(who: Client, at: ClusterNode) -> RemoteTask:
    """The record that a node has of a task of another node."""
    cluster = at.core.state.cluster
    assert cluster is not None
    return cluster.peer(cast("ClusterNode", who.node).node).remote_tasks[who.task]


class Cluster:
    """Some nodes, each connected with each, and what is under way between them."""

    def __init__(
        self,
        racks: tuple[str, ...] = ("r1", "r1", "r2"),
        drifts: dict[int, int] | None = None,
        roles: Mapping[int, NodeRole] = MappingProxyType({}),
    ) -> None:
        self.now = 10_000_000 * MS
        self.roles = roles
        self.drifts = drifts or {}  # how far the clock of a node is off, in ns
        self.wire: list[Parcel] = []
        self.wanted: set[tuple[NodeId, NodeId]] = set()
        self.spawned: list[tuple[ClusterNode, TaskId]] = []
        self.cut: set[frozenset[NodeId]] = set()
        self.drop: Callable[[Parcel], bool] = lambda parcel: False  # noqa: ARG005 - by default nothing is lost
        self.select: Callable[[int], int] = lambda waiting: 0  # noqa: ARG005 - by default in their order
        self.nodes = [ClusterNode(self, number, rack) for number, rack in enumerate(racks, 1)]
        for node in self.nodes:
            for other in self.nodes:
                if node is not other:
                    self.connect(node, other)
        self.settle()

    def connect(self, node: ClusterNode, other: ClusterNode) -> None:
        """Tell ``node`` that it is connected with ``other``."""
        name, address = f"n{other.node}", f"10.0.0.{other.node}:7117"
        node.step(
            events.PeerUp(
                node.now,
                other.node,
                other.epoch,
                name,
                other.rack,
                address,
                roles=str(self.roles.get(other.node, NodeRole.MEMBER)),
                key=key_digest_of(other.node),
            )
        )
        if node.removed:
            self.post(node, other.node, Removal(tuple(sorted(node.removed))))

    def by_id(self, node: NodeId) -> ClusterNode:
        """The node with an id."""
        return self.nodes[node - 1]

    def post(
        self,
        sender: ClusterNode,
        to: NodeId,
        message: dcp.Message | Removal | LabelsWritten | RegisterPassed | SecretsPassed,
        beside: bytes = b"",
    ) -> None:
        """Something is said."""
        if frozenset({sender.node, to}) not in self.cut:
            self.wire.append(Parcel(sender.node, to, sender.epoch, message, beside))

    def reply(self, sender: ClusterNode, task: int, seq: int, result: dcp.Answer, beside: bytes) -> None:
        """An answer to a deputy."""
        home = sender.core.state.remote_tasks[TaskId(task)].home
        self.post(sender, home, dcp.PeerReply(seq, result), beside)

    def settle(self) -> None:
        """Deliver everything, and what follows from it."""
        for _ in range(100_000):
            if not self.wire:
                return
            parcel = self.wire.pop(self.select(len(self.wire)))
            if not self.drop(parcel) and frozenset({parcel.sender, parcel.to}) not in self.cut:
                self.by_id(parcel.to).take(parcel)
        raise AssertionError("the nodes do not stop talking")

    def advance(self, milliseconds: int, grain: int = 20) -> None:
        """Let time pass for all, in small pieces."""
        for _ in range(max(milliseconds // grain, 1)):
            self.now += grain * MS
            for node in self.nodes:
                node.now = self.now + node.drift
                node.step(events.TimerFired(node.now))
            self.settle()

    def part(self, node: ClusterNode, other: ClusterNode) -> None:
        """Cut the connection of two."""
        self.cut.add(frozenset({node.node, other.node}))
        for here, there in ((node, other), (other, node)):
            here.step(events.PeerDown(here.now, there.node, there.epoch, "cut"))

    def heal(self) -> None:
        """Connect all again."""
        pairs, self.cut = [sorted(pair) for pair in self.cut], set()
        for node_id, other in pairs:
            self.connect(self.by_id(node_id), self.by_id(other))
            self.connect(self.by_id(other), self.by_id(node_id))
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

    def snapshot(self) -> list[str]:
        """Everything that the nodes remember, but for the numbers of requests and when something is told."""
        return [line for node in self.nodes for line in snapshot(node.core.state, _BOOKS)]

    def start_spawned(self) -> list[Citizen]:
        """Let the processes of new tasks begin; each as a client."""
        citizens: list[Citizen] = []
        for node, task in self.spawned:
            welcome = node.answers[task, 0]
            assert isinstance(welcome, messages.Welcome)
            node.step(events.TaskStarted(node.now, task, 100))
            citizens.append(Citizen(node, task, welcome))
        self.spawned.clear()
        self.settle()
        return citizens

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
                for target in peer.proxies.values():
                    for reference in target.references.values():
                        back = there.cluster
                        assert back is not None
                        deputy = back.peer(node.node).remote_tasks.get(reference.task.id)
                        held = deputy is not None and reference.id in deputy.table
                        assert held or target.zombie, "a stand-in's reference is not over there"

    def session(self, node: ClusterNode, groups: tuple[bytes, ...] = ()) -> Citizen:
        """A person's session on a node."""
        return node.session(OWNER, tuple(Name(name) for name in groups))
