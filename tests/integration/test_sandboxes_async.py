"""``dios.aio.Sandbox`` on asyncio and trio: the blocking sandbox with ``await``, and with cancellation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

import dios
from dios import aio
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox import link
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import RunningNode

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("sandbox") / "data", {})
    yield running
    running.stop()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted code may stop late, as it does on a busy machine."""
    monkeypatch.setattr(link, "GRACE_S", PATIENCE_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await anyio.sleep(0.01)


async def run(box: aio.Sandbox, source: str) -> dios.SandboxResult:
    """Run code that raises nothing."""
    result = await box.run(source)
    assert result.error is None, str(result.error)
    return result


def is_sent(box: aio.Sandbox) -> bool:
    """Return True if the order of a call was sent and is not answered."""
    return box._link is not None and box._link._present > 0


def has_printed(box: aio.Sandbox) -> bool:
    """Return True if the present cell printed."""
    return box._link is not None and any(box._link._printed._data.values())


async def cancelled(box: aio.Sandbox, source: str, when: Callable[[aio.Sandbox], bool]) -> None:
    """Run code, and cancel the run at a condition."""
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await until(lambda: when(box))
            group.cancel_scope.cancel()

        group.start_soon(cancel)
        await box.run(source)
        pytest.fail("the call was not cancelled")


@on_both_loops
async def test_the_calls_are_those_of_the_blocking_sandbox(node: RunningNode, tmp_path: Path) -> None:
    """Code runs, values and files go in and come back, errors are the same, ``reset`` forgets."""
    (tmp_path / "sales.csv").write_bytes(b"city\nRome\n" * 100_000)
    inputs: dict[str, str | Path | bytes] = {"sales": tmp_path / "sales.csv", "note": b"bytes"}
    async with aio.Sandbox(node=node.place, inputs=inputs, timeout=PATIENCE_S) as box:
        parts: list[tuple[str, str]] = []
        result = await box.run(
            "print('out')\nlen(inputs['sales'].read()), inputs['note'].read()",
            on_output=lambda *part: parts.append(part),
        )
        assert (result.stdout, result.value_repr) == ("out\n", "(1000000, b'bytes')")
        assert parts == [("stdout", "out\n")]
        await box.put("large", bytes(3_000_000))
        assert await box.get("large") == bytes(3_000_000)
        await box.put("in.csv", b"x")
        assert await box.get("in.csv") == b"x"
        await run(box, "def double(n):\n    return 2 * n\nclass Own: pass\nown = Own()")
        assert await box.call("double", n=21) == 42
        assert await box.complete("doubl") == ["double"]
        with pytest.raises(SandboxCodeError, match="ZeroDivisionError"):
            await box.put("x", Raising())
        with pytest.raises(UntrustedResultError):
            await box.get("own")
        assert (await box.run("exit(3)")).error is not None
        await box.reset()
        error = (await box.run("large")).error
        assert error is not None
        assert error.type == "NameError"


class Raising:
    """A value that raises where it is loaded."""

    def __reduce__(self) -> tuple[Callable[[int, int], object], tuple[int, int]]:
        return divmod, (1, 0)


@on_both_loops
async def test_an_open_node_is_used_and_left_open(node: RunningNode) -> None:
    """Sandboxes share a connection; references of the program are inputs; everything is given back."""
    async with aio.open_node(node.place) as opened:
        blob = await opened.create(dios.SHMEM_BLOB, data=b"shared", naming=dios.ANONYMOUS)
        async with (
            aio.Sandbox(node=opened, inputs={"x": blob}) as first,
            aio.Sandbox(node=opened, inputs={"x": blob}) as second,
        ):
            for box in (first, second):
                assert (await run(box, "inputs['x'].read()")).value_repr == "b'shared'"
        assert not opened.ends
        assert await blob.read_bytes() == b"shared"


@on_both_loops
async def test_the_loop_runs_on_and_calls_take_turns(node: RunningNode) -> None:
    """Other async tasks run while code runs; calls of several tasks run one after the other."""
    async with aio.Sandbox(node=node.place, timeout=PATIENCE_S) as box:
        await run(box, "total = 0")
        values = []

        async def add(number: int) -> None:
            values.append((await run(box, f"total += {number}\ntotal")).value_repr)

        async with anyio.create_task_group() as group:
            group.start_soon(box.run, "while True: pass")
            await until(box.interrupt)
            for number in range(5):
                group.start_soon(add, number)
        assert max(map(int, filter(None, values))) == 10
        assert not box.interrupt()


@on_both_loops
async def test_a_cancelled_run_is_interrupted(node: RunningNode, patient: None) -> None:
    """The session keeps its variables, and what the cancelled code printed is dropped."""
    async with aio.Sandbox(node=node.place, timeout=None) as box:
        await run(box, "count = 0")
        for when in (is_sent, has_printed, is_sent):
            await cancelled(box, "print('lost')\nwhile True:\n    count += 1", when)
        result = await run(box, "count >= 0")
        assert (result.stdout, result.value_repr) == ("", "True")


@on_both_loops
async def test_a_cancelled_run_that_goes_on_ends_the_session(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that ignores the interrupt loses its session; ``reset`` starts a fresh one."""
    monkeypatch.setattr(link, "GRACE_S", 0.1)
    source = (
        "while True:\n    try:\n        print()\n        while True: pass\n    except BaseException: pass"
    )
    async with aio.Sandbox(node=node.place, timeout=None) as box:
        await cancelled(box, source, has_printed)
        assert "did not stop" in box.ended
        with pytest.raises(SandboxEndedError, match="did not stop"):
            await box.run("1")
        await box.reset()
        assert (await run(box, "1")).value_repr == "1"


@on_both_loops
async def test_a_call_that_is_cancelled_before_its_turn_does_nothing(node: RunningNode) -> None:
    """It is not sent, neither at once nor after the call before it."""
    async with aio.Sandbox(node=node.place, timeout=PATIENCE_S) as box:
        await run(box, "x = 1")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await box.run("x = 2")
        async with anyio.create_task_group() as group:
            group.start_soon(box.run, "while True: pass")
            await until(lambda: is_sent(box))
            with anyio.move_on_after(0.05):
                await box.run("x = 3")
            await until(box.interrupt)
        assert (await run(box, "x")).value_repr == "1"


@on_both_loops
async def test_a_run_over_its_time_is_interrupted(node: RunningNode, patient: None) -> None:
    """``timeout`` is the sandbox's own limit: the result says so, and the session goes on."""
    async with aio.Sandbox(node=node.place, timeout=1) as box:
        error = (await box.run("while True: pass")).error
        assert error is not None
        assert (error.type, error.ended) == ("TimeoutError", False)
        assert box.ended == ""


@on_both_loops
async def test_close_ends_a_run(node: RunningNode) -> None:
    """The run of another async task returns a result that says so; then nothing runs."""
    box = aio.Sandbox(node=node.place, timeout=None)
    with pytest.raises(dios.InvalidError, match="async with"):
        await box.run("1")
    results: list[dios.SandboxResult] = []

    async def endless() -> None:
        results.append(await box.run("while True: pass"))

    async with box, anyio.create_task_group() as group:
        group.start_soon(endless)
        await until(lambda: is_sent(box))
        await box.close()
    assert results[0].error is not None
    assert results[0].error.ended
    with pytest.raises(SandboxEndedError, match="closed"):
        await box.run("1")
    with pytest.raises(SandboxEndedError, match="closed"):
        await box.reset()


@on_both_loops
async def test_a_cancelled_start_leaves_nothing(node: RunningNode) -> None:
    """A sandbox whose start is cancelled at any call gives back its streams, its task and its inputs."""
    async with aio.open_node(node.place) as opened:
        before = sum(task.state is dios.TaskState.RUNNING for task in await opened.tasks())
        for pause_ms in range(0, 10, 2):
            with anyio.move_on_after(pause_ms / 1000):
                async with aio.Sandbox(node=opened, inputs={"x": b"bytes"}):
                    pass
        assert not opened.ends
        with anyio.fail_after(PATIENCE_S):
            # A task that ended stays in the list for a while.
            while sum(task.state is dios.TaskState.RUNNING for task in await opened.tasks()) > before:  # noqa: ASYNC110
                await anyio.sleep(0.01)


PRIVATE = """
import sys, dios

async def main():
    async with dios.aio.Sandbox() as box:
        print((await box.run("1 + 2")).value_repr, flush=True)

if sys.argv[1] == "trio":
    import trio
    trio.run(main)
else:
    import asyncio
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_without_a_node_a_private_one_is_started_and_ends(loop: str, tmp_path: Path) -> None:
    """A program needs nothing set up, and leaves nothing."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("DIOS_NODE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRIVATE, loop],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment,
    )
    assert done.stdout == "3\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert "private one" in done.stderr
    assert list(tmp_path.glob("dios-*")) == []
