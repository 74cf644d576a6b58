"""How busy a machine is (§7.3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios.firmament.monitor.machine_load import read_machine, use
from tests.support.firmament import procfs

SECOND = 1_000_000_000
TICK = SECOND // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def test_a_machine_s_use_comes_from_two_readings(tmp_path: Path) -> None:
    """Shares of processors, disks and links are those of the time between; whole disks count once."""
    procfs.show_machine(tmp_path, busy=100, idle=100, stolen=7, sectors=300, link=5000)
    first = read_machine(SECOND, tmp_path / "proc", tmp_path / "sys")
    procfs.show_machine(tmp_path, busy=150, idle=140, stolen=17, sectors=800, link=6000)
    second = read_machine(2 * SECOND, tmp_path / "proc", tmp_path / "sys")
    usage = use(first, second)
    assert usage.cpu == pytest.approx(0.6)
    assert usage.disk == 500 * 512 * 2
    assert usage.network == 2000
    assert (second.memory, second.available) == (1000 * 1024, 250 * 1024)


def test_a_machine_that_shows_nothing_is_all_zeros(tmp_path: Path) -> None:
    """Where a container hides procfs, readings and shares are zeros, and nothing is divided by them."""
    first, second = (read_machine(at, tmp_path, tmp_path) for at in (1, 2))
    assert second.memory == second.available == second.disk == second.network == 0
    usage = use(first, second)
    assert (usage.cpu, usage.disk, usage.network) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="must be later"):
        use(second, first)


def test_this_machine_is_read() -> None:
    """Here memory and processors are there, and the share of the processors is one."""
    first = read_machine(0)
    second = read_machine(SECOND)
    assert 0 < second.available <= second.memory
    assert sum(second.cpu_ticks) > 0
    assert 0 <= use(first, second).cpu <= 1
