"""Whether the nodes of a simulated cluster agree with each other, and with what they have promised.

Not for: single answers, which are judged when they come (``dios.sim.cluster.simulated_client``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dios.core.model.records import PhysicalObject
from dios.core.remote.peers import Cluster
from dios.sim.cluster.host import ClusterHost
from dios.sim.cluster.simulated_client import BLOBS, Caller
from dios.sim.event_queue import S
from dios.sim.node.checker import BrokenPromiseError
from dios.sim.node.host import NODE_OWNER
from dios.wire import messages
from dios.wire.types import NodeStatus, Permission, Semantics

if TYPE_CHECKING:
    from dios.sim.cluster.world import ClusterWorld

LOOKUP_NS: Final = 9 * S
ANY_NS: Final = 40 * S
WELL_NS: Final = 6 * S
ANSWERS_MAX: Final = 64
SPARE_ANSWERS_MAX: Final = 8
PROBES_MAX: Final = 12


def _require(condition: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise BrokenPromiseError(what)


def _cluster(host: ClusterHost) -> Cluster:
    cluster = host.core.state.cluster
    if cluster is None:
        raise BrokenPromiseError("a node knows of no cluster")
    return cluster


# -- at any time --------------------------------------------------------------------------------------
def check_patience(world: ClusterWorld, caller: Caller) -> None:
    """Every call is answered in time, and soon where nothing that it needs was in trouble."""
    for sent in caller.sent.values():
        if sent.waits:
            continue
        thawed = world.machines[caller.node].thawed_at
        waited = world.now - max(sent.since, thawed)
        bound = LOOKUP_NS if isinstance(sent.call, messages.Lookup) else ANY_NS
        troubled = max((world.mischief.troubled.get(node, 0) for node in sent.nodes), default=0)
        well = world.now - troubled > WELL_NS + ANY_NS
        if well:
            bound = WELL_NS
        _require(
            waited <= bound, f"{sent.call!r} of a {caller.label or 'session'} waits for {waited / S:.1f} s"
        )


def check_rights(world: ClusterWorld, host: ClusterHost, *, quiet: bool) -> None:
    """Nobody has a reference, or a right, without a reason."""
    known = set(world.ledger.keys.values())
    for task in host.core.state.everybody():
        who: tuple[int | str, ...] = (task.id, task.label)
        for reference in task.table:
            target = reference.object
            if target.type not in BLOBS or target.zombie:
                continue
            key = target.name if target.name is not None else world.ledger.keys.get(target.id)
            if key is None or key not in known:
                continue  # nobody was told of it yet
            mask = world.ledger.mask_of(who, key, quiet=quiet)
            excess = int(reference.permissions) & ~mask
            _require(
                not excess and bool(mask),
                f"task {task.id} ({task.label!r}, home {task.home}) on node {_cluster(host).here.node} holds"
                f" {Permission(excess)!r} on {target.fingerprint} of node {target.home} without authority",
            )


# -- after healing and quiet ----------------------------------------------------------------------------
def check_agreement(world: ClusterWorld) -> None:
    """Nodes agree on who holds what, on who lives, and keep nothing of what is over."""
    for host in world.hosts():
        check_rights(world, host, quiet=True)
        _check_members(world, host)
        _check_questions(world, host)
        for other in world.hosts():
            if other is not host:
                _check_holdings(host, other)
        _check_groups(world, host)
    _check_values(world)


def _check_members(world: ClusterWorld, host: ClusterHost) -> None:
    cluster = _cluster(host)
    for member in cluster.membership.members.values():
        machine = world.machines[member.node]
        peer = cluster.peer(member.node)
        if machine.host is None:
            _require(
                member.status is NodeStatus.DEAD, f"{machine.name} is dead, and said to be {member.status}"
            )
            _require(not peer.deputies, "deputies of a dead node are left after its grace")
        else:
            _require(
                member.status is NodeStatus.ALIVE, f"{machine.name} lives, and is said to be {member.status}"
            )
            _require(member.epoch == peer.epoch == machine.life, "an epoch is not the present one")
            _require(peer.connected, f"{machine.name} is not connected")
            _require(peer.dead_since is None, "a living node is taken for dead")


def _check_questions(world: ClusterWorld, host: ClusterHost) -> None:
    """Few questions are open, and of answers there is little left but to those that are."""
    cluster = _cluster(host)
    for peer in cluster.peers.values():
        waiting = [one.body for one in peer.asked.values()]
        _require(len(waiting) <= 8, f"{len(waiting)} questions are still open: {waiting[:3]}")
        _require(len(peer.answers) <= ANSWERS_MAX, f"{len(peer.answers)} answers are still remembered")
        asker = world.machines[peer.node].host
        if asker is not None:
            # At most those that came after the asker said last what it has.
            spare = peer.answers.keys() - _cluster(asker).peer(cluster.here.node).asked.keys()
            _require(len(spare) <= SPARE_ANSWERS_MAX, f"{len(spare)} answers are remembered for nobody")
    _require(not cluster.to_release, "references that were dropped are not released")


def _check_holdings(host: ClusterHost, other: ClusterHost) -> None:
    """What the tasks of a node hold on another is what their deputies hold there."""
    here, there = _cluster(host), _cluster(other)
    peer, back = here.peer(there.here.node), there.peer(here.here.node)
    mine = {
        (reference.id, reference.task.id, target.id): target.zombie
        for target in peer.stand_ins.values()
        for reference in target.references.values()
    }
    theirs = {
        (reference.id, deputy.id, reference.object.id): reference.object.zombie
        for deputy in back.deputies.values()
        for reference in deputy.table
    }
    where = f"of node {here.here.node} on node {there.here.node}"
    missing = [entry for entry, zombie in mine.items() if entry not in theirs and not zombie]
    _require(not missing, f"references {where} that nothing there stands for: {missing[:3]}")
    extra = [entry for entry in theirs if entry not in mine]
    _require(not extra, f"deputies {where} hold what nobody here does: {extra[:3]}")
    for deputy in back.deputies.values():
        task = host.core.state.tasks.get(deputy.id)
        _require(
            task is not None and task.alive,
            f"a deputy {where} of a task that is over, {deputy.id} ({deputy.label!r})",
        )
    for target in peer.stand_ins.values():
        original = other.core.state.objects.get(target.id)
        if target.references and original is not None and not target.zombie and original.state is None:
            _check_counters(target, original, where)


def _check_counters(target: PhysicalObject, original: PhysicalObject, where: str) -> None:
    told = (target.v_r, target.v_w, target.size, target.a_r, target.a_w)
    truth = (original.v_r, original.v_w, original.size, original.a_r, original.a_w)
    _require(told == truth, f"the counters {where} are {told}, and should be {truth} ({original.type.name})")


def _check_groups(world: ClusterWorld, host: ClusterHost) -> None:
    """Nobody who lived then still knows a group that was destroyed.

    A node that has started since may have it from somebody's keyring: the name says whose it is.
    """
    here = world.machines[_cluster(host).here.node]
    told = {
        name
        for name, (node, life, when) in world.ledger.disbanded.items()
        if world.machines[node].host is not None and world.machines[node].life == life
        if here.started_at < when
    }
    left = told & host.core.state.groups.keys()
    _require(not left, f"{len(left)} groups that were destroyed are still known on a node")


def _check_values(world: ClusterWorld) -> None:
    """Nothing acknowledged is lost, nothing deleted is back."""
    for target, register in world.ledger.registers.items():
        host = world.machines[register.home].host
        if host is None:
            continue
        found = host.core.state.objects.get(target)  # type: ignore[call-overload]
        if register.gone_at is not None:
            _require(found is None, "an object that was deleted, or of an earlier life, is there")
        elif register.durable and isinstance(register.key, bytes) and not register.may_be_gone:
            _require(found is not None, "a durable object that was acknowledged is lost")
            if found is not None and register.writes:
                value = host.contents.current(found.id)
                if not register.allows(value, world.now):
                    raise BrokenPromiseError(
                        f"a durable object has {value!r}, possible are {register.possible(world.now)!r}"
                    )


def probe(world: ClusterWorld) -> None:
    """People come, find by name what was acknowledged, on whatever node, and read it."""
    wanted = {
        target: register
        for target, register in world.ledger.registers.items()
        if register.durable
        and not register.may_be_gone
        and register.gone_at is None
        and isinstance(register.key, bytes)
        and world.machines[register.home].host is not None
    }
    machines = [machine for machine in world.machines.values() if machine.host is not None]
    found: dict[int, bool] = {}
    for target, register in list(wanted.items())[:PROBES_MAX]:
        caller = world.open_session(world.rng.choice(machines), NODE_OWNER)
        key = register.key
        if not isinstance(key, bytes) or not world.may_resolve(caller, key):
            continue
        found[target] = False

        def look(result: messages.References, target: int = target, caller: Caller = caller) -> None:
            for reference in result.references:
                if reference.object == target:
                    caller.read(reference, Semantics.ANY, lambda read, _: _note(found, target, read))

        caller.look(key, look, limit=8)
    world.agenda.run(4 * S)
    lost = [target for target, read in found.items() if not read]
    _require(
        not lost, f"{len(lost)} of {len(found)} durable objects are not found by their names, or not read"
    )


def _note(found: dict[int, bool], target: int, read: messages.AnyResult) -> None:
    found[target] = isinstance(read, messages.Buffer)


# -- at the end -----------------------------------------------------------------------------------------
def check_children(world: ClusterWorld) -> None:
    """The end of every task was told to who started it, once."""
    for child in world.ledger.children:
        parent = world.callers.get(child.parent)  # type: ignore[call-overload]
        if parent is None or parent.lost_events or child.object is None:
            continue
        told = world.ledger.told[child.parent, child.object]
        _require(told == 1, f"the end of a task was told {told} times to {child.parent}, who started it")


def check_nothing_left(world: ClusterWorld) -> None:
    """When everybody is gone no request is active, and nobody holds anything."""
    for host in world.hosts():
        state = host.core.state
        for target in state.objects.values():
            _require((target.a_r, target.a_w) == (0, 0), "a request is active, and nobody is there")
        for task in state.everybody():
            _require(not task.alive, f"task {task.id} ({task.label!r}) is still there")
            _require(not len(task.table), "references are left")
        for peer in _cluster(host).peers.values():
            deputies = [
                (one.id, one.label, len(one.table), len(one.children)) for one in peer.deputies.values()
            ]
            _require(not deputies, f"deputies are left: {deputies[:3]}")
            targets = [(one.type, one.pinned, len(one.references)) for one in peer.stand_ins.values()]
            _require(not targets, f"stand-ins are left: {targets[:3]}")
        _require(not list(state.pending), "calls still wait")
        _require(not host.buffers, f"{len(host.buffers)} buffers are left in the host")
