"""The figures of the README are not older than the last release, and are what was measured."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Final, TypedDict

import pytest

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text()
RANGE: Final = r"([\d.]+) to ([\d.]+)"
ROWS: Final = {
    rf"\[{RANGE} ms\]\[one machine\] from a pool": "pure task from the pool, call to first line",
    rf"from a pool, {RANGE} ms cold": "pure task cold, call to first line",
    rf"\[{RANGE} GB/s\]\[one machine\] in messages of 64 KB": "dios, 64 KB",
    rf"\[{RANGE} MB\]\[one machine\] idle": "daemon, zygote and the pool's waiting children, PSS",
    rf"\[{RANGE} µs\]\[one machine\] for a call": "stat, 100 B",
}
"""Texts of the README with a range, and the figures of the results that lie in it."""


class Figure(TypedDict):
    """A measured figure."""

    name: str
    value: float
    unit: str


class Section(TypedDict):
    """The figures that were measured together."""

    name: str
    date: str
    figures: list[Figure]


class Results(TypedDict):
    """The file of a run of ``labs.benchmarks.run``."""

    versions: dict[str, str]
    sections: list[Section]


def results() -> Results:
    """The results to which the README links."""
    (link,) = re.findall(r"^\[one machine\]: (\S+)\.md$", README, re.MULTILINE)
    content: Results = json.loads((ROOT / f"{link}.json").read_text())
    return content


def figures() -> dict[str, tuple[Figure, Section]]:
    """The figures of all sections by their names."""
    return {
        figure["name"]: (figure, section)
        for section in results()["sections"]
        for figure in section["figures"]
    }


def last_release() -> tuple[str, str]:
    """The version and the date of the last release."""
    released = re.search(r"^# dios (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    return released[1], released[2]


def test_the_figures_are_not_older_than_the_last_release() -> None:
    """The README names the version and the day of its results, which are those of the release or later."""
    version, released = last_release()
    said = re.search(r"Measured with DIOS (\S+) on (\d+) (\w+) (\d{4}),", " ".join(README.split()))
    assert said is not None
    day = datetime.strptime(" ".join(said.groups()[1:]), "%d %B %Y").date().isoformat()  # noqa: DTZ007 - a day
    assert said[1] == results()["versions"]["dios"] == version
    measured = {figures()[name][1]["date"][:10] for name in ROWS.values()}
    assert max(measured) == day
    assert min(measured) >= released


@pytest.mark.parametrize("text", ROWS)
def test_a_measured_figure_lies_in_its_range(text: str) -> None:
    """What the results say is between the two numbers of the README."""
    said = re.search(text, " ".join(README.split()))
    assert said is not None, text
    figure, _ = figures()[ROWS[text]]
    value = figure["value"] / (1_000 if "GB/s" in text else 1)
    assert float(said[1]) <= float(f"{value:.3g}") <= float(said[2]), (text, value)
