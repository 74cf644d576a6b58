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
    assert usage.stolen == pytest.approx(0.1)
    assert usage.memory == pytest.approx(0.75)
    assert usage.disk == 500 * 512 * 2
    assert usage.disk_busy == pytest.approx(0.5)
    assert usage.network == 2000
    assert usage.waiting == {"cpu": pytest.approx(0.05)}
    assert second.load == (1.5, 0.75, 0.25)
    assert (second.running, second.switches, second.swap_used) == (3, 55, 30 * 1024)
    assert second.pressure["cpu"].some_10s == pytest.approx(0.125)


def test_a_machine_that_shows_nothing_is_all_zeros(tmp_path: Path) -> None:
    """Where a container hides procfs, readings and shares are zeros, and nothing is divided by them."""
    first, second = (read_machine(at, tmp_path, tmp_path) for at in (1, 2))
    assert second.memory == second.read == second.running == 0
    assert second.pressure == {}
    usage = use(first, second)
    assert (usage.cpu, usage.memory, usage.disk, usage.waiting) == (0.0, 0.0, 0.0, {})
    with pytest.raises(ValueError, match="must be later"):
        use(second, first)


def test_this_machine_is_read() -> None:
    """Here memory, processors and load are there, and every share is one."""
    first = read_machine(0)
    second = read_machine(SECOND)
    assert 0 < second.available <= second.memory
    assert sum(second.cpu_ticks) > 0
    usage = use(first, second)
    for share in (usage.cpu, usage.stolen, usage.memory, usage.disk_busy, *usage.waiting.values()):
        assert 0 <= share <= 1
