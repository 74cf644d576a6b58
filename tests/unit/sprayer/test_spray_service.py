"""The balancer of examples/sprayer in front of tasks of a real node: it follows who accepts.

Skipped where this machine makes no namespaces, or confines no tasks, with its reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.client.keyring import Keyring
from dios.ids import Name
from dios.lib.services import Service, create_service
from dios.node.daemon import find
from dios.wire.nametext import format_name
from tests.support.lab.function_machines import PYTHON, RIGHT, FunctionLab
from tests.support.lab.namespaces import NotHereError, killed_with_parent
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

SERVICE, PORT, INNER = "10.214.0.100", 80, "10.214.0.200"
PATIENCE_S = 30.0
EXAMPLE = Path(__file__).parents[3] / "examples" / "sprayer" / "balance.py"

WORKER = b"""
import dios
from dios.lib.services import open_service
node = dios.connect()
name = node.arguments[0].encode()
orders = node.inputs[1]
door = open_service(node, node.groups[0], node.arguments[1]).listen(node.arguments[2])
node.outputs[0].send(name)
clients = []
while True:
    ready = node.select([orders, *clients, *([door] if door else [])])
    if ready is orders:
        orders.receive()
        door.close()
        door = None
    elif ready is door:
        try:
            clients.append(door.accept(timeout=0))
            clients[-1].send(name)
        except dios.DiosError:
            pass
    else:
        try:
            ready.send(ready.receive(timeout=0))
        except dios.DiosError:
            clients.remove(ready)
            ready.close()
"""

CLIENT = """
import json, socket, sys
def connect():
    client = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    return client, client.recv(10).decode()
held, name = connect()
print(json.dumps(name), flush=True)
for line in sys.stdin:
    if line == "held\\n":
        held.sendall(b"still")
        print(json.dumps(held.recv(10).decode()), flush=True)
        continue
    found = []
    for _ in range(int(line)):
        try:
            client, who = connect()
            client.close()
        except OSError:
            who = ""
        found.append(who)
    print(json.dumps(found), flush=True)
"""


class Front:
    """A node on the right, workers on it, a balancer in the middle, and clients on the left."""

    def __init__(self, lab: FunctionLab, node: dios.Node) -> None:
        self.lab = lab
        self.node = node
        self.group = node.create_group()
        self.service: Service = create_service(node, self.group)
        self.workers: dict[str, tuple[dios.Task, dios.Stream]] = {}

    def begin(self, name: str) -> None:
        """Start a worker, and wait until it accepts."""
        told, orders = self.node.create_stream(), self.node.create_stream()
        task = self.node.run(
            WORKER,
            groups=[self.group],
            inputs=[self.node.network().restrict("write"), orders.restrict("read")],
            outputs=[told.restrict("write")],
            args=[name, format_name(self.service.name), f"{RIGHT}:0"],
        )
        assert told.receive(timeout=PATIENCE_S) == name.encode()
        self.workers[name] = (task, orders)

    @contextlib.contextmanager
    def balanced(self) -> Iterator[dict[str, dict[str, int]]]:
        """The balancer at work; the dict has what it did when it ended."""
        told: dict[str, dict[str, int]] = {}
        keyring = self.lab.folder / "keyring.toml"
        Keyring.load(keyring).add("servers", Name(self.group.name or b""))
        given = {
            "DIOS_NODE": str(self.lab.folder / "node.sock"),
            "DIOS_KEYRING": str(keyring),
            "DIOS_SERVICE": format_name(self.service.name),
        }
        words = ["nf", "run", str(EXAMPLE), "--in", "in0", "--out", "out0", "--cores", "2", "--json"]
        words += ["--name", self.lab.folder.name[-20:]]
        for setting in (f"address={SERVICE}", f"port={PORT}", f"inner={INNER}"):
            words += ["--set", setting]
        command = killed_with_parent(self.lab.middle.inside(*PYTHON, "-m", "dios.cli.main", *words))
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **given}
        ) as process:
            assert process.stderr is not None
            try:
                heard: list[str] = []
                for line in process.stderr:
                    heard.append(line)
                    if "runs between" in line:
                        break
                else:
                    pytest.fail(f"the balancer does not run: {heard}")
                yield told
                process.send_signal(signal.SIGTERM)
                output, errors = process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0, errors
                told.update(json.loads(output))
            finally:
                process.kill()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    """A node that runs on the right, which a person talks to."""
    mechanisms_or_skip()
    try:
        lab = FunctionLab(tmp_path)
    except NotHereError as error:
        pytest.skip(str(error))
    with contextlib.closing(lab):
        lab.left.batch([f"neigh add {SERVICE} lladdr 02:d1:05:02:00:02 dev e0"])
        lab.right.batch([f"neigh add {INNER} lladdr 02:d1:05:02:00:01 dev e0"])
        place = tmp_path / "node.sock"
        words = [
            "-m",
            "dios.cli.nodes.daemon",
            "start",
            "--data",
            str(tmp_path / "data"),
            "--socket",
            str(place),
        ]
        words += ["--accept-weaker-sandbox", "--pool-size", "1", "--coordinator", "off"]
        with (
            (tmp_path / "node.log").open("w") as log,
            subprocess.Popen(
                killed_with_parent(lab.right.inside(*PYTHON, *words)), stdout=log, stderr=log
            ) as process,
        ):
            try:
                wait_until(lambda: find(place) is not None, "the node serves", PATIENCE_S)
                with dios.connect(str(place), groups=()) as node:
                    yield Front(lab, node)
            finally:
                process.terminate()


@contextlib.contextmanager
def client(front: Front) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A program on the left that holds one connection, and whom it is with."""
    command = [*PYTHON, "-c", CLIENT, SERVICE, str(PORT)]
    with subprocess.Popen(
        killed_with_parent(front.lab.left.inside(*command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, "nobody answered the first connection"
            yield json.loads(line), process
        finally:
            process.kill()


def asked(process: subprocess.Popen[str], words: str) -> list[str] | str:
    """Send a line to the client; return its answer: counts by server, or the reply on the open connection."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()
    answer: list[str] | str = json.loads(process.stdout.readline())
    return answer


@pytest.mark.extended
def test_a_balancer_follows_the_tasks_that_accept(front: Front) -> None:
    """New workers get connections; a worker that left or was killed gets no more, but keeps its open ones."""
    for name in ("one", "two"):
        front.begin(name)
    with front.balanced() as told, client(front) as (with_whom, process):
        first = asked(process, "20")
        assert {name: first.count(name) for name in first} == {"one": 10, "two": 10}
        stays = {"one": "two", "two": "one"}[with_whom]
        front.workers[with_whom][1].send(b"leave")
        wait_until(lambda: asked(process, "4") == [stays] * 4, f"{with_whom} gets no more", PATIENCE_S)
        assert asked(process, "20") == [stays] * 20
        assert asked(process, "held") == "still"
        front.begin("three")
        wait_until(lambda: "three" in asked(process, "4"), "a new worker gets connections", PATIENCE_S)
        front.workers[stays][0].destroy()
        wait_until(lambda: asked(process, "4") == ["three"] * 4, "a killed one gets no more", PATIENCE_S)
        assert asked(process, "20") == ["three"] * 20
        assert asked(process, "held") == "still"
    assert told["counters"]["opened"] >= 70, told


@pytest.mark.extended
def test_without_workers_nobody_is_answered_and_it_is_counted(front: Front) -> None:
    """A balancer of a service that nobody serves drops what opens connections, by a cause of its own."""
    with front.balanced() as told:
        silent = front.lab.left.inside(*PYTHON, "-c", CLIENT.replace(", 5)", ", 1)"), SERVICE, str(PORT))
        done = subprocess.run(silent, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert "TimeoutError" in done.stderr, done.stderr
    assert told["dropped"]["no_server"] > 0, told
