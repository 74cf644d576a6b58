"""Kept jobs on real nodes: they outlive their command, their node, and their own failures, and then end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.supervised.kept_jobs import KeptJobs
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.command_user import Person
from tests.support.node.running_node import exists, wait_until

PATIENCE_S = 90
SETTINGS = {"accept_weaker_sandbox": "yes", "coordinator": "off", "pool_size": "1"}
COUNTS = """
import time
import dios
from dios.lib.supervised.kept_state import kept_state

state = kept_state(dios.connect())
number = int(state.read() or b"0")
print("from", number, flush=True)
while number < 100:
    number += 1
    state.write(b"%d" % number)
    time.sleep(0.1)
print("counted to", number)
"""
FAILS = "print('so far', flush=True)\nraise SystemExit(3)\n"
CONTROLS = """
import operator
import dios
from dios.lib import mapreduce

node = dios.connect()
JOB = b"def map_keys(line): return line.split()\\nreduce = sum\\n"
with mapreduce.run(node, JOB, [b"a b a " * 100], workers=2) as result:
    print(sorted(result))
with dios.Executor(1, node=node) as pool:
    print(list(pool.map(operator.neg, [1, 2])))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes without a scheduler, for all tests of this file; the last one kills a node."""
    made = local_cluster.make(
        tmp_path_factory.mktemp("nodes") / "cluster", nodes=3, keep=True, settings=SETTINGS
    )
    try:
        local_cluster.start(made)
        yield made
    finally:
        for node in made.nodes:
            kill(node.socket)


@pytest.fixture
def person(cluster: LocalCluster, tmp_path: Path) -> Person:
    """Somebody whose commands go to the first node."""
    home = tmp_path / "person"
    home.mkdir()
    person = Person(home)
    person.environment["DIOS_NODE"] = str(cluster.nodes[0].data)
    person.writes("count.py", COUNTS)
    person.writes("fails.py", FAILS)
    person.writes("controls.py", CONTROLS)
    return person


def kill(socket: Path) -> None:
    """Kill -9 the node at a socket, if it runs."""
    running = daemon.find(socket)
    if running is not None:
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: daemon.find(socket) is None, "the node is silent")
        wait_until(lambda: not exists(running.pid), "the node is gone")


def job(person: Person, name: str) -> dict[str, object]:
    """What `dios job describe` says."""
    told: dict[str, object] = json.loads(person.types(f"dios job describe {name} --json").stdout)
    return told


def test_a_job_that_fails_is_run_again_and_keeps_its_output(person: Person) -> None:
    """Its exit status is that of the commands that follow it; it stays listed until it is removed."""
    assert person.types("dios run --keep --attempts 2 fails.py", status=3).stdout.endswith("so far\n")
    assert person.types("dios attach fails", status=3).stdout == "so far\n"
    told = job(person, "fails")
    assert (told["state"], told["attempt"], told["exit_status"]) == ("ended", 2, 3)
    assert "failed with 3" in person.types("dios job ls").stdout
    person.types("dios job rm fails")
    assert json.loads(person.types("dios job ls --json").stdout) == []


def test_a_job_may_control_mapreduce_and_an_executor(person: Person) -> None:
    """Its tasks start tasks of their own, on any node."""
    done = person.types("dios run --keep --label mixed controls.py")
    assert done.stdout == "[(b'a', 200), (b'b', 100)]\n[-1, -2]\n"
    person.types("dios job rm mixed")


def test_a_job_goes_on_without_its_command_and_its_node(cluster: LocalCluster, person: Person) -> None:
    """Ctrl-C and a closed terminal detach; after the death of its node it continues from its state."""
    for number, ending in ((signal.SIGINT, 130), (signal.SIGHUP, 129)):
        line = "dios run --keep count.py" if number is signal.SIGINT else "dios attach count"
        following = person.starts(line)
        assert following.stdout is not None
        assert following.stdout.readline() == "from 0\n"
        following.send_signal(number)
        errors = following.communicate()[1]
        assert following.returncode == ending
        assert ("dios attach count" in errors) == (number is signal.SIGINT)
    assert job(person, "count")["state"] == "running"

    place = str(job(person, "count")["node"])
    asked = next(node for node in cluster.nodes if node.name != place)
    person.environment["DIOS_NODE"] = str(asked.data)
    following = person.starts("dios attach count")
    assert following.stdout is not None
    assert following.stdout.readline() == "from 0\n"
    kill(next(node.socket for node in cluster.nodes if node.name == place))
    lines = following.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert following.returncode == 0
    began, last = int(lines[-2].removeprefix("from ")), lines[-1]
    assert 0 < began < 100
    assert last == "counted to 100"
    told = job(person, "count")
    assert told["node"] != place
    with dios.connect(str(asked.socket), groups=()) as node:
        jobs = KeptJobs(node)
        assert jobs.wait("count").exit_status == 0
        assert jobs.output("count").endswith(b"counted to 100\n")
        jobs.remove("count")
        assert jobs.statuses() == []


def test_a_stopped_job_ends_and_stays_listed(cluster: LocalCluster, person: Person) -> None:
    """It is not started again, and commands that follow it end as well."""
    asked = next(node for node in cluster.nodes if daemon.find(node.socket) is not None)
    person.environment["DIOS_NODE"] = str(asked.data)
    person.types("dios run --keep --detach count.py")
    following = person.starts("dios attach count")
    assert following.stdout is not None
    assert following.stdout.readline().startswith("from ")
    person.types("dios job stop count")
    assert _ends(following) == 137
    with dios.connect(str(asked.socket), groups=()) as node:
        wait_until(
            lambda: not [one for one in node.tasks() if one.label.startswith("count.") and not one.ended],
            "its task is ended",
            PATIENCE_S,
        )
    assert "stopped" in person.types("dios job ls").stdout
    person.types("dios job rm count")


def _ends(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=PATIENCE_S)
    return process.returncode
