"""Files of procfs made by hand: processes with their threads, and a machine's counters.

Not for: reading them. Only what ``dios.firmament.monitor.task_probe`` and ``load`` look at is written.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.firmament.sysfs import write


@dataclass(frozen=True)
class Thread:
    """One thread: nanoseconds run and waited, switches of both kinds."""

    run: int = 0
    wait: int = 0
    yields: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class Shown:
    """A process as procfs shows it."""

    pid: int
    start: int = 100
    ticks: int = 0
    minor: int = 0
    major: int = 0
    pages: int = 10
    virtual: int = 1 << 20
    read: int = 0
    written: int = 0
    threads: tuple[Thread, ...] = (Thread(),)
    state: str = "S"
    pss_kib: int = 0
    peak_kib: int = 0
    parent: int = 1
    children: tuple[int, ...] = ()


def show(proc: Path, shown: Shown) -> None:
    """Write a process's files, in place of what was there; its name is as nasty as names may be."""
    folder = proc / str(shown.pid)
    hide(proc, shown.pid)
    fields = ["0"] * 49
    fields[0], fields[1] = shown.state, str(shown.parent)
    fields[7], fields[9] = str(shown.minor), str(shown.major)
    fields[11], fields[12] = str(shown.ticks), "0"
    fields[17], fields[19] = str(len(shown.threads)), str(shown.start)
    fields[20], fields[21] = str(shown.virtual), str(shown.pages)
    write(folder / "stat", f"{shown.pid} (a) b (c 1 2) {' '.join(fields)}")
    write(folder / "status", f"Name:\tx\nVmHWM:\t{shown.peak_kib} kB")
    write(folder / "io", f"rchar: 999\nread_bytes: {shown.read}\nwrite_bytes: {shown.written}")
    write(folder / "smaps_rollup", f"0-f ---p\nPss: {shown.pss_kib} kB\nPss_Anon: 7 kB")
    for number, thread in enumerate(shown.threads):
        place = folder / "task" / str(shown.pid + number)
        write(place / "children", " ".join(map(str, shown.children)) if not number else "")
        write(place / "schedstat", f"{thread.run} {thread.wait} 3")
        write(
            place / "status",
            f"voluntary_ctxt_switches:\t{thread.yields}\nnonvoluntary_ctxt_switches:\t{thread.preemptions}",
        )


def hide(proc: Path, pid: int) -> None:
    """The process is gone."""
    shutil.rmtree(proc / str(pid), ignore_errors=True)


def show_machine(
    root: Path, *, busy: int, idle: int, stolen: int = 0, sectors: int = 0, link: int = 0
) -> None:
    """A machine's counters below ``root``/proc and ``root``/sys."""
    proc = root / "proc"
    write(proc / "stat", f"cpu  {busy} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 2 3")
    write(proc / "meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB")
    rows = [
        f"8 0 sda 1 0 {sectors} 5 1 0 {sectors} 5 0 {sectors} 9 0 0 0 0",
        f"8 1 sda1 1 0 {sectors} 5 1 0 {sectors} 5 0 {sectors} 9 0 0 0 0",
        f"7 0 loop0 1 0 {sectors} 5 1 0 {sectors} 5 0 {sectors} 9 0 0 0 0",
        f"253 0 dm-0 1 0 {sectors} 5 1 0 {sectors} 5 0 {sectors} 9 0 0 0 0",
    ]
    write(proc / "diskstats", "\n".join(rows))
    (root / "sys/block/sda").mkdir(parents=True, exist_ok=True)
    (root / "sys/block/dm-0").mkdir(parents=True, exist_ok=True)
    write(
        proc / "net/dev",
        "Inter-| Receive\n face |bytes\n"
        f"    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n  eth0: {link} 1 0 0 0 0 0 0 {link} 1 0 0 0 0 0 0",
    )
