from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import cast

import anyio
import lib_functions as functions
import pytest

import dios
from dios.client.session import Answer, Operation
from dios.client.sync.connection import Connection
from dios.client.sync.node import Reference
from dios.lib.aio import AsyncGuarded, AsyncMutex
from dios.lib.mutex import Guarded, LockLostError, Mutex, MutexOps
from dios.lib.retrying import insist
from dios.lib.spawn import Spawner
from dios.wire.messages import AnyCall
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import RunningNode, running_node, wait_until

SECONDS_MAX = 60
LONG = 3600.0


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """What it shows."""
        return self.now


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("mutex") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session of a person; at its end no task may be left."""
    with dios.connect(started.place, groups=()) as session:
        yield session
        wait_until(lambda: all(task.ended for task in session.tasks()), "every task has ended")


@pytest.fixture
def lock(node: dios.Node) -> Reference:
    """A lock that nobody has."""
    return node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)


def take(holder: MutexOps, timeout: float | None = None) -> int:
    """Wait for the lock."""
    return insist(holder, holder.take_op, timeout)


def test_one_at_a_time_holds_it(lock: Reference) -> None:
    """While one has the lock another does not get it, and a limit of time is kept; then it does."""
    first, second = Mutex(lock), Mutex(lock, timeout=0.02)
    with first:
        assert not second.try_acquire()
        with pytest.raises(dios.TimeLimitError, match="another holder"):
            second.acquire()
        assert second.remaining == 0
        assert 0 < first.remaining <= first.lease
    with second:
        assert not first.try_acquire()
    assert first.try_acquire()


def test_tasks_that_share_a_lock_lose_no_update(node: dios.Node, lock: Reference) -> None:
    """Four tasks that read, add and write under the lock add up to what each has done."""
    with node.create(dios.SHMEM_BLOB, data=bytes(8)) as counter, Spawner(node) as spawner:
        futures = [spawner.spawn(functions.add_under_lock, lock, counter, 25) for _ in range(4)]
        assert [future.result(SECONDS_MAX) for future in futures] == [25] * 4
        assert int.from_bytes(counter.read_bytes(), "little") == 100


def one_call(call: AnyCall) -> Operation[Answer]:
    """A single call, answered."""
    return (yield call)


def took(lock: Reference, order: Random) -> list[bool]:
    """Which of two holders took the lock, when their calls reach the node in a random order."""
    connection = cast("Connection", lock.link)
    attempts = {place: Mutex(lock).take_op() for place in range(2)}
    calls = {place: next(attempt) for place, attempt in attempts.items()}
    taken = [False, False]
    while calls:
        place = order.choice(sorted(calls))
        try:
            try:
                answer = connection.run(one_call(calls[place]))
            except dios.DiosError as refusal:
                calls[place] = attempts[place].throw(refusal)
            else:
                calls[place] = attempts[place].send(answer)
        except StopIteration:
            taken[place] = True
            del calls[place]
        except (dios.Busy, dios.Conflict):
            del calls[place]
    return taken


def test_of_two_at_the_same_time_one_takes_it(node: dios.Node) -> None:
    """However the calls of two holders mix, at most one of them has the lock; and often one has."""
    outcomes = []
    for seed in range(60):
        with node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS) as lock:
            outcomes.append(sum(took(lock, Random(seed))))  # noqa: S311 - an order that can be repeated
    assert set(outcomes) == {0, 1}


def test_each_taking_has_a_higher_token(lock: Reference) -> None:
    """Fencing tokens go up from holder to holder, and stay the same over a renewal."""
    tokens = []
    for _ in range(3):
        with Mutex(lock) as mutex:
            tokens.append(mutex.token)
            mutex.renew()
            assert mutex.token == tokens[-1]
    assert tokens == sorted(set(tokens))


def test_a_lock_whose_holder_says_nothing_is_taken_over(lock: Reference) -> None:
    """After a whole lease without a word another gets the lock, not before; the former learns of it."""
    gone, waiting = Mutex(lock, lease=LONG), Time()
    gone.acquire()
    heir = MutexOps(lock, clock=waiting)
    for moment in (0.0, LONG - 1):
        waiting.now = 100 + moment
        with pytest.raises(dios.TimeLimitError):
            take(heir, 0)
    waiting.now = 100 + LONG
    assert take(heir) > gone.token
    for change in (gone.renew, gone.release):
        with pytest.raises(LockLostError):
            change()
    assert gone.remaining == 0


def test_a_renewal_begins_the_lease_anew(lock: Reference) -> None:
    """Who has seen a renewal waits for a whole lease again."""
    holder, waiting = Mutex(lock, lease=LONG), Time()
    holder.acquire()
    heir = MutexOps(lock, clock=waiting)
    with pytest.raises(dios.TimeLimitError):
        take(heir, 0)
    holder.renew()
    waiting.now += LONG
    with pytest.raises(dios.TimeLimitError):
        take(heir, 0)
    holder.release()
    assert take(heir, 0)


def test_a_killed_holder_keeps_nobody_waiting_for_ever(node: dios.Node, lock: Reference) -> None:
    """A task is killed while it has the lock; when its lease is over somebody else gets it."""
    with Spawner(node) as spawner, spawner.spawn(functions.hold_and_wait, lock, 0.2) as future:
        with future.task.console() as console:
            assert console.receive(SECONDS_MAX) == b"held"
        assert not Mutex(lock).try_acquire()
    with Mutex(lock, timeout=SECONDS_MAX) as mutex:
        assert mutex.token > 1


def test_a_paused_holder_cannot_write_what_the_lock_guards(node: dios.Node, lock: Reference) -> None:
    """A holder that was overtaken without knowing it is refused by the blob that has seen the newer token."""
    with node.create(dios.SHMEM_BLOB) as blob:
        guarded, waiting = Guarded(blob), Time()
        paused = Mutex(lock, lease=LONG)
        paused.acquire()
        guarded.write(b"before", paused.token)
        heir = MutexOps(lock, clock=waiting)
        with pytest.raises(dios.TimeLimitError):
            take(heir, 0)
        waiting.now += LONG
        guarded.write(b"after", take(heir))
        assert paused.remaining > 0
        with pytest.raises(LockLostError, match="overtaken"):
            guarded.write(b"too late", paused.token)
        assert guarded.read() == b"after"


def test_an_error_in_the_body_lets_go(lock: Reference) -> None:
    """The body's exception goes on, and the lock is free."""
    with pytest.raises(KeyError), Mutex(lock):
        raise KeyError("mine")
    assert Mutex(lock).try_acquire()


def test_a_lock_is_not_taken_twice(lock: Reference) -> None:
    """A holder that takes it again is told so, instead of waiting for itself; so is one who never had it."""
    with Mutex(lock) as mutex, pytest.raises(dios.InvalidError, match="already"):
        mutex.acquire()
    with pytest.raises(LockLostError, match="not taken"):
        mutex.release()


def test_an_object_that_is_no_lock_is_told(node: dios.Node) -> None:
    """Other bytes are not taken for a lock, and stay what they are."""
    with node.create(dios.SHMEM_BLOB, data=b"precious data") as blob:
        with pytest.raises(dios.DamagedError):
            Mutex(blob).acquire()
        assert blob.read_bytes() == b"precious data"


def test_a_lease_must_be_one(lock: Reference) -> None:
    """No time at all, and a time without end, are no leases."""
    for lease in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(dios.InvalidError, match="lease"):
            Mutex(lock, lease=lease)


@on_both_loops
async def test_the_async_mutex(started: RunningNode) -> None:
    """Many async tasks share the lock over one connection; a cancelled holder lets go of it."""
    async with dios.open_node(started.place, groups=()) as node:
        lock = await node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
        guarded = AsyncGuarded(await node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS))

        async def add() -> None:
            for _ in range(5):
                async with AsyncMutex(lock, timeout=SECONDS_MAX) as mutex:
                    value = int.from_bytes(await guarded.read(), "little")
                    await anyio.lowlevel.checkpoint()
                    await guarded.write((value + 1).to_bytes(8, "little"), mutex.token)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(add)
        assert int.from_bytes(await guarded.read(), "little") == 20
        with anyio.CancelScope() as scope:
            async with AsyncMutex(lock):
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        async with AsyncMutex(lock, timeout=SECONDS_MAX) as mutex:
            await mutex.renew()
