"""The results of the tasks of a gang, and of a job over time."""

from __future__ import annotations

import msgspec

from dios.cli.tasks.gang import GangMember, _row
from dios.errors import DiosError
from dios.wire.messages import Work


def test_a_member_that_is_called_by_a_number_has_no_number() -> None:
    """A task of a gang has a number, and a member of a job over time its name, whatever that looks like."""
    marks = [
        GangMember(mark, lambda *_: None, Work(), error=DiosError("no room"))  # type: ignore[arg-type] # nothing begins
        for mark in (7, "7")
    ]
    assert [msgspec.to_builtins(_row(member, lambda _: {})) for member in marks] == [
        {"number": 7, "error": "no room"},
        {"member": "7", "error": "no room"},
    ]
