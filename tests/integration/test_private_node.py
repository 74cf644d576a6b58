"""``connect(start=True)`` and ``open_node(start=True)``: a node of one program leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node.running_node import wait_until

_USE = """
import dios
with dios.connect(start=True) as node:
    blob = node.create(dios.DURABLE_BLOB, data=b"kept")
    print(blob.read_bytes().decode(), node.run(b"print(1)").wait().exit_code)
"""

_FORGOTTEN = """
import dios
node = dios.connect(start=True)
print(node.create(dios.DURABLE_BLOB, data=b"kept").read_bytes().decode())
"""

_KILLED = (
    _FORGOTTEN
    + """
import os, sys
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""
)

_FORKED = """
import dios, os
node = dios.connect(start=True)
if os.fork() == 0:
    node.close()
    os._exit(0)
os.wait()
print(node.create(dios.DURABLE_BLOB, data=b"kept").read_bytes().decode())
node.close()
print(*os.listdir(os.environ["TMPDIR"]))
"""

_ASYNC = """
import dios
async def main():
    async with dios.aio.open_node(start=True) as node:
        blob = await node.create(dios.DURABLE_BLOB, data=b"kept")
        print((await blob.read_bytes()).decode())
    print(*os.listdir(os.environ["TMPDIR"]))
import os, {loop}
{loop}.run({main})
"""


def _run(script: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if key != "DIOS_NODE"}
    home = {"HOME": str(place), "XDG_RUNTIME_DIR": str(place / "run"), "TMPDIR": str(place / "tmp")}
    for folder in ("run", "tmp"):
        (place / folder).mkdir(mode=0o700)
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**base, **home, **environment},
    )


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(_USE, "kept 0\n", id="closed"),
        pytest.param(_FORGOTTEN, "kept\n", id="never closed"),
        pytest.param(_KILLED, "kept\n", id="killed"),
        pytest.param(_FORKED, "kept\n\n", id="closed in a forked process"),
        pytest.param(_ASYNC.format(loop="asyncio", main="main()"), "kept\n\n", id="asyncio"),
        pytest.param(_ASYNC.format(loop="trio", main="main"), "kept\n\n", id="trio"),
    ],
)
def test_a_program_without_a_node_gets_one_that_ends_with_it(
    script: str, printed: str, tmp_path: Path
) -> None:
    """The program is told so, and neither processes nor files of the node stay."""
    done = _run(script, tmp_path)
    assert done.stdout == printed, done.stderr
    assert "has a private one" in done.stderr
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()), "its files are deleted", 60)


def test_a_node_that_was_named_is_not_replaced(tmp_path: Path) -> None:
    """Its user would look for the objects there."""
    done = _run(_USE, tmp_path, DIOS_NODE=str(tmp_path / "gone"))
    assert "UnreachableError" in done.stderr
    assert done.stdout == ""


def test_without_the_wish_no_node_is_started(tmp_path: Path) -> None:
    """``connect()`` alone reports that there is no node."""
    done = _run(_USE.replace("start=True", ""), tmp_path)
    assert "UnreachableError" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
