from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from labs.benchmarks.soak.verdict import Point, SeriesRule, Soak, judge, slope

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    *("--minutes", "0.12", "--interval", "4", "--clients", "6", "--tasks", "12"),
    *("--rate", "8", "--client-kills", "0.5", "--prime", "0"),
)


def points(**series: list[float]) -> list[Point]:
    """Quiet points a minute apart."""
    columns = zip(*series.values(), strict=True)
    names = [name.replace("_", " ") for name in series]
    return [
        Point(60.0 * number, quiet=True, values=dict(zip(names, values, strict=True)))
        for number, values in enumerate(columns)
    ]


def verdict_on(name: str, values: list[float]) -> bool | None:
    """Whether a series grows."""
    [finding] = [
        finding
        for finding in judge(points(**{name: values}))
        if finding.series.name.replace(" ", "_") == name
    ]
    return finding.grows


@pytest.mark.extended
def test_a_node_under_mixed_load_with_kills_leaves_nothing_and_serves_no_wrong_byte(tmp_path: Path) -> None:
    """After seconds of every kind of call, task and kill nothing was wrong and nothing is left."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DIOS_")}
    done = subprocess.run(
        [sys.executable, "-m", "labs.benchmarks.soak", *SHORT, "--out", str(tmp_path)],
        cwd=ROOT,
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    soak = msgspec.json.decode((tmp_path / "soak.json").read_bytes(), type=Soak)
    assert soak.complete
    assert not soak.troubles
    assert soak.operations["start task"] > 0
    assert any(point.quiet for point in soak.points)
    judged = {finding.series.name for finding in soak.findings if finding.series.rule is SeriesRule.EXACT}
    assert {"processes", "cgroup folders", "extent files", "rows", "node: sessions"} <= judged
    assert "nothing was left" in (tmp_path / "soak.md").read_text()


def test_a_series_that_rises_steadily_grows() -> None:
    """Half a megabyte a minute more at each quiet point is growth."""
    assert verdict_on("daemon_own_memory", [70 + 0.5 * minute for minute in range(20)]) is True


def test_a_series_that_only_shakes_is_flat() -> None:
    """Values that go up and down, and one that is far off, are no growth."""
    assert verdict_on("daemon_own_memory", [70, 71, 70, 71, 70, 95, 70, 71, 70, 71]) is False


def test_warming_up_is_no_growth() -> None:
    """What rises at first and then stays is flat."""
    assert verdict_on("daemon_own_memory", [40, 60, 68, *[70.0] * 12]) is False


def test_one_thing_left_behind_is_growth() -> None:
    """A count that must come back exactly is not allowed a single one."""
    assert verdict_on("extent_files", [4, 4, 4, 4, 5, 4]) is True
    assert verdict_on("extent_files", [4, 4, 4, 4]) is False


def test_few_points_show_no_slope() -> None:
    """Three quiet points say nothing about a slope."""
    assert verdict_on("daemon_own_memory", [70, 80, 90]) is None


def test_a_log_that_grows_with_its_records_is_in_proportion() -> None:
    """Bytes for each record are judged, not bytes: more records may take more room, larger ones not."""
    records = [1000.0 * number for number in range(12)]
    steady = points(audit_bytes=[n * 100 / 1e6 for n in records], audit_records=records)
    swelling = points(audit_bytes=[n * (100 + n / 100) / 1e6 for n in records], audit_records=records)
    name = "audit bytes a record"
    assert [finding.grows for finding in judge(steady) if finding.series.name == name] == [False]
    assert [finding.grows for finding in judge(swelling) if finding.series.name == name] == [True]


def test_slope_is_not_turned_by_one_odd_value() -> None:
    """The slope of a line with one outlier is the line's."""
    values = [(float(x), 2.0 * x) for x in range(11)]
    values[5] = (5.0, 1000.0)
    assert slope(values) == pytest.approx(2.0)
