"""The records of a chaos run: what each client asked of which key, in which order, and what is known of it.

Calls and answers get numbers of one counter, so that their order is known without a clock.
"""

from __future__ import annotations

import enum
import itertools
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final


class Action(enum.StrEnum):
    """An action on one key."""

    READ = "read"
    WRITE = "write"
    INCREMENT = "increment"


class Outcome(enum.StrEnum):
    """The knowledge of a client about its call.

    DONE: it took effect between call and answer. FAILED: it never takes effect. UNKNOWN: it takes effect at
    most once, at any time after the call.
    """

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """One action, with the value that was read, written, or reached by an increment.

    ``returned`` is None as long as the outcome is unknown.
    """

    key: str
    action: Action
    value: int
    called: int
    client: str = ""
    returned: int | None = None


class History:
    """The operations of all clients, except for those that failed and for reads without an answer."""

    def __init__(self) -> None:
        self._moments: Final = itertools.count()
        self._lock: Final = threading.Lock()
        self.operations: Final[dict[str, list[Operation]]] = {}
        self.counts: Final[Counter[tuple[str, Outcome]]] = Counter()

    @property
    def size(self) -> int:
        """The number of calls that have ended."""
        return sum(self.counts.values())

    def begin(self, key: str, action: Action, client: str, value: int = -1) -> Operation:
        """Record a call. It belongs to the history until it is known to have failed."""
        operation = Operation(key, action, value, next(self._moments), client)
        if action is not Action.READ:
            with self._lock:
                self.operations.setdefault(key, []).append(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome) -> None:
        """Record the end of a call."""
        with self._lock:
            of_key = self.operations.setdefault(operation.key, [])
            if outcome is Outcome.DONE:
                operation.returned = next(self._moments)
                if operation.action is Action.READ:
                    of_key.append(operation)
            elif outcome is Outcome.FAILED and operation.action is not Action.READ:
                of_key.remove(operation)
        self.count(f"{operation.action} {operation.key.split('-')[0]}", outcome)

    def count(self, operation: str, outcome: Outcome) -> None:
        """Count a call that has ended."""
        with self._lock:
            self.counts[operation, outcome] += 1
