"""Pickles the functions and arguments of calls with their large parts in blobs, in the caller."""

from __future__ import annotations

import concurrent.futures
import io
import pickle
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from dios.client.sync.node import Reference
from dios.errors import DiosError
from dios.lib.executor import worker_data
from dios.lib.executor.blobs import BUFFER_BYTES_MIN, create_blob
from dios.lib.executor.call_pickles import (
    PICKLED_CALL,
    SHARED_CALL,
    CallPickler,
    Pickle,
    SharedHead,
    named_errors,
)
from dios.lib.executor.frames import Function
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.main_module import BoundNamespace, MainContext
from dios.lib.executor.references import ValueReference
from dios.lib.executor.results.reader import BUFFERS_MAX
from dios.lib.executor.stored_values import DataStore, Place, StoredBlob
from dios.lib.executor.values import STORED_BYTES_MIN, Encoded, ResultKind

_pack: Final = msgspec.msgpack.Encoder().encode


class NeedsDataError(Exception):
    """A call has large buffers, references or futures, so that ``prepare`` must encode it."""


class _WaitingError(Exception):
    def __init__(self, future: concurrent.futures.Future[object]) -> None:
        super().__init__()
        self.future: Final = future


class _FailedError(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: Final = error


# -- bytes objects ------------------------------------------------------------------------------------
_BYTES_KINDS: Final = {
    pickle.BINBYTES: b"cbuiltins\nbytes\n",
    pickle.BINBYTES8: b"cbuiltins\nbytes\n",
    pickle.BYTEARRAY8: b"cbuiltins\nbytearray\n",
}
_FROM_BUFFER: Final = pickle.NEXT_BUFFER + pickle.TUPLE1 + pickle.REDUCE
_FRAME_HEAD_BYTES: Final = 9


class BytesFile:
    """The pickle of a call. Large ``bytes`` and ``bytearray`` objects go to ``take`` instead.

    Pickle asks nobody about ``bytes``, so they are found in what it writes: frames, and a value of at least
    64 KiB between two frames (PEP 3154). The write before such a value ends with its operation and size; here
    operations take their place that make the value of the next buffer.
    """

    def __init__(self, take: Callable[[bytes | bytearray], None], *, bytes_min: int) -> None:
        self._take: Final = take
        self._bytes_min: Final = bytes_min
        self._parts: Final[list[bytes]] = []
        self._head = 0
        """The size of an operation at the end of the last part, of which the value comes next."""

    def write(self, data: bytes | bytearray) -> None:
        """Add a part of the pickle."""
        head, self._head = self._head, 0
        if not head:
            self._head = _size_of_head(data)
        elif len(data) >= self._bytes_min:
            last = self._parts[-1]
            kind = _BYTES_KINDS.get(last[-head : 1 - head])
            if kind is not None:
                self._take(data)
                self._parts[-1] = last[:-head] + kind + _FROM_BUFFER
                return
        self._parts.append(bytes(data))

    def getvalue(self) -> bytes:
        """Return the pickle."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


def _size_of_head(data: bytes | bytearray) -> int:
    """Return the size of the operation after the frame in a write of a pickler, 0 if there is none.

    Fewer than four bytes have no frame around them.
    """
    place = 2 if data[:1] == pickle.PROTO else 0
    if data[place : place + 1] == pickle.FRAME:
        place += _FRAME_HEAD_BYTES + int.from_bytes(data[place + 1 : place + _FRAME_HEAD_BYTES], "little")
    after = len(data) - place
    return 9 if after >= 9 else 5 if after >= 5 else 0


# -- calls without large data -------------------------------------------------------------------------
class InlinePickler(CallPickler):
    """Refuses large buffers, references and futures."""

    def __init__(self, file: BytesFile, main: MainContext | None = None) -> None:
        super().__init__(file, self.stays, main)

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Return True. Raise NeedsDataError for a large buffer."""
        if _is_large(buffer):
            raise NeedsDataError
        return True

    def reduced_namespace(self, names: frozenset[str]) -> object:
        """Refuse large values of the main module."""
        if names:
            raise NeedsDataError
        return super().reduced_namespace(names)

    def reducer_override(self, value: object) -> object:
        """Refuse what is not sent as it is."""
        if isinstance(value, ValueReference | concurrent.futures.Future):
            raise NeedsDataError
        return super().reducer_override(value)


def _is_large(buffer: pickle.PickleBuffer) -> bool:
    try:
        return buffer.raw().nbytes >= BUFFER_BYTES_MIN
    except BufferError:  # bytes that are not next to each other
        return False


def _needs_data(_value: object) -> None:
    raise NeedsDataError


def pickled_function(value: object, subject: str, main: MainContext | None = None) -> Pickle:
    """Return the same as ``pickled_small``. Less than 1 MiB of ``bytes`` in a function, which is usually sent
    once to each worker, does not raise NeedsDataError.
    """
    return pickled_small(value, subject, main, bytes_min=STORED_BYTES_MIN)


def pickled_small(
    value: object, subject: str, main: MainContext | None = None, *, bytes_min: int = BUFFER_BYTES_MIN
) -> Pickle:
    """Return the pickle of a value, like ``call_pickles.pickled_whole``.

    Raises NeedsDataError for a value with large parts, a reference or a future.
    """
    file = BytesFile(_needs_data, bytes_min=bytes_min)
    pickler = InlinePickler(file, main)
    with named_errors(subject, NeedsDataError):
        pickler.dump(value)
    # Otherwise the values stay until the next collection of cycles.
    pickler.clear_memo()
    return Pickle(PICKLED_CALL + file.getvalue(), pickler.modules, pickler.names)


# -- calls with large data ----------------------------------------------------------------------------
@dataclass(slots=True)
class SharedPickle:
    """A pickle whose large buffers and stored values are in blobs."""

    body: bytes
    places: list[Place]
    values: list[StoredBlob]

    def blobs(self) -> list[StoredBlob]:
        """Return the blobs."""
        return [*(place.blob for place in self.places), *self.values]

    def message(self, node: str) -> bytes:
        """Return the form for workers of a node, to which the blobs were copied before."""
        if not (self.places or self.values):
            return PICKLED_CALL + self.body
        head = _pack(
            SharedHead(
                [(_id_at(place.blob, node), place.offset, place.size) for place in self.places],
                [_id_at(blob, node) for blob in self.values],
            )
        )
        return b"".join((SHARED_CALL, len(head).to_bytes(4, "little"), head, self.body))


def _id_at(blob: StoredBlob, node: str) -> int:
    reference = blob.at(node)
    if reference is None:
        raise RuntimeError(f"a blob was not copied to node {node}")
    return reference.object_id


@dataclass(slots=True)
class PreparedCall:
    """The function and the arguments of a call, encoded; and the names of the modules that they need."""

    function: SharedPickle
    arguments: SharedPickle
    modules: set[str]
    blobs: list[StoredBlob] = field(default_factory=list)

    def missing(self, node: str) -> int:
        """Return the number of bytes to copy to a node before the call can go to a worker there."""
        return sum(blob.size for blob in self.blobs if blob.at(node) is None)

    def references(self, node: str) -> list[Reference]:
        """Return the references to the blobs on a node."""
        return [reference for blob in self.blobs if (reference := blob.at(node)) is not None]


class StoredNames(NamedTuple):
    """Names of the main module, and the blob with the pickle of their values."""

    names: tuple[str, ...]
    blob: StoredBlob


class StoringMain(MainContext, Protocol):
    """The main module of a pickler that can store values."""

    def stored(self, names: Iterable[str], store: DataStore) -> list[StoredNames]:
        """Return large values in blobs, in an order in which workers can set them.

        Those that are sent with each call are missing.
        """

    def value(self, name: str) -> object:
        """Return the value of a name, or of an attribute of a class."""


class CallPreparation:
    """Encodes one call in the thread of the store: waits for the futures that it needs, and stores its data.

    ``done`` gets the prepared call or the exception of the call. With ``by_value`` results of other calls are
    sent as values, for workers that cannot load them. The arguments have the values of some moment after
    ``submitted_ns``, a time of ``time.monotonic_ns``.
    """

    def __init__(
        self,
        store: DataStore,
        function: Function[object],
        arguments: tuple[Sequence[object], dict[str, object]],
        done: Callable[[PreparedCall | BaseException], None],
        *,
        main: StoringMain,
        by_value: bool,
        submitted_ns: int,
    ) -> None:
        self._store: Final = store
        self._main: Final = main
        self._function: Final = function
        self._arguments: Final = arguments
        self._done: Final = done
        self.by_value: Final = by_value
        self._submitted_ns: Final = submitted_ns

    def start(self) -> None:
        """Begin, or try again."""
        self._store.do(self._run)

    def _run(self) -> None:
        try:
            modules: set[str] = set()
            function = self._pickled(self._function, "the function", modules)
            arguments = self._pickled(self._arguments, "an argument", modules)
            prepared = PreparedCall(function, arguments, modules, [*function.blobs(), *arguments.blobs()])
        except _WaitingError as waiting:
            if isinstance(waiting.future, CallFuture) and waiting.future.done():
                # Decoded by a thread of its own, because a hostile worker can make that long.
                decode_apart(waiting.future, self.start)
            else:
                waiting.future.add_done_callback(lambda _: self.start())
        except _FailedError as failed:
            self._done(failed.error)
        except BaseException as error:  # noqa: BLE001 - code of the call's own values runs here
            self._done(error)
        else:
            for blob in prepared.blobs:
                self._store.use(blob)
            self._done(prepared)

    def _pickled(self, value: object, subject: str, modules: set[str]) -> SharedPickle:
        buffers: list[memoryview] = []
        file = BytesFile(lambda buffer: buffers.append(memoryview(buffer)), bytes_min=BUFFER_BYTES_MIN)
        pickler = _DataPickler(file, buffers, self._store, self._main, by_value=self.by_value)
        with named_errors(subject, _WaitingError, _FailedError):
            pickler.dump(value)
        modules |= pickler.modules
        places = self._store.place_all(buffers, self._submitted_ns)
        # Otherwise the values stay until the next collection of cycles.
        pickler.clear_memo()
        buffers.clear()
        return SharedPickle(file.getvalue(), places, pickler.values)


def prepare_initializer(
    store: DataStore, main: StoringMain, function: Function[object], args: Sequence[object]
) -> PreparedCall:
    """Encode an initializer, as the pair of it and its arguments, and wait for the futures among them.

    Raises InvalidError if it cannot be pickled, and the exception of a future.
    """
    done: queue.SimpleQueue[PreparedCall | BaseException] = queue.SimpleQueue()
    pair = cast("Function[object]", (function, tuple(args)))
    now_ns = time.monotonic_ns()
    CallPreparation(store, pair, ((), {}), done.put, main=main, by_value=True, submitted_ns=now_ns).start()
    outcome = done.get()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def decode_apart(future: CallFuture[object], then: Callable[[], None]) -> None:
    """Decode a result in a thread of its own."""
    import threading  # noqa: PLC0415 - seldom

    def run() -> None:
        future.exception()
        then()

    threading.Thread(target=run, name="dios executor value", daemon=True).start()


class _DataPickler(CallPickler):
    """Leaves out large buffers, and the values of references and futures."""

    def __init__(
        self,
        file: BytesFile,
        buffers: list[memoryview],
        store: DataStore,
        main: StoringMain,
        *,
        by_value: bool,
    ) -> None:
        super().__init__(file, self._stays, main)
        self._store: Final = store
        self._storing: Final = main
        self._by_value: Final = by_value
        self._buffers: Final = buffers
        self.values: Final[list[StoredBlob]] = []

    def _stays(self, buffer: pickle.PickleBuffer) -> bool:
        if not _is_large(buffer):
            return True
        self._buffers.append(buffer.raw())
        return False

    def reducer_override(self, value: object) -> object:
        """Take the values of references and futures from blobs."""
        if isinstance(value, ValueReference):
            self.modules.update(value.modules)
            if value.blob.link is not self._store.node.link:
                return worker_data.same, (value.get(),)
            return self._shared(value.blob, own=True, names=value.names)
        if isinstance(value, concurrent.futures.Future):
            return self._reduced(value)
        return super().reducer_override(value)

    def _reduced(self, future: concurrent.futures.Future[object]) -> object:
        """Return how a worker gets the result of another call."""
        if not future.done():
            raise _WaitingError(future)
        if isinstance(future, CallFuture) and not future.cancelled():
            sent = None if self._by_value else future.as_sent()
            if isinstance(sent, bytes):
                return worker_data.sent, (sent,)
            if sent is not None and sent.link is self._store.node.link:
                return self._shared(sent, own=False)
            if future.is_undecoded:
                raise _WaitingError(future)
        try:
            return worker_data.same, (future.result(),)
        except BaseException as error:  # noqa: BLE001 - the call fails with it
            raise _FailedError(error) from None

    def _shared(self, blob: StoredBlob, *, own: bool, names: frozenset[str] = frozenset()) -> object:
        self.values.append(blob)
        arguments = len(self.values) - 1, own
        brought = self.needed(names)
        return worker_data.stored, (*arguments, self.brought(brought)) if brought else arguments

    def reduced_namespace(self, names: frozenset[str]) -> object:
        """Take large values of the script from blobs."""
        stored: list[tuple[tuple[str, ...], int]] = []
        for group, blob in self._storing.stored(names, self._store):
            stored.append((group, len(self.values)))
            self.values.append(blob)
        others = names.difference(*(group for group, _ in stored))
        values = {name: self._storing.value(name) for name in sorted(others)}
        return worker_data.namespace_with, (values, stored)


def copied(
    store: DataStore, prepared: PreparedCall, node: str, done: Callable[[BaseException | None], None]
) -> None:
    """Copy the blobs of a call to another node, in the thread of the store."""

    def run() -> None:
        try:
            for blob in prepared.blobs:
                blob.copy_to(node)
        except DiosError as error:
            done(error)
        else:
            done(None)

    store.do(run)


# -- put ----------------------------------------------------------------------------------------------
class _StoredPickler(CallPickler):
    """Pickles a value that the program loads as well: it brings nothing into a main module."""

    def brought(self, _names: frozenset[str]) -> BoundNamespace:
        """Return a namespace without values: the calls with the reference bring them."""
        return BoundNamespace(frozenset())

    def reducer_override(self, value: object) -> object:
        """Refuse futures and references: no worker may be there to give them a value."""
        if isinstance(value, ValueReference | concurrent.futures.Future):
            raise TypeError(f"it has a {type(value).__name__} in it; put the value of that")
        return super().reducer_override(value)


def stored_reference(store: DataStore, value: object, main: MainContext) -> ValueReference[object]:
    """Store a value for ``put``. Raises InvalidError if it cannot be pickled."""
    file = io.BytesIO()
    buffers: list[memoryview] = []

    def leave_out(buffer: pickle.PickleBuffer) -> bool:
        if len(buffers) >= BUFFERS_MAX:
            return True
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True
        return False

    pickler = _StoredPickler(file, leave_out, main)
    with named_errors("the value"):
        pickler.dump(value)
    blob = create_blob(store.node, Encoded(ResultKind.PICKLE, file.getvalue(), buffers).parts())
    return ValueReference(store.keep(blob), frozenset(pickler.modules), frozenset(pickler.names))
