"""The values in blobs, in a worker: it asks its executor for the blobs of a call, and maps them.

``stored_values`` is the side of the executor. A worker gets a reference to a blob when it asks for one that
belongs to a call that it has, and to blank blobs for its large results.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import msgspec
from msgspec.structs import replace

from dios.client.ops.status import Delegated
from dios.client.sync.node import Node, Reference
from dios.lib.executor.archives import Archive, install
from dios.lib.executor.blobs import map_blob, write_parts
from dios.lib.executor.call_pickles import PLAIN_CALL, SHARED_CALL, Arguments, SharedHead
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.main_module import IF_DIFFERENT, Definition, main_namespace
from dios.lib.executor.values import Encoded, decode_result, decode_stored, taken_apart
from dios.wire.types import Permission

_ASKED_MAX: Final = 256
"""The references in one question: their events stay in a bounded queue until they are read."""

_unpack: Final = msgspec.msgpack.Decoder().decode
_head: Final = msgspec.msgpack.Decoder(SharedHead)


class UnreadableValueError(Exception):
    """An argument is the result of another call, of a class that is not known here; its caller knows it."""


class BindingMain(Protocol):
    """The main module of a worker, as far as large values are set in it."""

    def bind(self, name: str, value: object) -> None:
        """Set a name, or an attribute of a class, to a value."""

    def define(self, definition: Definition, buffers: Sequence[memoryview]) -> None:
        """Set names by the rule of their definition, whose large parts are buffers."""


class WorkerData:
    """The blobs of one worker. ``ask`` sends object ids to the executor, ``ask_blank`` asks for a blob."""

    def __init__(
        self,
        node: Node,
        ask: Callable[[Sequence[int]], None],
        ask_blank: Callable[[], None],
        main: BindingMain,
        *,
        trust: bool,
    ) -> None:
        self._node: Final = node
        self._main: Final = main
        self._defined: Final[dict[tuple[str, ...], int]] = {}
        self._ask: Final = ask
        self._ask_blank: Final = ask_blank
        self._trust: Final = trust
        self._views: Final[dict[int, memoryview]] = {}
        self._blanks: Final[list[Reference]] = []

    def decode_call(self, data: memoryview) -> Arguments:
        """Return the arguments of a call."""
        if bytes(data[:1]) == PLAIN_CALL:
            return tuple(_unpack(data[1:])), {}
        return cast("Arguments", self.decode(data))

    def decode(self, data: memoryview) -> object:
        """Return what the executor pickled; its buffers in blobs are read-only."""
        global _current
        size = -4
        buffers: list[memoryview] = []
        values: list[int] = []
        if bytes(data[:1]) == SHARED_CALL:
            size = int.from_bytes(data[1:5], "little")
            head = _head.decode(data[5 : 5 + size])
            values = head.values
            self._fetch({place[0] for place in head.buffers} | set(values))
            buffers = [self._views[blob][place : place + length] for blob, place, length in head.buffers]
        former, _current = _current, (self, values)
        try:
            return pickle.loads(data[5 + size :], buffers=buffers)  # noqa: S301 - in the sandbox, from its caller
        finally:
            _current = former

    def value(self, number: int, *, own: bool) -> object:
        """Return the value in a blob: the executor's own, or the result of another worker."""
        try:
            return decode_stored(self._views[number], trust=own or self._trust)
        except UntrustedResultError as error:
            raise UnreadableValueError from error

    def define(self, names: tuple[str, ...], number: int) -> None:
        """Set names of the main module to the values in a blob, once for each blob."""
        if self._defined.get(names) != number:
            self._defined[names] = number
            _, body, buffers = taken_apart(self._views[number])
            self._main.define(Definition(names, IF_DIFFERENT, bytes(body)), buffers)

    def bind(self, values: dict[str, object]) -> None:
        """Set names of the main module to values that came with a call."""
        for name, value in values.items():
            self._main.bind(name, value)

    def result(self, data: bytes) -> object:
        """Return the result of another worker that was sent with the call."""
        try:
            return decode_result(data, trust=self._trust)
        except UntrustedResultError as error:
            raise UnreadableValueError from error

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop blobs that the executor does not use any more; values that use them keep their memory."""
        for number in numbers:
            self._views.pop(number, None)

    def install(self, archives: Sequence[Archive]) -> None:
        """Let this worker import packages from their archives, some of which are in blobs."""
        self._fetch({archive.blob for archive in archives if archive.blob})
        install(
            replace(archive, content=bytes(self._views[archive.blob])) if archive.blob else archive
            for archive in archives
        )

    def store(self, encoded: Encoded) -> int:
        """Write a large result to a blob of the executor, and return the blob's object id."""
        if not self._blanks:
            self._ask_blank()
        while not self._blanks:
            self._next()
        blob = self._blanks.pop()
        try:
            write_parts(blob, encoded.parts())
        except BaseException:
            # The executor gives a worker one blob at a time: the next result uses it.
            self._blanks.append(blob)
            raise
        number = blob.object_id
        blob.close()
        return number

    def _fetch(self, numbers: set[int]) -> None:
        missing = [number for number in numbers if number not in self._views]
        for start in range(0, len(missing), _ASKED_MAX):
            part = missing[start : start + _ASKED_MAX]
            self._ask(part)
            while not self._views.keys() >= set(part):
                self._next()

    def _next(self) -> None:
        """Wait for one reference."""
        event = self._node.next_event()
        if not isinstance(event, Delegated):
            return
        blob = event.reference
        if Permission.WRITE in blob.permissions:
            self._blanks.append(blob)
            return
        try:
            self._views[blob.object_id] = map_blob(blob, private=False)
        finally:
            blob.close()


_current: tuple[WorkerData, list[int]] | None = None
"""The data, and the stored values of the arguments that are being decoded."""


def namespace_with(
    values: dict[str, object], stored_values: list[tuple[tuple[str, ...], int]]
) -> dict[str, object]:
    """Return the namespace of the main module with large values, which are in the pickle or in blobs."""
    data, numbers = _here()
    data.bind(values)
    for names, index in stored_values:
        data.define(names, numbers[index])
    return main_namespace()


def stored(index: int, own: bool, _namespace: object = None) -> object:  # noqa: FBT001 - as it stands in the pickle
    """Return a value in a blob, while the arguments that contain it are decoded."""
    data, values = _here()
    return data.value(values[index], own=own)


def sent(data: bytes) -> object:
    """Return a small result of another worker, the same."""
    return _here()[0].result(data)


def same(value: object) -> object:
    """Return the value itself."""
    return value


def _here() -> tuple[WorkerData, list[int]]:
    if _current is None:
        raise RuntimeError("a stored value can be loaded in the arguments of a call only")
    return _current
