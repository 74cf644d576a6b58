"""The transfer of the needed parts of inputs from other nodes; local inputs are mapped in place."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dios.client.sync.node import Reference
from dios.lib.jobs.records import Segment
from dios.limits import JOB_FETCH_BYTES

_NEWLINE: Final = b"\n"


def fetch(blob: Reference, segment: Segment) -> tuple[memoryview, Segment]:
    """Return the bytes of a segment's records, and the segment within them.

    A record begins at the start of its document or after a newline: so the byte before the segment is
    needed too, and the last record to its end.
    """
    base = max(segment.start, segment.first - 1)
    parts = [blob.read_bytes(segment.last - base, base)]
    end = base + len(parts[0])
    while end < segment.end and not _whole(parts[-1], len(parts) == 1):
        parts.append(blob.read_bytes(min(JOB_FETCH_BYTES, segment.end - end), end))
        end += len(parts[-1])
        if not parts[-1]:
            break
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    moved = replace(
        segment, start=0, end=len(data), first=segment.first - base, last=min(segment.last - base, len(data))
    )
    return memoryview(data), moved


def _whole(part: bytes, first: bool) -> bool:  # noqa: FBT001 - one internal caller
    """Return True if the last record ends within a part; for the first, only with its last byte."""
    return part.endswith(_NEWLINE) if first else _NEWLINE in part
