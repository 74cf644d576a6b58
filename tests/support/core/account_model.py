"""What everybody uses, counted anew from what the model holds, and what they may use.

Not for: counting as things change, as the core does: everything here is added up from nothing each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from dios.limits import STREAM_RING_BYTES_DEFAULT
from dios.wire.types import Deletion, ObjectType, Resource, Scope

if TYPE_CHECKING:
    from tests.support.core.model import Model, Request, Thing

Account: TypeAlias = tuple[Scope, object]
Need: TypeAlias = tuple[Account, Resource, int]

COUNTED = (Resource.OBJECTS, Resource.BYTES, Resource.REFERENCES, Resource.REQUESTS, Resource.TASKS)
_BYTES_OF = {
    ObjectType.SHMEM_STREAM: STREAM_RING_BYTES_DEFAULT,
    ObjectType.TIMER_BLOB: 0,
    ObjectType.GROUP: 0,
}


@dataclass(eq=False)
class Bytes:
    """Some bytes that the node keeps, and for whom."""

    size: int
    creator: int
    groups: frozenset[bytes] = frozenset()


@dataclass
class Books:
    """Limits by account and resource; what is not in it is not limited."""

    limits: dict[tuple[Account, Resource], int] = field(default_factory=dict)

    # -- whom something is counted with -------------------------------------------------------------
    @staticmethod
    def above(model: Model, task: int) -> Iterator[Account]:
        """A task, those that started it, and its principal; nobody for what the node made."""
        while task:
            person = model.people[task]
            yield (Scope.TASK, task)
            task = person.parent
            if not task:
                yield (Scope.PRINCIPAL, person.principal)

    @staticmethod
    def groups(names: Iterable[bytes]) -> list[Account]:
        """The accounts of groups."""
        return [(Scope.GROUP, name) for name in names]

    def whose(self, model: Model, task: int, names: Iterable[bytes]) -> list[Account]:
        """A task's line and some groups."""
        return [*self.above(model, task), *self.groups(names)]

    # -- adding up ----------------------------------------------------------------------------------
    def used(self, model: Model, waiting: dict[int, int]) -> Counter[tuple[Account, Resource]]:
        """Everything that is used now; ``waiting`` are the calls of each task that wait."""
        usage: Counter[tuple[Account, Resource]] = Counter()
        lines = {task: tuple(self.above(model, task)) for task in model.people}
        lines[0] = ()

        def count(task: int, names: Iterable[bytes], resource: Resource, amount: int = 1) -> None:
            for account in lines[task]:
                usage[account, resource] += amount
            for name in names:
                usage[(Scope.GROUP, name), resource] += amount

        kept: dict[int, Bytes] = {}
        for thing in model.things.values():
            if thing.alive and (thing.creator or thing.shared):
                count(thing.creator, thing.shared, Resource.OBJECTS)
                kept[id(thing.bytes)] = thing.bytes
        for handle in model.handles.values():
            count(handle.task, handle.thing.shared, Resource.REFERENCES)
        for request in model.requests.values():
            count(request.handle.task, request.serves, Resource.REQUESTS)
            if request.held is not None:
                kept[id(request.held)] = request.held
        for some in kept.values():
            count(some.creator, some.groups, Resource.BYTES, some.size)
        for task, calls in waiting.items():
            count(task, (), Resource.REQUESTS, calls)
        for person in model.people.values():
            if not person.session and not person.ended:
                count(person.parent, person.granted, Resource.TASKS)
        return usage

    def fits(self, used: Counter[tuple[Account, Resource]], needs: Iterable[Need]) -> bool:
        """Whether nobody comes over its limit."""
        wanted: Counter[tuple[Account, Resource]] = Counter()
        for account, resource, amount in needs:
            if amount > 0:
                wanted[account, resource] += amount
        return all(
            used[key] + amount <= self.limits.get(key, amount + used[key]) for key, amount in wanted.items()
        )

    # -- bytes --------------------------------------------------------------------------------------
    @staticmethod
    def first(thing: Thing) -> Bytes:
        """The bytes that a new object counts with."""
        return Bytes(_BYTES_OF.get(thing.type, thing.size), thing.creator, thing.shared)

    @staticmethod
    def holders(model: Model, some: Bytes) -> bool:
        """Whether a buffer stands for these bytes."""
        return any(request.held is some for request in model.requests.values())

    def growth(self, model: Model, thing: Thing, size: int) -> list[Need]:
        """What a next version of this size needs."""
        new = self.holders(model, thing.bytes) and not self._fits(thing, size)
        more = size - (0 if new else thing.bytes.size)
        return [(account, Resource.BYTES, more) for account in self.whose(model, thing.creator, thing.shared)]

    def rewrite(self, model: Model, thing: Thing) -> None:
        """The object has another version, of its size."""
        self._replace(model, thing, thing.size)

    def open_raw(self, model: Model, thing: Thing, size: int) -> None:
        """A writer gets the object's own memory, which never shrinks; a larger one replaces it."""
        self._replace(model, thing, max(thing.size, size))
        thing.opened = True

    @staticmethod
    def _fits(thing: Thing, size: int) -> bool:
        return thing.opened and size <= thing.bytes.size

    def _replace(self, model: Model, thing: Thing, size: int) -> None:
        if self._fits(thing, size):
            return
        if self.holders(model, thing.bytes):
            thing.bytes = Bytes(size, thing.creator, thing.shared)
        else:
            thing.bytes.size = size

    @staticmethod
    def disown(model: Model) -> None:
        """What only the node keeps of failed tasks is counted with nobody."""
        for thing in model.failed_programs:
            alone = thing.run_by == sum(1 for program in model.failed_programs if program is thing)
            named = thing.deletion is Deletion.IMMEDIATE and thing.name is not None
            if thing.alive and thing.creator and alone and not named and not model.holders(thing):
                thing.creator, thing.shared = 0, frozenset()
                thing.bytes = Bytes(thing.size, 0)


def moved(request: Request, thing: Thing, owner: Thing | None) -> None:
    """A buffer serves another object from now on; a borrowed one its owner's as well."""
    request.serves = thing.shared | (frozenset() if owner is None else owner.shared)
