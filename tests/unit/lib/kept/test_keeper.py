"""A keeper says of draining nodes only what it has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import trio

from dios.errors import UnreachableError
from dios.lib.kept.keeper import NodeHistory, _LeadingKeeper
from dios.lib.kept.records import KeptPromise, KeptState
from dios.lib.user_records.leader import Leader

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode

PROMISE = KeptPromise(1, b"g" * 32, b"t" * 32, "papers", 2)


class SilentNode:
    """A node on which the group cannot be looked up, or is gone."""

    def __init__(self) -> None:
        self.failure: UnreachableError | None = UnreachableError("no answer")

    async def group(self, name: bytes) -> AsyncGroup | None:
        """Return None for a group that is gone; raise what ``failure`` says."""
        if self.failure is not None:
            raise self.failure
        return None


def test_a_list_that_was_not_read_settles_no_drain() -> None:
    """Before the lists are read, and while one cannot be, a drain is not settled; a gone group has none."""
    node = SilentNode()
    leader = cast("Leader[KeptState]", None)
    state = KeptState({PROMISE.key: PROMISE})

    async def play() -> list[bool]:
        async with trio.open_nursery() as nursery:
            keeper = _LeadingKeeper(
                leader, cast("AsyncNode", node), lambda _: None, nursery, NodeHistory(1.0), 1
            )
            checked = [keeper.leaving.checked]
            await keeper._list_objects(state)
            checked.append(keeper.leaving.checked)
            node.failure = None
            await keeper._list_objects(state)
            return [*checked, keeper.leaving.checked]

    assert trio.run(play) == [False, False, True]
