"""The report of a leading keeper names what needs the user before what needs time."""

from __future__ import annotations

from msgspec.structs import replace

from dios.lib.kept.leading import Leading
from dios.lib.kept.records import ShortObject


def test_conflicts_are_shown_before_objects_that_are_short() -> None:
    """A report names a bounded number of objects."""
    leading = Leading()
    short = ShortObject("a1", "papers", 2, 1, 10, "copies are being made")
    leading.short = {b"short": short, b"conflict": replace(short, conflict=("n1", "n2"))}
    leading.note_removed(b"removed", short)
    leading.note_removed(b"short", replace(short, current=0))
    assert list(leading.shown(10)) == [b"conflict", b"short", b"removed"]
    assert leading.shown(10)[b"short"].current == 1
