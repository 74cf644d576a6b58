"""A job over time is run on a cluster of two nodes, learned from, and run again as it was learned."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec import Struct, convert

from dios.packer import TiMra
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import LOADED_S, Site

# The first test waits for the cluster.
pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]

BYTES = 20_000_000
BUSY = """
import time
memory = bytearray(50_000_000)
end = time.monotonic() + 2
while time.monotonic() < end:
    sum(range(1_000))
time.sleep(2)
"""
STORE = """
import os, time, dios
node = dios.connect()
for _ in range(10):
    node.create(dios.DURABLE_BLOB, data=os.urandom(2_000_000), naming=dios.ANONYMOUS)
    time.sleep(0.1)
"""
READ = """
import time, dios
for one in dios.connect().inputs:
    one.read_bytes()
    time.sleep(1.2)
"""
JOB = """
name = "phases"
weight = 0.25
instants = 90

[tasks.busy]
count = 2
program = "busy.py"
cpu = 0.5
memory = 100

[tasks.store]
program = "store.py"
start = 5
cpu = 0.1

[tasks.read]
count = 2
program = "read.py"
inputs = ["data1", "data2"]
start = 9
cpu = 0.1

[services.n1]
[services.n2]

[[edges]]
from = "n1"
to = "read"
bandwidth = 5

[[edges]]
from = "n2"
to = "read"
bandwidth = 5
"""


class Member(Struct):
    """A task, as `dios pack learn --json` tells of it."""

    member: str
    runs: int
    completed: int
    start_s: float
    length_s: float
    values: dict[str, list[tuple[int, int]]]

    def largest_usage(self, channel: str) -> int:
        """The most that it took at any time."""
        return max(value for _, value in self.values[channel])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two nodes of which is said what link and store carry, and data on each. Neither keeps what it read."""
    someone = Person(tmp_path_factory.mktemp("home"))
    del someone.environment["DIOS_COORDINATOR"]
    someone.types(
        "dios up --nodes 2 --pool-size 1 --link-rate 200MiB --store-rate 400MiB --remote-cache-bytes 0"
    )
    try:
        live_site = Site(someone)
        for name, text in (("busy.py", BUSY), ("store.py", STORE), ("read.py", READ), ("phases.toml", JOB)):
            someone.writes(name, text)
        someone.types("dios group create analytics")
        for number in (1, 2):
            someone.writes(f"data{number}", "x" * BYTES)
            someone.types(f"dios put data{number} --group analytics --node n{number}")
        wait_until(lambda: is_whole(live_site), "one coordinator attends to both nodes", LOADED_S)
        yield live_site
    finally:
        someone.types("dios down")


def is_whole(site: Site) -> bool:
    """Whether one coordinator attends to both nodes, and has read what each has."""
    told = site.ask("dios sched status")
    rows = told["nodes"]
    assert isinstance(rows, list)
    if told["placed_by"] != "flow":
        return False
    return told["attends"] == ["n1", "n2"] and all(row["coordinator"] for row in rows) and len(rows) == 2


def learned(site: Site, runs: int) -> dict[str, Member]:
    """What is known of the job's tasks, once it is of so many runs of each."""
    members: dict[str, Member] = {}

    def known() -> bool:
        told = site.ask("dios pack learn phases")
        members.update({member.member: member for member in convert(told["members"], list[Member])})
        return len(members) == 5 and all(member.runs == runs for member in members.values())

    wait_until(known, f"{runs} runs of all tasks are known", 60)
    return members


def test_a_job_is_run_as_it_was_learned(site: Site) -> None:
    """What each task took, and when, is measured; a job that asks for that runs to its end."""
    person = site.person
    person.types("dios run phases.toml")
    members = learned(site, 1)
    busy, store, read = members["busy.0"], members["store"], members["read.0"]
    assert all(member.completed == 1 for member in members.values())
    # How much at which second is the machine's business, too: it is tried without one (test_courses_traced).
    assert busy.largest_usage("cpu_milli") > 0
    assert busy.largest_usage("memory") > 50_000_000
    assert store.largest_usage("disk_write") > 0
    assert store.start_s > 4
    # One of the inputs of each came from another node, also where they were two on one.
    for reader in (read, members["read.1"]):
        assert reader.largest_usage("received") > 0

    person.types("dios pack learn phases --from phases.toml --spare-s 60 --out tight.toml")
    job = TiMra.from_toml(person.home / "tight.toml")
    assert [node.name for node in job.nodes][:4] == ["busy.0", "busy.1", "store", "read.0"]
    assert job.demand[0, :, 0].max() >= busy.largest_usage("cpu_milli") / 1000
    assert job.demand[2, :, 2].max() >= store.largest_usage("disk_write") / 1e6
    assert job.bandwidth.sum(axis=0).max() * 1e6 / 8 >= read.largest_usage("received")
    done = json.loads(person.types("dios run tight.toml --json").stdout)
    assert {row["exit_status"] for row in done} == {0}
    assert learned(site, 2)["store"].completed == 2


@pytest.mark.extended
def test_a_job_that_never_ran_has_no_usage(site: Site) -> None:
    """A job that nobody ran is an error that names the jobs with measured runs."""
    told = site.person.types("dios pack learn nothing", status=1).stderr
    assert "usage of 'nothing': no run of it was measured. Jobs with measured runs: phases" in told
