"""Every object's bytes in the simulated host: in memory, on their way to the store, or in the store only.

It replaces ``dios.host.content.contents`` and ``dios.host.loop.staging``, without shared memory and threads.
It does not check permissions.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from dios.core import effects
from dios.core.effects import WriteSource
from dios.errors import BadReferenceError, DiosError
from dios.ids import BufferId, ObjectId, PayloadId
from dios.store.protocol import InlineContent, Store


class SimContents:
    """Contents by object id; ``read`` asks the store, ``buffers`` is the host's table of open buffers."""

    def __init__(self, read: Callable[[ObjectId], bytes], buffers: dict[BufferId, bytes]) -> None:
        self._read: Final = read
        self._buffers: Final = buffers
        self.payloads: Final[dict[PayloadId, bytes]] = {}
        self.at_hand: Final[dict[ObjectId, bytes]] = {}
        self.stored: Final[set[ObjectId]] = set()
        """The objects whose current content is also in the store."""
        self._staged: Final[dict[ObjectId, deque[bytes]]] = {}

    def recovered(self, targets: Iterable[ObjectId]) -> None:
        """Mark these objects as stored."""
        self.stored.update(targets)

    def current(self, target: ObjectId) -> bytes:
        """Return the current content; raise DiosError if the store cannot read it."""
        if target not in self.at_hand and target in self.stored:
            self.at_hand[target] = stored_content(self._read, target)
        return self.at_hand.get(target, b"")

    def forget(self, target: ObjectId) -> None:
        """Drop the copy in memory if the store has the content, so that the next read asks the store."""
        if target in self.stored and target not in self._staged:
            self.at_hand.pop(target, None)

    # -- writes ------------------------------------------------------------------------------------
    def stage(self, target: ObjectId, source: WriteSource) -> bytes:
        """Return the whole content of the object after a write, as it goes to the store."""
        staged = self._staged.setdefault(target, deque())
        try:
            content = self._composed(source, self._latest, target)
        except DiosError:
            staged.append(b"")
            raise
        staged.append(content)
        return content

    def change(self, effect: effects.ApplyWrite | effects.DuplicateContent | effects.DiscardContent) -> None:
        """Carry out an effect that changes contents."""
        if isinstance(effect, effects.DiscardContent):
            self.at_hand.pop(effect.object, None)
            self.stored.discard(effect.object)
        elif isinstance(effect, effects.DuplicateContent):
            self.at_hand[effect.object] = self.current(effect.source)
        elif effect.durable:
            self.at_hand[effect.object] = self._take(effect.object)
            self.stored.add(effect.object)
        else:
            self.at_hand[effect.object] = self._composed(effect.source, self.current, effect.object)

    def fail(self, effect: effects.Effect, *, lost: bool) -> None:
        """Handle an effect of a refused step: a write that the store refused counts as never made."""
        if isinstance(effect, effects.ApplyWrite) and effect.durable:
            if lost:
                self._take(effect.object)
            else:
                self.change(effect)
        elif isinstance(effect, effects.ApplyWrite | effects.DuplicateContent) or (
            isinstance(effect, effects.DiscardContent) and effect.object not in self.stored
        ):
            self.change(effect)

    def _take(self, target: ObjectId) -> bytes:
        staged = self._staged[target]
        content = staged.popleft()
        if not staged:
            del self._staged[target]
        return content

    def _latest(self, target: ObjectId) -> bytes:
        staged = self._staged.get(target)
        return staged[-1] if staged else self.current(target)

    def taken(self, source: WriteSource) -> bytes:
        """Return the bytes of a source, as they are sent to another node."""
        return self._bytes_of(source, self.current)[: source.length].ljust(source.length, b"\0")

    def _bytes_of(self, source: WriteSource, look: Callable[[ObjectId], bytes]) -> bytes:
        if source.payload:
            return self.payloads[source.payload]
        if source.buffer:
            return self._buffers[source.buffer]
        return look(source.content_of) if source.content_of else b""

    def _composed(self, source: WriteSource, look: Callable[[ObjectId], bytes], target: ObjectId) -> bytes:
        data = self._bytes_of(source, look)
        whole = source.replace and source.offset == 0
        old = b"" if whole else look(target)
        part = data[: source.length].ljust(source.length, b"\0")
        tail = b"" if source.replace else old[source.offset + source.length :]
        return old[: source.offset].ljust(source.offset, b"\0") + part + tail


def stored_content(read: Callable[[ObjectId], bytes], target: ObjectId) -> bytes:
    """Return the content in the store; empty for an object that the store does not know."""
    try:
        return read(target)
    except BadReferenceError:
        return b""


def read_whole(store: Store, target: ObjectId) -> bytes:
    """Return the content of an object of any store as bytes."""
    content = store.open_content(target)
    if isinstance(content, InlineContent):
        return content.data
    try:
        return os.pread(content.fd, content.size, 0)
    finally:
        os.close(content.fd)
