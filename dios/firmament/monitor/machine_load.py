"""The load of the whole machine, from procfs: processors, memory, disks, links.

Coordinators report it, and place best-effort tasks by it. Single tasks are measured by ``task_probe``. Rates
need two readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios import limits
from dios.host.machine import procfs

_NS: Final = 1_000_000_000
_SECTOR: Final = 512
_CPU_COLUMNS: Final = 8
"""User, nice, system, idle, I/O wait, interrupts, soft interrupts, stolen; user includes guests."""

_IDLE: Final = (3, 4)


@dataclass(frozen=True, slots=True)
class MachineReading:
    """The state of the machine at one moment; counters count since the machine started."""

    at_ns: int
    cpu_ticks: tuple[int, ...]
    memory: int
    """Bytes; ``available`` is the part that could be used without swapping."""
    available: int
    disk: int
    """Bytes from and to all disks."""
    network: int
    """Bytes of all links except the loopback, in both directions."""


@dataclass(frozen=True, slots=True)
class MachineUse:
    """The use of the machine between two readings."""

    cpu: float
    """Share of all processors' time that was used, 0 to 1; time stolen by a hypervisor counts as used."""
    disk: float
    """Bytes per second, read and written."""
    network: float
    """Bytes per second, received and sent."""


def read_machine(now_ns: int, proc: str | Path = "/proc", sys_root: str | Path = "/sys") -> MachineReading:
    """Read the machine's present state; values that cannot be read are 0."""
    root = Path(proc)
    stat = procfs.text(root / "stat")
    cpu = next((row for row in stat.splitlines() if row.startswith("cpu ")), "")
    memory = procfs.rows(procfs.text(root / "meminfo"))
    return MachineReading(
        at_ns=now_ns,
        cpu_ticks=tuple(procfs.numbers(cpu.removeprefix("cpu"), _CPU_COLUMNS)),
        memory=memory.get("MemTotal", 0) * limits.KIB,
        # Kernels without an estimate of available memory have at least the free memory.
        available=memory.get("MemAvailable", memory.get("MemFree", 0)) * limits.KIB,
        disk=_disks(root, Path(sys_root)),
        network=_links(root),
    )


def use(before: MachineReading, after: MachineReading) -> MachineUse:
    """Return rates and shares between two readings.

    Raises:
        ValueError: the second reading is not later than the first.
    """
    elapsed = after.at_ns - before.at_ns
    if elapsed <= 0:
        raise ValueError(f"the readings are {elapsed} ns apart; the second must be later")
    # Single columns may decrease a little, because the kernel estimates some of them.
    ticks = [max(new - old, 0) for old, new in zip(before.cpu_ticks, after.cpu_ticks, strict=True)]
    total = sum(ticks)
    idle = sum(ticks[column] for column in _IDLE)

    def rate(old: int, new: int) -> float:
        return max(new - old, 0) * _NS / elapsed

    return MachineUse(
        cpu=1 - idle / total if total else 0.0,
        disk=rate(before.disk, after.disk),
        network=rate(before.network, after.network),
    )


def _disks(proc: Path, sys_root: Path) -> int:
    """Return the bytes read from and written to physical disks."""
    whole = frozenset(procfs.names(sys_root / "block"))
    sectors = 0
    for row in procfs.text(proc / "diskstats").splitlines():
        words = row.split()
        if len(words) < 13 or words[2].startswith(procfs.PSEUDO_DISKS) or (whole and words[2] not in whole):
            continue
        counts = procfs.numbers(" ".join(words[3:13]), 10)
        sectors += counts[2] + counts[6]
    return sectors * _SECTOR


def _links(proc: Path) -> int:
    total = 0
    for row in procfs.text(proc / "net/dev").splitlines():
        name, colon, rest = row.partition(":")
        if not colon or name.strip() == "lo":
            continue
        counts = procfs.numbers(rest, 9)
        total += counts[0] + counts[8]
    return total
