"""Whole clusters in virtual time: nodes, their clients, and a seeded fault injector.

The same seed gives the same run under every PYTHONHASHSEED, so a failing seed is a test. One node and its
disk are simulated by ``labs.sim.node.world``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from blake3 import blake3
from msgspec import Struct

from dios import limits
from dios.core import effects, events
from dios.core.model.secrecy import is_owned
from dios.errors import Code, DiosError, InvariantError
from dios.ids import BufferId, Name, NodeId, ObjectId, Principal, TaskId
from dios.wire import dcp, messages
from dios.wire.types import Cause, NameKind, ObjectType
from labs.sim.cluster import agreement
from labs.sim.cluster.client_actions import CooperatingClient
from labs.sim.cluster.fault_injector import FaultInjector
from labs.sim.cluster.flow_ledger import FlowLedger
from labs.sim.cluster.host import ClusterHost
from labs.sim.cluster.labelled_client import LabelledClient
from labs.sim.cluster.machine import SimMachine
from labs.sim.cluster.network import DeliveryPolicy, SimNetwork
from labs.sim.cluster.promises import Key, PromiseLedger
from labs.sim.cluster.repeated_reads import RepeatedReads
from labs.sim.cluster.simulated_client import SimulatedClient
from labs.sim.cluster.slowness import SlowNode, SlowServer, random_slowness
from labs.sim.event_queue import MS, US, EventQueue, S
from labs.sim.node.checker import BrokenPromiseError
from labs.sim.node.host import NODE_OWNER

STRANGER: Final = Principal("uid:1001")
SESSIONS_EACH: Final = 3
LOOKUPS_OF_NEW_NAME: Final = 3
MOMENT_NS: Final = (1 * MS, 40 * MS)
LOOKUP_NS: Final = (1 * MS, 20 * MS)
CALL_NS: Final = 20 * US  # from a client to its node
SPAN_NS: Final = 14 * S
LOOKUPS_SPAN_NS: Final = 5 * S
INDEXED_NODES: Final = 7
QUIET_NS: Final = 46 * S  # two rounds of reference reconciliation, and the grace period of the dead
WORK_OFF_S: Final = 300  # until slow nodes have answered everything
ENDED_NS: Final = 24 * S  # all clients are gone, and one more round of reconciliation


class ClusterReport(Struct, frozen=True):
    """The result of one seed; ``digest`` covers every event and outcome on every node."""

    seed: int
    nodes: int
    lossy: bool
    steps: int
    calls: int
    refusals: dict[int, int]
    faults: dict[str, int]
    network: dict[str, int]
    digest: str


class FlowReport(Struct, frozen=True):
    """The result of one seed with labels.

    ``learned`` counts the answers with a secret; ``confined`` the writes with a secret to objects with its
    label, and ``released`` those to others, which a right to declassify permitted.
    """

    cluster: ClusterReport
    learned: int
    confined: int
    released: int


class ClusterWorld:
    """Some nodes and their clients. ``policy`` is the delivery policy; by default the seed chooses it.

    With ``slow``, nodes and links are slow and nothing else is wrong: then every call ends well. ``size`` is
    the number of nodes, which the seed chooses if it is 0. In a cluster of a given size, clients look up each
    new name at once, and old ones again and again. With ``labels``, most objects have secrecy labels.
    """

    def __init__(
        self,
        seed: int,
        *,
        policy: DeliveryPolicy | None = None,
        slow: bool = False,
        size: int = 0,
        labels: bool = False,
    ) -> None:
        self.slow: Final = slow
        self._seed: Final = seed
        self.rng: Final = _random(f"cluster {seed}")
        self.queue: Final = EventQueue()
        self.promises: Final = PromiseLedger()
        self.flows: Final = FlowLedger(self.promises)
        self._has_labels: Final = labels
        self.clients: Final[dict[TaskId, CooperatingClient]] = {}
        self._trace: Final = blake3()
        self._next_task = 1
        self._next_label = 1
        self._starting: Final[dict[TaskId, tuple[SimMachine, effects.Spawn, messages.Welcome | None]]] = {}
        self._ended: Final[set[TaskId]] = set()
        self._keyring: Final[list[Name]] = []
        self._names: Final[dict[bytes, None]] = {}
        self._member_of: Final[dict[TaskId, set[str]]] = {}
        self.acting = False
        self.calls = 0
        self.refusals: Final[Counter[int]] = Counter()
        chosen_size = self.rng.choice((2, 3, 3, 3, 3, 4, 5))
        self.is_large: Final = size > 0
        self.machines: Final = {
            node: SimMachine(
                node,
                self.rng.choice(("r1", "r2")),
                self.queue,
                _random(f"{seed} node {node}"),
                self,
                self._trace,
            )
            for node in map(NodeId, range(1, (size or chosen_size) + 1))
        }
        network_rng = _random(f"network {seed}")
        chosen = DeliveryPolicy(late=0.0) if slow else _random_policy(network_rng)
        self.network: Final = SimNetwork(self.queue, network_rng, policy or chosen, self)
        self.injector: Final = FaultInjector(
            self.queue, _random(f"mischief {seed}"), self.machines, self.network, self
        )
        for machine in self.machines.values():
            machine.network = self.network
            for other in self.machines:
                if other != machine.node:
                    self.network.request_connection(machine.node, other)
                if other > machine.node:
                    self.network.start_dialing(machine.node, other)

        self.repeated_reads: Final = RepeatedReads(self, _random(f"repeated reads {seed}"))
        if slow:
            self._make_slow(_random(f"slow {seed}"))

    def _make_slow(self, rng: Random) -> None:
        """Make most nodes and all links slow."""
        for node, machine in self.machines.items():
            slowness = random_slowness(rng)
            if node == 1 or rng.random() < 0.7:
                machine.slow = SlowNode(slowness, self.queue, rng)
            for other in self.machines:
                if other != node:
                    self.network.slow_links[node, other] = SlowServer(self.queue, rng), slowness

    # -- the run --------------------------------------------------------------------------------------
    def run(self, span_ns: int = SPAN_NS, quiet_ns: int = QUIET_NS) -> ClusterReport:
        """Inject faults for some time, heal the cluster, and check every promise after a time of quiet."""
        try:
            self._run(span_ns, quiet_ns)
        except (BrokenPromiseError, InvariantError) as error:
            raise BrokenPromiseError(f"seed {self._seed}, at {self.queue.now / S:.3f} s: {error}") from error
        except DiosError as error:
            raise BrokenPromiseError(
                f"seed {self._seed}, at {self.queue.now / S:.3f} s, a step raised {error!r}"
            ) from error
        return ClusterReport(
            self._seed,
            len(self.machines),
            not self.network.policy.ordered,
            sum(self.injector.steps.values()) + sum(host.steps for host in self.hosts()),
            self.calls,
            dict(sorted(self.refusals.items())),
            dict(sorted(self.injector.counts.items())),
            dict(sorted(self.network.counts.items())),
            self._trace.hexdigest(),
        )

    def run_lookups(self, span_ns: int) -> int:
        """Inject faults for some time; return the number of objects that lookups had to find.

        Nodes restart often. Nothing is checked after the faults.
        """
        self.queue.after(3 * S, self.injector.restart_often)
        self._run_faults(span_ns)
        return self.promises.lookups[True]

    def _run_faults(self, span_ns: int) -> None:
        for machine in self.machines.values():
            machine.start()
        self.queue.run(2 * S)
        self._check_periodically()
        self._begin_acting()
        if not self.slow:
            self.injector.begin(self.queue.now + span_ns)
        self.queue.run(span_ns)
        self.acting = self.network.rests = False

    def _run(self, span_ns: int, quiet_ns: int) -> None:
        self._run_faults(span_ns)
        if self.slow:
            self._work_off()
        else:
            self.injector.heal()
        self.queue.run(quiet_ns)
        self._check_overdue()
        agreement.check_agreement(self)
        agreement.probe(self)
        self._end_tasks()
        self.queue.run(ENDED_NS // 2)
        agreement.check_children(self)
        for machine in self.machines.values():
            for client in self.clients_at(machine.node):
                self._disconnect(machine, client)
        self.queue.run(ENDED_NS)
        agreement.check_nothing_left(self)

    def _work_off(self) -> None:
        """Let the slow nodes do everything that waits; tasks end now and then, and make room for others."""
        for _ in range(WORK_OFF_S):
            waiting = [call for client in self.clients.values() for call in client.pending_calls.values()]
            if all(call.waits for call in waiting):
                return
            self._end_tasks()
            self.queue.run(S)
        waiting = [call for client in self.clients.values() for call in client.pending_calls.values()]
        left = [call.call for call in waiting if not call.waits]
        raise BrokenPromiseError(f"{len(left)} calls are not answered by slow nodes: {left[:3]}")

    def _begin_acting(self) -> None:
        self.acting = True
        for machine in self.machines.values():
            self.open_sessions(machine)
        self.queue.run(S // 10)
        first = next(iter(self.clients.values()))
        for _ in range(2):
            first.create(ObjectType.DURABLE_BLOB, NameKind.RANDOM, "", lock=True)
        self._act_once()
        if self.is_large:
            self._look_up_again()
        elif not self.slow:
            self.network.late_versions = _random(f"late versions {self._seed}")
            self.repeated_reads.begin()

    def _act_once(self) -> None:
        """Let one random client act."""
        if not self.acting:
            return
        self.queue.after(self.rng.randint(*MOMENT_NS), self._act_once)
        able = [
            candidate
            for candidate in self.clients.values()
            if self.machines[candidate.node].healthy and candidate.welcome
        ]
        if not able:
            return
        client = self.rng.choice(able)
        dice = self.rng.random()
        machine = self.machines[client.node]
        if dice < 0.03:
            if self._is_session(client):
                self._disconnect(machine, client)
            else:
                self.process_ends(machine, client.task, Cause.EXITED)
        elif dice < 0.05:
            self.open_sessions(self.rng.choice(list(self.machines.values())))
        elif self.slow and dice < 0.08:
            client.start_many()
        else:
            client.act()

    def _check_periodically(self) -> None:
        """Check every second that no call waits too long and no task has excess permissions."""
        self.queue.after(S, self._check_periodically)
        self._check_overdue()
        for host in self.hosts():
            agreement.check_rights(self, host, quiet=False)

    def _check_overdue(self) -> None:
        for client in list(self.clients.values()):
            if self.machines[client.node].healthy:
                agreement.check_timeouts(self, client)

    # -- sessions and processes ---------------------------------------------------------------------
    def open_sessions(self, machine: SimMachine) -> None:
        """Open sessions at a node until there are enough."""
        if machine.host is None:
            return
        while (
            len([client for client in self.clients_at(machine.node) if self._is_session(client)])
            < SESSIONS_EACH
        ):
            self.open_session(machine, STRANGER if self.rng.random() < 0.2 else NODE_OWNER)

    def open_session(self, machine: SimMachine, principal: Principal) -> SimulatedClient:
        """Open a session with a random keyring."""
        task = TaskId(self._next_task)
        self._next_task += 1
        self.flows.open(task, principal)
        client = self.clients[task] = self._client(machine, task, "")
        groups = tuple(name for name in self._keyring if self.rng.random() < 0.5)
        machine.post(
            lambda host: host.step(events.SessionOpened(host.now, task, 1, principal, groups, "session", 42))
        )
        return client

    def _client(self, machine: SimMachine, task: TaskId, label: str) -> CooperatingClient:
        kind = LabelledClient if self._has_labels else CooperatingClient
        return kind(self.rng, self, machine.node, task, label)

    def able_clients(self) -> list[CooperatingClient]:
        """Return the clients that can make calls now."""
        return [
            client
            for client in self.clients.values()
            if self.machines[client.node].healthy and client.welcome is not None and not client.paused
        ]

    def clients_at(self, node: NodeId) -> list[SimulatedClient]:
        """Return the clients at a node."""
        return [client for client in self.clients.values() if client.node == node]

    def _is_session(self, client: SimulatedClient) -> bool:
        return not client.label

    def _disconnect(self, machine: SimMachine, client: SimulatedClient) -> None:
        self._forget_client(client.task)
        machine.post(lambda host: host.step(events.Disconnected(host.now, client.task)))

    def _forget_client(self, task: TaskId) -> None:
        self.clients.pop(task, None)
        self._ended.add(task)

    def process_ends(self, machine: SimMachine, task: TaskId, cause: Cause) -> None:
        """End a process."""
        client = self.clients.get(task)
        code = self.flows.end(client) if client is not None and cause is Cause.EXITED else 0
        self._forget_client(task)
        machine.post(lambda host: host.step(events.TaskEnded(host.now, task, cause, code)))

    def _end_tasks(self) -> None:
        for client in list(self.clients.values()):
            if not self._is_session(client):
                self.process_ends(self.machines[client.node], client.task, Cause.EXITED)

    def node_crashed(self, machine: SimMachine) -> None:
        """Forget the clients of a crashed node, and mark its volatile objects as deleted."""
        for client in self.clients_at(machine.node):
            self._forget_client(client.task)
        # Other nodes may read a volatile object under a lease for a little longer.
        gone_at = self.queue.now + limits.LEASE_GRANTED_MS * MS
        for register in self.promises.registers.values():
            if register.home == machine.node and not register.durable and register.deleted_at is None:
                register.deleted_at = gone_at

    # -- outputs of machines (MachineListener) --------------------------------------------------------
    def answered(
        self,
        machine: SimMachine,
        task: TaskId,
        seq: int,
        result: messages.AnyResult,
        data: list[bytes | None],
    ) -> None:
        """Pass an answer to its client."""
        if isinstance(result, messages.Welcome):
            if task in self._starting:
                self._starting[task] = (*self._starting[task][:2], result)
            elif task in self.clients:
                self._member_of[task] = {group.fingerprint for group in result.groups}
                self.clients[task].begin(result)
            return
        client = self.clients.get(task)
        if client is None or client.node != machine.node:
            return  # its remote task record is not open yet, or was closed: the node asks again
        if isinstance(result, messages.Failure):
            self.refusals[result.code] += 1
            # A copy whose original was written meanwhile fails with the same code and another message.
            if self.slow and result.code == Code.EHOSTUNREACH and result.message.startswith("node "):
                raise BrokenPromiseError(f"a living node was called out of reach: {result.message}")
        if isinstance(result, messages.Created) and result.name is not None:
            if result.reference.type is ObjectType.GROUP:
                self._keyring.append(Name(result.name))
                self._member_of[task].add(result.reference.fingerprint)
            elif result.reference.type is not ObjectType.TASK:
                self._names[result.name] = None
        client.answered(seq, result, data)
        if self.is_large and isinstance(result, messages.Created) and result.name in self._names:
            for _ in range(LOOKUPS_OF_NEW_NAME):
                self._look_up(result.name)

    def _look_up(self, name: bytes) -> None:
        """Let a random client look up a name and get everything that has it."""
        able = [
            candidate
            for candidate in self.clients.values()
            if self.machines[candidate.node].healthy and candidate.welcome
        ]
        if not able:
            return
        client = self.rng.choice(able)
        if self.may_resolve(client, name):
            client.lookup(name, limit=limits.LOOKUP_REFERENCES_MAX)

    def _look_up_again(self) -> None:
        """Look up random names every now and then, half of them those of the node that started last."""
        if not self.acting:
            return
        self.queue.after(self.rng.randint(*LOOKUP_NS), self._look_up_again)
        last = max(self.machines.values(), key=lambda machine: machine.started_at)
        of_last = [
            register.key
            for register in self.promises.registers.values()
            if register.home == last.node
            and register.durable
            and not register.may_be_deleted
            and register.key in self._names
        ]
        names = of_last if of_last and self.rng.random() < 0.5 else list(self._names)
        if names:
            self._look_up(self.rng.choice(names))

    def spawn(self, machine: SimMachine, effect: effects.Spawn) -> None:
        """Start a process after a random delay."""
        self._starting[effect.task] = (machine, effect, None)
        life = machine.life
        self.queue.after(self.rng.randint(MS, 200 * MS), partial(self._started, effect.task, life))

    def _started(self, task: TaskId, life: int) -> None:
        machine, effect, welcome = self._starting.pop(task)
        if machine.life != life or machine.host is None or task in self._ended:
            return
        if welcome is None or self.rng.random() < 0.05:
            self._ended.add(task)
            machine.post(
                lambda host: host.step(
                    events.TaskEnded(host.now, task, Cause.SPAWN, detail="no such program")
                )
            )
            return
        client = self.clients[task] = self._client(machine, task, effect.label)
        self._member_of[task] = {group.fingerprint for group in welcome.groups}

        def begin(host: ClusterHost) -> None:
            host.step(events.TaskStarted(host.now, task, 100))
            if task in self.clients:
                client.begin(welcome)

        machine.post(begin)

    def control(
        self,
        machine: SimMachine,
        effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection,
    ) -> None:
        """Stop, suspend or continue a process, or close a session."""
        task = effect.task
        if isinstance(effect, effects.Kill):
            life = machine.life
            self.queue.after(self.rng.randint(MS, 50 * MS), partial(self._killed, machine, task, life))
        elif isinstance(effect, effects.CloseConnection):
            self._forget_client(task)
        elif task in self.clients:
            self.clients[task].paused = isinstance(effect, effects.Suspend)

    def _killed(self, machine: SimMachine, task: TaskId, life: int) -> None:
        if machine.life == life and task not in self._ended:
            self.process_ends(machine, task, Cause.SIGNAL)

    def stored(
        self, target: ObjectId, name: bytes | None, value: bytes, secrecy: tuple[str, ...] | None
    ) -> None:
        """Record a new content of an object, which has a label unless it is gone already."""
        self.promises.record_store(target, name, value)
        if secrecy is not None:
            self.flows.stored(value, secrecy)

    # -- the environment of the clients (ClientEnvironment) -------------------------------------------
    @property
    def now(self) -> int:
        """The virtual time in nanoseconds."""
        return self.queue.now

    def call(self, client: SimulatedClient, seq: int, call: messages.AnyCall) -> None:
        """Make a call at the client's node."""
        self.calls += 1
        # Delayed, because the node may be in the middle of a step now.
        self.queue.after(CALL_NS, partial(self._called, client, seq, call))

    def _called(self, client: SimulatedClient, seq: int, call: messages.AnyCall) -> None:
        if client.task in self.clients:
            self.machines[client.node].post(lambda host: host.call(client.task, seq, call), urgent=False)

    def fill(self, client: SimulatedClient, buffer: BufferId, data: bytes) -> None:
        """Write to a mapped buffer."""
        host = self.machines[client.node].host
        if host is not None and buffer in host.buffers:
            host.buffers[buffer] = data

    def secrecy_of(self, task: int) -> tuple[str, ...] | None:
        """Return the label that the core gives a task, or None if that cannot be known now."""
        client = self.clients.get(TaskId(task))
        host = None if client is None else self.machines[client.node].host
        known_task = None if host is None else host.core.state.tasks.get(TaskId(task))
        return None if known_task is None else known_task.secrecy

    def is_secret(self, target: int) -> bool:
        """Return True if no session of the node's owner may read an object."""
        return not all(is_owned(tag, NODE_OWNER) for tag in self.flows.label_of(target))

    def host_names(self) -> list[str]:
        """Return the names of the nodes."""
        return [machine.name for machine in self.machines.values()]

    def node_named(self, name: str) -> NodeId:
        """Return the node with this name."""
        return NodeId(int(name[1:]))

    def names(self) -> list[bytes]:
        """Return every name that any client knows."""
        return list(self._names)

    def expected(self, client: SimulatedClient, name: bytes) -> list[int]:
        """Return the objects that a lookup which begins now finds if its node and theirs are undisturbed."""
        return agreement.expected(self, client, name)

    def looked_up(
        self, client: SimulatedClient, expected: list[int], result: messages.References, limit: int
    ) -> None:
        """Check the answer to a lookup."""
        agreement.check_found(self, client, expected, result, limit)

    def task_names(self) -> list[bytes]:
        """Return the names of the tasks and sessions that are alive."""
        return [client.welcome.name for client in self.clients.values() if client.welcome is not None]

    def fresh_label(self) -> str:
        """Return a unique label."""
        self._next_label += 1
        return f"run {self._next_label}"

    def forget_group(self, name: bytes) -> None:
        """Stop giving this group to new sessions as part of their keyring."""
        self._keyring[:] = [key_name for key_name in self._keyring if key_name != name]

    def disbanded(self, client: SimulatedClient, name: bytes) -> None:
        """Record that the client's node has destroyed the group; while it is up, it informs the others."""
        life = self.machines[client.node].life
        self.promises.disbanded[name] = (client.node, life, self.queue.now)

    def may_resolve(self, client: SimulatedClient, key: Key) -> bool:
        """Return True if the client is a member of one of the object's groups."""
        return not self._member_of.get(client.task, set()).isdisjoint(
            name.decode() for name in self.promises.groups_of.get(key, ())
        )

    # -- the nodes (NetworkEndpoints) -----------------------------------------------------------------
    def hosts(self) -> list[ClusterHost]:
        """Return the hosts of the nodes that are up."""
        return [machine.host for machine in self.machines.values() if machine.host is not None]

    def accepts(self, node: NodeId) -> bool:
        """Return True if the node is up and not frozen."""
        return self.machines[node].healthy

    def hello(self, node: NodeId) -> dcp.PeerHello:
        """Return the node's introduction on a new connection."""
        return self.machines[node].hello()

    def post(self, node: NodeId, action: Callable[[ClusterHost], None]) -> None:
        """Run an action at a node."""
        self.machines[node].post(action)

    def post_request(
        self, node: NodeId, asker: NodeId, number: int, action: Callable[[ClusterHost], None]
    ) -> None:
        """Run the action that handles a request of another node, when it is its turn."""
        self.machines[node].post_request(asker, number, action)


def _random(seed: str) -> Random:
    return Random(seed)  # noqa: S311 - a seed must give the same run


def _random_policy(rng: Random) -> DeliveryPolicy:
    """Return a delivery policy: ordered as with TLS for half of the seeds, otherwise lossy and unordered."""
    if rng.random() < 0.5:
        return DeliveryPolicy(late=rng.choice((0.0, 0.01, 0.05)))
    return DeliveryPolicy(
        loss=rng.choice((0.0, 0.02, 0.08)),
        doubled=rng.choice((0.0, 0.05)),
        late=rng.choice((0.01, 0.05)),
        ordered=False,
    )


def simulate_cluster(
    seed: int,
    span_ns: int = SPAN_NS,
    *,
    policy: DeliveryPolicy | None = None,
    slow: bool = False,
    rests: bool = False,
    size: int = 0,
) -> ClusterReport:
    """Run one seed; raise BrokenPromiseError if the nodes are wrong."""
    world = ClusterWorld(seed, policy=policy, slow=slow, size=size)
    world.network.rests = rests
    world.network.rest()
    return world.run(span_ns)


def simulate_flows(seed: int, span_ns: int = SPAN_NS) -> FlowReport:
    """Run one seed with secrecy labels; raise BrokenPromiseError if a secret is where it may not be."""
    world = ClusterWorld(seed, labels=True)
    report = world.run(span_ns)
    flows = world.flows
    return FlowReport(report, flows.learned, flows.confined, flows.released)


def simulate_lookups(seed: int, span_ns: int = LOOKUPS_SPAN_NS) -> int:
    """Look up names in a cluster with an index of names; return the number of objects that were found."""
    return ClusterWorld(seed, size=INDEXED_NODES).run_lookups(span_ns)
