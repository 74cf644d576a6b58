"""Whole clusters in virtual time: nodes, clients of each, and a seeded schedule of all that goes wrong.

Not for: one node and its disk alone (``dios.sim.node.world``). A seed makes the same run under every
PYTHONHASHSEED; one that fails is a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from blake3 import blake3
from msgspec import Struct

from dios.core import effects, events
from dios.errors import DiosError, InvariantError
from dios.ids import BufferId, Name, NodeId, ObjectId, Principal, TaskId
from dios.sim.cluster import agreement
from dios.sim.cluster.client_actions import Inhabitant
from dios.sim.cluster.fault_injector import Mischief
from dios.sim.cluster.host import ClusterHost
from dios.sim.cluster.machine import Machine
from dios.sim.cluster.network import Manner, Network
from dios.sim.cluster.promises import Key, Ledger
from dios.sim.cluster.simulated_client import Caller
from dios.sim.event_queue import MS, US, Agenda, S
from dios.sim.node.checker import BrokenPromiseError
from dios.sim.node.host import NODE_OWNER
from dios.wire import dcp, messages
from dios.wire.types import Cause, NameKind, ObjectType

STRANGER: Final = Principal("uid:1001")
SESSIONS_EACH: Final = 3
MOMENT_NS: Final = (1 * MS, 40 * MS)
CALL_NS: Final = 20 * US  # from a caller to its node
SPAN_NS: Final = 14 * S
QUIET_NS: Final = 46 * S  # two rounds of claims, and the grace of the dead
ENDED_NS: Final = 24 * S  # everybody has gone, and a round of claims later nothing is left


class ClusterReport(Struct, frozen=True):
    """What one seed's run did; ``digest`` stands for every event and outcome on every node."""

    seed: int
    nodes: int
    lossy: bool
    steps: int
    calls: int
    refusals: dict[int, int]
    mischief: dict[str, int]
    network: dict[str, int]
    digest: str


class ClusterWorld:
    """Some nodes and their clients. ``manner`` is how messages travel; by default the seed says."""

    def __init__(self, seed: int, *, manner: Manner | None = None) -> None:
        self._seed: Final = seed
        self.rng: Final = _random(f"cluster {seed}")
        self.agenda: Final = Agenda()
        self.ledger: Final = Ledger()
        self.callers: Final[dict[TaskId, Caller]] = {}
        self._trace: Final = blake3()
        self._next_task = 1
        self._next_label = 1
        self._starting: Final[dict[TaskId, tuple[Machine, effects.Spawn, messages.Welcome | None]]] = {}
        self._ended: Final[set[TaskId]] = set()
        self._keyring: Final[list[Name]] = []
        self._names: Final[dict[bytes, None]] = {}
        self._member_of: Final[dict[TaskId, set[str]]] = {}
        self.acting = False
        self.calls = 0
        self.refusals: Final[Counter[int]] = Counter()
        size = self.rng.choice((2, 3, 3, 3, 3, 4, 5))
        self.machines: Final = {
            node: Machine(
                node,
                self.rng.choice(("r1", "r2")),
                self.agenda,
                _random(f"{seed} node {node}"),
                self,
                self._trace,
            )
            for node in map(NodeId, range(1, size + 1))
        }
        network_rng = _random(f"network {seed}")
        self.network: Final = Network(self.agenda, network_rng, manner or _manner(network_rng), self)
        self.mischief: Final = Mischief(
            self.agenda, _random(f"mischief {seed}"), self.machines, self.network, self
        )
        for machine in self.machines.values():
            machine.network = self.network
            for other in self.machines:
                if other != machine.node:
                    self.network.want(machine.node, other)
                if other > machine.node:
                    self.network.begin(machine.node, other)

    # -- the run --------------------------------------------------------------------------------------
    def run(self, span_ns: int = SPAN_NS) -> ClusterReport:
        """Live through this much time of trouble, heal, and look whether everything is as promised."""
        try:
            self._run(span_ns)
        except (BrokenPromiseError, InvariantError) as error:
            raise BrokenPromiseError(f"seed {self._seed}, at {self.agenda.now / S:.3f} s: {error}") from error
        except DiosError as error:
            raise BrokenPromiseError(
                f"seed {self._seed}, at {self.agenda.now / S:.3f} s, a step raised {error!r}"
            ) from error
        return ClusterReport(
            self._seed,
            len(self.machines),
            not self.network.manner.ordered,
            sum(self.mischief.steps.values()) + sum(host.steps for host in self.hosts()),
            self.calls,
            dict(sorted(self.refusals.items())),
            dict(sorted(self.mischief.counts.items())),
            dict(sorted(self.network.counts.items())),
            self._trace.hexdigest(),
        )

    def _run(self, span_ns: int) -> None:
        for machine in self.machines.values():
            machine.start()
        self.agenda.run(2 * S)
        self._watch()
        self._begin_acting()
        self.mischief.begin(self.agenda.now + span_ns)
        self.agenda.run(span_ns)
        self.acting = False
        self.mischief.heal()
        self.agenda.run(QUIET_NS)
        self._overdue()
        agreement.check_agreement(self)
        agreement.probe(self)
        self._end_tasks()
        self.agenda.run(ENDED_NS // 2)
        agreement.check_children(self)
        for machine in self.machines.values():
            for caller in self.at(machine.node):
                self._disconnect(machine, caller)
        self.agenda.run(ENDED_NS)
        agreement.check_nothing_left(self)

    def _begin_acting(self) -> None:
        self.acting = True
        for machine in self.machines.values():
            self.people_come(machine)
        self.agenda.run(S // 10)
        first = next(iter(self.callers.values()))
        for _ in range(2):
            first.create(ObjectType.DURABLE_BLOB, NameKind.RANDOM, "", lock=True)
        self._moment()

    def _moment(self) -> None:
        """Somebody does something."""
        if not self.acting:
            return
        self.agenda.after(self.rng.randint(*MOMENT_NS), self._moment)
        able = [one for one in self.callers.values() if self.machines[one.node].healthy and one.welcome]
        if not able:
            return
        caller = self.rng.choice(able)
        dice = self.rng.random()
        machine = self.machines[caller.node]
        if dice < 0.03:
            if self._is_session(caller):
                self._disconnect(machine, caller)
            else:
                self.process_ends(machine, caller.task, Cause.EXITED)
        elif dice < 0.05:
            self.people_come(self.rng.choice(list(self.machines.values())))
        else:
            caller.act()

    def _watch(self) -> None:
        """Now and then: nobody waits for too long, nobody has what is not theirs."""
        self.agenda.after(S, self._watch)
        self._overdue()
        for host in self.hosts():
            agreement.check_rights(self, host, quiet=False)

    def _overdue(self) -> None:
        for caller in list(self.callers.values()):
            if self.machines[caller.node].healthy:
                agreement.check_patience(self, caller)

    # -- people and processes -----------------------------------------------------------------------
    def people_come(self, machine: Machine) -> None:
        """Sessions open at a node until there are enough."""
        if machine.host is None:
            return
        while len([one for one in self.at(machine.node) if self._is_session(one)]) < SESSIONS_EACH:
            self.open_session(machine, STRANGER if self.rng.random() < 0.2 else NODE_OWNER)

    def open_session(self, machine: Machine, principal: Principal) -> Caller:
        """Somebody comes, with their keyring."""
        task = TaskId(self._next_task)
        self._next_task += 1
        caller = self.callers[task] = Inhabitant(self.rng, self, machine.node, task, "")
        groups = tuple(name for name in self._keyring if self.rng.random() < 0.5)
        machine.tell(
            lambda host: host.step(events.SessionOpened(host.now, task, 1, principal, groups, "session", 42))
        )
        return caller

    def at(self, node: NodeId) -> list[Caller]:
        """Who is at a node."""
        return [one for one in self.callers.values() if one.node == node]

    def _is_session(self, caller: Caller) -> bool:
        return not caller.label

    def _disconnect(self, machine: Machine, caller: Caller) -> None:
        self._gone(caller.task)
        machine.tell(lambda host: host.step(events.Disconnected(host.now, caller.task)))

    def _gone(self, task: TaskId) -> None:
        self.callers.pop(task, None)
        self._ended.add(task)

    def process_ends(self, machine: Machine, task: TaskId, cause: Cause) -> None:
        """A process is over."""
        self._gone(task)
        machine.tell(lambda host: host.step(events.TaskEnded(host.now, task, cause)))

    def _end_tasks(self) -> None:
        for caller in list(self.callers.values()):
            if not self._is_session(caller):
                self.process_ends(self.machines[caller.node], caller.task, Cause.EXITED)

    def node_crashed(self, machine: Machine) -> None:
        """Everybody there is gone."""
        for caller in self.at(machine.node):
            self._gone(caller.task)
        for register in self.ledger.registers.values():
            if register.home == machine.node and not register.durable and register.gone_at is None:
                register.gone_at = self.agenda.now

    # -- what hosts say (People) ----------------------------------------------------------------------
    def answered(
        self, machine: Machine, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]
    ) -> None:
        """A task is answered."""
        if isinstance(result, messages.Welcome):
            if task in self._starting:
                self._starting[task] = (*self._starting[task][:2], result)
            elif task in self.callers:
                self._member_of[task] = {group.fingerprint for group in result.groups}
                self.callers[task].begin(result)
            return
        caller = self.callers.get(task)
        if caller is None or caller.node != machine.node:
            return  # its deputy is not open yet, or no longer: the answer is asked for again
        if isinstance(result, messages.Failure):
            self.refusals[result.code] += 1
        if isinstance(result, messages.Created) and result.name is not None:
            if result.reference.type is ObjectType.GROUP:
                self._keyring.append(Name(result.name))
                self._member_of[task].add(result.reference.fingerprint)
            elif result.reference.type is not ObjectType.TASK:
                self._names[result.name] = None
        caller.answered(seq, result, data)

    def spawn(self, machine: Machine, effect: effects.Spawn) -> None:
        """A process begins soon."""
        self._starting[effect.task] = (machine, effect, None)
        life = machine.life
        self.agenda.after(self.rng.randint(MS, 200 * MS), partial(self._started, effect.task, life))

    def _started(self, task: TaskId, life: int) -> None:
        machine, effect, welcome = self._starting.pop(task)
        if machine.life != life or machine.host is None or task in self._ended:
            return
        if welcome is None or self.rng.random() < 0.05:
            self._ended.add(task)
            machine.tell(
                lambda host: host.step(
                    events.TaskEnded(host.now, task, Cause.SPAWN, detail="no such program")
                )
            )
            return
        caller = self.callers[task] = Inhabitant(self.rng, self, machine.node, task, effect.label)
        self._member_of[task] = {group.fingerprint for group in welcome.groups}

        def begin(host: ClusterHost) -> None:
            host.step(events.TaskStarted(host.now, task, 100))
            if task in self.callers:
                caller.begin(welcome)

        machine.tell(begin)

    def control(
        self,
        machine: Machine,
        effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection,
    ) -> None:
        """Something is to be done with a process, or a session."""
        task = effect.task
        if isinstance(effect, effects.Kill):
            life = machine.life
            self.agenda.after(self.rng.randint(MS, 50 * MS), partial(self._killed, machine, task, life))
        elif isinstance(effect, effects.CloseConnection):
            self._gone(task)
        elif task in self.callers:
            self.callers[task].paused = isinstance(effect, effects.Suspend)

    def _killed(self, machine: Machine, task: TaskId, life: int) -> None:
        if machine.life == life and task not in self._ended:
            self.process_ends(machine, task, Cause.SIGNAL)

    def stored(self, target: ObjectId, name: bytes | None, value: bytes) -> None:
        """An object has a new content."""
        self.ledger.stored(target, name, value)

    # -- what callers ask (Around) --------------------------------------------------------------------
    @property
    def now(self) -> int:
        """Virtual time."""
        return self.agenda.now

    def call(self, caller: Caller, seq: int, call: messages.AnyCall) -> None:
        """Make a call at the caller's node."""
        self.calls += 1
        # Never at once: what the node does now, it does to the end.
        self.agenda.after(CALL_NS, partial(self._called, caller, seq, call))

    def _called(self, caller: Caller, seq: int, call: messages.AnyCall) -> None:
        if caller.task in self.callers:
            self.machines[caller.node].tell(lambda host: host.call(caller.task, seq, call))

    def fill(self, caller: Caller, buffer: BufferId, data: bytes) -> None:
        """Write into a mapped buffer."""
        host = self.machines[caller.node].host
        if host is not None and buffer in host.buffers:
            host.buffers[buffer] = data

    def host_names(self) -> list[str]:
        """The nodes' names."""
        return [machine.name for machine in self.machines.values()]

    def node_named(self, name: str) -> NodeId:
        """The node of this name."""
        return NodeId(int(name[1:]))

    def names(self) -> list[bytes]:
        """Every name that anybody was told."""
        return list(self._names)

    def task_names(self) -> list[bytes]:
        """The names of the tasks and sessions that live."""
        return [one.welcome.name for one in self.callers.values() if one.welcome is not None]

    def fresh_label(self) -> str:
        """A label like which there is no other."""
        self._next_label += 1
        return f"run {self._next_label}"

    def forget_group(self, name: bytes) -> None:
        """Nobody comes with this group in the keyring any more."""
        self._keyring[:] = [one for one in self._keyring if one != name]

    def disbanded(self, caller: Caller, name: bytes) -> None:
        """The caller's node has destroyed the group: it tells the others as long as it lives."""
        life = self.machines[caller.node].life
        self.ledger.disbanded[name] = (caller.node, life, self.agenda.now)

    def may_resolve(self, caller: Caller, key: Key) -> bool:
        """Whether the caller is a member of one of the object's groups."""
        return not self._member_of.get(caller.task, set()).isdisjoint(
            name.decode() for name in self.ledger.groups_of.get(key, ())
        )

    # -- the nodes (Ends) -----------------------------------------------------------------------------
    def hosts(self) -> list[ClusterHost]:
        """The nodes that run."""
        return [machine.host for machine in self.machines.values() if machine.host is not None]

    def accepts(self, node: NodeId) -> bool:
        """Whether the node runs and is not frozen."""
        return self.machines[node].healthy

    def hello(self, node: NodeId) -> dcp.PeerHello:
        """What the node says of itself."""
        return self.machines[node].hello()

    def tell(self, node: NodeId, action: Callable[[ClusterHost], None]) -> None:
        """Let something happen at a node."""
        self.machines[node].tell(action)


def _random(what: str) -> Random:
    return Random(what)  # noqa: S311 - a simulation repeats itself


def _manner(rng: Random) -> Manner:
    """In half of the seeds the network is as TLS makes it; in the others it loses, doubles and reorders."""
    if rng.random() < 0.5:
        return Manner(late=rng.choice((0.0, 0.01, 0.05)))
    return Manner(
        loss=rng.choice((0.0, 0.02, 0.08)),
        doubled=rng.choice((0.0, 0.05)),
        late=rng.choice((0.01, 0.05)),
        ordered=False,
    )


def simulate_cluster(seed: int, span_ns: int = SPAN_NS, *, manner: Manner | None = None) -> ClusterReport:
    """Run one seed; raises BrokenPromiseError where the nodes are wrong."""
    return ClusterWorld(seed, manner=manner).run(span_ns)
