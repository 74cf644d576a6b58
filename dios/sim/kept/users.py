"""Programs of the user: they put files, write to objects, and change promises, each on any node."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import trio
from blake3 import blake3

from dios import limits
from dios.errors import DiosError, NoSpaceError, UnreachableError
from dios.ids import Name
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry, Part, pack_parts
from dios.lib.kept import records
from dios.lib.kept.records import KEPT_NAME, KeptPromise, KeptState
from dios.sim.kept.nodes import ModelCluster, StoredReplica, object_name
from dios.wire.types import ObjectType

LIST: Final = object_name("catalogue")
_LARGE: Final = limits.INLINE_BYTES_MAX + 1
_STEP_S: Final = 0.05
_PAUSE_S: Final = 4
_CARELESS: Final = 0.05
"""The part of the writes that go to any replica."""


class _NewPart(NamedTuple):
    name: Name
    write: int
    data: bytes


class Users:
    """The user's programs in one run. ``puts`` and ``writes`` count those that were acknowledged."""

    def __init__(self, cluster: ModelCluster, group: bytes, acknowledge: int) -> None:
        self._cluster: Final = cluster
        self._random: Final = cluster.random
        self._group: Final = group
        self._acknowledge: Final = acknowledge
        self.puts = 0
        self.writes = 0
        self.edited: Final[list[bytes]] = []
        """Objects with promises of their own, to which programs write."""
        self.promised = 0
        """The latest promise for the group whose storage was acknowledged."""

    # -- promises -----------------------------------------------------------------------------------
    def promise(self, promise: KeptPromise) -> bool:
        """Store a promise on all nodes within reach of a node, with the time of its clock."""
        up = [node for node in self._cluster.nodes if node.is_up and not node.full]
        if not up:
            return False
        node = self._random.choice(up)
        copies = [
            one
            for other in self._cluster.nodes
            if self._cluster.reach(node.number, other.number)
            for one in other.replicas.values()
            if one.name == KEPT_NAME and one.type is ObjectType.DURABLE_BLOB and one.held_by is None
        ]
        if not copies:
            return False
        former = records.merged(records.decode(one.data) for one in copies)
        now_ms = int((1_000_000 + node.clock_s + trio.current_time()) * 1000)
        changed = records.with_promise(former, promise, now_ms=now_ms)
        for one in copies:
            one.data, one.v_w = (
                records.encode(records.merged([records.decode(one.data), changed])),
                one.v_w + 1,
            )
        if not promise.is_single:
            self.promised = promise.replicas
        return True

    def set_up(self, replicas: int, *, apart: bool) -> None:
        """Make the records on every node, the catalogue on one, and promise replicas for the group."""
        for node in self._cluster.nodes:
            self._cluster.store(KEPT_NAME, node.number, records.encode(KeptState()), -1)
        write = self._cluster.history.begin()
        self._cluster.store(LIST, 0, catalogue.encode(()), write)
        self._cluster.history.acknowledge(LIST, write)
        self.promise(KeptPromise(0, self._group, LIST, "papers", replicas, apart))

    # -- programs -----------------------------------------------------------------------------------
    async def run(self, span_s: float) -> None:
        """Do one thing after the other for a span of time."""
        end = trio.current_time() + span_s
        while trio.current_time() < end:
            await trio.sleep(self._random.expovariate(1 / _PAUSE_S))
            with suppress(DiosError):
                await self._do_something()

    async def _do_something(self) -> None:
        up = [node.number for node in self._cluster.nodes if node.is_up]
        if not up:
            return
        here = self._random.choice(up)
        kind = self._random.random()
        if kind < 0.35 and self.puts < 8:
            await self._put(here)
        elif kind < 0.5 and len(self.edited) < 6:
            await self._create(here)
        elif self.edited:
            await self._write(here, self._random.choice(self.edited))

    async def _put(self, here: int) -> None:
        """Store the objects of a file, then its entry in the catalogue, on as many disks as are wanted."""
        places = [here, *self._others(here)][: self._acknowledge]
        if len(places) < self._acknowledge:
            return
        parts = [self._new_part() for _ in range(self._random.choice((1, 1, 3)))]
        made: list[StoredReplica] = []
        try:
            for part in parts:
                for place in places:
                    await self._reach(here, place, fills=True)
                    v_w = int(len(part.data) >= _LARGE)
                    made.append(self._cluster.store(part.name, place, part.data, part.write, v_w=v_w))
            await self._list(here, _entry(parts))
        except DiosError:
            for one in made:
                self._cluster.nodes[one.node].replicas.pop(one.object_id, None)
            raise
        for part in parts:
            self._cluster.history.acknowledge(part.name, part.write)
            self._cluster.history.forget_lost(
                part.name, [one.write for one in self._cluster.living(part.name)]
            )
        self.puts += 1

    def _new_part(self) -> _NewPart:
        write = self._cluster.history.begin()
        return _NewPart(object_name(f"file {write}"), write, self._bytes())

    async def _list(self, here: int, entry: CatalogueEntry) -> None:
        """Add an entry: in the latest replica of the catalogue, then in the others that are equal to it."""
        there = await self._found(here, LIST)
        latest = max(there, key=lambda one: (one.v_w, -one.object_id), default=None)
        if latest is None:
            raise UnreachableError("the catalogue is on no node that answers")
        version, former = latest.v_w, latest.data
        equal = [one for one in there if one is not latest and one.v_w == version and one.data == former]
        data = catalogue.encode((*catalogue.decode(latest.data), entry))
        await self._reach(here, latest.node, fills=True)
        if not self._write_to(latest, version, data):
            raise UnreachableError("another program writes the catalogue")
        written = 1
        write = latest.write
        for one in equal:
            with suppress(DiosError):
                await self._reach(here, one.node, fills=True)
                written += self._write_to(one, version, data)
        if written >= self._acknowledge:
            self._cluster.history.acknowledge(LIST, write)
            self._cluster.history.forget_lost(LIST, [one.write for one in self._cluster.living(LIST)])

    async def _create(self, here: int) -> None:
        """Create an object that programs write to, empty or not, and promise replicas for it."""
        await self._reach(here, here, fills=True)
        name = object_name(f"object {len(self._cluster.history.parents)}")
        write = self._cluster.history.begin()
        self._cluster.store(name, here, self._random.choice((b"", bytes(_LARGE), self._bytes())), write)
        replicas = self._random.randint(2, 3)
        if self.promise(KeptPromise(0, self._group, name, name.decode(), replicas, is_single=True)):
            self._cluster.history.acknowledge(name, write)
            self.edited.append(name)

    async def _write(self, here: int, name: bytes) -> None:
        """Write new bytes to one replica of an object, in most cases to a latest one."""
        there = await self._found(here, name)
        if there:
            one = max(there, key=lambda one: (one.v_w, -one.object_id))
            if self._random.random() < _CARELESS:
                one = self._random.choice(there)
            await self._reach(here, one.node, fills=True)
            if self._write_to(one, one.v_w, self._bytes()):
                self._cluster.history.acknowledge(name, one.write)
                self.writes += 1

    # -- the model ----------------------------------------------------------------------------------
    def _write_to(self, one: StoredReplica, version: int, data: bytes) -> bool:
        there = self._cluster.nodes[one.node].replicas
        if one.object_id not in there or one.held_by is not None or one.v_w != version:
            return False
        one.write = self._cluster.history.after(one.write, data)
        one.data, one.v_w = data, one.v_w + 1
        return True

    def _bytes(self) -> bytes:
        small = self._random.randbytes(16)
        return small * (_LARGE // 16 + 1) if self._random.random() < 0.3 else small

    def _others(self, here: int) -> list[int]:
        others = [node.number for node in self._cluster.nodes if self._cluster.reach(here, node.number)]
        self._random.shuffle(others)
        return [one for one in others if one != here]

    async def _reach(self, here: int, node: int, *, fills: bool = False) -> None:
        await trio.sleep(self._random.uniform(0, _STEP_S))
        if not self._cluster.reach(here, node):
            raise UnreachableError(f"n{node} does not answer")
        if fills and self._cluster.nodes[node].full:
            raise NoSpaceError("the disk is full")

    async def _found(self, here: int, name: bytes) -> list[StoredReplica]:
        await trio.sleep(self._random.uniform(0, _STEP_S))
        return [
            one
            for node in self._cluster.nodes
            if self._cluster.reach(here, node.number)
            for one in node.replicas.values()
            if one.name == name
        ]


def _entry(parts: list[_NewPart]) -> CatalogueEntry:
    """Return the entry of a file, which is in parts if there are several."""
    size = sum(len(part.data) for part in parts)
    file, name = f"file {parts[0].write}", parts[0].name
    if len(parts) == 1:
        return CatalogueEntry(file, name, size, 0, blake3(parts[0].data).digest())
    packed = pack_parts(Part(part.name, blake3(part.data).digest()) for part in parts)
    return CatalogueEntry(file, name, size, 0, b"", max(len(part.data) for part in parts), packed)


def promises_of(cluster: ModelCluster) -> KeptState:
    """Return the promises that living nodes have."""
    copies = [one for one in cluster.living(KEPT_NAME) if one.data]
    return records.merged(msgspec.structs.replace(records.decode(one.data), seen={}) for one in copies)
