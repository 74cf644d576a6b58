"""What goes wrong in a simulated cluster, and when: cuts, breaks, crashes, freezes, stalls.

Not for: messages that are lost one by one (``dios.sim.cluster.network``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations
from random import Random
from typing import Final, Protocol

from dios.ids import NodeId
from dios.sim.cluster.machine import Machine
from dios.sim.cluster.network import Network
from dios.sim.event_queue import MS, Agenda

PAUSE_NS: Final = (100 * MS, 2_500 * MS)
CUT_NS: Final = (50 * MS, 8_000 * MS)
FROZEN_NS: Final = (50 * MS, 6_000 * MS)
DOWN_NS: Final = (20 * MS, 8_000 * MS)
STALLED_NS: Final = (50 * MS, 1_500 * MS)


class People(Protocol):
    """Who is told that a node is gone, and that it is back."""

    def node_crashed(self, machine: Machine) -> None:
        """Everybody there is gone."""
        ...

    def people_come(self, machine: Machine) -> None:
        """The node is there for people."""
        ...


class Mischief:
    """The schedule. ``dead`` nodes do not come back."""

    def __init__(
        self,
        agenda: Agenda,
        rng: Random,
        machines: Mapping[NodeId, Machine],
        network: Network,
        people: People,
    ) -> None:
        self._agenda: Final = agenda
        self._rng: Final = rng
        self._machines: Final = machines
        self._network: Final = network
        self._people: Final = people
        self._until = 0
        self.dead: Final[set[NodeId]] = set()
        self.counts: Final[Counter[str]] = Counter()
        self.steps: Final[Counter[NodeId]] = Counter()
        self.troubled: Final[dict[NodeId, int]] = {}

    def begin(self, until: int) -> None:
        """Begin; the last trouble begins before ``until``."""
        self._until = until
        self._next()

    def _next(self) -> None:
        if self._agenda.now >= self._until:
            return
        self._agenda.after(self._rng.randint(*PAUSE_NS), self._next)
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (3, self._cut_off),
            (2, self._cut_one_way),
            (2, self._split),
            (4, self._snap),
            (2, self._crash),
            (3, self._freeze),
            (3, self._stall),
        )
        self._rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]()

    def _later(self, span_ns: tuple[int, int], action: Callable[[], None]) -> None:
        self._agenda.at(min(self._agenda.now + self._rng.randint(*span_ns), self._until), action)

    def _one(self) -> Machine:
        return self._rng.choice(list(self._machines.values()))

    def _sever(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        self._network.sever(ways)
        for way in ways:
            self._trouble(*way)
        self._later(CUT_NS, partial(self._mend, ways))

    def _mend(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        self._network.mend(ways)
        for way in ways:
            self._trouble(*way)

    def _trouble(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.troubled[node] = self._agenda.now

    def _cut_off(self) -> None:
        """Two nodes do not reach each other."""
        one, other = self._rng.sample(list(self._machines), 2)
        self.counts["cuts"] += 1
        self._sever({(one, other), (other, one)})

    def _cut_one_way(self) -> None:
        one, other = self._rng.sample(list(self._machines), 2)
        self.counts["one-way cuts"] += 1
        self._sever({(one, other)})

    def _split(self) -> None:
        """The cluster falls into two parts."""
        nodes = list(self._machines)
        self._rng.shuffle(nodes)
        left = set(nodes[: self._rng.randrange(1, len(nodes))])
        self.counts["partitions"] += 1
        self._sever(
            {(one, other) for one, other in permutations(nodes, 2) if (one in left) != (other in left)}
        )

    def _snap(self) -> None:
        one, other = self._rng.sample(list(self._machines), 2)
        self.counts["broken connections"] += 1
        self._trouble(one, other)
        self._network.snap(one, other, span_ns=self._rng.choice(((1 * MS, 5 * MS), (1 * MS, 900 * MS))))

    def _freeze(self) -> None:
        machine = self._one()
        if machine.healthy:
            self.counts["freezes"] += 1
            machine.freeze()
            life = machine.life
            self._trouble(machine.node)
            self._later(FROZEN_NS, partial(self._thaw, machine, life))

    def _thaw(self, machine: Machine, life: int) -> None:
        if machine.life == life and machine.host is not None:
            self._trouble(machine.node)
            machine.thaw()

    def _stall(self) -> None:
        machine = self._one()
        self.counts["stalls"] += 1
        machine.stalled_until = self._agenda.now + self._rng.randint(*STALLED_NS)
        self._trouble(machine.node)

    def _crash(self) -> None:
        machine = self._one()
        if machine.host is None:
            return
        self.counts["crashes"] += 1
        self._trouble(machine.node)
        self.steps[machine.node] += machine.host.steps
        machine.crash()
        self._people.node_crashed(machine)
        self._network.crashed(machine.node, silent=self._rng.random() < 0.3)
        if self._rng.random() < 0.12 and len(self.dead) < len(self._machines) - 2:
            self.dead.add(machine.node)
            self.counts["deaths"] += 1
        else:
            self._later(DOWN_NS, partial(self._return, machine))

    def _return(self, machine: Machine) -> None:
        if machine.host is None and machine.node not in self.dead:
            self._trouble(machine.node)
            machine.start()
            self._people.people_come(machine)

    def heal(self) -> None:
        """Everything is well again, but for the dead."""
        self._network.manner = type(self._network.manner)()
        self._network.mend(set(self._network.cut))
        for machine in self._machines.values():
            machine.stalled_until = 0
            machine.thaw()
            self._return(machine)
