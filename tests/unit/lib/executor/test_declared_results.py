"""Functions that say that their result cannot be sent are refused before they run, and no others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import enum
import functools
import io
import socket
import subprocess
import sys
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
import pytest

from dios.errors import InvalidError
from dios.lib.executor.declared_results import require_sendable
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.results import class_forms
from dios.lib.executor.results.class_forms import allow

T = TypeVar("T")


class Plain:
    """A class that the closed format has no form for."""

    def me(self) -> Plain:
        """Return this object."""
        return self


class Parent:
    """A class of which a subclass has a form."""


@dataclasses.dataclass
class Child(Parent):
    """That subclass."""


class Permitted:
    """A class that the program permits."""


class Pair(NamedTuple):
    """A named tuple."""

    x: int


class Color(enum.Enum):
    """An enumeration."""

    RED = 1


class Made:
    """A class whose call returns what it likes."""

    def __new__(cls) -> int:  # type: ignore[misc]
        """Return a number."""
        return 1


@pytest.fixture(autouse=True)
def permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permit one class for a test."""
    monkeypatch.setattr(class_forms, "_allowed", dict(class_forms._allowed))
    allow(Permitted)


def returning(annotation: object) -> Callable[[], object]:
    """Return a function with a return annotation."""

    def function() -> object:
        raise NotImplementedError

    function.__annotations__["return"] = annotation
    return function


def steps() -> Iterator[int]:
    """Yield numbers."""
    yield 1


async def wait() -> int:
    """Return a number later."""
    await asyncio.sleep(0)
    return 1


async def later() -> AsyncIterator[int]:
    """Yield numbers later."""
    yield 1


NEVER = [
    *(steps, wait, later, functools.partial(steps)),
    *map(returning, (type(steps()), threading.Lock, "threading.RLock", tuple[int, threading.Lock])),
]
ABSTRACT = """
from collections.abc import Coroutine, Generator
from dios.errors import InvalidError
from dios.lib.executor.declared_results import require_sendable
for declared in (
    "Generator[int, None, None]", Generator, Coroutine, Coroutine[int, int, int],
    tuple[int, Generator[int, None, None]],
):
    def function(): ...
    function.__annotations__["return"] = declared
    try:
        require_sendable(function, trust=False)
    except InvalidError as error:
        print("cannot leave its process" in error.message)
"""
REFUSED = [
    *map(returning, (Plain, "Plain", "Plain | threading.Event", Annotated[Plain, 1], tuple[int, Plain])),
    *map(returning, (socket.socket, io.TextIOWrapper, threading.Event, subprocess.Popen, map)),
    *(Plain, Plain.me, Plain().me, functools.partial(Plain().me)),
]
ACCEPTED = [
    *map(
        returning,
        (int, "int", None, "None", list, dict[str, Plain], list[threading.Lock], np.ndarray, object),
    ),
    *map(
        returning, (Parent, Child, Permitted, Pair, Color, ValueError, BaseException, io.BytesIO, memoryview)
    ),
    *map(
        returning, ("Plain | None", "int | Plain", Iterator, "Iterator[int]", typing.Any, T, typing.IO[str])
    ),
    *map(
        returning, ("Absent", "absent.Absent", "1 +", "1 / 0", np.array([1, 2]), [], tuple[Plain, ...], type)
    ),
    *(len, print, Made, int, list, Permitted, lambda: 1, collections.Counter, functools.partial(len)),
    functools.wraps(returning(Plain))(lambda: 1),
    contextlib.contextmanager(steps),
]


@pytest.mark.parametrize("function", NEVER)
def test_a_result_that_cannot_leave_its_process_is_refused(function: object) -> None:
    """Generators, coroutines and locks: by the code of the function, or by its annotation."""
    for trust in (False, True):
        with pytest.raises(InvalidError, match=r"cannot be submitted: .*cannot leave its process\. [CRS]"):
            require_sendable(function, trust=trust)


def test_abstract_types_that_nobody_has_made_a_subclass_of_are_refused() -> None:
    """In a program of its own: a library that has one, as in this process, makes them say nothing."""
    asked = subprocess.run([sys.executable, "-c", ABSTRACT], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["True"] * 5


@pytest.mark.parametrize("function", REFUSED)
def test_a_class_without_a_form_is_refused_without_trust(function: object) -> None:
    """The error says how to permit it."""
    with pytest.raises(UntrustedResultError, match=r"dios\.allow\(.*trust=True"):
        require_sendable(function, trust=False)
    require_sendable(function, trust=True)


@pytest.mark.parametrize("function", ACCEPTED)
def test_all_that_may_be_sent_is_accepted(function: object) -> None:
    """An annotation that is unknown, abstract or copied by a decorator says nothing."""
    require_sendable(function, trust=False)
    require_sendable(function, trust=True)


def test_a_class_is_accepted_as_soon_as_the_program_permits_it() -> None:
    """The annotation is looked at in each call."""
    function = returning("Plain")
    for _ in range(2):
        with pytest.raises(UntrustedResultError):
            require_sendable(function, trust=False)
    allow(Plain)
    require_sendable(function, trust=False)
