"""What ``dios doctor`` says about scrubbing."""

from __future__ import annotations

from pathlib import Path

from dios.ids import ObjectId
from dios.node.doctor.scrubbing import examine_scrubbing
from dios.store.schema import ContentKind, ObjectRow, Payload, describe
from dios.store.scrub_report import ScrubReport, encode, save
from dios.store.scrubbing import Damage
from tests.support.store.records import record


def write(data: Path, *, damaged: int, repaired: int = 0) -> None:
    """A report with damaged objects, of which some were repaired."""
    report = ScrubReport()
    report.begin(1_800_000_000)
    for number in range(damaged):
        row = ObjectRow(record(number), Payload(ContentKind.EXTENT, 9, bytes(32), 5))
        noted = report.note(Damage(ObjectId(number), row, "its file is missing"), 1_800_000_001)
        assert noted is not None
        noted.failure = "no replica"
        noted.repaired = 1_800_000_002 if number < repaired else 0
    report.end(1_800_000_003)
    save(encode(report), data)


def test_a_node_that_has_not_scrubbed_has_no_finding(tmp_path: Path) -> None:
    """Nor has a directory without a node."""
    assert examine_scrubbing(tmp_path) is None
    (tmp_path / "scrub.json").write_text("{")
    assert examine_scrubbing(tmp_path) is None


def test_sound_objects_need_nothing(tmp_path: Path) -> None:
    """The time of the last pass, and the repairs, are shown; so is a setting that is off."""
    write(tmp_path, damaged=2, repaired=2)
    check = examine_scrubbing(tmp_path)
    assert check is not None
    assert check.detail.startswith("all objects were compared until 2027-01-1")
    assert check.detail.endswith(", repaired from replicas: 2")
    assert not check.advice
    (tmp_path / "node.toml").write_text("scrub_rate = 'off'\n")
    check = examine_scrubbing(tmp_path)
    assert check is not None
    assert "scrub_rate is off" in check.detail


def test_damaged_objects_are_shown_by_fingerprint(tmp_path: Path) -> None:
    """Each with its size, time, problem and the reason; of many only some."""
    write(tmp_path, damaged=6, repaired=1)
    check = examine_scrubbing(tmp_path)
    assert check is not None
    assert check.detail.startswith(
        f"5 damaged, not repaired: {describe(record(1))}, 9 bytes, since 2027-01-1"
    )
    assert "its file is missing (no replica)" in check.detail
    assert "; and 1 more; " in check.detail
    assert "back-up" in check.advice
