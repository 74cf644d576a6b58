"""Every resource of every scope is refused at exactly its limit, and there is room again after freeing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios import limits
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.types import Buffering, Deletion, ObjectType, Resource, Scope
from tests.support.core.harness import Node
from tests.support.core.limits import Office, destroyed, ordered, over

CELLS = [(resource, scope) for resource in Resource for scope in Scope if scope is not Scope.NODE]
UNITS = {
    Resource.BYTES: 10,
    Resource.VOLATILE_BYTES: 10,
    Resource.CPU_MS: 1000,
    Resource.MEMORY_BYTES: 1 << 26,
    Resource.DESCRIPTORS: limits.MEMORY_DESCRIPTORS,
}


class Spender:
    """A task that uses a unit of any resource, in a group, and gives it back."""

    def __init__(self, office: Office) -> None:
        self.node = office.node
        self.worker = office.worker
        self.group = self.worker.groups[0]
        self.blob = self.worker.create(data=b"pass").reference.ref
        self.undo: list[Callable[[], None]] = []

    def call(self, resource: Resource) -> messages.AnyCall:
        """What uses one unit."""
        worker, unit = self.worker, UNITS.get(resource, 1)
        if resource in {Resource.OBJECTS, Resource.BYTES, Resource.VOLATILE_BYTES}:
            return messages.Create(
                ObjectType.SHMEM_BLOB, (self.group,), deletion=Deletion.IMMEDIATE, data=b"x" * unit
            )
        if resource is Resource.DESCRIPTORS:
            return messages.Create(
                ObjectType.SHMEM_BLOB,
                (self.group,),
                deletion=Deletion.IMMEDIATE,
                buffering=Buffering.RAW,
            )
        if resource is Resource.REFERENCES:
            return messages.Copy(self.blob, worker.self_ref)
        if resource is Resource.REQUESTS:
            return messages.AcquireRead(self.blob)
        if resource is Resource.CPU_MS:
            return ordered(self.blob, self.group, cpu_ms=unit)
        if resource is Resource.MEMORY_BYTES:
            return ordered(self.blob, self.group, memory_bytes=unit)
        return ordered(self.blob, self.group)

    def spend(self, resource: Resource) -> None:
        """Use one unit."""
        answer = self.worker.call(self.call(resource))
        assert not isinstance(answer, messages.Failure), answer
        self.undo.append(lambda: self._give_back(answer))

    def _give_back(self, answer: object) -> None:
        if isinstance(answer, messages.Created):
            number = answer.reference.object
            if answer.reference.type is ObjectType.TASK:
                self.node.end(TaskId(number))
            else:
                self.worker.ask(messages.Done, destroyed(answer.reference.ref))
        elif isinstance(answer, messages.References):
            self.worker.ask(messages.Done, messages.Delete(answer.references[0].ref))
        else:
            assert isinstance(answer, messages.Buffer)
            self.worker.ask(messages.Done, messages.ReleaseRead(self.blob, answer.buffer))


@pytest.mark.parametrize(("resource", "scope"), CELLS, ids=str)
def test_exactly_at_the_limit(node: Node, resource: Resource, scope: Scope) -> None:
    """The last unit that fits is given, the next refused with whose limit it is, and one freed fits again."""
    office = Office(node)
    spender = Spender(office)
    unit = UNITS.get(resource, 1)
    bound = office.leave(scope, resource, 2 * unit)
    spender.spend(resource)
    spender.spend(resource)
    said = over(spender.worker, spender.call(resource))
    whose = {
        Scope.TASK: f"task {office.worker.welcome.self_ref.fingerprint} and all",
        Scope.GROUP: f"group {office.group_print} ",
        Scope.PRINCIPAL: "for uid:1000 ",
    }[scope]
    assert whose in said
    assert f"the limit of {bound:,} " in said
    assert f": {unit:,} more" in said
    spender.undo.pop()()
    spender.spend(resource)
    over(spender.worker, spender.call(resource))


@pytest.mark.parametrize(("resource", "scope"), CELLS, ids=str)
def test_lowered_and_lifted(node: Node, resource: Resource, scope: Scope) -> None:
    """A limit below what is used takes nothing away and refuses more; None lifts it."""
    office = Office(node)
    spender = Spender(office)
    spender.spend(resource)
    before = office.used(scope, resource)
    assert before > 0
    office.row(scope, messages.Bound(resource, 0))
    assert office.used(scope, resource) == before
    over(spender.worker, spender.call(resource))
    office.row(scope, messages.Bound(resource, None))
    spender.spend(resource)


@pytest.mark.parametrize("resource", list(Resource), ids=str)
@pytest.mark.parametrize("scope", [Scope.TASK, Scope.PRINCIPAL], ids=str)
def test_over_children_of_children(node: Node, resource: Resource, scope: Scope) -> None:
    """What a grandchild uses counts with its grandparent and its principal: starting tasks gains nothing."""
    office = Office(node)
    spender = Spender(office)
    for _ in range(2):
        spender.worker = spender.worker.run(groups=(spender.worker.groups[0],))
        spender.group = spender.worker.groups[0]
        spender.blob = spender.worker.create(data=b"pass").reference.ref
    office.leave(scope, resource, UNITS.get(resource, 1))
    spender.spend(resource)
    over(spender.worker, spender.call(resource))
