"""The checks after a chaos run: the clients' records, compared with each other and the healed cluster."""

from __future__ import annotations

from collections.abc import Sequence

import dios
from dios.lib import keyvalue
from dios.wire.types import Semantics
from tests.chaos.cluster import NODES, ChaosCluster
from tests.chaos.history import Action, History, Operation, Outcome
from tests.chaos.linearizability import violation
from tests.chaos.workload import STORE_KEYS, WEAK, Created, Key, Load, Run
from tests.support.node.running_node import wait_until


class BrokenPromiseError(AssertionError):
    """The cluster has broken a promise."""


def judge(cluster: ChaosCluster, load: Load) -> None:
    """Check everything that the clients of a run were answered."""
    if load.troubles:
        raise BrokenPromiseError("; ".join(load.troubles))
    _read_everything(cluster, load)
    judge_keys(load.history, load.keys)
    for number in range(NODES):
        with cluster.connect(number) as session:
            judge_created(session, load.created)
    with cluster.connect(0) as session:
        executions = [_value(session, run.counter) for run in load.runs]
    judge_runs(load.runs, executions)


def _read_everything(cluster: ChaosCluster, load: Load) -> None:
    """Add a read of each key by each node, after all other calls, to the history."""
    for number in range(NODES):
        client = f"the last reader at {cluster.nodes[number].name}"
        with cluster.connect(number) as session:
            assert session.home is not None
            for name, key in load.keys.items():
                operation = load.history.begin(name, Action.READ, client)
                operation.value = _value(session, key.name)
                load.history.end(operation, Outcome.DONE)
                if number == key.home and name.startswith("counter"):
                    judge_commits(name, load.history.operations[name], _commits(session, key.name))
            store = keyvalue.open_store(session, session.home, load.store)
            for key_name in STORE_KEYS:
                operation = load.history.begin(f"store-{key_name}", Action.READ, client)
                operation.value = int.from_bytes(store.get(key_name) or b"", "little")
                load.history.end(operation, Outcome.DONE)


def _value(session: dios.Node, name: bytes) -> int:
    references: list[dios.Reference] = []

    def here() -> bool:
        reference = session.find(name, group=session.home)
        if reference is not None:
            references.append(reference)
        return reference is not None

    wait_until(here, "an object of the run is found")
    with references[0] as reference:
        return int.from_bytes(reference.read_bytes(semantics=Semantics.MRSW), "little")


def _commits(session: dios.Node, name: bytes) -> int:
    """Return the number of writes that the object's node has committed since the object was created."""
    reference = session.find(name, group=session.home)
    assert reference is not None
    with reference:
        return reference.stat().v_w


# -- verdicts that need no cluster ------------------------------------------------------------------------
def judge_keys(history: History, keys: dict[str, Key]) -> None:
    """Check each key by its level: strong levels are linearizable, weak ones may lose updates."""
    for name, operations in history.operations.items():
        key = keys.get(name)
        if key is not None and key.level in WEAK:
            _judge_weak(name, operations)
            continue
        wrong = violation(operations)
        if wrong is not None:
            raise BrokenPromiseError(f"{name} is not linearizable: {wrong}")
        if name.startswith("counter"):
            _judge_total(name, operations)


def _judge_total(name: str, operations: Sequence[Operation]) -> None:
    """Check a counter's last value: each definite increment counts, each indefinite one at most once."""
    increments = [operation for operation in operations if operation.action is Action.INCREMENT]
    definite = sum(operation.returned is not None for operation in increments)
    last = _last_read(operations)
    if last is not None and not definite <= last <= len(increments):
        unknown = len(increments) - definite
        raise BrokenPromiseError(f"{name} is {last} after {definite} increments and {unknown} unknown ones")


def judge_commits(name: str, operations: Sequence[Operation], commits: int) -> None:
    """Check the number of commits, which is known at every level: no failed one is among them."""
    increments = [operation for operation in operations if operation.action is Action.INCREMENT]
    definite = sum(operation.returned is not None for operation in increments)
    if not definite <= commits <= len(increments):
        unknown = len(increments) - definite
        raise BrokenPromiseError(f"{name} has {commits} commits: {definite} are known, {unknown} unknown")


def _judge_weak(name: str, operations: Sequence[Operation]) -> None:
    """Check a counter whose updates may be lost: each value was written by an increment called before."""
    written = {0: -1}
    for operation in operations:
        if operation.action is Action.INCREMENT:
            written[operation.value] = min(operation.called, written.get(operation.value, operation.called))
    for operation in operations:
        if operation.action is Action.READ and written.get(operation.value, operation.returned or 0) >= (
            operation.returned or 0
        ):
            raise BrokenPromiseError(f"{name} was read as {operation.value}, which nobody had written")


def _last_read(operations: Sequence[Operation]) -> int | None:
    reads = [operation for operation in operations if operation.action is Action.READ]
    return max(reads, key=lambda operation: operation.called).value if reads else None


def judge_created(session: dios.Node, created: Sequence[Created]) -> None:
    """Check that each object whose creation was acknowledged exists with its bytes."""
    for creation in created:
        reference = session.find(creation.name, group=session.home)
        if reference is None:
            raise BrokenPromiseError("an object whose creation was acknowledged is gone")
        with reference:
            if reference.read_bytes() != creation.data:
                raise BrokenPromiseError("an object has other bytes than were acknowledged")


def judge_runs(runs: Sequence[Run], executions: Sequence[int]) -> None:
    """Check that a run that succeeded was executed once, one that failed not, any other at most once."""
    allowed = {Outcome.DONE: {1}, Outcome.FAILED: {0}, Outcome.UNKNOWN: {0, 1}}
    for run, count in zip(runs, executions, strict=True):
        if count not in allowed[run.outcome]:
            raise BrokenPromiseError(
                f"a run with outcome {run.outcome} was executed {count} times: {run.why}"
            )
