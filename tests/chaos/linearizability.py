"""A checker of linearizability for single keys: registers, and counters.

The search is that of Wing and Gong (1993) with the memory of visited configurations of Lowe (2017): take any
operation next that was called before every other untaken one had returned, and never search a configuration
(taken operations, state) twice. Operations with an unknown outcome are first reduced to those that some
answer proves, because the others may be left out of any history without making it wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tests.chaos.history import Action, Operation

CONFIGURATIONS_MAX: Final = 2_000_000


class TooWideError(Exception):
    """The history has too many overlapping operations to be checked."""


class _Step(NamedTuple):
    operation: Operation
    returned: float
    optional: bool


def violation(operations: Iterable[Operation], initial: int = 0) -> str | None:
    """Return None if the operations on one key are linearizable from ``initial`` on, else what is wrong."""
    steps = _reduced(list(operations), initial)
    seen: set[tuple[int, frozenset[int], int]] = set()
    todo: list[tuple[int, frozenset[int], int]] = [(0, frozenset(), initial)]
    deepest = (-1, initial)
    while todo:
        low, taken, state = todo.pop()
        # Steps before ``low`` are over; ``taken`` are those of the later ones.
        while low < len(steps) and (low in taken or _is_spent(steps[low], state)):
            taken -= {low}
            low += 1
        if low == len(steps):
            return None
        if (low, taken, state) in seen:
            continue
        seen.add((low, taken, state))
        if len(seen) > CONFIGURATIONS_MAX:
            raise TooWideError(f"over {CONFIGURATIONS_MAX} configurations of {len(steps)} operations")
        deepest = max(deepest, (low, state))
        todo += [
            (low, taken | {number}, after)
            for number in _next_steps(steps, low, taken)
            if (after := _applied(steps[number].operation, state)) is not None
        ]
    stuck = steps[deepest[0]].operation
    return (
        f"no order explains {stuck.action} {stuck.value} of {stuck.key} by {stuck.client}, called at "
        f"{stuck.called} and answered at {stuck.returned}; the value may have been {deepest[1]} before it"
    )


def _next_steps(steps: list[_Step], low: int, taken: frozenset[int]) -> list[int]:
    """Return the untaken steps called before any untaken one had returned; the last called is the first."""
    candidates: list[int] = []
    returned = math.inf
    for number in range(low, len(steps)):
        step = steps[number]
        if step.operation.called > returned:
            break
        if number not in taken:
            candidates.append(number)
            if not step.optional:
                returned = min(returned, step.returned)
    return candidates[::-1]


def _applied(operation: Operation, state: int) -> int | None:
    """Return the state after an operation, or None if it cannot take effect in this state."""
    match operation.action:
        case Action.READ:
            return state if operation.value == state else None
        case Action.INCREMENT:
            return operation.value if operation.value == state + 1 else None
        case Action.WRITE:
            return operation.value


def _is_spent(step: _Step, state: int) -> bool:
    """Return True if an optional increment can never take effect any more."""
    increments = step.operation.action is Action.INCREMENT
    return step.optional and increments and state >= step.operation.value


def _reduced(operations: list[Operation], initial: int) -> list[_Step]:
    """Return the steps of a history, without operations of unknown outcome that no answer proves."""
    known = [operation for operation in operations if operation.returned is not None]
    unknown = [operation for operation in operations if operation.returned is None]
    steps = [_Step(operation, float(operation.returned or 0), optional=False) for operation in known]
    reached = {operation.value for operation in known if operation.action is Action.INCREMENT}
    rivals = Counter(operation.value for operation in unknown if operation.action is Action.INCREMENT)
    written = Counter(
        operation.value for operation in operations if operation.action is Action.WRITE
    ) + Counter([initial])
    for doubtful in unknown:
        proofs = [float(witness.returned or 0) for witness in known if _proves(witness, doubtful)]
        if not proofs or (doubtful.action is Action.INCREMENT and doubtful.value in reached):
            # A counter passes each value once.
            continue
        # It had taken effect by the first answer that proves it, unless another one did it.
        alone = (written if doubtful.action is Action.WRITE else rivals)[doubtful.value] == 1
        steps.append(_Step(replace(doubtful), min(proofs) if alone else math.inf, optional=not alone))
    return sorted(steps, key=lambda step: step.operation.called)


def _proves(answer: Operation, unknown: Operation) -> bool:
    """Return True if an answer needs the effect of an operation, or of another one that did the same."""
    if unknown.action is Action.WRITE:
        return answer.action is Action.READ and answer.value == unknown.value
    return answer.value >= unknown.value
