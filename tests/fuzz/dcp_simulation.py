"""Three connected cores, one of which sends forged messages: changed, invented, or repeated ones.

The messages are made in ``dcp``; bytes and connections are not simulated, only lengths. Sessions on every
node make calls in the meantime, so that there are references, requests and tasks to attack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from blake3 import blake3

from dios import limits
from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.model.invariants import check
from dios.core.remote.peers import Here
from dios.errors import Code, ProtocolError
from dios.ids import NodeId, PayloadId, TaskId
from dios.wire import dcp, messages
from dios.wire.codec import decode_message, encode_message
from dios.wire.types import Cause, Mode, ObjectType
from labs.sim.step_work import bounded
from tests.fuzz.dcp import Liar, Pools
from tests.support.core.harness import OWNER, Entropy
from tests.support.core.snapshot import snapshot

MS: Final = 1_000_000
SECRET: Final = blake3(b"fuzzed").digest()
TARGET, FRIEND, VILLAIN = NodeId(1), NodeId(2), NodeId(3)
KEPT: Final = 400
PUMPED: Final = 200
CHECKED: Final = 1


class Parcel(NamedTuple):
    """A message in flight, and the number of its attached bytes."""

    sender: NodeId
    to: NodeId
    message: dcp.Message
    attached: int


class Site:
    """One node: its core, and a session that makes calls."""

    def __init__(self, simulation: ForgerySimulation, node: NodeId) -> None:
        self.simulation: Final = simulation
        self.node: Final = node
        here = Here(node, 1, f"n{node}", "r1", f"10.0.0.{node}:7117", SECRET, 2)
        self.core: Final = Core(Entropy(node), OWNER, here=here)
        self.payload = 0
        self.seq = 1
        self.tasks = (node << 50) + 1
        self.refs: deque[messages.Reference] = deque(maxlen=40)
        self.buffers: deque[tuple[int, int]] = deque(maxlen=40)
        self.unheard: Final[dict[int, messages.AnyCall]] = {}
        self.step(events.SessionOpened(simulation.now, TaskId(self.tasks), 1, OWNER, (), "fuzz", 42))

    def connect(self, other: NodeId, epoch: int = 1) -> None:
        """Connect to another node."""
        address = f"10.0.0.{other}:7117"
        self.step(events.PeerUp(self.simulation.now, other, epoch, f"n{other}", "r1", address))

    def take(self, parcel: Parcel) -> None:
        """Receive a message; a message that the core refuses must not change anything."""
        self.payload += 2_000
        simulation, told = self.simulation, parcel
        event = events.Received(
            simulation.now, told.sender, 1, told.message, PayloadId(self.payload), told.attached
        )
        self.step(events.TimerFired(simulation.now))
        careful = simulation.checked and simulation.rng.random() < simulation.checked
        before = snapshot(self.core.state, _HEARD) if careful else []
        remembered = self.remembered() if careful else {}
        try:
            self.step(event)
        except ProtocolError:
            simulation.refused += 1
            check(self.core.state)
            if careful:
                after = snapshot(self.core.state, _HEARD)
                changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
                assert before == after, f"a refusal of {told.message} changed {changed[:4]}"
                kept = {key: given for key, given in remembered.items() if not self.settled(*key)}
                assert self.remembered() == kept, f"a refusal of {told.message} was remembered"
                simulation.compared += 1

    def remembered(self) -> dict[tuple[NodeId, int], object]:
        """Return the cached replies, by the requesting node and number."""
        cluster = self.core.state.cluster
        assert cluster is not None
        peers = cluster.peers.items()
        return {(node, number): given for node, peer in peers for number, given in peer.answers.items()}

    def settled(self, node: NodeId, number: int) -> bool:
        """Return True if a node has acknowledged an answer."""
        cluster = self.core.state.cluster
        assert cluster is not None
        return cluster.peers[node].settled.has(number)

    def step(self, event: events.Event) -> None:
        """Run one event of the core, and the actions of the host."""
        todo: list[events.Event] = [event]
        while todo:
            outcome = bounded(self.core, todo.pop(0))
            if outcome.persist:
                fails = self.simulation.rng.random() < 0.02
                failed = events.PersistFailed(
                    self.simulation.now, outcome.ticket, outcome.ticket, int(Code.ENOSPC), "full"
                )
                todo.append(failed if fails else events.Persisted(self.simulation.now, outcome.ticket))
            self._carry_out(outcome, todo)

    def _carry_out(self, outcome: Outcome, todo: list[events.Event]) -> None:
        simulation = self.simulation
        for effect in outcome.after:
            match effect:
                case effects.Send(node, message, source):
                    simulation.post(Parcel(self.node, node, message, 0 if source is None else source.length))
                case effects.Spawn(task):
                    todo.append(events.TaskStarted(simulation.now, task, 100))
                    simulation.running.append((self, task))
                case effects.Kill(task):
                    todo.append(events.TaskEnded(simulation.now, task, Cause.KILLED))
                case effects.BeginShutdown():
                    simulation.over = True
                case effects.HangUp(node):
                    simulation.over = simulation.over or node in simulation.seats
                case (
                    effects.Answer(task, seq)
                    | effects.AnswerRead(task, seq)
                    | effects.AnswerWrite(task, seq)
                    | effects.AnswerBytes(task, seq)
                    | effects.AnswerConsole(task, seq)
                    | effects.AnswerReceived(task, seq)
                    | effects.AnswerAttach(task, seq)
                    | effects.AnswerVector(task, seq)
                ):
                    parts = effect.parts if isinstance(effect, effects.AnswerVector) else (effect,)
                    results = tuple(part.result for part in parts)
                    self._answered(task, seq, results, vector=isinstance(effect, effects.AnswerVector))
                case _:
                    pass

    def _answered(
        self, task: TaskId, seq: int, results: tuple[messages.AnyResult, ...], *, vector: bool
    ) -> None:
        deputy = self.core.state.remote_tasks.get(task)
        if deputy is not None:
            whole = messages.Results(results) if vector else results[0]  # type: ignore[arg-type] # parts are plain
            beside = sum(
                part.size for part in results if isinstance(part, messages.Buffer) and part.data is None
            )
            assert not isinstance(whole, messages.Welcome)
            self.simulation.post(Parcel(self.node, deputy.home, dcp.PeerReply(seq, whole), beside))
            return
        call = self.unheard.pop(seq, None) if task == self.tasks else None
        for part in results:
            self._learn(part, call)

    def _learn(self, result: messages.AnyResult, call: messages.AnyCall | None) -> None:
        match result:
            case messages.Welcome(self_ref=own, groups=groups):
                self.simulation.pools.add("task", own.object)
                if self.tasks == own.object:
                    self.refs.extend((own, *groups))
            case messages.Created(name, reference):
                self.refs.append(reference)
                if name is not None:
                    self.simulation.names.append(name)
            case messages.References(references):
                self.refs.extend(references)
            case messages.Buffer(buffer) if buffer:
                ref = getattr(call, "ref", 0)
                self.buffers.append((ref, buffer))
            case _:
                pass

    # -- honest calls -----------------------------------------------------------------------------------
    def live(self) -> None:
        """Let the session make one call, mostly a valid one."""
        call = self._call()
        self.seq += 1
        self.payload += 2_000
        self.unheard[self.seq] = call
        task = self.core.state.tasks.get(TaskId(self.tasks))
        if task is not None and task.alive:
            self.step(events.Called(self.simulation.now, task.id, self.seq, call, PayloadId(self.payload)))
        else:
            self.simulation.over = True

    def _call(self) -> messages.AnyCall:
        rng, simulation = self.simulation.rng, self.simulation
        ref = rng.choice(self.refs).ref
        group = next((reference.ref for reference in self.refs if reference.type is ObjectType.GROUP), 0)
        task = rng.choice(
            [reference.ref for reference in self.refs if reference.type is ObjectType.TASK] or [ref]
        )
        host = rng.choice(("", "n1", "n2", "n3"))
        bref, buffer = rng.choice(self.buffers or [(ref, 1)])
        name = rng.choice(simulation.names or [bytes(32)])
        kind = rng.choice((ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.SHMEM_STREAM))
        makers: tuple[Callable[[], messages.AnyCall], ...] = (
            lambda: messages.Create(kind, (group,), host=host),
            lambda: messages.Create(ObjectType.SHMEM_BLOB, (group,), host=host, data=b"print()"),
            lambda: messages.Create(ObjectType.GROUP, (group,)),
            lambda: messages.Lookup(name, group),
            lambda: messages.Lookup(name, group, rng.choice((1, 5))),
            lambda: messages.Copy(ref, task, 63, host=host),
            lambda: messages.Copy(ref, task, 63),
            lambda: messages.Run(
                ref, host=host, flags=rng.choice((0, 1)), inputs=(messages.Handed(task, 63),)
            ),
            lambda: messages.Run(ref, host=host),
            lambda: messages.AcquireRead(ref),
            lambda: messages.AcquireWrite(ref, size=10),
            lambda: messages.CommitWrite(bref, buffer),
            lambda: messages.ReleaseRead(bref, buffer),
            lambda: messages.ReadOnce(ref),
            lambda: messages.WriteOnce(ref, b"some"),
            lambda: messages.Attach(ref, rng.choice(list(Mode))),
            lambda: messages.Select((ref, task), timeout_ns=rng.choice((0, None, 10 * MS))),
            lambda: messages.Stat(ref),
            lambda: messages.Delete(ref),
            lambda: messages.Retire(ref),
            lambda: messages.Describe(task),
            messages.ListTasks,
            lambda: messages.Vector(
                (messages.ReadOnce(ref), messages.WriteOnce(task, b"x"), messages.Stat(ref))
            ),
        )
        return rng.choice(makers)()


_HEARD: Final = frozenset({
    "answers", "cut_off", "heard_ns", "membership", "placement", "reported", "seen_ns", "settled", "then",
    "working_at",
})  # fmt: skip
"""That somebody was heard, which answers it has, and when it is told of those that wait, is noted of whatever
is said; answers are compared by themselves. What goes on with an answer is no data."""


class ForgerySimulation:
    """The three nodes. ``checked`` is the share of messages before which the state is recorded."""

    def __init__(self, rng: Random, *, checked: float, lies: float = 0.7) -> None:
        self.rng: Final = rng
        self.checked: Final = checked
        self.lies: Final = lies
        self.refused = 0
        self.compared = 0
        self.lied = 0
        self.kinds: Final[set[str]] = set()
        self.worlds = 0
        self._begin()

    def _begin(self) -> None:
        self.worlds += 1
        self.now = 1_000 * MS
        self.over = False
        self.pools = Pools()
        self.pools.add("node", TARGET, FRIEND, VILLAIN, 77)
        self.liar = Liar(self.rng, self.pools)
        self.names: deque[bytes] = deque(maxlen=30)
        self.wire: deque[Parcel] = deque()
        self.said: deque[dcp.Message] = deque(maxlen=KEPT)
        self.running: deque[tuple[Site, TaskId]] = deque()
        self.seats: tuple[NodeId, ...] = (TARGET, FRIEND, VILLAIN)
        self.sites = {node: Site(self, node) for node in self.seats}
        for site in self.sites.values():
            for other in self.sites:
                if other != site.node:
                    site.connect(other)
        self.pump()
        self.over = False

    @property
    def target(self) -> Site:
        """Return the node under attack."""
        return self.sites[TARGET]

    def post(self, parcel: Parcel) -> None:
        """Post a message; those of the attacker are stored, to be changed later."""
        message = parcel.message
        if parcel.sender == VILLAIN and parcel.to == TARGET:
            self.said.append(message)
            if isinstance(message, dcp.Ask):
                self.pools.add("number", message.number)
        if parcel.to == VILLAIN and parcel.sender == TARGET and isinstance(message, dcp.Ask):
            self.pools.add("asked", message.number)
        self.wire.append(parcel)

    def pump(self) -> None:
        """Deliver messages in flight; those of the attacker may be changed, repeated or dropped."""
        for _ in range(PUMPED):
            if not self.wire:
                return
            parcel = self.wire.popleft()
            if parcel.to not in self.sites:
                continue
            if parcel.sender == VILLAIN and parcel.to == TARGET and self.rng.random() < self.lies / 4:
                self.lie(self.liar.bent(parcel.message), parcel.attached)
                continue
            self.sites[parcel.to].take(
                parcel._replace(message=decode_message(encode_message(parcel.message)))
            )

    def lie(self, message: dcp.Message, attached: int | None = None) -> None:
        """Send a forged message."""
        self.lied += 1
        told = message.body if isinstance(message, dcp.Ask) else message
        self.kinds.add(type(told.result if isinstance(told, dcp.PeerReply) else told).__name__)
        if attached is None:
            body = message.body if isinstance(message, dcp.Ask) else None
            size = body.size if isinstance(body, dcp.CreateReplica | dcp.KeepOutput) else 0
            attached = (
                size if 0 <= size < 2**40 and self.rng.random() < 0.9 else self.rng.choice((0, 0, 1, 100))
            )
        self.target.take(Parcel(VILLAIN, TARGET, message, attached))

    def move(self) -> None:
        """Run one random action."""
        rng = self.rng
        dice = rng.random()
        if dice < self.lies:
            self._look()
            for _ in range(rng.randrange(1, 18)):
                self.lie(self._word())
        elif dice < 0.97:
            rng.choice(list(self.sites.values())).live()
        elif dice < 0.985 and self.running:
            site, task = self.running.popleft()
            site.step(events.TaskEnded(self.now, task, Cause.EXITED))
        else:
            self._pass(rng.choice((1, 20, 300, 3_000, 30_000)))
        self.pump()
        self.settled()
        if self.over:
            check(self.target.core.state)
            self._begin()

    def _word(self) -> dcp.Message:
        rng, said = self.rng, self.rng.random()
        if self.said and said < 0.35:
            return self.liar.bent(rng.choice(self.said))
        if self.said and said < 0.4:
            return rng.choice(self.said)
        return self.liar.valid_message()

    def settled(self) -> None:
        """Check that no call waits for an answer that was not requested, and that tables are in bounds."""
        state = self.target.core.state
        cluster = state.cluster
        assert cluster is not None
        for row in state.pending:
            asked = [node for node, number in row.requests if number in cluster.peers[node].asked]
            assert asked or not row.requests or row.watched or row.limit is not None, (
                f"{row.call} waits forever"
            )
        assert len(cluster.peers) <= limits.PEERS_MAX + limits.NODES_MAX
        assert len(state.principals) <= limits.PRINCIPALS_MAX
        for peer in cluster.peers.values():
            assert len(peer.answers) <= 2 * limits.DCP_REQUESTS_MAX
            assert len(peer.remote_tasks) <= limits.REMOTE_TASKS_PER_NODE_MAX
            for target in peer.proxies.values():
                assert target.references or target.pinned, "a proxy object without references"

    def _pass(self, milliseconds: int) -> None:
        """Advance the time in steps, so that no living node is declared dead."""
        for _ in range(max(1, milliseconds // 100)):
            self.now += min(milliseconds, 100) * MS
            for site in self.sites.values():
                site.step(events.TimerFired(self.now))
            self.pump()

    def _look(self) -> None:
        """Give the attacker all ids of its victims: ids are not secret in this test."""
        pools, rng = self.pools, self.rng
        for site in (self.target, self.sites[FRIEND]):
            state = site.core.state
            everybody = list(state.everybody())
            pools.add("task", *(task.id for task in rng.sample(everybody, min(8, len(everybody)))))
            object_ids = list(state.objects)
            pools.add("object", *rng.sample(object_ids, min(20, len(object_ids))))
            pools.add("internal", *[key for key, _ in state.names.items()][-20:])
            pools.add("name", *list(state.groups)[-20:])
            for task in rng.sample(everybody, min(6, len(everybody))):
                pools.add("ref", *(entry.id for entry in list(task.table)[-20:]))
                pools.add("buffer", *list(task.buffers)[-5:], *list(task.remote_buffers)[-5:])
                pools.add("number", *list(task.pending)[-5:])
            if state.cluster is not None:
                for peer in state.cluster.peers.values():
                    pools.add("object", *list(peer.proxies)[-10:])
                    pools.add("number", *list(peer.asked)[-10:])
