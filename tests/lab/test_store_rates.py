"""A greedy user and a modest one at one disk, of a real node."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

import dios
from dios.wire.messages import Rate
from dios.wire.types import Traffic
from tests.support.lab.namespaces import killed_with_parent
from tests.support.node.running_node import RunningNode, running_node

WRITER: Final = Path(__file__).resolve().parents[1] / "support" / "programs" / "lab_writer.py"
GREEDY, MODEST = 4001, 4002
SECONDS: Final = 6
RATE: Final = 4_000_000
STORE: Final = 100_000_000
"""Said, so that nothing over the rate is let go; nobody measures whether the disk can."""
GREEDY_BYTES: Final = 1 << 20
MODEST_BYTES: Final = 1 << 16
MODEST_EVERY_MS: Final = 50
MODEST_WANTS: Final = MODEST_BYTES * 1000 / MODEST_EVERY_MS


@pytest.fixture
def node() -> Iterator[RunningNode]:
    """One node, in a folder that other users reach."""
    if os.geteuid():
        pytest.skip("who is not root cannot be two users")
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        Path(folder).chmod(0o755)
        said = {"allowed_uids": f"{GREEDY},{MODEST}", "socket": f"{folder}/node.sock"}
        with running_node(Path(folder) / "data", **said, store_rate=str(STORE), pool_size="0") as started:
            yield started


@contextlib.contextmanager
def writer(node: RunningNode, uid: int, *arguments: int) -> Iterator[subprocess.Popen[str]]:
    """A user's process that waits for a line to write for so long."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    words = [sys.executable, str(WRITER), node.place, *map(str, arguments), str(SECONDS)]
    process = subprocess.Popen(
        killed_with_parent([*user, *words]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", "the user's process could not begin"
        yield process
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def both_write(node: RunningNode) -> tuple[float, float, float]:
    """Bytes a second of the greedy and of the modest one, and the median of its writings in milliseconds."""
    with (
        writer(node, GREEDY, 4, GREEDY_BYTES, 0) as greedy,
        writer(node, MODEST, 1, MODEST_BYTES, MODEST_EVERY_MS) as modest,
    ):
        reports: list[tuple[float, list[float]]] = []
        for process in (greedy, modest):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in (greedy, modest):
            assert process.stdout is not None
            reports.append(json.loads(process.stdout.readline()))
    return reports[0][0], reports[1][0], statistics.median(reports[1][1])


async def tell(node: RunningNode) -> None:
    """Tell the greedy one's rate, for as long as the test is."""
    async with dios.open_node(node.place, groups=()) as session:
        await session.govern(rates=[Rate(f"uid:{GREEDY}", Traffic.STORE, RATE)], lease_ms=60_000)


def test_a_greedy_user_leaves_the_disk_to_a_modest_one(node: RunningNode) -> None:
    """With a rate the greedy one stores as much as that, and the modest one, without, what it wants."""
    without = both_write(node)
    trio.run(tell, node)
    ruled = both_write(node)
    said = f"greedy, modest in bytes a second, and ms: without a rate {without}, with one of {RATE} {ruled}"
    print(said)  # noqa: T201 - for who looks with -s
    assert without[0] > 2 * RATE, said
    assert 1 / 2 < ruled[0] / RATE < 2, said
    assert ruled[1] > 3 / 4 * MODEST_WANTS, said
    assert ruled[1] > 0.9 * without[1], said
