"""Checks that the nodes of a simulated cluster agree with each other and keep their promises.

Single answers are checked when they arrive (``labs.sim.cluster.simulated_client``).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final, Protocol

from dios.core.model.records import PhysicalObject
from dios.core.remote.continuations import StartProgress
from dios.core.remote.peers import Cluster
from dios.ids import NodeId, Principal, TaskId
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.types import NodeStatus, Permission, Semantics
from labs.sim.cluster.fault_injector import FaultInjector
from labs.sim.cluster.host import ClusterHost
from labs.sim.cluster.machine import SimMachine
from labs.sim.cluster.promises import Key, PromiseLedger
from labs.sim.cluster.simulated_client import BLOBS, SimulatedClient
from labs.sim.event_queue import EventQueue, S
from labs.sim.node.checker import BrokenPromiseError
from labs.sim.node.host import NODE_OWNER

LOOKUP_NS: Final = 9 * S
ANY_NS: Final = 40 * S
WELL_NS: Final = 6 * S
REACHED_NS: Final = S // 10
ANSWERS_MAX: Final = 64
SPARE_ANSWERS_MAX: Final = 8
PROBES_MAX: Final = 12
_NAMESAKES_MAX: Final = 256
"""More than the objects of one name in a run, because a lookup that leaves some out proves nothing."""


class SimulatedCluster(Protocol):
    """The parts of a simulated cluster that are compared with each other."""

    @property
    def slow(self) -> bool:
        """True if nodes and links are slow, and nothing else is wrong."""

    @property
    def now(self) -> int:
        """The virtual time in nanoseconds."""

    @property
    def rng(self) -> Random:
        """The source of random choices."""

    @property
    def queue(self) -> EventQueue:
        """The events in virtual time."""

    @property
    def machines(self) -> Mapping[NodeId, SimMachine]:
        """All machines, also those whose node is down."""

    @property
    def clients(self) -> Mapping[TaskId, SimulatedClient]:
        """The clients that are connected now."""

    @property
    def promises(self) -> PromiseLedger:
        """What the nodes have promised to their clients."""

    @property
    def injector(self) -> FaultInjector:
        """The fault injector, which knows since when each node is undisturbed."""

    def hosts(self) -> list[ClusterHost]:
        """Return the hosts of the nodes that are up."""

    def may_resolve(self, client: SimulatedClient, key: Key) -> bool:
        """Return True if the client is a member of one of the object's groups."""

    def is_secret(self, target: int) -> bool:
        """Return True if no session of the node's owner may read an object."""

    def open_session(self, machine: SimMachine, principal: Principal) -> SimulatedClient:
        """Open a session with a random keyring."""


def _require(condition: bool, violation: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise BrokenPromiseError(violation)


def _cluster(host: ClusterHost) -> Cluster:
    cluster = host.core.state.cluster
    if cluster is None:
        raise BrokenPromiseError("a node has no cluster")
    return cluster


# -- at any time --------------------------------------------------------------------------------------
def check_timeouts(world: SimulatedCluster, client: SimulatedClient) -> None:
    """Check that each call is answered in time, and soon if all nodes that it needs were healthy."""
    for pending in client.pending_calls.values():
        if pending.waits or world.slow:  # a slow node has no deadline
            continue
        thawed = world.machines[client.node].thawed_at
        waited = world.now - max(pending.since, thawed)
        bound = LOOKUP_NS if isinstance(pending.call, messages.Lookup) else ANY_NS
        troubled = max((world.injector.troubled.get(node, 0) for node in pending.nodes), default=0)
        well = world.now - troubled > WELL_NS + ANY_NS
        if well:
            bound = WELL_NS
        _require(
            waited <= bound,
            f"{pending.call!r} of the {client.label or 'session'} has waited for {waited / S:.1f} s",
        )


def _label_elsewhere(world: SimulatedCluster, task: TaskId) -> str | None:
    """Return the label of a task by the node that runs or starts it, because no other node is believed."""
    for host in world.hosts():
        state = host.core.state
        for candidate in state.everybody():
            if candidate.home_id == task and candidate.label:
                return candidate.label
        for parent in state.tasks.values():
            for row in parent.pending.values():
                if isinstance(row.progress, StartProgress) and row.progress.child.task == task:
                    return row.progress.child.label
    return None


def check_rights(world: SimulatedCluster, host: ClusterHost, *, quiet: bool) -> None:
    """Check that no task has a reference or a permission without authority."""
    known = set(world.promises.keys.values())
    for task in host.core.state.everybody():
        label = task.label or _label_elsewhere(world, task.home_id)
        if label is None:
            continue  # the node that was about to start it has failed: no client knows what it was given
        who: tuple[int | str, ...] = (task.home_id, label)
        for reference in task.table:
            target = reference.object
            if target.type not in BLOBS or target.zombie:
                continue
            key = target.name if target.name is not None else world.promises.keys.get(target.id)
            if key is None or key not in known:
                continue  # no client knows this object yet
            mask = world.promises.mask_of(who, key, quiet=quiet)
            excess = int(reference.permissions) & ~mask
            _require(
                not excess and bool(mask),
                f"task {task.home_id} ({task.label!r}, home {task.home}) on node {_cluster(host).here.node}"
                f" holds {Permission(excess)!r} on {target.fingerprint} of node {target.home}"
                " without authority",
            )


def expected(world: SimulatedCluster, client: SimulatedClient, name: bytes) -> list[int]:
    """Return the objects of this name that a lookup of the client must find if nothing happens meanwhile.

    They were acknowledged, and the client's node reaches theirs.
    """
    if not world.may_resolve(client, name):
        return []
    destroyed = {fingerprint(group).encode() for group in world.promises.disbanded}
    if not destroyed.isdisjoint(world.promises.groups_of.get(name, ())):
        return []
    return [
        target
        for target, register in world.promises.registers.items()
        if register.key == name and register.durable and _reaches(world, client.node, register.home)
    ]


def check_found(
    world: SimulatedCluster,
    client: SimulatedClient,
    wanted: list[int],
    result: messages.References,
    limit: int,
) -> None:
    """Check that a lookup found all that it had to find, if its node still reaches theirs.

    The state of all other nodes does not matter.
    """
    objects = {reference.object for reference in result.references}
    if result.incomplete or len(result.references) >= limit:
        return
    for target in wanted:
        register = world.promises.registers[target]
        gone = register.may_be_deleted or register.deleted_at is not None
        if not gone and _reaches(world, client.node, register.home):
            world.promises.lookups[target in objects] += 1
            _require(
                target in objects, f"a lookup on n{client.node} did not find an object of n{register.home}"
            )


def _reaches(world: SimulatedCluster, node: NodeId, home: NodeId) -> bool:
    """Return True if a node can ask another one now, and does not take it for dead."""
    machines = (world.machines[node], world.machines[home])
    well = all(
        machine.healthy and world.now - world.injector.troubled.get(machine.node, 0) > REACHED_NS
        for machine in machines
    )
    host = machines[0].host
    if not well or host is None or not world.injector.is_connected(node, home):
        return False
    peer = _cluster(host).peers.get(home)
    return node == home or (peer is not None and peer.dead_since is None and not peer.cut_off)


# -- after healing and quiet ----------------------------------------------------------------------------
def check_agreement(world: SimulatedCluster) -> None:
    """Check after a quiet period that the nodes agree on references and members, with no obsolete state."""
    for host in world.hosts():
        check_rights(world, host, quiet=True)
        _check_members(world, host)
        _check_pending_requests(world, host)
        for other in world.hosts():
            if other is not host:
                _check_holdings(host, other)
        _check_groups(world, host)
    _check_values(world)


def _check_members(world: SimulatedCluster, host: ClusterHost) -> None:
    cluster = _cluster(host)
    for member in cluster.membership.members.values():
        machine = world.machines[member.node]
        peer = cluster.peer(member.node)
        if machine.host is None:
            _require(
                member.status is NodeStatus.DEAD, f"{machine.name} is dead, but listed as {member.status}"
            )
            _require(not peer.remote_tasks, "remote tasks of a dead node are left after its grace period")
        else:
            _require(
                member.status is NodeStatus.ALIVE, f"{machine.name} is alive, but listed as {member.status}"
            )
            _require(member.epoch == peer.epoch == machine.life, "the epoch of a node is not the current one")
            _require(peer.connected, f"{machine.name} is not connected")
            _require(peer.dead_since is None, "a node that is alive is listed as dead")


def _check_pending_requests(world: SimulatedCluster, host: ClusterHost) -> None:
    """Check that few requests are pending, and that cached replies belong to pending requests."""
    cluster = _cluster(host)
    for peer in cluster.peers.values():
        waiting = [
            request.body for request in (*peer.asked.values(), *peer.unsent_brief, *peer.unsent_lasting)
        ]
        _require(len(waiting) <= 8, f"{len(waiting)} requests are still pending: {waiting[:3]}")
        asker = world.machines[peer.node].host
        # The replies to the last burst of a dead node are kept: it might be alive, and repeat its requests.
        if asker is not None:
            _require(len(peer.answers) <= ANSWERS_MAX, f"{len(peer.answers)} replies are still cached")
            # At most the replies sent since the requesting node last reported its pending requests.
            spare = peer.answers.keys() - _cluster(asker).peer(cluster.here.node).asked.keys()
            _require(len(spare) <= SPARE_ANSWERS_MAX, f"{len(spare)} cached replies belong to no request")
    _require(not cluster.to_release, "dropped references are not released")


def _check_holdings(host: ClusterHost, other: ClusterHost) -> None:
    """Check that the references of a node's tasks equal those of the remote task records elsewhere."""
    here, there = _cluster(host), _cluster(other)
    peer, back = here.peer(there.here.node), there.peer(here.here.node)
    mine = {
        (reference.id, reference.task.id, target.id): target.zombie
        for target in peer.proxies.values()
        for reference in target.references.values()
    }
    theirs = {
        (reference.id, deputy.home_id, reference.object.id): reference.object.zombie
        for deputy in back.remote_tasks.values()
        for reference in deputy.table
    }
    context = f"of node {here.here.node} on node {there.here.node}"
    missing = [entry for entry, zombie in mine.items() if entry not in theirs and not zombie]
    _require(not missing, f"references {context} have no counterpart there: {missing[:3]}")
    extra = [entry for entry in theirs if entry not in mine]
    _require(not extra, f"remote tasks {context} have references that no task has: {extra[:3]}")
    for deputy in back.remote_tasks.values():
        task = host.core.state.tasks.get(deputy.home_id)
        _require(
            task is not None and task.alive,
            f"a remote task {context} belongs to a task that has ended, {deputy.home_id} ({deputy.label!r})",
        )
    for target in peer.proxies.values():
        original = other.core.state.objects.get(target.id)
        if target.references and original is not None and not target.zombie and original.state is None:
            _check_counters(target, original, context)


def _check_counters(target: PhysicalObject, original: PhysicalObject, context: str) -> None:
    known = (target.v_r, target.v_w, target.size, target.a_r, target.a_w)
    truth = (original.v_r, original.v_w, original.size, original.a_r, original.a_w)
    _require(
        known == truth, f"the counters {context} are {known}, but should be {truth} ({original.type.name})"
    )


def _check_groups(world: SimulatedCluster, host: ClusterHost) -> None:
    """Check that a node that was up when a group was destroyed does not list the group any more.

    A node that started later may know the group from a client's keyring, because a name includes its home.
    """
    here = world.machines[_cluster(host).here.node]
    destroyed = {
        name
        for name, (node, life, when) in world.promises.disbanded.items()
        if world.machines[node].host is not None and world.machines[node].life == life
        if here.started_at < when
    }
    left = destroyed & host.core.state.groups.keys()
    _require(not left, f"a node still lists {len(left)} destroyed groups")


def _check_values(world: SimulatedCluster) -> None:
    """Check that nothing acknowledged is lost and nothing deleted is back."""
    for target, register in world.promises.registers.items():
        host = world.machines[register.home].host
        if host is None:
            continue
        known_object = host.core.state.objects.get(target)  # type: ignore[call-overload]
        if register.deleted_at is not None:
            _require(known_object is None, "an object that was deleted, or lost in a crash, exists")
        elif register.durable and isinstance(register.key, bytes) and not register.may_be_deleted:
            _require(known_object is not None, "a durable object that was acknowledged is lost")
            if known_object is not None and register.writes:
                value = host.contents.current(known_object.id)
                if not register.allows(value, world.now):
                    raise BrokenPromiseError(
                        f"a durable object has {value!r}, possible are {register.possible(world.now)!r}"
                    )


def probe(world: SimulatedCluster) -> None:
    """Open sessions on random nodes; find by name and read objects that were acknowledged."""
    wanted = {
        target: register
        for target, register in world.promises.registers.items()
        if register.durable
        and not register.may_be_deleted
        and register.deleted_at is None
        and isinstance(register.key, bytes)
        and world.machines[register.home].host is not None
        and not world.is_secret(target)
    }
    machines = [machine for machine in world.machines.values() if machine.host is not None]
    readable: dict[int, bool] = {}
    for target, register in list(wanted.items())[:PROBES_MAX]:
        client = world.open_session(world.rng.choice(machines), NODE_OWNER)
        key = register.key
        if not isinstance(key, bytes) or not world.may_resolve(client, key):
            continue
        readable[target] = False

        def read_found(
            result: messages.References, target: int = target, client: SimulatedClient = client
        ) -> None:
            for reference in result.references:
                if reference.object == target:
                    client.read(reference, Semantics.ANY, lambda read, _: _note(readable, target, read))

        client.lookup(key, read_found, limit=_NAMESAKES_MAX)
    world.queue.run((40 if world.slow else 4) * S)
    lost = [target for target, read in readable.items() if not read]
    _require(not lost, f"{len(lost)} of {len(readable)} durable objects cannot be found by name and read")


def _note(readable: dict[int, bool], target: int, read: messages.AnyResult) -> None:
    readable[target] = isinstance(read, messages.Buffer)


# -- at the end -----------------------------------------------------------------------------------------
def check_children(world: SimulatedCluster) -> None:
    """Check that the end of every task was reported exactly once to the task that started it."""
    for child in world.promises.children:
        parent = world.clients.get(child.parent)  # type: ignore[call-overload]
        if parent is None or parent.lost_events or child.object is None:
            continue
        reports = world.promises.reported_ends[child.parent, child.object]
        _require(reports == 1, f"the end of a task was reported {reports} times to its parent {child.parent}")


def check_nothing_left(world: SimulatedCluster) -> None:
    """Check that no request is active and no reference is left when all clients are gone."""
    for host in world.hosts():
        state = host.core.state
        for target in state.objects.values():
            _require((target.a_r, target.a_w) == (0, 0), "a request is active, but all clients are gone")
        for task in state.everybody():
            _require(not task.alive, f"task {task.id} ({task.label!r}) is still alive")
            _require(not len(task.table), "references are left")
        for peer in _cluster(host).peers.values():
            deputies = [
                (deputy.home_id, deputy.label, len(deputy.table), len(deputy.children))
                for deputy in peer.remote_tasks.values()
            ]
            _require(not deputies, f"remote tasks are left: {deputies[:3]}")
            targets = [(proxy.type, proxy.pinned, len(proxy.references)) for proxy in peer.proxies.values()]
            _require(not targets, f"proxies are left: {targets[:3]}")
        _require(not list(state.pending), "calls are still waiting")
        _require(not host.buffers, f"{len(host.buffers)} buffers are left in the host")
