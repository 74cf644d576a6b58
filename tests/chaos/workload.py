"""The clients of a chaos run: threads with sessions at all nodes, which record all that they are answered.

Each key has one level of semantics. Registers are written at once with values that are never repeated.
Counters are incremented by an I/O request: a buffer with the value is acquired, changed and committed. A run
increments a counter of its own in a pure task, so that the counter has the number of executions.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import dios
from dios.lib import keyvalue, mapreduce
from dios.wire.types import Semantics
from tests.chaos.cluster import NODES, ChaosCluster, repeat_until
from tests.chaos.history import Action, History, Operation, Outcome

CLIENTS_PER_NODE: Final = 2
BYTES: Final = 8
STRONG: Final = (Semantics.EXCL, Semantics.MRSW)
WEAK: Final = (Semantics.SRMW, Semantics.ANY)
STORE_KEYS: Final = ("a", "b")
_CREATED_BYTES: Final = (100, 40_000)
_RUN_S: Final = 60.0
_AGAIN_SHARE: Final = 0.3
"""The share of increments that acquire the next request with the commit, and make a second increment."""

COUNTING: Final = b"""
import dios
with dios.connect() as node:
    with node.outputs[0].write(8, replace=True) as write:
        write.view[:] = (int.from_bytes(write.view, "little") + 1).to_bytes(8, "little")
"""

COUNT_WORDS: Final = b"""
def map_keys(line):
    return line.split()
reduce = sum
"""
_TEXT: Final = b"some words and some more words\n" * 50


class Key(NamedTuple):
    """An object with one value: its node, its name, and the level of its requests."""

    home: int
    name: bytes
    level: Semantics


class Created(NamedTuple):
    """An object that was acknowledged."""

    name: bytes
    data: bytes


class Run(NamedTuple):
    """A run, the outcome that its caller learnt, and the counter of its executions."""

    counter: bytes
    outcome: Outcome
    why: str


class Load:
    """All clients of a run, and what they were answered."""

    def __init__(self, cluster: ChaosCluster, seed: int) -> None:
        self.history: Final = History()
        self.created: Final[list[Created]] = []
        self.runs: Final[list[Run]] = []
        self.troubles: Final[list[str]] = []
        self.keys: Final[dict[str, Key]] = {}
        self._cluster: Final = cluster
        self._values: Final = itertools.count(1)
        self._stop: Final = threading.Event()
        self.store = b""
        self._make_keys()
        self._clients: Final = [
            _Client(self, cluster, number % NODES, random.Random(f"{seed} {number}"), self._stop)  # noqa: S311 - it guards nothing
            for number in range(NODES * CLIENTS_PER_NODE)
        ]
        self._threads: Final = [
            threading.Thread(target=client.live, name=f"client {number}", daemon=True)
            for number, client in enumerate(self._clients)
        ]

    def _make_keys(self) -> None:
        for home in range(NODES):
            with self._cluster.connect(home) as session:
                group = session.home
                assert group is not None
                for level in Semantics:
                    counter = session.create(
                        dios.DURABLE_BLOB, groups=[group], data=bytes(BYTES), deletion=dios.Deletion.IMMEDIATE
                    )
                    assert counter.name is not None
                    self.keys[f"counter-{level.name}-{home}"] = Key(home, counter.name, level)
                register = session.create(dios.DURABLE_BLOB, groups=[group], data=bytes(BYTES))
                assert register.name is not None
                self.keys[f"register-{home}"] = Key(home, register.name, Semantics.EXCL)
        with self._cluster.connect(0) as session:
            assert session.home is not None
            hosts = [node.name for node in self._cluster.nodes]
            store = keyvalue.create_store(session, session.home, hosts=hosts, shards=1)
            for key in STORE_KEYS:
                store.put(key, bytes(BYTES))
            self.store = store.name

    def fresh(self) -> int:
        """Return a value that was never used."""
        return next(self._values)

    def begin(self) -> None:
        """Start every client."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop every client, and wait until its last call has ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_RUN_S)
            assert not thread.is_alive(), f"{thread.name} waits for an answer for ever"

    def wait_calls(self, count: int) -> None:
        """Wait until this number of further calls has ended."""
        until = self.history.size + count
        assert repeat_until(lambda: self.history.size >= until or bool(self.troubles), lambda: False)


class _Client:
    """One client. It never stops because of an error, which it records instead."""

    def __init__(
        self, load: Load, cluster: ChaosCluster, number: int, rng: random.Random, stop: threading.Event
    ) -> None:
        self._load: Final = load
        self._cluster: Final = cluster
        self._number: Final = number
        self._rng: Final = rng
        self._stop: Final = stop
        self._session: dios.Node | None = None
        self._references: Final[dict[str, dios.Reference]] = {}
        self._store: keyvalue.KeyValueStore | None = None

    def live(self) -> None:
        """Make calls until stopped."""
        name = threading.current_thread().name
        weighted: list[tuple[int, Callable[[], None]]] = [
            (30, self._increment),
            (15, self._read),
            (15, self._write),
            (4, self._put),
            (4, self._get),
            (4, self._create),
            (2, self._run),
        ]
        weights = [weight for weight, _ in weighted]
        while not self._stop.is_set() and not self._load.troubles:
            try:
                self._rng.choices([act for _, act in weighted], weights)[0]()
            except (dios.UnreachableError, dios.ClosedError, OSError):
                # Before any call on a key: the node is away.
                self._reconnect()
            except Exception as error:  # noqa: BLE001 - an unexpected error is a finding
                self._load.troubles.append(f"{name}: {type(error).__name__}: {error}")
        self._close()

    # -- the session ------------------------------------------------------------------------------------
    def _reconnect(self) -> None:
        self._close()
        repeat_until(self._connected, self._stop.is_set)

    def _connected(self) -> bool:
        try:
            self._session = self._cluster.connect(self._number)
        except (dios.DiosError, OSError):
            return False
        return True

    def _close(self) -> None:
        session, self._session, self._store = self._session, None, None
        self._references.clear()
        if session is not None:
            try:
                session.close()
            except (dios.DiosError, OSError):
                return

    def _node(self) -> dios.Node:
        if self._session is None:
            self._session = self._cluster.connect(self._number)
        return self._session

    def _key(self, *, weak: bool) -> tuple[str, Key, dios.Reference]:
        keys = [name for name, key in self._load.keys.items() if weak or key.level not in WEAK]
        name = self._rng.choice(keys)
        key = self._load.keys[name]
        reference = self._references.get(name)
        if reference is None:
            node = self._node()
            reference = node.find(key.name, group=node.home)
            if reference is None:
                raise dios.UnreachableError("the key's node is away")
            self._references[name] = reference
        return name, key, reference

    # -- calls ------------------------------------------------------------------------------------------
    def _attempt(self, operation: Operation, work: Callable[[], None]) -> Outcome:
        """Make the call of an operation, and record what is known of it afterwards."""
        outcome, gone = attempted(work)
        self._load.history.end(operation, outcome)
        if gone:
            self._references.pop(operation.key, None)
        if outcome is Outcome.UNKNOWN and self._session is not None:
            self._look_alive()
        return outcome

    def _look_alive(self) -> None:
        try:
            self._node().info()
        except (dios.DiosError, OSError):
            self._reconnect()

    def _begin(self, key: str, action: Action, value: int = -1) -> Operation:
        return self._load.history.begin(key, action, threading.current_thread().name, value)

    def _increment(self) -> None:
        name, key, reference = self._key(weak=True)
        if not name.startswith("counter"):
            return
        try:
            write = reference.write(BYTES, key.level, replace=True)
        except (dios.Busy, dios.Conflict):
            return
        except (dios.BadReferenceError, dios.StaleError):
            self._references.pop(name, None)
            return
        if self._rng.random() >= _AGAIN_SHARE:
            self._add_one(name, write, write.finish)
            return
        admitted = True

        def commit_and_acquire() -> None:
            nonlocal admitted
            try:
                write.reacquire()
            except dios.Busy:
                # By its documentation the commit is made, and only the next request is not admitted.
                admitted = False

        outcome = self._add_one(name, write, commit_and_acquire)
        if outcome is Outcome.DONE and admitted:
            self._add_one(name, write, write.finish)
        with contextlib.suppress(dios.DiosError, OSError):
            write.release()

    def _add_one(self, name: str, write: dios.WriteRequest, commit: Callable[[], None]) -> Outcome:
        """Write the next value into a buffer and commit it."""
        value = int.from_bytes(write.view, "little") + 1
        write.view[:] = value.to_bytes(BYTES, "little")
        return self._attempt(self._begin(name, Action.INCREMENT, value), commit)

    def _write(self) -> None:
        name, key, reference = self._key(weak=False)
        if name.startswith("register"):
            value = self._load.fresh()
            data = value.to_bytes(BYTES, "little")
            operation = self._begin(name, Action.WRITE, value)
            self._attempt(operation, lambda: _ignore(reference.write_bytes(data, semantics=key.level)))

    def _read(self) -> None:
        name, _, reference = self._key(weak=True)
        operation = self._begin(name, Action.READ)

        def read() -> None:
            operation.value = int.from_bytes(reference.read_bytes(semantics=Semantics.MRSW), "little")

        self._attempt(operation, read)

    def _open_store(self) -> keyvalue.KeyValueStore:
        if self._store is None:
            node = self._node()
            assert node.home is not None
            self._store = keyvalue.open_store(node, node.home, self._load.store)
        return self._store

    def _put(self) -> None:
        store, key, value = self._open_store(), self._rng.choice(STORE_KEYS), self._load.fresh()
        operation = self._begin(f"store-{key}", Action.WRITE, value)
        self._attempt(operation, lambda: store.put(key, value.to_bytes(BYTES, "little")))

    def _get(self) -> None:
        store, key = self._open_store(), self._rng.choice(STORE_KEYS)
        operation = self._begin(f"store-{key}", Action.READ)

        def get() -> None:
            stored = store.get(key)
            assert stored is not None, f"the store lost the key {key}"
            operation.value = int.from_bytes(stored, "little")

        self._attempt(operation, get)

    def _create(self) -> None:
        node = self._node()
        assert node.home is not None
        group = node.home
        data = self._rng.randbytes(self._rng.choice(_CREATED_BYTES))
        host = self._cluster.nodes[self._rng.randrange(NODES)].name

        def create() -> None:
            with node.create(dios.DURABLE_BLOB, groups=[group], data=data, host=host) as blob:
                assert blob.name is not None
                self._load.created.append(Created(blob.name, data))

        outcome, _ = attempted(create)
        self._load.history.count("create", outcome)
        if outcome is Outcome.UNKNOWN:
            self._look_alive()

    def _run(self) -> None:
        node = self._node()
        assert node.home is not None
        blob = node.create(dios.DURABLE_BLOB, groups=[node.home], data=bytes(BYTES))
        assert blob.name is not None
        why = ""

        def run() -> None:
            nonlocal why
            try:
                task = node.run(COUNTING, outputs=[blob.restrict("read", "write")], wait=False)
            except dios.DiosError as error:
                why = f"the start: {type(error).__name__}: {error}"
                raise
            try:
                with task:
                    status = task.wait(_RUN_S)
            except dios.DiosError as error:
                # It was started: an error of the wait says nothing about the end of the task.
                why = f"the wait: {type(error).__name__}: {error}"
                raise dios.UnreachableError("how the task ended is unknown") from error
            why = f"{status.cause.name} {status.detail}"
            if not status.ok:
                # Its own request may have failed after the commit, or its node.
                raise dios.UnreachableError("the task failed")

        outcome, _ = attempted(run)
        self._load.runs.append(Run(blob.name, outcome, why))
        self._load.history.count("run", outcome)
        if outcome is Outcome.UNKNOWN:
            self._look_alive()
        blob.close()


def attempted(work: Callable[[], None]) -> tuple[Outcome, bool]:
    """Return what is known of a call by the documentation of errors, and True if its reference is of no use.

    Any other error is a finding, and is raised.
    """
    try:
        work()
    except (dios.Busy, dios.Conflict):
        return Outcome.FAILED, False
    except (dios.BadReferenceError, dios.StaleError):
        return Outcome.FAILED, True
    except dios.UnreachableError as error:
        certain = "nothing was changed" in error.message or "No task was started" in error.message
        return Outcome.FAILED if certain else Outcome.UNKNOWN, True
    except (dios.ClosedError, dios.TimeLimitError, OSError):
        return Outcome.UNKNOWN, True
    return Outcome.DONE, False


def count_words(cluster: ChaosCluster, number: int) -> None:
    """Run a MapReduce job that a node controls; its result must be right."""
    with cluster.connect(number) as session, mapreduce.run(session, COUNT_WORDS, [_TEXT], splits=2) as result:
        assert dict(result) == {b"some": 100, b"words": 100, b"and": 50, b"more": 50}


def _ignore(_: object) -> None:
    return
