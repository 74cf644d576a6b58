"""Clients that read one object again and again while others change it, so that nodes get leases.

The times of the reads and of the changes come from a source of random choices of their own, so that the other
clients make the same choices as without them. Some faults are made on purpose: a node restarts while another
one that is cut off from it has a lease, and the notice that a reference was taken back is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final, Protocol

from dios.ids import NodeId, TaskId
from dios.wire import messages
from dios.wire.types import ObjectType, Permission, Semantics
from labs.sim.cluster.client_actions import CooperatingClient
from labs.sim.cluster.fault_injector import FaultInjector
from labs.sim.cluster.machine import SimMachine
from labs.sim.cluster.promises import Key, PromiseLedger, ValueHistory
from labs.sim.cluster.simulated_client import SimulatedClient
from labs.sim.event_queue import MS, EventQueue

READ_NS: Final = (4 * MS, 25 * MS)
SOON_NS: Final = (100 * MS, 1_500 * MS)  # until the first change, when readers have leases
LATE_NS: Final = (2_300 * MS, 2_900 * MS)  # or when these would have ended if they were not renewed
CHANGE_NS: Final = (20 * MS, 250 * MS)
CHANGES: Final = 2
FAULT_NS: Final = (2_500 * MS, 6_000 * MS)
RETIRED_NS: Final = 7_500 * MS  # after a retirement there are no leases for 4 s
QUIET_NS: Final = 4_500 * MS
RECENT: Final = 2
LOOKING: Final = 5
READ_SHARE: Final = 0.5
AFTER_START_NS: Final = 30 * MS
LEVELS: Final = (Semantics.ANY, Semantics.MRSW)


class ReadCluster(Protocol):
    """The simulated cluster, as the readers see it."""

    acting: bool

    @property
    def queue(self) -> EventQueue:
        """The events to come."""

    @property
    def machines(self) -> Mapping[NodeId, SimMachine]:
        """All machines."""

    @property
    def promises(self) -> PromiseLedger:
        """The promises to all clients."""

    @property
    def injector(self) -> FaultInjector:
        """The source of faults."""

    def able_clients(self) -> list[CooperatingClient]:
        """Return the clients that can make calls now."""

    def may_resolve(self, client: SimulatedClient, key: Key) -> bool:
        """Return True if the client is a member of one of the object's groups."""


class RepeatedReads:
    """The readers and writers of one object after the other."""

    def __init__(self, world: ReadCluster, rng: Random) -> None:
        self._world: Final = world
        self._rng: Final = rng
        self._target = 0
        self._kept_until = 0
        self._quiet: dict[TaskId, int] = {}  # until when clients do not read, because they would be refused
        self.reads = 0

    def begin(self) -> None:
        """Begin; it ends when the clients of the cluster do not act any more."""
        self._choose()
        self._read()
        self._after(FAULT_NS, self._make_fault)

    def _after(self, span_ns: tuple[int, int], action: Callable[[], None]) -> None:
        self._world.queue.after(self._rng.randint(*span_ns), action)

    def _choose(self) -> None:
        """Choose the next object, and let some clients look it up."""
        if not self._world.acting:
            return
        able = self._world.able_clients()
        named = [
            target
            for target, register in self._world.promises.registers.items()
            if isinstance(register.key, bytes)
            and not register.may_be_deleted
            and target not in self._world.promises.locks
            and self._world.machines[register.home].healthy
            and any(
                client.node != register.home and self._world.may_resolve(client, register.key)
                for client in able
            )
        ]
        if able:
            kind = self._rng.choice((ObjectType.DURABLE_BLOB, ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB))
            self._rng.choice(able).create(kind)  # for the next turn: nobody else has a request on it yet
        self._target = self._rng.choice(named[-RECENT:]) if named else 0
        if self._target:
            for client in self._rng.sample(able, min(LOOKING, len(able))):
                self._look_up(client)
        self._after(self._rng.choice((SOON_NS, LATE_NS)), partial(self._change, CHANGES))

    def _look_up(self, client: CooperatingClient) -> None:
        key = self._world.promises.keys[self._target]
        if isinstance(key, bytes):
            client.lookup(key, limit=8)

    def _holders(self, right: Permission) -> list[tuple[CooperatingClient, messages.Reference]]:
        """Return the clients with a reference to the object that has this right."""
        return [
            (client, reference)
            for client in self._world.able_clients()
            for reference in client.held.values()
            if reference.object == self._target and reference.permissions & right
        ]

    def _read(self) -> None:
        """Let some clients on other nodes than the object's read it."""
        if not self._world.acting:
            return
        self._after(READ_NS, self._read)
        for client, reference in self._readers():
            is_quiet = self._quiet.get(client.task, 0) > self._world.queue.now
            if self._rng.random() < READ_SHARE and not is_quiet:
                self.reads += 1
                client.read(reference, self._rng.choice(LEVELS))

    def _readers(self) -> list[tuple[CooperatingClient, messages.Reference]]:
        """Return the clients on other nodes than the object's that may read it."""
        register = self._world.promises.registers.get(self._target)
        holders = [] if register is None else self._holders(Permission.READ)
        return [holder for holder in holders if register is not None and holder[0].node != register.home]

    def _change(self, left: int) -> None:
        """Let clients write the object some times. Then choose another one."""
        if not self._world.acting:
            return
        late_ns = self._kept_until - self._world.queue.now
        if late_ns > 0:
            self._world.queue.after(late_ns, partial(self._change, left))
            return
        writers = self._holders(Permission.WRITE)
        if writers:
            client, reference = self._rng.choice(writers)
            client.overwrite(reference, self._rng.randbytes(16), Semantics.ANY)
        self._after(CHANGE_NS, partial(self._change, left - 1) if left > 1 else self._choose)

    # -- faults on purpose ----------------------------------------------------------------------------
    def _make_fault(self) -> None:
        if not self._world.acting:
            return
        self._after(FAULT_NS, self._make_fault)
        register = self._world.promises.registers.get(self._target)
        if register is None:
            return
        if self._rng.random() < 0.5:
            self._restart(register)
        else:
            self._take_back(register)

    def _restart(self, register: ValueHistory) -> None:
        """Restart the object's node while its readers cannot notice it, and let a new session write."""
        home = self._world.machines[register.home]
        if not register.durable or not home.healthy:
            return
        readers = {client.node for client, _ in self._readers()}
        self._world.injector.restart_unnoticed(home, readers)
        life = home.life + 1
        for attempt in range(20):
            when = self._world.queue.now + (attempt + 1) * AFTER_START_NS
            self._world.queue.at(when, partial(self._write_after_start, home, life, self._target))

    def _write_after_start(self, home: SimMachine, life: int, target: int) -> None:
        if home.life != life or target != self._target:
            return
        for client in self._world.able_clients():
            if client.node == home.node:
                held = [reference for reference in client.held.values() if reference.object == target]
                able = [reference for reference in held if reference.permissions & Permission.WRITE]
                if able:
                    client.overwrite(able[0], self._rng.randbytes(16), Semantics.ANY)
                else:
                    key = self._world.promises.keys[target]
                    assert isinstance(key, bytes)  # noqa: S101 - only named objects are chosen
                    client.lookup(key, limit=1)
                return

    def _take_back(self, register: ValueHistory) -> None:
        """Let a client delegate to a task on a third node, and take it back without a notice."""
        promises, key = self._world.promises, register.key
        givers = self._holders(Permission.READ | Permission.DELEGATE)
        takers = [
            client
            for client in self._world.able_clients()
            if client.node != register.home
            and not promises.mask_of((client.task, client.label), key, quiet=False)
        ]
        if not givers or not takers:
            return
        giver, reference = self._rng.choice(givers)
        taker = self._rng.choice(takers)
        assert taker.welcome is not None  # noqa: S101 - it is able to make calls

        def delegate(result: messages.References) -> None:
            for to in result.references:
                if to.object == TaskId(taker.task):
                    giver.give(reference, to, int(Permission.READ))
                    return

        self._kept_until = self._world.queue.now + RETIRED_NS
        giver.lookup(taker.welcome.name, delegate, limit=1)
        self._world.queue.after(900 * MS, partial(self._lose_and_retire, giver, taker, reference))

    def _lose_and_retire(
        self, giver: CooperatingClient, taker: CooperatingClient, reference: messages.Reference
    ) -> None:
        """Retire, and let others on the taker's node read the object under leases of their own."""
        able = self._world.able_clients()
        if giver in able and reference.ref in giver.held and reference.object == self._target:
            self._world.injector.lose_retirements(taker.node)
            giver.take_back(reference)
            self._quiet = {taker.task: self._world.queue.now + QUIET_NS}
            for client in able:
                known = [held for held in client.held.values() if held.object == self._target]
                if client.node == taker.node and not known:
                    self._look_up(client)
