"""Hands bytes that came from another node to a task, as the object's own node would (thesis §4.8).

The core chooses the task; ``dios.host.peers`` receives the bytes. Large ones are not copied: the memory that
they were received into becomes the task's mapping or the buffer that it writes.
"""

from __future__ import annotations

from dios import limits
from dios.core.effects import AnswerReceived
from dios.errors import DamagedError
from dios.host.content.buffers import Buffers, CompletedReply, OpenBuffer, with_mapping
from dios.host.content.contents import Content, Source, size_of
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId
from dios.wire.messages import Buffer, Mapping


def answer_received(
    buffers: Buffers, effect: AnswerReceived, payload: Content | None, room: int = limits.REPLY_BYTES_MAX
) -> CompletedReply:
    """Complete a task's reply with the received bytes, at most ``room`` of them inside the message.

    Raise OutOfMemoryError or OSError; nothing has changed then.
    """
    came = _what_came(effect, payload)
    if effect.writable:
        return _write(buffers, effect, came)
    if effect.result.size and not came.length:
        return CompletedReply(effect.result)  # the task's mapping is still valid
    return _read(effect.result, came, room)


def _what_came(effect: AnswerReceived, payload: Content | None) -> Source:
    data, size = effect.result.data, effect.result.length
    if data is None and payload is None and size:
        raise DamagedError("the bytes of another node are not here any more. Read them again.")
    if data is not None or payload is None or not size:
        return Source(data or b"", 0, len(data or b""))
    return Source(payload, effect.offset, max(min(size, size_of(payload) - effect.offset), 0))


def _read(result: Buffer, came: Source, room: int) -> CompletedReply:
    content, length = came.content, came.length
    inside = limits.RECEIVED_INLINE_BYTES_MAX if isinstance(content, bytes) else limits.INLINE_BYTES_MAX
    if length <= min(inside, room):
        return CompletedReply(_inline(result, length, came.read()))
    held = (
        content.retain()
        if isinstance(content, ContentMemory)
        else ContentMemory.shadow(length).filled(came.read())
    )
    try:
        # This memory has no other users, so it can be sealed.
        held.adopt(held.size)
        ready = Buffer(result.buffer, length, result.v_r, result.v_w)
        start = came.start if held is content else 0
        return CompletedReply(with_mapping(ready, Mapping.READ_ONLY, start, held.size), (held.reader_fd(),))
    finally:
        held.release()


def _write(buffers: Buffers, effect: AnswerReceived, came: Source) -> CompletedReply:
    """Open a buffer of ``effect.length`` bytes for the task to write; bytes that did not arrive are zero."""
    buffer, result, length = BufferId(effect.result.buffer), effect.result, effect.length
    opened = buffers.get(buffer)
    if effect.reuse and opened is not None and opened.mapped and isinstance(opened.content, ContentMemory):
        opened.content.fill(0, came.content, came.start, came.length)
        return CompletedReply(Buffer(result.buffer, result.size, result.v_r, result.v_w))
    if length <= limits.INLINE_BYTES_MAX:
        data = came.read()
        buffers.put(buffer, OpenBuffer(data.ljust(length, b"\0"), 0, length, shadow=True, mapped=False))
        return CompletedReply(_inline(result, result.size, data or None))
    content = came.content
    if (
        isinstance(content, ContentMemory)
        and not content.frozen
        and not came.start
        and content.size == length
    ):
        memory = content.retain()
    else:
        memory = ContentMemory.shadow(length)
        memory.fill(0, content, came.start, came.length)
    buffers.put(buffer, OpenBuffer(memory, 0, length, shadow=True, mapped=True))
    ready = Buffer(result.buffer, result.size, result.v_r, result.v_w)
    fd = memory.writer_fd(contested=buffers.contests(effect.task))
    return CompletedReply(with_mapping(ready, Mapping.WRITABLE, 0, length), (fd,))


def _inline(result: Buffer, size: int, data: bytes | None) -> Buffer:
    return Buffer(result.buffer, size, result.v_r, result.v_w, Mapping.NONE, 0, size, data)
