"""Sysfs and procfs trees made by hand, as machines of different kinds show themselves.

Only the files that ``dios.host.machine.topology`` looks at are written. Not for: saying what should be
read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dios.host.machine.topology import MachineTopology, read_topology

GIB = 1 << 30


@dataclass(frozen=True)
class Make:
    """A machine to be shown: counts are of the whole machine."""

    model: str
    packages: int
    nodes: int
    cores: int
    threads: int
    l3_groups: int
    memory_gib: int
    """Of the modules; a little less is shown, as firmware keeps some."""
    l3_kib: int = 8192


TYPE_A = Make("Intel(R) Xeon(R) CPU E5520 @ 2.26GHz", 1, 1, 4, 8, 1, 12)
TYPE_B = Make("AMD Opteron(tm) Processor 6168", 1, 2, 12, 12, 2, 32, 5118)
TYPE_C = Make("Intel(R) Xeon(R) CPU E5-2420 0 @ 1.90GHz", 2, 2, 12, 24, 2, 64, 15360)
TYPE_D = Make("AMD Opteron(tm) Processor 4234", 2, 2, 12, 12, 2, 64, 6144)
TYPE_E = Make("AMD Opteron(tm) Processor 6168", 4, 8, 48, 48, 8, 64, 5118)
TYPE_M = Make("Intel(R) Xeon(R) CPU E5-2430L v2 @ 2.40GHz", 1, 1, 6, 12, 1, 64, 15360)
"""The machines of Table 8.1."""


def write(path: Path, text: object) -> None:
    """A file with one line, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def share(count: int, parts: int, part: int) -> list[int]:
    """The cores of one of ``parts`` equal parts."""
    return list(range(part * count // parts, (part + 1) * count // parts))


def listed(cpus: list[int]) -> str:
    """A list of processors as the kernel writes it, with ranges."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def show(folder: Path, make: Make) -> tuple[Path, Path]:
    """Write the machine's files; returns where its sysfs and its procfs are.

    The second thread of core c is cpu cores + c, as most firmware counts.
    """
    sys_root, proc = folder / "sys", folder / "proc"
    cpu_root = sys_root / "devices/system/cpu"
    ways = make.threads // make.cores

    def threads_of(cores: list[int]) -> list[int]:
        return [core + way * make.cores for way in range(ways) for core in cores]

    write(cpu_root / "online", listed(list(range(make.threads))))
    for kind, parts in (("package", make.packages), ("l3", make.l3_groups)):
        for part in range(parts):
            cores = share(make.cores, parts, part)
            for cpu in threads_of(cores):
                cpu_folder = cpu_root / f"cpu{cpu}"
                if kind == "package":
                    write(cpu_folder / "topology/physical_package_id", part)
                    write(cpu_folder / "topology/core_siblings_list", listed(threads_of(cores)))
                else:
                    cache(cpu_folder / "cache/index3", 3, "Unified", f"{make.l3_kib}K", threads_of(cores))
    for core in range(make.cores):
        siblings = threads_of([core])
        for cpu in siblings:
            cpu_folder = cpu_root / f"cpu{cpu}"
            write(cpu_folder / "topology/core_id", core % (make.cores // make.packages))
            write(cpu_folder / "topology/thread_siblings_list", listed(siblings))
            cache(cpu_folder / "cache/index0", 1, "Data", "32K", siblings)
            cache(cpu_folder / "cache/index1", 1, "Instruction", "32K", siblings)
            cache(cpu_folder / "cache/index2", 2, "Unified", "256K", siblings)
    kib = make.memory_gib * GIB // 1024 - 300_000
    for node in range(make.nodes):
        place = sys_root / f"devices/system/node/node{node}"
        write(place / "cpulist", listed(threads_of(share(make.cores, make.nodes, node))))
        write(place / "meminfo", f"Node {node} MemTotal:       {kib // make.nodes} kB")
    write(proc / "cpuinfo", f"processor\t: 0\nmodel name\t: {make.model}")
    write(proc / "meminfo", f"MemTotal:       {kib} kB\nMemFree:        1000 kB")
    write(proc / "self/status", f"Name:\tx\nCpus_allowed_list:\t0-{make.threads - 1}")
    return sys_root, proc


def cache(folder: Path, level: int, kind: str, size: str, cpus: list[int]) -> None:
    """One of a thread's caches."""
    write(folder / "level", level)
    write(folder / "type", kind)
    write(folder / "size", size)
    write(folder / "shared_cpu_list", listed(cpus))


Seen = Callable[[Make], MachineTopology]


def reader(folder: Path) -> Seen:
    """Shows machines below a folder and reads them, each kind once."""

    @functools.cache
    def read(make: Make) -> MachineTopology:
        place = folder / str(sum(1 for _ in folder.iterdir()))
        return read_topology(*show(place, make))

    return read
