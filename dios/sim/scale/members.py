"""Thousands of ``Membership`` machines in virtual time, and the number of messages, bytes and steps of each.

A connection exists while it is used: it is made for the first message, and ends when nothing was sent on it
for a while. Messages are counted with their encoded size, and delivered as they are, so that nodes share
rows. The same arguments give the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dios import limits
from dios.core.membership.swim import Decision, Membership
from dios.ids import NodeId
from dios.sim.event_queue import MS, EventQueue, S
from dios.wire import gossip
from dios.wire.gossip import GossipMessage, Load, MemberRow
from dios.wire.types import NodeStatus

DELAY_NS: Final = (200_000, 5 * MS)
LOAD_NS: Final = limits.LOAD_PERIOD_MS * MS
SEED_RETRY_NS: Final = S


class Costs(Struct):
    """The work of the nodes of a cluster in some time."""

    messages: int = 0
    bytes: int = 0
    steps: int = 0
    dials: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


class _Connection(Struct, eq=False):
    """A connection of two nodes; ``used_ns`` is the time of the last message."""

    ends: frozenset[NodeId]
    used_ns: int
    open: bool = True


class _Machine(Struct, eq=False):
    """A machine with the process on it, if there is one."""

    row: MemberRow
    offset_ns: int
    membership: Membership | None = None
    links: dict[NodeId, _Connection] = field(default_factory=dict)
    dialling: dict[NodeId, list[GossipMessage]] = field(default_factory=dict)
    timer: int = 0
    memory: int = 2**34


class MemberWorld(EventQueue):
    """``size`` nodes in racks of ``rack_size``; none of them runs yet."""

    def __init__(self, size: int, seed: int, *, rack_size: int = 40) -> None:
        super().__init__()
        self.rng: Final = Random(f"scale {size} {seed}")  # noqa: S311 - a simulation repeats itself
        self.costs = Costs()
        self.dead: Final[Counter[NodeId]] = Counter()
        self.machines: Final[dict[NodeId, _Machine]] = {}
        self.cut: dict[NodeId, int] = {}
        for place in range(size):
            node = NodeId(self.rng.randrange(1, 2**63))
            address = f"10.0.{place // 250}.{place % 250}:7117"
            row = MemberRow(node, f"n{place}", f"r{place // rack_size}", address)
            self.machines[node] = _Machine(row, self.rng.randrange(10**15))
        self.ids: Final = list(self.machines)

    # -- what happens to nodes ------------------------------------------------------------------------
    def start(self, node: NodeId, seeds: Iterable[NodeId]) -> None:
        """Start a process, which dials its seeds until it knows another node."""
        machine = self.machines[node]
        machine.row = replace(machine.row, epoch=machine.row.epoch + 1)
        machine.membership = Membership(machine.row, self.rng.randbytes)
        self._seek(node, machine.membership, tuple(seeds))
        self.after(self.rng.randrange(LOAD_NS), partial(self._measure, node, machine.membership))

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
            machine.membership = None
            for other in list(machine.links):
                self._break(node, other)
            machine.dialling.clear()

    def part(self, nodes: Iterable[NodeId], side: int) -> None:
        """Put nodes on a side of a partition; a node reaches those of its own side only."""
        for node in nodes:
            self.cut[node] = side
        for node in self.ids:
            for other in list(self.machines[node].links):
                if not self.reaches(node, other):
                    self._break(node, other)

    def heal(self) -> None:
        """End the partition."""
        self.cut.clear()

    def reaches(self, one: NodeId, other: NodeId) -> bool:
        """Return True if two nodes are on one side."""
        return self.cut.get(one, 0) == self.cut.get(other, 0)

    # -- the truth ------------------------------------------------------------------------------------
    def running(self) -> list[NodeId]:
        """Return the nodes with a process."""
        return [node for node, machine in self.machines.items() if machine.membership is not None]

    def view(self, node: NodeId) -> Membership:
        """Return the membership of a node that runs."""
        found = self.machines[node].membership
        assert found is not None  # noqa: S101 - the caller asks for running nodes only
        return found

    def wrong(self) -> int:
        """Return the number of running nodes whose live view is not true for their side."""
        sides: dict[int, set[tuple[NodeId, int]]] = {}
        for node in self.running():
            sides.setdefault(self.cut.get(node, 0), set()).add((node, self.machines[node].row.epoch))
        return sum(
            set(zip(view.nodes, view.epochs, strict=True)) != sides[self.cut.get(node, 0)]
            for node in self.running()
            for view in (self.view(node).view,)
        )

    def settle(self, within_ns: int, step_ns: int = S // 2) -> int | None:
        """Run until all views are true; return the time that it took, or None if it takes too long."""
        began = self.now
        while self.now - began < within_ns:
            if not self.wrong():
                return self.now - began
            self.run(step_ns)
        return None if self.wrong() else self.now - began

    def measure(self, span_ns: int) -> Costs:
        """Run for some time, and return what the nodes did."""
        before, self.costs = self.costs, Costs()
        self.run(span_ns)
        found, self.costs = self.costs, before
        return found

    def connections(self) -> int:
        """Return the number of open connections, each counted at both ends."""
        return sum(len(machine.links) for machine in self.machines.values())

    # -- the machinery --------------------------------------------------------------------------------
    def _clock(self, machine: _Machine) -> int:
        return self.now + machine.offset_ns

    def _measure(self, node: NodeId, process: Membership) -> None:
        """Let an idle node measure its load: its free memory moves a little all the time."""
        machine = self.machines[node]
        if machine.membership is process:
            machine.memory += self.rng.randrange(-(2**20), 2**20)
            self._call(node, lambda view, now: view.refresh(now, Load(0, 8, machine.memory)))
            self._close_idle(node)
            self.after(LOAD_NS, partial(self._measure, node, process))

    def _close_idle(self, node: NodeId) -> None:
        for other, link in list(self.machines[node].links.items()):
            if self.now - link.used_ns > limits.PEER_IDLE_MS * MS:
                link.open = False
                for one, two in ((node, other), (other, node)):
                    self.machines[one].links.pop(two, None)
                    found = self.machines[one].membership
                    if found is not None:
                        found.closed(two)

    def _seek(self, node: NodeId, process: Membership, seeds: tuple[NodeId, ...]) -> None:
        if self.machines[node].membership is process and not process.alive():
            for seed in seeds:
                self._dial(node, seed, None)
            self.after(SEED_RETRY_NS, partial(self._seek, node, process, seeds))

    def _break(self, one: NodeId, other: NodeId) -> None:
        link = self.machines[one].links.pop(other, None)
        self.machines[other].links.pop(one, None)
        if link is not None and link.open:
            link.open = False
            for node, gone in ((one, other), (other, one)):
                wait = self.rng.randrange(100 * MS, S)
                self.after(wait, partial(self._notice, node, self.machines[node].membership, gone))

    def _notice(self, node: NodeId, process: Membership | None, gone: NodeId) -> None:
        machine = self.machines[node]
        if process is not None and machine.membership is process and gone not in machine.links:
            self._call(node, lambda view, now: view.disconnected(now, gone))

    def _dial(self, node: NodeId, other: NodeId, message: GossipMessage | None) -> None:
        machine = self.machines[node]
        waiting = machine.dialling.get(other)
        if waiting is None:
            waiting = machine.dialling[other] = []
            self.costs.dials += 1
            self.after(self.rng.randrange(3 * MS, 15 * MS), partial(self._dialled, node, other, waiting))
        if message is not None and len(waiting) < limits.PEER_WAITING_GOSSIP_MAX:
            waiting.append(message)

    def _dialled(self, node: NodeId, other: NodeId, waiting: list[GossipMessage]) -> None:
        one, two = self.machines[node], self.machines[other]
        if one.dialling.get(other) is waiting:
            del one.dialling[other]
        if one.membership is None or two.membership is None or not self.reaches(node, other):
            return
        if other not in one.links:
            link = _Connection(frozenset((node, other)), self.now)
            one.links[other] = two.links[node] = link
            hellos = [replace(m.row, load=Load()) for m in (one, two)]
            self._call(node, lambda view, now: view.connected(now, hellos[1]))
            self._call(other, lambda view, now: view.connected(now, hellos[0]))
        for message in waiting:
            self._send(node, other, message)

    def _call(self, node: NodeId, action: Callable[[Membership, int], Decision]) -> None:
        machine = self.machines[node]
        process = machine.membership
        if process is None:
            return
        self.costs.steps += 1
        decision = action(process, self._clock(machine))
        for change in decision.changed:
            if change.member.status is NodeStatus.DEAD and change.former is not None:
                self.dead[change.member.node] += 1
        for to, message in decision.send:
            self._send(node, to, message)
        machine.timer += 1
        if process.next_tick is not None:
            span = max(0, process.next_tick - self._clock(machine))
            self.after(span + 1, partial(self._tick, node, process, machine.timer))

    def _tick(self, node: NodeId, process: Membership, timer: int) -> None:
        machine = self.machines[node]
        if machine.membership is process and machine.timer == timer:
            self._call(node, lambda view, now: view.tick(now))

    def _send(self, sender: NodeId, to: NodeId, message: GossipMessage) -> None:
        if to not in self.machines:
            return
        link = self.machines[sender].links.get(to)
        if link is None:
            self._dial(sender, to, message)
            return
        link.used_ns = self.now
        self.costs.messages += 1
        self.costs.bytes += len(gossip.encode(message))
        self.costs.kinds[type(message).__name__] += 1
        self.after(self.rng.randrange(*DELAY_NS), partial(self._arrive, link, sender, to, message))

    def _arrive(self, link: _Connection, sender: NodeId, to: NodeId, message: GossipMessage) -> None:
        if link.open and self.reaches(sender, to):
            self._call(to, lambda view, now: view.received(now, sender, message))
