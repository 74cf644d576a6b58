"""Tests of async code on both event loops: each runs once on trio and once on asyncio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, cast

import anyio
import pytest

P = ParamSpec("P")

LOOPS = ("trio", "asyncio")


def run(loop: str, function: Callable[[], Awaitable[None]]) -> None:
    """Run an async function on the loop of this name."""
    anyio.run(function, backend=loop, backend_options={"debug": True} if loop == "asyncio" else {})


def on_both_loops(test: Callable[P, Awaitable[None]]) -> Callable[Concatenate[str, P], None]:
    """Make an async test run on both loops. It gets its other fixtures; they must not be async."""

    def on_loop(loop: str, *args: P.args, **kwargs: P.kwargs) -> None:
        run(loop, functools.partial(test, *args, **kwargs))

    own = inspect.signature(test)
    first = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    functools.update_wrapper(on_loop, test)
    # pytest would look at the coroutine function otherwise.
    del on_loop.__wrapped__  # type: ignore[attr-defined]
    on_loop.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
    marked = pytest.mark.parametrize("loop", LOOPS)(on_loop)
    return cast("Callable[Concatenate[str, P], None]", marked)
