"""What the coordinator finds out about its machine (§6.5.2), on trees made by hand and on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dios.host.machine.topology import (
    BadTopologyError,
    Element,
    Part,
    cpu_list,
    read_topology,
)
from tests.support.firmament import sysfs


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> sysfs.Seen:
    """Machines as they are read from files made by hand, each kind once."""
    return sysfs.reader(tmp_path_factory.mktemp("machines"))


@pytest.mark.parametrize(
    ("make", "caches"),
    [
        pytest.param(sysfs.TYPE_A, 1, id="A"),
        pytest.param(sysfs.TYPE_B, 2, id="B"),
        pytest.param(sysfs.TYPE_C, 2, id="C"),
        pytest.param(sysfs.TYPE_D, 2, id="D"),
        pytest.param(sysfs.TYPE_E, 8, id="E"),
        pytest.param(sysfs.TYPE_M, 1, id="M"),
    ],
)
def test_the_machines_of_table_8_1_are_read_as_they_are(
    seen: sysfs.Seen, make: sysfs.Make, caches: int
) -> None:
    """Packages, NUMA nodes, caches, cores, threads and memory of each type are found."""
    machine = seen(make)
    assert not machine.missing
    assert machine.model == make.model
    assert machine.count(Part.PACKAGE) == make.packages
    assert machine.count(Part.NUMA) == make.nodes
    assert machine.count(Part.CACHE, 3) == caches
    assert machine.count(Part.CACHE, 1) == machine.count(Part.CACHE, 2) == make.cores
    assert machine.count(Part.CORE) == make.cores
    assert machine.count(Part.THREAD) == make.threads
    assert machine.memory == make.memory_gib * sysfs.GIB - 300_000 * 1024


def test_a_machine_of_type_c_has_the_thesis_66_inner_vertices(seen: sysfs.Seen) -> None:
    """The simulated machine of §8.4 adds 66 vertices below the machine's own."""
    machine = seen(sysfs.TYPE_C)
    assert sum(element.part is not Part.MACHINE for element in machine.tree.walk()) == 66


def test_what_is_larger_holds_what_is_smaller(seen: sysfs.Seen) -> None:
    """From a thread of type B upwards stand core, L1, L2, L3, NUMA node, package and machine."""
    machine = seen(sysfs.TYPE_B)
    path: list[Element] = []
    at: Element | None = machine.tree
    while at is not None:
        path.append(at)
        at = next((child for child in at.children if 7 in child.cpus), None)
    names = [e.part.value if e.part is not Part.CACHE else f"L{e.number}" for e in path]
    assert names == ["machine", "package", "numa", "L3", "L2", "L1", "core", "thread"]
    assert path[2].cpus == tuple(range(6, 12))
    assert path[2].size == (32 * sysfs.GIB // 1024 - 300_000) // 2 * 1024
    assert path[3].size == 5118 * 1024


def test_threads_of_one_core_are_together(seen: sysfs.Seen) -> None:
    """With two threads a core, the core's cpus are the two siblings, and not neighbours by number."""
    cores = [e for e in seen(sysfs.TYPE_C).tree.walk() if e.part is Part.CORE]
    assert [core.cpus for core in cores] == [(core, core + 12) for core in range(12)]


def test_processors_that_are_offline_are_nowhere(tmp_path: Path) -> None:
    """A thread that is switched off is in no list of the tree."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_C)
    cpus = sys_root / "devices/system/cpu"
    sysfs.write(cpus / "online", "0-4,6-23")
    shutil.rmtree(cpus / "cpu5")
    machine = read_topology(sys_root, proc)
    assert machine.count(Part.THREAD) == 23
    assert all(5 not in element.cpus for element in machine.tree.walk())
    assert next(e for e in machine.tree.walk() if e.part is Part.CORE and 17 in e.cpus).cpus == (17,)


def test_a_list_of_the_online_is_not_needed(tmp_path: Path) -> None:
    """Where the kernel writes no list, the folders of the processors and their switches are enough."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    cpus = sys_root / "devices/system/cpu"
    (cpus / "online").unlink()
    sysfs.write(cpus / "cpu7/online", 0)
    machine = read_topology(sys_root, proc)
    assert machine.tree.cpus == tuple(range(7))


def test_a_container_that_hides_everything_is_one_plain_package(tmp_path: Path) -> None:
    """Without sysfs every processor allowed is a core of its own, and the result says what is missing."""
    sysfs.write(tmp_path / "proc/self/status", "Cpus_allowed_list:\t0-2,5")
    sysfs.write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB")
    machine = read_topology(tmp_path / "sys", tmp_path / "proc")
    assert machine.tree.cpus == (0, 1, 2, 5)
    assert (machine.count(Part.PACKAGE), machine.count(Part.CORE), machine.count(Part.NUMA)) == (1, 4, 0)
    assert (machine.count(Part.THREAD), machine.memory) == (4, 1_024_000)
    assert len(machine.missing) == 5, machine.missing


def test_no_processor_at_all_is_an_error_that_says_where(tmp_path: Path) -> None:
    """With no file to read, the error names both places that were looked at."""
    with pytest.raises(BadTopologyError, match=r"devices/system/cpu.*self/status"):
        read_topology(tmp_path / "sys", tmp_path / "proc")


def test_memory_without_processors_is_part_of_the_machine(tmp_path: Path) -> None:
    """A NUMA node that has memory alone stands directly below the machine."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    sysfs.write(sys_root / "devices/system/node/node1/cpulist", "")
    sysfs.write(sys_root / "devices/system/node/node1/meminfo", "Node 1 MemTotal: 4096 kB")
    machine = read_topology(sys_root, proc)
    far = [e for e in machine.tree.children if e.part is Part.NUMA]
    assert [(e.number, e.cpus, e.size) for e in far] == [(1, (), 4096 * 1024)]


def test_parts_that_cross_are_left_out_and_named(tmp_path: Path) -> None:
    """A cache that the files say to be shared across packages does not break the tree."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_C)
    for cpu in (0, 11):
        sysfs.cache(sys_root / f"devices/system/cpu/cpu{cpu}/cache/index2", 2, "Unified", "256K", [0, 11])
    machine = read_topology(sys_root, proc)
    assert any("overlaps other parts" in reason for reason in machine.missing)


def test_a_processor_without_a_name_has_its_numbers(tmp_path: Path) -> None:
    """On ARM the implementer and the part stand for the name."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    sysfs.write(proc / "cpuinfo", "processor: 0\nCPU implementer : 0x41\nCPU part : 0xd0c")
    machine = read_topology(sys_root, proc)
    assert machine.model == "implementer 0x41 part 0xd0c"
    sysfs.write(proc / "cpuinfo", "processor: 0")
    machine = read_topology(sys_root, proc)
    assert (machine.model, machine.missing) == ("unknown", ("the processor's name is not known",))


@pytest.mark.parametrize(
    ("text", "cpus"), [("", ()), ("0", (0,)), ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("2,1", (1, 2))]
)
def test_lists_of_processors_are_read(text: str, cpus: tuple[int, ...]) -> None:
    """Single numbers and ranges, in any order."""
    assert cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["x", "3-1", "0-99999999999", "-1", "0-4095,5000-9000"])
def test_lists_of_processors_that_make_no_sense_are_refused(text: str) -> None:
    """Words, ranges backwards and ranges without measure raise, and take no memory."""
    with pytest.raises(ValueError, match=r"\S"):
        cpu_list(text)


def test_this_machine_is_read() -> None:
    """Here the threads on which this process may run are in the tree, and memory is there."""
    machine = read_topology()
    assert os.sched_getaffinity(0) <= set(machine.tree.cpus)
    assert machine.memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
