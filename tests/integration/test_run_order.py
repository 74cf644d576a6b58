"""Runs in an order, on real nodes: arrays of kept jobs, and runs that begin after others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.supervised.kept_jobs import KeptJobs
from dios.node import daemon
from dios.node.local_cluster import LocalCluster
from tests.support.node.command_user import Person
from tests.support.node.kept_cluster import PATIENCE_S, job, kill, person_at, running_cluster
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

NEVER = 125
SPAN = """
import sys
import time

began = time.time()
time.sleep(0.5)
print(sys.argv[-1], began, time.time())
raise SystemExit(int(sys.argv[-1] == "4"))
"""
ENDS_WITH = "import sys\nraise SystemExit(int(sys.argv[1]))\n"
SAYS = "print('began')\n"
LASTS = "import time\nprint('lasts', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests of this file; the last one kills a node."""
    yield from running_cluster(tmp_path_factory.mktemp("nodes"))


@pytest.fixture
def person(cluster: LocalCluster, tmp_path: Path) -> Person:
    """Somebody with programs."""
    return person_at(cluster, tmp_path, {"span": SPAN, "ends": ENDS_WITH, "says": SAYS, "lasts": LASTS})


def test_an_array_runs_each_element_and_few_at_once(person: Person) -> None:
    """Each has its index. The array ends as the worst of them, and each has its output."""
    done = person.types("dios run span.py --array 1-4%2 --attempts 1 -- first", status=1)
    assert "job span: failed with 1" in done.stderr
    assert "1 of its 4 elements failed: 4" in done.stderr
    rows = [person.types(f"dios logs span.{index}").stdout.split() for index in range(1, 5)]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    spans = [(float(began), float(ended)) for _, began, ended in rows]
    assert max(sum(began <= at < ended for began, ended in spans) for at, _ in spans) <= 2
    told = job(person, "span")
    assert (told["array"], told["exit_status"]) == ("1-4%2", 1)
    elements = told["elements"]
    assert isinstance(elements, list)
    assert [element["exit_status"] for element in elements] == [0, 0, 0, 1]
    person.types("dios job rm span")


def test_an_element_is_stopped_alone(person: Person) -> None:
    """The others go on, until the whole array is stopped; `dios ps` shows it in one line."""
    person.types("dios run lasts.py --array 3,5 --detach")
    wait_until(lambda: "2 running" in person.types("dios ps").stdout, "both run", PATIENCE_S)
    assert "lasts[3,5]" in person.types("dios ps").stdout
    assert person.types("dios logs lasts.5").stdout == "lasts\n"
    person.types("dios job stop lasts.3")
    wait_until(lambda: "1 running, 1 failed" in person.types("dios ps").stdout, "one runs", PATIENCE_S)
    person.types("dios job stop lasts")
    assert job(person, "lasts")["cause"] == "killed"
    person.types("dios job rm lasts")


def test_a_run_begins_after_the_success_of_another_one_or_never(person: Person) -> None:
    """Kept jobs, runs of a command, and gangs, after jobs and tasks."""
    person.types("dios run --keep --detach --attempts 1 --title bad ends.py -- 3")
    person.types("dios run --detach --title good ends.py -- 0")
    assert person.types("dios run says.py --after-ok good").stdout == "began\n"
    gang = person.types("dios run says.py --after-any bad --after good --gang 2/2", status=NEVER)
    assert "scheduler" in gang.stdout + gang.stderr  # which is off here: the gang was submitted
    never = person.types("dios run says.py --after-ok bad", status=NEVER).stderr
    assert "bad ended with 3 (exited), and --after-ok needs its success" in never
    never = person.types("dios run --keep says.py --after-ok bad", status=NEVER).stderr
    assert "bad ended with 3 (exited), and --after-ok needs its success" in never
    assert job(person, "says")["cause"] == "dependency"
    assert "never began" in person.types("dios job ls").stdout
    assert person.types("dios run --keep says.py --after-any bad").stdout == "began\n"
    told = person.types("dios run says.py --after nothing", status=NEVER).stderr
    assert "there is no run 'nothing'" in told
    person.types("dios job rm bad says says-2")


def test_a_kept_job_waits_on_though_its_command_and_the_leading_node_are_gone(
    cluster: LocalCluster, person: Person
) -> None:
    """Another node leads, has the same records, and starts the job when the run before it has succeeded."""
    with dios.connect(str(cluster.nodes[0].socket), groups=()) as node:
        by_id = sorted(node.nodes(), key=lambda member: member.node)
    leading, asked = (
        next(member for member in cluster.nodes if member.name == by_id[at].name) for at in (0, 2)
    )
    person.environment["DIOS_NODE"] = str(asked.data)
    person.types("dios run --here --detach --title first lasts.py")
    person.types("dios run --keep --detach says.py --after-any first")
    person.types("dios run --keep --detach says.py --after-ok says --title third")
    assert job(person, "third")["after"] == ["the success of says"]
    assert "waits for the end of first" in person.types("dios ps").stdout
    assert person.types("dios explain third").stdout == "third waits for the success of says\n"
    kill(leading.socket)
    assert daemon.find(leading.socket) is None
    person.types("dios kill first")
    with dios.connect(str(asked.socket), groups=()) as node:
        jobs = KeptJobs(node)
        assert jobs.wait("third", PATIENCE_S).exit_status == 0
        assert jobs.output("says") == jobs.output("third") == b"began\n"
