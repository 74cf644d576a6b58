"""Waiting for rings on trio; the ends themselves are in ``dios.transport.rings.waiting``.

A task without trio never imports this module.
"""

from __future__ import annotations

import trio

from dios.transport.rings.end import RingEnd
from dios.transport.rings.reader import RingReader
from dios.transport.rings.waiting import is_ready


async def receive(reader: RingReader, size_max: int) -> bytes:
    """As ``RingReader.receive``; cancelled within a message over half the ring, the stream is unusable.

    A message over ``size_max`` bytes is a ProtocolError.
    """
    steps = reader.receive_steps(size_max)
    try:
        await trio.lowlevel.checkpoint()
        while True:
            next(steps)
            await trio.lowlevel.wait_readable(reader.fileno())
    except StopIteration as done:
        message: bytes = done.value
        return message
    finally:
        steps.close()


async def wait_ready(end: RingEnd) -> None:
    """Wait until the end can move a byte, or learn that its peer closed."""
    await trio.lowlevel.checkpoint()
    while not is_ready(end):
        if end.arm():
            try:
                await trio.lowlevel.wait_readable(end.fileno())
            finally:
                end.disarm()
