"""The main function of a job's tasks: it reads the order, loads the job's functions, and does the work.

A task has the references that it received at its start, and streams that are delegated while it runs.
``dios.lib.jobs.mapping`` and ``dios.lib.jobs.intake`` are the work itself.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, cast

from msgspec.structs import replace

from dios.client.ops.status import Delegated, Lost
from dios.client.sync.node import Node, Reference, Stream, connect
from dios.errors import (
    ClosedError,
    DiosError,
    EndOfStreamError,
    LimitError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
)
from dios.lib.jobs import chunks
from dios.lib.jobs.functions import Functions, functions_of
from dios.lib.jobs.intake import Intake
from dios.lib.jobs.mapping import ChunkOutlet, KeptOutlet, run_mapper
from dios.lib.jobs.orders import (
    JOB_MODULE,
    PART_LABEL,
    Finished,
    MapOrder,
    PartUnread,
    ProgressReport,
    ReduceOrder,
    Report,
    decode_order,
)
from dios.lib.jobs.orders import encode as encode_report
from dios.lib.jobs.records import Segment
from dios.limits import JOB_FETCH_BYTES, JOB_HEARTBEAT_MS, JOB_REPORT_PERIOD_MS, JOB_WINDOW_BYTES, KIB
from dios.wire.types import NameKind, ObjectType, Proximity, Semantics

_KEPT_BEFORE_COLLECTING: Final = 100_000
"""The tables of a job are many containers without cycles; a collection every 700 objects costs a tenth."""


def main() -> None:
    """Carry out the order in the first input, and report on the first output."""
    node = connect()
    gc.freeze()
    gc.set_threshold(_KEPT_BEFORE_COLLECTING)
    order = decode_order(node.inputs[0].read_bytes())
    size = sum(part.end - part.start for part in order.segments) if isinstance(order, MapOrder) else 0
    reporter = Reporter(node, cast("Stream", node.outputs[0]), size)
    functions = functions_of(importlib.import_module(JOB_MODULE))
    try:
        if isinstance(order, MapOrder):
            finished = _map(node, order, functions, reporter)
        else:
            finished = _reduce(node, order, functions, reporter)
        reporter.send(finished)
    except ControllerGoneError:
        raise SystemExit(1) from None


class ControllerGoneError(Exception):
    """The controller is gone, so the work of this task is not needed."""


class Reporter:
    """Sends the progress of the task to the controller, and its share of ``size`` to the node.

    Both happen a few times a second. A ``size`` of 0 is unknown: it is that of reducers.
    """

    def __init__(self, node: Node, stream: Stream, size: int) -> None:
        self._node: Final = node
        self._stream: Final = stream
        self._size: Final = size
        self._amount = self._done = 0
        self._due = time.monotonic() + JOB_REPORT_PERIOD_MS / 1000

    def send(self, report: Report) -> None:
        """Send a report at once; ControllerGoneError if nobody reads it."""
        try:
            if self._amount and not isinstance(report, ProgressReport):
                self._stream.send(encode_report(ProgressReport(self._amount)))
                self._amount = 0
            self._stream.send(encode_report(report))
        except (ClosedError, UnreachableError):
            raise ControllerGoneError from None

    def progress(self, amount: int) -> None:
        """Add bytes or pairs to the progress; it is sent from time to time."""
        self._amount += amount
        self._done += amount
        now = time.monotonic()
        if now >= self._due:
            amount, self._amount = self._amount, 0
            self._due = now + JOB_REPORT_PERIOD_MS / 1000
            self.send(ProgressReport(amount))
            if self._size:
                self._node.progress(min(1.0, self._done / self._size))


def _finished(pairs: int, spilled: int = 0) -> Finished:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Finished(pairs, time.process_time_ns(), usage.ru_maxrss * KIB, spilled)


# -- mappers ------------------------------------------------------------------------------------------
class _StreamOutlet:
    """The writing end of a stream to one reducer."""

    def __init__(self, stream: Stream, reporter: Reporter) -> None:
        self._stream: Final = stream
        self._writer: Final = stream.writer
        self._reporter: Final = reporter

    def send(self, data: bytes) -> None:
        while True:
            try:
                self._writer.send(data, JOB_HEARTBEAT_MS / 1000)
            except TimeLimitError:
                # Nothing of it was sent. The reducer is slow, or the controller is gone and will not delegate
                # this stream: the report shows that.
                self._reporter.send(ProgressReport(0))
            else:
                return

    def close(self) -> None:
        self._stream.detach()


def _map(node: Node, order: MapOrder, functions: Functions, reporter: Reporter) -> Finished:
    with ExitStack() as requests:
        views, order = _views(node, order, requests)
        streams = node.outputs[1 : 1 + len(order.partitions)]
        outlets: list[ChunkOutlet] = [_StreamOutlet(cast("Stream", stream), reporter) for stream in streams]
        kept = [KeptOutlet(outlet) for outlet in outlets] if node.outputs[-1].label == PART_LABEL else []
        pages = [_Pages(view) for view in views]

        def progress(number: int, start: int, stop: int) -> None:
            pages[number].passed(stop)
            reporter.progress(stop - start)

        pairs = run_mapper(order, functions, views, kept or outlets, progress)
    if kept:
        _write(node.outputs[-1], chunks.kept_part([outlet.sent for outlet in kept]))
    return _finished(pairs)


def _views(node: Node, order: MapOrder, requests: ExitStack) -> tuple[list[memoryview], MapOrder]:
    """The bytes of the inputs: those on this node mapped, of others only the needed parts."""
    blobs = node.inputs[1:]
    if not any(_is_away(blob) for blob in blobs):
        return [requests.enter_context(blob.read(Semantics.ANY)).view for blob in blobs], order
    mapped: dict[int, int] = {}
    views: list[memoryview] = []
    segments: list[Segment] = []
    for segment in order.segments:
        blob = blobs[segment.input]
        if _is_away(blob):
            view, moved = fetch(blob, segment)
            segments.append(replace(moved, input=len(views)))
            views.append(view)
            continue
        if segment.input not in mapped:
            mapped[segment.input] = len(views)
            views.append(requests.enter_context(blob.read(Semantics.ANY)).view)
        segments.append(replace(segment, input=mapped[segment.input]))
    return views, replace(order, segments=tuple(segments))


def _is_away(blob: Reference) -> bool:
    return blob.proximity in {Proximity.RACK, Proximity.CLUSTER}


class _Pages:
    """The mapped pages of an input, released after reading: a mapper that reads gigabytes occupies some
    megabytes. The object keeps its bytes.
    """

    def __init__(self, view: memoryview) -> None:
        self._map: Final = view.obj if isinstance(view.obj, mmap.mmap) else None
        self._kept = 0

    def passed(self, place: int) -> None:
        """Release the bytes before ``place``, which are not needed again."""
        if self._map is None or place - self._kept < JOB_WINDOW_BYTES:
            return
        end = place // mmap.PAGESIZE * mmap.PAGESIZE
        if end > self._kept and end <= len(self._map):
            self._map.madvise(mmap.MADV_DONTNEED, self._kept, end - self._kept)
            self._kept = end


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
    return part.endswith(b"\n") if first else b"\n" in part


# -- reducers -----------------------------------------------------------------------------------------
class _Disk:
    """Creates spools of anonymous durable objects, which live as long as the task refers to them."""

    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self.spilled = 0

    def spool(self, parts: list[bytes]) -> _BlobSpool:
        """Write chunks to disk."""
        data = b"".join(map(chunks.framed, parts))
        self.spilled += len(data)
        blob = self._node.create(ObjectType.DURABLE_BLOB, data=data, naming=NameKind.ANONYMOUS)
        return _BlobSpool(blob)


class _BlobSpool:
    """Chunks in one object."""

    def __init__(self, blob: Reference) -> None:
        self._blob: Final = blob

    def __iter__(self) -> Iterator[memoryview]:
        with self._blob.read(Semantics.ANY) as request:
            yield from chunks.unframed(request.view)

    def close(self) -> None:
        """Drop the only reference, and the object with it."""
        self._blob.delete()


def _reduce(node: Node, order: ReduceOrder, functions: Functions, reporter: Reporter) -> Finished:
    disk = _Disk(node)
    intake = Intake(order, functions, disk.spool)
    _take_in(node, intake, reporter)
    parts: list[bytes] = []
    pairs = 0
    for keys, values in intake.results():
        parts.append(chunks.framed(chunks.encode_pairs(keys, values)))
        pairs += len(keys)
        reporter.progress(len(keys))
    _write(node.outputs[1], parts)
    intake.close()
    return _finished(pairs, disk.spilled)


def _take_in(node: Node, intake: Intake, reporter: Reporter) -> None:
    """Read the mappers' streams as they are delegated, until all have ended (Listing 4.4).

    Each ring is mapped once and read in place again and again (Listing 4.6).
    """
    streams: list[Stream] = []
    while not intake.complete:
        ready = node.select([*streams, node.self], timeout=JOB_HEARTBEAT_MS / 1000)
        if ready is None:
            # This fails if the controller is gone.
            reporter.send(ProgressReport(0))
        elif isinstance(ready, Stream):
            if not _read(ready, intake, reporter):
                streams.remove(ready)
                ready.detach()
                ready.close()
        else:
            event = node.next_event()
            if isinstance(event, Lost):
                raise LimitError(
                    f"{event.count} delegations were dropped: the task did not read its events in time"
                )
            if isinstance(event, Delegated) and isinstance(event.reference, Stream):
                streams.append(event.reference)
            elif isinstance(event, Delegated):
                _read_part(event.reference, intake, reporter)


def _read_part(part: Reference, intake: Intake, reporter: Reporter) -> None:
    """Read the pairs of a mapper that were kept for reducers that begin again."""
    try:
        place, size = chunks.section_of(part.read_bytes(chunks.PART_HEADER_BYTES, 0), intake.reducer)
        data = memoryview(part.read_bytes(size, place))
    except (DiosError, ProtocolError):
        reporter.send(PartUnread(part.object_id))
    else:
        for message in chunks.unframed(data):
            told = intake.message(part.ref, bytes(message))
            if told is not None:
                reporter.send(told)
    part.close()


def _read(stream: Stream, intake: Intake, reporter: Reporter) -> bool:
    """Read the data of a stream; return False at its end."""
    try:
        messages = stream.reader.receive_many()
    except EndOfStreamError:
        intake.closed(stream.ref)
        return False
    except (ProtocolError, UnreachableError):
        # A mapper that dies within a message leaves an incomplete one, and its stream breaks with its node.
        intake.closed(stream.ref)
        return False
    for message in messages:
        told = intake.message(stream.ref, message)
        if told is not None:
            reporter.send(told)
    return True


def _write(output: Reference, parts: list[bytes]) -> None:
    """Write the output at once: no task reads a part of it, and a repetition replaces it."""
    size = sum(map(len, parts))
    if not size:
        output.write_bytes(b"", replace=True)
        return
    with output.write(size, Semantics.EXCL, blank=True, replace=True) as request:
        place = 0
        for part in parts:
            request.view[place : place + len(part)] = part
            place += len(part)
