"""The writer thread: order, and what a failure takes with it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import trio

from dios.errors import NoSpaceError
from dios.host.content.contents import Contents
from dios.host.loop.commit_results import CommitResult
from dios.host.loop.persister import Persister, StoreJob
from dios.ids import ObjectId, Ticket
from dios.store.protocol import Change
from dios.transport.memory.pool import MemoryPool
from labs.sim.memory_store import MemoryStore
from tests.support.store.records import put


class FailingStore(MemoryStore):
    """Holds its first batch until told, and then finds no space for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._first = True
        list(self.recover())

    def apply(self, changes: Sequence[Change]) -> None:
        """Refuse the first batch, late."""
        if self._first:
            self._first = False
            self.reached.set()
            assert self.go_on.wait(30)
            raise NoSpaceError("no space left")
        super().apply(changes)


def _job(ticket: int, number: int) -> StoreJob:
    return StoreJob(Ticket(ticket), [put(number, b"value")], [])


async def test_failure_takes_what_was_decided_without_knowing_it() -> None:
    """A job queued behind one that fails, before the core knows, is not written; a later one is."""
    store = FailingStore()
    heard: list[CommitResult] = []
    told = trio.Event()

    def settled(results: list[CommitResult]) -> Ticket:
        heard.extend(results)
        told.set()
        return Ticket(3)  # the core had issued 2 and 3 by the time it heard

    with trio.fail_after(30):
        persister = Persister(store, Contents(store, MemoryPool()), settled)
        persister.submit(_job(1, 1))
        await trio.to_thread.run_sync(store.reached.wait)
        persister.submit(_job(2, 2))
        store.go_on.set()
        await told.wait()
        persister.submit(_job(3, 3))
        persister.submit(_job(4, 4))
        await persister.aclose()
    assert [(result.first, result.last, result.error is None) for result in heard] == [
        (1, 1, False),
        (4, 4, True),
    ]
    assert {record.object for record in store.recover()} == {ObjectId(4)}
    store.close()
