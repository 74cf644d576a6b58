"""The public page of references in a task: attributes, and reads of kept bytes, without a call (§4.5.1).

``dios.wire.page`` has the layout of a slot. Decision 42 says why a read of kept bytes is as good as a call.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Final

from dios.errors import ProtocolError
from dios.forks import give_up_in_child
from dios.limits import MIB, PUBLIC_PAGE_BYTES, REFERENCES_PER_TASK_MAX
from dios.wire import messages
from dios.wire.calls import DIRECT_READS_MAX
from dios.wire.page import QUADS_PER_SLOT, STAMP_QUAD, PublicAttributes, read_slot

KEPT_OBJECTS_MAX: Final = 256
KEPT_BYTES_MAX: Final = 256 * MIB
_LOOKS: Final = 4
"""Number of kept contents that are checked whenever one is added."""
_NEVER: Final = -1


class KeptBytes:
    """The bytes from ``start`` on of one version of an object of ``size`` bytes, which this process has.

    They may be read while the slot's stamp is the one that it had when they came. ``whole`` is the content if
    all of it is here. ``reads`` counts the reads without a call that the node does not know yet.
    """

    __slots__ = (
        "_place",
        "_stamp",
        "_stamps",
        "data",
        "reads",
        "size",
        "start",
        "used",
        "v_r",
        "v_w",
        "whole",
    )

    def __init__(
        self,
        stamps: memoryview,
        place: int,
        attributes: PublicAttributes,
        data: bytes | memoryview,
        start: int,
    ) -> None:
        self._stamps: Final = stamps
        self._place: Final = place
        self._stamp = attributes.stamp
        self.data: bytes | memoryview = data
        self.start: Final = start
        self.size: Final = attributes.size
        self.v_r: Final = attributes.v_r
        self.v_w: Final = attributes.v_w
        self.whole = data if not start and len(data) == attributes.size else None
        self.reads = 0
        self.used = False

    @property
    def current(self) -> bool:
        """Return True if a read at this moment would return these bytes, by a call as well."""
        try:
            return bool(self._stamps[self._place] == self._stamp)
        except ValueError:
            return False  # the connection was closed, or belongs to the parent of this process

    @property
    def room(self) -> bool:
        """Return True if one more read may be counted before a report to the node."""
        return self.reads < DIRECT_READS_MAX

    def count(self) -> bool:
        """Count one read; return False if the next read must be a call, because the node knows too few."""
        if self.reads >= DIRECT_READS_MAX:
            return False
        self.reads += 1
        self.used = True
        return True

    def take(self) -> bytes | memoryview | None:
        """Return the whole content if that is a read now, and count it; else None. The fastest way."""
        whole = self.whole  # before the look at the page, because another thread may drop it
        try:
            if whole is None or self._stamps[self._place] != self._stamp or self.reads >= DIRECT_READS_MAX:
                return None
        except ValueError:
            return None
        self.reads += 1
        self.used = True
        return whole

    def part(self, size: int, offset: int) -> bytes | memoryview | None:
        """Return ``size`` bytes (0: all) from ``offset`` on, as a read does; None if they are not here."""
        whole, data = self.whole, self.data  # another thread may drop them
        if not size and not offset and whole is not None:
            return whole
        if offset > self.size:
            return None
        first, end = offset - self.start, (min(offset + size, self.size) if size else self.size) - self.start
        return data[first:end] if first >= 0 and end <= len(data) else None

    def drop(self) -> None:
        """Release the bytes. Views that the program has stay valid."""
        self._stamp = _NEVER
        self.data = b""
        self.whole = None


class Page:
    """One task's page in ``view``, and the bytes that reads without a call are served from."""

    __slots__ = ("__weakref__", "_kept", "_kept_bytes", "_lock", "_stamps", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view: Final = view
        self._stamps: Final = self._view.cast("Q")
        self._kept: Final[deque[KeptBytes]] = deque()
        self._kept_bytes = 0
        self._lock: Final = threading.Lock()
        _open.add(self)

    def attributes(self, reference: messages.Reference) -> PublicAttributes | None:
        """Return the present attributes of a reference; None if its slot is used for another one."""
        slot = reference.slot
        if not 0 <= slot < REFERENCES_PER_TASK_MAX:
            return None
        try:
            attributes = read_slot(self._view, slot)
        except ValueError:
            return None  # the connection was closed, and the page with it
        return attributes if attributes.used and attributes.ref == reference.ref else None

    def keep(
        self, reference: messages.Reference, v_w: int, data: bytes | memoryview, start: int
    ) -> KeptBytes | None:
        """Keep the bytes that a call has read at version ``v_w``; None if they cannot serve further reads."""
        attributes = self.attributes(reference)
        if attributes is None or not attributes.stamp or attributes.v_w != v_w or len(data) > KEPT_BYTES_MAX:
            return None
        kept = KeptBytes(self._stamps, reference.slot * QUADS_PER_SLOT + STAMP_QUAD, attributes, data, start)
        with self._lock:
            self._kept.append(kept)
            self._kept_bytes += len(data)
            self._make_room()
        return kept

    def drop_kept(self) -> None:
        """Release all kept bytes, because memory is short."""
        with self._lock:
            while self._kept:
                self._kept.popleft().drop()
            self._kept_bytes = 0

    def forget(self, kept: KeptBytes) -> None:
        """Release these bytes, whose handle is closed."""
        with self._lock:
            if kept in self._kept:
                self._kept.remove(kept)
                self._kept_bytes -= len(kept.data)
        kept.drop()

    def stop_reads(self) -> None:
        """Let every further read be a call: this process was forked, and the page belongs to its parent."""
        self._stamps.release()

    def close(self) -> None:
        """Release the page: all further reads are calls."""
        self.drop_kept()
        self._stamps.release()
        self._view.release()

    def _make_room(self) -> None:
        """Drop some of what is outdated, then as long as there is too much what was not used for a while."""
        kept = self._kept
        for _ in range(min(_LOOKS, len(kept))):
            kept.rotate(-1)
            if not kept[-1].current:
                self._drop(kept.pop())
        while len(kept) > KEPT_OBJECTS_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            oldest = kept.popleft()
            if oldest.used and oldest.current:
                oldest.used = False
                kept.append(oldest)
            else:
                self._drop(oldest)

    def _drop(self, kept: KeptBytes) -> None:
        self._kept_bytes -= len(kept.data)
        kept.drop()


class MappedPage(Page):
    """The page that came with a Welcome, mapped read-only."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        """Map the page and close ``fd``; ProtocolError if it is not a page."""
        try:
            self._map: Final = mmap.mmap(fd, PUBLIC_PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"the public page cannot be mapped: {error}") from None
        finally:
            os.close(fd)
        super().__init__(memoryview(self._map))

    def close(self) -> None:
        """Close the mapping."""
        super().close()
        with contextlib.suppress(BufferError):
            self._map.close()


_open: Final[weakref.WeakSet[Page]] = weakref.WeakSet()


def _stop_all_in_child() -> None:
    for page in list(_open):
        page.stop_reads()


give_up_in_child(_stop_all_in_child)
