"""A reader finds the sound replica of a file, the nearest first, and names those that it passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest
from blake3 import blake3

from dios import limits
from dios.client.ops.cluster import Gathered
from dios.errors import DamagedError, DiosError, InvalidError, StaleError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Part, pack_parts
from dios.lib.files import sound_replicas
from dios.lib.files.parts import StoredParts
from dios.lib.files.sound_replicas import BadReplicas, SoundReplicas, WantedObject
from dios.wire.types import ObjectType, Proximity

if TYPE_CHECKING:
    from dios.client.sync.node import Group, Node

GOOD = b"the bytes of the file"
OTHER = b"other bytes, as many "
LARGE = bytes(range(256)) * (limits.INLINE_BYTES_MAX // 256 + 1)
NAME = b"n" * 32
DAMAGED, SILENT = DamagedError("disk"), UnreachableError("dead")


class Replica:
    """A replica, with its bytes or the error of reading them."""

    def __init__(
        self,
        node: str,
        content: bytes | DiosError = GOOD,
        v_w: int = 0,
        size: int | None = None,
        proximity: Proximity = Proximity.CLUSTER,
    ) -> None:
        self.object_id = hash(node)
        self.node = node
        self.content = content
        self.v_w = v_w
        self.size = size if size is not None else len(content) if isinstance(content, bytes) else len(GOOD)
        self.proximity = Proximity.NODE if node == "here" else proximity
        self.type = ObjectType.DURABLE_BLOB
        self.secrecy: tuple[str, ...] = ()
        self.open = 0
        self.reads = 0

    def view_bytes(self) -> memoryview:
        """View the bytes."""
        self.reads += 1
        return memoryview(self.read_bytes())

    def read_bytes(self, size: int = 0, offset: int = 0) -> bytes:
        """Read a range."""
        if isinstance(self.content, DiosError):
            raise self.content
        return self.content[offset : offset + size] if size else self.content

    def close(self) -> None:
        """Close the reference."""
        self.open = 0


class Pending:
    """The result of a call of a batch."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._outcome: object = None
        self._error: DiosError | None = None
        try:
            self._outcome = call()
        except DiosError as error:
            self._error = error

    def result(self) -> object:
        """Return or raise it."""
        if self._error is not None:
            raise self._error
        return self._outcome


class Batch:
    """Calls that are made at once."""

    def add(self, call: Callable[[], object]) -> Pending:
        """Make a call."""
        return Pending(call)


class FakeNode:
    """A node that finds replicas of one name; ``silent`` if another node does not answer."""

    def __init__(self, *replicas: Replica, silent: bool = False) -> None:
        self.replicas = replicas
        self.silent = silent
        self.lookups: list[int] = []

    def lookup(self, name: bytes, *, group: object, limit: int) -> Gathered[Replica]:
        """Return replicas as a node does: with a limit of 1 only the nearest one."""
        del name, group
        self.lookups.append(limit)
        replicas = list(self.replicas[:limit])
        for replica in replicas:
            replica.open += 1
        return Gathered(replicas, incomplete=self.silent and limit > len(replicas))

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Make calls together."""
        yield Batch()


def reader(
    node: FakeNode, *, data: bytes = GOOD, digest: bytes | None = None
) -> tuple[SoundReplicas, list[BadReplicas]]:
    """The replicas of a file with these bytes, and what a reader is told."""
    told: list[BadReplicas] = []
    wanted = WantedObject("a.txt", NAME, len(data), blake3(data).digest() if digest is None else digest)
    return SoundReplicas(cast("Node", node), cast("Group", None), wanted, told.append), told


def test_the_nearest_replica_is_read_with_one_lookup() -> None:
    """Nothing else is asked for, and nothing is reported, while it is sound."""
    near, far = Replica("here"), Replica("n2")
    node = FakeNode(near, far)
    replicas, told = reader(node)
    assert replicas.view() == GOOD
    assert (node.lookups, far.reads, told) == ([1], 0, [])
    assert not near.open


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Replica("here", DAMAGED), "on here is damaged"),
        (Replica("here", SILENT), "on here does not answer"),
        (Replica("here", OTHER, v_w=1), "on here has other bytes than the file"),
        (Replica("here", GOOD + b"more", v_w=1), "on here has other bytes than the file"),
        (Replica("n9", OTHER), "on n9 has other bytes than the file"),
        (Replica("", DAMAGED), "on this node is damaged"),
    ],
)
@pytest.mark.parametrize("way", [SoundReplicas.view, SoundReplicas.checked_view])
def test_a_bad_replica_is_passed_over_and_named(
    bad: Replica, why: str, way: Callable[[SoundReplicas], memoryview]
) -> None:
    """Damaged, silent, or with other bytes, whatever its version says: the next one is read."""
    sound = Replica("n2")
    node = FakeNode(bad, sound)
    replicas, told = reader(node)
    assert way(replicas) == GOOD
    assert [str(warning) for warning in told] == [f"the replica of a.txt {why}; it was read from n2"]
    assert not bad.open
    assert not sound.open


def test_only_a_checked_view_compares_bytes_in_place() -> None:
    """The version of the put is trusted here, where comparing would cost more than reading."""
    assert reader(FakeNode(Replica("here", OTHER)))[0].view() == OTHER
    assert reader(FakeNode(Replica("here", OTHER), Replica("n2")))[0].checked_view() == GOOD
    large = Replica("here", LARGE[::-1], v_w=1)
    assert reader(FakeNode(large), data=LARGE)[0].view() == LARGE[::-1]
    large.v_w = 2
    with pytest.raises(DamagedError):
        reader(FakeNode(large), data=LARGE)[0].view()


def test_a_written_replica_with_the_right_bytes_is_sound() -> None:
    """The digest decides, and the version only says that the bytes must be compared."""
    replicas, told = reader(FakeNode(Replica("here", v_w=7)))
    assert replicas.view() == GOOD
    assert not told


def test_without_a_digest_nothing_is_compared() -> None:
    """A catalogue of the first version has no digests."""
    replicas, _ = reader(FakeNode(Replica("here", OTHER + b"!", v_w=3)), digest=b"")
    assert replicas.checked_view() == OTHER + b"!"


def test_without_a_sound_replica_each_bad_one_is_named() -> None:
    """With its node, the reason, and the next step; nothing is reported as read."""
    replicas, told = reader(FakeNode(Replica("here", DAMAGED), Replica("n2", OTHER)))
    with pytest.raises(DamagedError) as caught:
        replicas.view()
    text = caught.value.message
    assert "on here is damaged, on n2 has other bytes" in text
    assert "`dios backup restore`" in text
    assert not told


@pytest.mark.parametrize(
    ("node", "named"),
    [
        (FakeNode(Replica("here", DAMAGED), silent=True), "on here is damaged"),
        (FakeNode(Replica("here", DAMAGED), Replica("n2", SILENT)), "on n2 does not answer"),
        (FakeNode(silent=True), "is on a node that does not answer"),
    ],
)
def test_a_node_that_does_not_answer_may_have_a_sound_replica(node: FakeNode, named: str) -> None:
    """Then the file is not lost: the reader is told to wait for that node."""
    with pytest.raises(UnreachableError, match=named):
        reader(node)[0].view()


def test_what_was_destroyed_is_neither_bad_nor_damaged() -> None:
    """The caller looks if the file was replaced."""
    for node in (FakeNode(), FakeNode(Replica("here", StaleError("gone")))):
        with pytest.raises(StaleError):
            reader(node)[0].view()
    other = Replica("here")
    other.type = ObjectType.DURABLE_STREAM
    with pytest.raises(InvalidError, match="is a DURABLE_STREAM, not a file"):
        reader(FakeNode(other))[0].view()


def test_the_next_replicas_are_read_in_the_order_of_their_distance() -> None:
    """A replica in the same rack goes before one that answered first."""
    far, near = Replica("n2"), Replica("n3", proximity=Proximity.RACK)
    replicas, told = reader(FakeNode(Replica("here", DAMAGED), far, near))
    replicas.view()
    assert [warning.sound for warning in told] == ["n3"]


def test_a_file_that_is_read_in_ranges_goes_on_at_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same position; both nodes are named once."""
    monkeypatch.setattr(sound_replicas, "_RANGES_BYTES_MIN", 1)
    monkeypatch.setattr(sound_replicas, "RANGE_BYTES", 100)
    first, second = Replica("n1", LARGE, v_w=1), Replica("n2", LARGE, v_w=1)
    replicas, told = reader(FakeNode(first, second), data=LARGE)
    with replicas.open("a.txt") as file:
        head = file.read(100)
        first.content = SILENT
        assert head + file.read() == LARGE
        assert second.open
    assert not second.open
    assert [str(warning) for warning in told] == [
        "the replica of a.txt on n1 does not answer; it was read from n2",
    ]


def test_a_reference_is_one_that_can_be_read() -> None:
    """The caller gets an open reference, and closes it."""
    bad, sound = Replica("here", DAMAGED), Replica("n2")
    replicas, told = reader(FakeNode(bad, sound))
    assert cast("Replica", replicas.reference()) is sound
    assert (bad.open, sound.open, len(told)) == (0, 1, 1)


def test_each_part_of_a_large_file_is_read_from_a_sound_replica() -> None:
    """The notice names the part; when the object is gone, the file was replaced."""
    digest = blake3(GOOD).digest()
    entry = CatalogueEntry(
        "big.bin", NAME, len(GOOD) * 2, 0, b"", len(GOOD), pack_parts([Part(NAME, digest)] * 2)
    )
    told: list[BadReplicas] = []
    node = FakeNode(Replica("here", DAMAGED), Replica("n2"))
    parts = StoredParts(cast("Node", node), cast("Group", None), entry, told.append)
    assert b"".join(parts.checked()) == GOOD * 2
    assert [warning.label for warning in told] == ["part 1 of big.bin", "part 2 of big.bin"]
    assert parts.range(1, len(GOOD) + 1) == GOOD[1:] + GOOD[:1]
    node.replicas = ()
    with pytest.raises(FileNotFoundError, match="replaced or removed"):
        parts.view(0)
