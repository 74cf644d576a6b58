from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from dios import limits
from dios.host.confinement import cgroups


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
    assert group.memory_events() is None, "the same"
    (tmp_path / "memory" / task / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    (tmp_path / "memory" / task / "memory.failcnt").write_text("0\n")
    assert group.memory_events() == (1, 0)
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
    assert group.memory_events() == (2, 3)
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


def test_version_2_holds_a_task_to_its_part(tmp_path: Path) -> None:
    """A reserved part is a weight and a quota of processors and a weight of the disk; the spare has least."""
    proc = fake_process(tmp_path, [("cgroup2", "unified", "rw")], ["0::/own"])
    own = tmp_path / "unified" / "own"
    (own / "cgroup.controllers").write_text("cpu io memory pids")
    (own / "cgroup.subtree_control").write_text("cpu io memory pids")
    (own / "cpu.weight").write_text("100")
    assert cgroups.usable(proc) == {"cpu", "io", "memory"}
    groups = cgroups.open_control_groups("node", proc=proc)
    assert groups.held == {"cpu", "io", "memory"}
    group, spare, plain = (groups.make(f"task-{number}") for number in (1, 2, 3))
    share = cgroups.GroupShare(cpus_milli=1500, cpu_part=750, io_part=250)
    groups.hold(group, "task-1", 42, share)
    groups.hold(spare, "task-2", 43, cgroups.GroupShare(best_effort=True))
    groups.hold(plain, "task-3", 44, cgroups.GroupShare())
    held_folder, two, three = (own / "node" / f"task-{number}" for number in (1, 2, 3))
    assert (held_folder / "cpu.max").read_text() == "150000 100000"
    assert (held_folder / "cpu.weight").read_text() == "7500"
    assert (held_folder / "io.weight").read_text() == "2500"
    assert [(two / file).read_text() for file in ("cpu.weight", "io.weight")] == ["1", "1"]
    assert list(three.iterdir()) == [], "a task without a part is left as it is"


@pytest.mark.parametrize("version", [1, 2])
def test_a_share_that_replaces_another_one_takes_it_back(tmp_path: Path, version: int) -> None:
    """Parts of 0 are those of a group without a share: no quota, and the weights by default."""
    hierarchy = cgroups.Hierarchy(tmp_path, version, frozenset({"cpu", "io"}))
    group = cgroups.ControlGroup([(tmp_path, hierarchy)])
    group.hold(cgroups.GroupShare(500, 250, 250, replaces=True))
    group.hold(cgroups.GroupShare(0, 0, 0, replaces=True))
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    expected = {
        1: {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "io.weight": "100"},
        2: {"cpu.weight": "100", "cpu.max": "max", "io.weight": "100"},
    }
    assert {name: text[: len(expected[version][name])] for name, text in written.items()} == expected[version]


def test_next_to_autogroup_only_tasks_with_a_share_are_under_the_controller(tmp_path: Path) -> None:
    """In version 1 a reserved task and a best-effort one get groups of their own, and others none."""
    mounts = [("cgroup", "cpu", "rw,cpu"), ("cgroup", "memory", "rw,memory")]
    proc = fake_process(tmp_path, mounts, ["1:cpu:/", "2:memory:/own"])
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text("1\n")
    groups = cgroups.open_control_groups("node", proc=proc)
    assert groups.controllers == {"memory"}
    assert groups.held == cgroups.usable(proc) == {"cpu", "memory"}
    group, spare, plain = (groups.make(f"task-{number}") for number in (1, 2, 3))
    for _ in range(2):
        groups.hold(group, "task-1", 42, cgroups.GroupShare(cpus_milli=500, cpu_part=250))
    (tmp_path / "memory/own/node/task-2/cgroup.procs").write_text("43\n45\n")
    groups.hold(spare, "task-2", 43, cgroups.GroupShare(cpus_milli=500, best_effort=True))
    groups.hold(plain, "task-3", 44, cgroups.GroupShare())
    cpu = tmp_path / "cpu"
    reserved, left = cpu / "node" / "task-1", cpu / "node-spare" / "task-2"
    assert (reserved / "cpu.cfs_quota_us").read_text() == "50000"
    assert (reserved / "cpu.shares").read_text() == str(262_144 // 4)
    assert (reserved / "cgroup.procs").read_text() == "42"
    assert (left / "cpu.shares").read_text() == (cpu / "node-spare/cpu.shares").read_text() == "2"
    assert (left / "cgroup.procs").read_text() == "45", "the others of a container follow its first process"
    assert not list(cpu.rglob("task-3"))


@pytest.mark.parametrize(
    ("mounts", "lines", "folder", "file", "text"),
    [
        (
            [("cgroup", "memory", "rw,memory"), ("cgroup", "times", "rw,cpuacct")],
            ["1:memory:/own", "2:cpuacct:/own"],
            "times/own/node-times/task-1",
            "cpuacct.usage",
            "1500000000\n",
        ),
        (
            [("cgroup", "memory", "rw,memory"), ("cgroup", "cpu", "rw,cpu,cpuacct")],
            ["1:memory:/own", "2:cpu,cpuacct:/own"],
            "cpu/own/node/task-1",
            "cpuacct.usage",
            "1500000000\n",
        ),
        (
            [("cgroup2", "unified", "rw")],
            ["0::/own"],
            "unified/own/node/task-1",
            "cpu.stat",
            "usage_usec 1500000\nuser_usec 1\n",
        ),
    ],
    ids=["version 1", "with cpu", "version 2"],
)
def test_processor_time_is_counted_where_it_is_wanted(
    tmp_path: Path, mounts: list[tuple[str, str, str]], lines: list[str], folder: str, file: str, text: str
) -> None:
    """Of a task with many processes, also by a successor; others have no group more for it."""
    proc = fake_process(tmp_path, mounts, lines)
    if mounts[0][0] == "cgroup2":
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (tmp_path / "unified/own" / name).write_text("memory pids")
    groups = cgroups.open_control_groups("node", proc=proc)
    place = tmp_path / folder
    place.parent.mkdir(exist_ok=True)
    (place.parent / file).write_text(text)
    group, plain = groups.make("task-1", counts_time=True), groups.make("task-2")
    assert (group.cpu_ms(), plain.counts_time) == (0, False)
    (place / file).write_text(text)
    assert cgroups.ControlGroup.taken_over(group.hand_over()).cpu_ms() == group.cpu_ms() == 1_500
    assert plain.cpu_ms() == 0
    assert not list(tmp_path.rglob("node-times/task-2"))


def test_all_processes_of_a_group_are_pinned(tmp_path: Path) -> None:
    """Those of a container are several; one that has ended meanwhile is no error."""
    last = max(os.sched_getaffinity(0))
    code = "import sys; sys.stdin.read()"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as other,
        subprocess.Popen([sys.executable, "-c", ""]) as ended,
    ):
        ended.wait()
        (tmp_path / "cgroup.procs").write_text(f"{first.pid}\n{other.pid}\n{ended.pid}\n")
        hierarchy = cgroups.Hierarchy(tmp_path, 1, frozenset({"memory"}))
        cgroups.ControlGroup([(tmp_path, hierarchy)]).pin(first.pid, (last,))
        assert os.sched_getaffinity(first.pid) == os.sched_getaffinity(other.pid) == {last}
    with pytest.raises(ProcessLookupError):
        cgroups.ControlGroup([]).pin(ended.pid, (last,))


def test_a_reserved_processor_is_held_against_others() -> None:
    """Of three programs on one processor the reserved one gets most, and the best-effort one almost none.

    When the reserved one stops, the others get the processor.
    """
    groups = cgroups.open_control_groups(f"dios-{os.getpid()}-shares")
    if "cpu" not in groups.held:
        pytest.skip("this process may not divide processors here")
    shares = (
        cgroups.GroupShare(cpus_milli=1000, cpu_part=1000),
        cgroups.GroupShare(best_effort=True),
        cgroups.GroupShare(),
    )
    processor = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    running: list[subprocess.Popen[bytes]] = []
    control_groups: list[cgroups.ControlGroup] = []
    try:
        for number, share in enumerate(shares):
            running.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
            control_groups.append(groups.make(f"task-{number}"))
            control_groups[-1].enter(running[-1].pid)
            groups.hold(control_groups[-1], f"task-{number}", running[-1].pid, share)
        owner, spare, other = (program.pid for program in running)
        spent = _spent_until([owner, spare, other], owner, 200)
        assert spent[0] > 5 * spent[1]
        assert spent[0] > 2 * spent[2]
        os.kill(owner, signal.SIGSTOP)
        assert _spent_until([owner, spare, other], other, 50)[0] < 10
    finally:
        for burner in running:
            burner.kill()
            burner.wait()
        for group in control_groups:
            groups.dispose(group)
        groups.close()


def _spent_until(pids: list[int], leader: int, ticks: int) -> list[int]:
    """The ticks that processes compute until one of them has computed for some more."""

    def now(pid: int) -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    before = [now(pid) for pid in pids]
    begin = now(leader)
    while now(leader) < begin + ticks:
        time.sleep(0.02)
    return [now(pid) - old for pid, old in zip(pids, before, strict=True)]


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
        events = group.memory_events()
        assert events is not None
        assert events.kills == 0
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


def test_a_folder_that_another_node_removes_at_the_same_time_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that start together sweep the folders of the same killed node; none of them fails."""

    def glob(path: Path, pattern: str) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, pattern, str(path))

    monkeypatch.setattr(Path, "glob", glob)
    cgroups._remove_empty(tmp_path / "dios-1-1")


@pytest.mark.parametrize(("version", "name"), [(1, "tasks"), (2, "cgroup.procs")])
def test_a_process_that_starts_others_enters_by_itself(tmp_path: Path, version: int, name: str) -> None:
    """Before it starts them: it gets the file of its group in either version."""
    place = tmp_path / "groups"
    (place / "task-1").mkdir(parents=True)
    (place / "task-1" / name).touch()
    hierarchy = cgroups.Hierarchy(place, version, frozenset({"memory"}))
    group = cgroups.ControlGroup([(place / "task-1", hierarchy)])
    (entrance,) = group.open_entrances(at_once=True)
    os.write(entrance, b"0")
    os.close(entrance)
    assert (place / "task-1" / name).read_bytes() == b"0"
    if version == 2:
        assert group.open_entrances() == ()
