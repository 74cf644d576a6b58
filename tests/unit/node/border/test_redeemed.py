"""A token's reader gets the bytes of a sound replica, and those of the next one when a node fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from blake3 import blake3

from dios import limits
from dios.client.ops.cluster import Gathered
from dios.errors import DamagedError, DiosError, UnreachableError
from dios.node.border.redeemed import send_object
from dios.wire.border import BorderAnswer, FilePart

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncReference

PART = limits.BORDER_PART_BYTES
GOOD = bytes(range(256)) * (PART // 256) + b"the rest"
DIGEST = blake3(GOOD).digest()


class Replica:
    """A replica, which may fail from a position on."""

    def __init__(
        self,
        node: str,
        content: bytes = GOOD,
        v_w: int = 1,
        error: DiosError | None = None,
        fails_at: int = 0,
    ) -> None:
        self.node = node
        self.fingerprint = "3f9a1c"
        self.content = content
        self.size = len(content)
        self.v_w = v_w
        self.error = error
        self.fails_at = fails_at

    async def read_bytes(self, size: int, offset: int) -> bytes:
        """Read a part."""
        if self.error is not None and offset >= self.fails_at:
            raise self.error
        return self.content[offset : offset + size]


async def sent(*replicas: Replica, incomplete: bool = False, digest: bytes = DIGEST) -> bytes:
    """The bytes that the reader gets."""
    got = bytearray()

    async def send(answer: BorderAnswer) -> None:
        assert isinstance(answer, FilePart)
        got.extend(answer.data)

    gathered = cast("Gathered[AsyncReference]", Gathered(list(replicas), incomplete=incomplete))
    await send_object("a.txt", gathered, len(GOOD), digest, send)
    return bytes(got)


@pytest.mark.parametrize(
    "bad",
    [
        Replica("n1", error=DamagedError("disk")),
        Replica("n1", error=UnreachableError("dead"), fails_at=PART),
        Replica("n1", GOOD[::-1], v_w=2),
        Replica("n1", GOOD + b"!"),
    ],
)
async def test_the_next_replica_goes_on(bad: Replica, caplog: pytest.LogCaptureFixture) -> None:
    """Damaged, silent, or with other bytes: nothing is sent twice, and the node logs the bad one."""
    assert await sent(bad, Replica("n2")) == GOOD
    assert "the replica of 3f9a1c on n1" in caplog.text
    assert "a.txt" not in caplog.text
    assert "it was read from n2" in caplog.text


async def test_without_a_sound_replica_the_reader_is_told() -> None:
    """The error names the node; a node that does not answer may have another one."""
    bad = Replica("n1", GOOD[::-1], v_w=2)
    with pytest.raises(DamagedError, match="on n1 has other bytes"):
        await sent(bad)
    with pytest.raises(UnreachableError, match="on n1 has other bytes"):
        await sent(bad, incomplete=True)


async def test_the_right_bytes_are_sent_whatever_the_version() -> None:
    """And without a digest nothing is compared."""
    assert await sent(Replica("n1", v_w=5)) == GOOD
    other = GOOD[::-1]
    assert await sent(Replica("n1", other, v_w=5), digest=b"") == other
