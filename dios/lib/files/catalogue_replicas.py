"""A catalogue in several replicas: the latest one is read, and a write goes to all that have its bytes.

So the replicas stay in step without the keeper of replicas, which repairs those that a write did not reach. A
replica that was written on the other side of a partition may have the same version and other bytes. It is
left alone, so that the keeper shows the conflict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from dios import limits
from dios.client.sync.node import Reference
from dios.errors import BadReferenceError, Busy, Conflict, DiosError, StaleError, UnreachableError
from dios.lib.catalogue import StoredCatalogue
from dios.lib.retrying import Pauses

T = TypeVar("T")

_ATTEMPTS: Final = 5


def latest(replicas: Sequence[Reference]) -> Reference | None:
    """Return the replica with the highest version, the same for every program; None if there is none."""
    living = [one for one in replicas if not one.zombie]
    return max(living, key=lambda one: (one.v_w, -one.object_id), default=None)


class CatalogueReplicas:
    """The replicas of a catalogue, as one ``CatalogueObject``; ``find`` looks them up."""

    def __init__(self, replicas: Sequence[Reference], find: Callable[[], Sequence[Reference]]) -> None:
        self._replicas: Sequence[Reference] = replicas
        self._find: Final = find
        self._found_at = time.monotonic()
        self._equal: dict[int, int] = {}
        """The version at which a replica has the bytes of the others, for each object id."""

    def version(self) -> int | None:
        """Return the present version without a call; None if the latest replica is on another node."""
        current = latest(self._replicas)
        return None if current is None else StoredCatalogue(current).version()

    def read(self) -> tuple[bytes, int]:
        """Return content and version of the latest replica."""
        return self._on_latest(lambda current: StoredCatalogue(current).read())

    def replace(self, data: bytes, version: int) -> int:
        """Write the content if the latest replica has ``version``, and then to the others that are equal."""
        if time.monotonic() - self._found_at > limits.CATALOGUE_LOOK_MS / 1000:
            self._look()

        def write(current: Reference) -> int:
            others = self._equal_ones(current, version)
            written = StoredCatalogue(current).replace(data, version)
            self._equal = {current.object_id: written}
            for one in others:
                if _write_too(one, data, version):
                    self._equal[one.object_id] = written
            return written

        return self._on_latest(write)

    def _equal_ones(self, current: Reference, version: int) -> list[Reference]:
        """Return the other replicas that have this version of ``current`` with the same bytes."""
        others = [
            one
            for one in self._replicas
            if one.object_id != current.object_id and not one.zombie and one.v_w == version
        ]
        known = {object_id for object_id, at in self._equal.items() if at == version}
        if {current.object_id, *(one.object_id for one in others)} <= known:
            return others
        wanted = StoredCatalogue(current).read() if others else (b"", version)
        found: list[Reference] = []
        for one in others:
            with suppress(DiosError):
                if wanted[1] == version and StoredCatalogue(one).read() == wanted:
                    found.append(one)
        return found

    def _on_latest(self, action: Callable[[Reference], T]) -> T:
        """Act on the latest replica, and on the next one if its node does not answer.

        A write that was made although its answer was lost is the same write on the next replica.
        """
        current = latest(self._replicas)
        failure: DiosError = UnreachableError("the catalogue is on no node that answers", call="lookup")
        if current is not None:
            try:
                return action(current)
            except (UnreachableError, StaleError, BadReferenceError) as error:
                failure = error
        self._look()
        again = latest(self._replicas)
        if again is None or (current is not None and again.object_id == current.object_id):
            raise failure
        return action(again)

    def _look(self) -> None:
        former, self._replicas = self._replicas, self._find()
        self._found_at = time.monotonic()
        kept = {one.ref for one in self._replicas}
        for one in former:
            if one.ref not in kept:
                one.close()


def _write_too(one: Reference, data: bytes, version: int) -> bool:
    """Write the content to a further replica, if it has the version that the latest one had."""
    pauses = Pauses()
    for _ in range(_ATTEMPTS):
        if one.v_w != version:
            break
        try:
            StoredCatalogue(one).replace(data, version)
        except (Busy, Conflict) as conflict:
            pauses.wait(conflict)
        except DiosError:
            break
        else:
            return True
    return False
