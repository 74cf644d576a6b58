"""A user with a quota of one task has no second one, whichever way the client starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.executor.executor import Executor
from dios.lib.supervised.services import ServiceProgram, Services
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until

USER = 65_529
WHO = f"uid:{USER}"
LOADED_S = 900
"""The first time its kernels are compiled, a coordinator takes a minute of processor time to begin."""
SLEEPS = b"import time\ntime.sleep(1000)\n"


def in_a_sandbox(node: dios.Node) -> object:
    """Open a session of a sandbox, which waits for its task."""
    with dios.Sandbox(node=node) as box:
        return box.run("1 + 1")


def in_an_executor(node: dios.Node) -> object:
    """Make a call, which waits for a worker."""
    with Executor(1, node=node) as pool:
        return pool.submit(abs, -1).result()


WAYS: dict[str, Callable[[dios.Node], object]] = {
    "a host": lambda node: node.run(SLEEPS, host="n1"),
    "this node": lambda node: node.run(SLEEPS, local=True),
    "needs and a host": lambda node: node.run(SLEEPS, host="n1", work=dios.work(cpus=0.1)),
    "without waiting": lambda node: node.run(SLEEPS, host="n1", wait=False),
    "a sandbox": in_a_sandbox,
    "an executor": in_an_executor,
    "a service": lambda node: Services(node).create("web", ServiceProgram(SLEEPS)),
}

pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.extended, pytest.mark.long]


class Site:
    """A cluster of one node, with a user who has a quota and one task."""

    def __init__(self, person: Person, nodes: Path) -> None:
        self.person = person
        self.socket = nodes / "n1" / "node.sock"
        self.home = person.home.parent / "user"
        self.children: list[int] = []

    def user_does(self, work: Callable[[dios.Node], object]) -> int:
        """Let a process of the user do this, and keep its connection until it is killed."""
        pid = os.fork()
        if pid == 0:
            try:
                os.environ.update(HOME=str(self.home), XDG_CONFIG_HOME=str(self.home))
                os.setgroups([])
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)
                with dios.connect(str(self.socket), node_user="root") as node:
                    work(node)
                    signal.pause()
            except BaseException:  # noqa: BLE001 - the process ends here, and says why
                traceback.print_exc()
            os._exit(1)
        self.children.append(pid)
        return pid

    def account(self) -> dict[str, object]:
        """Return the user's row of `dios shares`."""
        rows = json.loads(self.person.types("dios shares --json").stdout)["principals"]
        account: dict[str, object] = next((row for row in rows if row["principal"] == WHO), {})
        return account

    def end_child(self, pid: int) -> None:
        """End a process of the user, and with it what it waits for."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.children.remove(pid)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A node of which the user has a quota of one task."""
    if os.getuid():
        pytest.skip("only root can become other users")
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    home = folder / "home"
    home.mkdir()
    someone = Person(home)
    del someone.environment["DIOS_COORDINATOR"]
    (folder / "user").mkdir()
    os.chown(folder / "user", USER, USER)
    nodes = folder / "nodes"
    someone.types(f"dios up --nodes 1 --keep --dir {nodes} --pool-size 2 --allowed-uids {USER}")
    live_site = Site(someone, nodes)
    try:
        for place in (nodes, nodes / "n1"):
            place.chmod(0o711)
        wait_until(lambda: is_scheduled(someone), "the cluster is scheduled", LOADED_S)
        someone.types(f"dios quota set {WHO} tasks=1")
        live_site.user_does(lambda node: node.run(SLEEPS, host="n1"))
        wait_until(lambda: live_site.account().get("running") == 1, "the first task runs", 120)
        yield live_site
    finally:
        for pid in list(live_site.children):
            live_site.end_child(pid)
        someone.types(f"dios down --dir {nodes}")
        shutil.rmtree(folder)


def is_scheduled(person: Person) -> bool:
    """Return True if the flow scheduler places runs."""
    done = subprocess.run(
        person.command("dios sched status --json"),
        env=person.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return not done.returncode and json.loads(done.stdout)["placed_by"] == "flow"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_way_leads_past_a_quota(site: Site, way: Callable[[dios.Node], object]) -> None:
    """The second task waits for the first one to end, and the user sees it waiting."""
    pid = site.user_does(way)
    wait_until(lambda: site.account()["waiting"] == 1, "the second one waits", 120)
    assert site.account()["running"] == 1
    site.end_child(pid)
    if site.account()["waiting"]:
        # A service is not its creator's.
        site.user_does(lambda node: Services(node).remove("web"))
    wait_until(lambda: site.account()["waiting"] == 0, "it waits no more", 120)
