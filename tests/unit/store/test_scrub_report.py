from __future__ import annotations

from pathlib import Path

import pytest

from dios import limits
from dios.ids import ObjectId
from dios.store import scrub_report
from dios.store.schema import ContentKind, ObjectRow, Payload, describe
from dios.store.scrub_report import DamagedObject, ScrubReport, encode, load, save
from dios.store.scrubbing import Damage
from tests.support.store.records import record

NOW = 1_800_000_000
MONTH = limits.SCRUB_REPAIRED_KEPT_MS // 1000
FROZEN = (
    '{"version":1,"after":"0000000000000005","began":1800000000,"finished":0,"last":0,"unlisted":0,'
    '"damaged":[{"object":"0000000000000001","mark":"' + describe(record(1)) + '",'
    '"extent":"000000000000000c","size":9,"problem":"p","found":1800000001,"seen":1800000001,'
    '"repaired":0,"failure":""}]}'
)


def damaged(number: int) -> Damage:
    """The damage of an object."""
    row = ObjectRow(record(number, size=9), Payload(ContentKind.EXTENT, 9, bytes(32), number + 11))
    return Damage(ObjectId(number), row, "p")


def unfinished_report() -> ScrubReport:
    """A report in the middle of a pass that found a damaged object."""
    report = ScrubReport()
    report.begin(NOW)
    report.note(damaged(1), NOW + 1)
    report.after = f"{5:016x}"
    return report


def test_the_stored_form_is_frozen(tmp_path: Path) -> None:
    """A report that an earlier start wrote is read, and position and damage are the same."""
    assert encode(unfinished_report()).decode() == FROZEN
    save(FROZEN.encode(), tmp_path)
    report = load(tmp_path)
    assert report == unfinished_report()
    assert report is not None
    assert report.position == 5
    assert (tmp_path / scrub_report.FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version":2}',
        '{"after":"../../x"}',
        '{"began":-1}',
        '{"damaged":[{}]}',
        FROZEN + " " * limits.SCRUB_REPORT_BYTES_MAX,
    ],
)
def test_a_report_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """A cut, foreign, newer or endless file, like none at all."""
    assert load(tmp_path) is None
    save(text.encode(), tmp_path)
    assert load(tmp_path) is None


def test_names_are_not_in_the_report() -> None:
    """The fingerprint stands for the name."""
    name = record(1).name
    assert name is not None
    assert name.hex() not in encode(unfinished_report()).decode()


def test_an_object_is_listed_once() -> None:
    """A later pass finds it again, and its first time stays."""
    report = unfinished_report()
    assert report.note(damaged(1), NOW + 50) is None
    assert [(listed.first_seen, listed.seen) for listed in report.damaged] == [(NOW + 1, NOW + 50)]


def test_a_pass_forgets_what_it_found_sound() -> None:
    """An object that the next pass does not find damaged any more leaves the list at its end."""
    report = unfinished_report()
    report.end(NOW + 2)
    assert len(report.open_damage) == 1
    assert (report.position, report.last) == (None, NOW + 2)
    report.begin(NOW + 100)
    report.note(damaged(2), NOW + 101)
    report.end(NOW + 102)
    assert [listed.object_id for listed in report.damaged] == [2]


def test_a_repair_is_shown_for_a_month() -> None:
    """And no longer, while the present damage stays."""
    report = unfinished_report()
    report.damaged[0].repaired = NOW + 3
    for at, count in ((NOW + MONTH, 1), (NOW + MONTH + 4, 0)):
        report.begin(at)
        report.end(at)
        assert len(report.damaged) == count
        assert report.open_damage == []


def test_the_list_is_bounded() -> None:
    """Repaired objects make room for damaged ones, and further ones are counted for one pass."""
    report = ScrubReport()
    report.begin(NOW)
    for number in range(limits.SCRUB_DAMAGED_MAX):
        assert isinstance(report.note(damaged(number), NOW), DamagedObject)
    report.damaged[3].repaired = NOW
    assert report.note(damaged(1_000), NOW) is not None
    assert report.note(damaged(1_001), NOW) is None
    assert (len(report.damaged), report.unlisted) == (limits.SCRUB_DAMAGED_MAX, 1)
    assert 3 not in {listed.object_id for listed in report.damaged}
    assert len(encode(report)) < limits.SCRUB_REPORT_BYTES_MAX
    report.begin(NOW + 1)
    assert report.unlisted == 0
