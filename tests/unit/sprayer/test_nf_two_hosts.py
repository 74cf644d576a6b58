"""A NAT on two hosts: a TCP connection goes on when the host that carries it dies.

Skipped where this machine makes no namespaces, or confines no tasks, with its reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import dios
from dios.lib.keyvalue import create_store
from dios.node.daemon import find
from dios.wire.nametext import format_name
from tests.support.lab.function_machines import CHECKSUMS, LEFT, PYTHON, RIGHT, SEGMENTS, offloads
from tests.support.lab.namespaces import MachineNamespaces, NotHereError, killed_with_parent
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

OUTER: Final = "10.214.0.100"
PORT: Final = 8080
PATIENCE_S: Final = 120.0
SERVER: Final = """
import socket, sys
door = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    client, where = door.accept()
    while data := client.recv(100):
        client.sendall(where[0].encode() + b" " + data)
"""
CLIENT: Final = """
import socket, sys
held = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
held.settimeout(100)
for line in sys.stdin:
    held.sendall(line.encode())
    print(held.recv(100).decode(), end="", flush=True)
"""


class TwoHosts:
    """Left and right with a bridge each, and two hosts whose functions connect these bridges."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder: Final = folder
        self.left, self.right = (
            stack.enter_context(contextlib.closing(MachineNamespaces(name))) for name in ("left", "right")
        )
        self.hosts: Final = {
            name: stack.enter_context(contextlib.closing(MachineNamespaces(name))) for name in ("one", "two")
        }
        for space, address, side in ((self.left, LEFT, 1), (self.right, RIGHT, 2)):
            space.batch(["link add br0 type bridge", f"link set br0 address 02:d1:05:02:00:0{side}"])
            space.batch([f"address add {address}/24 dev br0", "link set br0 up"])
            for number, host in enumerate(self.hosts.values()):
                name = "in0" if side == 1 else "out0"
                host.batch([f"link add {name} type veth peer name e{number} netns {space.pid}"])
                host.batch([f"link set {name} addrgenmode none", f"link set {name} up"])
                space.batch([f"link set e{number} addrgenmode none", f"link set e{number} master br0 up"])
                offloads(space, f"e{number}", f"{SEGMENTS} {CHECKSUMS}", on=False)
            offloads(space, "br0", f"{SEGMENTS} {CHECKSUMS}", on=False)
        # The NAT answers for its address only after a frame from inside.
        self.right.batch([f"neigh replace {OUTER} lladdr 02:d1:05:02:00:01 dev br0"])

    @contextlib.contextmanager
    def running(self, name: str, store: str) -> Iterator[subprocess.Popen[str]]:
        """Run the NAT on a host; it waits for its turn."""
        words = ["nf", "run", "nat", "--in", "in0", "--out", "out0", "--cores", "2", "--json"]
        words += ["--set", f"addresses={OUTER}", "--set", "flows_max=4096", "--steer", "spray"]
        words += ["--name", f"{self.folder.name[-16:]}-{name}", "--share-as", name]
        given = {"DIOS_NODE": str(self.folder / "node.sock"), "DIOS_NF_STORE": store}
        command = killed_with_parent(self.hosts[name].inside(*PYTHON, "-m", "dios.cli.main", *words))
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **given}
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def heard(process: subprocess.Popen[str], words: str) -> None:
    """Wait until a program says something."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return
    pytest.fail(f"the function ended: {said}")


def asked(process: subprocess.Popen[str], line: str) -> str:
    """Send a line over the connection; return the answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[dios.Node]:
    """A node that both hosts reach."""
    mechanisms_or_skip()
    place = tmp_path / "node.sock"
    words = ["-m", "dios.cli.nodes.daemon", "start", "--data", str(tmp_path / "data"), "--socket", str(place)]
    words += ["--accept-weaker-sandbox", "--pool-size", "0", "--coordinator", "off"]
    with (
        (tmp_path / "node.log").open("w") as log,
        subprocess.Popen(killed_with_parent([*PYTHON, *words]), stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(lambda: find(place) is not None, "the node serves", PATIENCE_S)
            with dios.connect(str(place), groups=()) as connected:
                yield connected
        finally:
            process.terminate()


@pytest.mark.extended
def test_a_connection_survives_the_death_of_its_host(node: dios.Node, tmp_path: Path) -> None:
    """The second host continues a TCP connection with its address and port, after the first was killed."""
    with contextlib.ExitStack() as stack:
        try:
            lab = TwoHosts(tmp_path, stack)
        except NotHereError as error:
            pytest.skip(str(error))
        assert node.home is not None
        key_store = create_store(node, node.home, shards=4, durable=False)
        store = format_name(key_store.name)
        first = stack.enter_context(lab.running("one", store))
        heard(first, "runs between")
        two = stack.enter_context(lab.running("two", store))
        heard(two, "two waits")
        server = killed_with_parent(lab.right.inside(*PYTHON, "-c", SERVER, RIGHT, str(PORT)))
        serving = stack.enter_context(subprocess.Popen(server, stdout=subprocess.PIPE, text=True))
        stack.callback(serving.kill)
        assert serving.stdout is not None
        assert serving.stdout.readline() == "ready\n"
        words = killed_with_parent(lab.left.inside(*PYTHON, "-c", CLIENT, RIGHT, str(PORT)))
        pipe = subprocess.PIPE
        client = stack.enter_context(subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True))
        stack.callback(client.kill)
        assert asked(client, "first") == f"{OUTER} first"
        # The connection's flows are written before the host dies.
        wait_until(
            lambda: any(key.startswith("rows/one/") for key in key_store), "flows are written", PATIENCE_S
        )
        first.send_signal(signal.SIGKILL)
        first.wait()
        lab.hosts["one"].batch(["link delete in0", "link delete out0"])
        assert asked(client, "second") == f"{OUTER} second"
        assert asked(client, "third") == f"{OUTER} third"
        heard(two, "runs between")
        two.send_signal(signal.SIGTERM)
        output, errors = two.communicate(timeout=PATIENCE_S)
        assert two.returncode == 0, errors
        assert '"opened": 0' in output
