"""Tests that the stored objects match their digests, as the scrubbing of the node has written it down."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from dios.errors import DiosError
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import load
from dios.store import scrub_report
from dios.store.scrub_report import DamagedObject, ScrubReport

_SHOWN: Final = 4


_TEST: Final = DoctorTest("scrubbing", "bytes that a disk changed are found before they are needed")


def examine_scrubbing(data: Path) -> DoctorFinding | None:
    """Read the report of the node in ``data``; None if it has not scrubbed yet, or this user may not read."""
    try:
        is_off = not load(data).scrub_rate
    except DiosError:
        return None  # other tests show what is wrong with the settings
    report = scrub_report.load(data)
    if report is None:
        return None
    damaged = report.open_damage
    detail = _pass(report, is_off=is_off)
    repaired = len(report.damaged) - len(damaged)
    if repaired:
        detail += f", repaired from replicas: {repaired}"
    if not damaged:
        return _TEST.result(detail)
    count = len(damaged) + report.unlisted
    shown = "; ".join(_line(entry) for entry in damaged[:_SHOWN])
    more = f"; and {count - _SHOWN} more" if count > _SHOWN else ""
    return _TEST.result(
        f"{count} damaged, not repaired: {shown}{more}; {detail}",
        "write the objects again, or restore their files from a back-up (docs/recovery.md, Scrubbing); "
        "replicas on other nodes repair them by themselves (docs/replicas.md)",
    )


def _line(entry: DamagedObject) -> str:
    why = f" ({entry.failure})" if entry.failure else ""
    return f"{entry.mark}, {entry.size} bytes, since {_time(entry.first_seen)}: {entry.problem}{why}"


def _pass(report: ScrubReport, *, is_off: bool) -> str:
    last = f"all objects were compared until {_time(report.last)}" if report.last else "the first pass runs"
    return f"{last}; scrub_rate is off" if is_off else last


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
