"""The objects that a user's promises cover, and the order in which a keeper looks at them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from dios import limits


class PromisedObject(NamedTuple):
    """An object that a promise covers: the key of the promise, and the BLAKE3 of the bytes that were put.

    The digest is b"" if it is not known: of a list of files, of logs, and of objects that are in no list.
    """

    promise: str
    digest: bytes = b""


class LookOrder:
    """The names of the objects with their promises and digests, in the order of the keeper's looks.

    Objects that are new, and objects whose turn was advanced by ``again``, come first.
    """

    def __init__(self) -> None:
        self._covered: dict[bytes, PromisedObject] = {}
        self._turns: Final[deque[bytes]] = deque()
        self._queued: Final[set[bytes]] = set()
        self._soon: Final[list[tuple[float, bytes]]] = []
        self._hurried = 0
        self.unchecked: set[bytes] = set()
        """The objects that were not looked at since the nodes changed, or since they are promised."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._covered)

    @property
    def hurried(self) -> bool:
        """Return True if objects wait to be looked at since a change."""
        return self._hurried > 0

    def covered(self, name: bytes) -> PromisedObject | None:
        """Return an object's promise and digest, or None if it is covered by no promise any more."""
        return self._covered.get(name)

    def replace(self, covered: dict[bytes, PromisedObject]) -> Iterator[None]:
        """Replace the objects, with a pause after each part.

        New ones, and those of another promise or digest than before, come before all others.
        """
        former, self._covered = self._covered, covered
        for number, name in enumerate(covered, 1):
            if not number % limits.KEPT_LISTED_AT_ONCE:
                yield
            if name not in self._queued:
                self._queued.add(name)
                self.unchecked.add(name)
                self._turns.appendleft(name)
                self._hurried += 1
            elif former.get(name) != covered[name]:
                self.again(name, 0.0)

    def hurry(self) -> None:
        """Look at every object soon, because nodes or promises have changed."""
        self._hurried = len(self._turns)

    def doubt_all(self) -> None:
        """Count every object as unchecked, because the nodes have changed."""
        self.unchecked = set(self._queued)

    def again(self, name: bytes, at: float) -> None:
        """Look at an object again at a time; in its turn if too many wait for that."""
        if len(self._soon) < limits.KEPT_WAITING_MAX:
            heapq.heappush(self._soon, (at, name))

    def take(self, now: float) -> Iterator[bytes]:
        """Yield the objects to look at in this round, each once."""
        most = limits.KEPT_LOOKS_MAX if self._hurried else limits.KEPT_LOOKS
        given: set[bytes] = set()
        while self._soon and self._soon[0][0] <= now and len(given) < limits.KEPT_LOOKS_MAX // 2:
            name = heapq.heappop(self._soon)[1]
            if name in self._covered and name not in given:
                given.add(name)
                yield name
        for _ in range(min(most, len(self._turns))):
            name = self._turns.popleft()
            self._hurried = max(self._hurried - 1, 0)
            if name not in self._covered:
                self._queued.discard(name)
                self.unchecked.discard(name)
                continue
            self._turns.append(name)
            if name not in given:
                given.add(name)
                yield name
