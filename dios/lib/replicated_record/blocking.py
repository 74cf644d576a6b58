"""The steps of the protocol as calls of a blocking session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from dios import limits
from dios.client.sync.handles import Reference, WriteRequest
from dios.client.sync.node import Node
from dios.errors import Busy, ClosedError, DiosError, UnreachableError
from dios.lib.closing import close_all
from dios.lib.counters import show_counters
from dios.lib.replicated_record.steps import (
    CommitReplicas,
    Committed,
    Held,
    HoldReplicas,
    Look,
    ReadReplicas,
    ReleaseReplicas,
    Results,
    Sighting,
    Step,
    Steps,
    Wait,
    not_found,
    replicas_by_id,
    sighting,
)
from dios.lib.retrying import Pauses
from dios.wire.types import Proximity, Semantics

T = TypeVar("T")


class BlockingReplicas:
    """The replicas of a record as references of a session; ``find`` looks them up.

    What ``find`` returns is ``incomplete`` if a node did not answer; a list without this attribute is.
    """

    def __init__(self, node: Node, find: Callable[[], Sequence[Reference]]) -> None:
        self._node: Final = node
        self._find: Final = find
        self._references: dict[int, Reference] = {}
        self._looked_at = float("-inf")
        self._held: Final[dict[int, WriteRequest]] = {}
        self._commits: dict[int, int] = {}
        self.vouches = False
        """True if the user says that nodes which nobody knows are lost for ever."""

    @property
    def references(self) -> Sequence[Reference]:
        """The replicas that were found last, the nearest first."""
        return tuple(self._references.values())

    @property
    def near_commit(self) -> tuple[int, int] | None:
        """The object id and the version of the nearest replica after the last commit to it."""
        near = next(iter(self._references), None)
        return (near, self._commits[near]) if near in self._commits else None

    def look_again(self) -> Sequence[Reference]:
        """Look the replicas up, and return them."""
        self._look(fresh=True)
        return self.references

    def run(self, steps: Steps[T]) -> T:
        """Carry out the steps, and return their result."""
        pauses = Pauses(most_us=limits.CATALOGUE_PAUSE_US_MAX)
        result: object = None
        try:
            while True:
                step = steps.send(result)
                result = self._carry_out(step, pauses)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()
            self._release(tuple(self._held))

    def _carry_out(self, step: Step, pauses: Pauses) -> object:
        match step:
            case Look(fresh):
                return self._look(fresh=fresh)
            case ReadReplicas(sizes):
                return self._read(sizes)
            case HoldReplicas(object_ids, size, blank):
                return self._hold(object_ids, size, blank=blank)
            case CommitReplicas(data, hold):
                return self._commit_and_hold(data) if hold else self._commit(data)
            case ReleaseReplicas(object_ids):
                self._release(object_ids)
            case Wait(conflict):
                pauses.wait(conflict)
        return None

    def _look(self, *, fresh: bool) -> Sighting:
        complete = False
        late = time.monotonic() - self._looked_at > limits.CATALOGUE_LOOK_MS / 1000
        known: frozenset[str] = frozenset()
        if fresh or late or any(reference.zombie for reference in self._references.values()):
            # Before the lookup: it asks nobody whom this node meets only while it lasts.
            known = frozenset(() if self.vouches else self._known_nodes())
            references = self._find()
            complete = not getattr(references, "incomplete", True)
            former = self._references
            self._references = replicas_by_id(references)
            self._looked_at = time.monotonic()
            kept = {reference.ref for reference in references}
            close_all(reference for reference in former.values() if reference.ref not in kept)
            self._show_versions()
        return sighting(self._references.values(), None if self.vouches else known, complete=complete)

    def _show_versions(self) -> None:
        """Read labelled replicas whose versions are hidden: among several, these may decide."""
        if len(self._references) > 1:
            for reference in self._references.values():
                with suppress(DiosError):
                    show_counters(reference)

    def _known_nodes(self) -> Iterator[str]:
        # A task may not ask for the nodes, and then knows none.
        with suppress(DiosError):
            yield from (member.name for member in self._node.nodes() if member.usable)

    def _read(self, sizes: Mapping[int, int]) -> Results[bytes]:
        with self._node.batch() as batch:
            pending = {
                object_id: batch.add(self._references[object_id].read_bytes, size)
                for object_id, size in sizes.items()
                if object_id in self._references
            }
        results = {object_id: call.error or call.result() for object_id, call in pending.items()}
        return not_found(sizes, self._references) | results

    def _hold(self, object_ids: Sequence[int], size: int, *, blank: bool) -> Results[Held]:
        with self._node.batch() as batch:
            pending = {
                object_id: batch.add(
                    self._references[object_id].begin_write, size, Semantics.MRSW, blank=blank, replace=True
                )
                for object_id in object_ids
                if object_id in self._references
            }
        results: Results[Held] = not_found(object_ids, self._references)
        for object_id, call in pending.items():
            if call.error is not None:
                results[object_id] = call.error
                if isinstance(call.error, UnreachableError):
                    self._give_up(object_id)
                continue
            request = self._held[object_id] = call.result()
            results[object_id] = Held(request.v_w, b"" if blank else bytes(request.view))
        return results

    def _commit(self, data: Mapping[int, bytes]) -> Results[Committed]:
        held = {object_id: self._held.pop(object_id) for object_id in data}
        for object_id, request in held.items():
            request.fill(memoryview(data[object_id]))
        errors = self._node.finish_writes(
            {request: len(data[object_id]) for object_id, request in held.items()}
        )
        return self._committed(
            {object_id: errors[request] for object_id, request in held.items()}, held, is_held=False
        )

    def _commit_and_hold(self, data: Mapping[int, bytes]) -> Results[Committed]:
        held = {object_id: self._held.pop(object_id) for object_id in data}
        errors: dict[int, DiosError | None] = {}
        # Bytes for other nodes and bytes for this one are not sent in the same message.
        for remote in (True, False):
            with self._node.batch() as batch:
                pending = {}
                for object_id, request in held.items():
                    if (self._references[object_id].proximity > Proximity.NODE) is remote:
                        request.fill(memoryview(data[object_id]))
                        pending[object_id] = batch.add(request.reacquire)
            errors |= {object_id: call.error for object_id, call in pending.items()}
        for object_id, error in errors.items():
            self._held[object_id] = held[object_id]
            if error is not None:
                self._release([object_id])
        # A request that is not admitted again was committed.
        failed = {
            object_id: None if isinstance(error, Busy) else error for object_id, error in errors.items()
        }
        return {
            object_id: outcome
            if isinstance(outcome, DiosError)
            else outcome._replace(is_held=object_id in self._held)
            for object_id, outcome in self._committed(failed, held, is_held=True).items()
        }

    def _committed(
        self, errors: Mapping[int, DiosError | None], held: Mapping[int, WriteRequest], *, is_held: bool
    ) -> Results[Committed]:
        results: Results[Committed] = {
            object_id: error or Committed(held[object_id].v_w, is_held) for object_id, error in errors.items()
        }
        self._commits = {
            object_id: done.v_w for object_id, done in results.items() if not isinstance(done, DiosError)
        }
        for object_id, done in results.items():
            if isinstance(done, UnreachableError):
                self._give_up(object_id)
        return results

    def _release(self, object_ids: Sequence[int]) -> None:
        held = {object_id: self._held.pop(object_id) for object_id in object_ids}
        if not held:
            return
        with suppress(ClosedError):
            with self._node.batch() as batch:
                ends = {object_id: batch.add(request.release) for object_id, request in held.items()}
            for object_id, end in ends.items():
                if isinstance(end.error, UnreachableError):
                    self._give_up(object_id)

    def _give_up(self, object_id: int) -> None:
        """Close the reference to a replica whose node did not answer, which may hold it for this client.

        The nodes see to it that the request ends with the reference, also after a partition. The next look
        finds the replica again.
        """
        reference = self._references.pop(object_id, None)
        self._looked_at = float("-inf")
        if reference is not None:
            close_all([reference])
