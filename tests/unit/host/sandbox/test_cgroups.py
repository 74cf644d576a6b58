from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dios import limits
from dios.host.sandbox import cgroups


def fake_process(tmp_path: Path, mounts: list[tuple[str, str, str]], groups: list[str]) -> Path:
    """A folder that looks like /proc/self: mounts as (kind, folder, options), lines of the cgroup file."""
    proc = tmp_path / "proc"
    proc.mkdir()
    rows = [
        f"{n} 1 0:{n} / {tmp_path / folder} rw - {kind} x {options}"
        for n, (kind, folder, options) in enumerate(mounts)
    ]
    (proc / "mountinfo").write_text("".join(f"{row}\n" for row in rows))
    (proc / "cgroup").write_text("\n".join(groups) + "\n")
    for _, folder, _ in mounts:
        (tmp_path / folder / "own").mkdir(parents=True)
    return proc


def test_version_1_controllers_have_a_folder_each(tmp_path: Path) -> None:
    """Memory and pids of version 1 are limited in their own hierarchies, by their own file names."""
    mounts = [("cgroup", "memory", "rw,memory"), ("cgroup", "pids", "rw,pids"), ("cgroup", "cpu", "rw,cpu")]
    proc = fake_process(tmp_path, mounts, ["3:memory:/own", "2:pids:/own", "1:cpu:/own"])
    groups = cgroups.open_control_groups("node", proc=proc)
    assert groups.controllers == {"memory", "pids", "cpu"}
    group = groups.make("task-1")
    group.limit(memory_bytes=4096, processes=7)
    group.enter(42)
    task = Path("own/node/task-1")
    assert (tmp_path / "memory" / task / "memory.limit_in_bytes").read_text() == "4096"
    assert (tmp_path / "pids" / task / "pids.max").read_text() == "7"
    assert (tmp_path / "pids" / task / "cgroup.procs").read_text() == "42"
    assert (tmp_path / "cpu" / task / "cgroup.procs").read_text() == "42"
    assert (tmp_path / "cpu/own/node/cpu.shares").read_text() == str(16 * 1024)
    assert cgroups.divides_processors(proc) == 1
    assert group.peak_bytes() == 0, "a kernel that does not tell"
    (tmp_path / "memory" / task / "memory.max_usage_in_bytes").write_text("5\n")
    assert group.peak_bytes() == 5


def test_version_2_hands_controllers_down(tmp_path: Path) -> None:
    """Version 2 has one hierarchy; a group whose parent hands memory and pids on is limited by memory.max."""
    proc = fake_process(tmp_path, [("cgroup2", "unified", "rw")], ["0::/own"])
    own = tmp_path / "unified" / "own"
    (own / "cgroup.controllers").write_text("memory pids")
    (own / "cgroup.subtree_control").write_text("memory pids")
    groups = cgroups.open_control_groups("node", proc=proc)
    group = groups.make("task-1")
    group.limit(memory_bytes=4096, processes=7)
    assert (own / "node/cgroup.subtree_control").read_text() == "+memory +pids"
    assert (own / "node/task-1/memory.max").read_text() == "4096"
    (own / "node/task-1/memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.oom_kills() == 2
    (own / "node/task-1/memory.peak").write_text("7\n")
    assert group.peak_bytes() == 7


def test_version_2_divides_processors_among_tasks(tmp_path: Path) -> None:
    """Each task has a group with the controller cpu, and all of them together weigh more than one process."""
    proc = fake_process(tmp_path, [("cgroup2", "unified", "rw")], ["0::/own"])
    own = tmp_path / "unified" / "own"
    (own / "cgroup.controllers").write_text("cpu memory pids")
    (own / "cgroup.subtree_control").write_text("cpu memory pids")
    (own / "cpu.weight").write_text("100")
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text("1\n")
    assert cgroups.divides_processors(proc) == 2
    groups = cgroups.open_control_groups("node", proc=proc)
    groups.make("task-1").enter(42)
    assert (own / "node/cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (own / "node/cpu.weight").read_text() == "1600"
    assert (own / "node/task-1/cgroup.procs").read_text() == "42"


@pytest.mark.parametrize(("autogroup", "divides"), [("1", 0), ("0", 1)])
def test_the_kernels_groups_of_sessions_are_left_alone(tmp_path: Path, autogroup: str, divides: int) -> None:
    """In the first group of a hierarchy the kernel divides processors itself, where that is switched on."""
    mounts = [("cgroup", "cpu", "rw,cpu"), ("cgroup", "memory", "rw,memory")]
    proc = fake_process(tmp_path, mounts, ["1:cpu:/", "2:memory:/own"])
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text(f"{autogroup}\n")
    assert cgroups.divides_processors(proc) == divides
    assert not cgroups.has_processor_group(proc)
    groups = cgroups.open_control_groups("node", proc=proc)
    assert groups.controllers == ({"memory", "cpu"} if divides else {"memory"})


def test_mixed_versions_use_each_controller_where_it_is(tmp_path: Path) -> None:
    """With memory on version 1 and nothing on version 2, version 2 is left alone."""
    mounts = [("cgroup", "memory", "rw,memory"), ("cgroup2", "unified", "rw")]
    proc = fake_process(tmp_path, mounts, ["3:memory:/own", "0::/own"])
    (tmp_path / "unified/own/cgroup.controllers").write_text("")
    groups = cgroups.open_control_groups("node", proc=proc)
    assert groups.controllers == {"memory"}
    assert not (tmp_path / "unified/own/node").exists()


def test_a_machine_without_groups_has_none(tmp_path: Path) -> None:
    """No mount, no groups: making none is no error."""
    groups = cgroups.open_control_groups("node", proc=fake_process(tmp_path, [], ["0::/own"]))
    assert not groups
    groups.close()


def test_a_real_group_counts_and_goes() -> None:
    """A process in a real group is listed there; the folders are gone after it has ended."""
    name = f"dios-test-{os.getpid()}"
    groups = cgroups.open_control_groups(name)
    if not groups:
        pytest.skip("no control group is ours to write here")
    group = groups.make("task")
    group.limit(memory_bytes=64 * limits.MIB, processes=8)
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.enter(process.pid)
        folders = [folder for folder, _ in group._folders]
        assert all(str(process.pid) in (folder / "cgroup.procs").read_text().split() for folder in folders)
        groups.dispose(group)
        groups.remove_disposed()
        assert all(folder.exists() for folder in folders)
        assert group.oom_kills() == 0
        process.send_signal(signal.SIGKILL)
    groups.close()
    assert not any(folder.parent.exists() for folder in folders)


def test_folders_of_nodes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """The folders of a node that was killed go at the next start, also before somebody has reaped it."""
    with subprocess.Popen(["sleep", "0"]) as gone:
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        left, own = tmp_path / f"dios-{gone.pid}-1", tmp_path / f"dios-{os.getpid()}-1"
        (left / "task-7").mkdir(parents=True)
        own.mkdir()
        cgroups._sweep(tmp_path)
        assert list(tmp_path.iterdir()) == [own]
