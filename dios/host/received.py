"""Bytes of another node, handed to a task here as if its own node had them (thesis §4.8).

Not for: which task gets them (the core), or how they came (``dios.host.peers``). They are copied nowhere: the
memory that they were received into becomes the task's mapping, or the buffer it writes.
"""

from __future__ import annotations

from dios import limits
from dios.host.buffers import Answered, Buffers, OpenBuffer, mapped
from dios.host.contents import Source, read_from, size_of
from dios.host.memories import Memory
from dios.ids import BufferId
from dios.wire.messages import Buffer, Mapping


def read_received(result: Buffer, source: Source) -> Answered:
    """Complete a read's reply; with nothing new the task's mapping stands. Raises OSError."""
    content, length = source.content, min(source.length, size_of(source.content))
    if source.length and not length:
        return Answered(result)
    if isinstance(content, bytes) or length <= limits.INLINE_BYTES_MAX or not content.adopt(content.size):
        data = read_from(content, 0, length)
        return Answered(Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.NONE, 0, length, data))
    ready = Buffer(result.buffer, length, result.v_r, result.v_w)
    return Answered(mapped(ready, Mapping.READ_ONLY, 0, content.size), (content.reader_fd(),))


def write_received(buffers: Buffers, result: Buffer, source: Source, *, reuse: bool) -> Answered:
    """Complete the reply to an acquire for writing, in a buffer of ``source.length`` bytes.

    What did not come is zero. Raises OutOfMemoryError or OSError.
    """
    buffer, content, length = BufferId(result.buffer), source.content, source.length
    came = min(length, size_of(content))
    opened = buffers.get(buffer)
    if reuse and opened is not None and isinstance(opened.content, Memory) and not opened.content.frozen:
        opened.content.fill(0, content, 0, came)
        return Answered(result)
    if length <= limits.INLINE_BYTES_MAX:
        data = read_from(content, 0, came)
        buffers.put(buffer, OpenBuffer(data.ljust(length, b"\0"), 0, length, shadow=True, mapped=False))
        return Answered(
            Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.NONE, 0, length, data or None)
        )
    if isinstance(content, Memory) and not content.frozen and content.size == length:
        memory = content.retain()
    else:
        memory = Memory.shadow(length)
        memory.fill(0, content, 0, came)
    buffers.put(buffer, OpenBuffer(memory, 0, length, shadow=True, mapped=True))
    return Answered(mapped(result, Mapping.WRITABLE, 0, length), (memory.writer_fd(),))
