"""Paused sandboxes: all their processes stand still, and go on; limits and ends hold meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import dios
import dios.aio
from dios.errors import InvalidError
from dios.lib.sandbox.errors import SandboxEndedError
from tests.support.layouts import busybox_layout
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.running_node import RunningNode, running_node, wait_until

COUNT = "i=0; while true; do i=$((i+1)); echo $i >/tmp/count; done"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a busybox."""
    runtimes_or_skip()
    return f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}:tiny"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    runtimes_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime="any") as running:
        yield running


def states_below(node: RunningNode, word: str) -> list[str]:
    """The states of the processes of a node with a word in their command lines."""
    states = []
    for pid in node.descendants():
        try:
            if word in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8"):
                states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0])
        except OSError:
            continue
    return states


def present_sessions(node: dios.Node) -> list[dios.Status]:
    """The sandboxes that have not ended."""
    return [row for row in node.tasks() if row.label == "sandbox" and row.state.name != "ENDED"]


def test_all_processes_stand_still_and_go_on(node: RunningNode, image: str) -> None:
    """Those that a program has left behind, too; other calls are refused until then."""
    with dios.Sandbox(node=node.place, image=image, timeout=20) as box:
        box.exec("sh", "-c", f"({COUNT}) >/dev/null 2>&1 &")
        box.pause()
        box.pause()
        assert box.paused
        wait_until(lambda: set(states_below(node, "tmp/count")) == {"T"}, "it is stopped")
        for call in (lambda: box.run("1"), lambda: box.exec("echo"), box.fork, box.files.list):
            with pytest.raises(InvalidError, match="is paused"):
                call()
        box.resume()
        box.resume()
        box.run(
            "import os, time\nos.remove('/tmp/count')\n"
            "while not os.path.exists('/tmp/count'): time.sleep(0.01)"
        )
        assert box.exec("echo", "on").stdout == "on\n"


def test_a_paused_sandbox_counts_and_ends(node: RunningNode, image: str) -> None:
    """Nothing of it is left after close, and reset starts a fresh session that is not paused."""
    box = dios.Sandbox(node=node.place, image=image)
    box.exec("sh", "-c", "sleep 87654321 &")
    box.pause()
    with dios.connect(node.place) as control:
        assert [row.state.name for row in present_sessions(control)] == ["PAUSED"]
    box.reset()
    assert box.run("1").value_repr == "1"
    box.exec("sh", "-c", "sleep 87654321 &")
    box.pause()
    box.close()
    wait_until(lambda: not states_below(node, "87654321"), "nothing of it is left")


def test_a_pure_sandbox_pauses_too(node: RunningNode) -> None:
    """It keeps its variables; one that was ended meanwhile says so."""
    with dios.Sandbox(node=node.place) as box:
        box.run("x = 1")
        box.pause()
        box.resume()
        assert box.run("x").value_repr == "1"
        box.pause()
        with dios.connect(node.place) as control:
            (row,) = present_sessions(control)
            os.kill(row.pid, signal.SIGKILL)
            wait_until(lambda: not present_sessions(control), "the node knows its end")
        with pytest.raises(SandboxEndedError):
            box.resume()


def test_another_program_may_let_it_go_on(node: RunningNode) -> None:
    """As `dios resume` does; resume() has nothing left to do then."""
    with dios.Sandbox(node=node.place) as box:
        box.pause()
        box._link.running_task.resume()  # type: ignore[union-attr]  # it is open
        box.resume()
        assert box.run("1").ok


async def test_async_sandboxes_pause(node: RunningNode) -> None:
    """The calls are awaited."""
    async with dios.aio.Sandbox(node=node.place) as box:
        await box.pause()
        with trio.move_on_after(0.1), pytest.raises(InvalidError, match="is paused"):
            await box.run("1")
        await box.resume()
        assert (await box.run("1")).ok
