"""A catalogue in several replicas: the latest is read, and a write goes to all that are in step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import pytest

from dios.errors import Conflict, UnreachableError
from dios.lib.files import catalogue_replicas
from dios.lib.files.catalogue_replicas import CatalogueReplicas, latest

if TYPE_CHECKING:
    from dios.client.sync.node import Reference


class Replica:
    """A replica whose node may be dead."""

    def __init__(self, number: int, v_w: int = 0, data: bytes = b"") -> None:
        self.ref = self.object_id = number
        self.v_w = v_w
        self.data = data
        self.zombie = False
        self.dead = False
        self.closed = False

    def close(self) -> None:
        """Close the reference."""
        self.closed = True


class Stored:
    """The bytes of a replica."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def version(self) -> int | None:
        """The present version."""
        return self.replica.v_w

    def read(self) -> tuple[bytes, int]:
        """Content and version."""
        if self.replica.dead:
            raise UnreachableError("dead")
        return self.replica.data, self.replica.v_w

    def replace(self, data: bytes, version: int) -> int:
        """Write, if the version is the expected one."""
        if self.replica.dead:
            raise UnreachableError("dead")
        if version != self.replica.v_w:
            raise Conflict("somebody wrote")
        self.replica.data, self.replica.v_w = data, version + 1
        return version + 1


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas in memory."""
    monkeypatch.setattr(catalogue_replicas, "StoredCatalogue", Stored)


def made(first: Iterable[Replica], found: Iterable[Replica] = ()) -> CatalogueReplicas:
    """A catalogue with these replicas, and those that a later lookup finds."""
    later = cast("list[Reference]", list(found))
    return CatalogueReplicas(cast("list[Reference]", list(first)), lambda: later)


def test_a_write_goes_to_every_replica_that_has_the_version() -> None:
    """One that is behind is left to the keeper, and one that is dead does not stop the write."""
    one, two, behind, dead = Replica(1, 5), Replica(2, 5), Replica(3, 4), Replica(4, 5)
    dead.dead = True
    assert made([one, two, behind, dead]).replace(b"new", 5) == 6
    assert [(each.data, each.v_w) for each in (one, two, behind, dead)] == [
        (b"new", 6), (b"new", 6), (b"", 4), (b"", 5),
    ]  # fmt: skip


def test_a_replica_of_the_same_version_with_other_bytes_is_left_alone() -> None:
    """It was written on the other side of a partition: the keeper shows the conflict, and nothing is lost."""
    one, two, other = Replica(1, 5, b"ours"), Replica(2, 5, b"ours"), Replica(3, 5, b"theirs")
    catalogue = made([one, two, other])
    assert catalogue.replace(b"new", 5) == 6
    assert catalogue.replace(b"newer", 6) == 7
    assert [(each.data, each.v_w) for each in (one, two, other)] == [
        (b"newer", 7), (b"newer", 7), (b"theirs", 5),
    ]  # fmt: skip


def test_every_program_takes_the_same_replica_for_the_latest() -> None:
    """The highest version, then the smallest id; none that was destroyed."""
    one, two, gone = Replica(1, 5), Replica(2, 5), Replica(3, 9)
    gone.zombie = True
    given = cast("list[Reference]", [two, gone, one])
    found = latest(given)
    assert found is not None
    assert found.ref == 1
    assert latest([]) is None


def test_the_next_replica_serves_when_the_node_of_the_latest_is_dead() -> None:
    """For reading and for writing; handles that are not used any more are closed."""
    one, two = Replica(1, 5, b"old"), Replica(2, 5, b"old")
    one.dead = True
    catalogue = made([one, two], [two])
    assert catalogue.read() == (b"old", 5)
    assert one.closed
    assert catalogue.replace(b"new", 5) == 6
    assert (two.data, two.v_w) == (b"new", 6)


def test_an_overtaken_write_changes_no_replica() -> None:
    """The latest replica decides between writers."""
    one, two = Replica(1, 6, b"theirs"), Replica(2, 5, b"old")
    with pytest.raises(Conflict):
        made([one, two]).replace(b"mine", 5)
    assert (one.data, two.data) == (b"theirs", b"old")


def test_without_a_replica_that_answers_the_error_is_shown() -> None:
    """Also if the lookup finds the same dead one again, of which a write may have been made."""
    one = Replica(1, 5)
    one.dead = True
    for found in ([one], []):
        with pytest.raises(UnreachableError):
            made([one], found).replace(b"new", 5)
