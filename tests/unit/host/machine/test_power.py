"""The power of this machine, on counters made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.host.machine.power import MeasuredPower, PowerMeter

SECOND = 1_000_000_000


def count(folder: Path, name: str, joules: float, *, around: float = 1000.0) -> None:
    """Write a counter with its name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(name + "\n")
    (folder / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{round(around * 1e6)}\n")


def test_packages_and_their_memory_are_added(tmp_path: Path) -> None:
    """Power is the joules of all packages and of memory over time; cores are a part of their package."""
    for package in range(2):
        zone = tmp_path / f"intel-rapl:{package}"
        count(zone, f"package-{package}", 10)
        count(zone / f"{zone.name}:0", "core", 5)
        count(zone / f"{zone.name}:1", "dram", 1)
    meter = PowerMeter(tmp_path)
    assert meter.problem == ""
    assert meter.read(SECOND) is None
    count(tmp_path / "intel-rapl:0", "package-0", 70)
    count(tmp_path / "intel-rapl:0/intel-rapl:0:1", "dram", 5)
    count(tmp_path / "intel-rapl:1", "package-1", 26)
    assert meter.read(3 * SECOND) == MeasuredPower(40.0, 40.0)
    count(tmp_path / "intel-rapl:0", "package-0", 90)
    assert meter.read(4 * SECOND) == MeasuredPower(20.0, 20.0)
    count(tmp_path / "intel-rapl:0", "package-0", 120)
    assert meter.read(5 * SECOND) == MeasuredPower(30.0, 20.0)


def test_the_counter_of_the_platform_has_all_others_in_it(tmp_path: Path) -> None:
    """Where the whole platform is counted, nothing else is added."""
    count(tmp_path / "intel-rapl:0", "package-0", 0)
    count(tmp_path / "intel-rapl:1", "psys", 0)
    meter = PowerMeter(tmp_path)
    meter.read(0)
    count(tmp_path / "intel-rapl:0", "package-0", 50)
    count(tmp_path / "intel-rapl:1", "psys", 80)
    assert meter.read(SECOND) == MeasuredPower(80.0, 80.0)


def test_a_counter_that_begins_again_is_continued(tmp_path: Path) -> None:
    """After its maximum a counter begins at 0, which is no negative power."""
    count(tmp_path / "intel-rapl:0", "package-0", 990)
    meter = PowerMeter(tmp_path)
    meter.read(0)
    count(tmp_path / "intel-rapl:0", "package-0", 5)
    assert meter.read(SECOND) == MeasuredPower(15.0, 15.0)
    count(tmp_path / "intel-rapl:0", "package-0", 6)
    assert meter.read(1000 * SECOND) is None, "a counter may have begun again several times in this time"


@pytest.mark.parametrize("shown", ["", "secret\n"])
def test_a_machine_without_readable_counters_says_why(tmp_path: Path, shown: str) -> None:
    """A missing counter and one that this user may not read are not a power of 0."""
    if shown:
        count(tmp_path / "intel-rapl:0", "package-0", 0)
        (tmp_path / "intel-rapl:0/energy_uj").write_text(shown)
    meter = PowerMeter(tmp_path)
    assert ("root only" if shown else "no energy counters") in meter.problem
    assert meter.read(0) is meter.read(SECOND) is None
