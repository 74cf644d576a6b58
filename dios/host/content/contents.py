"""The current content of every object on this node, by object id (thesis §3.7, Buffering).

The core decides who may see a content, and from which version on. Open buffers are in
``dios.host.content.buffers``.

A current content is immutable, except a raw one. Small contents are ``bytes``; larger ones are a
``ContentMemory``: an anonymous memory, or a file of the store. A stored content is opened on first use and
may be dropped from memory again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from dios import limits
from dios.errors import BadReferenceError, DiosError
from dios.host.content.memories import ContentMemory
from dios.host.handover import format as form
from dios.ids import ObjectId, PayloadId
from dios.store.protocol import ContentState, InlineContent, Store
from dios.transport.memory.pool import MemoryPool

Content: TypeAlias = bytes | ContentMemory
_ENTRY_BYTES: Final = 250
"""The memory for an entry of the cache, in addition to its bytes."""

Payloads: TypeAlias = Mapping[PayloadId, Content]
"""The bytes that came with an event, by their ids."""


def size_of(content: Content) -> int:
    """Return the number of bytes of a content."""
    return len(content) if isinstance(content, bytes) else content.size


def read_from(content: Content, offset: int, length: int) -> bytes:
    """Return a copy of part of a content. All of a ``bytes`` content is returned without a copy."""
    if isinstance(content, bytes):
        if offset == 0 and length == len(content):
            return content
        return content[offset : offset + length]
    return content.read(offset, length)


def retain_content(content: Content) -> Content:
    """Add a user of the content."""
    return content if isinstance(content, bytes) else content.retain()


def release_content(content: Content) -> None:
    """Remove a user of the content."""
    if not isinstance(content, bytes):
        content.release()


class MemoryNotes(Protocol):
    """Notes the memories that are handed over."""

    def note(self, content: Content) -> form.Bytes:
        """Return the description of a content."""


class MemorySource(Protocol):
    """The memories that were handed over."""

    def content(self, described: form.Bytes) -> Content:
        """Return a content with one more user."""


class OwnedPayloads(dict[PayloadId, Content]):
    """The payloads of a message from another node, some of them memories. They are released on deletion.

    A step and its effects are deferred in many places. The payloads are deleted with the last reference.
    """

    def __del__(self) -> None:
        for content in self.values():
            release_content(content)


class JoinedPayloads(dict[PayloadId, Content]):
    """The payloads of an event, and some of earlier events, whose owners live as long as this."""

    def __init__(self, payloads: Payloads, earlier: list[tuple[PayloadId, Payloads]]) -> None:
        super().__init__(payloads)
        self._owners: Final = (payloads, *(owner for _, owner in earlier))
        self.update((payload, owner[payload]) for payload, owner in earlier)


class Source(NamedTuple):
    """Bytes to write: ``length`` bytes of ``content`` from ``start`` on. It does not count as a user."""

    content: Content
    start: int
    length: int

    def read(self) -> bytes:
        """Return all the bytes."""
        return read_from(self.content, self.start, self.length)


class Contents:
    """The current content of every object. Calls may read memory or the disk; none waits for a task."""

    def __init__(self, store: Store, pool: MemoryPool) -> None:
        self._store: Final = store
        self.pool: Final = pool
        self._current: Final[dict[ObjectId, Content]] = {}
        # Durable contents that may be forgotten, oldest first, with the bytes that each costs.
        self._cached: Final[dict[ObjectId, int]] = {}
        self._cached_bytes = 0
        self._cached_files = 0
        self.in_use: Callable[[ObjectId], bool] = lambda _: False
        """Return True if a durable content must stay in memory because the store may hold a newer one."""

    def __len__(self) -> int:
        return len(self._current)

    # -- looking ------------------------------------------------------------------------------------
    def peek(self, target: ObjectId) -> Content | None:
        """Return the content if it is in memory; None if it is only stored or the object has none."""
        return self._current.get(target)

    def is_stored(self, target: ObjectId) -> bool:
        """Return True if the content is only in the store."""
        return target not in self._current and self._state(target) is not ContentState.ABSENT

    def is_durable(self, target: ObjectId) -> bool:
        """Return True if the store has a content of the object."""
        return target in self._cached or self._state(target) is not ContentState.ABSENT

    def is_slow(self, target: ObjectId) -> bool:
        """Return True if reading the content must first read all of a large stored value, to check it."""
        return target not in self._current and self._state(target) is ContentState.UNCHECKED

    def _state(self, target: ObjectId) -> ContentState:
        try:
            return self._store.state_of(target)
        except DiosError:
            return ContentState.READY  # opening it reports the error

    def current(self, target: ObjectId) -> Content:
        """Return the current content without adding a user. Raise DamagedError if it is damaged."""
        content = self._current.get(target)
        if content is not None:
            return content
        if self._state(target) is ContentState.ABSENT:
            return b""
        return self.adopt_stored(target, self.fetch(target))

    def program(self, target: ObjectId, size: int) -> bytes | None:
        """Return the content of a program of ``size`` bytes, or None if that takes time or fails."""
        if self.is_slow(target) or self.in_use(target):
            return None
        try:
            content = self.current(target)
            # An object of another node has no content here, and one that was written has another size.
            return read_from(content, 0, size) if size_of(content) == size else None
        except (DiosError, OSError):
            return None

    def fetch(self, target: ObjectId) -> Content:
        """Open the stored content, for ``adopt_stored``. May run in another thread."""
        try:
            stored = self._store.open_content(target)
        except BadReferenceError:
            return b""
        if isinstance(stored, InlineContent):
            return stored.data
        opened = ContentMemory(stored.fd, stored.size, frozen=True, stored=True)
        if stored.size > limits.INLINE_BYTES_MAX:
            return opened
        try:
            return opened.read(0, stored.size)
        finally:
            opened.release()

    def adopt_stored(self, target: ObjectId, content: Content) -> Content:
        """Make a content that ``fetch`` returned the current one; it may be dropped from memory again."""
        self._put(target, content)
        self._cache(target, content)
        return content

    # -- changing -----------------------------------------------------------------------------------
    def set(self, target: ObjectId, content: Content) -> None:
        """Set the object's current content; takes over the caller's use of it."""
        self._uncache(target)
        self._put(target, content)

    def set_durable(self, target: ObjectId, content: bytes | None) -> None:
        """Set the current content to one that the store holds now: these bytes, or None for a large one."""
        if content is None:
            self._uncache(target)
            self._remove(target)
        else:
            self.set(target, content)
            self._cache(target, content)

    def raw(self, target: ObjectId, size: int) -> ContentMemory:
        """Return the object's own memory of at least ``size`` bytes, which its writers change in place.

        A larger memory replaces one that is too small. Its holders keep the former one.
        """
        content = self.current(target)
        if isinstance(content, ContentMemory) and content.raw and size <= content.size:
            return content
        before = size_of(content)
        memory = ContentMemory.own(max(size, before, 1))
        try:
            memory.fill(0, content, 0, before)
        except BaseException:
            memory.release()
            raise
        self.set(target, memory)
        return memory

    def discard(self, target: ObjectId) -> None:
        """Drop the content of a deleted object."""
        self._uncache(target)
        self._remove(target)

    def reopen(self, target: ObjectId) -> None:
        """Forget a stored content, so that its next reader opens its file again, which checks it."""
        if target in self._cached and not self.in_use(target):
            self._uncache(target)
            self._remove(target)

    def close(self) -> None:
        """Release all contents."""
        for target in list(self._current):
            self.discard(target)

    # -- the successor of this process -----------------------------------------------------------------
    def hand_over(self, memories: MemoryNotes) -> tuple[form.Content, ...]:
        """Describe the contents that the store does not have."""
        return tuple(
            form.Content(target, memories.note(content))
            for target, content in self._current.items()
            if target not in self._cached
        )

    def take_over(self, contents: Iterable[form.Content], memories: MemorySource) -> None:
        """Continue with the contents of the predecessor."""
        for content in contents:
            self._put(ObjectId(content.object), memories.content(content.content))

    # -- inside -------------------------------------------------------------------------------------
    def _put(self, target: ObjectId, content: Content) -> None:
        before = self._current.get(target)
        self._current[target] = content
        if before is not None:
            release_content(before)

    def _remove(self, target: ObjectId) -> None:
        before = self._current.pop(target, None)
        if before is not None:
            release_content(before)

    def _cache(self, target: ObjectId, content: Content) -> None:
        cost = _ENTRY_BYTES + (len(content) if isinstance(content, bytes) else 0)
        self._cached[target] = cost
        self._cached_bytes += cost
        self._cached_files += not isinstance(content, bytes)
        while (
            self._cached_bytes > limits.CONTENT_CACHE_BYTES
            or self._cached_files > limits.CONTENT_CACHE_FILES_MAX
        ):
            oldest = next((key for key in self._cached if key != target and not self.in_use(key)), None)
            if oldest is None:
                return
            self._uncache(oldest)
            self._remove(oldest)

    def _uncache(self, target: ObjectId) -> None:
        cost = self._cached.pop(target, None)
        if cost is not None:
            self._cached_bytes -= cost
            self._cached_files -= not isinstance(self._current.get(target), bytes)


# -- making contents out of pieces ------------------------------------------------------------------
def new_size(base: int, offset: int, length: int, *, replace: bool) -> int:
    """Return the size of an object of ``base`` bytes after a write of ``length`` bytes at ``offset``."""
    return offset + length if replace else max(base, offset + length)


def compose_bytes(base: bytes, offset: int, data: bytes, *, replace: bool) -> bytes:
    """Return the small content that results from a write over ``base``."""
    if offset == 0 and (replace or len(data) >= len(base)):
        return data
    head = base[:offset].ljust(offset, b"\0")
    return head + data if replace else head + data + base[offset + len(data) :]


def compose_memory(
    target: ContentMemory, base: Content, offset: int, source: Source, *, replace: bool
) -> None:
    """Fill ``target`` with the large content that results from a write over ``base``.

    ``target`` has exactly the new size and may contain any bytes. May run in another thread.
    """
    before = size_of(base)
    head = min(before, offset)
    target.fill(0, base, 0, head)
    if head < offset:
        target.wipe(head)
    target.fill(offset, source.content, source.start, source.length)
    end = offset + source.length
    if not replace and before > end:
        target.fill(end, base, end, before - end)
