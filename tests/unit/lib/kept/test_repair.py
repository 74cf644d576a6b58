"""The bytes of a damaged object come from a replica that has exactly these bytes, or from none."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from blake3 import blake3

from dios import limits
from dios.client.ops.cluster import Gathered
from dios.errors import ClosedError, DamagedError, DiosError, NotPermittedError
from dios.lib.kept.repair import Wanted, fetch
from dios.wire.types import ObjectType, Semantics

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode

NAME, HOME, PAPERS = b"n" * 32, b"h" * 32, b"p" * 32
GOOD = bytes(range(256)) * (limits.KEPT_CHUNK_BYTES // 256) + b"the rest"
OTHER = bytes(len(GOOD))


class Replica:
    """A replica on a node, with its bytes or the error of reading them."""

    type = ObjectType.DURABLE_BLOB
    zombie = False

    def __init__(
        self, object_id: int, node: str, content: bytes | DiosError, secrecy: tuple[str, ...] = ()
    ) -> None:
        self.object_id = object_id
        self.node = node
        self.content = content
        self.secrecy = secrecy
        hidden = 0 if secrecy else len(GOOD)
        self.size = hidden if isinstance(content, DiosError) else len(content)
        self.is_open = True

    @asynccontextmanager
    async def read(self, _: Semantics, *, size: int, offset: int) -> AsyncIterator[SimpleNamespace]:
        """Read a part of it."""
        if isinstance(self.content, DiosError):
            raise self.content
        yield SimpleNamespace(view=memoryview(self.content)[offset : offset + size])

    async def close(self) -> None:
        """Close the reference."""
        self.is_open = False


class OwnersNode:
    """A session of the owner, who is in the group PAPERS."""

    def __init__(self, *there: Replica, incomplete: bool = False) -> None:
        self.there = there
        self.incomplete = incomplete

    async def group(self, name: bytes) -> str | None:
        """Return the group."""
        return "papers" if name == PAPERS else None

    async def lookup(self, name: bytes, *, group: str) -> Gathered[Replica]:
        """Return the replicas of the name."""
        assert (name, group) == (NAME, "papers")
        return Gathered(list(self.there), incomplete=self.incomplete)


async def fetched(path: Path, node: OwnersNode, *groups: bytes, data: bytes = GOOD) -> tuple[str, bool]:
    """The reason of a failure, and True if the file has the right bytes."""
    waited: list[int] = []

    def delay(count: int) -> float:
        waited.append(count)
        return 0

    wanted = Wanted(1, NAME, groups or (HOME, PAPERS), len(data), blake3(data).digest())
    fd = os.open(path / "file", os.O_RDWR | os.O_CREAT)
    try:
        reason = await fetch(cast("AsyncNode", node), wanted, fd, delay)
    finally:
        os.close(fd)
    assert not any(reference.is_open for reference in node.there) or PAPERS not in wanted.groups
    assert all(count <= limits.KEPT_CHUNK_BYTES for count in waited)
    return reason, (path / "file").read_bytes() == data


async def test_the_first_replica_with_the_right_bytes_serves(tmp_path: Path) -> None:
    """One that is damaged, too, one with other bytes, and one of another size are passed over."""
    node = OwnersNode(
        Replica(2, "n2", DamagedError("bad")),
        Replica(3, "n3", OTHER),
        Replica(4, "n4", GOOD[1:]),
        Replica(5, "n5", GOOD),
    )
    assert await fetched(tmp_path, node) == ("", True)


async def test_the_damaged_object_itself_is_never_asked(tmp_path: Path) -> None:
    """Nor is anything found without a group that the owner can present."""
    reason = "no other replica of it was found"
    assert await fetched(tmp_path, OwnersNode(Replica(1, "n1", GOOD))) == (reason, False)
    assert await fetched(tmp_path, OwnersNode(Replica(2, "n2", GOOD)), HOME) == (reason, False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(OTHER, "has other bytes"), (GOOD[1:], "has other bytes"), (DamagedError("bad"), "cannot be read: bad")],
)
async def test_the_reason_names_the_node(tmp_path: Path, content: bytes | DiosError, reason: str) -> None:
    """So that a person can look there."""
    assert (await fetched(tmp_path, OwnersNode(Replica(2, "n2", content))))[
        0
    ] == f"the replica on n2 {reason}"


async def test_the_reason_is_the_refusal_of_a_label_of_others(tmp_path: Path) -> None:
    """The hidden size is none."""
    replica = Replica(2, "n2", NotPermittedError("it is labelled"), ("uid:4242/board",))
    reason = "the replica on n2 cannot be read: it is labelled"
    assert (await fetched(tmp_path, OwnersNode(replica)))[0] == reason


async def test_a_silent_node_may_have_a_replica(tmp_path: Path) -> None:
    """The reason says so, and a later attempt may succeed."""
    reason = "a node that may have a replica does not answer"
    assert (await fetched(tmp_path, OwnersNode(incomplete=True)))[0] == reason


async def test_the_end_of_the_session_is_passed_on(tmp_path: Path) -> None:
    """It says nothing about replicas."""
    with pytest.raises(ClosedError):
        await fetched(tmp_path, OwnersNode(Replica(2, "n2", ClosedError("the node ends"))))
