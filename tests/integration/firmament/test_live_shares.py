"""Two users on a cluster of two nodes, who share it by SDRF, as they and the nodes' user see it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import trio

import dios
from dios.client.aio.node import open_node
from dios.firmament.policies.stored_shares import decode
from tests.support.node.command_user import Person
from tests.support.node.other_users import as_user
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import is_attended

CPUS = 2 * len(os.sched_getaffinity(0))
"""Of both nodes."""
EARLY, LATE = 65_531, 65_530
LOADED_S = 900
"""The first time its kernels are compiled, a coordinator takes a minute of processor time to begin."""
SLEEPS = b"import time\ntime.sleep(%d)\n"

T = TypeVar("T")

# The first test waits for the cluster.
pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]


class Site:
    """The nodes' user, and where other users find a node."""

    def __init__(self, person: Person, nodes: Path) -> None:
        self.person = person
        self.nodes = nodes
        self.socket = nodes / "n1" / "node.sock"
        self.children: list[int] = []

    def shares(self) -> dict[str, dict[str, object]]:
        """`dios shares`, by principal."""
        told = json.loads(self.person.types("dios shares --json").stdout)
        return {row["principal"]: row for row in told["principals"]}

    def runs(self, uid: int, count: int, seconds: int) -> None:
        """A user runs so many tasks of one processor each, and leaves when all have their place and ended."""
        self.children.append(as_user(uid, lambda: trio.run(_run_many, self.socket, count, seconds)))

    def asks(self, uid: int, question: dict[str, object]) -> dict[str, object]:
        """A user's question to the scheduler, and the answer."""
        into, out = os.pipe()

        async def ask() -> None:
            async with open_node(self.socket, groups=()) as node:
                os.write(out, await node.ask_scheduler(json.dumps(question).encode()))

        pid = as_user(uid, lambda: trio.run(ask))
        os.close(out)
        with os.fdopen(into) as answer:
            told: dict[str, object] = json.loads(answer.read())
        os.waitpid(pid, 0)
        return told

    def kept(self, who: str) -> float:
        """A principal's dominant commitment as it was handed on to the node."""

        async def ask() -> bytes:
            async with open_node(self.socket, groups=()) as node:
                return (await node.govern()).shares

        data = trio.run(ask)
        accounts = decode(data).accounts if data else ()
        return max(
            (max(account.commitments) for account in accounts if account.principal == who), default=0.0
        )

    def clear(self) -> None:
        """End whoever still runs something."""
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.children.clear()
        wait_until(lambda: all(not row["waiting"] for row in self.shares().values()), "nobody waits", 60)


async def _run_many(socket: Path, count: int, seconds: int) -> None:
    async with open_node(socket, groups=()) as node, trio.open_nursery() as nursery:

        async def run_task() -> None:
            task = await _started(node, seconds)
            await _patiently(task.wait)

        for _ in range(count):
            nursery.start_soon(run_task)


async def _started(node: dios.AsyncNode, seconds: int) -> dios.AsyncTask:
    return await _patiently(lambda: node.run(SLEEPS % seconds, work=dios.work(cpus=1)))


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that gets no answer in time, as on a busy machine; a start may have happened or not."""
    while True:
        try:
            return await call()
        except dios.UnreachableError:
            traceback.print_exc()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Two nodes that two other users may use; the past counts for a minute."""
    if os.getuid():
        pytest.skip("only root can become other users")
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    home = folder / "home"
    home.mkdir()
    someone = Person(home)
    del someone.environment["DIOS_COORDINATOR"]
    nodes = folder / "nodes"
    someone.types(
        f"dios up --nodes 2 --keep --dir {nodes} --pool-size 1 --fairness-memory 1min"
        f" --allowed-uids {EARLY},{LATE}"
    )
    try:
        for place in (nodes, nodes / "n1"):
            place.chmod(0o711)
        live_site = Site(someone, nodes)
        wait_until(lambda: is_attended(someone), "both are attended to", LOADED_S)
        yield live_site
    finally:
        someone.types(f"dios down --dir {nodes}")
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _cleared(site: Site) -> Iterator[None]:
    yield
    site.clear()


@pytest.mark.extended
def test_who_came_late_is_not_behind_a_queue(site: Site) -> None:
    """While one user's long queue fills the cluster, another's tasks get the next places, and both show."""
    early, late = f"uid:{EARLY}", f"uid:{LATE}"
    # On a busy machine the other's tasks may wait for minutes: the queue must be longer.
    site.runs(EARLY, 8 * CPUS, 15)
    wait_until(lambda: site.shares().get(early, {}).get("running") == CPUS, "the cluster is full", 60)
    # They last longer than this test: the first is still there when the second begins.
    site.runs(LATE, CPUS // 2, LOADED_S)
    seen: list[dict[str, dict[str, object]]] = []

    def late_runs() -> bool:
        seen.append(site.shares())
        return int(str(seen[-1].get(late, {}).get("running", 0))) >= CPUS // 2

    wait_until(late_runs, "the other's tasks run", 150)
    last = seen[-1]
    assert int(str(last[early]["waiting"])) >= CPUS, "it was served before the queue"
    assert float(str(last[early]["commitment"])) > float(str(last[late]["commitment"]))
    assert float(str(last[early]["credit"])) < float(str(last[late]["credit"]))


@pytest.mark.extended
def test_a_quota_holds_in_the_whole_cluster_and_outlives_the_coordinator(site: Site) -> None:
    """What `dios quota set` says holds at once, and still does when the coordinator was killed."""
    who = f"uid:{EARLY}"
    told = json.loads(site.person.types(f"dios quota set {who} cpus=1 --weight 2 --json").stdout)
    assert [(row["weight"], row["quota"]) for row in told if row["principal"] == who] == [(2, {"cpus": 1})]
    rows = json.loads(site.person.types("dios ps --json").stdout)
    for row in rows:
        if row["label"] == "coordinator":
            os.kill(row["pid"], signal.SIGKILL)
    wait_until(lambda: is_attended(site.person), "another coordinator schedules", 120)
    wait_until(lambda: site.shares().get(who, {}).get("weight") == 2, "it knows the weight", 60)
    assert site.shares()[who]["quota"] == {"cpus": 1}
    site.runs(EARLY, CPUS, 2)
    wait_until(lambda: site.shares()[who]["running"] == 1, "one of its tasks runs", 60)
    # The two runs come one after the other, so the first may run before the second one waits.
    wait_until(lambda: int(str(site.shares()[who]["waiting"])) > 0, "the other one waits", 60)
    lines = site.person.types("dios quota").stdout.splitlines()
    assert any(who in line and "cpus=1" in line for line in lines)
    site.person.types(f"dios quota set {who} cpus=none --weight 1")
    wait_until(lambda: int(str(site.shares()[who]["running"])) > 1, "more of them run", 60)


@pytest.mark.extended
def test_shares_outlive_a_restart_of_everything(site: Site) -> None:
    """Weights are the same, and commitments but for their fading, after all nodes were started anew."""
    who = f"uid:{EARLY}"
    site.person.types(f"dios quota set {who} --weight 3")
    site.runs(EARLY, CPUS, 20)
    wait_until(lambda: site.kept(who) > 0.02, "a commitment is handed on", 60)
    site.clear()
    before = site.kept(who)
    began = time.monotonic()
    site.person.types(f"dios down --dir {site.nodes}")
    site.person.types(f"dios up --keep --dir {site.nodes}")
    wait_until(lambda: is_attended(site.person), "the cluster is scheduled again", LOADED_S)
    wait_until(lambda: who in site.shares(), "the principal is known again", 60)
    share = site.shares()[who]
    assert share["weight"] == 3
    faded = before * math.exp(-(time.monotonic() - began + 15) / 60)
    assert float(str(share["commitment"])) >= faded
    site.person.types(f"dios quota set {who} --weight 1")


def test_a_quota_that_cannot_be_stored_is_not_acknowledged(site: Site) -> None:
    """Where the node has no room for it, whoever sets a quota is told that it may be forgotten."""

    async def set_until_refused() -> str:
        async with open_node(site.socket, groups=()) as node:
            # What is stored takes whole pages of memory: some more fit.
            for number in range(1000):
                question = {"ask": "quota", "principal": f"a principal of a long name {number}", "weight": 5}
                told = json.loads(await node.ask_scheduler(json.dumps(question).encode()))
                if not told["ok"]:
                    return str(told["error"])
        return "nothing was refused"

    for node in ("n1", "n2"):
        site.person.types(f"dios limits set uid:0 bytes=1 --node {node}")
    try:
        assert "could not be stored" in trio.run(set_until_refused)
    finally:
        for node in ("n1", "n2"):
            site.person.types(f"dios limits set uid:0 bytes=none --node {node}")
    site.person.types(f"dios quota set uid:{LATE} --weight 1")


def test_others_see_themselves_and_set_nothing(site: Site) -> None:
    """A user who is not the nodes' own sees the own line alone, and is refused quotas."""
    site.runs(EARLY, 1, 1)
    wait_until(lambda: f"uid:{EARLY}" in site.shares(), "it is known", 60)
    told = site.asks(LATE, {"ask": "shares"})
    assert told["ok"]
    assert f"uid:{EARLY}" not in json.dumps(told)
    refused = site.asks(LATE, {"ask": "quota", "principal": f"uid:{LATE}", "weight": 100})
    assert not refused["ok"]
    assert "only the nodes' own user" in str(refused["error"])


def test_watching_goes_on_until_interrupted(site: Site) -> None:
    """`dios shares --watch --json` prints a line for each look, and Ctrl-C is a good end."""
    watching = site.person.starts("dios shares --watch --json")
    assert watching.stdout is not None
    first, second = watching.stdout.readline(), watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (0, "")
    assert all(json.loads(line)["fairness"] == "sdrf" for line in (first, second))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("dios quota set", "Missing argument"),
        ("dios quota set uid:1", "nothing to set"),
        ("dios quota set nobody-of-this-name cpus=1", "is not a principal"),
        ("dios quota set uid:1 cpus", "is not a bound"),
        ("dios quota set uid:1 cpus=many", "cpus is 'many'"),
        ("dios quota set uid:1 memory=1XB", "memory is '1XB'"),
        ("dios quota set uid:1 cpus=-1", "cpus is -1.0"),
        ("dios quota set uid:1 --weight 0", "weight is 0.0"),
    ],
)
def test_what_cannot_be_set_is_refused(site: Site, line: str, told: str) -> None:
    """A quota that makes no sense is refused with the word at fault."""
    done = subprocess.run(
        site.person.command(line),
        env=site.person.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert told in done.stderr
