"""Bind the function that executes each call of the table (``dios.wire.call_table``) to its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from dios.core.model.records import Holder
from dios.core.step import Step
from dios.errors import InvariantError
from dios.wire.call_table import CALLS
from dios.wire.fields import Call

C = TypeVar("C", bound=Call)

Executor: TypeAlias = Callable[[Step, Holder, int, C], None]
Handler: TypeAlias = Executor[Call]
"""A function for the kind of call that it is bound to, which the type of the table cannot express."""

_bound: Final[dict[type, Handler]] = {}


def handles(*kinds: type[C]) -> Callable[[Executor[C]], Executor[C]]:
    """Bind the decorated function to kinds of calls. Raise InvariantError if one has a function already."""

    def bind(function: Executor[C]) -> Executor[C]:
        for kind in kinds:
            if _bound.setdefault(kind, function) is not function:  # type: ignore[arg-type] # see Handler
                raise InvariantError(f"two functions execute {kind.__name__}")
        return function

    return bind


def handlers() -> dict[type, Handler]:
    """Return the function of each call. Raise InvariantError unless each row has one, and no other call."""
    unmatched = _bound.keys() ^ CALLS.keys()
    if unmatched:
        names = ", ".join(sorted(kind.__name__ for kind in unmatched))
        raise InvariantError(f"calls need both a row and a function, and these have not: {names}")
    return {kind: _bound[kind] for kind in CALLS}
