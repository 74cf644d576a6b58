"""``dios.put`` and ``dios.get``: values that are stored once, and given to any number of calls."""

from __future__ import annotations

import concurrent.futures
import weakref
from typing import Final, Generic, NoReturn, Protocol, TypeVar, cast

from dios.errors import InvalidError
from dios.lib.executor.stored_values import StoredBlob
from dios.lib.executor.values import decode_stored

T = TypeVar("T")


class ValueReference(Generic[T]):
    """A value that an executor's node stores. As an argument of a call it becomes the value.

    The value is dropped when nothing refers to it any more.
    """

    __slots__ = ("__weakref__", "blob", "modules", "names")

    def __init__(self, blob: StoredBlob, modules: frozenset[str], names: frozenset[str]) -> None:
        self.blob: Final = blob
        self.modules: Final = modules
        """The names of the modules that the value needs."""
        self.names: Final = names
        """The names of the main module that it needs."""

    def get(self) -> T:
        """Return the value; its arrays are read-only."""
        return cast("T", decode_stored(self.blob.view(), trust=True))

    def __repr__(self) -> str:
        return "<ValueReference>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a reference to a value cannot be pickled; give it to a call of its executor")


class Putter(Protocol):
    """An executor that stores values."""

    def put(self, value: T) -> ValueReference[T]:
        """Store a value, and return a reference to it."""


_open: Final[list[weakref.ref[Putter]]] = []
"""The open executors, the latest one last; without a hold on them."""


def put(value: T) -> ValueReference[T]:
    """Store a value on the node of the executor that was opened last, and return a reference to it.

    Calls get the reference as an argument, and the function gets the value: all workers of a node use the
    same memory for its large buffers, which are read-only there. ``Executor.put`` names the executor. Raises
    InvalidError if no executor is open or the value cannot be pickled, LimitError if there is no room.
    """
    for reference in reversed(_open):
        executor = reference()
        if executor is not None:
            return executor.put(value)
    raise InvalidError("no executor is open to put a value. Open one: with dios.Executor() as executor")


def get(reference: ValueReference[T] | concurrent.futures.Future[T], timeout: float | None = None) -> T:
    """Return the value of a reference, or the result of a future, for which it waits ``timeout`` seconds.

    The arrays in a value of ``put`` are read-only. Raises what ``Future.result`` raises.
    """
    if isinstance(reference, ValueReference):
        return reference.get()
    if isinstance(reference, concurrent.futures.Future):
        return reference.result(timeout)
    raise InvalidError(f"a {type(reference).__name__} is no reference to a value, and no future")


def open_putter(executor: Putter) -> None:
    """Let ``put`` use an executor."""
    _open.append(weakref.ref(executor))


def close_putter(executor: Putter) -> None:
    """Undo ``open_putter``."""
    _open[:] = [reference for reference in _open if reference() not in {executor, None}]
