"""What the coordinator finds out about its machine (§6.5.2), on trees made by hand and on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dios.firmament.descriptors import Inner, Level, Resources
from dios.firmament.monitor.described_topology import capacity_of, inner_of
from dios.host.machine.topology import (
    BadTopologyError,
    Element,
    MachineTopology,
    Part,
    cpu_list,
    read_topology,
)
from tests.support.firmament import sysfs


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> sysfs.Seen:
    """Machines as they are read from files made by hand, each kind once."""
    return sysfs.reader(tmp_path_factory.mktemp("machines"))


def count(inner: tuple[Inner, ...], level: Level) -> int:
    """How many vertices of a level there are."""
    return sum((part.level is level) + count(part.children, level) for part in inner)


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
    """Packages, NUMA nodes, caches, cores, threads, memory, clock and link of each type are found."""
    machine = seen(make)
    assert not machine.missing
    assert machine.model == make.model
    assert machine.clock_khz == make.mhz * 1000
    assert machine.count(Part.PACKAGE) == make.packages
    assert machine.count(Part.NUMA) == make.nodes
    assert machine.count(Part.CACHE, 3) == caches
    assert machine.count(Part.CACHE, 1) == machine.count(Part.CACHE, 2) == make.cores
    assert machine.count(Part.CORE) == make.cores
    assert machine.count(Part.THREAD) == len(machine.usable) == make.threads
    assert capacity_of(machine).cpus == make.threads
    assert capacity_of(machine).memory == make.memory_gib * sysfs.GIB - 300_000 * 1024
    assert capacity_of(machine).network == 2 * make.link_mbit * 125_000
    assert [disk.name for disk in machine.disks] == ["sda"]


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


@pytest.mark.parametrize(
    ("make", "sockets", "caches"),
    [(sysfs.TYPE_C, 2, 2), (sysfs.TYPE_B, 2, 2), (sysfs.TYPE_E, 8, 8)],
    ids=["C", "B", "E"],
)
def test_the_flow_network_gets_sockets_caches_cores_and_threads(
    seen: sysfs.Seen, make: sysfs.Make, sockets: int, caches: int
) -> None:
    """Below the machine levels only go down, and a socket is the part with memory of its own."""
    inner = inner_of(seen(make))
    assert [count(inner, level) for level in (Level.SOCKET, Level.CACHE, Level.CORE, Level.THREAD)] == [
        sockets,
        caches,
        make.cores,
        make.threads,
    ]

    def descend(parts: tuple[Inner, ...], above: Level) -> None:
        for part in parts:
            assert part.level > above, part
            descend(part.children, part.level)

    descend(inner, Level.MACHINE)
    # Where packages are NUMA nodes, people know them as packages.
    assert inner[0].name == ("package0" if make is sysfs.TYPE_C else "numa0")


def test_processors_that_are_offline_are_nowhere(tmp_path: Path) -> None:
    """A thread that is switched off is named as offline, and in no list of the tree."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_C)
    cpus = sys_root / "devices/system/cpu"
    sysfs.write(cpus / "online", "0-4,6-23")
    shutil.rmtree(cpus / "cpu5")
    machine = read_topology(sys_root, proc)
    assert machine.offline == (5,)
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
    assert machine.usable == (0, 1, 2, 5)
    assert (machine.count(Part.PACKAGE), machine.count(Part.CORE), machine.count(Part.NUMA)) == (1, 4, 0)
    assert capacity_of(machine) == Resources(4.0, 1_024_000.0)
    assert len(machine.missing) == 6, machine.missing
    assert count(inner_of(machine), Level.THREAD) == 4


def test_no_processor_at_all_is_an_error_that_says_where(tmp_path: Path) -> None:
    """With no file to read, the error names both places that were looked at."""
    with pytest.raises(BadTopologyError, match=r"devices/system/cpu.*self/status"):
        read_topology(tmp_path / "sys", tmp_path / "proc")


def test_only_the_processors_that_are_ours_get_tasks(tmp_path: Path) -> None:
    """Threads that an affinity or cpuset withholds stand in the tree, but not in capacity or network."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_C)
    sysfs.write(proc / "self/status", "Cpus_allowed_list:\t0-5")
    machine = read_topology(sys_root, proc)
    assert machine.count(Part.THREAD) == 24
    assert machine.usable == tuple(range(6))
    assert capacity_of(machine).cpus == 6
    inner = inner_of(machine)
    assert count(inner, Level.SOCKET) == 1
    assert count(inner, Level.THREAD) == 6


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_control_group_counts(tmp_path: Path, version: int) -> None:
    """Of nested groups the least quota and the least memory hold, in both versions of control groups."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    top = sys_root / "fs/cgroup"
    if version == 2:
        sysfs.write(proc / "self/cgroup", "0::/slice/node")
        sysfs.write(top / "slice/cpu.max", "350000 100000")
        sysfs.write(top / "slice/node/cpu.max", "max 100000")
        sysfs.write(top / "cpu.max", "600000 100000")
        sysfs.write(top / "slice/memory.max", "max")
        sysfs.write(top / "slice/node/memory.max", 2 * sysfs.GIB)
    else:
        sysfs.write(proc / "self/cgroup", "4:cpu,cpuacct:/slice/node\n5:memory:/slice/node\n0::/")
        sysfs.write(top / "cpu,cpuacct/slice/cpu.cfs_quota_us", 350000)
        sysfs.write(top / "cpu,cpuacct/slice/cpu.cfs_period_us", 100000)
        sysfs.write(top / "cpu,cpuacct/slice/node/cpu.cfs_quota_us", -1)
        sysfs.write(top / "cpu,cpuacct/slice/node/cpu.cfs_period_us", 100000)
        sysfs.write(top / "memory/memory.limit_in_bytes", 9223372036854771712)
        sysfs.write(top / "memory/slice/node/memory.limit_in_bytes", 2 * sysfs.GIB)
    machine = read_topology(sys_root, proc)
    assert machine.cpu_quota_milli == 3500
    assert capacity_of(machine)[:2] == (3.5, 2.0 * sysfs.GIB)
    assert machine.memory > machine.usable_memory


def test_memory_without_processors_is_part_of_the_machine(tmp_path: Path) -> None:
    """A NUMA node that has memory alone stands directly below the machine."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    sysfs.write(sys_root / "devices/system/node/node1/cpulist", "")
    sysfs.write(sys_root / "devices/system/node/node1/meminfo", "Node 1 MemTotal: 4096 kB")
    machine = read_topology(sys_root, proc)
    far = [e for e in machine.tree.children if e.part is Part.NUMA]
    assert [(e.number, e.cpus, e.size) for e in far] == [(1, (), 4096 * 1024)]
    assert MachineTopology.from_dict(machine.as_dict()) == machine


def test_parts_that_cross_are_left_out_and_named(tmp_path: Path) -> None:
    """A cache that the files say to be shared across packages does not break the tree."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_C)
    for cpu in (0, 11):
        sysfs.cache(sys_root / f"devices/system/cpu/cpu{cpu}/cache/index2", 2, "Unified", "256K", [0, 11])
    machine = read_topology(sys_root, proc)
    assert any("overlaps other parts" in reason for reason in machine.missing)
    assert MachineTopology.from_dict(machine.as_dict()) == machine


def test_a_cache_over_several_numa_nodes_does_not_turn_the_levels_round(seen: sysfs.Seen) -> None:
    """Where one L3 spans two NUMA nodes, the network has the nodes, and no cache above them."""
    split = sysfs.Make("Split", 1, 2, 8, 16, 1, 64)
    inner = inner_of(seen(split))
    assert [part.level for part in inner] == [Level.SOCKET, Level.SOCKET]
    assert count(inner, Level.CACHE) == 0
    assert count(inner, Level.THREAD) == 16


def test_the_clock_is_the_highest_that_is_told(tmp_path: Path) -> None:
    """First the kernel's highest, else the one in the processor's name, else the present one."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    told = sys_root / "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    sysfs.write(told, 2_400_000)
    assert read_topology(sys_root, proc).clock_khz == 2_400_000
    told.unlink()
    assert read_topology(sys_root, proc).clock_khz == 2_260_000
    sysfs.write(proc / "cpuinfo", "model name\t: plain\ncpu MHz\t\t: 1200.500")
    assert read_topology(sys_root, proc).clock_khz == 1_200_500


def test_a_processor_without_a_name_has_its_numbers(tmp_path: Path) -> None:
    """On ARM the implementer and the part stand for the name."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    sysfs.write(proc / "cpuinfo", "processor: 0\nCPU implementer : 0x41\nCPU part : 0xd0c")
    machine = read_topology(sys_root, proc)
    assert machine.model == "implementer 0x41 part 0xd0c"
    sysfs.write(proc / "cpuinfo", "processor: 0")
    machine = read_topology(sys_root, proc)
    assert (machine.model, machine.missing) == ("unknown", ("the processor's name is not known",))


def test_links_that_are_up_add_up(tmp_path: Path) -> None:
    """All devices' links count but those that are down; without a device, the fastest of the others."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    links = sys_root / "class/net"
    for name, speed, state in (("eth1", 10_000, "up"), ("eth2", 40_000, "down")):
        sysfs.write(links / name / "speed", speed)
        sysfs.write(links / name / "operstate", state)
        (links / name / "device").mkdir()
    for name, speed in (("veth0", 10_000), ("veth1", 2_000)):
        sysfs.write(links / name / "speed", speed)
    assert read_topology(sys_root, proc).network == 11_000 * 125_000
    for name in ("eth0", "eth1"):
        (links / name / "device").rmdir()
    assert read_topology(sys_root, proc).network == 10_000 * 125_000


def test_groups_outside_of_a_namespace_are_their_root_s(tmp_path: Path) -> None:
    """Where a namespace shows a group as above its own root, the limits at that root count."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    sysfs.write(proc / "self/cgroup", "0::/../other")
    sysfs.write(sys_root / "fs/cgroup/cpu.max", "150000 100000")
    sysfs.write(sys_root / "fs/other/cpu.max", "50000 100000")
    assert read_topology(sys_root, proc).cpu_quota_milli == 1500


def test_another_process_s_limits_may_count(tmp_path: Path) -> None:
    """The groups and processors of the process that is named are those that are read."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    sysfs.write(proc / "77/cgroup", "0::/node")
    sysfs.write(proc / "77/status", "Cpus_allowed_list:\t3-4")
    sysfs.write(sys_root / "fs/cgroup/node/memory.max", 5)
    machine = read_topology(sys_root, proc, "77")
    assert (machine.usable, machine.usable_memory) == ((3, 4), 5)


def test_where_nobody_tells_what_is_ours_all_is(tmp_path: Path) -> None:
    """Without the process's status all processors count, and the result says so."""
    sys_root, proc = sysfs.show(tmp_path, sysfs.TYPE_A)
    (proc / "self/status").unlink()
    machine = read_topology(sys_root, proc)
    assert machine.usable == tuple(range(8))
    assert machine.missing == ("the processors that the process may use are not known: all are assumed",)


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
    """Here the usable threads are those that the scheduler gives this process, and memory is there."""
    machine = read_topology()
    assert set(machine.usable) == os.sched_getaffinity(0)
    assert machine.memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert MachineTopology.from_dict(machine.as_dict()) == machine
    assert count(inner_of(machine), Level.THREAD) == len(machine.usable)
