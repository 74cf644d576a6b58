"""Files for writing: they become visible when they are closed. A large file is stored while it is written."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dios import limits
from dios.client.blob_file import PositionFile
from dios.errors import DiosError, UnreachableError
from dios.lib.catalogue import Part
from dios.lib.files.pages import Original, Pages
from dios.lib.files.staging import StagedFiles
from dios.lib.files.uploads import PartsUpload

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _StoredPages:
    """The pages of one file that are stored as parts which are not visible yet."""

    def __init__(self, staged: StagedFiles, path: str) -> None:
        self._staged: Final = staged
        self.upload: Final[PartsUpload] = staged.begin_parts(path)

    def store(self, data: memoryview) -> Part:
        return self.upload.store_page(data)

    def drop(self, part: Part) -> None:
        self.upload.drop_page(part)

    def load(self, part: Part) -> memoryview:
        files = self._staged.files
        reference = files.node.find(part.name, group=files.group)
        if reference is None:
            raise FileNotFoundError(2, "another program removed a part of the file that is being written")
        with reference:
            return reference.view_bytes()


class _LargeFile:
    """The upload of a file, once it is large.

    It does not refer to the writer, which warns at once when it is dropped without ``close``.
    """

    def __init__(self, staged: StagedFiles, path: str) -> None:
        self._staged: Final = staged
        self._path: Final = path
        self.stored: _StoredPages | None = None

    def begin(self) -> _StoredPages:
        self.stored = _StoredPages(self._staged, self._path)
        return self.stored


class FileWriter(PositionFile, io.BufferedIOBase):
    """A file that is being written: seekable, and readable if its mode has a plus.

    ``close`` makes it visible, or with ``autocommit`` False leaves that to ``commit``. A ``with`` body that
    raises, and ``discard``, change nothing. At most FILE_WHOLE_BYTES_MAX bytes are in memory: a larger file
    is stored in parts meanwhile, as an unfinished file. If it is lost without ``close``, its parts stay until
    the path is written again. ``original`` and ``size`` are the present bytes of a file that is changed.
    """

    def __init__(
        self,
        staged: StagedFiles,
        path: str,
        mode: str,
        original: Original = lambda _start, _end: memoryview(b""),
        size: int = 0,
        *,
        autocommit: bool,
    ) -> None:
        super().__init__()
        self._staged: Final = staged
        self._path: Final = path
        self._autocommit: Final = autocommit
        self._ended = False
        self._reads: Final = "+" in mode
        self._appends: Final = mode.startswith("a")
        self.mode: Final = mode
        self.name: Final = path
        self._large: Final = _LargeFile(staged, path)
        page_bytes = limits.FILE_PART_BYTES
        pages_max = max(1, limits.FILE_WHOLE_BYTES_MAX // page_bytes)
        self._pages: Final = Pages(page_bytes, pages_max, self._large.begin, original, size)
        self._at = size if self._appends else 0

    @property
    def staged(self) -> StagedFiles:
        """Return the stored file that is not visible yet."""
        return self._staged

    @property
    def size(self) -> int:
        """Return the number of bytes so far."""
        return self._pages.size

    def readable(self) -> bool:
        """Return True if the mode has a plus."""
        return self._reads

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Write at the position, or with mode "a" at the end; return the number of bytes."""
        self._require_open()
        if self._appends:
            self._at = self._pages.size
        with memoryview(data) as given, given.cast("B") as view:
            self._pages.write(self._at, view)
            self._at += view.nbytes
            return view.nbytes

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file off after ``size`` bytes, by default at the position; return the size."""
        self._require_open()
        wanted = self._at if size is None else size
        self._pages.truncate(wanted)
        return wanted

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes from the position on; UnsupportedOperation if the mode has no plus."""
        self._require_open()
        if not self._reads:
            raise io.UnsupportedOperation("the file is open for writing only")
        end = self._pages.size if size is None or size < 0 else self._at + size
        content = self._pages.read(self._at, end)
        self._at += len(content)
        return content

    def read1(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, as ``read`` does."""
        return self.read(size)

    def _store(self) -> None:
        """Store what is in memory."""
        pages = self._pages
        if pages.size and (pages.in_parts or pages.size > limits.FILE_WHOLE_BYTES_MAX):
            parts = pages.store_all()
            digest = pages.digest()
            if self._large.stored is not None:
                entry = self._large.stored.upload.entry_of(parts, pages.size, digest)
                self._staged.end_parts(self._path, entry)
        else:
            self._staged.add_pieces(self._path, [pages.page(number) for number in range(pages.count)])

    def close(self) -> None:
        """Store the file, and make it visible unless a transaction does that later."""
        if self.closed or self._ended:
            super().close()
            return
        self._ended = True
        try:
            self._store_and_publish()
        finally:
            self._pages.release()
            super().close()

    def _store_and_publish(self) -> None:
        try:
            self._store()
        except BaseException:
            self._discard_all()
            raise
        if self._autocommit:
            try:
                self._staged.publish()
            except UnreachableError:
                # The file may be visible, because the answer was lost.
                raise
            except (OSError, DiosError):
                self._discard_all()
                raise

    def _discard_all(self) -> None:
        """Destroy what was stored. The error that led here is the one to report."""
        with suppress(DiosError):
            self._staged.discard()
            if self._large.stored is not None:
                self._large.stored.upload.discard()

    def commit(self) -> None:
        """Make the file visible, at the end of a transaction."""
        self.close()
        self._staged.publish()

    def discard(self) -> None:
        """Leave everything as it was."""
        self._ended = True
        self._staged.discard()
        self._pages.release()
        super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self.closed:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_ended", True) is False and not self.closed:
            self._ended = True
            warnings.warn(f"{self._path!r} was not closed: it is not stored", ResourceWarning, stacklevel=2)
        super().close()


class TextWriter(io.TextIOWrapper):
    """The text of a ``FileWriter``; a ``with`` body that raises leaves everything as it was."""

    def __init__(
        self,
        file: FileWriter,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> None:
        super().__init__(file, encoding=encoding or "utf-8", errors=errors, newline=newline)
        self._file: Final = file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self.closed:
            self._file.discard()
            return
        self.close()
