"""The current content of every object on this node, by object id (thesis §3.7, Buffering).

Not for: who may see it, or since which version: the core decides; or open buffers
(``dios.host.content.buffers``).

A content is immutable once it is current, except a raw one: small ones are ``bytes``, larger ones a
``Memory`` (an anonymous memory, or an extent of the store). What the store holds is opened when it is first
asked for, and may be forgotten again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from dios import limits
from dios.errors import BadReferenceError
from dios.host.content.memories import Memory
from dios.ids import ObjectId, PayloadId
from dios.store.protocol import InlineContent, Store
from dios.transport.memory.pool import MemoryPool

Content: TypeAlias = bytes | Memory
Payloads: TypeAlias = Mapping[PayloadId, Content]
"""The bytes that came with an event, by their ids."""


def size_of(content: Content) -> int:
    """How many bytes a content has."""
    return len(content) if isinstance(content, bytes) else content.size


def read_from(content: Content, offset: int, length: int) -> bytes:
    """Copy bytes out of a content; the whole of ``bytes`` is not copied."""
    if isinstance(content, bytes):
        if offset == 0 and length == len(content):
            return content
        return content[offset : offset + length]
    return content.read(offset, length)


def keep(content: Content) -> Content:
    """One user more."""
    return content if isinstance(content, bytes) else content.retain()


def let_go(content: Content) -> None:
    """One user less."""
    if not isinstance(content, bytes):
        content.release()


class Carried(dict[PayloadId, Content]):
    """Payloads of another node's message, some of them memories: freed with the last step that needs them.

    A step and its effects wait in many places, and each lets go of the payloads when it is done.
    """

    def __del__(self) -> None:
        for content in self.values():
            let_go(content)


class Source(NamedTuple):
    """Bytes to be written: ``length`` bytes of ``content`` from ``start`` on. Holds nothing by itself."""

    content: Content
    start: int
    length: int

    def read(self) -> bytes:
        """All of it."""
        return read_from(self.content, self.start, self.length)


class Contents:
    """Every object's current content. Each call may touch memory or the disk, none waits for a task."""

    def __init__(self, store: Store, pool: MemoryPool) -> None:
        self._store: Final = store
        self.pool: Final = pool
        self._current: Final[dict[ObjectId, Content]] = {}
        self._stored: Final[set[ObjectId]] = set()
        self._unchecked: Final[set[ObjectId]] = set()
        # Durable contents that may be forgotten, oldest first, with the bytes that each costs.
        self._cached: Final[dict[ObjectId, int]] = {}
        self._cached_bytes = 0
        self._cached_files = 0
        self.in_use: Callable[[ObjectId], bool] = lambda _: False
        """Whether a durable content must stay at hand, for the store may hold a newer one already."""

    def __len__(self) -> int:
        return len(self._current) + len(self._stored)

    # -- looking ------------------------------------------------------------------------------------
    def peek(self, target: ObjectId) -> Content | None:
        """The content if it is at hand without the store; None also for an object without one."""
        return self._current.get(target)

    def is_stored(self, target: ObjectId) -> bool:
        """Whether the content is in the store only."""
        return target in self._stored

    def is_durable(self, target: ObjectId) -> bool:
        """Whether the store has a content of the object."""
        return target in self._stored or target in self._cached

    def is_slow(self, target: ObjectId) -> bool:
        """Whether asking for the content will read all of a large value, to check it."""
        return target in self._unchecked and target in self._stored

    def current(self, target: ObjectId) -> Content:
        """The current content; stays ours. Raises DamagedError when the stored one is not whole."""
        content = self._current.get(target)
        if content is not None:
            return content
        if target not in self._stored:
            return b""
        return self.adopt_stored(target, self.fetch(target))

    def fetch(self, target: ObjectId) -> Content:
        """Open the stored content, for ``adopt_stored``; may run in another thread."""
        try:
            found = self._store.open_content(target)
        except BadReferenceError:
            return b""
        if isinstance(found, InlineContent):
            return found.data
        opened = Memory(found.fd, found.size, frozen=True)
        if found.size > limits.INLINE_BYTES_MAX:
            return opened
        try:
            return opened.read(0, found.size)
        finally:
            opened.release()

    def adopt_stored(self, target: ObjectId, content: Content) -> Content:
        """What ``fetch`` found is the current content, which may be forgotten again."""
        self._unchecked.discard(target)
        self._stored.discard(target)
        self._put(target, content)
        self._cache(target, content)
        return content

    # -- changing -----------------------------------------------------------------------------------
    def recovered(self, targets: Iterable[tuple[ObjectId, int]]) -> None:
        """The store holds these objects, of these sizes."""
        for target, size in targets:
            self._stored.add(target)
            if size > limits.INLINE_BYTES_MAX:
                self._unchecked.add(target)

    def set(self, target: ObjectId, content: Content) -> None:
        """The object's new current content; takes over the caller's use of it."""
        self._uncache(target)
        self._stored.discard(target)
        self._put(target, content)

    def set_durable(self, target: ObjectId, content: bytes | None) -> None:
        """The store holds the new content now: these bytes, or None for a large one."""
        if content is None:
            self._uncache(target)
            self._remove(target)
            self._stored.add(target)
            self._unchecked.discard(target)
        else:
            self.set(target, content)
            self._cache(target, content)

    def raw(self, target: ObjectId, size: int) -> Memory:
        """The object's own memory, of at least ``size`` bytes, that its writers change in place."""
        content = self.current(target)
        if isinstance(content, Memory) and content.raw:
            content.grow(size)
            return content
        before = size_of(content)
        made = Memory.own(max(size, before, 1))
        made.fill(0, content, 0, before)
        self.set(target, made)
        return made

    def discard(self, target: ObjectId) -> None:
        """The object is gone."""
        self._uncache(target)
        self._stored.discard(target)
        self._unchecked.discard(target)
        self._remove(target)

    def close(self) -> None:
        """Let go of everything."""
        for target in list(self._current):
            self.discard(target)

    # -- inside -------------------------------------------------------------------------------------
    def _put(self, target: ObjectId, content: Content) -> None:
        before = self._current.get(target)
        self._current[target] = content
        if before is not None:
            let_go(before)

    def _remove(self, target: ObjectId) -> None:
        before = self._current.pop(target, None)
        if before is not None:
            let_go(before)

    def _cache(self, target: ObjectId, content: Content) -> None:
        cost = len(content) if isinstance(content, bytes) else 0
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
            self._stored.add(oldest)

    def _uncache(self, target: ObjectId) -> None:
        cost = self._cached.pop(target, None)
        if cost is not None:
            self._cached_bytes -= cost
            self._cached_files -= not isinstance(self._current.get(target), bytes)


# -- making contents out of pieces ------------------------------------------------------------------
def new_size(base: int, offset: int, length: int, *, replace: bool) -> int:
    """The size of an object of ``base`` bytes after a write of ``length`` bytes at ``offset``."""
    return offset + length if replace else max(base, offset + length)


def compose_bytes(base: bytes, offset: int, data: bytes, *, replace: bool) -> bytes:
    """The small content after a write over ``base``."""
    if offset == 0 and (replace or len(data) >= len(base)):
        return data
    head = base[:offset].ljust(offset, b"\0")
    return head + data if replace else head + data + base[offset + len(data) :]


def compose_memory(target: Memory, base: Content, offset: int, source: Source, *, replace: bool) -> None:
    """Fill ``target`` with the large content after a write over ``base``; may run in another thread.

    ``target`` has exactly the new size, and any bytes in it.
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
