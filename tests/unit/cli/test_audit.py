from __future__ import annotations

from dios.cli.audit import entry_line
from dios.host.audit import Record
from dios.host.audit_reader import Entry


def test_a_record_is_one_line() -> None:
    """A detail of several lines, or with control characters, cannot break the table or garble it."""
    record = Record(
        now=0,
        action="ended",
        outcome="exception",
        principal="uid:0",
        task="00aa11bb22cc",
        subject="00aa11bb22cc",
        detail="ValueError: \x1b[31m\nLast lines:\nmore",
    )
    line = entry_line(Entry(3, "00000001.audit", 0, b"", record))
    assert line.endswith(r"ValueError: \x1b[31m")
    assert "\x1b" not in line
