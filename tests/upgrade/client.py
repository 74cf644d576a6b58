"""A client that stays connected to one node while the cluster is upgraded; it runs with the node's release.

    python client.py SOCKET

Each line of its input is a command as JSON, each line of its output the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import dios

LONG = b"""
import dios
with dios.connect() as node:
    gate = node.input("gate")
    print("up", flush=True)
    while gate.read_bytes() != b"end":
        pass
    print("down", flush=True)
"""


class Client:
    """A session at one node, with the objects that it made and found."""

    def __init__(self, place: str) -> None:
        self.node = dios.connect(place)
        self.task: dios.Task | None = None
        self.gate: dios.Reference | None = None
        self.own: dict[str, dios.Reference] = {}

    def make(self, text: str) -> list[str]:
        """Make a durable object, and one in memory, with this content, and return their names."""
        assert self.node.home is not None
        for kind in (dios.DURABLE_BLOB, dios.SHMEM_BLOB):
            blob = self.node.create(kind, groups=[self.node.home], data=text.encode() * 10_000)
            assert blob.name is not None
            self.own[blob.name.hex()] = blob
        return list(self.own)

    def start(self, host: str) -> str:
        """Start a task on a node, which runs until ``finish``."""
        assert self.node.home is not None
        self.gate = self.node.create(dios.SHMEM_BLOB, groups=[self.node.home], data=b"-")
        self.task = self.node.run(LONG, inputs={"gate": self.gate}, host=host)
        return "started"

    def finish(self) -> str:
        """Let the task end, and return its output."""
        assert self.task is not None
        assert self.gate is not None
        self.gate.write_bytes(b"end")
        status = self.task.wait(timeout=60)
        printed = self.task.console().read_bytes().decode().split()
        return f"{status.cause.name.lower()} {status.exit_code} {' '.join(printed)}"

    def write(self, name: str, text: str) -> str:
        """Write an object of any node."""
        blob = self.node.find(bytes.fromhex(name))
        if blob is None:
            return "missing"
        blob.write_bytes(text.encode() * 10_000)
        return "written"

    def read(self, name: str) -> str:
        """Return the word of which an object of any node consists."""
        blob = self.node.find(bytes.fromhex(name))
        if blob is None:
            return "missing"
        data = blob.read_bytes()
        word = data[: len(data) // 10_000]
        return word.decode() if word * 10_000 == data else "torn"

    def run(self, host: str) -> int:
        """Run a task on a node, and return its status."""
        return self.node.run(b"print('hello')", host=host).wait(timeout=60).exit_code

    def version(self, host: str) -> str:
        """Return the release of a node."""
        return self.node.info(host=host).version


def main(arguments: Sequence[str]) -> None:
    """Carry out commands until the input ends."""
    client = Client(arguments[0])
    for line in sys.stdin:
        name, *values = json.loads(line)
        sys.stdout.write(json.dumps(getattr(client, name)(*values)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
