"""A hostile session that answers a handle: what it sends is an error of that handle, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from dios.client.sync.node import Node
from dios.errors import ClosedError, InvalidError, ProtocolError, TimeLimitError
from dios.lib.executor import frames
from dios.lib.sandbox.blocking_steps import finish
from dios.lib.sandbox.errors import ProgramDetachedError, SandboxEndedError
from dios.lib.sandbox.processes.channels import Channel
from dios.lib.sandbox.processes.handles import KeptOutput
from dios.lib.sandbox.processes.records import (
    OUTPUT_BYTES_MAX,
    RECORD,
    RECORD_BYTES_MAX,
    Detached,
    Ended,
    Failed,
    ProgramRow,
    Programs,
)
from dios.limits import KIB, SANDBOX_PROGRAMS_MAX
from tests.support.host import ring_ends

PATIENCE_S = 10.0


class Hostile:
    """A channel whose other ends are here."""

    def __init__(self) -> None:
        self.control, self.status, self.input, self.output = (ring_ends.Ends(512 * KIB) for _ in range(4))
        self.channel = Channel(
            [], (self.control.writer, self.status.reader, self.input.writer, self.output.reader)
        )

    def record(self) -> object:
        """The next record as its owner gets it."""
        return finish(_no_node, self.channel.record(PATIENCE_S))

    def part(self) -> object:
        """The next piece of output as its owner gets it."""
        return finish(_no_node, self.channel.part(PATIENCE_S))

    def close(self) -> None:
        """Close all ends."""
        for ends in (self.control, self.status, self.input, self.output):
            ends.writer.close()
            ends.reader.close()
            ends.ring.close()


def _no_node() -> Node:
    return cast("Node", None)


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    """A channel."""
    own = Hostile()
    yield own
    own.close()


def encoded(*fields: Any) -> bytes:  # type: ignore[explicit-any]  # whatever a session sends
    """A record of these fields."""
    return frames.frame(RECORD, msgspec.msgpack.encode(fields))


ROW = (1, "cat", 0, None, True, False)


@pytest.mark.parametrize(
    "data",
    [
        frames.frame(RECORD, b"\xc1"),
        frames.frame(RECORD, b"\x91" * 5_000 + b"\x00"),
        frames.frame(7, b""),
        encoded(2, 256),
        encoded(2, -129),
        encoded(2, "0"),
        encoded(9),
        encoded(3, "x" * 10_000, ""),
        encoded(3, "", "x" * 100_000),
        encoded(5, [ROW] * (2 * SANDBOX_PROGRAMS_MAX + 1)),
        encoded(5, [(-1, *ROW[1:])]),
        encoded(5, [(1, "x" * 1_000, *ROW[2:])]),
        (RECORD_BYTES_MAX + 1).to_bytes(4, "little") + b"\x01",
    ],
    ids=lambda data: data[:24].hex(),
)
def test_a_record_that_no_session_sends_is_an_error(hostile: Hostile, data: bytes) -> None:
    """Nothing of it is used."""
    hostile.status.writer.write(data, PATIENCE_S)
    with pytest.raises(ProtocolError):
        hostile.record()


@pytest.mark.parametrize(
    "data",
    [
        frames.frame(0, b"x"),
        frames.frame(3, b"x"),
        (OUTPUT_BYTES_MAX + 1).to_bytes(4, "little") + b"\x01",
    ],
)
def test_output_that_no_session_sends_is_an_error(hostile: Hostile, data: bytes) -> None:
    """There are two streams, and pieces are bounded."""
    hostile.output.writer.write(data, PATIENCE_S)
    with pytest.raises(ProtocolError):
        hostile.part()


def test_records_in_pieces_are_records(hostile: Hostile) -> None:
    """The bytes of a frame come one after the other."""
    rows = Programs([ProgramRow(*ROW)])
    data = frames.frame(RECORD, msgspec.msgpack.encode(rows)) + encoded(2, -9)
    hostile.status.writer.write(data[:3], PATIENCE_S)
    with pytest.raises(TimeLimitError):
        finish(_no_node, hostile.channel.record(0))
    hostile.status.writer.write(data[3:], PATIENCE_S)
    assert [hostile.record(), hostile.record()] == [rows, Ended(-9)]
    hostile.status.writer.write(frames.frame(RECORD, msgspec.msgpack.encode(Failed("a", "b"))), PATIENCE_S)
    assert hostile.record() == Failed("a", "b")


def test_the_end_of_a_session_is_no_end_of_a_program(hostile: Hostile) -> None:
    """Output ends, and the status is unknown."""
    hostile.output.writer.close()
    assert hostile.part() is None
    hostile.status.writer.close()
    with pytest.raises(SandboxEndedError):
        hostile.record()


def test_another_handle_is_named(hostile: Hostile) -> None:
    """The error says that the program goes on."""
    hostile.status.writer.write(frames.frame(RECORD, msgspec.msgpack.encode(Detached())), PATIENCE_S)
    with pytest.raises(ProgramDetachedError):
        hostile.record()


def test_kept_output_is_bounded(hostile: Hostile) -> None:
    """A session that sends for ever fills no memory of its owner."""
    kept = KeptOutput(1_000)
    for _ in range(100):
        hostile.output.writer.write(frames.frame(1, bytes(OUTPUT_BYTES_MAX)), PATIENCE_S)
        part = finish(_no_node, hostile.channel.part(PATIENCE_S))
        assert part is not None
        kept.add(part)
    assert len(kept._data["stdout"]) == 1_001
    assert "is cut" in kept.texts()[0]


def test_errors_of_arguments_name_them() -> None:
    """A closed stream is one of them."""
    own = Hostile()
    own.close()
    with pytest.raises(SandboxEndedError):
        own.record()
    with pytest.raises((InvalidError, ClosedError)):
        own.input.writer.write(b"x", PATIENCE_S)
