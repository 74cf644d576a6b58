"""The public page of references in a task: their attributes and counters without a call (§4.5.1).

``dios.wire.page`` has the layout of a slot.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final

from dios.errors import ProtocolError
from dios.limits import PUBLIC_PAGE_BYTES, REFERENCES_PER_TASK_MAX
from dios.wire import messages
from dios.wire.page import PublicAttributes, read_slot


class Page:
    """One task's page, mapped read-only."""

    __slots__ = ("_map", "_view")

    def __init__(self, fd: int) -> None:
        """Map the page and close ``fd``; ProtocolError if it is not a page."""
        try:
            self._map: Final = mmap.mmap(fd, PUBLIC_PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"the public page cannot be mapped: {error}") from None
        finally:
            os.close(fd)
        self._view: Final = memoryview(self._map)

    def attributes(self, reference: messages.Reference) -> PublicAttributes | None:
        """Return the present attributes of a reference; None if its slot is used for another one."""
        slot = reference.slot
        if not 0 <= slot < REFERENCES_PER_TASK_MAX:
            return None
        try:
            found = read_slot(self._view, slot)
        except ValueError:
            return None  # the connection was closed, and the page with it
        return found if found.used and found.ref == reference.ref else None

    def close(self) -> None:
        """Close the mapping."""
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()
