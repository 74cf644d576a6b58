from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dios.packer.baselines import POLICIES

EXAMPLES = Path(__file__).parents[3] / "labs" / "examples"


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_sdrf_lets_those_who_come_seldom_wait_less(capsys: pytest.CaptureFixture[str]) -> None:
    """Bursty and daily users wait less than under DRF, those who are always there hardly more."""
    lines = shown("simulate_week", capsys)[1:]
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


def test_edrf_uses_up_a_resource_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: two tenants share a disk, the third gets the rest of the link; and in a whole cloud."""
    first, two, three, cloud, took = shown("edrf", capsys)
    assert first == "tenant 0 gets 0.5 of disk 1, 0.25 of the link; stopped by disk 1"
    assert two == "tenant 1 gets 0.5 of disk 1, 0.125 of disk 2; stopped by disk 1"
    assert three == "tenant 2 gets 0.75 of disk 2, 0.75 of the link; stopped by the link"
    match = re.search(r"([\d,]+) rounds", cloud)
    assert match
    assert f"{match[1]} resources are used up, none beyond" in took


def test_dc_drf_comes_to_exact_shares_as_epsilon_falls(capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds, what is allocated and the worst tenant's part all rise; the search answers each interval."""
    lines = shown("dc_drf", capsys)
    table = [[float(word.rstrip("%")) for word in line.split()] for line in lines[1:6]]
    for column in (1, 2, 3):
        values = [row[column] for row in table]
        assert values == sorted(values)
    assert table[-1][0] == 0
    assert table[-1][2:] == [100, 100]
    assert len([line for line in lines if line.startswith("  ")]) >= 8
