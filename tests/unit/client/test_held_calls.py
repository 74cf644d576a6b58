"""Calls that are made again because too many wait at the node."""

from __future__ import annotations

import anyio
import pytest

from dios.client import session
from dios.client.aio.channel import AsyncChannel
from dios.client.aio.connection import AsyncConnection
from dios.client.session import pause_s
from dios.client.sync.connection import Connection
from dios.errors import Code
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from tests.support.client.fake_node import FakeNode
from tests.support.client.loops import on_both_loops

FULL = messages.Failure(int(Code.ENOBUFS), "full")
DONE = messages.Done(1)


class FullNode(FakeNode):
    """A node that has no room for a call because of other clients, until it was made four times.

    It answers calls of ``Delete`` alone.
    """

    def __init__(self) -> None:
        super().__init__(self._answer_of)

    def _answer_of(self, call: AnyCall) -> AnyResult | None:
        if not isinstance(call, messages.Delete):
            return None
        return DONE if self.calls.count(call) == 4 else FULL


@pytest.mark.parametrize("others", [False, True])
def test_pauses_grow_to_a_bound(*, others: bool) -> None:
    """No pause is shorter than the one before, and none is longer than a second."""
    pauses = [pause_s(refused, 0, others=others) for refused in range(100)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] <= pauses[-1] == 1


def test_many_held_calls_do_not_flood_the_node() -> None:
    """However many calls are held, about a hundred are made again in a second."""
    assert 10_000 / pause_s(0, 10_000, others=True) <= 100


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that a test can wait for."""
    monkeypatch.setattr(session, "_PAUSE_LONGEST_S", 0.01)


@pytest.mark.usefixtures("short")
def test_a_call_that_is_refused_alone_is_made_again() -> None:
    """No call of this client is answered meanwhile."""
    with FullNode() as fake:
        connection = Connection(ClientChannel(fake.peer))
        connection.hello((), "test")
        assert connection.call(messages.Delete(7))[0] == DONE
        connection.close()
    assert fake.calls == [messages.Delete(7)] * 4


@pytest.mark.usefixtures("short")
@on_both_loops
async def test_an_async_call_that_is_refused_is_made_again() -> None:
    """Alone, and next to a call that is never answered."""
    with FullNode() as fake:
        connection = AsyncConnection(AsyncChannel(fake.peer))
        await connection.hello((), "test")
        assert (await connection.call(messages.Delete(7)))[0] == DONE
        async with anyio.create_task_group() as group:
            group.start_soon(connection.call, messages.Stat(7))
            await anyio.wait_all_tasks_blocked()
            assert (await connection.call(messages.Delete(8)))[0] == DONE
            assert connection.held_calls == 0
            group.cancel_scope.cancel()
        connection.close()
