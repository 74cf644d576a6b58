"""The async client against a real node, on both event loops."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import dios
from dios import limits
from dios.client.aio.node import AsyncNode, AsyncReference
from tests.support.client.loops import LOOPS, on_both_loops, run
from tests.support.node.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests here."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@on_both_loops
async def test_objects(running: RunningNode) -> None:
    """Create, look up, read and write, awaited."""
    async with dios.open_node(running.place, groups=[]) as node:
        group = await node.create_group()
        blob = await node.create(dios.DURABLE_BLOB, groups=[group], data=b"hello")
        assert blob.name is not None
        references = await node.lookup(blob.name, group=group)
        assert [ref.size for ref in references] == [5]
        async with blob.read(dios.MRSW) as request:
            assert sum(request.view) == sum(b"hello")
        async with blob.write(limits.MIB, dios.EXCL) as request:
            request.view[:5] = b"HELLO"
        assert (await blob.read_bytes(5), blob.size) == (b"HELLO", limits.MIB)
        await blob.delete()


@on_both_loops
async def test_repeated_reads_let_others_run(running: RunningNode) -> None:
    """Reads that take no call return the bytes, and a loop of them does not keep other tasks from running."""
    async with dios.open_node(running.place, groups=[]) as node:
        blob = await node.create(dios.SHMEM_BLOB, groups=[await node.create_group()], data=b"hello")
        assert await blob.read_bytes() == b"hello"
        before, turns = blob.v_r, 0

        async def other() -> None:
            nonlocal turns
            while turns < 5:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            for _ in range(500):
                assert bytes(await blob.view_bytes()) == await blob.read_bytes() == b"hello"
            assert (turns, blob.v_r) == (5, before)
        async with blob.read(dios.MRSW) as request:
            assert bytes(request.view) == b"hello"
        await blob.write_bytes(b"other")
        assert await blob.read_bytes() == b"other"
        assert blob.v_r == before + 1002


@on_both_loops
async def test_task_and_its_console(running: RunningNode) -> None:
    """A task is run and waited for while its console is read."""
    async with dios.open_node(running.place, groups=[]) as node:
        task = await node.run(b"print('one')\nprint('two')\n")
        printed = b""
        async for part in await task.console():
            printed += part
        assert printed == b"one\ntwo\n"
        assert (await task.wait(30)).ok


@on_both_loops
async def test_many_readers_share_one_connection(running: RunningNode) -> None:
    """A hundred tasks of one program use the node at once, each with its own answers."""
    async with dios.open_node(running.place, groups=[]) as node:

        async def use(number: int) -> None:
            data = b"%d" % number * 1000
            blob: AsyncReference = await node.create(dios.SHMEM_BLOB, data=data)
            for _ in range(5):
                assert await blob.read_bytes() == data
            await blob.close()

        async with anyio.create_task_group() as group_of_tasks:
            for number in range(100):
                group_of_tasks.start_soon(use, number)


@on_both_loops
async def test_more_calls_than_may_wait_at_once(running: RunningNode) -> None:
    """Calls beyond those that may wait at the node wait in the client; some are cancelled."""
    async with dios.open_node(running.place, groups=[]) as node:
        stream = await node.create_stream()
        program = b"import dios; dios.connect().inputs[0].reader.receive()"
        task = await node.run(program, inputs=[stream.restrict("read")])
        ended: list[bool] = []

        async def wait(scope: anyio.CancelScope) -> None:
            with scope:
                ended.append((await task.wait()).ok)

        scopes = [anyio.CancelScope() for _ in range(limits.PENDING_PER_TASK_MAX + 40)]
        async with anyio.create_task_group() as waiting:
            for scope in scopes:
                waiting.start_soon(wait, scope)
            blob = await node.create(dios.SHMEM_BLOB, data=b"0")
            assert await blob.read_bytes() == b"0"
            for scope in scopes[::20]:
                scope.cancel()
            assert not ended
            await stream.send(b"end")
        assert ended == [True] * (len(scopes) - len(scopes[::20]))


@on_both_loops
async def test_cancelled_wait_leaves_the_connection_usable(running: RunningNode) -> None:
    """A waiting call that is cancelled waits at the node no longer, and others go on."""
    async with dios.open_node(running.place, groups=[]) as node:
        with anyio.move_on_after(0.01):
            await node.next_event()
        with anyio.fail_after(30):
            while (await node.info()).counts["waiting"]:
                await anyio.lowlevel.checkpoint()


@on_both_loops
async def test_select_with_a_stream(running: RunningNode) -> None:
    """A task's message through a stream ends a select that waits for other objects too."""
    async with dios.open_node(running.place, groups=[]) as node:
        stream, gate = await node.create_stream(), await node.create_stream()
        # It waits before it ends, because its end would be ready, too.
        program = (
            b"import dios\nnode = dios.connect()\nnode.outputs[0].send(b'one')\nnode.inputs[0].receive()\n"
        )
        task = await node.run(program, inputs=[gate.restrict("read")], outputs=[stream.restrict("write")])
        assert await node.select([task, stream], timeout=30) is stream
        await gate.send(b"end")
        assert [message async for message in stream] == [b"one"]
        assert await node.select([task], timeout=30) is task


@pytest.mark.parametrize("inside", ["trio", "asyncio"])
@on_both_loops
async def test_task_uses_the_same_client(running: RunningNode, inside: str) -> None:
    """A program on an event loop inside a task uses its own node; the blocking client goes on after it."""
    program = f"""
import dios, {inside}

async def main():
    async with dios.aio.open_node() as node:
        async with node.inputs[0].read() as request:
            print(bytes(request.view), await node.select([node.inputs[0]]) is node.inputs[0])

{inside}.run(main{"()" if inside == "asyncio" else ""})
print(dios.connect().inputs[0].read_bytes())
"""
    async with dios.open_node(running.place, groups=[]) as node:
        blob = await node.create(dios.SHMEM_BLOB, data=b"abc")
        task = await node.run(program.encode(), inputs=[blob.restrict("read")])
        printed = b""
        async for part in await task.console():
            printed += part
        assert printed == b"b'abc' True\nb'abc'\n"


@pytest.mark.parametrize(("inside", "other"), [("trio", "asyncio"), ("asyncio", "trio")])
@on_both_loops
async def test_only_the_loop_in_use_is_loaded(running: RunningNode, inside: str, other: str) -> None:
    """A task on one event loop does not load the other one."""
    program = f"""
import sys, dios, {inside}

async def main():
    async with dios.aio.open_node() as node:
        await node.create(dios.SHMEM_BLOB)

{inside}.run(main{"()" if inside == "asyncio" else ""})
print({other!r} in sys.modules)
"""
    async with dios.open_node(running.place, groups=[]) as node:
        task = await node.run(program.encode())
        printed = b""
        async for part in await task.console():
            printed += part
        assert printed == b"False\n"


@on_both_loops
async def test_node_that_is_not_there(tmp_path: Path) -> None:
    """Opening a node where none listens raises UnreachableError, and no group of exceptions."""
    with pytest.raises(dios.UnreachableError):
        async with dios.open_node(tmp_path / "none.sock", groups=[]):
            pass


def test_no_event_loop(running: RunningNode) -> None:
    """Without a loop of asyncio or trio, the client names the blocking one."""
    opening = dios.open_node(running.place, groups=[]).__aenter__()
    with pytest.raises(dios.InvalidError, match="blocking client"):
        opening.send(None)


def test_asyncio_cancels_calls_in_its_own_ways(running: RunningNode) -> None:
    """A time limit, a cancelled task and a failed group of tasks each leave the connection usable."""

    async def fail() -> None:
        raise LookupError

    async def fail_together(node: AsyncNode) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(node.next_event())
            group.create_task(fail())

    async def main() -> None:
        async with dios.aio.open_node(running.place, groups=[]) as node:
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await node.next_event()
                waiting = asyncio.create_task(node.next_event())
                await node.info()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                failing = asyncio.create_task(fail_together(node))
                with pytest.raises(ExceptionGroup):
                    await failing
            async with asyncio.timeout(30):
                while (await node.info()).counts["waiting"]:
                    pass

    asyncio.run(main())


@pytest.mark.extended(keep=1)
@pytest.mark.long
@pytest.mark.parametrize("kind", ["blob", "stream"])
@on_both_loops
async def test_calls_cancelled_at_any_moment(running: RunningNode, kind: str) -> None:
    """Calls of all sizes that are cancelled at random change no answer of others, and keep nothing."""
    order = random.Random(5)  # noqa: S311 - a fixed order
    async with dios.open_node(running.place, groups=[]) as node:
        blob = await node.create(dios.SHMEM_BLOB, data=b"steady")
        before = (await node.info()).counts

        async def disturb() -> None:
            for _ in range(40):
                with anyio.move_on_after(order.random() * 0.003):
                    if kind == "stream":
                        async with await node.create_stream() as stream:
                            await node.select([stream])
                    else:
                        blob = await node.create(dios.SHMEM_BLOB, data=bytes(order.choice((1, 900_000))))
                        async with blob:
                            await blob.read_bytes()

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(disturb)
            for _ in range(100):
                assert await blob.read_bytes() == b"steady"
        with anyio.fail_after(30):
            after = (await node.info()).counts
            while any(after[count] != before[count] for count in ("references", "buffers", "waiting")):
                after = (await node.info()).counts


@pytest.mark.parametrize("option", [(), ("--trio",)], ids=["asyncio", "trio"])
def test_the_example_counts(running: RunningNode, tmp_path: Path, option: tuple[str, ...]) -> None:
    """examples/async_words.py counts the words of each file on both loops."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("word " * number)
    script = Path(__file__).parents[2] / "examples" / "async_words.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script, *option, "0.txt", "1.txt", "2.txt"],
        cwd=tmp_path,
        env={**os.environ, "DIOS_NODE": running.place},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0.txt", "1", "1.txt", "2", "2.txt"]


def test_the_futures_of_an_executor(running: RunningNode) -> None:
    """``dios.aio.result`` awaits them on both loops; asyncio's own ways work, too."""
    with dios.Executor(1, node=running.place) as executor:
        for loop in LOOPS:
            results: list[int] = []

            async def main() -> None:
                results.append(await dios.aio.result(executor.submit(pow, 2, 5)))  # noqa: B023 - run at once
                with pytest.raises(ZeroDivisionError):
                    await dios.aio.result(executor.submit(divmod, 1, 0))

            run(loop, main)
            assert results == [32]

        async def own_ways() -> tuple[int, int]:
            wrapped = await asyncio.wrap_future(executor.submit(pow, 2, 6))
            return wrapped, await asyncio.get_running_loop().run_in_executor(executor, pow, 2, 7)

        assert asyncio.run(own_ways()) == (64, 128)
