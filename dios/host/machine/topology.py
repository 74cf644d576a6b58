"""Reading the structure of this machine from sysfs and procfs, as hwloc would (§6.5.2).

A coordinator does this when it starts; it takes some milliseconds.

A container may hide any file. Hidden parts are assumed to be as simple as possible, and ``missing`` lists
them. Processors that are added or removed later require another reading.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dios import limits
from dios.host.machine import procfs
from dios.host.machine.machine_tree import BadTopologyError, Element, MachineTopology, Part, check

__all__ = ["BadTopologyError", "Element", "MachineTopology", "Part", "cpu_list", "read_topology"]

_RANK: Final = {part: rank for rank, part in enumerate(Part)}
_UNITS: Final = {"K": limits.KIB, "M": limits.MIB, "G": limits.GIB}


def cpu_list(text: str) -> tuple[int, ...]:
    """Parse a list of numbers in the kernel's format, such as ``0-3,8``; the result is ascending.

    Raises:
        ValueError: the text is not such a list, or has more than ``TOPOLOGY_CPUS_MAX`` numbers.
    """
    cpus: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        low, high = int(first), int(last or first)
        if low < 0 or not low <= high < low + limits.TOPOLOGY_CPUS_MAX:
            raise ValueError(f"{piece!r} is not a range of processors")
        cpus.update(range(low, high + 1))
    if len(cpus) > limits.TOPOLOGY_CPUS_MAX:
        raise ValueError(f"over {limits.TOPOLOGY_CPUS_MAX} processors")
    return tuple(sorted(cpus))


def read_topology(root: str | Path = "/sys", proc: str | Path = "/proc") -> MachineTopology:
    """Read the structure of this machine.

    Args:
        root: the path of sysfs.
        proc: the path of procfs.

    Raises:
        BadTopologyError: the system names no processor at all, or more than the limits allow.
    """
    reader = _TopologyReader(Path(root), Path(proc))
    online = reader.online()
    machine = MachineTopology(
        model=_short(reader.model()),
        architecture=os.uname().machine,
        tree=reader.tree(online),
        memory=reader.memory(),
        missing=tuple(reader.missing),
    )
    check(machine)
    return machine


@dataclass(slots=True)
class _TopologyReader:
    """A reader of sysfs and procfs that records the missing parts."""

    root: Path
    proc: Path
    missing: list[str] = field(default_factory=list)

    # Processors -------------------------------------------------------------------------------------

    def online(self) -> tuple[int, ...]:
        folder = self.root / "devices/system/cpu"
        cpus = _list_of(folder / "online")
        if not cpus:
            numbers = (path.name[3:] for path in folder.glob("cpu[0-9]*"))
            cpus = tuple(
                sorted(
                    int(n) for n in numbers if n.isdecimal() and procfs.text(folder / f"cpu{n}/online") != "0"
                )
            )
        if not cpus:
            cpus = self._allowed()
            self.missing.append("sysfs shows no processors: those that the process may use are assumed")
        if not cpus:
            raise BadTopologyError(
                f"cannot find any processor: neither {folder} nor {self.proc}/self/status names one"
            )
        return cpus

    def _allowed(self) -> tuple[int, ...]:
        """Return the processors on which this process may run; none if this is not known."""
        with contextlib.suppress(ValueError):
            return cpu_list(_field(self.proc / "self/status", "Cpus_allowed_list"))
        return ()

    def model(self) -> str:
        """Return the processor's name."""
        content = procfs.text(self.proc / "cpuinfo")
        rows = [
            (key.strip(), value.strip())
            for key, _, value in (row.partition(":") for row in content.splitlines())
        ]
        first = {key: value for key, value in reversed(rows) if value}
        model = first.get("model name") or first.get("cpu model") or first.get("cpu")
        if model is None and "CPU part" in first:
            model = f"implementer {first.get('CPU implementer', '?')} part {first['CPU part']}"
        if model is None:
            self.missing.append("the processor's name is not known")
            model = "unknown"
        return model

    # The tree ---------------------------------------------------------------------------------------

    def tree(self, online: tuple[int, ...]) -> Element:
        """Return the tree of everything in sysfs, each part inside the smallest part that contains it."""
        sizes = {(Part.MACHINE, 0, online): 0}
        for number, (cpus, size) in self._nodes(online).items():
            sizes[Part.NUMA, number, cpus] = size
        for cpu in online:
            sizes[Part.THREAD, cpu, (cpu,)] = 0
            self._add_siblings(sizes, cpu, online)
            for level, cpus, size in self._caches(cpu, online):
                sizes.setdefault((Part.CACHE, level, cpus), size)
        for part, words in ((Part.CACHE, "caches"), (Part.NUMA, "NUMA nodes")):
            if not any(key[0] is part for key in sizes):
                self.missing.append(f"no {words} are shown: none are assumed")
        return self._nested(sizes)

    def _add_siblings(
        self, sizes: dict[tuple[Part, int, tuple[int, ...]], int], cpu: int, online: tuple[int, ...]
    ) -> None:
        folder = self.root / f"devices/system/cpu/cpu{cpu}/topology"
        core = _first_list(folder / "core_cpus_list", folder / "thread_siblings_list")
        package = _first_list(folder / "package_cpus_list", folder / "core_siblings_list")
        if not core or not package:
            self._note("some packages or cores are not shown: one package, and a core for each thread")
        core = _within(core, online) if cpu in core else (cpu,)
        package = _within(package, online) if cpu in package else online
        first = self.root / f"devices/system/cpu/cpu{core[0]}/topology"
        sizes.setdefault((Part.CORE, max(procfs.number(first / "core_id", core[0]), -1), core), 0)
        sizes.setdefault(
            (Part.PACKAGE, max(procfs.number(folder / "physical_package_id", 0), -1), package), 0
        )

    def _nodes(self, online: tuple[int, ...]) -> dict[int, tuple[tuple[int, ...], int]]:
        """Return the NUMA nodes by number: their processors and bytes of memory."""
        nodes: dict[int, tuple[tuple[int, ...], int]] = {}
        for path in sorted((self.root / "devices/system/node").glob("node[0-9]*")):
            if not path.name[4:].isdecimal():
                continue
            number = int(path.name[4:])
            size = 0
            for row in procfs.text(path / "meminfo").splitlines():
                words = row.split()
                if len(words) >= 4 and words[2] == "MemTotal:" and words[3].isdecimal():
                    size = int(words[3]) * limits.KIB
            cpus = _within(_list_of(path / "cpulist"), online)
            if cpus or size:
                nodes[number] = (cpus, size)
        return nodes

    def _caches(self, cpu: int, online: tuple[int, ...]) -> Iterable[tuple[int, tuple[int, ...], int]]:
        """Yield the data caches of one thread: level, the threads that share it, bytes."""
        for path in sorted((self.root / f"devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*")):
            level = procfs.number(path / "level")
            if not 1 <= level <= 9 or procfs.text(path / "type") == "Instruction":
                continue
            shared = _within(_list_of(path / "shared_cpu_list"), online)
            text = procfs.text(path / "size")
            amount = text.rstrip("KMG")
            size = int(amount) * _UNITS.get(text[-1:], 1) if amount.isdecimal() else 0
            yield level, shared if cpu in shared else (cpu,), size

    def _nested(self, sizes: dict[tuple[Part, int, tuple[int, ...]], int]) -> Element:
        """Nest the sets: larger ones contain smaller ones; equal sets follow the order of ``Part``."""

        def order(key: tuple[Part, int, tuple[int, ...]]) -> tuple[int, int, int, tuple[int, ...]]:
            part, number, cpus = key
            # Of caches with the same threads, the higher level contains the lower one.
            return -len(cpus), _RANK[part], -number if part is Part.CACHE else 0, cpus

        keys = sorted(sizes, key=order)
        children: dict[tuple[Part, int, tuple[int, ...]], list[tuple[Part, int, tuple[int, ...]]]] = {
            keys[0]: []
        }
        innermost = dict.fromkeys(keys[0][2], keys[0])
        for key in keys[1:]:
            around = {innermost[cpu] for cpu in key[2]} or {keys[0]}
            if len(around) > 1:
                self._note(f"{key[0].value} {key[1]} overlaps other parts and is left out")
                continue
            children[around.pop()].append(key)
            children[key] = []
            innermost.update(dict.fromkeys(key[2], key))

        def element_of(key: tuple[Part, int, tuple[int, ...]]) -> Element:
            inside = sorted(children[key], key=lambda child: child[2] or (limits.TOPOLOGY_CPUS_MAX,))
            return Element(key[0], key[1], key[2], sizes[key], tuple(element_of(child) for child in inside))

        return element_of(keys[0])

    # Memory -----------------------------------------------------------------------------------------

    def memory(self) -> int:
        words = _field(self.proc / "meminfo", "MemTotal").split()
        if words and words[0].isdecimal():
            return int(words[0]) * limits.KIB
        self.missing.append("the machine's memory is not known")
        return 0

    def _note(self, remark: str) -> None:
        if remark not in self.missing and len(self.missing) < limits.TOPOLOGY_CPUS_MAX:
            self.missing.append(remark)


def _list_of(path: Path) -> tuple[int, ...]:
    try:
        return cpu_list(procfs.text(path))
    except ValueError:
        return ()


def _first_list(*paths: Path) -> tuple[int, ...]:
    return next((cpus for path in paths if (cpus := _list_of(path))), ())


def _within(cpus: tuple[int, ...], online: tuple[int, ...]) -> tuple[int, ...]:
    among = frozenset(online)
    return tuple(cpu for cpu in cpus if cpu in among)


def _field(path: Path, name: str) -> str:
    """Return the value behind ``name:`` in a file of such rows; empty if there is none."""
    for row in procfs.text(path).splitlines():
        key, _, value = row.partition(":")
        if key == name:
            return value.strip()
    return ""


def _short(text: str) -> str:
    return text.encode()[: limits.TOPOLOGY_TEXT_BYTES_MAX].decode(errors="ignore")
