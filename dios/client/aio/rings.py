"""Waiting for the ends of streams on the event loop; the ends are in ``dios.transport.rings.waiting``."""

from __future__ import annotations

from typing import TypeVar

from dios.client.aio.event_loop import EventLoop
from dios.errors import TimeLimitError
from dios.limits import STREAM_MESSAGE_BYTES_MAX
from dios.transport.rings.end import RingEnd, Steps
from dios.transport.rings.reader import RingReader
from dios.transport.rings.waiting import is_ready
from dios.transport.rings.writer import RingWriter

T = TypeVar("T")


async def _run(loop: EventLoop, end: RingEnd, steps: Steps[T], timeout_s: float | None = None) -> T:
    try:
        await loop.checkpoint()
        return await run_steps(loop, end, steps, timeout_s)
    finally:
        steps.close()


async def run_steps(loop: EventLoop, end: RingEnd, steps: Steps[T], timeout_s: float | None = None) -> T:
    """Take the steps of an end, and wait between them; steps that need not wait cannot be cancelled."""
    deadline = None if timeout_s is None else loop.now() + timeout_s
    try:
        while True:
            harmless = next(steps)
            if deadline is None or not harmless:
                await loop.wait_readable(end.fileno())
            elif not await loop.wait_readable_until(end.fileno(), deadline):
                raise TimeLimitError("nothing moved on the stream in time")
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        steps.close()


async def send(
    loop: EventLoop,
    writer: RingWriter,
    data: bytes | bytearray | memoryview,
    timeout_s: float | None = None,
) -> None:
    """As ``RingWriter.send``; cancelled within a message over half the ring, the stream is unusable."""
    await _run(loop, writer, writer.send_steps(data), timeout_s)


async def receive(loop: EventLoop, reader: RingReader, timeout_s: float | None = None) -> bytes:
    """As ``RingReader.receive``; cancelled within a message over half the ring, the stream is unusable."""
    return await _run(loop, reader, reader.receive_steps(STREAM_MESSAGE_BYTES_MAX), timeout_s)


async def write(
    loop: EventLoop,
    writer: RingWriter,
    data: bytes | bytearray | memoryview,
    timeout_s: float | None = None,
) -> None:
    """As ``RingWriter.write``; cancelled, some of it may have been written."""
    await _run(loop, writer, writer.write_steps(data), timeout_s)


async def read(
    loop: EventLoop, reader: RingReader, size_max: int = 0, timeout_s: float | None = None
) -> bytes:
    """As ``RingReader.read``."""
    return await _run(loop, reader, reader.read_steps(size_max), timeout_s)


async def wait_ready(loop: EventLoop, end: RingEnd) -> None:
    """Wait until the end can move a byte, or learn that its peer closed."""
    await loop.checkpoint()
    while not is_ready(end):
        if end.arm():
            try:
                await loop.wait_readable(end.fileno())
            finally:
                end.disarm()
