"""The input of a layer: a stream that is read once, in small parts, up to a bound.

Nobody has read a layer. Its headers may announce any size, and some hundred bytes may unpack to terabytes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from dios.errors import InvalidError, TooLargeError
from dios.limits import GIB, IMAGE_LAYER_BYTES_MAX, KIB

_READ_BYTES_MAX: Final = 64 * KIB
"""Of one read: more than the longest name or extended header that is of use."""

_GLOBAL_FIELDS_MAX: Final = 64
"""Of the headers for all members, which ``tarfile`` keeps."""

_GZIP: Final = b"\x1f\x8b"


class TarReader(io.RawIOBase):
    """A stream for ``tarfile`` that only goes forward, and ends with TooLargeError over a bound."""

    def __init__(self, source: BinaryIO, bytes_max: int = IMAGE_LAYER_BYTES_MAX) -> None:
        super().__init__()
        self._source: Final = source
        self._bytes_max: Final = bytes_max
        self._place = 0
        self.last_read = b""
        """The bytes of the last read: zeros, or none, at the end of a tar file."""

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raise InvalidError for a read that no honest layer needs."""
        if not 0 <= size <= _READ_BYTES_MAX:
            raise InvalidError("the layer has a header that is too long")
        data = self._source.read(size)
        self._place += len(data)
        self.last_read = data
        if self._place > self._bytes_max:
            raise TooLargeError(f"a layer of the image unpacks to over {self._bytes_max // GIB} GiB")
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read on to a place. Raise InvalidError for one that is behind."""
        if whence != io.SEEK_SET or offset < self._place:
            raise InvalidError("the layer has an entry with an impossible size")
        while self._place < offset and self.read(min(_READ_BYTES_MAX, offset - self._place)):
            pass
        return self._place

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self._place

    def parts(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield the bytes of a member, whose header was read last. Raise InvalidError if some are missing."""
        left = member.size
        while left:
            part = self.read(min(left, _READ_BYTES_MAX))
            if not part:
                raise InvalidError(f"the layer is cut off in {member.name[:200]!r}")
            left -= len(part)
            yield part


@contextmanager
def opened_tar(
    source: BinaryIO, *, may_be_compressed: bool = True
) -> Iterator[tuple[TarReader, Iterator[tarfile.TarInfo]]]:
    """Yield the reader and the members of a tar file, which may be compressed by gzip. Raise InvalidError."""
    start = source.read(len(_GZIP))
    source.seek(0)
    if start == _GZIP and not may_be_compressed:
        raise InvalidError("the archive of the layout is compressed: unpack it with gunzip")
    unpacked = gzip.GzipFile(fileobj=source) if start == _GZIP else source
    reader = TarReader(unpacked)  # type: ignore[arg-type]  # it has the methods that are used
    try:
        with tarfile.open(fileobj=reader, mode="r:") as archive:
            yield reader, _members(archive, reader)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"a layer of the image cannot be read: {error}") from error


def _members(archive: tarfile.TarFile, reader: TarReader) -> Iterator[tarfile.TarInfo]:
    member = vars(archive)["firstmember"] and archive.next()
    while member is not None:
        # It keeps all of them otherwise.
        vars(archive)["members"].clear()
        if len(archive.pax_headers) > _GLOBAL_FIELDS_MAX:
            raise InvalidError(f"the layer has over {_GLOBAL_FIELDS_MAX} fields for all its files")
        yield member
        member = archive.next()
    # It takes a damaged header for the end.
    if reader.last_read.strip(b"\0"):
        raise InvalidError("the layer has a damaged header")
