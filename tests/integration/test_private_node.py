"""A program that finds no node: all its connections share a private one, which leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node.running_node import wait_until

_USE = """
import dios
with dios.connect() as node:
    blob = node.create(dios.DURABLE_BLOB, data=b"kept")
    print(blob.read_bytes().decode(), node.run(b"print(1)").wait().exit_code)
"""

_FORGOTTEN = """
import dios
node = dios.connect()
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

_SHARED_BLOB = """
import dios, os, sys
with dios.connect() as node:
    group = node.create_group()
    name = node.create(dios.DURABLE_BLOB, groups=[group], data=b"kept").name
    groups = [bytes(group.name)]

def show(node):
    print(*(found.read_bytes().decode() for found in node.lookup(name, group=node.group(groups[0]))))
"""

_AGAIN = _SHARED_BLOB + "show(dios.connect(groups=groups, start=False))"

_EXECUTOR = _SHARED_BLOB + "with dios.Executor(1) as executor: show(dios.connect(groups=groups))"

_FORKED = (
    _SHARED_BLOB
    + """
if os.fork() == 0:
    with dios.connect(groups=groups) as node:
        show(node)
    sys.exit()
os.wait()
assert len(dios.connect(groups=groups).lookup(name)) == 1
"""
)

_THREADS = """
import dios, os
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    nodes = list(threads.map(lambda _: dios.connect(), range(4)))
print("kept" if len(os.listdir(os.environ["TMPDIR"])) == 1 else "several")
"""

_AT_EXIT = """
import atexit, dios
executor = dios.Executor(1)
atexit.register(lambda: print(executor.submit(str, "kept").result()))
"""

_ASYNC = (
    _SHARED_BLOB
    + """
async def main():
    async with dios.aio.open_node(groups=groups) as node:
        for found in await node.lookup(name):
            print((await found.read_bytes()).decode())
import {loop}
{loop}.run({main})
"""
)

_ASYNC_STARTS = """
import dios
async def main():
    async with dios.aio.open_node() as node:
        blob = await node.create(dios.DURABLE_BLOB, data=b"kept")
        print((await blob.read_bytes()).decode())
import {loop}
{loop}.run({main})
"""


def _run(script: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if not key.startswith("DIOS_NODE")}
    home = {"HOME": str(place), "XDG_RUNTIME_DIR": str(place / "run"), "TMPDIR": str(place / "tmp")}
    for folder in ("run", "tmp"):
        (place / folder).mkdir(mode=0o700, exist_ok=True)
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
        pytest.param(_AGAIN, "kept\n", id="a second connection"),
        pytest.param(_EXECUTOR, "kept\n", id="an executor"),
        pytest.param(_FORKED, "kept\n", id="a forked process"),
        pytest.param(_THREADS, "kept\n", id="threads"),
        pytest.param(_AT_EXIT, "kept\n", id="an executor at the end"),
        pytest.param(_ASYNC.format(loop="asyncio", main="main()"), "kept\n", id="a connection of asyncio"),
        pytest.param(_ASYNC.format(loop="trio", main="main"), "kept\n", id="a connection of trio"),
        pytest.param(_ASYNC_STARTS.format(loop="asyncio", main="main()"), "kept\n", id="asyncio"),
        pytest.param(_ASYNC_STARTS.format(loop="trio", main="main"), "kept\n", id="trio"),
    ],
)
def test_a_program_without_a_node_has_one_until_it_ends(script: str, printed: str, tmp_path: Path) -> None:
    """One line says so, and that the data end with it; neither processes nor files of the node stay."""
    done = _run(script, tmp_path)
    assert done.stdout == printed, done.stderr
    (line,) = done.stderr.splitlines()
    assert "has a private one until it ends" in line
    assert "deleted" in line
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()), "its files are deleted", 60)


@pytest.mark.parametrize("variable", ["DIOS_NODE", "DIOS_NODE_USER"])
def test_a_node_that_was_named_is_not_replaced(variable: str, tmp_path: Path) -> None:
    """Its user would look for the objects there."""
    done = _run(_USE, tmp_path, **{variable: str(tmp_path / "gone") if variable == "DIOS_NODE" else "0"})
    assert "UnreachableError" in done.stderr
    assert done.stdout == ""
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("named", ["start=False", "'./gone'"])
def test_a_program_can_refuse_to_start_a_node(named: str, tmp_path: Path) -> None:
    """``start=False`` and the place of a node report that there is none."""
    done = _run(_USE.replace("connect(", f"connect({named}"), tmp_path)
    assert "UnreachableError" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_line_names_the_node_that_crashed(tmp_path: Path) -> None:
    """A link that the default node left behind leads to the objects that its user may miss."""
    place = tmp_path / "run" / "dios"
    place.mkdir(mode=0o700, parents=True)
    place.parent.chmod(0o700)
    (place / "default.sock").symlink_to(tmp_path / "node0" / "node.sock")
    done = _run(_FORGOTTEN, tmp_path)
    assert done.stdout == "kept\n", done.stderr
    assert f"the last one was that of {tmp_path / 'node0'}" in done.stderr


def test_a_private_node_that_was_killed_is_replaced_and_the_program_is_told(tmp_path: Path) -> None:
    """The second line says that the data of the first node are gone."""
    script = """
import dios, os, signal
from dios.client import program_node
dios.connect()
os.kill(program_node._private.pid, signal.SIGKILL)
program_node._private._process.wait()
print(dios.connect().create(dios.DURABLE_BLOB, data=b"kept").read_bytes().decode())
"""
    done = _run(script, tmp_path)
    assert done.stdout == "kept\n", done.stderr
    assert [line.partition(",")[0] for line in done.stderr.splitlines()] == [
        "dios: no node was running",
        "dios: the private node of this program has ended",
    ]


def test_a_node_that_cannot_be_started_is_unreachable(tmp_path: Path) -> None:
    """A program handles one error, for whatever reason there is no node."""
    done = _run("import tempfile; tempfile.tempdir = '/nowhere'" + _USE, tmp_path)
    assert "UnreachableError" in done.stderr
    assert "/nowhere" in done.stderr


def test_the_process_of_a_task_starts_none(tmp_path: Path) -> None:
    """A task has its node; a process forked from it has none and gets none."""
    script = """
from dios.client import program_node
assert program_node.may_start(None, None)
program_node.enter_task()
import os
print(program_node.may_start(None, None), flush=True)
if os.fork() == 0:
    print(program_node.may_start(None, None), flush=True)
    os._exit(0)
os.wait()
"""
    assert _run(script, tmp_path).stdout == "False\nFalse\n"


@pytest.mark.parametrize(
    "command",
    ["ls", "group create papers", "node ls", "stat x", "run job.py", "put job.py --group x", "audit grep"],
)
def test_a_command_starts_no_node(command: str, tmp_path: Path) -> None:
    """What it made would be gone at its end, and there is nothing that it could show."""
    script = f"import sys; sys.argv = ['dios', *{command.split()}]; from dios.cli.main import main; main()"
    done = _run(script, tmp_path)
    assert done.returncode != 0
    assert "private" not in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
