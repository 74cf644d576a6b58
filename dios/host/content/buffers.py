"""Open buffers: the memory behind each, and the replies that give its bytes to a task (thesis §3.7, §4.7).

The core has already decided that an acquire is admitted or that a commit holds when these functions run.

Small bytes travel inside messages. Large ones are shared memory: a reader maps the object's immutable
content. A writer fills a private shadow memory, which becomes the content without a copy once its task has
unmapped it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from dios import limits
from dios.core.effects import AnswerRead, AnswerWrite, ApplyWrite, DuplicateContent, WriteSource
from dios.errors import DamagedError, DiosError
from dios.host.content.contents import (
    Content,
    Contents,
    MemoryNotes,
    MemorySource,
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
from dios.host.handover import format as form
from dios.ids import BufferId, ObjectId, TaskId
from dios.transport.memory.reclaimer import RECLAIM_BYTES_MIN, RECLAIMER
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

    def __init__(self, contents: Contents, contests: Callable[[TaskId], bool] = lambda _: False) -> None:
        self._contents: Final = contents
        self.contests: Final = contests
        """Return True for the program of another user, outside the sandbox (``ContentMemory.contested``)."""
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

    def hand_over(self, memories: MemoryNotes) -> tuple[form.OpenBuffer, ...]:
        """Describe the open buffers for the successor of this process."""
        return tuple(
            form.OpenBuffer(
                buffer,
                memories.note(open_buffer.content),
                open_buffer.start,
                open_buffer.length,
                open_buffer.shadow,
                open_buffer.mapped,
            )
            for buffer, open_buffer in self._open.items()
        )

    def take_over(self, buffers: Iterable[form.OpenBuffer], memories: MemorySource) -> None:
        """Continue with the open buffers of the predecessor."""
        for buffer in buffers:
            opened = OpenBuffer(
                memories.content(buffer.content),
                buffer.start,
                buffer.length,
                shadow=buffer.shadow,
                mapped=buffer.mapped,
            )
            self.put(BufferId(buffer.buffer), opened)

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
        if offset + length > size_of(content):
            raise DamagedError(
                f"cannot read {length} bytes at {offset}: the object's content has {size_of(content)} bytes"
            )
        buffer = BufferId(result.buffer)
        inline = length <= limits.INLINE_BYTES_MAX and length <= room
        if effect.known:
            if buffer:
                opened = OpenBuffer(retain_content(content), offset, length, shadow=False, mapped=not inline)
                self.put(buffer, opened)
            return CompletedReply(result)
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
        if isinstance(content, bytes) and size_of(content) <= limits.INLINE_BYTES_MAX:
            return self._read_small_by_mapping(effect, content)
        memory = self._as_memory(target, content)
        if memory.stored and self.contests(effect.task):
            return self._read_copy(effect, memory)
        fd = memory.reader_fd()
        if buffer:
            self.put(buffer, OpenBuffer(memory.retain(), offset, length, shadow=False, mapped=True))
        return CompletedReply(
            Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.READ_ONLY, offset, memory.size),
            (fd,),
        )

    def read_next_to(self, effect: AnswerRead, most: int) -> tuple[Buffer, bytes] | None:
        """Complete the reply to a read of another node's task, with at most ``most`` bytes next to it.

        Return None for a reply that ``read`` must complete: with its bytes inside, with more bytes, or
        without any. Raise DamagedError or OSError; nothing has changed then.
        """
        target, offset, length = effect.object, effect.offset, effect.length
        if not limits.INLINE_BYTES_MAX < length <= most or effect.known or effect.reuse:
            return None
        if self._contents.is_slow(target):
            return None
        content = self._contents.current(target)
        if offset + length > size_of(content):
            return None
        data, result = read_from(content, offset, length), effect.result
        if result.buffer:
            opened = OpenBuffer(retain_content(content), offset, length, shadow=False, mapped=True)
            self.put(BufferId(result.buffer), opened)
        return Buffer(result.buffer, length, result.v_r, result.v_w, length=length), data

    def _read_copy(self, effect: AnswerRead, content: ContentMemory) -> CompletedReply | BackgroundWork:
        """Give another user's program a copy of a file of the store.

        A reader of the file itself could hold its lock with a direct read (see ``ContentMemory.contested``),
        and the store would wait for ever when it deletes the file.
        """
        offset, length, result = effect.offset, effect.length, effect.result
        held = content.retain()
        try:
            memory = ContentMemory.version(length, self._contents.pool)
        except BaseException:
            held.release()
            raise

        def failed() -> None:
            memory.release()
            held.release()

        def done() -> CompletedReply:
            try:
                fd, size = memory.reader_fd(), memory.size
                if result.buffer:
                    opened = OpenBuffer(held.retain(), offset, length, shadow=False, mapped=True)
                    self.put(BufferId(result.buffer), opened)
            finally:
                failed()
            return CompletedReply(
                Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.READ_ONLY, 0, size), (fd,)
            )

        def run() -> None:
            memory.fill(0, held, offset, length)

        if length > limits.LOOP_COPY_BYTES_MAX:
            return BackgroundWork(effect.object, run, done, failed)
        try:
            run()
        except BaseException:
            failed()
            raise
        return done()

    def _read_small_by_mapping(self, effect: AnswerRead, content: bytes) -> CompletedReply:
        """Give bytes for which the message has no room. Only the reader has their memory, not the object.

        Otherwise reads of small objects would take a descriptor of the node for each.
        """
        offset, length, result = effect.offset, effect.length, effect.result
        memory = ContentMemory.version(size_of(content), self._contents.pool).filled(content)
        try:
            fd, size = memory.reader_fd(), memory.size
        finally:
            memory.release()
        if result.buffer:
            opened = OpenBuffer(content, offset, length, shadow=False, mapped=True)
            self.put(BufferId(result.buffer), opened)
        return CompletedReply(
            Buffer(result.buffer, length, result.v_r, result.v_w, Mapping.READ_ONLY, offset, size), (fd,)
        )

    def _read_slowly(self, effect: AnswerRead, room: int) -> BackgroundWork:
        """Read a large stored value for the first time; this reads all of it, to check its digest."""
        fetched: list[Content] = []

        def done() -> CompletedReply | None:
            self._contents.adopt_stored(effect.object, fetched.pop())
            answered = self.read(effect, room)
            return answered if isinstance(answered, CompletedReply) else None

        def failed() -> None:
            while fetched:
                release_content(fetched.pop())

        return BackgroundWork(
            effect.object, lambda: fetched.append(self._contents.fetch(effect.object)), done, failed
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

    def _as_memory(self, target: ObjectId, content: Content) -> ContentMemory:
        """Return a memory for a reader to map; create it if the content is bytes that exceed a message."""
        if isinstance(content, bytes):
            content = ContentMemory.version(size_of(content), self._contents.pool).filled(content)
            self._contents.set(target, content)
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
        end = effect.offset + effect.length
        if (
            isinstance(content, ContentMemory)
            and not (content.raw and end <= content.size)
            and content.size > limits.LOOP_COPY_BYTES_MAX
        ):
            return self._make_raw(effect, content)
        memory = self._contents.raw(effect.object, end)
        opened = self._open.get(buffer)
        if effect.reuse and opened is not None and opened.content is memory and opened.start == effect.offset:
            return CompletedReply(result)
        fd = memory.writer_fd(contested=self.contests(effect.task))
        self.put(buffer, OpenBuffer(memory.retain(), effect.offset, effect.length, shadow=False, mapped=True))
        return CompletedReply(with_mapping(result, Mapping.WRITABLE, effect.offset, memory.size), (fd,))

    def _make_raw(self, effect: AnswerWrite, content: ContentMemory) -> BackgroundWork:
        """Give a large object a memory of its own, or a larger one."""
        size, kept = content.size, content.retain()
        memory = ContentMemory.own(max(size, effect.offset + effect.length))

        def done() -> CompletedReply | None:
            kept.release()
            self._contents.set(effect.object, memory)
            answered = self._write_raw(effect)
            return answered if isinstance(answered, CompletedReply) else None

        def failed() -> None:
            kept.release()
            memory.release()

        return BackgroundWork(effect.object, lambda: memory.fill(0, kept, 0, size), done, failed)

    def duplicate(self, effect: DuplicateContent) -> BackgroundWork | None:
        """Give a new object the bytes of another object. Raise OutOfMemoryError or DamagedError."""
        contents = self._contents
        if contents.is_slow(effect.source):
            return self._duplicated_slowly(effect)
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

    def _duplicated_slowly(self, effect: DuplicateContent) -> BackgroundWork:
        """Give a new object the bytes of a large stored value that must be checked first."""
        fetched: list[Content] = []

        def done() -> CompletedReply | None:
            content = fetched.pop()
            self._contents.set(effect.object, retain_content(content))
            if self._contents.is_stored(effect.source):
                self._contents.adopt_stored(effect.source, content)
            else:
                release_content(content)
            return None

        def failed() -> None:
            while fetched:
                release_content(fetched.pop())

        return BackgroundWork(
            effect.object, lambda: fetched.append(self._contents.fetch(effect.source)), done, failed
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
            fd = memory.writer_fd(contested=self.contests(effect.task))
            return CompletedReply(with_mapping(result, Mapping.WRITABLE, 0, length), (fd,))

        if not effect.blank:
            return self._prefill(effect, memory, answer, fresh=True)
        if length >= RECLAIM_BYTES_MIN and RECLAIMER.is_behind:
            # Writers must not fill memory faster than that of earlier versions is freed.
            return BackgroundWork(effect.object, RECLAIMER.wait_for_room, answer, lambda: None)
        return answer()

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
        slow = size is None or min(size, effect.length) > limits.LOOP_COPY_BYTES_MAX
        if not fresh:
            slow = slow or effect.length > RECLAIM_BYTES_MIN  # pages beyond the object's end are freed
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
        if slow:
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
        base = self._contents.peek(target)
        if base is None:
            # Nothing of the former bytes is left after a write of the whole object.
            base = b"" if order.replace and not order.offset else self._contents.current(target)
        if isinstance(base, ContentMemory) and base.raw:
            end = order.offset + source.length
            if end > base.size:
                return self._copied(target, ContentMemory.own(end), base, order.offset, source)
            if source.content is base and source.start == order.offset:
                return None  # the bytes are in place
            # They came with the message, or are in the memory that was the object's own before it grew.
            return self._copied(target, base, None, order.offset, source)
        total = new_size(size_of(base), order.offset, source.length, replace=order.replace)
        if total <= limits.INLINE_BYTES_MAX:
            old = read_from(base, 0, min(size_of(base), total)) if size_of(base) else b""
            self._contents.set(target, compose_bytes(old, order.offset, source.read(), replace=order.replace))
            return None
        if total == source.length:
            if self._is_slow_to_adopt(source):
                return self._adopted_slowly(target, source)
            if self._adopt_source(target, source):
                return None
        memory = ContentMemory.version(total, self._contents.pool)
        return self._copied(target, memory, base, order.offset, source, replace=order.replace)

    @staticmethod
    def _is_slow_to_adopt(source: Source) -> bool:
        """Return True if the source may become the content, and the kernel must look at many pages first."""
        content = source.content
        return (
            isinstance(content, ContentMemory)
            and not (content.frozen or content.raw or content.contested or source.start)
            and content.size == source.length >= RECLAIM_BYTES_MIN
        )

    def _adopted_slowly(self, target: ObjectId, source: Source) -> BackgroundWork:
        """Make the source's memory the content, or copy it if its task still maps it for writing."""
        content = retain_content(source.content)
        assert isinstance(content, ContentMemory)  # noqa: S101 - for the type checker
        copies: list[ContentMemory] = []

        def run() -> None:
            if not content.adopt(source.length):
                RECLAIMER.wait_for_room()
                copy = ContentMemory.version(source.length, self._contents.pool)
                copies.append(copy)
                copy.fill(0, content, 0, source.length)

        def done() -> CompletedReply | None:
            self._contents.set(target, copies.pop() if copies else content.retain())
            content.release()
            return None

        def failed() -> None:
            content.release()
            while copies:
                copies.pop().release()

        return BackgroundWork(target, run, done, failed)

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
        memory: ContentMemory,
        base: Content | None,
        offset: int,
        source: Source,
        *,
        replace: bool = False,
    ) -> BackgroundWork | None:
        """Fill ``memory`` and make it current. With ``base`` None, write into the object's own raw memory."""
        held = [retain_content(source.content)] + ([] if base is None else [retain_content(base)])

        def run() -> None:
            if base is None:
                memory.fill(offset, source.content, source.start, source.length)
            else:
                compose_memory(memory, base, offset, source, replace=replace)

        def free() -> None:
            while held:
                release_content(held.pop())

        def failed() -> None:
            free()
            if base is not None:
                memory.release()

        def done() -> CompletedReply | None:
            free()
            if base is not None:
                self._contents.set(target, memory)
            return None

        if memory.size > limits.LOOP_COPY_BYTES_MAX:
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
