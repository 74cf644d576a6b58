"""A real node on a disk that is really full, or really read-only: clear errors, reads go on, no restart.

Not for: the store alone (``tests/unit/store``). The disk is a small one in memory, mounted for the test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios import limits
from dios.errors import DamagedError, NoSpaceError
from dios.host.audit.reader import read, verify
from dios.store.check import hold_directory, read_index, verify_contents
from tests.support.node.command_user import Person
from tests.support.node.running_node import RunningNode, running_node, wait_until

DISK_BYTES = 24 * limits.MIB
SMALL, MEDIUM, LARGE = b"s" * 300, b"m" * 12_000, b"l" * 300_000
OBJECTS_MAX = 2_000


def mount(*arguments: str) -> None:
    """Mount something, or skip with what the system says."""
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    """Take a file system away, and all that is mounted on it."""
    subprocess.run(["umount", "--recursive", "--lazy", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0755", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        unmount(folder)


@pytest.fixture
def node(disk: Path) -> Iterator[RunningNode]:
    """A node whose data directory is on the small disk."""
    with running_node(disk / "node0", pool_size="0") as started:
        yield started


def fill(disk: Path) -> Path:
    """Use up the disk to its last byte; removing the file gives everything back."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (limits.MIB, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


def until_refused(session: dios.Node, data: bytes) -> tuple[int, NoSpaceError]:
    """Create objects until one is refused: how many there were, and why no more. The index has free pages."""
    for count in range(OBJECTS_MAX):
        try:
            session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=data).close()
        except NoSpaceError as error:
            return count, error
    pytest.fail("a full disk takes everything")


def whole(data: Path) -> int:
    """How many objects a stopped node holds, which must all be whole, with nothing left over."""
    with hold_directory(data):
        index = read_index(data)
        verify_contents(index, lambda _: None)
    assert index.findings == []
    return len(index.rows)


def test_a_full_disk_refuses_what_is_durable_and_nothing_else(disk: Path, node: RunningNode) -> None:
    """On a full disk durable work is refused with the reason, the rest goes on, and room alone repairs it."""
    with dios.connect(node.place, groups=()) as session, dios.connect(node.place, groups=()) as other:
        home = session.groups[:1]
        held_by_one = [
            session.create(dios.DURABLE_BLOB, groups=home, data=data) for data in (SMALL, MEDIUM, LARGE)
        ]
        stream = session.create(dios.SHMEM_BLOB, groups=home, data=LARGE)
        filler, created = fill(disk), 0
        for data in (SMALL, MEDIUM, LARGE):
            fitted, refused = until_refused(session, data)
            created += fitted
            assert "the disk of the node's data directory" in refused.message
            assert str(disk) not in refused.message, "tasks are told the same"
        for blob in held_by_one:
            with pytest.raises(NoSpaceError, match="full"):
                blob.write_bytes(LARGE[::-1] + b"!")
        # Reading, memory, names and tasks are as ever, for this client and for others.
        assert [bytes(blob.read_bytes()) for blob in held_by_one] == [SMALL, MEDIUM, LARGE]
        stream.write_bytes(LARGE[::-1])
        name = held_by_one[2].name
        assert name is not None
        assert bytes(other.lookup(name)[0].read_bytes()) == LARGE
        assert other.run(b"1 + 1").wait(timeout=30).ok
        other.create(dios.SHMEM_BLOB, groups=other.groups[:1], data=SMALL).close()
        filler.unlink()
        for data in (SMALL, MEDIUM, LARGE):
            session.create(dios.DURABLE_BLOB, groups=home, data=data)
        held_by_one[0].write_bytes(LARGE)
        held_by_one[1].delete()
    node.stop()
    # The home group, and six objects of which one was deleted, beside what the index still had room for.
    assert whole(node.data) == 6 + created


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_starts_on_a_full_disk(disk: Path, node: RunningNode, killed: bool) -> None:  # noqa: FBT001 - a parameter
    """A node that was stopped or killed starts again on a full disk: what it holds can be read."""
    with dios.connect(node.place, groups=()) as session:
        blobs = [
            session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=data) for data in (SMALL, LARGE)
        ]
        names = [blob.name for blob in blobs]
    node.kill() if killed else node.stop()
    filler = fill(disk)
    node.restart()
    with dios.connect(node.place, groups=()) as session:
        assert [bytes(session.lookup(name or b"")[0].read_bytes()) for name in names] == [SMALL, LARGE]
        fitted, refused = until_refused(session, MEDIUM)
        assert "is full" in refused.message
        filler.unlink()
        session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=LARGE)
    node.stop()
    assert whole(node.data) == 4 + fitted


def test_what_cannot_be_recorded_is_not_done(disk: Path, node: RunningNode) -> None:
    """When the audit log can grow neither on the disk nor in memory, what it must tell of is refused.

    What leaves no record goes on, no record is lost, and room alone repairs it.
    """
    with dios.connect(node.place, groups=()) as session:
        home = session.groups[:1]
        blob = session.create(dios.DURABLE_BLOB, groups=home, data=SMALL)
        filler = fill(disk)
        asked = 0
        refused: NoSpaceError | None = None
        while refused is None:
            for _ in range(1_000):
                assert not session.lookup(os.urandom(limits.NAME_BYTES))
            asked += 1_000
            assert asked <= 50_000, "the log takes more than it has room for"
            try:
                session.create(dios.SHMEM_BLOB, groups=home, data=SMALL).close()
            except NoSpaceError as error:
                refused = error
        assert "the audit log cannot be written (No space left on device)" in refused.message
        assert bytes(blob.read_bytes()) == SMALL
        assert session.info().counts
        filler.unlink()
        blobs: list[dios.Reference] = []

        def works_again() -> bool:
            try:
                blobs.append(session.create(dios.DURABLE_BLOB, groups=home, data=LARGE))
            except NoSpaceError:
                return False
            return True

        wait_until(works_again, "the audit log is written again")
    node.stop()
    assert verify(node.data / "audit").ok
    lookups = [entry.record for entry in read(node.data / "audit") if entry.record.action == "lookup"]
    assert sum(record.count for record in lookups) == asked


def test_a_read_only_disk_is_told_at_the_start(disk: Path) -> None:
    """A data directory in which nothing can be written is refused with its path, its owner and what to do."""
    with running_node(disk / "node0", pool_size="0") as node:
        with dios.connect(node.place, groups=()) as session:
            session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=LARGE)
        node.stop()
    remount = ["mount", "-o", "remount,ro", str(disk)]
    # What the daemon had started may hold its log for a moment longer than it.
    wait_until(
        lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0, "it is read-only"
    )
    person = Person(disk.parent)
    for place in (disk / "node0", disk / "new"):
        told = person.types(f"dios-node start --detach --data {place}", status=1).stderr
        assert str(place) in told
        assert "Read-only file system" in told
        assert "belongs to" in told
        assert f"dios doctor --data {place}" in told
        assert "Traceback" not in told
    # The check needs to write nothing.
    person.types(f"dios-node check --data {disk / 'node0'}")
    mount("-o", "remount,rw", str(disk))
    person.types(f"dios-node start --detach --data {disk / 'node0'}")
    person.types(f"dios-node stop --data {disk / 'node0'}")


def test_a_disk_that_turns_read_only_is_told(disk: Path, node: RunningNode) -> None:
    """When the files' folder turns read-only under a node, only storing there fails."""
    extents = node.data / "extents"
    with dios.connect(node.place, groups=()) as session:
        home = session.groups[:1]
        blob = session.create(dios.DURABLE_BLOB, groups=home, data=LARGE)
        mount("--bind", str(extents), str(extents))
        mount("-o", "remount,bind,ro", str(extents))
        for _ in range(2):
            with pytest.raises(DamagedError, match="Read-only file system"):
                session.create(dios.DURABLE_BLOB, groups=home, data=LARGE)
        with pytest.raises(DamagedError, match="data directory"):
            blob.write_bytes(LARGE[::-1])
        assert bytes(blob.read_bytes()) == LARGE
        session.create(dios.DURABLE_BLOB, groups=home, data=SMALL)
        unmount(extents)
        blob.write_bytes(LARGE[::-1])
        assert bytes(blob.read_bytes()) == LARGE[::-1]
    node.stop()
    # The home group and two objects; a start clears away what could not be removed meanwhile.
    assert whole(node.data) == 3


def test_a_full_index_is_told_and_deleting_helps(tmp_path: Path) -> None:
    """When map_bytes are used up, storing fails and names the setting; deleting makes room."""
    data = os.urandom(len(MEDIUM))
    with running_node(tmp_path / "node0", pool_size="0", map_bytes=str(limits.STORE_MAP_BYTES_MIN)) as node:
        with dios.connect(node.place, groups=()) as session:
            home = session.groups[:1]
            blobs = [session.create(dios.DURABLE_BLOB, groups=home, data=data) for _ in range(8)]
            _, refused = until_refused(session, data)
            assert "--map-bytes" in refused.message
            assert bytes(blobs[0].read_bytes()) == data
            for blob in blobs[1:]:
                blob.delete()
            fitted, refused = until_refused(session, data)
            assert fitted > 3
            assert "--map-bytes" in refused.message
        node.stop()
        node.flags["map_bytes"] = str(8 * limits.MIB)
        node.restart()
        with dios.connect(node.place, groups=()) as session:
            for _ in range(20):
                session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=data)
        node.stop()
        assert whole(node.data) > 20
