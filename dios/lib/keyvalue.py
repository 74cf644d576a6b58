"""A replicated key-value store whose replicas stay interchangeable (thesis §3.4): ``store.put("k", b"v")``.

Each change has one key, and values are never changed in place. ``docs/libraries.md`` has the guarantees when
machines fail.

A value is a logical object that is never written again: all its physical replicas have the same bytes as long
as they exist, so that any of them serves. A new value is a new object. Only the mapping is updated,
atomically: an index over several nodes, decided by a majority (``dios.lib.replicated_index``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Final, Protocol, TypeVar
from zlib import crc32

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from dios.client.sync.node import Group, Node, Reference
from dios.errors import (
    Busy,
    Conflict,
    DamagedError,
    DiosError,
    InvalidError,
    StaleError,
    UnreachableError,
)
from dios.lib.closing import close_all
from dios.lib.decoding import decoded
from dios.lib.pickers import pick_closest
from dios.lib.replicated_index import Index, IndexCopy, Successors
from dios.lib.retrying import Pauses
from dios.limits import (
    INDEX_COPIES_MAX,
    INDEX_SHARDS_MAX,
    KEY_BYTES_MAX,
    RETRY_S_MAX,
    VALUE_LOOKUPS_MAX,
)
from dios.wire.fields import Count, Label
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, ObjectType, Semantics

FORMAT_VERSION: Final = 2
_BEFORE_REPLACEMENT: Final = 1

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The structure of a store: its nodes, and for each of them the names of its copies of the index.

    Each replacement of a host makes the next ``generation``. An old plan is good enough to begin with: copies
    that were replaced name their successors.
    """

    version: int
    hosts: Annotated[tuple[Label, ...], Meta(max_length=INDEX_COPIES_MAX)]
    durable: bool
    shards: Annotated[tuple[tuple[bytes, ...], ...], Meta(max_length=INDEX_SHARDS_MAX)]
    generation: Count = 0


class ShardPlaces(Protocol):
    """The objects of a store. If an object does not answer, a DiosError is raised."""

    def copies(self) -> list[list[IndexCopy]]:
        """Return the copies of each shard of the index, the nearest first."""

    def present(self) -> list[Successors]:
        """Return the hosts and the names of the copies of each shard, as they were when it was opened."""

    def open_copies(self, successors: Successors) -> list[IndexCopy]:
        """Return copies that replace others, the nearest first."""

    def create_copies(self, hosts: Sequence[str]) -> Successors:
        """Create an empty copy of a shard on each of these hosts; all or none."""

    def destroy_copies(self, successors: Successors) -> None:
        """Destroy the copies that can be reached."""

    def publish(self, name: bytes, shards: Sequence[Successors]) -> None:
        """Record the present copies of all shards where clients open the store."""

    def keep(self, value: bytes, hosts: Sequence[str]) -> bytes:
        """Store a value as an object with enough replicas to survive the same failures as the index."""

    def fetch(self, name: bytes) -> bytes | None:
        """Return a value's bytes, from the nearest replica that answers; None if none is found."""

    def drop(self, name: bytes) -> None:
        """Delete every reachable replica."""

    def restore(self, name: bytes, hosts: Sequence[str]) -> int:
        """Create the missing replicas on these hosts; return their number."""


class KeyValueStore:
    """A store. Each operation is linearizable: it takes effect at one moment between its call and its return.

    For one thread at a time; many tasks may use a store at once, each with its own object.
    """

    def __init__(self, places: ShardPlaces, name: bytes) -> None:
        self.name: Final = name
        """The name with which others ``open_store`` it, in addition to the group. A secret."""
        self._places: Final = places
        self._shards: Final = [
            Index(copies, places.drop, places.open_copies, shard.hosts)
            for copies, shard in zip(places.copies(), places.present(), strict=True)
        ]

    def __repr__(self) -> str:
        return f"<KeyValueStore {fingerprint(self.name)}, {len(self._shards)} shards>"

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none.

        Raises UnreachableError if no majority of the index, or no replica of the value, answers.
        """
        shard = self._shard(key)
        former: bytes | None = None
        for _ in range(VALUE_LOOKUPS_MAX):
            entry = shard.get(key)
            if entry is None or entry.name is None:
                return None
            if entry.name == former:
                break
            value = self._places.fetch(entry.name)
            if value is not None:
                return value
            # Between the two lookups another task may have put a new value and dropped this one.
            former = entry.name
        raise UnreachableError("no replica of the value answers. Try again when its nodes have returned.")

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key; when this returns, every later ``get`` finds it, or a later value.

        Raises UnreachableError if no majority answers; then it may have happened or not.
        """
        shard = self._shard(key)
        shard.put(key, self._places.keep(bytes(value), shard.hosts))

    def delete(self, key: str) -> None:
        """Remove the value of a key; raises the errors of ``put``."""
        self._shard(key).put(key, None)

    def __iter__(self) -> Iterator[str]:
        """Return the keys with values, in no order; those of one shard are from one moment."""
        for shard in self._shards:
            yield from (key for key, entry in shard.all().items() if entry.name is not None)

    def repair(self) -> tuple[int, int]:
        """Bring nodes that were unreachable up to date, after their return.

        Returns the number of replicas that were created, and of copies of the index that do not answer.
        """
        restored = away = 0
        for shard in self._shards:
            away += shard.repair()
            for entry in shard.all().values():
                restored += self._places.restore(entry.name, shard.hosts) if entry.name is not None else 0
        return restored, away

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes of the store as far as this client knows; ``repair`` asks."""
        return tuple(dict.fromkeys(host for shard in self._shards for host in shard.hosts))

    def away(self) -> set[str]:
        """Return the nodes of the store whose copies of the index do not answer."""
        checked: dict[str, bool] = {}
        for shard, first in zip(self._shards, self._places.present(), strict=True):
            present = shard.successors or first
            for host, copy in zip(present.hosts, self._places.open_copies(present), strict=True):
                if host not in checked:
                    checked[host] = _answers(copy)
        return {host for host, answers in checked.items() if not answers}

    def replace(self, lost: str, new: str) -> int:
        """Replace a node that is gone for good by another one; return the number of shards that were moved.

        Other clients go on meanwhile, and each operation stays linearizable. A node that was replaced and
        comes back harms nobody. Values get their replicas on the new node before this returns. If this breaks
        off, call it again.

        Raises InvalidError if the store has the new node already, and UnreachableError if no majority of a
        shard answers, or if one of its nodes after the replacement does not.
        """
        moved = 0
        for shard in self._shards:
            # Others may have replaced its copies since this client opened the store.
            shard.repair()
            while lost in shard.hosts:
                if new in shard.hosts:
                    raise InvalidError(f"the store is on {new} already. Choose a node that it does not have.")
                copies = self._places.create_copies([new if host == lost else host for host in shard.hosts])
                # If this fails, a majority may have agreed on them all the same: so they stay.
                agreed = shard.replace(copies)
                if not agreed:
                    self._places.destroy_copies(copies)
                moved += agreed
        present = zip(self._shards, self._places.present(), strict=True)
        self._places.publish(self.name, [shard.successors or first for shard, first in present])
        self.repair()
        return moved

    def _shard(self, key: str) -> Index:
        raw = key.encode()
        if not 0 < len(raw) <= KEY_BYTES_MAX:
            raise InvalidError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(raw)}")
        return self._shards[crc32(raw) % len(self._shards)]


def _answers(copy: IndexCopy) -> bool:
    try:
        copy.read()
    except DiosError:
        return False
    return True


def create_store(
    node: Node, group: Group, *, hosts: Sequence[str] = ("",), shards: int = 16, durable: bool = True
) -> KeyValueStore:
    """Create a store in a group, over the nodes called ``hosts`` (an empty name: this node).

    It works while a majority of them does: three nodes survive the loss of one, five of two. ``shards`` is
    the number of parts of its index. Raises InvalidError for numbers out of range.
    """
    if not 0 < len(hosts) <= INDEX_COPIES_MAX or not 0 < shards <= INDEX_SHARDS_MAX:
        raise InvalidError(f"a store needs 1 to {INDEX_COPIES_MAX} hosts, and 1 to {INDEX_SHARDS_MAX} shards")
    if any(hosts):
        # By name, so that it is the same node for every task that opens the store.
        hosts = [host or _name_of(node) for host in hosts]
    kind = _kind(durable=durable)
    names: list[tuple[bytes, ...]] = []
    for _ in range(shards):
        references = [_create(node, group, kind, b"", host) for host in hosts]
        names.append(tuple(reference.name or b"" for reference in references))
        close_all(references)
    plan = Plan(_BEFORE_REPLACEMENT, tuple(hosts), durable, tuple(names))
    places = _Objects(node, group, plan)
    return KeyValueStore(places, places.keep(_encode_plan(plan), plan.hosts))


def open_store(node: Node, group: Group, name: bytes) -> KeyValueStore:
    """Open a store by its name; UnreachableError if no replica of its plan is found."""
    plans: list[Plan] = []
    replicas = list(node.lookup(name, group=group))
    try:
        for replica in replicas:
            with suppress(StaleError, UnreachableError):
                plans.append(_decode_plan(replica.read_bytes()))
    finally:
        close_all(replicas)
    if not plans:
        raise UnreachableError("this group has no such store, or its nodes are unreachable")
    return KeyValueStore(_Objects(node, group, max(plans, key=lambda plan: plan.generation)), name)


def _encode_plan(plan: Plan) -> bytes:
    """Return the stored form of a plan; the first one of a store has the version of earlier releases."""
    fields = astuple(plan)
    return msgspec.msgpack.encode(fields if plan.version == FORMAT_VERSION else fields[:-1])


def _decode_plan(data: bytes) -> Plan:
    plan = decoded(msgspec.msgpack.Decoder(Plan).decode, data, "the object is not a store")
    if plan.version not in {_BEFORE_REPLACEMENT, FORMAT_VERSION}:
        raise DamagedError(f"the store has version {plan.version}, and this program reads {FORMAT_VERSION}")
    return plan


class _Objects(ShardPlaces):
    """The objects of a store on its nodes."""

    def __init__(self, node: Node, group: Group, plan: Plan) -> None:
        self._node: Final = node
        self._group: Final = group
        self._plan: Final = plan

    def present(self) -> list[Successors]:
        return [Successors(self._plan.hosts, names) for names in self._plan.shards]

    def copies(self) -> list[list[IndexCopy]]:
        return [self.open_copies(shard) for shard in self.present()]

    def open_copies(self, successors: Successors) -> list[IndexCopy]:
        return [_IndexObject(self._node, self._group, name) for name in successors.copies]

    def create_copies(self, hosts: Sequence[str]) -> Successors:
        kind = _kind(durable=self._plan.durable)
        references: list[Reference] = []
        try:
            references.extend(_create(self._node, self._group, kind, b"", host) for host in hosts)
        except BaseException:
            for reference in references:
                with suppress(DiosError):
                    reference.destroy()
            raise
        names = tuple(reference.name or b"" for reference in references)
        close_all(references)
        return Successors(tuple(hosts), names)

    def destroy_copies(self, successors: Successors) -> None:
        for name in successors.copies:
            self.drop(name)

    def publish(self, name: bytes, shards: Sequence[Successors]) -> None:
        """Write a plan with the present copies to all its replicas, and create those that are missing.

        Raises UnreachableError if none could be written.
        """
        hosts = shards[0].hosts

        def change(data: bytes) -> bytes | None:
            before = _decode_plan(data)
            names = tuple(shard.copies for shard in shards)
            if (before.hosts, before.shards) == (
                hosts,
                names,
            ) or before.generation > self._plan.generation + 1:
                return None
            return _encode_plan(
                Plan(
                    FORMAT_VERSION,
                    hosts,
                    before.durable,
                    names,
                    max(before.generation, self._plan.generation) + 1,
                )
            )

        replicas = list(self._node.lookup(name, group=self._group))
        written: list[Reference] = []
        failure: DiosError | None = None
        for replica in replicas:
            try:
                _update(replica, change)
                written.append(replica)
            except DiosError as error:
                failure = error
        try:
            if not written:
                raise UnreachableError(
                    f"no replica of the store's plan could be written ({failure})"
                ) from failure
            for host in set(hosts) - {replica.node for replica in replicas}:
                with suppress(DiosError):
                    written[0].copy(host=host).close()
        finally:
            close_all(replicas)

    def keep(self, value: bytes, hosts: Sequence[str]) -> bytes:
        """Create the value's object and its replicas, at least on a majority of the store's nodes."""
        hosts = tuple(dict.fromkeys(hosts))
        needed = len(hosts) // 2 + 1
        first: Reference | None = None
        stored = 0
        failure: DiosError | None = None
        for host in hosts:
            try:
                if first is None:
                    kind = _kind(durable=self._plan.durable)
                    first = _create(self._node, self._group, kind, value, host)
                else:
                    first.copy(host=host).close()
                stored += 1
            except DiosError as error:
                failure = error
        name = None if first is None else first.name
        if first is not None:
            first.close()
        if name is None or stored < needed:
            if name is not None:
                self.drop(name)
            raise UnreachableError(
                f"{stored} of {len(hosts)} nodes stored the value, {needed} are needed ({failure})"
            ) from failure
        return name

    def fetch(self, name: bytes) -> bytes | None:
        return _fetch(self._node, self._group, name)

    def drop(self, name: bytes) -> None:
        try:
            references = self._node.lookup(name, group=self._group)
        except DiosError:
            return
        for reference in references:
            # An unreachable replica stays; the index does not refer to it.
            with suppress(DiosError):
                reference.destroy()

    def restore(self, name: bytes, hosts: Sequence[str]) -> int:
        references = self._node.lookup(name, group=self._group)
        have = {reference.object_id for reference in references}
        missing = set(hosts) - {reference.node for reference in references}
        copies: list[Reference] = []
        try:
            for host in missing if references else ():
                with suppress(DiosError):
                    copies.append(pick_closest(references).copy(host=host))
                # On this node itself, a copy is the existing object.
            return sum(copy.object_id not in have for copy in copies)
        finally:
            close_all([*references, *copies])


class _IndexObject:
    """One copy of a part of the index: an object with its own name, looked up when it is needed."""

    def __init__(self, node: Node, group: Group, name: bytes) -> None:
        self._node: Final = node
        self._group: Final = group
        self._name: Final = name
        self._reference: Reference | None = None

    def read(self) -> bytes:
        """Return all of its bytes."""
        return self._tried(lambda reference: reference.read_bytes())

    def update(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace its bytes by the result of ``change``, even if others do so at the same time."""
        self._tried(lambda reference: _update(reference, change))

    def _tried(self, work: Callable[[Reference], T]) -> T:
        reference = self._reference
        if reference is None:
            reference = self._reference = self._node.find(self._name, group=self._group)
        if reference is None:
            raise UnreachableError("a copy of the index is not found; its node may be unreachable")
        try:
            return work(reference)
        except DiosError:
            # The next use looks it up again: its node may have returned.
            self._reference = None
            close_all([reference])
            raise


def _update(reference: Reference, change: Callable[[bytes], bytes | None]) -> None:
    pauses = Pauses(RETRY_S_MAX)
    while True:
        try:
            _update_once(reference, change)
        except (Busy, Conflict) as conflict:
            pauses.wait(conflict)
        else:
            return


def _update_once(reference: Reference, change: Callable[[bytes], bytes | None]) -> None:
    with reference.read(Semantics.MRSW) as read:
        data, seen = bytes(read.view), read.v_w
    after = change(data)
    if after is None:
        return
    with reference.write(len(after), Semantics.MRSW, blank=True, replace=True) as write:
        if write.v_w != seen:
            raise Conflict("another task wrote in between", fingerprint=reference.fingerprint)
        write.view[:] = after


def _fetch(node: Node, group: Group, name: bytes) -> bytes | None:
    left = list(node.lookup(name, group=group))
    try:
        while left:
            nearest = pick_closest(left)
            try:
                return nearest.read_bytes()
            except (StaleError, UnreachableError):
                left.remove(nearest)
                close_all([nearest])
        return None
    finally:
        close_all(left)


def _name_of(node: Node) -> str:
    return next(member.name for member in node.nodes() if member.here)


def _create(node: Node, group: Group, kind: ObjectType, data: bytes, host: str) -> Reference:
    # An object in memory, too, must outlive its references: it stays until it is destroyed.
    return node.create(kind, groups=[group], data=data, deletion=Deletion.IMMEDIATE, host=host)


def _kind(*, durable: bool) -> ObjectType:
    return ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
