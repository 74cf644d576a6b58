"""The power of this machine, from the energy counters of its processors (RAPL) in sysfs.

A counter is for a processor package, for memory, or for the whole platform. Most kernels show it to root.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from dios.host.machine import procfs

_ZONE: Final = re.compile(r"intel-rapl:\d{1,3}")
_PART: Final = re.compile(r"intel-rapl:\d{1,3}:\d{1,3}")
_PLATFORM: Final = "psys"
_MEMORY: Final = "dram"
_APART_NS_MAX: Final = 300 * 1_000_000_000
"""The longest time between two readings: later, a counter of a large package may have begun again twice."""


class MeasuredPower(NamedTuple):
    """The mean power between two readings, and the least one until now, in watts."""

    watts: float
    least_watts: float


class _EnergyReading(NamedTuple):
    at_ns: int
    microjoules: tuple[int, ...]


class PowerMeter:
    """A meter of this machine's power; ``problem`` is the reason why it cannot measure, or empty."""

    def __init__(self, folder: Path = Path("/sys/class/powercap")) -> None:
        self._counters: Final = _counters(folder)
        self._ranges: Final = [
            procfs.number(counter / "max_energy_range_uj", 0) for counter in self._counters
        ]
        self._before: _EnergyReading | None = None
        self._least: float | None = None
        self.problem = ""
        if not self._counters:
            self.problem = f"{folder} shows no energy counters"
        elif min(self._microjoules()) < 0:
            self.problem = f"the energy counters in {folder} may be read by root only"

    def read(self, now_ns: int) -> MeasuredPower | None:
        """Return the power since the last reading; None at the first one and if it is not known."""
        if self.problem:
            return None
        before, after = self._before, _EnergyReading(now_ns, self._microjoules())
        self._before = after
        if before is None or not 0 < now_ns - before.at_ns <= _APART_NS_MAX:
            return None
        used = 0
        for old, new, around in zip(before.microjoules, after.microjoules, self._ranges, strict=True):
            # A counter begins again at its maximum.
            grown = new - old if new >= old else new - old + around
            if min(old, new, grown) < 0:
                return None
            used += grown
        watts = 1000 * used / (now_ns - before.at_ns)
        self._least = watts if self._least is None else min(self._least, watts)
        return MeasuredPower(watts, self._least)

    def _microjoules(self) -> tuple[int, ...]:
        return tuple(procfs.number(counter / "energy_uj") for counter in self._counters)


def _counters(folder: Path) -> list[Path]:
    """Return the folders of the counters that together are most of the machine, none of them in another."""
    zones = [folder / name for name in sorted(procfs.names(folder)) if _ZONE.fullmatch(name)]
    for zone in zones:
        if procfs.text(zone / "name") == _PLATFORM:
            return [zone]
    memory = [
        zone / name
        for zone in zones
        for name in sorted(procfs.names(zone))
        if _PART.fullmatch(name) and procfs.text(zone / name / "name") == _MEMORY
    ]
    return zones + memory
