"""Jobs over time on a cluster of three nodes on this machine, as a person sees them (Packer)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct, convert

from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S, NODES, Site

# The first test waits for the cluster.
pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]


class Job(Struct):
    """A job, as `dios pack ls --json` tells of it."""

    job: str
    number: int
    members: list[dict[str, object]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three nodes whose links are said to carry 80 MiB a second."""
    someone = Person(tmp_path_factory.mktemp("home"))
    del someone.environment["DIOS_COORDINATOR"]
    someone.types("dios up --nodes 3 --pool-size 1 --link-rate 80MiB")
    try:
        live_site = Site(someone)
        wait_until(live_site.is_whole, "one coordinator attends to all nodes and has read them", LOADED_S)
        yield live_site
    finally:
        someone.types("dios down")


@pytest.fixture(autouse=True)
def _cleared(site: Site) -> Iterator[None]:
    yield
    site.clear()
    for job in jobs(site):
        site.person.types(f"dios pack release {job.number}")


def jobs(site: Site) -> list[Job]:
    """What is admitted."""
    return convert(json.loads(site.person.types("dios pack ls --json").stdout), list[Job])


def write(site: Site, name: str, tasks: str, instants: int = 1) -> str:
    """A description in the person's home; its file's name."""
    site.person.writes(
        "says.py",
        "import sys, time\nprint('begins', *sys.argv[1:], flush=True)\ntime.sleep(float(sys.argv[1]))\n",
    )
    site.person.writes(f"{name}.toml", f'name = "{name}"\ninstants = {instants}\n{tasks}')
    return f"{name}.toml"


def task(name: str, seconds: float, more: str) -> str:
    """One task that sleeps."""
    return f'[tasks.{name}]\nprogram = "says.py"\nargs = ["{seconds}"]\n{more}\n'


def test_a_job_runs_where_and_when_it_said(site: Site) -> None:
    """Its tasks are on the nodes that it was given, the later one begins later, and then nothing is held."""
    file = write(
        site,
        "runs",
        task("early", 0.1, f"count = 2\ncpu = {CPUS}\nend = 1") + task("late", 0.1, "start = 6\ncpu = 1"),
        60,
    )
    planned = json.loads(site.person.types(f"dios pack check {file} --json").stdout)
    assert {member["node"] for member in planned["members"]} <= set(NODES)
    assert jobs(site) == []
    done = site.person.types(f"dios run {file} --json -- more")
    rows = {row["member"]: row for row in json.loads(done.stdout)}
    assert {row["exit_status"] for row in rows.values()} == {0}
    assert rows["early.0"]["node"] != rows["early.1"]["node"]
    lines = [line for line in done.stderr.splitlines() if "begins" in line]
    assert sorted(lines[:2]) == ["[early.0] begins 0.1 more", "[early.1] begins 0.1 more"]
    assert lines[2] == "[late] begins 0.1 more"
    assert jobs(site) == []


def test_a_job_without_room_is_refused_whole(site: Site) -> None:
    """Nothing of it runs, and the refusal names the task, the resource and the nodes that have too little."""
    file = write(site, "large", task("many", 60, f"count = 4\ncpu = {CPUS}"))
    refused = site.person.types(f"dios run {file}", status=125).stderr
    assert f"'many.3' needs {CPUS} cores of cpu, and of 3 possible places none has that" in refused
    assert not any(str(row["label"]).startswith("large/") for row in site.rows())
    wrong = write(site, "wrong", task("a", 1, "cpu = -1"))
    assert "wrong.toml:6: tasks.a.cpu is -1" in site.person.types(f"dios pack check {wrong}", status=1).stderr


def test_what_is_promised_is_nobody_elses(site: Site) -> None:
    """A run waits while a job holds all processors, used or not, and begins when the job's command ends."""
    file = write(site, "holds", task("all", 600, f"count = 3\ncpu = {CPUS}"))
    holder = site.person.starts(f"dios run {file}")
    try:
        wait_until(
            lambda: bool(jobs(site)) and all(member["running"] for member in jobs(site)[0].members),
            "it runs",
            60,
        )
        run = site.person.starts("dios run short.py --cpus 1 --title later")
        site.until("later", "waiting")
        assert "waits" in site.person.types("dios explain later").stdout
        holder.send_signal(signal.SIGINT)
        holder.communicate(timeout=60)
        assert holder.returncode == 130
        out, said = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "ran\n"), said
        assert jobs(site) == []
    finally:
        holder.kill()
        holder.communicate()


def test_a_job_is_over_when_its_time_is(site: Site) -> None:
    """A task that takes longer than its job said is stopped, and says why."""
    file = write(site, "short", task("slow", 600, "cpu = 1"), 2)
    done = site.person.types(f"dios run {file}", status=137)
    assert "the time of its job is over" in done.stdout
    assert jobs(site) == []


def test_a_job_that_may_wait_begins_when_room_comes(site: Site) -> None:
    """It has a promised start, which is explained, and begins early when the job before it ends early."""
    first = write(site, "before", task("all", 600, f"count = 3\ncpu = {CPUS}"), 900)
    second = write(site, "patient", task("all", 0.1, f"count = 3\ncpu = {CPUS}"), 30)
    site.person.types(f"dios run {first} --detach --json")
    assert "places none has that" in site.person.types(f"dios run {second}", status=125).stderr
    planned = json.loads(site.person.types(f"dios pack check {second} --may-wait 1h --json").stdout)
    assert 600 < planned["waits_s"] < 1000
    assert (
        "leave out --detach"
        in site.person.types(f"dios run {second} --may-wait 1h --detach", status=125).stderr
    )
    waits = site.person.starts(f"dios run {second} --may-wait 1h --json")
    try:
        wait_until(lambda: "patient" in [job.job for job in jobs(site)], "it is admitted", 60)
        assert "patient waits for its start in" in site.person.types("dios explain patient").stdout
        assert " in " in site.person.types("dios pack ls").stdout
        site.person.types("dios pack release before")
        out, said = waits.communicate(timeout=120)
        assert waits.returncode == 0, said
        assert "patient waits: it begins in" in said
        assert [row["exit_status"] for row in json.loads(out)] == [0, 0, 0]
    finally:
        waits.kill()
        waits.communicate()
    assert jobs(site) == []


def group_of(pid: int) -> str:
    """The control group of a process in version 1 of the controller cpu; empty without one."""
    for line in Path("/proc", str(pid), "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names == "cpu":
            return path
    return ""


def quota_us(pid: int) -> int:
    """The processor quota of a process's control group, in 100 ms."""
    return int(Path("/sys/fs/cgroup/cpu", group_of(pid).lstrip("/"), "cpu.cfs_quota_us").read_text())


def test_a_member_is_held_to_its_processors_and_its_memory(site: Site) -> None:
    """While its job is admitted its task has the quota and the memory limit of its demand, and then none."""
    file = write(site, "held", task("a", 600, "cpu = 0.3\nmemory = 200"))
    site.person.types(f"dios run {file} --detach")
    (row,) = site.until("held/a", "running")
    told = site.ask(f"dios describe {row['fingerprint']}")
    assert told["memory_limit_bytes"] == 200 * 2**20
    pid = int(str(row["pid"]))
    if group_of(pid) == group_of(os.getpid()):
        pytest.skip("tasks have no own group of the controller cpu in version 1 here, or this user has none")
    wait_until(lambda: quota_us(pid) == 30_000, "it has its quota", 60)
    site.person.types("dios pack release held")
    wait_until(lambda: quota_us(pid) == -1, "it has no quota any more", 60)


def test_a_link_between_racks_is_booked(site: Site) -> None:
    """What nodes say of their racks' links bounds a job's edges between racks, and the refusal names it."""
    site.person.types("dios node label n1 rack=left rack-link=10MiB")
    try:
        edge = '[services.here]\nservice = "n1"\n[services.there]\nservice = "n2"\n[[edges]]\n'
        edge += 'from = "here"\nto = "there"\nbandwidth = 200\n'
        file = write(site, "wide", task("a", 0.1, "cpu = 0.1") + edge)
        told = site.person.types(f"dios pack check {file}", status=1).stderr
        assert "the link up of rack left has too little bandwidth" in told
        wrong = site.person.types("dios node label n1 rack-link=fast", status=1).stderr
        assert "must be bytes per second" in wrong
    finally:
        site.person.types("dios node label n1 rack= rack-link-")
    assert "fits" in site.person.types(f"dios pack check {file}").stderr


def test_a_job_outlives_a_killed_coordinator(site: Site) -> None:
    """The next coordinator knows it with its places, and gives them to nobody else."""
    file = write(site, "stays", task("all", 600, f"count = 3\ncpu = {CPUS}"))
    told = site.person.types(f"dios run {file} --detach --json").stdout
    assert len(json.loads(told)) == 3
    before = jobs(site)
    leader = str(site.ask("dios sched status")["coordinator"])
    (process,) = [int(str(row["pid"])) for row in site.tasks("coordinator") if row["node"] == leader]
    os.kill(process, signal.SIGKILL)
    wait_until(site.is_whole, "somebody attends to all", 120)
    after = site.ask("dios pack ls")
    assert convert(after, list[Job]) == before
    again = write(site, "again", task("one", 1, "cpu = 0.5"))
    assert "none has that" in site.person.types(f"dios run {again}", status=125).stderr


def test_what_is_said_twice_or_not_at_all_is_refused(site: Site) -> None:
    """Options about needs, a missing program and tasks that nobody would start are named."""
    file = write(site, "says", task("a", 0.1, "cpu = 1"))
    assert "leave out --on" in site.person.types(f"dios run {file} --on n1", status=125).stderr
    assert "--cpus" in site.person.types(f"dios run {file} --cpus 1", status=125).stderr
    site.person.writes("none.toml", "[tasks.a]\ncpu = 1\n")
    assert "tasks.a.program is missing" in site.person.types("dios run none.toml", status=125).stderr
    late = write(site, "late", task("a", 0.1, "start = 3\ncpu = 1"), 9)
    assert "leave out --detach" in site.person.types(f"dios run {late} --detach", status=125).stderr
    assert jobs(site) == []
    assert "no admitted job 'nosuch'" in site.person.types("dios pack release nosuch", status=1).stderr
