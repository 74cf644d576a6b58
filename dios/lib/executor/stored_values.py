"""Values that lie in blobs instead of in messages: large arguments, results, and those of ``dios.put``.

A ``DataStore`` belongs to the pool of an executor. Its thread makes the calls to the node: it creates the
blobs of arguments, gives them to workers, takes over those of results, and closes references to blobs that
the program does not use any more. ``worker_data`` is the other side, ``blobs`` the bytes.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from dios.client.sync.node import Node, Reference, Task
from dios.errors import DiosError
from dios.lib.executor.blobs import address_of, aligned, are_equal, blank_blob, create_blob, map_blob

_SENT_KEPT: Final = 256
_END_WAIT_S: Final = 30.0

_CHECK_S: Final = 1.0
"""The pause between two looks for ``bytes`` that the program has dropped: they have no weak references."""

_OWN_REFERENCES: Final = 3
"""The references to ``bytes`` that nobody has but the store: in its table, as a variable, as an argument."""


class _Dropped(NamedTuple):
    """Nothing refers to a blob any more; the store that created it closes its references."""

    own: bool
    places: dict[str, Reference]


Job: TypeAlias = Callable[[], None]
_Jobs: TypeAlias = "queue.SimpleQueue[Job | _Dropped | None]"


def _notify(places: dict[str, Reference], stores: list[_Jobs]) -> None:
    # In whichever thread the last use ended: this queue is made for that, and nothing else happens here.
    for number, jobs in enumerate(stores):
        jobs.put(_Dropped(number == 0, places))


class StoredBlob:
    """A blob that lives as long as something in this program refers to it."""

    __slots__ = ("__weakref__", "_lock", "_places", "_stores", "_view", "link", "node", "private")

    def __init__(self, blob: Reference, jobs: _Jobs, *, private: bool) -> None:
        self._places: Final = {blob.node: blob}
        self._stores: Final = [jobs]
        self._lock: Final = threading.Lock()
        self._view: memoryview | None = None
        self.link: Final = blob.link
        self.node: Final = blob.node
        self.private: Final = private
        weakref.finalize(self, _notify, self._places, self._stores).atexit = False

    def at(self, node: str) -> Reference | None:
        """Return the reference to the bytes on a node; None if they were not copied there yet."""
        return self._places.get(node)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that have the bytes."""
        return tuple(self._places)

    @property
    def size(self) -> int:
        """Return the number of bytes, at least 1. It may be too low just after the end of a remote call."""
        return max(1, self._places[self.node].size)

    def copy_to(self, node: str) -> None:
        """Copy the bytes to another node, once for all its workers."""
        if node not in self._places:
            self._places[node] = self._places[self.node].copy(host=node)

    def used_by(self, jobs: _Jobs) -> None:
        """Report the end of this blob to another store as well."""
        if jobs not in self._stores:
            self._stores.append(jobs)

    def view(self) -> memoryview:
        """Return the bytes, mapped at the first call.

        They are read-only; those of a result are writable, as nobody else gets them from this mapping.
        """
        with self._lock:
            if self._view is None:
                self._view = map_blob(self._places[self.node], private=self.private)
            return self._view

    def close(self) -> None:
        """Close the references; a mapping stays."""
        for reference in list(self._places.values()):
            with contextlib.suppress(DiosError):
                reference.close()


class Place(NamedTuple):
    """The place of a buffer in a blob."""

    blob: StoredBlob
    offset: int
    size: int


class _Sent(NamedTuple):
    owner: weakref.ref[object]
    place: Place
    seen_ns: int
    """A time of ``time.monotonic_ns`` after which the owner had these bytes."""


class DataStore:
    """The blobs of one pool, and the thread that handles them. ``report_dropped`` gets object ids."""

    def __init__(self, node: Node, report_dropped: Callable[[list[int]], None]) -> None:
        self.node: Final = node
        self._report_dropped: Final = report_dropped
        self._jobs: Final[_Jobs] = queue.SimpleQueue()
        self._live: Final[weakref.WeakSet[StoredBlob]] = weakref.WeakSet()
        self._lock: Final = threading.Lock()
        self._sent: Final[dict[tuple[int, int, int], _Sent]] = {}
        self._sent_bytes: Final[dict[int, tuple[bytes, Place]]] = {}
        self._thread: threading.Thread | None = None
        self._ended = False

    # -- any thread -------------------------------------------------------------------------------
    def do(self, job: Job) -> None:
        """Run a job in the thread of this store, which must not raise."""
        with self._lock:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="dios executor data", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def keep(self, blob: Reference, *, private: bool = False) -> StoredBlob:
        """Take over a blob; its ``view`` is writable if it is ``private``."""
        kept = StoredBlob(blob, self._jobs, private=private)
        with self._lock:
            self._live.add(kept)
        return kept

    def use(self, blob: StoredBlob) -> None:
        """Note that workers of this store's pool get a blob of any store."""
        blob.used_by(self._jobs)

    # -- its own thread ---------------------------------------------------------------------------
    def _run(self) -> None:
        job: Job | _Dropped | None
        while True:
            try:
                job = self._jobs.get(timeout=_CHECK_S if self._sent_bytes else None)
            except queue.Empty:
                self._forget_bytes()
                continue
            if job is None:
                return
            if isinstance(job, _Dropped):
                self._drop(job)
            else:
                job()
            del job

    def _forget_bytes(self) -> None:
        for key, (value, _) in list(self._sent_bytes.items()):
            if sys.getrefcount(value) <= _OWN_REFERENCES:
                del self._sent_bytes[key]

    def _drop(self, dropped: _Dropped) -> None:
        references = list(dropped.places.values())
        self._report_dropped([blob.object_id for blob in references])
        for reference in references if dropped.own else ():
            with contextlib.suppress(DiosError):
                reference.close()

    def place_all(self, buffers: Sequence[memoryview], submitted_ns: int) -> list[Place]:
        """Return the places of buffers in blobs; those that are not in one yet go into a new one together.

        A buffer is in one if its owner lives and its bytes are still the same; ``bytes`` cannot change. Bytes
        that were copied or compared after ``submitted_ns`` (``time.monotonic_ns``) are not compared again:
        calls that wait together need one comparison.
        """
        now_ns = time.monotonic_ns()
        places = [self._find(view, submitted_ns, now_ns) for view in buffers]
        new = [view for view, known in zip(buffers, places, strict=True) if known is None]
        if new:
            blob = self.keep(create_blob(self.node, new))
            end = 0
            for number, buffer in enumerate(buffers):
                if places[number] is None:
                    end = aligned(end)
                    places[number] = place = Place(blob, end, buffer.nbytes)
                    end += buffer.nbytes
                    self._remember(buffer, place, now_ns)
        return [placed for placed in places if placed is not None]

    def _find(self, buffer: memoryview, submitted_ns: int, now_ns: int) -> Place | None:
        if isinstance(buffer.obj, bytes):
            kept = self._sent_bytes.get(id(buffer.obj))
            return kept[1] if kept is not None and kept[1].size == buffer.nbytes else None
        key = _sent_key(buffer)
        sent = self._sent.get(key)
        if sent is None or sent.owner() is None:
            return None
        if sent.seen_ns <= submitted_ns:
            stored = address_of(sent.place.blob.view()) + sent.place.offset
            if not are_equal(address_of(buffer), stored, sent.place.size):
                return None
            self._sent[key] = sent._replace(seen_ns=now_ns)
        return sent.place

    def _remember(self, buffer: memoryview, place: Place, now_ns: int) -> None:
        if isinstance(buffer.obj, bytes):
            while len(self._sent_bytes) >= _SENT_KEPT:
                del self._sent_bytes[next(iter(self._sent_bytes))]
            if buffer.nbytes == len(buffer.obj):
                self._sent_bytes[id(buffer.obj)] = buffer.obj, place
            return
        if not address_of(buffer):
            return
        key = _sent_key(buffer)
        sent = self._sent
        with contextlib.suppress(TypeError):  # an owner without weak references
            # The callback runs in any thread; to remove a key is one step of the interpreter.
            owner = weakref.ref(_owner(buffer), lambda _: sent.pop(key, None) and None)
            while len(sent) >= _SENT_KEPT:
                sent.pop(next(iter(sent)), None)
            sent[key] = _Sent(owner, place, now_ns)

    def give(self, task: Task, blobs: Sequence[Reference]) -> None:
        """Give a worker the right to read some blobs. Raises DiosError."""
        for blob in blobs:
            blob.delegate(task, "read")

    def give_blank(self, task: Task, blanks: dict[int, Reference]) -> None:
        """Give a worker a blob for a result, and put it into ``blanks`` before. Raises DiosError."""
        blob = blank_blob(self.node, host=task.node)
        blanks[blob.object_id] = blob
        blob.delegate(task, "write")

    def take_over(self, blob: Reference) -> StoredBlob:
        """Take the right to write from the worker that wrote a result, and keep the blob."""
        blob.retire()
        return self.keep(blob, private=True)

    # -- the end ----------------------------------------------------------------------------------
    def close(self) -> None:
        """Map the values that the program still uses, so that they outlive their blobs; close all blobs."""
        with self._lock:
            thread, self._ended = self._thread, True
        self._sent.clear()
        if thread is not None:
            self._jobs.put(None)
            thread.join(_END_WAIT_S)
        self._sent_bytes.clear()
        with self._lock:
            left = list(self._live)
        for blob in left:
            with contextlib.suppress(DiosError):
                blob.view()
            blob.close()


def _owner(buffer: memoryview) -> object:
    """Return the object that has the memory of a buffer: of an array's view the array."""
    owner: object = buffer.obj
    if isinstance(owner, pickle.PickleBuffer):
        owner = memoryview(owner).obj
    while True:
        base = getattr(owner, "base", None)
        if base is None or isinstance(base, bytes | bytearray | memoryview):
            return owner
        owner = base


def _sent_key(buffer: memoryview) -> tuple[int, int, int]:
    return id(_owner(buffer)), address_of(buffer), buffer.nbytes


def close_all_of(blobs: dict[int, Reference]) -> None:
    """Close the blobs that a worker got for results and did not use."""
    while blobs:
        with contextlib.suppress(DiosError):
            blobs.popitem()[1].close()
