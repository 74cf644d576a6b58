"""Network streams and logs of the async client, on both event loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anyio
import pytest

import dios
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import running_node

PATIENCE_S = 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running node."""
    with running_node(tmp_path_factory.mktemp("async") / "node") as node:
        yield node.place


@on_both_loops
async def test_a_server_and_its_clients(place: str) -> None:
    """One task serves every connection that comes while others talk to it; each end is told."""
    with anyio.fail_after(PATIENCE_S):
        async with dios.open_node(place, groups=()) as node, anyio.create_task_group() as group:
            acceptor = await node.listen_tcp("127.0.0.1:0")

            async def serve(connection: dios.AsyncTcpConnection) -> None:
                async for part in connection:
                    await connection.send(part.upper())
                await connection.send_eof()

            async def front() -> None:
                async for connection in acceptor:
                    group.start_soon(serve, connection)

            group.start_soon(front)
            for number in range(3):
                async with await node.connect_tcp(acceptor.address) as client:
                    await client.send(b"number %d" % number)
                    await client.send_eof()
                    assert b"".join([part async for part in client]) == b"NUMBER %d" % number
            group.cancel_scope.cancel()


@on_both_loops
async def test_datagrams(place: str) -> None:
    """Two sockets of one node send each other datagrams."""
    with anyio.fail_after(PATIENCE_S):
        async with dios.open_node(place, groups=()) as node:
            sender, other = await node.bind_udp("127.0.0.1:0"), await node.bind_udp("127.0.0.1:0")
            await other.reader()
            await sender.send(b"hello", other.address)
            assert await other.receive() == (b"hello", sender.address)


@on_both_loops
async def test_a_log_is_followed(place: str) -> None:
    """A follower waits at the end, and gets each entry when it is appended."""
    with anyio.fail_after(PATIENCE_S):
        async with dios.open_node(place, groups=()) as node, anyio.create_task_group() as group:
            log = await node.create_log()
            got: list[bytes] = []

            async def follow() -> None:
                async with contextlib.aclosing(log.follow()) as entries:
                    async for entry in entries:
                        got.append(entry.data)
                        if entry.data == b"last":
                            return

            group.start_soon(follow)
            assert await log.append(b"first") == 1
            assert await log.append_all([b"second", b"last"]) == 3
        assert got == [b"first", b"second", b"last"]
