"""The scripts about the library in examples/packer run, and show what they are there to show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dios.packer import TiMra

EXAMPLES = Path(__file__).parents[3] / "examples" / "packer"
LINES_MAX = 60


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_script_about_the_library_fits_on_a_page_and_is_tested() -> None:
    """Each has a test here that calls it by name, and no more lines than a page."""
    text = Path(__file__).read_text()
    scripts = sorted(EXAMPLES.glob("library_*.py"))
    assert scripts
    for path in scripts:
        assert f'shown("{path.stem}"' in text, path
        assert path.read_text().count("\n") <= LINES_MAX, path


def test_a_job_goes_to_toml_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is a job that can be read; its first task holds two cores for five instants."""
    lines = shown("library_job", capsys)
    end = lines.index("the same after a round trip: True")
    job = TiMra.from_toml("\n".join(lines[:end]))
    assert [node.name for node in job.nodes] == ["extract", "train", "report"]
    assert lines[end + 1].startswith("extract  on server 0")
    assert lines[-1].endswith("[14, 14, 14, 14, 14, 16, 16, 16, 16]")


def test_demands_over_time_fit_where_peaks_do_not_and_refusals_say_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three fit by time and one by peaks; refusals name the resource, or the link, and leave nothing."""
    lines = shown("library_admission", capsys)
    assert lines[:3] == ["first: admitted", "second: admitted", "third: admitted"]
    assert lines[3] == "cores free: [0, 0, 0, 10, 10, 10]"
    assert lines[4] == "by peaks: 1 of 3"
    assert "'large' needs 20 cores of cpu" in lines[5]
    assert lines[6] == "nothing stays booked: True"
    assert "the link up of server 0 has too little bandwidth" in lines[7]
    assert lines[8:] == ["beside it: False", "after it: True"]


def test_shares_keep_guarantees_and_lend_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is idle while somebody is hungry; the owner has all of its guarantee the moment it is back."""
    _, *lines = shown("library_shares", capsys)
    table = [[int(cell) for cell in re.findall(r"\d+", line)] for line in lines]
    guaranteed, little, away, back, more = table
    assert little == [50, 50, 50, 850]
    assert away[0] == away[3] == 0
    assert away[2] > guaranteed[2] + 500
    assert back[0] == guaranteed[0]
    for row in (back, more):
        assert sum(row[:3]) == pytest.approx(1000, abs=2)
        assert all(rate >= promised for rate, promised in zip(row, guaranteed, strict=False))


def test_templates_set_aside_less_by_time_than_by_peaks(capsys: pytest.CaptureFixture[str]) -> None:
    """One of each, and those whose demands change save something."""
    _, *lines = shown("library_templates", capsys)
    rows = {line.split()[0]: [float(cell.rstrip("%")) for cell in line.split()[1:]] for line in lines}
    assert list(rows) == ["mapreduce", "iterative", "web", "hose", "tag"]
    for name in ("mapreduce", "iterative", "web"):
        assert rows[name][4] < rows[name][5]
    for name in ("hose", "tag"):
        assert rows[name][4] == rows[name][5]
