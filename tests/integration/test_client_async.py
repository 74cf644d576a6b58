"""The face on trio against a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

import dios
from dios import limits
from dios.client.trio.node import AsyncNode, AsyncReference
from tests.support.node.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests here."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@pytest.fixture
async def node(running: RunningNode) -> AsyncIterator[AsyncNode]:
    """A connection to it."""
    async with dios.open_node(running.place, groups=[]) as connected:
        yield connected


async def test_objects(node: AsyncNode) -> None:
    """Create, look up, read and write, awaited."""
    group = await node.create_group()
    blob = await node.create(dios.DURABLE_BLOB, groups=[group], data=b"hello")
    assert blob.name is not None
    found = await node.lookup(blob.name, group=group)
    assert [ref.size for ref in found] == [5]
    async with blob.read(dios.MRSW) as request:
        assert sum(request.view) == sum(b"hello")
    async with blob.write(limits.MIB, dios.EXCL) as request:
        request.view[:5] = b"HELLO"
    assert (await blob.read_bytes(5), blob.size) == (b"HELLO", limits.MIB)
    await blob.delete()


async def test_task_and_its_console(node: AsyncNode) -> None:
    """A task is run and waited for while its console is read."""
    task = await node.run(b"print('one')\nprint('two')\n")
    printed = b""
    async for part in await task.console():
        printed += part
    assert printed == b"one\ntwo\n"
    assert (await task.wait(30)).ok


async def test_many_readers_share_one_connection(node: AsyncNode) -> None:
    """A hundred tasks of one program use the node at once, each with its own answers."""

    async def use(number: int) -> None:
        data = b"%d" % number * 1000
        blob: AsyncReference = await node.create(dios.SHMEM_BLOB, data=data)
        for _ in range(5):
            assert await blob.read_bytes() == data
        await blob.close()

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(use, number)


async def test_cancelled_wait_leaves_the_connection_usable(node: AsyncNode) -> None:
    """A waiting call that is cancelled waits at the node no longer, and others go on."""
    with trio.move_on_after(0.01):
        await node.next_event()
    with trio.fail_after(30):
        while (await node.info()).counts["waiting"]:
            await trio.lowlevel.checkpoint()


async def test_select_with_a_stream(node: AsyncNode) -> None:
    """A task's message through a stream ends a select that waits for other objects too."""
    stream = await node.create_stream()
    program = b"import dios\ndios.connect().outputs[0].send(b'one')\n"
    task = await node.run(program, outputs=[stream.restrict("write")])
    assert await node.select([task, stream], timeout=30) is stream
    assert [message async for message in stream] == [b"one"]
    assert await node.select([task], timeout=30) is task


async def test_task_uses_the_same_face(node: AsyncNode) -> None:
    """A program on trio inside a task works with its own node."""
    program = b"""
import dios, trio

async def main():
    async with dios.open_node() as node:
        async with node.inputs[0].read() as request:
            print(bytes(request.view), await node.select([node.inputs[0]]) is node.inputs[0])

trio.run(main)
print(dios.connect().inputs[0].read_bytes())
"""
    blob = await node.create(dios.SHMEM_BLOB, data=b"abc")
    task = await node.run(program, inputs=[blob.restrict("read")])
    printed = b""
    async for part in await task.console():
        printed += part
    assert printed == b"b'abc' True\nb'abc'\n"


async def test_node_that_is_not_there(tmp_path: Path) -> None:
    """Opening a node where none listens raises UnreachableError, and no group of exceptions."""
    with pytest.raises(dios.UnreachableError):
        async with dios.open_node(tmp_path / "none.sock", groups=[]):
            pass
