"""The heads of pictures: of formats that every browser shows, and of a bounded size."""

from __future__ import annotations

import struct
from typing import Final

PIXELS_MAX: Final = 10_000
"""The width and the height of a picture."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE: Final = struct.Struct(">8xI4sII")
_PNG_HEAD_BYTES: Final = 13

_JPEG: Final = b"\xff\xd8\xff"
_JPEG_PART: Final = struct.Struct(">BBH")
_JPEG_SIZE: Final = struct.Struct(">BHH")
_JPEG_PARTS_MAX: Final = 500
_MARKER: Final = 0xFF
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers of the parts of a JPEG that have its size."""


def is_png(data: bytes) -> bool:
    """Return True for bytes that begin as a PNG picture of at most PIXELS_MAX in both directions."""
    if not data.startswith(_PNG) or len(data) < _PNG_SIZE.size:
        return False
    length, kind, width, height = _PNG_SIZE.unpack_from(data)
    return (length, kind) == (_PNG_HEAD_BYTES, b"IHDR") and _is_bounded(width, height)


def is_jpeg(data: bytes) -> bool:
    """Return True for bytes that begin as a JPEG picture of at most PIXELS_MAX in both directions."""
    if not data.startswith(_JPEG):
        return False
    place = 2
    for _ in range(_JPEG_PARTS_MAX):
        if place + _JPEG_PART.size + _JPEG_SIZE.size > len(data):
            return False
        begin, marker, length = _JPEG_PART.unpack_from(data, place)
        if begin != _MARKER:
            return False
        if marker in _FRAMES:
            _, height, width = _JPEG_SIZE.unpack_from(data, place + _JPEG_PART.size)
            return _is_bounded(width, height)
        place += 2 + length
    return False


def _is_bounded(width: int, height: int) -> bool:
    return 0 < width <= PIXELS_MAX and 0 < height <= PIXELS_MAX
