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
from dios.errors import DiosError
from dios.lib.supervised import records
from dios.lib.supervised.kept_jobs import KeptJobs
from dios.lib.supervised.kept_state import latest_state
from dios.lib.supervised.services import Services
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.command_user import Person
from tests.support.node.kept_cluster import PATIENCE_S, job, kill, person_at, running_cluster
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

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
import os
import dios
from dios.lib import mapreduce

node = dios.connect()
JOB = b"def map_keys(line): return line.split()\\nreduce = sum\\n"
with mapreduce.run(node, JOB, [b"a b a " * 100], workers=2) as result:
    print(sorted(result))
with dios.Executor(1, node=node) as pool:
    print(list(pool.map(operator.neg, [1, 2])))
print(os.environ["TRACEPARENT"])
"""
RESUMES = """
import time
import dios
from dios.lib import mapreduce
from dios.lib.jobs.saved import saved_tasks
from dios.lib.supervised.kept_state import kept_state, latest_state
from dios.lib.supervised.records import STATE_LABEL

node = dios.connect()
state = kept_state(node)
first = not state.read()
state.write(b"begun")
JOB = b"def map_keys(line): return line.split()\\nreduce = sum\\n"


def strike(told):
    # The first attempt waits for its end when a third of the mappers is saved.
    if not first:
        return
    copies = [one for one in node.outputs if one.label == STATE_LABEL]
    (section,) = latest_state(copies).sections.values()
    saved = saved_tasks(section)
    if saved is not None and len(saved.mapped) >= 3:
        print("ready", *sorted(saved.mapped), flush=True)
        time.sleep(1000)


for progress in (strike, None):
    with mapreduce.run(
        node, JOB, [b"a b a\\n" * 900], splits=9, workers=2, keep=2, state=state, progress=progress
    ) as result:
        print(sorted(result))
        print("mapped", *sorted(one.number for one in result.tasks if one.role == "mapper"))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests of this file; the last one kills a node."""
    yield from running_cluster(tmp_path_factory.mktemp("nodes"))


@pytest.fixture
def person(cluster: LocalCluster, tmp_path: Path) -> Person:
    """Somebody with programs."""
    programs = {"count": COUNTS, "fails": FAILS, "controls": CONTROLS, "resumes": RESUMES}
    return person_at(cluster, tmp_path, programs)


def objects_of(node: dios.Node, name: str) -> list[dios.Reference]:
    """The objects that the state of a job names."""
    kept = records.found_job(Services(node).read(), name).job
    group = None if kept is None else node.group(kept.group)
    assert kept is not None
    assert group is not None
    names = latest_state(node.lookup(kept.state)).all_objects()
    return [reference for stored_name in names for reference in node.lookup(stored_name, group=group)]


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
    """Its tasks start tasks of their own, on any node. It is a part of the trace of its command."""
    context = f"00-{'1' * 32}-{'2' * 16}-01"
    person.environment["TRACEPARENT"] = context
    done = person.types("dios run --keep --title mixed controls.py")
    assert done.stdout == f"[(b'a', 200), (b'b', 100)]\n[-1, -2]\n{context}\n"
    person.types("dios job rm mixed")


@pytest.mark.parametrize("lost_part", ["process", pytest.param("node", marks=pytest.mark.extended)])
def test_a_controller_that_begins_again_runs_no_saved_mapper(
    cluster: LocalCluster, person: Person, lost_part: str
) -> None:
    """After the end of the controller's process, or of its node, each saved mapper has run once in all.

    A job that is done is not computed again either, and its objects end with `dios job rm`.
    """
    person.types("dios run --keep --detach resumes.py")
    following = person.starts("dios attach resumes")
    assert following.stdout is not None
    saved = following.stdout.readline().split()
    assert saved.pop(0) == "ready"
    place = str(job(person, "resumes")["node"])
    asked = next(node for node in cluster.nodes if node.name != place)
    victim = next(node for node in cluster.nodes if node.name == place)
    with dios.connect(str(asked.socket), groups=()) as node:
        task = KeptJobs(node).status("resumes").task
        assert task is not None
        if lost_part == "process":
            task_pid = next(row.pid for row in node.tasks() if row.fingerprint == task.fingerprint)
            os.kill(task_pid, signal.SIGKILL)
        else:
            person.environment["DIOS_NODE"] = str(asked.data)
            following.terminate()
            following.communicate(timeout=PATIENCE_S)
            kill(victim.socket)
            following = person.starts("dios attach resumes")
        lines = [line for line in following.communicate(timeout=PATIENCE_S)[0].splitlines() if line]
        assert following.returncode == 0
        counted = "[(b'a', 1800), (b'b', 900)]"
        assert lines[-4::2] == [counted, counted]
        mapped = lines[-3].split()[1:]
        assert set(mapped) | set(saved) == set(map(str, range(9)))
        assert len(mapped) == len(set(mapped))
        assert not set(mapped) & set(saved)
        assert lines[-1] == "mapped"
        # Two outputs, on two nodes each. The pairs of mappers are gone already.
        kept = objects_of(node, "resumes")
        assert len(kept) == 4
        KeptJobs(node).remove("resumes")
        for reference in kept:
            with pytest.raises(DiosError):
                reference.read_bytes()
    if lost_part == "node":
        local_cluster.start(cluster)


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
            lambda: not [task for task in node.tasks() if task.label.startswith("count.") and not task.ended],
            "its task is ended",
            PATIENCE_S,
        )
    assert "stopped" in person.types("dios job ls").stdout
    person.types("dios job rm count")


def _ends(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=PATIENCE_S)
    return process.returncode
