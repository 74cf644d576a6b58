"""One machine of a simulated cluster: its disk and clock last; its node starts, freezes and crashes.

The schedule is in ``labs.sim.cluster.world``.
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
from dios.wire import dcp, messages
from labs.sim.cluster.host import CACHE_BYTES, ClusterHost
from labs.sim.cluster.network import SimNetwork
from labs.sim.cluster.slowness import SlowNode
from labs.sim.disk.device import Device, PowerCutError
from labs.sim.disk.faults import NoFaults
from labs.sim.disk.model_store import ModelStore
from labs.sim.event_queue import MS, US, EventQueue

PAGE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
STORED_INLINE_BYTES: Final = 64
CUT_WITHIN: Final = 12
JOBS_MAX: Final = 4
SYNC_NS: Final = (100 * US, 6 * MS)
SECRET: Final = blake3(b"the secret of a simulated cluster").digest()


class MachineListener(Protocol):
    """The receiver of what a node sends to its tasks and processes."""

    def answered(
        self,
        machine: SimMachine,
        task: TaskId,
        seq: int,
        result: messages.AnyResult,
        data: list[bytes | None],
    ) -> None:
        """Answer a task."""

    def spawn(self, machine: SimMachine, effect: effects.Spawn) -> None:
        """Start a process."""

    def control(
        self,
        machine: SimMachine,
        effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection,
    ) -> None:
        """Stop, suspend or continue a process, or close a session."""

    def stored(
        self, target: ObjectId, name: bytes | None, value: bytes, secrecy: tuple[str, ...] | None
    ) -> None:
        """Record a new content of an object, which has a label unless it is gone already."""


class SimMachine:
    """A machine. ``rate`` and ``offset`` derive its clock from virtual time; ``life`` counts its starts."""

    def __init__(
        self,
        node: NodeId,
        rack: str,
        queue: EventQueue,
        rng: Random,
        listener: MachineListener,
        trace: blake3,
    ) -> None:
        self.node: Final = node
        self.name: Final = f"n{node}"
        self.rack: Final = rack
        self._queue: Final = queue
        self._rng: Final = rng
        self._listener: Final = listener
        self._trace: Final = trace
        self._rate: Final = 1 + rng.uniform(-0.005, 0.005)
        self._offset: Final = rng.randrange(10**15)
        self.device: Final = Device(rng, NoFaults(), page_bytes=PAGE_BYTES, sector_bytes=SECTOR_BYTES)
        self.network: SimNetwork
        self.store: ModelStore
        self.host: ClusterHost | None = None
        self.life = 0
        self.frozen = False
        self.stalled_until = 0
        self.thawed_at = 0
        self.started_at = 0
        self.deferred: list[Callable[[ClusterHost], None]] = []
        self._wake = 0
        self._syncing = False
        self.slow: SlowNode | None = None

    # -- time ---------------------------------------------------------------------------------------
    def clock(self) -> int:
        """Return the node's own time in nanoseconds."""
        return self._offset + int(self._queue.now * self._rate)

    @property
    def healthy(self) -> bool:
        """Return True if the node runs and is not frozen."""
        return self.host is not None and not self.frozen

    def post(self, action: Callable[[ClusterHost], None], *, urgent: bool = True) -> None:
        """Run an action at the node: now, after it thaws if it is frozen, or never if it is down.

        A slow node runs one action after the other, the urgent ones first.
        """
        if self.slow is not None:
            life = self.life
            self.slow.put(lambda: self._post_now(action) if self.life == life else None, urgent=urgent)
        else:
            self._post_now(action)

    def post_request(self, asker: NodeId, number: int, action: Callable[[ClusterHost], None]) -> None:
        """Run the action that handles a request of another node, when it is its turn."""
        slow, key = self.slow, (asker, number)
        if slow is None or self.host is None or self.host.core.has_request(asker, number):
            self.post(action)
        elif key in slow.requests:
            self.post(lambda host: host.report_working(asker, number))
        else:
            slow.requests.add(key)

            def handle(host: ClusterHost) -> None:
                slow.requests.discard(key)
                action(host)

            self.post(handle, urgent=False)

    def _post_now(self, action: Callable[[ClusterHost], None]) -> None:
        host = self.host
        if host is None:
            return
        if self.frozen:
            self.deferred.append(action)
            return
        host.now = max(host.now, self.clock())
        action(host)
        if self.host is host:
            self._schedule_wakeups(host)

    def _schedule_wakeups(self, host: ClusterHost) -> None:
        """Schedule the node's next deadline and the end of its disk operation."""
        if not host.settled and not self._syncing:
            self._syncing = True
            when = max(self._queue.now, self.stalled_until) + self._rng.randint(*SYNC_NS)
            life = self.life
            self._queue.at(when, lambda: self._sync_finished(life))
        deadline = host.deadline
        if deadline is None:
            return
        when = max(self._queue.now, int((deadline - self._offset) / self._rate) + US)
        if not self._wake or when < self._wake:
            self._wake = when
            life = self.life
            self._queue.at(when, lambda: self._deadline_reached(life, when))

    def _deadline_reached(self, life: int, when: int) -> None:
        if life == self.life and when == self._wake:
            self._wake = 0
            self.post(lambda host: host.advance(0))

    def _sync_finished(self, life: int) -> None:
        if life != self.life:
            return
        self._syncing = False
        if self._queue.now < self.stalled_until:
            self.post(lambda host: None)  # noqa: ARG005 - it only schedules the wakeups
        else:
            self.post(lambda host: host.sync(self._rng.randint(1, JOBS_MAX)))

    # -- life ---------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the node with the contents of its disk."""
        self.life += 1
        self.started_at = self._queue.now
        self._wake, self._syncing, self.frozen = 0, False, False
        self.deferred.clear()
        self.store = ModelStore(self.device, self._rng, inline_bytes=STORED_INLINE_BYTES)
        address = f"10.0.0.{self.node}:7117"
        here = Here(self.node, self.life, self.name, self.rack, address, SECRET, 2, cache_bytes=CACHE_BYTES)
        self.host = ClusterHost(
            self._rng,
            self.store,
            self,
            self._trace,
            now=self.clock(),
            read=self.store.content,
            here=here,
            tasks_max=None if self.slow is None else self.slow.slowness.tasks_max,
        )
        self.post(lambda host: None)  # noqa: ARG005 - it only schedules the wakeups

    def crash(self) -> None:
        """Cut the power, perhaps during a disk operation."""
        host, self.host = self.host, None
        if self.slow is not None:
            self.slow.clear()
        if host is not None:
            self.device.cut_soon(self._rng.randrange(CUT_WITHIN))
            with contextlib.suppress(PowerCutError):
                host.sync(JOBS_MAX)
        self.device.restart()

    def freeze(self) -> None:
        """Freeze the node; all input waits until it thaws."""
        self.frozen = True

    def thaw(self) -> None:
        """Thaw the node and handle the input that waited."""
        if not self.frozen:
            return
        self.frozen = False
        self.thawed_at = self._queue.now
        deferred, self.deferred = self.deferred, []
        for action in deferred:
            self.post(action)
        self._wake = 0
        self.post(lambda host: host.advance(0))

    # -- outputs of its host ------------------------------------------------------------------------
    def hello(self) -> dcp.PeerHello:
        """Return the node's introduction on a new connection."""
        return dcp.PeerHello(1, 1, self.node, self.life, self.name, self.rack, f"10.0.0.{self.node}:7117")

    def answered(self, task: TaskId, seq: int, result: messages.AnyResult, data: list[bytes | None]) -> None:
        """Answer a task of the node."""
        if self.host is not None:
            self._listener.answered(self, task, seq, result, data)

    def send(self, to: NodeId, message: dcp.Message, attached: bytes) -> None:
        """Send a message to another node."""
        if self.host is not None:
            self.network.send(self.node, to, message, attached)

    def contact(self, to: NodeId, *, on_demand: bool) -> None:
        """Keep a connection to another node from now on, or make one when gossip is sent to it."""
        if self.host is not None:
            self.network.request_connection(self.node, to, on_demand=on_demand)

    def hang_up(self, to: NodeId) -> None:
        """Close the connection to another node."""
        if self.host is not None:
            self.network.hang_up(self.node, to)

    def end_connection(self, to: NodeId) -> None:
        """End the connection to another node, which is then made again."""
        if self.host is not None:
            self.network.break_connection(self.node, to)

    def spawn(self, effect: effects.Spawn) -> None:
        """Start a process."""
        if self.host is not None:
            self._listener.spawn(self, effect)

    def control(
        self, effect: effects.Kill | effects.Suspend | effects.Continue | effects.CloseConnection
    ) -> None:
        """Stop, suspend or continue a process, or close a session."""
        if self.host is not None:
            self._listener.control(self, effect)

    def stored(self, target: ObjectId, value: bytes) -> None:
        """Record a new content of an object."""
        if self.host is not None:
            known_object = self.host.core.state.objects.get(target)
            name, secrecy = (
                (None, None) if known_object is None else (known_object.name, known_object.secrecy)
            )
            self._listener.stored(target, name, value, secrecy)
