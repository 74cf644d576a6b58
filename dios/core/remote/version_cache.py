"""The versions of other nodes' objects whose bytes this node has kept, and the reads that fetch more.

This is data and its bookkeeping; ``dios.core.remote.cached_reads`` uses it. The bytes are in the host, which
keeps them as the payload of the message that brought them.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from dios import limits
from dios.core.model.accounts import Account, Version, buffer_version
from dios.core.model.records import CallId
from dios.ids import NodeId, ObjectId, PayloadId, Principal


class ReadKey(NamedTuple):
    """A range of an object of another node, as calls name it. A ``size`` of 0 means to the object's end."""

    node: NodeId
    object: ObjectId
    offset: int
    size: int


class CachedVersion:
    """The bytes of a range of one version of an object.

    ``epoch`` is the start of the object's node, within which ``v_w`` identifies the bytes. ``users`` is the
    number of requests that may be answered with them. ``counted`` counts them with the principal who fetched
    them. The host has the bytes under ``payload``; few bytes are here, as ``data``, and ``payload`` is a
    negative number then.
    """

    __slots__ = (
        "counted",
        "data",
        "epoch",
        "key",
        "length",
        "payload",
        "principal",
        "used_ns",
        "users",
        "v_w",
    )

    def __init__(
        self,
        key: ReadKey,
        version: tuple[int, int],
        payload: PayloadId,
        length: int,
        principal: Principal,
        account: Account,
        now: int,
        data: bytes | None = None,
    ) -> None:
        self.key: Final = key
        self.data: Final = data
        self.epoch, self.v_w = version
        self.payload: Final = payload
        self.length: Final = length
        self.principal: Final = principal
        self.counted: Final[Version] = buffer_version(account, length).hold()
        self.users = 0
        self.used_ns = now

    def covers(self, offset: int, length: int) -> bool:
        """Return True if the object's range of ``length`` bytes from ``offset`` on is among these bytes."""
        return self.key.offset <= offset and offset + length <= self.key.offset + self.length


class Fetch:
    """A read whose bytes are on their way, and the calls that wait for them instead of asking as well."""

    __slots__ = ("call", "waiting")

    def __init__(self, call: CallId) -> None:
        self.call: Final = call
        self.waiting: dict[CallId, None] = {}


class VersionCache:
    """All cached versions, and all fetches.

    Ranges of fewer than ``least`` bytes are not kept, and at most ``versions_max`` ranges are. Methods that
    remove versions return the payloads that the host must drop.
    """

    __slots__ = (
        "_bytes_of",
        "_kept_bytes",
        "_of_objects",
        "_of_principals",
        "_read_before",
        "bytes",
        "bytes_max",
        "fetched",
        "fetches",
        "kept",
        "last_data",
        "least",
        "served",
        "versions",
        "versions_max",
    )

    def __init__(
        self,
        bytes_max: int,
        least: int = limits.REMOTE_CACHE_READ_BYTES_MIN,
        versions_max: int = limits.REMOTE_CACHE_VERSIONS_MAX,
    ) -> None:
        self.bytes_max = bytes_max
        self.least = least
        self.versions_max = versions_max
        self.last_data = PayloadId(0)
        self._read_before: dict[ReadKey, None] = {}
        self.bytes = 0
        self._kept_bytes = 0
        self.versions: dict[ReadKey, CachedVersion] = {}
        self.kept: dict[PayloadId, CachedVersion] = {}  # also removed ones that requests may still use
        self.fetches: dict[tuple[ReadKey, Principal], Fetch] = {}
        self.fetched = 0  # the number of reads that brought bytes
        self.served = 0  # the number of reads that were answered with bytes from here
        self._of_objects: dict[tuple[NodeId, ObjectId], dict[ReadKey, None]] = {}
        # Of each principal, the least recently used version first.
        self._of_principals: dict[Principal, dict[ReadKey, None]] = {}
        self._bytes_of: dict[Principal, int] = {}

    # -- looking ------------------------------------------------------------------------------------
    def find(self, key: ReadKey, epoch: int) -> CachedVersion | None:
        """Return a version that may have the bytes of a read: its range, or the whole object."""
        version = self.versions.get(key) or self.versions.get(ReadKey(key.node, key.object, 0, 0))
        if version is None or version.epoch != epoch or not version.covers(key.offset, key.size):
            return None
        return version

    def note_read(self, key: ReadKey) -> bool:
        """Note a read of a range. Return True if the same range was read before, as far as that is known."""
        if key in self._read_before:
            return True
        if len(self._read_before) >= self.versions_max:
            del self._read_before[next(iter(self._read_before))]
        self._read_before[key] = None
        return False

    def use(self, version: CachedVersion, now: int) -> None:
        """Note that a request may be answered with these bytes, which stay until ``end_use``."""
        version.users += 1
        version.used_ns = now
        if self.versions.get(version.key) is version:
            owned = self._of_principals[version.principal]
            del owned[version.key]
            owned[version.key] = None

    def end_use(self, version: CachedVersion) -> list[PayloadId]:
        """Note that a request is over."""
        version.users -= 1
        return self._drop_unused(version)

    # -- changing -----------------------------------------------------------------------------------
    def put(self, version: CachedVersion) -> list[PayloadId]:
        """Add a version, in place of other versions of the object."""
        key = version.key
        dropped = self._remove_others(version)
        self.versions[key] = version
        self.kept[version.payload] = version
        self.bytes += version.length
        self._kept_bytes += version.length
        self._of_objects.setdefault((key.node, key.object), {})[key] = None
        owner = version.principal
        self._of_principals.setdefault(owner, {})[key] = None
        self._bytes_of[owner] = self._bytes_of.get(owner, 0) + version.length
        return dropped

    def _remove_others(self, version: CachedVersion) -> list[PayloadId]:
        key = version.key
        dropped: list[PayloadId] = []
        for other in list(self._of_objects.get((key.node, key.object), ())):
            held = self.versions[other]
            if other == key or (held.epoch, held.v_w) != (version.epoch, version.v_w):
                dropped += self.remove(held)
        return dropped

    def make_room(self, length: int, principal: Principal) -> list[PayloadId]:
        """Remove versions until ``length`` more bytes fit.

        The principal with the most bytes, including the new ones, loses its least recently used version.
        """
        dropped: list[PayloadId] = []
        if self.has_room(length):
            return dropped
        owned = self._of_principals
        most_first = [
            (-self._bytes_of[owner] - (length if owner == principal else 0), owner) for owner in owned
        ]
        heapify(most_first)
        while most_first and not self.has_room(length):
            size, most = heappop(most_first)
            victim = self.versions[next(iter(owned[most]))]
            dropped += self.remove(victim)
            if most in owned:
                heappush(most_first, (size + victim.length, most))
        return dropped

    def has_room(self, length: int) -> bool:
        """Return True if ``length`` more bytes fit."""
        return self._kept_bytes + length <= self.bytes_max and len(self.kept) < self.versions_max

    def number_data(self) -> PayloadId:
        """Return the next number for bytes that the core itself keeps."""
        self.last_data = PayloadId(self.last_data - 1)
        return self.last_data

    def remove(self, version: CachedVersion) -> list[PayloadId]:
        """Remove a version. Its bytes stay as long as requests may be answered with them."""
        key = version.key
        if self.versions.get(key) is not version:
            return []
        del self.versions[key]
        self.bytes -= version.length
        ranges = self._of_objects[key.node, key.object]
        del ranges[key]
        if not ranges:
            del self._of_objects[key.node, key.object]
        owner = version.principal
        owned = self._of_principals[owner]
        del owned[key]
        self._bytes_of[owner] -= version.length
        if not owned:
            del self._of_principals[owner], self._bytes_of[owner]
        return self._drop_unused(version)

    def _drop_unused(self, version: CachedVersion) -> list[PayloadId]:
        if version.users or self.versions.get(version.key) is version:
            return []
        del self.kept[version.payload]
        self._kept_bytes -= version.length
        version.counted.release()
        return [version.payload] if version.data is None else []

    def note_version(self, node: NodeId, target: ObjectId, v_w: int, *, zombie: bool) -> list[PayloadId]:
        """Remove the versions of an object that are older than the one that its node has published."""
        dropped: list[PayloadId] = []
        for key in list(self._of_objects.get((node, target), ())):
            version = self.versions[key]
            if zombie or version.v_w < v_w:
                dropped += self.remove(version)
        return dropped

    def remove_where(
        self,
        *,
        node: NodeId | None = None,
        principal: Principal | None = None,
        unused_since: int | None = None,
    ) -> list[PayloadId]:
        """Remove the versions of a node, of a principal, or that were not used since then."""
        dropped: list[PayloadId] = []
        for version in list(self.versions.values()):
            if (
                version.key.node == node
                or version.principal == principal
                or (unused_since is not None and version.used_ns < unused_since)
            ):
                dropped += self.remove(version)
        return dropped

    def charged(self) -> Iterator[Version]:
        """Iterate over the bytes as accounts count them."""
        return (version.counted for version in self.kept.values())
