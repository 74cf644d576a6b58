"""The saved progress of a job in a kept job: the tasks that a later controller need not run.

The kept pairs of a mapper and the output of a reducer are durable objects in the group of the kept job, each
with a replica on several nodes. Their names are in a section of the kept job's state. A name is there before
its object is used, so that no object is forgotten, and a task is there only after all its replicas exist.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios.client.sync.node import Node, Reference
from dios.errors import DiosError, InvalidError, UnreachableError
from dios.lib.closing import close_all
from dios.lib.jobs.inputs import Inputs
from dios.lib.jobs.records import Segment
from dios.lib.supervised.kept_state import KeptState, SectionContent, StateSection
from dios.limits import JOB_MAPPERS_MAX, JOB_REDUCERS_MAX, JOB_SAVE_PERIOD_MS
from dios.wire.fields import NameBytes
from dios.wire.types import ObjectType

_FORMAT_VERSION: Final = 1
_LABEL_MAX: Final = 40
_PLAN_MAX: Final = 16
"""Characters of a job's label and digest in the name of its section."""


class SavedTasks(Struct, array_like=True, forbid_unknown_fields=True):
    """The tasks of one job that are done, with the names of their objects.

    ``plan`` is the digest of the job and its inputs. ``mapped`` has the kept pairs of mappers, ``reduced``
    the outputs of reducers, and ``published`` those that are in the user's groups as well.
    """

    format: int
    plan: bytes
    mapped: Annotated[dict[int, NameBytes], Meta(max_length=JOB_MAPPERS_MAX)]
    reduced: Annotated[dict[int, NameBytes], Meta(max_length=JOB_REDUCERS_MAX)]
    published: Annotated[dict[int, NameBytes], Meta(max_length=JOB_REDUCERS_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(SavedTasks).decode


def saved_tasks(content: SectionContent) -> SavedTasks | None:
    """Return the tasks that a section of a state has; None if it has none that this version can read."""
    try:
        saved = _decode(content.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return saved if saved.format == _FORMAT_VERSION else None


def plan_digest(
    source: str, inputs: Inputs, splits: Sequence[Sequence[Segment]], reducers: int, *, ordered: bool
) -> bytes:
    """Return the digest of everything that decides what each task of a job computes."""
    plan = (_FORMAT_VERSION, source, inputs.digests(), splits, reducers, ordered)
    return hashlib.sha256(_encode(plan)).digest()


class SavedProgress:
    """The saved progress of one job, with the references to the objects of its tasks.

    ``mapped``, ``reduced`` and ``published`` are what an earlier controller has left and what is still on a
    node that answers: replicas of kept pairs by mapper, and one replica of an output by reducer.
    """

    def __init__(self, node: Node, state: KeptState, label: str, plan: bytes) -> None:
        self._node: Final = node
        # One section for each plan, so that the outputs of one job stay while the next one runs.
        self._section: Final[StateSection] = state.section(f"{label[:_LABEL_MAX]} {plan.hex()[:_PLAN_MAX]}")
        self._tasks: Final = SavedTasks(_FORMAT_VERSION, plan, {}, {}, {})
        self._listed: set[bytes] = set()
        self._spare: Final[list[Reference]] = []
        self._dirty = False
        self._saved_at = 0.0
        self.mapped: Final[dict[int, list[Reference]]] = {}
        self.reduced: Final[dict[int, Reference]] = {}
        self.published: Final[dict[int, Reference]] = {}
        self._resume()

    # -- beginning again ------------------------------------------------------------------------------
    def _resume(self) -> None:
        """Find the objects of tasks that are done, and destroy all others that an earlier controller made."""
        content = self._section.read()
        self._listed.update(content.objects)
        last = saved_tasks(content)
        if last is not None and last.plan == self._tasks.plan:
            for number, name in last.mapped.items():
                if replicas := self._found(name):
                    self.mapped[number], self._tasks.mapped[number] = replicas, name
            for number, name in last.reduced.items():
                if replicas := self._found(name):
                    self.reduced[number], self._tasks.reduced[number] = replicas[0], name
                    close_all(replicas[1:])
            for number, name in last.published.items():
                if (replica := self._node.find(name)) is not None:
                    self.published[number], self._tasks.published[number] = replica, name
        used = {*self._tasks.mapped.values(), *self._tasks.reduced.values()}
        for name in self._listed - used:
            self._destroy_named(name)

    def _found(self, name: bytes) -> list[Reference]:
        """Return the replicas of an object of the job, the nearest first."""
        replicas = self._node.lookup(name, group=self._section.group)
        return sorted(replicas, key=lambda replica: (-replica.v_w, replica.proximity))

    # -- objects --------------------------------------------------------------------------------------
    def part(self, hosts: Sequence[str], count: int) -> Reference | None:
        """Return an empty object on one of these nodes for the pairs of a mapper; None if none can have it.

        ``count`` is the number of objects that are made together, so that the state is written once for them.
        """
        while True:
            if not self._spare:
                self._spare.extend(self.outputs(hosts, count))
                if not self._spare:
                    return None
            reference = self._spare.pop(0)
            try:
                reference.stat()
            except DiosError:
                # Its node is gone.
                self.forget(reference)
            else:
                return reference

    def outputs(self, hosts: Sequence[str], count: int) -> list[Reference]:
        """Create empty objects, on these nodes in turn; they are listed in the state when this returns."""
        references: list[Reference] = []
        for turn in range(count):
            with suppress(UnreachableError):
                references.append(
                    self._node.create(
                        ObjectType.DURABLE_BLOB,
                        groups=(self._section.group,),
                        host=hosts[turn % len(hosts)],
                    )
                )
        if references:
            self._listed.update(_name_of(reference) for reference in references)
            self.save()
        return references

    def forget(self, reference: Reference) -> None:
        """Destroy all replicas of an object of a task that has failed or whose work is not needed."""
        name = _name_of(reference)
        with suppress(DiosError):
            reference.destroy()
        close_all([reference])
        self._destroy_named(name)

    def _destroy_named(self, name: bytes) -> None:
        """Destroy the replicas of a name. It stays listed if a node may have another one."""
        try:
            replicas = self._node.lookup(name, group=self._section.group)
        except DiosError:
            return
        whole = not replicas.incomplete
        for replica in replicas:
            try:
                replica.destroy()
            except DiosError:
                whole = False
            close_all([replica])
        if whole:
            self._listed.discard(name)
            self._dirty = True

    # -- what is done ---------------------------------------------------------------------------------
    def mapper_done(self, number: int, part: Reference) -> None:
        """Record that the pairs of a mapper are kept, with all their replicas."""
        self._tasks.mapped[number] = _name_of(part)
        self._dirty = True

    def mapper_lost(self, number: int) -> None:
        """Record that the pairs of a mapper are on no node that answers."""
        self._tasks.mapped.pop(number, None)
        self._dirty = True

    def reducer_done(self, number: int, output: Reference) -> None:
        """Record that the output of a reducer is written, with all its replicas."""
        self._tasks.reduced[number] = _name_of(output)
        self._dirty = True

    def output_published(self, number: int, output: Reference) -> None:
        """Record that an output is in the groups of the user, and save that at once."""
        self._tasks.published[number] = _name_of(output)
        self.save()

    def finish(self, parts: Iterable[Sequence[Reference]]) -> None:
        """Destroy the kept pairs, which no reducer needs any more, and save the end of the job."""
        self._tasks.mapped.clear()
        self.save()
        for replicas in parts:
            for reference in replicas[:1]:
                self.forget(reference)
            close_all(replicas[1:])
        for reference in self._spare:
            self.forget(reference)
        self._spare.clear()
        self.save()

    # -- saving ---------------------------------------------------------------------------------------
    def save_sometimes(self) -> None:
        """Save what is done, if it has changed and the last time was a while ago."""
        if self._dirty and time.monotonic() - self._saved_at >= JOB_SAVE_PERIOD_MS / 1000:
            self.save()

    def save(self) -> None:
        """Write the section of the state; UnreachableError if no copy could be written."""
        self._section.write(_encode(self._tasks), tuple(self._listed))
        self._dirty = False
        self._saved_at = time.monotonic()


def _name_of(reference: Reference) -> bytes:
    name = reference.name
    if name is None:
        raise InvalidError("an object of the job has no name, so that no later controller could find it")
    return name
