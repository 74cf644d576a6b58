"""Orders to a session: those that it could not decode are refused before it gets them."""

from __future__ import annotations

from typing import cast

import pytest

from dios.errors import InvalidError
from dios.lib.executor import frames
from dios.lib.executor.archives import Archive
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.link import SessionLink
from dios.lib.sandbox.protocol import (
    CallFunction,
    CompleteName,
    DescribeName,
    ForkSession,
    GetFile,
    GetValue,
    ListFolder,
    MakeFolder,
    MakeLink,
    PutFile,
    PutValue,
    RemovePath,
    RunCell,
    RunProgram,
    SendChanges,
    SessionTask,
)

RIGHT = (
    RunCell("1"),
    PutValue("a", b"", [Archive("a", "b", b"")]),
    GetValue("a"),
    CallFunction("a", b"", []),
    PutFile("a", cast("bytes", bytearray(b"1"))),
    GetFile("a"),
    CompleteName("a"),
    ForkSession(),
    RunProgram(["a"], b"", "", {"A": "1"}),
    ListFolder("a"),
    RemovePath("a"),
    MakeFolder("a"),
    DescribeName("a", source=True),
    SendChanges(),
    MakeLink("a", "b"),
)


def test_every_order_can_be_sent() -> None:
    """The list has all kinds of them."""
    assert {type(task) for task in RIGHT} == set(SessionTask.__args__)
    for task in RIGHT:
        frame = SessionLink(SandboxBounds())._framed(task)
        assert len(list(frames.FrameBuffer(1000).feed(frame))) == 1


def wrong_orders() -> list[SessionTask]:
    """Every order with each of its fields replaced by a number, and values of other types in their lists."""
    orders: list[SessionTask] = [
        RunProgram(["a"], b"", "", cast("dict[str, str]", {"A": 1})),
        RunProgram(cast("list[str]", [b"a"]), b"", "", None),
        GetFile(cast("str", b"a")),
    ]
    for task in RIGHT:
        names = type(task).__struct_fields__
        values = {name: getattr(task, name) for name in names}
        orders.extend(type(task)(**values | {name: 1.5}) for name in names)
    return orders


@pytest.mark.parametrize("task", wrong_orders(), ids=str)
def test_an_order_with_a_value_of_another_type_is_refused(task: SessionTask) -> None:
    """A session that gets it would end."""
    with pytest.raises(InvalidError, match="wrong type"):
        SessionLink(SandboxBounds())._framed(task)
