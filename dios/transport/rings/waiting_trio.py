"""Waiting for rings on trio; the ends themselves are in ``dios.transport.rings.waiting``.

A task without trio never imports this module.
"""

from __future__ import annotations

from typing import TypeVar

import trio

from dios.errors import TimeLimitError
from dios.transport.rings.end import RingEnd, Steps
from dios.transport.rings.reader import RingReader
from dios.transport.rings.waiting import is_ready
from dios.transport.rings.writer import RingWriter

T = TypeVar("T")


async def _run(end: RingEnd, steps: Steps[T], timeout_s: float | None = None) -> T:
    deadline = None if timeout_s is None else trio.current_time() + timeout_s
    try:
        await trio.lowlevel.checkpoint()
        while True:
            harmless = next(steps)
            if deadline is None or not harmless:
                await trio.lowlevel.wait_readable(end.fileno())
                continue
            with trio.move_on_at(deadline) as scope:
                await trio.lowlevel.wait_readable(end.fileno())
            if scope.cancelled_caught:
                raise TimeLimitError("nothing moved on the stream in time")
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        steps.close()


async def send(
    writer: RingWriter, data: bytes | bytearray | memoryview, timeout_s: float | None = None
) -> None:
    """As ``RingWriter.send``; cancelled within a message over half the ring, the stream is unusable."""
    await _run(writer, writer.send_steps(data), timeout_s)


async def receive(reader: RingReader, timeout_s: float | None = None) -> bytes:
    """As ``RingReader.receive``; cancelled within a message over half the ring, the stream is unusable."""
    return await _run(reader, reader.receive_steps(), timeout_s)


async def write(
    writer: RingWriter, data: bytes | bytearray | memoryview, timeout_s: float | None = None
) -> None:
    """As ``RingWriter.write``; cancelled, some of it may have been written."""
    await _run(writer, writer.write_steps(data), timeout_s)


async def read(reader: RingReader, size_max: int = 0, timeout_s: float | None = None) -> bytes:
    """As ``RingReader.read``."""
    return await _run(reader, reader.read_steps(size_max), timeout_s)


async def wait_ready(end: RingEnd) -> None:
    """Wait until the end can move a byte, or learn that its peer closed."""
    await trio.lowlevel.checkpoint()
    while not is_ready(end):
        if end.arm():
            try:
                await trio.lowlevel.wait_readable(end.fileno())
            finally:
                end.disarm()
