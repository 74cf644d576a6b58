"""The object of an actor, in its worker: constructed by the initializer, and used by the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dios.lib.executor.frames import Function

_objects: Final[list[object]] = []


def construct(cls: Function[object], args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Make the object."""
    _objects.append(cls(*args, **kwargs))


def wait_ready() -> None:
    """Return when the object is there."""


def call_method(name: str, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """Call a method of the object."""
    method: Function[object] = getattr(_objects[0], name)
    return method(*args, **kwargs)
