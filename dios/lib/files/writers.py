"""Files for writing: their bytes are collected in memory until they are closed, and stored then."""

from __future__ import annotations

import io
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Final

from dios.lib.files.staging import StagedFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FileWriter(io.BytesIO):
    """A file that is being written: seekable, and readable if its mode has a plus.

    ``close`` stores it and makes it visible, or with ``autocommit`` False leaves that to ``commit``. A
    ``with`` body that raises, ``discard``, and the loss of the file without ``close`` change nothing.
    """

    def __init__(
        self,
        staged: StagedFiles,
        path: str,
        mode: str,
        content: bytes | memoryview = b"",
        *,
        autocommit: bool,
    ) -> None:
        super().__init__(content)
        self._staged: Final = staged
        self._path: Final = path
        self._autocommit: Final = autocommit
        self._ended = False
        self._reads: Final = "+" in mode
        self._appends: Final = mode.startswith("a")
        self.mode: Final = mode
        self.name: Final = path
        if self._appends:
            self.seek(0, io.SEEK_END)

    @property
    def staged(self) -> StagedFiles:
        """Return the stored file that is not visible yet."""
        return self._staged

    @property
    def size(self) -> int:
        """Return the number of bytes so far."""
        with self.getbuffer() as view:
            return view.nbytes

    def readable(self) -> bool:
        """Return True if the mode has a plus."""
        return self._reads

    def write(self, data: Buffer, /) -> int:
        """Write at the position, or with mode "a" at the end; return the number of bytes."""
        if self._appends:
            self.seek(0, io.SEEK_END)
        return super().write(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes from the position on; UnsupportedOperation if the mode has no plus."""
        if not self._reads:
            raise io.UnsupportedOperation("the file is open for writing only")
        return super().read(size)

    def close(self) -> None:
        """Store the file, and make it visible unless a transaction does that later."""
        if self.closed or self._ended:
            super().close()
            return
        self._ended = True
        try:
            with self.getbuffer() as view:
                self._staged.add_bytes(self._path, view)
            if self._autocommit:
                self._staged.publish()
        finally:
            super().close()

    def commit(self) -> None:
        """Make the file visible, at the end of a transaction."""
        self.close()
        self._staged.publish()

    def discard(self) -> None:
        """Leave everything as it was."""
        self._ended = True
        self._staged.discard()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self.closed:
            self._file.discard()
            return
        self.close()
