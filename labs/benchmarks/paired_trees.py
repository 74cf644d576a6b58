"""The processor time of calls in several source trees: ``-m labs.benchmarks.paired_trees TREE…``.

Each tree has a node and a client of its own, which stay. A round makes the same number of calls in each tree,
in another order each time, so that other work on the machine disturbs all of them alike. The time is that of
the client and of all threads of its node. The first tree is the one that others are compared with; the figure
is the median of the differences within rounds, with their quartiles.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

_ROUNDS: Final = 40
_CALLS: Final = 1_000
_KINDS: Final = ("Stat", "ReadOnce", "Create")

_CLIENT: Final = """
import json, sys, time
from pathlib import Path
import dios

pid, calls = int(sys.argv[2]), int(sys.argv[3])

def spent():
    tasks = Path(f"/proc/{pid}/task")
    return time.process_time_ns() + sum(
        int((one / "schedstat").read_text().split()[0]) for one in tasks.iterdir()
    )

with dios.connect(sys.argv[1], groups=[]) as node:
    blob = node.create(dios.SHMEM_BLOB, data=b"x" * 100, naming=dios.ANONYMOUS)
    made = []
    ways = {
        "Stat": blob.stat,
        "ReadOnce": lambda: blob.read_bytes(semantics=dios.EXCL),
        "Create": lambda: made.append(node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)),
    }
    print("ready", flush=True)
    for line in sys.stdin:
        way = ways[line.strip()]
        begun = spent()
        for _ in range(calls):
            way()
        print(json.dumps((spent() - begun) / calls), flush=True)
        while made:
            made.pop().close()
"""


class _Tree:
    """A source tree with a running node and a client of it."""

    def __init__(self, client: subprocess.Popen[str]) -> None:
        self._client: Final = client

    def measure(self, kind: str) -> float:
        """Return the nanoseconds of processor time of one call."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(kind + "\n")
        self._client.stdin.flush()
        return float(json.loads(self._client.stdout.readline()))


@contextmanager
def _running(tree: Path, folder: Path) -> Iterator[_Tree]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "HOME": str(folder)}
    data = folder / "node"
    ready, far = os.pipe()
    line = [sys.executable, "-P", "-m", "dios.node.daemon", str(data), f"--ready={far}"]
    settings = folder / "settings.toml"
    settings.write_text('pool_size = 0\naccept_weaker_sandbox = true\nlog_level = "warning"\n')
    line.append(f"--config={settings}")
    with subprocess.Popen(line, env=environment, pass_fds=(far,), cwd="/") as node:
        os.close(far)
        try:
            os.read(ready, 1)
            os.close(ready)
            words = [sys.executable, "-c", _CLIENT, str(data), str(node.pid), str(_CALLS)]
            with subprocess.Popen(
                words, env=environment, cwd="/", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as client:
                assert client.stdout is not None
                assert client.stdout.readline() == "ready\n"
                yield _Tree(client)
        finally:
            node.terminate()


def main(trees: list[str]) -> None:
    """Measure, and print a row for each kind of call and tree."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in trees]
        running = [
            stack.enter_context(_running(Path(tree).resolve(), folder))
            for tree, folder in zip(trees, folders, strict=True)
        ]
        for kind in _KINDS:
            tree_times: list[list[float]] = [[] for _ in trees]
            for number in range(_ROUNDS + 1):
                order = list(range(len(trees)))
                random.Random(number).shuffle(order)  # noqa: S311 - the same order each time
                for place in order:
                    nanoseconds = running[place].measure(kind)
                    if number:  # the first round warms up
                        tree_times[place].append(nanoseconds / 1_000)
            for tree, times in zip(trees, tree_times, strict=True):
                differences = [mine - first for mine, first in zip(times, tree_times[0], strict=True)]
                low, middle, high = statistics.quantiles(differences, n=4)
                print(
                    f"{kind:9} {tree:24} median {statistics.median(times):7.1f} us, least {min(times):7.1f}; "
                    f"difference {middle:+6.2f} us, quartiles {low:+6.2f} to {high:+6.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
