"""The load of the whole machine, from procfs: processors, memory, disks, links, pressure.

Coordinators report it, and place best-effort tasks by it. Single tasks are measured by ``task_probe``. Rates
need two readings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dios import limits
from dios.host.machine import procfs

_NS: Final = 1_000_000_000
_SECTOR: Final = 512
_CPU_COLUMNS: Final = 8
"""User, nice, system, idle, I/O wait, interrupts, soft interrupts, stolen; user includes guests."""

_IDLE: Final = (3, 4)
_STOLEN: Final = 7
_RESOURCES: Final = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class PressureStall:
    """The time that tasks waited for one resource (PSI, pressure stall information)."""

    some_us: int = 0
    """Microseconds since the machine started in which at least one task waited."""
    full_us: int = 0
    """Microseconds since the machine started in which all tasks waited."""
    some_10s: float = 0.0
    """Share of the last ten seconds (0 to 1) in which at least one task waited."""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """The state of the machine at one moment; counters count since the machine started."""

    at_ns: int
    load: tuple[float, float, float]
    """Average number of tasks that run or are ready to run, over one, five and fifteen minutes."""
    running: int
    """Tasks that run or are ready to run now."""
    cpu_ticks: tuple[int, ...]
    switches: int
    memory: int
    """Bytes; ``available`` is the part that could be used without swapping."""
    available: int
    swap_used: int
    read: int
    """Bytes from all disks; ``written`` likewise."""
    written: int
    disk_busy_ms: int
    """Of the disk with the most busy time."""
    received: int
    """Bytes of all links except the loopback; ``sent`` likewise."""
    sent: int
    pressure: dict[str, PressureStall] = field(default_factory=dict)
    """By ``cpu``, ``memory`` and ``io``; empty if the kernel does not measure it."""


@dataclass(frozen=True, slots=True)
class MachineUse:
    """The use of the machine between two readings."""

    cpu: float
    """Share of all processors' time that was used, 0 to 1; time stolen by a hypervisor counts as used."""
    stolen: float
    """Share of that time that a hypervisor gave to other machines."""
    memory: float
    """Share of the memory that is not available."""
    disk: float
    """Bytes per second, read and written."""
    disk_busy: float
    """Share of the time in which the busiest disk was active."""
    network: float
    """Bytes per second, received and sent."""
    waiting: dict[str, float]
    """By resource: the share of the time in which at least one task waited for it."""


def read_machine(now_ns: int, proc: str | Path = "/proc", sys_root: str | Path = "/sys") -> MachineReading:
    """Read the machine's present state; values that cannot be read are 0."""
    root = Path(proc)
    stat = procfs.text(root / "stat")
    counts = procfs.rows(stat, " ")
    cpu = next((row for row in stat.splitlines() if row.startswith("cpu ")), "")
    memory = procfs.rows(procfs.text(root / "meminfo"))
    read, written, busy = _disks(root, Path(sys_root))
    received, sent = _links(root)
    return MachineReading(
        at_ns=now_ns,
        load=_load(procfs.text(root / "loadavg")),
        running=counts.get("procs_running", 0),
        cpu_ticks=tuple(procfs.numbers(cpu.removeprefix("cpu"), _CPU_COLUMNS)),
        switches=counts.get("ctxt", 0),
        memory=memory.get("MemTotal", 0) * limits.KIB,
        # Kernels without an estimate of available memory have at least the free memory.
        available=memory.get("MemAvailable", memory.get("MemFree", 0)) * limits.KIB,
        swap_used=(memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)) * limits.KIB,
        read=read,
        written=written,
        disk_busy_ms=busy,
        received=received,
        sent=sent,
        pressure=_pressures(root / "pressure"),
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
        stolen=ticks[_STOLEN] / total if total else 0.0,
        memory=1 - after.available / after.memory if after.memory else 0.0,
        disk=rate(before.read + before.written, after.read + after.written),
        disk_busy=min(rate(before.disk_busy_ms, after.disk_busy_ms) / 1000, 1.0),
        network=rate(before.received + before.sent, after.received + after.sent),
        waiting={
            name: min(rate(old.some_us, new.some_us) / 1_000_000, 1.0)
            for name, new in after.pressure.items()
            if (old := before.pressure.get(name)) is not None
        },
    )


def _load(content: str) -> tuple[float, float, float]:
    try:
        recent, five, fifteen = (float(word) for word in content.split()[:3])
    except ValueError:
        return 0.0, 0.0, 0.0
    return recent, five, fifteen


def _disks(proc: Path, sys_root: Path) -> tuple[int, int, int]:
    """Return the bytes read and written, and the busy milliseconds of the busiest disk, of physical disks."""
    whole = frozenset(procfs.names(sys_root / "block"))
    read = written = busy = 0
    for row in procfs.text(proc / "diskstats").splitlines():
        words = row.split()
        if len(words) < 13 or words[2].startswith(procfs.PSEUDO_DISKS) or (whole and words[2] not in whole):
            continue
        counts = procfs.numbers(" ".join(words[3:13]), 10)
        read += counts[2] * _SECTOR
        written += counts[6] * _SECTOR
        busy = max(busy, counts[9])
    return read, written, busy


def _links(proc: Path) -> tuple[int, int]:
    received = sent = 0
    for row in procfs.text(proc / "net/dev").splitlines():
        name, colon, rest = row.partition(":")
        if not colon or name.strip() == "lo":
            continue
        counts = procfs.numbers(rest, 9)
        received += counts[0]
        sent += counts[8]
    return received, sent


def _pressures(folder: Path) -> dict[str, PressureStall]:
    stalls: dict[str, PressureStall] = {}
    for name in _RESOURCES:
        content = procfs.text(folder / name)
        if not content:
            continue
        kinds: dict[str, dict[str, str]] = {}
        for row in content.splitlines():
            kind, *pairs = row.split()
            kinds[kind] = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        some, full = kinds.get("some", {}), kinds.get("full", {})
        try:
            stalls[name] = PressureStall(
                int(some.get("total", "0")), int(full.get("total", "0")), float(some.get("avg10", "0")) / 100
            )
        except ValueError:
            continue
    return stalls
