"""The bytes of a file that is being written: the pages of a large one are stored while it grows.

A page has the size of a part. Pages that were not used for the longest time are stored as parts first, and
loaded again if they are read or changed. So the memory of a writer is bounded, wherever it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from blake3 import blake3

from dios.lib.catalogue import Part


class PageStore(Protocol):
    """The place of the pages that are not in memory."""

    def store(self, data: memoryview) -> Part:
        """Store the bytes of a page."""

    def load(self, part: Part) -> memoryview:
        """Return the bytes of a page."""

    def drop(self, part: Part) -> None:
        """Destroy a stored page that was changed or cut off."""


Original = Callable[[int, int], memoryview]
"""Returns the bytes of a range of the file as it was when it was opened."""


class Pages:
    """Seekable bytes, in pages of ``page_bytes``, of which at most ``pages_max`` are in memory.

    The content begins with ``size`` bytes of ``original``, which stays as it is. ``store`` is called for the
    place of pages when the first one leaves the memory.
    """

    def __init__(
        self, page_bytes: int, pages_max: int, store: Callable[[], PageStore], original: Original, size: int
    ) -> None:
        self.size = size
        self._page_bytes: Final = page_bytes
        self._pages_max: Final = pages_max
        self._open_store: Final = store
        self._store: PageStore | None = None
        self._original: Final = original
        self._original_size = size
        """The bytes from here on are not those of the original, whatever it has there."""
        self._memory: Final[dict[int, bytearray]] = {}
        """The pages in memory, the one that was used last at the end."""
        self._stored: Final[dict[int, Part]] = {}
        self._hash = blake3()
        self._hashed = 0
        """The number of first pages that are in the hash."""

    @property
    def in_parts(self) -> bool:
        """Return True if pages were stored as parts."""
        return self._store is not None

    # -- bytes ----------------------------------------------------------------------------------------
    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range, fewer at the end of the file."""
        return b"".join(self._pieces(start, min(end, self.size)))

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        while start < end:
            number, inside = divmod(start, self._page_bytes)
            last = min(self._page_bytes, inside + end - start)
            yield self.page(number)[inside:last]
            start += last - inside

    def write(self, start: int, data: memoryview) -> None:
        """Replace the bytes from ``start`` on; a gap before it has zeros."""
        if start > self.size:
            self._fill_gap(start)
        done = 0
        while done < data.nbytes:
            number, inside = divmod(start + done, self._page_bytes)
            piece = data[done : done + self._page_bytes - inside]
            self._loaded(number)[inside : inside + piece.nbytes] = piece
            done += piece.nbytes
            self.size = max(self.size, start + done)

    def _fill_gap(self, end: int) -> None:
        while self.size < end:
            number, inside = divmod(self.size, self._page_bytes)
            last = min(self._page_bytes, inside + end - self.size)
            self._loaded(number)[inside:last] = bytes(last - inside)
            self.size += last - inside

    def truncate(self, size: int) -> None:
        """Cut the file off after ``size`` bytes; a larger size leaves it as it is."""
        if size >= self.size:
            return
        whole, inside = divmod(size, self._page_bytes)
        if inside:
            del self._loaded(whole)[inside:]
        kept = whole + (1 if inside else 0)
        for number in [page_number for page_number in self._memory if page_number >= kept]:
            del self._memory[number]
        for number in [page_number for page_number in self._stored if page_number >= kept]:
            self._drop(number)
        self._changed(kept)
        self.size = size
        self._original_size = min(self._original_size, size)

    # -- pages ----------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """Return the number of pages of the present file."""
        return -(-self.size // self._page_bytes)

    def page(self, number: int) -> memoryview:
        """Return the present bytes of a page, where they are."""
        if number in self._memory:
            return memoryview(self._memory[number]).toreadonly()
        if number in self._stored and self._store is not None:
            return self._store.load(self._stored[number])
        start = number * self._page_bytes
        return self._original(start, min(start + self._page_bytes, self._original_size))

    def _loaded(self, number: int) -> bytearray:
        """Return a page in memory, which the caller changes."""
        self._changed(number)
        page = self._memory.pop(number, None)
        if page is None:
            while len(self._memory) >= self._pages_max:
                self._put_out(next(iter(self._memory)))
            page = bytearray(self.page(number) if number < self.count else b"")
            if number in self._stored:
                self._drop(number)
        self._memory[number] = page
        return page

    def _changed(self, number: int) -> None:
        if number < self._hashed:
            self._hash, self._hashed = blake3(), 0

    def _put_out(self, number: int) -> None:
        """Store a page, and remove it from the memory."""
        if self._store is None:
            self._store = self._open_store()
        with memoryview(self._memory[number]) as page:
            self._stored[number] = self._store.store(page)
            self._hash_page(number, page)
        del self._memory[number]

    def _hash_page(self, number: int, page: memoryview) -> None:
        # A page that ends early can still grow.
        if number == self._hashed and page.nbytes == self._page_bytes:
            self._hash.update(page)
            self._hashed += 1

    def _drop(self, number: int) -> None:
        part = self._stored.pop(number)
        if self._store is not None:
            self._store.drop(part)

    # -- the end --------------------------------------------------------------------------------------
    def store_all(self) -> list[Part]:
        """Store all pages that are not stored, and return the parts of the file in their order."""
        if self._store is None:
            self._store = self._open_store()
        for number in range(self.count):
            if number in self._memory:
                self._put_out(number)
            elif number not in self._stored:
                page = self.page(number)
                self._stored[number] = self._store.store(page)
                self._hash_page(number, page)
        return [self._stored[number] for number in range(self.count)]

    def digest(self) -> bytes:
        """Return the digest of the whole file. Pages that were stored out of their order are read again."""
        for number in range(self._hashed, self.count):
            self._hash.update(self.page(number))
        self._hashed = self.count
        return self._hash.digest()

    def release(self) -> None:
        """Forget the pages in memory, when the file is closed."""
        self._memory.clear()
