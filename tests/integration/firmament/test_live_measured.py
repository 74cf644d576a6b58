"""Best-effort runs on a live node: they use what is reserved and idle, and yield when its owner wants it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.host.confinement import cgroups
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

SECOND = os.sysconf("SC_CLK_TCK")
"""The ticks of a processor in a second."""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    """A person with a cluster of one node, which schedules."""
    someone = Person(tmp_path)
    del someone.environment["DIOS_COORDINATOR"]
    someone.writes("busy.py", "while True:\n    pass\n")
    someone.writes("short.py", "print('ran')\n")
    someone.types("dios up --nodes 1 --pool-size 1")
    try:
        yield someone
    finally:
        someone.types("dios down")


def running(person: Person, label: str) -> list[dict[str, object]]:
    """The running or paused tasks with this label."""
    rows: list[dict[str, object]] = json.loads(person.types("dios ps --json").stdout)
    return [row for row in rows if row["label"] == label and row["pid"]]


def ticks(pids: list[int]) -> int:
    """The processor time of all of them."""
    return sum(
        int(word)
        for pid in pids
        for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    )


@pytest.mark.extended
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can set the score of a confined task")
def test_best_effort_gives_its_memory_back_first(person: Person) -> None:
    """The kernel ends a best-effort task before every other when the machine has no memory left."""
    scores = {}
    for label, options in (("spare", "--best-effort"), ("owner", "--reserve-memory 64MiB")):
        command = person.starts(f"dios run busy.py {options} --title {label}")
        try:
            wait_until(lambda name=label: len(running(person, name)) == 1, f"the task {label} runs", 200)
            (row,) = running(person, label)
            scores[label] = int(Path(f"/proc/{row['pid']}/oom_score_adj").read_text())
        finally:
            command.kill()
            command.communicate()
    assert scores == {"spare": 1000, "owner": 500}


def pids_of(person: Person, label: str) -> list[int]:
    """The processes of the tasks with this label, once there are as many as processors."""
    wait_until(lambda: len(running(person, label)) == CPUS, f"{CPUS} tasks {label} run", 200)
    return [int(str(row["pid"])) for row in running(person, label)]


@pytest.mark.extended
def test_best_effort_fills_idle_reservations_and_yields(person: Person) -> None:
    """With every processor reserved and idle, best-effort runs compute; with busy owners they hardly do.

    They yield within the first second of processor time that each owner gets. One that names needs is placed
    by the measured use, while a run that reserves waits.
    """
    if "cpu" not in cgroups.usable():
        pytest.skip("this process may not divide processors here")
    for _ in range(CPUS):
        person.types("dios run busy.py --detach --cpus 1 --title owner")
    owners = pids_of(person, "owner")
    for row in running(person, "owner"):
        person.types(f"dios pause {row['fingerprint']}")
    waits = person.starts("dios run short.py --cpus 1 --title reserved")
    spares = [person.starts("dios run busy.py --best-effort --title spare") for _ in range(CPUS)]
    try:
        spare = pids_of(person, "spare")
        begin, idle = ticks(spare), ticks(owners)
        wait_until(lambda: ticks(spare) > begin + 20, "the best-effort runs compute", 200)
        assert ticks(owners) == idle
        # A tenth of a processor is within the margin, however busy the machine is.
        assert person.types("dios run short.py --best-effort --cpus 0.1").stdout == "ran\n"
        assert waits.poll() is None, "nothing is free for a run that reserves"
        assert "not enough free" in person.types("dios explain reserved").stdout
        *others, last = [str(row["fingerprint"]) for row in running(person, "owner")]
        for other in others:
            person.types(f"dios resume {other}")
        # From here on every processor has an owner that wants it.
        person.types(f"dios resume {last}")
        wait_until(lambda: all(ticks([owner]) for owner in owners), "every owner computes", 100)
        for span in (CPUS * SECOND, 300):
            before = ticks(owners), ticks(spare)
            while ticks(owners) < before[0] + span:
                time.sleep(0.01)
            assert ticks(spare) - before[1] < span // 3
    finally:
        for process in (waits, *spares):
            process.kill()
            process.communicate()
