"""A replicated key-value store whose replicas stay interchangeable (thesis §3.4): ``store.put("k", b"v")``.

Each change has one key, and values are never changed in place. ``docs/libraries.md`` has the guarantees when
machines fail.

A value is a logical object that is never written again: all its physical replicas have the same bytes as long
as they exist, so that any of them serves. A new value is a new object. Only the mapping is updated,
atomically: an index over several nodes, decided by a majority (``dios.lib.replicated_index``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar
from zlib import crc32

import msgspec

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
from dios.lib.pickers import pick_closest
from dios.lib.replicated_index import Index, IndexCopy
from dios.lib.retrying import Pauses
from dios.limits import (
    INDEX_COPIES_MAX,
    INDEX_SHARDS_MAX,
    KEY_BYTES_MAX,
    RETRY_S_MAX,
    VALUE_LOOKUPS_MAX,
)
from dios.wire.nametext import fingerprint
from dios.wire.types import Deletion, ObjectType, Semantics

FORMAT_VERSION: Final = 1

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The structure of a store: its nodes, and for each of them the names of its copies of the index."""

    version: int
    hosts: tuple[str, ...]
    durable: bool
    shards: tuple[tuple[bytes, ...], ...]


class ShardPlaces(Protocol):
    """The objects of a store. If an object does not answer, a DiosError is raised."""

    def copies(self) -> list[list[IndexCopy]]:
        """Return the copies of each shard of the index, the nearest first."""
        ...

    def keep(self, value: bytes) -> bytes:
        """Store a value as an object with enough replicas to survive the same failures as the index."""
        ...

    def fetch(self, name: bytes) -> bytes | None:
        """Return a value's bytes, from the nearest replica that answers; None if none is found."""
        ...

    def drop(self, name: bytes) -> None:
        """Delete every reachable replica."""
        ...

    def restore(self, name: bytes) -> int:
        """Create the missing replicas; return their number."""
        ...


class KeyValueStore:
    """A store. Each operation is linearizable: it takes effect at one moment between its call and its return.

    For one thread at a time; many tasks may use a store at once, each with its own object.
    """

    def __init__(self, places: ShardPlaces, name: bytes) -> None:
        self.name: Final = name
        """The name with which others ``open_store`` it, in addition to the group. A secret."""
        self._places: Final = places
        self._shards: Final = [Index(copies, places.drop) for copies in places.copies()]

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
        shard.put(key, self._places.keep(bytes(value)))

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
        made = away = 0
        for shard in self._shards:
            away += shard.repair()
            for entry in shard.all().values():
                made += self._places.restore(entry.name) if entry.name is not None else 0
        return made, away

    def _shard(self, key: str) -> Index:
        raw = key.encode()
        if not 0 < len(raw) <= KEY_BYTES_MAX:
            raise InvalidError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(raw)}")
        return self._shards[crc32(raw) % len(self._shards)]


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
        made = [_create(node, group, kind, b"", host) for host in hosts]
        names.append(tuple(reference.name or b"" for reference in made))
        _close(made)
    plan = Plan(FORMAT_VERSION, tuple(hosts), durable, tuple(names))
    places = _Objects(node, group, plan)
    # The plan never changes, like a value.
    return KeyValueStore(places, places.keep(msgspec.msgpack.encode(plan)))


def open_store(node: Node, group: Group, name: bytes) -> KeyValueStore:
    """Open a store by its name; UnreachableError if no replica of its plan is found."""
    data = _fetch(node, group, name)
    if data is None:
        raise UnreachableError("this group has no such store, or its nodes are unreachable")
    try:
        plan = msgspec.msgpack.decode(data, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the object is not a store: {error}") from None
    if plan.version != FORMAT_VERSION:
        raise DamagedError(f"the store has version {plan.version}, and this program reads {FORMAT_VERSION}")
    return KeyValueStore(_Objects(node, group, plan), name)


class _Objects:
    """The objects of a store on its nodes."""

    def __init__(self, node: Node, group: Group, plan: Plan) -> None:
        self._node: Final = node
        self._group: Final = group
        self._plan: Final = plan
        self._hosts: Final = tuple(dict.fromkeys(plan.hosts))

    def copies(self) -> list[list[IndexCopy]]:
        """Return the copies of each shard of the index, the nearest first."""
        return [
            [_IndexObject(self._node, self._group, name) for name in names] for names in self._plan.shards
        ]

    def keep(self, value: bytes) -> bytes:
        """Create the value's object and its replicas, at least on a majority of the store's nodes."""
        needed = len(self._hosts) // 2 + 1
        first: Reference | None = None
        made = 0
        failure: DiosError | None = None
        for host in self._hosts:
            try:
                if first is None:
                    kind = _kind(durable=self._plan.durable)
                    first = _create(self._node, self._group, kind, value, host)
                else:
                    first.copy(host=host).close()
                made += 1
            except DiosError as error:
                failure = error
        name = None if first is None else first.name
        if first is not None:
            first.close()
        if name is None or made < needed:
            if name is not None:
                self.drop(name)
            raise UnreachableError(
                f"{made} of {len(self._hosts)} nodes stored the value, {needed} are needed ({failure})"
            ) from failure
        return name

    def fetch(self, name: bytes) -> bytes | None:
        """Return a value's bytes, from the nearest replica that answers."""
        return _fetch(self._node, self._group, name)

    def drop(self, name: bytes) -> None:
        """Delete every reachable replica."""
        try:
            found = self._node.lookup(name, group=self._group)
        except DiosError:
            return
        for reference in found:
            # An unreachable replica stays; the index does not refer to it.
            with suppress(DiosError):
                reference.destroy()

    def restore(self, name: bytes) -> int:
        """Create the missing replicas."""
        found = self._node.lookup(name, group=self._group)
        have = {reference.object_id for reference in found}
        missing = set(self._hosts) - {reference.node for reference in found}
        copies: list[Reference] = []
        try:
            for host in missing if found else ():
                with suppress(DiosError):
                    copies.append(pick_closest(found).copy(host=host))
                # On this node itself, a copy is the existing object.
            return sum(copy.object_id not in have for copy in copies)
        finally:
            _close([*found, *copies])


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
            _close([reference])
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
                _close([nearest])
        return None
    finally:
        _close(left)


def _close(references: Iterable[Reference]) -> None:
    for reference in references:
        with suppress(DiosError):
            reference.close()


def _name_of(node: Node) -> str:
    return next(member.name for member in node.nodes() if member.here)


def _create(node: Node, group: Group, kind: ObjectType, data: bytes, host: str) -> Reference:
    # An object in memory, too, must outlive its references: it stays until it is destroyed.
    return node.create(kind, groups=[group], data=data, deletion=Deletion.IMMEDIATE, host=host)


def _kind(*, durable: bool) -> ObjectType:
    return ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
