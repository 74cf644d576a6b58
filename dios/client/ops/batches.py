"""Batches: operations on several handles that are sent together, in few messages (§5.2.3).

The operations of a batch have no order: they must not depend on each other, and none may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, ParamSpec, TypeVar, cast

from dios.client.ops.attributes import ClientLink
from dios.client.session import Answer, Operation, vector
from dios.errors import DiosError, InvalidError
from dios.wire.messages import AnyCall, PlainCall, Vector

P = ParamSpec("P")
T = TypeVar("T")


class Pending(Generic[T]):
    """The future result of one operation of a batch."""

    __slots__ = ("_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: DiosError | None = None

    @property
    def error(self) -> DiosError | None:
        """Return the refusal, or None."""
        return self._error

    def result(self) -> T:
        """Return the result of the method, or raise its error."""
        if not self.done:
            raise InvalidError("the batch has not been run yet. Read its results after its with body.")
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def settle(self, value: T | None, error: DiosError | None) -> None:
        """Set the outcome."""
        self.done, self._value, self._error = True, value, error


class BatchOps:
    """Collects operations; the client runs them all at the end of a ``with``."""

    def __init__(self, link: ClientLink) -> None:
        self.link: Final = link
        self._collected: Final[list[tuple[Operation[object], Pending[object]]]] = []

    def _collect(self, operation: Operation[T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        self._collected.append((cast("Operation[object]", operation), cast("Pending[object]", pending)))
        return pending

    def run_op(self) -> Operation[None]:
        """Run the collected operations; each result is in its ``Pending``."""
        collected = list(self._collected)
        self._collected.clear()
        yield from together([operation for operation, _ in collected], [pending for _, pending in collected])


def operation_of(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Operation[object]:
    """Return the operation of a handle's method with its arguments; InvalidError for other callables."""
    owner = getattr(method, "__self__", None)
    written = getattr(getattr(method, "__func__", None), "__wrapped__", None)
    if owner is None or not callable(written):
        raise InvalidError("a batch takes methods of handles and nodes that are one operation each")
    return cast("Operation[object]", written(owner, *args, **kwargs))


def together(operations: Sequence[Operation[object]], outcomes: Sequence[Pending[object]]) -> Operation[None]:
    """Run operations side by side: the next calls of all of them are sent in one message."""
    ready = [
        (operation, outcome, call)
        for operation, outcome in zip(operations, outcomes, strict=True)
        if (call := _step(operation, outcome, None)) is not None
    ]
    while ready:
        plain = [row for row in ready if not isinstance(row[2], Vector)]
        answers = yield from vector([cast("PlainCall", call) for _, _, call in plain])
        after = [
            (operation, outcome, call)
            for (operation, outcome, _), answer in zip(plain, answers, strict=True)
            if (call := _step(operation, outcome, answer)) is not None
        ]
        for operation, outcome, whole in ready:
            if isinstance(whole, Vector):
                call = _step(operation, outcome, (yield whole))
                after += [] if call is None else [(operation, outcome, call)]
        ready = after


def _step(
    operation: Operation[object], outcome: Pending[object], answer: Answer | DiosError | None
) -> AnyCall | None:
    """Give one operation its answer; return its next call, or None when its outcome is set."""
    try:
        if answer is None:
            return next(operation)
        if isinstance(answer, DiosError):
            return operation.throw(answer)
        return operation.send(answer)
    except StopIteration as done:
        outcome.settle(done.value, None)
    except DiosError as error:
        outcome.settle(None, error)
    return None
