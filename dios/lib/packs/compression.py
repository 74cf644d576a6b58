"""The compression of chunks before they are encrypted, in backups of version 2.

A packed chunk is one byte for the method, and the bytes. Each chunk is compressed alone, so that it can be
found by its digest. Chunks that hardly become smaller stay as they are.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from dios.errors import NotSupportedError
from dios.installation import extra_command
from dios.lib.packs.failures import DamagedBackupError

RAW: Final = b"\x00"
ZSTD: Final = b"\x01"
_LEVEL: Final = 3
_WORTH: Final = 0.95


def is_installed() -> bool:
    """Return True if this machine can compress."""
    return find_spec("zstandard") is not None


def packed(data: bytes) -> bytes:
    """Return the packed form of a chunk, compressed if it becomes smaller and zstd is installed."""
    if is_installed():
        import zstandard  # noqa: PLC0415 - an extra

        smaller = bytes(zstandard.ZstdCompressor(level=_LEVEL).compress(data))
        if len(smaller) < len(data) * _WORTH:
            return ZSTD + smaller
    return RAW + data


def unpacked(payload: bytes, size: int) -> bytes:
    """Return a chunk of ``size`` bytes from its packed form.

    Raises DamagedBackupError, and NotSupportedError if it is compressed and zstd is not installed.
    """
    method, data = payload[:1], payload[1:]
    if method == RAW and len(data) == size:
        return data
    if method == ZSTD:
        if not is_installed():
            raise NotSupportedError(
                f"the backup is compressed, and zstandard is not installed: {extra_command('zstd')}"
            )
        import zstandard  # noqa: PLC0415 - an extra

        try:
            # The size in the frame is what is allocated, whatever bound is given.
            if zstandard.frame_content_size(data) == size:
                return bytes(zstandard.ZstdDecompressor().decompress(data))
        except zstandard.ZstdError:
            pass
    raise DamagedBackupError(
        "a chunk is not packed as it should be. See docs/backup.md#the-format-of-backups."
    )
