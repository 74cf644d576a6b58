from __future__ import annotations

from typing import TYPE_CHECKING

import lib_functions
import pytest

from dios.errors import InvalidError
from dios.lib import spawn
from dios.lib.spawned import SpawnOrder, encode_order, hints_of

if TYPE_CHECKING:
    from nowhere import Nothing  # type: ignore[import-not-found]


def of_nowhere(value: Nothing) -> int:
    """A function whose annotations no task can understand."""
    return len([value])


def test_the_bytes_of_an_order_never_change() -> None:
    """The frozen vector of an order."""
    data, moved, handed = encode_order("jobs", "count", (1, "a"), {"n": b"\x07"})
    assert data.hex() == "9501a46a6f6273a5636f756e749201a16181a16ec40107"
    assert not moved
    assert not handed


def test_an_argument_that_cannot_travel_is_told() -> None:
    """A file, a lambda or a module among the arguments is refused before a task exists."""
    with pytest.raises(InvalidError, match="cannot be an argument"):
        encode_order("jobs", "count", (lambda: 1,), {})


def test_a_function_must_be_found_again() -> None:
    """What is not at the top of a module, or no function, cannot travel as text."""

    def inside() -> int:
        return 1

    for function in (inside, lambda: 1, len, SpawnOrder):
        with pytest.raises(InvalidError, match=r"module"):
            spawn._place_of(function)
    assert spawn._place_of(lib_functions.total) == ("lib_functions", "total")


def test_outside_of_tasks_a_node_must_be_named() -> None:
    """The short form is for tasks, who have their node; elsewhere the error says what to write."""
    with pytest.raises(InvalidError, match="Spawner"):
        spawn.spawn(lib_functions.failing)


def test_annotations_that_cannot_be_understood_promise_nothing() -> None:
    """Names that exist for the type checker only leave arguments and results as they come."""
    assert hints_of(of_nowhere) == {}
    assert hints_of(lib_functions.liar) == {"return": int}
