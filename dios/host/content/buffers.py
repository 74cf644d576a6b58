"""Open buffers: the memory behind each, and the replies that give its bytes to a task (thesis §3.7, §4.7).

The core has already decided that an acquire is admitted or that a commit holds when these functions run.

Small bytes travel inside messages. Large ones are shared memory: a reader maps the object's immutable
content. A writer fills a private shadow memory, which becomes the content without a copy once its task has
unmapped it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dios import limits
from dios.core.effects import AnswerRead, AnswerWrite, ApplyWrite, DuplicateContent, WriteSource
from dios.errors import DamagedError, DiosError
from dios.host.content.contents import (
    Content,
    Contents,
    Source,
    compose_bytes,
    compose_memory,
    new_size,
    read_from,
    release_content,
    retain_content,
    size_of,
)
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId, ObjectId
from dios.wire.messages import Buffer, Mapping, PlainResult


class CompletedReply(NamedTuple):
    """A complete reply and its descriptors, which were made for it and are closed once it is sent."""

    result: PlainResult
    fds: tuple[int, ...] = ()


class BackgroundWork(NamedTuple):
    """Work that is too slow for the event loop: call ``run`` in a thread, then ``done`` in the loop.

    If ``run`` raises, ``failed`` is called in the loop instead of ``done``. Until then, no later effect may
    touch the object ``target``.
    """

    target: ObjectId
    run: Callable[[], None]
    done: Callable[[], CompletedReply | None]
    failed: Callable[[], None]


class OpenBuffer:
    """An open buffer: ``length`` bytes of ``content`` from ``start`` on.

    ``shadow`` marks a memory that only this buffer's task writes. ``with_mapping`` means that the task
    received the memory and maps it.
    """

    __slots__ = ("content", "length", "mapped", "shadow", "start")

    def __init__(self, content: Content, start: int, length: int, *, shadow: bool, mapped: bool) -> None:
        self.content = content
        self.start = start
        self.length = length
        self.shadow = shadow
        self.mapped = mapped


class Buffers:
    """All open buffers of this node."""

    def __init__(self, contents: Contents) -> None:
        self._contents: Final = contents
        self._open: Final[dict[BufferId, OpenBuffer]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def close(self, buffer: BufferId) -> None:
        """Close a buffer: release its content. Do nothing if it is not open."""
        opened = self._open.pop(buffer, None)
        if opened is not None:
            release_content(opened.content)

    def close_all(self) -> None:
        """Close all buffers, at the node's end."""
        for buffer in list(self._open):
            self.close(buffer)

    def has(self, buffer: BufferId, length: int) -> bool:
        """Return True if the buffer is open and has at least ``length`` bytes."""
        opened = self._open.get(buffer)
        return opened is not None and length <= opened.length

    def source(self, source: WriteSource, payload: Content | None) -> Source:
        """Return the bytes of a write. ``payload`` are the bytes of its event. Raise DamagedError."""
        if payload is not None:
            return Source(payload, 0, min(source.length, size_of(payload)))
        if source.content_of:
            content = self._contents.current(source.content_of)
            return Source(content, 0, min(source.length, size_of(content)))
        if not source.buffer:
            return Source(b"", 0, 0)
        opened = self._open.get(source.buffer)
        if opened is None or source.length > opened.length:
            raise DamagedError(f"a write of {source.length} bytes names a buffer that is smaller or not open")
        return Source(opened.content, opened.start, source.length)

    # -- reading ------------------------------------------------------------------------------------
    def read(self, effect: AnswerRead, room: int = limits.REPLY_BYTES_MAX) -> CompletedReply | BackgroundWork:
        """Complete the reply to a read, with at most ``room`` bytes inside the message.

        Raise DamagedError, OutOfMemoryError or OSError; nothing has changed then.
        """
        target = effect.object
        if self._contents.is_slow(target):
            return self._read_slowly(effect, room)
        content = self._contents.current(target)
        offset, length, result = effect.offset, effect.length, effect.result
        if offset + length > size_of(content) and not (isinstance(content, ContentMemory) and content.raw):
            raise DamagedError(
                f"cannot read {length} bytes at {offset}: the object's content has {size_of(content)} bytes"
            )
        buffer = BufferId(result.buffer)
        inline = length <= limits.INLINE_BYTES_MAX and length <= room
        if buffer and effect.reuse and self._is_reusable(buffer, content, offset, length, inline=inline):
            return CompletedReply(result)
        if inline:
            data = read_from(content, offset, length)
            if buffer:
                self.put(
                    buffer, OpenBuffer(retain_content(content), offset, length, shadow=False, mapped=False)
                )
            return CompletedReply(
                Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.NONE, 0, length, data)
            )
        memory = self._as_memory(target, content, offset + length)
        fd = memory.reader_fd()
        if buffer:
            self.put(buffer, OpenBuffer(memory.retain(), offset, length, shadow=False, mapped=True))
        return CompletedReply(
            Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.READ_ONLY, offset, memory.size),
            (fd,),
        )

    def _read_slowly(self, effect: AnswerRead, room: int) -> BackgroundWork:
        """Read a large stored value for the first time; this reads all of it, to check its digest."""
        found: list[Content] = []

        def done() -> CompletedReply | None:
            self._contents.adopt_stored(effect.object, found.pop())
            answered = self.read(effect, room)
            return answered if isinstance(answered, CompletedReply) else None

        def failed() -> None:
            while found:
                release_content(found.pop())

        return BackgroundWork(
            effect.object, lambda: found.append(self._contents.fetch(effect.object)), done, failed
        )

    def _is_reusable(
        self, buffer: BufferId, content: Content, offset: int, length: int, *, inline: bool
    ) -> bool:
        opened = self._open.get(buffer)
        if opened is None or opened.content is not content or opened.shadow:
            return False
        if opened.start != offset or opened.length < length or opened.mapped is inline:
            return False
        # Bytes copied into a message are outdated when a raw memory changes; a mapping never is.
        return not (inline and isinstance(content, ContentMemory) and content.raw)

    def _as_memory(self, target: ObjectId, content: Content, size: int) -> ContentMemory:
        """Return a memory for a reader to map; create it if the content is bytes that exceed a message."""
        if isinstance(content, bytes):
            content = ContentMemory.version(size_of(content), self._contents.pool).filled(content)
            self._contents.set(target, content)
        elif content.raw:
            content.grow(size)
        return content

    def get(self, buffer: BufferId) -> OpenBuffer | None:
        """Return an open buffer, or None if no buffer of that number is open."""
        return self._open.get(buffer)

    def put(self, buffer: BufferId, opened: OpenBuffer) -> None:
        """Open a buffer. It replaces an open buffer of the same number."""
        before = self._open.get(buffer)
        self._open[buffer] = opened
        if before is not None:
            release_content(before.content)

    # -- writing ------------------------------------------------------------------------------------
    def write(self, effect: AnswerWrite) -> CompletedReply | BackgroundWork:
        """Complete the reply to an acquire for writing. Raise OutOfMemoryError, DamagedError or OSError."""
        if effect.raw:
            return self._write_raw(effect)
        if effect.reuse:
            opened = self._open.get(BufferId(effect.result.buffer))
            if opened is not None:
                return self._reuse_for_write(effect, opened)
        return self._open_for_write(effect)

    def _write_raw(self, effect: AnswerWrite) -> CompletedReply | BackgroundWork:
        buffer, result = BufferId(effect.result.buffer), effect.result
        content = self._contents.peek(effect.object)
        if (
            isinstance(content, ContentMemory)
            and not content.raw
            and content.size > limits.LOOP_COPY_BYTES_MAX
        ):
            return self._make_raw(effect, content)
        before = content.size if isinstance(content, ContentMemory) and content.raw else -1
        memory = self._contents.raw(effect.object, effect.offset + effect.length)
        opened = self._open.get(buffer)
        same = (
            effect.reuse
            and opened is not None
            and opened.content is memory
            and opened.start == effect.offset
            and memory.size == before
        )
        if same:
            return CompletedReply(result)
        fd = memory.writer_fd()
        self.put(buffer, OpenBuffer(memory.retain(), effect.offset, effect.length, shadow=False, mapped=True))
        return CompletedReply(with_mapping(result, Mapping.WRITABLE, effect.offset, memory.size), (fd,))

    def _make_raw(self, effect: AnswerWrite, content: ContentMemory) -> BackgroundWork:
        """Give a large object that shares another's content a memory of its own, for its first writer."""
        size, kept = content.size, content.retain()
        made = ContentMemory.own(max(size, effect.offset + effect.length))

        def done() -> CompletedReply | None:
            kept.release()
            self._contents.set(effect.object, made)
            answered = self._write_raw(effect)
            return answered if isinstance(answered, CompletedReply) else None

        def failed() -> None:
            kept.release()
            made.release()

        return BackgroundWork(effect.object, lambda: made.fill(0, kept, 0, size), done, failed)

    def duplicate(self, effect: DuplicateContent) -> BackgroundWork | None:
        """Give a new object the bytes of another object. Raise OutOfMemoryError or DamagedError."""
        contents = self._contents
        content = contents.current(effect.source)
        if isinstance(content, bytes) or not content.raw:
            contents.set(effect.object, retain_content(content))
            return None
        return self._copied(
            effect.object,
            contents.raw(effect.object, content.size),
            None,
            0,
            Source(content, 0, content.size),
        )

    def _reuse_for_write(self, effect: AnswerWrite, opened: OpenBuffer) -> CompletedReply | BackgroundWork:
        content = opened.content
        if effect.blank and (not opened.shadow or isinstance(content, bytes) or not content.frozen):
            return CompletedReply(effect.result)
        if isinstance(content, bytes) or content.frozen or not opened.shadow:
            # A frozen shadow has become the object's content, so the next write needs a new shadow.
            return self._open_for_write(effect)
        return self._prefill(effect, content, lambda: CompletedReply(effect.result), fresh=False)

    def _open_for_write(self, effect: AnswerWrite) -> CompletedReply | BackgroundWork:
        buffer, length, result = BufferId(effect.result.buffer), effect.length, effect.result
        if length <= limits.INLINE_BYTES_MAX:
            data = b"" if effect.blank else self._old_bytes(effect)
            opened = OpenBuffer(data.ljust(length, b"\0"), 0, length, shadow=True, mapped=False)
            self.put(buffer, opened)
            return CompletedReply(
                Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.NONE, 0, length, data or None)
            )
        memory = ContentMemory.shadow(length)
        self.put(buffer, OpenBuffer(memory, 0, length, shadow=True, mapped=True))

        def answer() -> CompletedReply:
            # Create the descriptor last, so that none is created for a reply that is never sent.
            return CompletedReply(with_mapping(result, Mapping.WRITABLE, 0, length), (memory.writer_fd(),))

        return answer() if effect.blank else self._prefill(effect, memory, answer, fresh=True)

    def _old_bytes(self, effect: AnswerWrite) -> bytes:
        content = self._contents.current(effect.object)
        available = min(max(size_of(content) - effect.offset, 0), effect.length)
        return read_from(content, effect.offset, available) if available else b""

    def _prefill(
        self, effect: AnswerWrite, shadow: ContentMemory, answer: Callable[[], CompletedReply], *, fresh: bool
    ) -> CompletedReply | BackgroundWork:
        """Copy the object's bytes into the shadow, and zeros beyond its end."""
        contents, target = self._contents, effect.object
        size = self._known_size(target)
        held: list[Content] = [shadow.retain()]
        if size is not None:
            held.append(retain_content(contents.current(target)))

        def run() -> None:
            content = held[1] if len(held) > 1 else contents.fetch(target)
            if len(held) == 1:
                held.append(content)
            available = min(max(size_of(content) - effect.offset, 0), effect.length)
            shadow.fill(0, content, effect.offset, available)
            if not fresh:
                shadow.wipe(available)

        def free() -> None:
            while held:
                release_content(held.pop())

        def done() -> CompletedReply | None:
            free()
            return answer()

        work = BackgroundWork(target, run, done, free)
        if size is None or min(size, effect.length) > limits.LOOP_COPY_BYTES_MAX:
            return work
        try:
            run()
        finally:
            free()
        return answer()

    def _known_size(self, target: ObjectId) -> int | None:
        return None if self._contents.is_slow(target) else size_of(self._contents.current(target))

    # -- committing ---------------------------------------------------------------------------------
    def apply(self, effect: ApplyWrite, payload: Content | None) -> BackgroundWork | None:
        """Apply a write to a volatile object. Raise OutOfMemoryError, and then nothing has changed."""
        target, order = effect.object, effect.source
        source = self.source(order, payload)
        base = self._contents.current(target)
        if isinstance(base, ContentMemory) and base.raw:
            base.grow(order.offset + source.length)
            if not effect.raw:
                return self._copied(target, base, None, order.offset, source)
            return None
        total = new_size(size_of(base), order.offset, source.length, replace=order.replace)
        if total <= limits.INLINE_BYTES_MAX:
            old = read_from(base, 0, min(size_of(base), total)) if size_of(base) else b""
            self._contents.set(target, compose_bytes(old, order.offset, source.read(), replace=order.replace))
            return None
        if total == source.length and self._adopt_source(target, source):
            return None
        made = ContentMemory.version(total, self._contents.pool)
        return self._copied(target, made, base, order.offset, source, replace=order.replace)

    def _adopt_source(self, target: ObjectId, source: Source) -> bool:
        """Make the source's own memory the content, without copying, if possible. Return True if it was."""
        content = source.content
        if isinstance(content, bytes) or content.raw or source.start:
            return False
        if content.frozen:
            if content.size != source.length:
                return False
        elif not content.adopt(source.length):
            return False
        self._contents.set(target, content.retain())
        return True

    def _copied(
        self,
        target: ObjectId,
        made: ContentMemory,
        base: Content | None,
        offset: int,
        source: Source,
        *,
        replace: bool = False,
    ) -> BackgroundWork | None:
        """Fill ``made`` and make it current. With ``base`` None, write into the object's own raw memory."""
        held = [retain_content(source.content)] + ([] if base is None else [retain_content(base)])

        def run() -> None:
            if base is None:
                made.fill(offset, source.content, source.start, source.length)
            else:
                compose_memory(made, base, offset, source, replace=replace)

        def free() -> None:
            while held:
                release_content(held.pop())

        def failed() -> None:
            free()
            if base is not None:
                made.release()

        def done() -> CompletedReply | None:
            free()
            if base is not None:
                self._contents.set(target, made)
            return None

        if made.size > limits.LOOP_COPY_BYTES_MAX:
            return BackgroundWork(target, run, done, failed)
        try:
            run()
        except (OSError, DiosError):
            failed()
            raise
        done()
        return None


def with_mapping(result: Buffer, mapping: Mapping, start: int, length: int) -> Buffer:
    """Return a buffer reply with a mapping of ``length`` bytes in which the buffer begins at ``start``."""
    return Buffer(result.buffer, result.size, result.v_r, result.v_w, mapping, start, length)
