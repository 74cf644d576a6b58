from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from dios.packer.baselines import POLICIES

EXAMPLES = Path(__file__).parents[3] / "labs" / "examples"


def test_sdrf_lets_those_who_come_seldom_wait_less(capsys: pytest.CaptureFixture[str]) -> None:
    """Bursty and daily users wait less than under DRF, those who are always there hardly more."""
    runpy.run_path(str(EXAMPLES / "simulate_week.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()[1:]
    drf, short, long = ([float(word) for word in line.split()[-3:]] for line in lines)
    for sdrf in (short, long):
        assert sdrf[2] < drf[2]
        assert sdrf[1] < drf[1]
        assert sdrf[0] < 1.02 * drf[0]


def test_each_policy_of_packing_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison admits jobs by every policy and shows how many tasks."""
    program = runpy.run_path(str(EXAMPLES / "packer_policies.py"))
    program["main"](5.0)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(POLICIES)
    assert all(int(line.split()[1].rstrip("%")) > 0 for line in lines)
