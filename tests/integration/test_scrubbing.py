"""Scrubbing on real nodes: a flipped byte is found while they run, reported, and repaired from a replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.client.sync.node import connect
from dios.host.audit import reader
from dios.node import local_cluster
from dios.node.doctor.diagnosis import examine
from dios.node.doctor.finding import DoctorLevel
from dios.store import scrub_report
from dios.store.scrub_report import DamagedObject
from tests.integration.test_kept_replicas import SETTINGS, Keeping, is_kept
from tests.support.node.running_node import running_node, wait_until

pytestmark = pytest.mark.long

LARGE = bytes(range(256)) * 4_096
OTHER = LARGE[::-1]
FAST = {"scrub_every": "1s", "scrub_rate": "1GiB"}


def extents(data: Path, size: int) -> list[Path]:
    """The extent files of this size."""
    return [path for path in (data / "extents").glob("*/*") if path.is_file() and path.stat().st_size == size]


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))


def reported(data: Path) -> list[DamagedObject]:
    """The damaged objects in the node's report."""
    report = scrub_report.load(data)
    return [] if report is None else report.damaged


def audited(data: Path) -> list[tuple[str, str]]:
    """Outcomes and subjects of the records about scrubbing."""
    records = (entry.record for entry in reader.read(data / "audit"))
    return [(record.outcome, record.subject) for record in records if record.action == "scrub"]


def doctor(data: Path) -> tuple[DoctorLevel, str]:
    """What the doctor finds about scrubbing."""
    finding = next(candidate for candidate in examine(data).findings if candidate.name == "scrubbing")
    return finding.level, finding.detail


def test_damage_is_found_while_the_node_runs(tmp_path: Path) -> None:
    """Report, doctor, counts, log and audit have it; reads fail; the report outlives the node's restart."""
    data = tmp_path / "data"
    with running_node(data, pool_size="0", **FAST) as node:
        with connect(node.place) as session:
            groups = session.groups[:1]
            blob = session.create(dios.DURABLE_BLOB, groups=groups, data=LARGE)
            other = session.create(dios.DURABLE_BLOB, groups=groups, data=OTHER)
            # Both are open in the node, which would not look at their files again of itself.
            assert (blob.read_bytes(), other.read_bytes()) == (LARGE, OTHER)
            (victim,) = [path for path in extents(data, len(LARGE)) if path.read_bytes() == LARGE]
            flip(victim)
            wait_until(lambda: reported(data) and reported(data)[0].failure, "the damage is reported")
            with pytest.raises(dios.DamagedError):
                blob.read_bytes()
            assert other.read_bytes() == OTHER
            counts = session.info().counts
            assert (counts["scrub_damaged"], counts["scrub_repaired"]) == (1, 0)
            assert counts["scrub_bytes"] >= len(LARGE)
            (damage,) = reported(data)
            assert (damage.mark, damage.size) == (blob.fingerprint, len(LARGE))
            assert damage.failure == "no other replica of it was found"
        level, detail = doctor(data)
        assert level is DoctorLevel.WEAK
        assert detail.startswith(f"1 damaged, not repaired: {damage.mark}, {len(LARGE)} bytes, since ")
        assert damage.mark in (data / "node.log").read_text()
        wait_until(lambda: audited(data) == [("damaged", damage.mark)], "the audit log has the damage")
        node.stop()
        node.restart()
        assert [(entry.mark, entry.first_seen) for entry in reported(data)] == [
            (damage.mark, damage.first_seen)
        ]
        assert doctor(data)[0] is DoctorLevel.WEAK
        with connect(node.place) as session:
            assert blob.name is not None
            again = session.find(blob.name)
            assert again is not None
            again.write_bytes(OTHER)
            wait_until(lambda: not reported(data), "an object that is written again is sound")
        assert doctor(data)[0] is DoctorLevel.OK


@pytest.fixture
def unscrubbed(tmp_path: Path) -> Iterator[Keeping]:
    """Three nodes that do not scrub, killed at the end whatever happened."""
    yield from cluster(tmp_path, SETTINGS | {"scrub_rate": "off"})


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Keeping]:
    """Three nodes that scrub all the time, killed at the end whatever happened."""
    yield from cluster(tmp_path, SETTINGS | FAST)


def cluster(tmp_path: Path, settings: dict[str, str]) -> Iterator[Keeping]:
    """A cluster of three nodes."""
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=3, keep=True, settings=settings)
    keeping = Keeping(live_cluster, tmp_path / "person")
    try:
        local_cluster.start(live_cluster)
        yield keeping
    finally:
        for node in live_cluster.nodes:
            keeping.kill(node.name)


@pytest.mark.extended
def test_a_damaged_replica_is_repaired_from_the_other_one(three: Keeping) -> None:
    """Two promised replicas, of which each is damaged once: both are right afterwards, where they were."""
    (three.person.home / "big.bin").write_bytes(LARGE)
    three.person.writes("small.txt", "small")
    three.types("dios group create papers")
    three.types("dios put big.bin small.txt --group papers")
    three.types("dios group set papers --replicas 2")
    three.until(is_kept(3), "two replicas of each file and of their list")
    homes = three.nodes_of("big.bin")
    assert len(homes) == 2
    for name in sorted(homes):
        (data,) = [node.data for node in three.local.nodes if node.name == name]
        (victim,) = extents(data, len(LARGE))
        flip(victim)
        wait_until(
            lambda data=data: [damage for damage in reported(data) if damage.repaired],
            f"{name} is repaired",
            60,
        )
        assert not victim.exists()
        (sound,) = extents(data, len(LARGE))
        assert sound.read_bytes() == LARGE
        level, detail = doctor(data)
        assert level is DoctorLevel.OK
        assert "repaired from replicas: 1" in detail
        assert three.nodes_of("big.bin") == homes
    three.types("dios get big.bin --output copy.bin")
    assert (three.person.home / "copy.bin").read_bytes() == LARGE


@pytest.mark.extended
def test_a_keeper_prefers_sound_replicas(unscrubbed: Keeping) -> None:
    """It copies from a sound one, counts only these, and never drops the last of them for a damaged one."""
    contents = {f"{number}.bin": bytes([number]) + LARGE + bytes(number) for number in range(4)}
    for file, content in contents.items():
        (unscrubbed.person.home / file).write_bytes(content)
    unscrubbed.types("dios group create papers")
    unscrubbed.types(f"dios put {' '.join(contents)} --group papers")
    unscrubbed.types("dios group set papers --replicas 2")
    unscrubbed.until(is_kept(len(contents) + 1), "two replicas of each file and of their list")
    homes = {file: sorted(unscrubbed.nodes_of(file)) for file in contents}
    for node in unscrubbed.local.nodes:
        unscrubbed.kill(node.name)
    for number, (file, content) in enumerate(contents.items()):
        # The replicas to copy from, and to drop, are chosen by ids: damage one and the other.
        (data,) = [node.data for node in unscrubbed.local.nodes if node.name == homes[file][number % 2]]
        flip(*extents(data, len(content)))
    local_cluster.start(unscrubbed.local)
    unscrubbed.types("dios group set papers --replicas 3")
    wait_until(
        lambda: all(len(unscrubbed.nodes_of(file)) == 3 for file in contents), "a third replica of each", 60
    )
    unscrubbed.types("dios group set papers --replicas 1")
    unscrubbed.until(is_kept(len(contents) + 1), "one replica of each file")
    wait_until(
        lambda: all(len(unscrubbed.nodes_of(file)) <= 2 for file in contents), "surplus ones are gone", 60
    )
    for content in contents.values():
        files = [path for node in unscrubbed.local.nodes for path in extents(node.data, len(content))]
        assert any(path.read_bytes() == content for path in files)
