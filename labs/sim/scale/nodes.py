"""A large cluster of whole cores in virtual time, and the messages, bytes and steps of its nodes.

Every node is the real core with the simulated host of ``labs.sim.cluster``, without checks after each step.
Messages are counted with their encoded size and delivered as they are. Connections exist while they are used.
The disk is fast, and processes are callbacks: see ``ScaleWorld.task_ns``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from time import perf_counter_ns
from typing import Final

from blake3 import blake3
from msgspec import Struct, field

from dios import limits
from dios.core import effects, events
from dios.core.membership.live_view import LiveView
from dios.core.remote.peers import Cluster, Here
from dios.errors import InvariantError
from dios.ids import NodeId, ObjectId, TaskId
from dios.wire import dcp, messages
from dios.wire.codec import encode_message
from dios.wire.types import Cause
from labs.sim.cluster.host import ClusterHost
from labs.sim.event_queue import MS, US, EventQueue, S
from labs.sim.memory_store import MemoryStore
from labs.sim.node.host import NODE_OWNER

DELAY_NS: Final = (200 * US, 5 * MS)
DIAL_NS: Final = (3 * MS, 15 * MS)
BROKEN_NS: Final = (100 * MS, S)
SYNC_NS: Final = MS
START_NS: Final = 5 * MS
RETRY_NS: Final = S
CALL_NS: Final = 20 * US
CPUS: Final = 8
SLOTS: Final = 16
MEMORY_BYTES: Final = 2**34
_SECRET: Final = blake3(b"the secret of a simulated cluster").digest()

Then = Callable[[messages.AnyResult], None]


class Costs(Struct):
    """The work of the nodes of a cluster in some time."""

    messages: int = 0
    bytes: int = 0
    steps: int = 0
    dials: int = 0
    step_ns: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    handled: Counter[NodeId] = field(default_factory=Counter)
    """The number of messages that each node received."""


class Session:
    """A client of one node; ``welcome`` is None until its session is open."""

    def __init__(self, world: ScaleWorld, machine: ScaleMachine, task: TaskId) -> None:
        self._world: Final = world
        self.machine: Final = machine
        self.task: Final = task
        self.welcome: messages.Welcome | None = None
        self._seq = 1
        self._open: Final[dict[int, Then]] = {}

    def call(self, call: messages.AnyCall, then: Then) -> int:
        """Make a call, and have its answer given to ``then``; return its number."""
        self._seq += 1
        self._open[self._seq] = then
        host = self.machine.host
        self._world.after(CALL_NS, partial(self._called, host, self._seq, call))
        return self._seq

    def cancel(self, seq: int) -> None:
        """Cancel a call, whose answer is ignored."""
        if self._open.pop(seq, None) is not None:
            self.call(messages.Cancel(seq), lambda _: None)

    def _called(self, host: ClusterHost | None, seq: int, call: messages.AnyCall) -> None:
        if host is not None and self.machine.host is host:
            self.machine.post(lambda live_host: live_host.call(self.task, seq, call))

    def answered(self, seq: int, result: messages.AnyResult) -> None:
        """Pass an answer on."""
        then = self._open.pop(seq, None)
        if isinstance(result, messages.Welcome):
            self.welcome = result
        if then is not None:
            then(result)


class _Connection(Struct, eq=False):
    """A connection of two nodes; ``used_ns`` is the time of the last message."""

    ends: tuple[NodeId, NodeId]
    used_ns: int
    open: bool = True
    last: dict[NodeId, int] = field(default_factory=dict)


class _CountedHost(ClusterHost):
    """A host whose steps are counted."""

    world: ScaleWorld

    def _step(self, event: events.Event) -> None:
        began = perf_counter_ns()
        outcome = self.core.step(event)
        costs = self.world.costs
        costs.step_ns += perf_counter_ns() - began
        costs.steps += 1
        self._carry_out(outcome)

    def _show(self, effect: effects.Effect, step: int) -> None:
        """Show nothing, because no task reads its public page here."""


class ScaleMachine:
    """A machine with the process on it, if there is one."""

    def __init__(self, world: ScaleWorld, node: NodeId, place: int, rack: str) -> None:
        self._world: Final = world
        self.node: Final = node
        self.name: Final = f"n{place}"
        self.rack: Final = rack
        self.address: Final = f"10.{place // 62_500}.{place // 250 % 250}.{place % 250}:7117"
        self._store: Final = MemoryStore()
        self.host: _CountedHost | None = None
        self.life = 0
        self.connections: Final[dict[NodeId, _Connection]] = {}
        self.kept: Final[set[NodeId]] = set()
        self.dialling: Final[dict[NodeId, list[dcp.Message]]] = {}
        self.sessions: Final[dict[TaskId, Session]] = {}
        self.running: Final[set[TaskId]] = set()
        self._wake = 0
        self._offset: Final = world.rng.randrange(10**15)

    def clock(self) -> int:
        """Return the node's own time in nanoseconds."""
        return self._world.now + self._offset

    @property
    def cluster(self) -> Cluster:
        """The cluster as the node knows it."""
        assert self.host is not None  # noqa: S101 - the caller asks for running nodes only
        return _cluster(self.host)

    @property
    def view(self) -> LiveView:
        """The living nodes as the node knows them."""
        return self.cluster.membership.view

    # -- life -----------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the node with its store."""
        self.life += 1
        self._wake = 0
        here = Here(
            self.node, self.life, self.name, self.rack, self.address, _SECRET, CPUS, MEMORY_BYTES,
            slots=SLOTS, coordinator=True,
        )  # fmt: skip
        _CountedHost.world = self._world
        rng = Random(f"{self._world.seed} {self.node} {self.life}")  # noqa: S311 - a simulation repeats itself
        self.host = _CountedHost(
            rng, self._store, self, blake3(), now=self.clock(), read=lambda _: b"", here=here, checked=False
        )
        self.post(lambda host: host.step(events.LoadMeasured(host.now, MEMORY_BYTES)))

    def stop(self) -> None:
        """Cut the power."""
        self.host = None
        self.dialling.clear()
        self.kept.clear()
        self.sessions.clear()
        self.running.clear()

    def post(self, action: Callable[[ClusterHost], None]) -> None:
        """Run an action at the node now, or never if it is down."""
        host = self.host
        if host is None:
            return
        host.now = self.clock()
        action(host)
        if self.host is not host:
            return
        if not host.settled:
            self._world.after(SYNC_NS, partial(self._sync, host))
        deadline = host.deadline
        if deadline is not None:
            when = max(self._world.now, deadline - self._offset + US)
            if not self._wake or when < self._wake:
                self._wake = when
                self._world.at(when, partial(self._deadline_reached, host, when))

    def _sync(self, host: ClusterHost) -> None:
        if self.host is host and not host.settled:
            self.post(lambda live_host: live_host.sync(limits.STEP_UNITS))

    def _deadline_reached(self, host: ClusterHost, when: int) -> None:
        if self.host is host and self._wake == when:
            self._wake = 0
            self.post(lambda live_host: live_host.advance(0))

    # -- outputs of its host (HostOutputs) --------------------------------------------------------------
    def answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """Answer a session; processes of this simulation make no calls."""
        del data
        session = self.sessions.get(task)
        if session is not None:
            session.answered(seq, result)

    def send(self, to: NodeId, message: dcp.Message, attached: bytes) -> None:
        """Send a message to another node."""
        self._world.send(self, to, message, attached)

    def contact(self, to: NodeId, *, on_demand: bool) -> None:
        """Keep a connection to another node, or make one when gossip is sent to it."""
        if on_demand:
            self.kept.discard(to)
        elif to not in self.kept:
            self.kept.add(to)
            self._world.keep(self, self.host, to)

    def hang_up(self, to: NodeId) -> None:
        """Close the connection to another node."""
        self.kept.discard(to)
        self._world.break_connection(self.node, to)

    def end_connection(self, to: NodeId) -> None:
        """End the connection to another node, which is then made again."""
        self._world.break_connection(self.node, to)

    def spawn(self, effect: effects.Spawn) -> None:
        """Start a process, which ends after a while."""
        self.running.add(effect.task)
        host = self.host
        self._world.after(START_NS, partial(self._spawned, host, effect.task))

    def _spawned(self, host: ClusterHost | None, task: TaskId) -> None:
        if self.host is host and task in self.running:
            self._world.started += 1
            self.post(lambda live_host: live_host.step(events.TaskStarted(live_host.now, task, 0)))
            span = self._world.rng.randint(*self._world.task_ns)
            self._world.after(span, partial(self._ended, host, task, Cause.EXITED))

    def _ended(self, host: ClusterHost | None, task: TaskId, cause: Cause) -> None:
        if self.host is host and task in self.running:
            self.running.discard(task)
            self.post(lambda live_host: live_host.step(events.TaskEnded(live_host.now, task, cause)))

    def control(
        self, effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection
    ) -> None:
        """Kill a process, or close a session."""
        if isinstance(effect, effects.Kill):
            self._world.after(MS, partial(self._ended, self.host, effect.task, Cause.SIGNAL))
        elif isinstance(effect, effects.CloseConnection):
            self.sessions.pop(effect.task, None)

    def stored(self, target: ObjectId, value: bytes) -> None:
        """Ignore the new content of an object, which no check needs here."""


class ScaleWorld(EventQueue):
    """``size`` nodes in racks of ``rack_size``; none of them runs yet.

    ``task_ns`` is the shortest and the longest time that a process runs; ``started`` counts processes.
    """

    def __init__(self, size: int, seed: int, *, rack_size: int = 40) -> None:
        super().__init__()
        self.seed: Final = seed
        self.rng: Final = Random(f"scale {size} {seed}")  # noqa: S311 - a simulation repeats itself
        self.costs = Costs()
        self.task_ns = (S // 2, 3 * S // 2)
        self.started = 0
        self._next_task = 1
        self.cut: Final[dict[NodeId, int]] = {}
        self.machines: Final[dict[NodeId, ScaleMachine]] = {}
        ids = sorted(self.rng.sample(range(1, 2**62), size))
        for place, number in enumerate(ids):
            node = NodeId(number)
            self.machines[node] = ScaleMachine(self, node, place, f"r{place // rack_size}")
        self.ids: Final = list(self.machines)

    # -- what happens to nodes ------------------------------------------------------------------------
    def start(self, node: NodeId, seeds: Iterable[NodeId]) -> None:
        """Start a node, which dials its seeds until it knows another one."""
        machine = self.machines[node]
        machine.start()
        self._seek(machine, machine.host, tuple(seeds))
        self.after(
            self.rng.randrange(limits.LOAD_PERIOD_MS * MS), partial(self._measure, machine, machine.host)
        )

    def start_all(self, within_ns: int) -> None:
        """Start every node at a random moment; each dials three of the first five."""
        for node in self.ids:
            seeds = self.rng.sample(self.ids[:5], min(3, len(self.ids)))
            wait = self.rng.randrange(within_ns)
            self.after(wait, partial(self.start, node, [seed for seed in seeds if seed != node]))

    def kill(self, nodes: Iterable[NodeId]) -> None:
        """Cut the power of nodes: their peers see a broken connection after a while, and no refusal."""
        for node in nodes:
            machine = self.machines[node]
            machine.stop()
            for other in list(machine.connections):
                self.break_connection(node, other)

    def part(self, nodes: Iterable[NodeId], side: int) -> None:
        """Put nodes on a side of a partition; a node reaches those of its own side only."""
        self.cut.update(dict.fromkeys(nodes, side))
        for node in self.ids:
            for other in list(self.machines[node].connections):
                if not self.reaches(node, other):
                    self.break_connection(node, other)

    def heal(self) -> None:
        """End the partition."""
        self.cut.clear()

    def reaches(self, first: NodeId, other: NodeId) -> bool:
        """Return True if two nodes are on one side."""
        return self.cut.get(first, 0) == self.cut.get(other, 0)

    def open_session(self, node: NodeId, then: Then) -> Session:
        """Open a session of the nodes' own user; ``then`` gets the Welcome."""
        machine = self.machines[node]
        task = TaskId(self._next_task)
        self._next_task += 1
        session = machine.sessions[task] = Session(self, machine, task)
        session._open[1] = then  # noqa: SLF001 - the answer to its first message
        machine.post(
            lambda host: host.step(events.SessionOpened(host.now, task, 1, NODE_OWNER, (), "session", 42))
        )
        return session

    # -- the truth ------------------------------------------------------------------------------------
    def running(self) -> list[NodeId]:
        """Return the nodes with a process."""
        return [node for node, machine in self.machines.items() if machine.host is not None]

    def wrong(self) -> int:
        """Return the number of running nodes whose live view is not true for their side."""
        sides: dict[int, list[tuple[NodeId, int]]] = {}
        for node in self.running():
            sides.setdefault(self.cut.get(node, 0), []).append((node, self.machines[node].life))
        truth = {side: tuple(sorted(members)) for side, members in sides.items()}
        return sum(
            tuple(zip(view.nodes, view.epochs, strict=True)) != truth[self.cut.get(node, 0)]
            for node in self.running()
            for view in (self.machines[node].view,)
        )

    def connection_counts(self) -> list[int]:
        """Return the number of open connections of each running node, the smallest first."""
        return sorted(len(self.machines[node].connections) for node in self.running())

    # -- the machinery --------------------------------------------------------------------------------
    def _measure(self, machine: ScaleMachine, host: ClusterHost | None) -> None:
        """Let a node measure its load: its free memory moves a little all the time."""
        if host is not None and machine.host is host:
            free = MEMORY_BYTES - self.rng.randrange(2**20)
            machine.post(lambda live_host: live_host.step(events.LoadMeasured(live_host.now, free)))
            self.after(limits.LOAD_PERIOD_MS * MS, partial(self._measure, machine, host))

    def _seek(self, machine: ScaleMachine, host: ClusterHost | None, seeds: tuple[NodeId, ...]) -> None:
        if host is not None and machine.host is host and len(machine.view.nodes) < 2:
            for seed in seeds:
                self._dial(machine, seed, None)
            self.after(RETRY_NS, partial(self._seek, machine, host, seeds))

    def keep(self, machine: ScaleMachine, host: ClusterHost | None, to: NodeId) -> None:
        """Connect with a node again and again while the machine keeps the connection."""
        if host is not None and machine.host is host and to in machine.kept:
            if to not in machine.connections:
                self._dial(machine, to, None)
            self.after(RETRY_NS, partial(self.keep, machine, host, to))

    def _dial(self, machine: ScaleMachine, to: NodeId, message: dcp.Message | None) -> None:
        waiting = machine.dialling.get(to)
        if waiting is None:
            waiting = machine.dialling[to] = []
            self.costs.dials += 1
            self.after(
                self.rng.randrange(*DIAL_NS), partial(self._dialled, machine, machine.host, to, waiting)
            )
        if message is not None and len(waiting) < limits.PEER_WAITING_GOSSIP_MAX:
            waiting.append(message)

    def _dialled(
        self, machine: ScaleMachine, host: ClusterHost | None, to: NodeId, waiting: list[dcp.Message]
    ) -> None:
        two = self.machines[to]
        if machine.dialling.get(to) is waiting:
            del machine.dialling[to]
        if (
            machine.host is None
            or machine.host is not host
            or two.host is None
            or not self.reaches(machine.node, to)
        ):
            return
        if to not in machine.connections:
            link = _Connection((machine.node, to), self.now)
            machine.connections[to] = two.connections[machine.node] = link
            self.after(limits.PEER_IDLE_MS * MS, partial(self._rest, link))
            self._up(machine, two)
            self._up(two, machine)
        for message in waiting:
            self.send(machine, to, message, b"")

    @staticmethod
    def _up(at: ScaleMachine, peer: ScaleMachine) -> None:
        at.post(
            lambda host: host.step(
                events.PeerUp(host.now, peer.node, peer.life, peer.name, peer.rack, peer.address)
            )
        )

    def _rest(self, link: _Connection) -> None:
        """End a connection that was not used, unless a node keeps it."""
        first, two = (self.machines[node] for node in link.ends)
        if not link.open:
            return
        idle_at = link.used_ns + limits.PEER_IDLE_MS * MS
        if idle_at > self.now or two.node in first.kept or first.node in two.kept:
            self.at(max(idle_at, self.now + limits.PEER_IDLE_MS * MS // 4), partial(self._rest, link))
            return
        link.open = False
        for at, peer in ((first, two), (two, first)):
            at.connections.pop(peer.node, None)
            self._down(at, at.host, peer.node, peer.life, idle=True)

    def break_connection(self, first: NodeId, other: NodeId) -> None:
        """Break the connection of two nodes; each notices at its own time."""
        link = self.machines[first].connections.pop(other, None)
        self.machines[other].connections.pop(first, None)
        if link is not None and link.open:
            link.open = False
            for node, gone in ((first, other), (other, first)):
                machine, life = self.machines[node], self.machines[gone].life
                wait = self.rng.randrange(*BROKEN_NS)
                self.after(wait, partial(self._down, machine, machine.host, gone, life, idle=False))

    @staticmethod
    def _down(
        machine: ScaleMachine, host: ClusterHost | None, gone: NodeId, life: int, *, idle: bool
    ) -> None:
        if host is not None and machine.host is host and gone not in machine.connections:
            machine.post(
                lambda live_host: live_host.step(
                    events.PeerDown(live_host.now, gone, life, "it is gone", idle=idle)
                )
            )

    def send(self, machine: ScaleMachine, to: NodeId, message: dcp.Message, attached: bytes) -> None:
        """Send a message; without a connection only gossip makes one, and all else is lost."""
        link = machine.connections.get(to)
        if link is None:
            if isinstance(message, dcp.Gossip) and to in self.machines:
                self._dial(machine, to, message)
            return
        link.used_ns = self.now
        self.costs.messages += 1
        self.costs.bytes += len(encode_message(message)) + len(attached)
        self.costs.kinds[_kind(message)] += 1
        self.costs.handled[to] += 1
        when = link.last[to] = max(link.last.get(to, 0) + 1, self.now + self.rng.randrange(*DELAY_NS))
        self.at(when, partial(self._arrive, link, machine.node, to, machine.life, message, attached))

    def _arrive(
        self, link: _Connection, sender: NodeId, to: NodeId, life: int, message: dcp.Message, attached: bytes
    ) -> None:
        if link.open and self.reaches(sender, to):
            self.machines[to].post(lambda host: host.receive(sender, life, message, attached))


def _cluster(host: ClusterHost) -> Cluster:
    cluster = host.core.state.cluster
    if cluster is None:
        raise InvariantError("a node has no cluster")
    return cluster


def _kind(message: dcp.Message) -> str:
    if isinstance(message, dcp.Ask):
        body = message.body
        return f"Forward {type(body.call).__name__}" if isinstance(body, dcp.Forward) else type(body).__name__
    if isinstance(message, dcp.PeerReply):
        return f"reply {type(message.result).__name__}"
    return type(message).__name__


def require(result: messages.AnyResult, subject: str) -> messages.AnyResult:
    """Return an answer that is no Failure; raise InvariantError otherwise."""
    if isinstance(result, messages.Failure):
        raise InvariantError(f"{subject} failed: {result.message}")
    return result
