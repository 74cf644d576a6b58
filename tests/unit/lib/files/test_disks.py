"""The check that the bytes of a file are on several nodes: only the digest of the catalogue counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, cast

import pytest
from blake3 import blake3

from dios.client.ops.cluster import Gathered
from dios.errors import DamagedError
from dios.lib.catalogue import CatalogueEntry, Part, Tiered, pack_parts
from dios.lib.files.disks import file_disks, has_kept_copies, promised_disks
from dios.lib.kept.records import KeptPromise
from dios.wire.types import ObjectType, Semantics

if TYPE_CHECKING:
    from dios.client.sync.node import Group, Node

BYTES = b"some bytes" * 200
NAME, SECOND = bytes(31) + b"\x21", bytes(31) + b"\x22"
ENTRY = CatalogueEntry("a.txt", NAME, len(BYTES), 0, blake3(BYTES).digest())


class Replica:
    """A physical object on a node; without ``data`` it cannot be read."""

    def __init__(
        self, node: str, data: bytes | None = BYTES, kind: ObjectType = ObjectType.DURABLE_BLOB
    ) -> None:
        self.node = node
        self.data = data
        self.type = kind
        self.size = len(data or BYTES)
        self.secrecy = ()
        self.closed = False

    @contextmanager
    def read(self, _: Semantics, *, size: int, offset: int) -> Iterator[SimpleNamespace]:
        """Read a range."""
        if self.data is None:
            raise DamagedError("the disk has other bytes")
        yield SimpleNamespace(view=memoryview(self.data)[offset : offset + size])

    def close(self) -> None:
        """Close the reference."""
        self.closed = True


def counts(disks: int, *replicas: Replica, entry: CatalogueEntry = ENTRY) -> bool:
    """True if these replicas are enough."""

    def lookup(name: bytes, *, group: Group) -> list[Replica]:
        assert group is not None
        return [replica for replica in replicas if name == NAME]

    node, group = SimpleNamespace(lookup=lookup), SimpleNamespace()
    kept = has_kept_copies(cast("Node", node), cast("Group", group), entry, disks)
    assert all(replica.closed for replica in replicas) or not entry.digest
    return kept


def test_sound_replicas_are_counted_by_their_nodes() -> None:
    """Two nodes with the bytes are two; two replicas on one node, and no replica, are not."""
    assert counts(2, Replica("n1"), Replica("n2"))
    assert not counts(2, Replica("n1"), Replica("n1"))
    assert not counts(1)


@pytest.mark.parametrize(
    "other",
    [
        Replica("n2", BYTES[::-1]),
        Replica("n2", BYTES + b"!"),
        Replica("n2", b""),
        Replica("n2", None),
        Replica("n2", BYTES, ObjectType.SHMEM_BLOB),
    ],
)
def test_another_object_counts_for_nothing(other: Replica) -> None:
    """A replica with other bytes, one that cannot be read, and one in memory do not count."""
    assert not counts(2, Replica("n1"), other)
    assert counts(1, other, Replica("n1"))


def test_bytes_without_a_digest_are_not_verified() -> None:
    """Without a digest in the catalogue nothing says which bytes are right."""
    entry = CatalogueEntry("a.txt", NAME, len(BYTES), 0)
    assert not counts(1, Replica("n1"), entry=entry)


def test_every_part_has_to_be_there() -> None:
    """A large file is not kept while one of its parts is short."""
    parts = [Part(NAME, blake3(BYTES).digest()), Part(SECOND, blake3(b"end").digest())]
    entry = CatalogueEntry("a", NAME, len(BYTES) + 3, 0, b"", len(BYTES), pack_parts(parts))
    assert not counts(1, Replica("n1"), entry=entry)


def test_the_promise_of_a_file_goes_before_that_of_its_group() -> None:
    """Without a promise one disk is enough."""
    of_group = KeptPromise(0, SECOND, NAME, "g", 3)
    of_file = KeptPromise(0, SECOND, NAME, "a.txt", 2, is_single=True)
    group = cast("Group", SimpleNamespace(fingerprint=of_group.key))
    assert promised_disks([], group, ENTRY) == 1
    assert promised_disks([of_group], group, ENTRY) == 3
    assert promised_disks([of_group, of_file], group, ENTRY) == 2
    assert promised_disks([KeptPromise(0, NAME, SECOND, "another group", 3)], group, ENTRY) == 1


class _Call(Protocol):
    __name__: str

    def __call__(self, *arguments: object, **options: object) -> object: ...


class _Batch:
    """Calls that are made together."""

    def add(self, call: _Call, *arguments: object, **options: object) -> SimpleNamespace:
        """Make a call at once; a lookup in company does not wait for other nodes."""
        together = {"together": True} if call.__name__ == "lookup" else {}
        result = call(*arguments, **options, **together)
        return SimpleNamespace(result=lambda: result)


def test_the_disks_of_files_are_counted() -> None:
    """A file in parts is on as many as each part is; what is found incompletely is asked for again."""
    there = {
        NAME: [Replica("n1"), Replica("n2"), Replica("n2")],
        SECOND: [Replica("n1"), Replica("n3", kind=ObjectType.SHMEM_BLOB)],
    }
    asked: list[bytes] = []

    def lookup(name: bytes, *, group: Group, together: bool = False) -> Gathered[Replica]:
        assert group is not None
        asked.append(name)
        replicas = there.get(name, [])
        return Gathered(replicas[:1] if together else replicas, incomplete=together and name == NAME)

    @contextmanager
    def batch() -> Iterator[_Batch]:
        yield _Batch()

    node, group = SimpleNamespace(lookup=lookup, batch=batch), SimpleNamespace(fingerprint="papers")
    packed = pack_parts([Part(NAME, bytes(32)), Part(SECOND, bytes(32))])
    tiered = CatalogueEntry("t", NAME, 1, 0, tier=Tiered("s3://x", bytes(32), stored=True))
    entries = [
        ENTRY,
        CatalogueEntry("parts", NAME, 2, 0, b"", 1, packed),
        CatalogueEntry("lost", bytes(32), 1, 0),
        tiered,
    ]
    single = KeptPromise(1, bytes(32), SECOND, "b", 3, is_single=True)
    disks = file_disks(cast("Node", node), cast("Group", group), entries, [single])
    assert disks == [(2, None), (1, 3), (0, None), (0, None)]
    assert sorted(asked) == sorted([NAME, NAME, SECOND, bytes(32)])
    assert all(replica.closed for replica in there[NAME]), "references are closed"
