"""One machine of a simulated cluster: its disk and clock last, its node lives, freezes, crashes and returns.

Not for: what happens when (``dios.sim.cluster.world``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from blake3 import blake3

from dios.core import effects
from dios.core.remote.peers import Here
from dios.ids import NodeId, ObjectId, TaskId
from dios.sim.cluster.host import ClusterHost
from dios.sim.cluster.network import Network
from dios.sim.disk.device import Device, PowerCutError
from dios.sim.disk.faults import NoFaults
from dios.sim.disk.model_store import ModelStore
from dios.sim.event_queue import MS, US, Agenda
from dios.wire import dcp, messages

PAGE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
STORED_INLINE_BYTES: Final = 64
CUT_WITHIN: Final = 12
JOBS_MAX: Final = 4
SYNC_NS: Final = (100 * US, 6 * MS)
SECRET: Final = blake3(b"the secret of a simulated cluster").digest()


class People(Protocol):
    """Who is at a machine: the world, told what its node says to its tasks and processes."""

    def answered(
        self, machine: Machine, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]
    ) -> None:
        """A task is answered."""
        ...

    def spawn(self, machine: Machine, effect: effects.Spawn) -> None:
        """A process shall start."""
        ...

    def control(
        self,
        machine: Machine,
        effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection,
    ) -> None:
        """Something is to be done with a process, or a session."""
        ...

    def stored(self, target: ObjectId, name: bytes | None, value: bytes) -> None:
        """An object has a new content."""
        ...


class Machine:
    """``rate`` and ``offset`` make the node's clock of the virtual time; ``life`` counts its starts."""

    def __init__(
        self, node: NodeId, rack: str, agenda: Agenda, rng: Random, people: People, trace: blake3
    ) -> None:
        self.node: Final = node
        self.name: Final = f"n{node}"
        self.rack: Final = rack
        self._agenda: Final = agenda
        self._rng: Final = rng
        self._people: Final = people
        self._trace: Final = trace
        self._rate: Final = 1 + rng.uniform(-0.005, 0.005)
        self._offset: Final = rng.randrange(10**15)
        self.device: Final = Device(rng, NoFaults(), page_bytes=PAGE_BYTES, sector_bytes=SECTOR_BYTES)
        self.network: Network
        self.store: ModelStore
        self.host: ClusterHost | None = None
        self.life = 0
        self.frozen = False
        self.stalled_until = 0
        self.thawed_at = 0
        self.started_at = 0
        self.late: list[Callable[[ClusterHost], None]] = []
        self._wake = 0
        self._syncing = False

    # -- time ---------------------------------------------------------------------------------------
    def clock(self) -> int:
        """The node's own time."""
        return self._offset + int(self._agenda.now * self._rate)

    @property
    def healthy(self) -> bool:
        """Whether the node runs and is not frozen."""
        return self.host is not None and not self.frozen

    def tell(self, action: Callable[[ClusterHost], None]) -> None:
        """Let something happen at the node: now, when it thaws, or never."""
        host = self.host
        if host is None:
            return
        if self.frozen:
            self.late.append(action)
            return
        host.now = max(host.now, self.clock())
        action(host)
        if self.host is host:
            self._look_ahead(host)

    def _look_ahead(self, host: ClusterHost) -> None:
        """Come back when the node wants to be woken, and when its disk is done."""
        if not host.settled and not self._syncing:
            self._syncing = True
            when = max(self._agenda.now, self.stalled_until) + self._rng.randint(*SYNC_NS)
            life = self.life
            self._agenda.at(when, lambda: self._synced(life))
        deadline = host.deadline
        if deadline is None:
            return
        when = max(self._agenda.now, int((deadline - self._offset) / self._rate) + US)
        if not self._wake or when < self._wake:
            self._wake = when
            life = self.life
            self._agenda.at(when, lambda: self._woken(life, when))

    def _woken(self, life: int, when: int) -> None:
        if life == self.life and when == self._wake:
            self._wake = 0
            self.tell(lambda host: host.advance(0))

    def _synced(self, life: int) -> None:
        if life != self.life:
            return
        self._syncing = False
        if self._agenda.now < self.stalled_until:
            self.tell(lambda host: None)  # noqa: ARG005 - it only looks ahead again
        else:
            self.tell(lambda host: host.sync(self._rng.randint(1, JOBS_MAX)))

    # -- life ---------------------------------------------------------------------------------------
    def start(self) -> None:
        """The node starts with what its disk has."""
        self.life += 1
        self.started_at = self._agenda.now
        self._wake, self._syncing, self.frozen = 0, False, False
        self.late.clear()
        self.store = ModelStore(self.device, self._rng, inline_bytes=STORED_INLINE_BYTES)
        here = Here(self.node, self.life, self.name, self.rack, f"10.0.0.{self.node}:7117", SECRET, 2)
        self.host = ClusterHost(
            self._rng, self.store, self, self._trace, now=self.clock(), read=self.store.content, here=here
        )
        self.tell(lambda host: None)  # noqa: ARG005 - it only looks ahead

    def crash(self) -> None:
        """The power fails, perhaps while the disk is at work."""
        host, self.host = self.host, None
        if host is not None:
            self.device.cut_soon(self._rng.randrange(CUT_WITHIN))
            with contextlib.suppress(PowerCutError):
                host.sync(JOBS_MAX)
        self.device.restart()

    def freeze(self) -> None:
        """The node does nothing; what comes waits for it."""
        self.frozen = True

    def thaw(self) -> None:
        """Everything that has come happens now."""
        if not self.frozen:
            return
        self.frozen = False
        self.thawed_at = self._agenda.now
        late, self.late = self.late, []
        for action in late:
            self.tell(action)
        self._wake = 0
        self.tell(lambda host: host.advance(0))

    # -- what its host says -------------------------------------------------------------------------
    def hello(self) -> dcp.PeerHello:
        """What the node says of itself on a new connection."""
        return dcp.PeerHello(1, 1, self.node, self.life, self.name, self.rack, f"10.0.0.{self.node}:7117")

    def answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """A task of the node is answered."""
        if self.host is not None:
            self._people.answered(self, task, seq, result, data)

    def send(self, to: NodeId, message: dcp.Message, beside: bytes) -> None:
        """The node says something to another."""
        if self.host is not None:
            self.network.send(self.node, to, message, beside)

    def contact(self, to: NodeId) -> None:
        """The node looks for another."""
        if self.host is not None:
            self.network.want(self.node, to)

    def hang_up(self, to: NodeId) -> None:
        """The node has done with another."""
        if self.host is not None:
            self.network.hang_up(self.node, to)

    def spawn(self, effect: effects.Spawn) -> None:
        """A process shall start."""
        if self.host is not None:
            self._people.spawn(self, effect)

    def control(
        self, effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection
    ) -> None:
        """Something is to be done with a process."""
        if self.host is not None:
            self._people.control(self, effect)

    def stored(self, target: ObjectId, value: bytes) -> None:
        """An object has this content from now on."""
        if self.host is not None:
            found = self.host.core.state.objects.get(target)
            self._people.stored(target, None if found is None else found.name, value)
