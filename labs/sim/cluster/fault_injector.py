"""The fault injector of a simulated cluster: cuts, broken connections, crashes, freezes, stalled disks.

The loss of single messages is in ``labs.sim.cluster.network``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations
from random import Random
from typing import Final, Protocol

from dios.ids import NodeId
from labs.sim.cluster.machine import SimMachine
from labs.sim.cluster.network import SimNetwork
from labs.sim.event_queue import MS, EventQueue

PAUSE_NS: Final = (100 * MS, 2_500 * MS)
CUT_NS: Final = (50 * MS, 8_000 * MS)
FROZEN_NS: Final = (50 * MS, 6_000 * MS)
DOWN_NS: Final = (20 * MS, 8_000 * MS)
RESTARTED_NS: Final = (500 * MS, 1_500 * MS)
RESTARTING_NS: Final = (10 * MS, 100 * MS)
RETIREMENTS_LOST_NS: Final = (6_000 * MS, 9_000 * MS)
STALLED_NS: Final = (50 * MS, 1_500 * MS)


class NodeLifecycleListener(Protocol):
    """The receiver of notices that a node has crashed or is back."""

    def node_crashed(self, machine: SimMachine) -> None:
        """Handle the crash of a node and the end of its tasks and sessions."""

    def open_sessions(self, machine: SimMachine) -> None:
        """Open sessions at a node that has started."""


class FaultInjector:
    """A random schedule of faults. ``dead`` nodes do not come back."""

    def __init__(
        self,
        queue: EventQueue,
        rng: Random,
        machines: Mapping[NodeId, SimMachine],
        network: SimNetwork,
        listener: NodeLifecycleListener,
    ) -> None:
        self._queue: Final = queue
        self._rng: Final = rng
        self._machines: Final = machines
        self._network: Final = network
        self._listener: Final = listener
        self._until = 0
        self.dead: Final[set[NodeId]] = set()
        self.counts: Final[Counter[str]] = Counter()
        self.steps: Final[Counter[NodeId]] = Counter()
        self.troubled: Final[dict[NodeId, int]] = {}

    def is_connected(self, first: NodeId, other: NodeId) -> bool:
        """Return True if messages between two nodes arrive, or if it is the same node."""
        cut = self._network.cut & {(first, other), (other, first)}
        return first == other or (not cut and self._network.connected(first, other))

    def begin(self, until: int) -> None:
        """Start; the last fault begins before ``until``, in nanoseconds of virtual time."""
        self._until = until
        self._inject_next()

    def _inject_next(self) -> None:
        if self._queue.now >= self._until:
            return
        self._queue.after(self._rng.randint(*PAUSE_NS), self._inject_next)
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (3, self._cut_off),
            (2, self._cut_one_way),
            (2, self._split),
            (4, self._break_connection),
            (2, self._crash),
            (3, self._freeze),
            (3, self._stall),
        )
        self._rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]()

    def _later(self, span_ns: tuple[int, int], action: Callable[[], None]) -> None:
        self._queue.at(min(self._queue.now + self._rng.randint(*span_ns), self._until), action)

    def _random_machine(self) -> SimMachine:
        return self._rng.choice(list(self._machines.values()))

    def _sever(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        self._network.sever(ways)
        for way in ways:
            self._mark_troubled(*way)
        self._later(CUT_NS, partial(self._mend, ways))

    def _mend(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        self._network.mend(ways)
        for way in ways:
            self._mark_troubled(*way)

    def _mark_troubled(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.troubled[node] = self._queue.now

    def _cut_off(self) -> None:
        """Cut the network between two nodes in both directions."""
        first, other = self._rng.sample(list(self._machines), 2)
        self.counts["cuts"] += 1
        self._sever({(first, other), (other, first)})

    def _cut_one_way(self) -> None:
        first, other = self._rng.sample(list(self._machines), 2)
        self.counts["one-way cuts"] += 1
        self._sever({(first, other)})

    def _split(self) -> None:
        """Partition the cluster into two parts."""
        nodes = list(self._machines)
        self._rng.shuffle(nodes)
        left = set(nodes[: self._rng.randrange(1, len(nodes))])
        self.counts["partitions"] += 1
        self._sever(
            {(first, other) for first, other in permutations(nodes, 2) if (first in left) != (other in left)}
        )

    def _break_connection(self) -> None:
        first, other = self._rng.sample(list(self._machines), 2)
        self.counts["broken connections"] += 1
        self._mark_troubled(first, other)
        self._network.break_connection(
            first, other, span_ns=self._rng.choice(((1 * MS, 5 * MS), (1 * MS, 900 * MS)))
        )

    def _freeze(self) -> None:
        machine = self._random_machine()
        if machine.healthy:
            self.counts["freezes"] += 1
            machine.freeze()
            life = machine.life
            self._mark_troubled(machine.node)
            self._later(FROZEN_NS, partial(self._thaw, machine, life))

    def _thaw(self, machine: SimMachine, life: int) -> None:
        if machine.life == life and machine.host is not None:
            self._mark_troubled(machine.node)
            machine.thaw()

    def _stall(self) -> None:
        machine = self._random_machine()
        self.counts["stalls"] += 1
        machine.stalled_until = self._queue.now + self._rng.randint(*STALLED_NS)
        self._mark_troubled(machine.node)

    def restart_often(self) -> None:
        """Crash a random node every now and then, which is back at once."""
        if self._queue.now < self._until:
            self._queue.after(self._rng.randint(*RESTARTED_NS), self.restart_often)
            self._crash(RESTARTING_NS)

    def _crash(self, down_ns: tuple[int, int] = DOWN_NS) -> None:
        machine = self._random_machine()
        if machine.host is None:
            return
        self.counts["crashes"] += 1
        self._mark_troubled(machine.node)
        self.steps[machine.node] += machine.host.steps
        machine.crash()
        self._listener.node_crashed(machine)
        self._network.crashed(machine.node, silent=self._rng.random() < 0.3)
        if self._rng.random() < 0.12 and len(self.dead) < len(self._machines) - 2:
            self.dead.add(machine.node)
            self.counts["deaths"] += 1
        else:
            self._later(down_ns, partial(self._restart, machine))

    def restart_unnoticed(self, machine: SimMachine, readers: set[NodeId]) -> None:
        """Restart a node at once, and let some other nodes notice it only later."""
        if machine.host is None or self._queue.now >= self._until:
            return
        node = machine.node
        self.counts["unnoticed restarts"] += 1
        self._sever({way for other in readers - {node} for way in ((node, other), (other, node))})
        self._mark_troubled(node)
        self.steps[node] += machine.host.steps
        machine.crash()
        self._listener.node_crashed(machine)
        self._network.crashed(node, silent=True)
        self._later(RESTARTING_NS, partial(self._restart, machine))

    def lose_retirements(self, node: NodeId) -> None:
        """Lose the notices to a node that references were taken back."""
        self.counts["lost retirements"] += 1
        self._mark_troubled(node)
        self._network.lost_retirements[node] = self._queue.now + self._rng.randint(*RETIREMENTS_LOST_NS)

    def _restart(self, machine: SimMachine) -> None:
        if machine.host is None and machine.node not in self.dead:
            self._mark_troubled(machine.node)
            machine.start()
            self._listener.open_sessions(machine)

    def heal(self) -> None:
        """End all faults; only the dead nodes stay down."""
        self._network.policy = type(self._network.policy)()
        self._network.late_versions = None
        self._network.lost_retirements.clear()
        self._network.mend(set(self._network.cut))
        for machine in self._machines.values():
            machine.stalled_until = 0
            machine.thaw()
            self._restart(machine)
