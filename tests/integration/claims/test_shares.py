"""Two users of one scheduled node: the order of their tasks by SDRF, and the rates of their bytes by DRF."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import dios
from dios import limits
from dios.client.aio.node import open_node
from dios.node import cluster
from dios.node.settings import load
from tests.support.firmament.live_scheduler import SLEEPS
from tests.support.node.other_users import as_user
from tests.support.node.running_node import RunningNode, running_node, wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S

pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]

EARLY, LATE = 65_531, 65_530
STORE = 8 * limits.MIB
"""Bytes per second that the disk is said to take."""


class Users:
    """A scheduled node, and processes of its users."""

    def __init__(self, running: RunningNode, folder: Path, node: dios.Node) -> None:
        self.socket = folder / "open.sock"
        self.running = running
        self.node = node
        self._children: list[int] = []

    def ask(self, question: str, **fields: object) -> dict[str, object]:
        """The coordinator's answer."""
        told: dict[str, object] = json.loads(
            self.node.ask_scheduler(json.dumps({"ask": question, **fields}).encode())
        )
        assert told.pop("ok"), told
        return told

    def share(self, uid: int) -> dict[str, object]:
        """A user's row of `dios shares`."""
        rows = self.ask("shares")["principals"]
        assert isinstance(rows, list)
        return next((row for row in rows if row["principal"] == f"uid:{uid}"), {"running": 0, "waiting": 0})

    def counts(self, uid: int) -> tuple[object, object]:
        """A user's running and waiting tasks."""
        share = self.share(uid)
        return share["running"], share["waiting"]

    def does(self, uid: int, work: Callable[[dios.AsyncNode], object]) -> None:
        """Let a process of a user do something with a session, until the end."""

        async def connected() -> None:
            async with open_node(self.socket, groups=()) as node:
                await work(node)  # type: ignore[misc] # a coroutine

        self._children.append(as_user(uid, lambda: trio.run(connected)))

    def runs(self, uid: int) -> None:
        """Let a user run a task that needs a processor."""

        async def run(node: dios.AsyncNode) -> None:
            await node.run(SLEEPS, work=dios.work(cpus=1))
            await trio.sleep_forever()

        self.does(uid, run)

    def stores(self, uid: int) -> None:
        """Let a user store as much as it can."""

        async def store(node: dios.AsyncNode) -> None:
            data = os.urandom(limits.MIB // 2)
            while True:
                reference = await node.create(dios.DURABLE_BLOB, data=data, naming=dios.ANONYMOUS)
                await reference.delete()

        self.does(uid, store)

    def ends_first(self) -> None:
        """End the process that was started first, and with its session its task."""
        pid = self._children.pop(0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def close(self) -> None:
        """End all processes of users."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def users(module: str = "", **settings: str) -> Iterator[Users]:
    """A node that two other users may use."""
    if os.getuid():
        pytest.skip("only root can become other users")
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    flags = {
        "socket": str(folder / "open.sock"),
        "allowed_uids": f"{EARLY},{LATE}",
        "coordinator": "on",
        "pool_size": "1",
        **settings,
    }
    with socket.create_server(("127.0.0.1", 0)) as probe:
        flags |= {"listen": f"127.0.0.1:{probe.getsockname()[1]}", "name": "n1"}
    try:
        cluster.create(load(folder / "data", flags=flags))
        with (
            running_node(folder / "data", module=module, **flags) as running,
            dios.connect(folder / "open.sock") as node,
        ):
            place = Users(running, folder, node)
            wait_until(lambda: _schedules(place), "the coordinator schedules", LOADED_S)
            try:
                yield place
            finally:
                place.close()
    finally:
        shutil.rmtree(folder)


def _schedules(place: Users) -> bool:
    try:
        status = place.ask("status")
    except dios.UnreachableError:
        return False
    return status["placed_by"] == "flow" and bool(status["nodes"])


@pytest.mark.parametrize(("rule", "following"), [("sdrf", LATE), ("fifo", EARLY)])
def test_the_user_with_less_goes_first_or_the_one_who_waited(rule: str, following: int) -> None:
    """One user has the node and waits for more before another comes: with SDRF the other one is next."""
    with users(fairness=rule) as place:
        for number in range(CPUS + 1):
            place.runs(EARLY)
            expected = (min(number + 1, CPUS), int(number == CPUS))
            wait_until(lambda expected=expected: place.counts(EARLY) == expected, f"{expected} of its tasks")
        place.runs(LATE)
        wait_until(lambda: place.counts(LATE) == (0, 1), "the other one waits")
        early, late = place.share(EARLY), place.share(LATE)
        if rule == "sdrf":
            assert float(str(early["commitment"])) > float(str(late["commitment"])) == 0
            assert (late["turn"], early["turn"]) == (1, 2)
        place.ends_first()
        first = {EARLY: (CPUS, 0), LATE: (1, 0)}[following]
        wait_until(lambda: place.counts(following) == first, "the place is given")
        other = EARLY if following == LATE else LATE
        assert place.counts(other)[1] == 1


@pytest.mark.parametrize("algorithm", ["edrf", "dc-drf"])
def test_two_users_share_a_disk_by_their_weights(algorithm: str) -> None:
    """Rates that together are what the disk takes, as their weights; with one user there are none."""
    module = "tests.support.programs.nearly_exact_node" if algorithm == "dc-drf" else ""
    with users(module, store_rate=str(STORE), measure="no") as place:
        place.stores(EARLY)
        wait_until(lambda: moved(place, EARLY) > limits.MIB, "one stores")
        assert place.ask("shares")["rates"] == []
        place.stores(LATE)
        wait_until(lambda: ratio(place) is not None, "both have rates", 60)
        wait_until(lambda: is_near(ratio(place), 1), "both have half", 60)
        rates = rates_of(place)
        assert sum(rates.values()) <= 1.01 * STORE
        assert min(rates.values()) > 0.4 * STORE
        solution = place.ask("shares")["rates_by"]
        assert isinstance(solution, dict)
        assert (solution["principals"], solution["resources"]) == (2, 1)
        if algorithm == "dc-drf":
            wait_until(lambda: by(place) == "dc-drf", "the other algorithm computes them", 60)
        assert by(place) == algorithm
        place.ask("quota", principal=f"uid:{EARLY}", weight=3)
        wait_until(lambda: is_near(ratio(place), 3), "one has three quarters", 60)


def by(place: Users) -> str:
    """The algorithm of the last rates."""
    solution = place.ask("shares")["rates_by"]
    assert isinstance(solution, dict)
    assert solution["completed"]
    return str(solution["algorithm"])


def moved(place: Users, uid: int) -> int:
    """The bytes that a user has stored."""

    async def ask() -> int:
        async with open_node(place.socket, groups=()) as node:
            answer = await node.govern()
            return sum(meter.moved for meter in answer.meters if meter.principal == f"uid:{uid}")

    return trio.run(ask)


def rates_of(place: Users) -> dict[str, int]:
    """The rates in force, by user."""
    rates = place.ask("shares")["rates"]
    assert isinstance(rates, list)
    return {row["principal"]: row["bytes_s"] for row in rates}


def ratio(place: Users) -> float | None:
    """The rate of the first user by that of the second; None while one has none."""
    rates = rates_of(place)
    early, late = rates.get(f"uid:{EARLY}"), rates.get(f"uid:{LATE}")
    return early / late if early and late else None


def is_near(value: float | None, wanted: float) -> bool:
    """Return True if a ratio is known and within a tenth."""
    return value is not None and abs(value / wanted - 1) < 0.1
