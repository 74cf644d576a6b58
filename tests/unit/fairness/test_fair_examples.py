"""The scripts of examples/fairness run, and show what their pages say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "fairness"
LINES_MAX = 60


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def numbers(line: str) -> list[float]:
    """The numbers at a line's end, percentages as parts of one."""
    columns = re.split(r"\s{2,}", line.strip())[1:]
    return [float(column.rstrip("%")) / (100 if column.endswith("%") else 1) for column in columns]


def test_every_example_is_readable_on_a_page_and_tested() -> None:
    """Each has a test here that calls it by name, and no more lines than a page."""
    text = Path(__file__).read_text()
    for path in sorted(EXAMPLES.glob("*.py")):
        assert f'shown("{path.stem}"' in text, path
        assert path.read_text().count("\n") <= LINES_MAX, path


def test_drf_gives_nobody_less_than_a_third_would(capsys: pytest.CaptureFixture[str]) -> None:
    """Sharing pays for each user; the two that are stopped have equal dominant shares."""
    _, crunching, caching, script, used = shown("drf", capsys)
    for line in (crunching, caching, script):
        tasks, third = re.findall(r"\d+\.\d", line)[:2]
        assert float(tasks) >= float(third)
    shares = [re.findall(r"\d\.\d\d", line)[0] for line in (crunching, caching)]
    assert shares[0] == shares[1]
    assert "stopped by" not in script
    assert script.endswith("nothing: it has all it wants")
    assert used.startswith("used: 100% of the CPUs")


def test_sdrf_gives_a_newcomer_more_the_longer_the_other_was_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DRF gives a half always; SDRF more, and the longer its memory the later."""
    _, _, drf, short, long = shown("sdrf_past", capsys)
    assert numbers(drf) == [6, 6, 6, 6]
    assert numbers(short) == sorted(numbers(short))
    assert numbers(long) == sorted(numbers(long))
    assert numbers(short)[-1] == numbers(long)[-1] == 9
    assert numbers(short)[1] > numbers(long)[1]


def test_the_live_tree_counts_two_meetings_until_the_hare_leads(capsys: pytest.CaptureFixture[str]) -> None:
    """The order follows the runners, and nothing happens after the last meeting."""
    lines = shown("live_tree", capsys)
    assert "hare < fox < tortoise" in lines[0]
    assert "tortoise < fox < hare" in lines[3]
    assert [line.rsplit("; ")[-1] for line in lines[3:6]] == ["2 meetings so far"] * 3
    assert lines[-1] == "without the hare: fox leads"


def test_substitutes_use_both_kinds_of_processors(capsys: pytest.CaptureFixture[str]) -> None:
    """The smaller share is larger than with one way for each user, and nothing is left."""
    pytest.importorskip("ortools")
    render, build, used, one_way = shown("substitutes", capsys)
    assert render.endswith("alone  75%")
    assert build.endswith("alone  75%")
    assert used.count("100%") == 2
    assert "4.0 pictures, 10.0 builds" in one_way
