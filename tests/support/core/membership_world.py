"""A cluster of ``Membership`` machines in virtual time: links that lose and delay, nodes that die.

Not for: connections or the DCP. A link here stands or not, and says so to both its ends as a host would.
The same arguments give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dios.core.membership.swim import Change, Decision, Membership
from dios.ids import NodeId
from dios.wire import gossip
from dios.wire.gossip import GossipMessage, MemberRow
from dios.wire.types import NodeStatus
from labs.sim.event_queue import MS, EventQueue

SEED_RETRY_NS: Final = 500 * MS


class Seen(Struct, frozen=True):
    """One change, when and by whom it was seen."""

    at_ns: int
    observer: NodeId
    change: Change


class SimNode(Struct):
    """A machine with its own clock, and the process on it if there is one."""

    id: NodeId
    offset_ns: int
    rate: float
    membership: Membership | None = None
    epoch: int = 0
    frozen: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)  # what a frozen process will find
    timer: int = 0  # which of the scheduled ticks counts


class GossipWorld(EventQueue):
    """``size`` nodes, none of them running. Loss is a share of the messages, delays are milliseconds."""

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        loss: float = 0.0,
        delay_ms: tuple[float, float] = (0.2, 5.0),
        doubled: float = 0.0,
        late: float = 0.0,
        drift: float = 0.0,
        closes_dead: bool = False,
    ) -> None:
        super().__init__()
        self.rng: Final = Random(f"gossip {size} {seed}")  # noqa: S311 - a simulation repeats itself
        self.loss = loss
        self.delay_ms = delay_ms
        self.doubled: Final = doubled
        self.late: Final = late
        self.closes_dead: Final = closes_dead
        self.messages = 0
        self.cut: Final[set[tuple[NodeId, NodeId]]] = set()
        self.seen: Final[list[Seen]] = []
        self.nodes: Final = {
            node: SimNode(node, self.rng.randrange(10**18), 1 + self.rng.uniform(-drift, drift))
            for node in (NodeId(self.rng.randrange(1, 2**63)) for _ in range(size))
        }
        self._links: Final[dict[frozenset[NodeId], int]] = {}
        self._made: Final = count()

    # -- what happens to nodes ----------------------------------------------------------------------
    def ids(self) -> list[NodeId]:
        """All machines."""
        return list(self.nodes)

    def running(self) -> list[NodeId]:
        """Those with a process that is not frozen."""
        return [node.id for node in self.nodes.values() if node.membership is not None and not node.frozen]

    def view(self, node: NodeId) -> Membership:
        """The process of a node that runs."""
        membership = self.nodes[node].membership
        assert membership is not None
        return membership

    def start(self, node: NodeId) -> None:
        """Start a process; it dials every other machine until it knows somebody."""
        machine = self.nodes[node]
        assert machine.membership is None
        machine.epoch += 1
        own = MemberRow(node, f"n{node % 1000}", address=f"{node}:1", epoch=machine.epoch)
        machine.membership = Membership(own, self.rng.randbytes)
        machine.frozen = False
        self._seek(node, machine.membership)

    def start_all(self) -> None:
        """Start every machine, at slightly different moments."""
        for node in self.nodes:
            self.at(self.now + self.rng.randrange(200 * MS), partial(self.start, node))
        self.run(200 * MS)

    def kill(self, node: NodeId) -> None:
        """The process is gone at once; its system closes the connections."""
        self._stop(node)

    def leave(self, node: NodeId) -> None:
        """The process says good-bye, and stops when that has gone out."""
        machine = self.nodes[node]
        process = self.view(node)
        self._did(machine, process.leave(self._clock(machine)))

        def stop() -> None:
            if machine.membership is process:
                self._stop(node)

        self.at(self.now + int(self.delay_ms[1] * MS), stop)

    def freeze(self, node: NodeId) -> None:
        """The process stands still; its connections stand, too."""
        self.nodes[node].frozen = True

    def thaw(self, node: NodeId) -> None:
        """The process goes on, and finds what has come in the meantime, in any order with its timer."""
        machine = self.nodes[node]
        machine.frozen = False
        actions, machine.waiting = machine.waiting, []
        if self.rng.random() < 0.5:
            actions.insert(0, lambda: self._tick(machine))
        else:
            actions.append(lambda: self._tick(machine))
        for action in actions:
            self.at(self.now + self.rng.randrange(MS), action)

    def part(self, side: list[NodeId], other: list[NodeId], *, both_ways: bool = True) -> None:
        """Nothing that ``side`` sends reaches ``other``, and the other way round."""
        self.cut.update((a, b) for a in side for b in other if a != b)
        if both_ways:
            self.cut.update((b, a) for a in side for b in other if a != b)

    def tell(self, sender: NodeId, to: NodeId, message: GossipMessage) -> None:
        """Let a message that no process has made come from a node at once."""
        body = gossip.decode(gossip.encode(message))
        self._call(self.nodes[to], lambda view, now: view.received(now, sender, body))

    def change(self, node: NodeId, action: Callable[[Membership, int], Decision]) -> None:
        """Let a node do something of its own."""
        self._call(self.nodes[node], action)

    def break_links(self, side: list[NodeId], other: list[NodeId]) -> None:
        """Both ends notice that their connection is gone."""
        for a in side:
            for b in other:
                if self._links.pop(frozenset((a, b)), None) is not None:
                    self._notice(a, b)
                    self._notice(b, a)

    def heal(self) -> None:
        """Nothing is cut any more."""
        self.cut.clear()

    # -- the truth ----------------------------------------------------------------------------------
    def differences(self) -> list[str]:
        """Where a running node's table is not what is so."""
        faults: list[str] = []
        for observer in self.running():
            rows = self.view(observer).members
            for node, machine in self.nodes.items():
                if node == observer or (machine.epoch == 0 and node not in rows):
                    continue
                row = rows.get(node)
                if machine.membership is None:
                    if row is not None and row.status in {NodeStatus.ALIVE, NodeStatus.SUSPECT}:
                        faults.append(f"{observer} takes {node} for {row.status}")
                elif row is None:
                    faults.append(f"{observer} does not know {node}")
                elif row.epoch != machine.epoch or row.status is not NodeStatus.ALIVE:
                    faults.append(f"{observer} has {node} {row.status} in epoch {row.epoch}/{machine.epoch}")
        return faults

    def converges(self, within_ns: int) -> bool:
        """Whether all tables come to be true."""
        end = self.now + within_ns
        while self.now < end:
            if not self.differences():
                return True
            self.run(100 * MS)
        return not self.differences()

    def deaths(self) -> list[Seen]:
        """Every time that somebody declared somebody dead."""
        return [seen for seen in self.seen if seen.change.member.status is NodeStatus.DEAD]

    # -- the machinery ------------------------------------------------------------------------------
    def _clock(self, machine: SimNode) -> int:
        return int(self.now * machine.rate) + machine.offset_ns

    def _delay(self) -> int:
        low, high = self.delay_ms
        if self.late and self.rng.random() < self.late:
            high *= 20
        return int(self.rng.uniform(low, high) * MS)

    def _seek(self, node: NodeId, process: Membership) -> None:
        machine = self.nodes[node]
        if machine.membership is not process or process.alive():
            return
        for other in self.nodes:
            if other != node:
                self._dial(node, other)
        self.at(self.now + SEED_RETRY_NS, lambda: self._seek(node, process))

    def _stop(self, node: NodeId) -> None:
        machine = self.nodes[node]
        machine.membership = None
        machine.frozen = False
        machine.waiting = []
        for other in self.nodes:
            link = frozenset((node, other))
            if link in self._links:
                del self._links[link]
                if (node, other) not in self.cut:
                    self._notice(other, node)

    def _notice(self, node: NodeId, gone: NodeId) -> None:
        machine = self.nodes[node]
        process = machine.membership

        def act() -> None:
            if machine.membership is process and frozenset((node, gone)) not in self._links:
                self._call(machine, lambda view, now: view.disconnected(now, gone))

        self.at(self.now + self._delay(), act)

    def _dial(self, a: NodeId, b: NodeId) -> None:
        link = frozenset((a, b))
        caller, two = self.nodes[a], self.nodes[b]
        dialer = caller.membership

        def act() -> None:
            if link in self._links or dialer is None or caller.membership is not dialer or caller.frozen:
                return
            if {(a, b), (b, a)} & self.cut or two.frozen:
                return
            if two.membership is None:
                if b in dialer.members:
                    self._call(caller, lambda view, now: view.disconnected(now, b))
                return
            self._links[link] = next(self._made)
            # What a hello tells is less than the whole row.
            ours, theirs = (replace(n.own, incarnation=0, version=0) for n in (dialer, two.membership))
            self._call(caller, lambda view, now: view.connected(now, theirs))
            self._call(two, lambda view, now: view.connected(now, ours))

        self.at(self.now + 2 * self._delay(), act)

    def _call(self, machine: SimNode, action: Callable[[Membership, int], Decision]) -> None:
        process = machine.membership

        def act() -> None:
            if process is not None and machine.membership is process:
                if machine.frozen:
                    machine.waiting.append(act)
                else:
                    self._did(machine, action(process, self._clock(machine)))

        act()

    def _did(self, machine: SimNode, decision: Decision) -> None:
        self.seen.extend(Seen(self.now, machine.id, change) for change in decision.changed)
        for to, message in decision.send:
            self._send(machine.id, to, message)
        if self.closes_dead:
            for change in decision.changed:
                if change.member.status is NodeStatus.DEAD:
                    self.break_links([machine.id], [change.member.node])
        process = machine.membership
        assert process is not None
        machine.timer += 1
        if process.next_tick is not None:
            span = max(0, process.next_tick - self._clock(machine))
            timer = machine.timer
            jitter = self.rng.randrange(2 * MS)

            def fire() -> None:
                if machine.membership is process and machine.timer == timer:
                    self._tick(machine)

            self.at(self.now + int(span / machine.rate) + 1 + jitter, fire)

    def _tick(self, machine: SimNode) -> None:
        if not machine.frozen and machine.membership is not None:
            self._did(machine, machine.membership.tick(self._clock(machine)))

    def _send(self, sender: NodeId, to: NodeId, message: GossipMessage) -> None:
        self.messages += 1
        if to not in self.nodes:
            return  # somebody made it up
        link = frozenset((sender, to))
        standing = self._links.get(link)
        if standing is None:
            self._dial(sender, to)
            return
        body = gossip.encode(message)
        for _ in range(2 if self.doubled and self.rng.random() < self.doubled else 1):
            if (sender, to) in self.cut or (self.loss and self.rng.random() < self.loss):
                continue

            def act() -> None:
                # A connection brings nothing after its end.
                if self._links.get(link) == standing and (sender, to) not in self.cut:
                    machine = self.nodes[to]
                    self._call(machine, lambda view, now: view.received(now, sender, gossip.decode(body)))

            self.at(self.now + self._delay(), act)
