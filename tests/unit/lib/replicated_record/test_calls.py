"""The steps of the protocol as calls: a replica that may still be held for a client is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, ParamSpec, cast

import pytest
import trio

from dios.client.ops.cluster import Gathered
from dios.errors import Conflict, DiosError, UnreachableError
from dios.lib.replicated_record.asynchronous import AsyncReplicas
from dios.lib.replicated_record.blocking import BlockingReplicas
from dios.lib.replicated_record.steps import (
    CommitReplicas,
    HoldReplicas,
    Look,
    ReleaseReplicas,
    Step,
    Steps,
)
from dios.wire.types import ObjectType, Proximity

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode
    from dios.client.sync.node import Node, Reference

P = ParamSpec("P")

SILENT = UnreachableError("n2 does not answer")


class Replica:
    """The only replica of a record, on a node that fails one kind of call."""

    def __init__(self, failures: Mapping[str, DiosError]) -> None:
        self.object_id = self.ref = 7
        self.node, self.type, self.zombie = "n2", ObjectType.DURABLE_BLOB, False
        self.proximity, self.v_w, self.view = Proximity.CLUSTER, 3, memoryview(b"")
        self.calls: list[str] = []
        self.failures = failures

    def call(self, kind: str) -> None:
        """Make a call, which fails if it is of that kind."""
        self.calls.append(kind)
        if kind in self.failures:
            raise self.failures[kind]

    def fill(self, data: memoryview) -> None:
        """Fill the buffer of the request."""


class Blocking(Replica):
    """The replica and its request for the blocking client."""

    def begin_write(self, *_: object, **__: object) -> Blocking:
        """Hold the replica."""
        self.call("hold")
        return self

    def finish(self) -> None:
        """Commit and release."""
        self.call("commit")

    def reacquire(self) -> None:
        """Commit and hold on."""
        self.call("commit")

    def release(self) -> None:
        """Release."""
        self.call("release")

    def close(self) -> None:
        """Close the reference."""
        self.calls.append("close")


class Awaited(Replica):
    """The same for the async client."""

    async def write(self, *_: object, **__: object) -> Awaited:
        """Hold the replica."""
        self.call("hold")
        return self

    async def finish(self, _: int) -> None:
        """Commit and release."""
        self.call("commit")

    async def reacquire(self) -> None:
        """Commit and hold on."""
        self.call("commit")

    async def release(self) -> None:
        """Release."""
        self.call("release")

    async def close(self) -> None:
        """Close the reference."""
        self.calls.append("close")


class BlockingNode:
    """A node whose batches make their calls one by one."""

    @contextmanager
    def batch(self) -> Iterator[SimpleNamespace]:
        """Return a batch."""

        def add(call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> SimpleNamespace:
            try:
                value = call(*arguments, **named)
            except DiosError as error:
                return SimpleNamespace(error=error)
            return SimpleNamespace(error=None, result=lambda: value)

        yield SimpleNamespace(add=add)

    def nodes(self) -> list[object]:
        """Return no nodes."""
        return []

    def finish_writes(self, sizes: dict[Blocking, int]) -> dict[Blocking, DiosError | None]:
        """Commit and release."""
        errors: dict[Blocking, DiosError | None] = {}
        for write in sizes:
            try:
                write.finish()
            except DiosError as error:
                errors[write] = error
            else:
                errors[write] = None
        return errors


def steps_of(*steps: Step) -> Steps[None]:
    """Make these steps."""
    yield from (step for step in steps)  # a generator, which is sent results


def calls_of(client: str, failures: Mapping[str, DiosError], *steps: Step) -> list[str]:
    """Make steps with a client whose session stays open; return the calls on the replica."""
    if client == "blocking":
        blocking = Blocking(failures)

        def find() -> Gathered[Reference]:
            return Gathered([cast("Reference", blocking)])

        BlockingReplicas(cast("Node", BlockingNode()), find).run(steps_of(*steps))
        return blocking.calls
    awaited = Awaited(failures)

    async def lookup(*_: object, **__: object) -> Gathered[Awaited]:
        return Gathered([awaited])

    node = cast("AsyncNode", SimpleNamespace(lookup=lookup))
    trio.run(AsyncReplicas(node, b"", cast("AsyncGroup", None)).run, steps_of(*steps))
    return awaited.calls


PLANS: dict[str, tuple[Step, ...]] = {
    "hold": (Look(fresh=True), HoldReplicas((7,), 10)),
    "commit": (Look(fresh=True), HoldReplicas((7,), 10), CommitReplicas({7: b"x"})),
    "commit and hold": (Look(fresh=True), HoldReplicas((7,), 10), CommitReplicas({7: b"x"}, hold=True)),
    "release": (Look(fresh=True), HoldReplicas((7,), 10), ReleaseReplicas((7,))),
    "end": (Look(fresh=True), HoldReplicas((7,), 10)),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("client", ["blocking", "async"])
def test_a_replica_whose_node_does_not_answer_is_not_held_for_ever(plan: str, client: str) -> None:
    """A lost answer may leave the request open; it ends with the reference, which the nodes see to."""
    failures = {"release" if plan == "end" else plan.partition(" ")[0]: SILENT}
    if plan == "commit and hold":
        failures["release"] = SILENT
    assert calls_of(client, failures, *PLANS[plan])[-1] == "close"


@pytest.mark.parametrize("client", ["blocking", "async"])
@pytest.mark.parametrize("plan", ["commit", "commit and hold"])
def test_a_refused_commit_keeps_the_reference(plan: str, client: str) -> None:
    """The node has answered, so that nothing is in doubt; a request that would go on is released."""
    failures: dict[str, DiosError] = {"commit": Conflict("another request came between")}
    calls = calls_of(client, failures, *PLANS[plan])
    assert "close" not in calls
    assert (calls[-1] == "release") is (plan == "commit and hold")


def test_only_nodes_that_were_known_before_a_lookup_have_answered_it() -> None:
    """Others may be met while it lasts, and it asked none of them."""
    known = ["n1"]
    replica = Blocking({})

    def find() -> Gathered[Blocking]:
        known.append("n2")
        return Gathered([replica], incomplete=False)

    node = SimpleNamespace(nodes=lambda: [SimpleNamespace(name=name, usable=True) for name in known])
    replicas = BlockingReplicas(cast("Node", node), cast("Callable[[], Gathered[Reference]]", find))
    assert replicas._look(fresh=True).known == frozenset({"n1"})
    assert replicas._look(fresh=True).known == frozenset({"n1", "n2"})
