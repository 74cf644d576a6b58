"""One run of keepers: users and faults for a while, then rest, and the claims about replicas.

The keepers are the real ones (``dios.lib.kept``), one for each node, in the virtual time of ``trio``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Final, cast

import trio
import trio.testing
from msgspec import Struct
from trio._core import _run as trio_run

from dios.errors import ClosedError
from dios.lib import catalogue
from dios.lib.kept.keeper import Keeper
from dios.lib.kept.records import KEPT_NAME, KeptPromise
from dios.sim.kept.history import History
from dios.sim.kept.nodes import ModelCluster, ModelNode, StoredReplica, object_name
from dios.sim.kept.session import ModelSession
from dios.sim.kept.users import LIST, Users, promises_of
from dios.sim.node.checker import BrokenPromiseError
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode

USERS: Final = 2
TROUBLE_S: Final = 90.0
REST_S: Final = 150.0
"""The time in which the keepers restore all numbers: longer than nodes are passed over after a refusal."""
GRACE_MS: Final = 8_000
_LOST_APART_S: Final = 40.0
"""The least time between two losses for ever: the grace time, and the time to copy a few small objects."""
GROUP: Final = object_name("group")


class KeptReport(Struct):
    """The counts of a run."""

    nodes: int
    replicas: int
    puts: int
    writes: int
    drops: int
    conflicts: int
    cautious: int
    """The objects that were shown as conflicts because no keeper saw which version was later."""
    restored: int
    """The objects that had the promised number of current replicas in the end."""
    lost: int
    faults: dict[str, int]
    digest: str


@dataclass(slots=True)
class _Run:
    cluster: ModelCluster
    users: Users
    group: KeptPromise
    keepers: dict[int, tuple[ModelSession, trio.CancelScope]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    last_loss: float = float("-inf")
    drops: int = 0


def simulate_kept(seed: int) -> KeptReport:
    """Run a seed. Raise BrokenPromiseError if a claim does not hold."""
    # The order of tasks is random in trio; this is how its authors make it repeatable for Hypothesis.
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc] # noqa: SLF001 - no public way
    trio_run._r.seed(seed)  # noqa: SLF001 - the same
    try:
        return trio.run(_simulate, seed, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseExceptionGroup as group:
        broken = group.subgroup(BrokenPromiseError)
        if broken is None:
            raise
        found: BaseException = broken
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        raise found from None
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = False  # type: ignore[misc] # noqa: SLF001 - the same


async def _simulate(seed: int) -> KeptReport:
    random = Random(seed)  # noqa: S311 - repeatable on purpose
    history = History()
    async with trio.open_nursery() as nursery:
        cluster = ModelCluster(random, random.randint(3, 5), random.choice((0, 2, 3)), history, nursery)
        users = Users(cluster, GROUP, random.randint(1, 2))
        replicas, apart = random.randint(2, 3), random.random() < 0.5
        group = KeptPromise(0, GROUP, LIST, "papers", replicas, apart)
        users.set_up(replicas, apart=apart)
        run = _Run(cluster, users, group)
        for node in cluster.nodes:
            _start_keeper(run, node)
        async with trio.open_nursery() as busy:
            for _ in range(USERS):
                busy.start_soon(users.run, TROUBLE_S)
            busy.start_soon(_make_trouble, run)
        _end_trouble(run)
        await trio.sleep(REST_S)
        result = _check(run)
        for _, scope in run.keepers.values():
            scope.cancel()
        nursery.cancel_scope.cancel()
    return KeptReport(
        len(cluster.nodes),
        replicas,
        users.puts,
        users.writes,
        run.drops + sum(session.drops for session, _ in run.keepers.values()),
        result["conflicts"],
        result["cautious"],
        result["restored"],
        history.lost,
        dict(run.faults),
        sha256("\n".join(run.lines).encode()).hexdigest(),
    )


# -- keepers ----------------------------------------------------------------------------------------
def _start_keeper(run: _Run, node: ModelNode) -> None:
    session, scope = ModelSession(run.cluster, node.number), trio.CancelScope()
    run.keepers[node.number] = session, scope

    def log(line: str) -> None:
        run.lines.append(f"{trio.current_time():.6f} {node.name} {line}")

    # A clock that runs fast or slow makes the grace time shorter or longer.
    grace_ms = int(GRACE_MS * run.cluster.random.uniform(0.7, 1.4))
    keeper = Keeper(cast("AsyncNode", session), log, grace_ms=grace_ms, rate=1 << 20)

    async def keep() -> None:
        try:
            with scope:
                await keeper.run()
        except* ClosedError:
            pass  # the node ended during a call

    run.cluster.nursery.start_soon(keep)


def _crash(run: _Run, node: ModelNode, *, for_ever: bool) -> None:
    session, scope = run.keepers.pop(node.number)
    session.closed = True
    scope.cancel()
    run.drops += session.drops
    run.cluster.crash(node, for_ever=for_ever)


def _restart(run: _Run, node: ModelNode) -> None:
    if not node.is_up and not node.lost:
        run.cluster.start(node)
        _start_keeper(run, node)


# -- faults -----------------------------------------------------------------------------------------
async def _make_trouble(run: _Run) -> None:
    random, end = run.cluster.random, trio.current_time() + TROUBLE_S
    kinds: tuple[Callable[[_Run], str], ...] = (_kill, _kill, _lose, _cut, _fill, _drain, _change_promise)
    await trio.sleep(random.uniform(2, 12))
    while trio.current_time() < end:
        kind = random.choice(kinds)(run)
        if kind:
            run.faults[kind] += 1
            run.lines.append(f"{trio.current_time():.6f} {kind}")
        await trio.sleep(random.expovariate(0.2))


def _later(run: _Run, most_s: float, action: Callable[[], None]) -> None:
    span = run.cluster.random.uniform(0.2, most_s)

    async def wait() -> None:
        await trio.sleep(span)
        action()

    run.cluster.nursery.start_soon(wait)


def _up(run: _Run) -> list[ModelNode]:
    return [node for node in run.cluster.nodes if node.is_up]


def _kill(run: _Run) -> str:
    up = _up(run)
    if not up:
        return ""
    node = run.cluster.random.choice(up)
    _crash(run, node, for_ever=False)
    _later(run, 30, lambda: _restart(run, node))
    return "killed"


def _lose(run: _Run) -> str:
    """Lose a node for ever: at most one of three, and two of five."""
    nodes, now = run.cluster.nodes, trio.current_time()
    lost = sum(node.lost for node in nodes)
    if lost >= (len(nodes) - 1) // 2 or now - run.last_loss < _LOST_APART_S:
        return ""
    node = run.cluster.random.choice([one for one in nodes if not one.lost])
    run.last_loss = now
    if node.is_up:
        _crash(run, node, for_ever=True)
    else:
        run.cluster.crash(node, for_ever=True)
    if run.cluster.random.random() < 0.5:

        def forget() -> None:
            node.forgotten = True

        _later(run, 20, forget)
    return "lost for ever"


def _cut(run: _Run) -> str:
    random = run.cluster.random
    run.cluster.cut([random.randint(0, 1) for _ in run.cluster.nodes])
    _later(run, 40, lambda: run.cluster.cut([0] * len(run.cluster.nodes)))
    return "cut"


def _fill(run: _Run) -> str:
    node = run.cluster.random.choice(run.cluster.nodes)

    def has_space() -> None:
        node.full = False

    node.full = True
    _later(run, 30, has_space)
    return "full disk"


def _drain(run: _Run) -> str:
    node = run.cluster.random.choice(run.cluster.nodes)

    def undrain() -> None:
        node.draining = False

    node.draining = True
    _later(run, 30, undrain)
    return "drained"


def _change_promise(run: _Run) -> str:
    """Promise another number, by the clock of any node, while all nodes that live reach each other."""
    up = _up(run)
    living = [node for node in run.cluster.nodes if not node.lost]
    together = all(run.cluster.reach(one.number, two.number) for one in living for two in living)
    if not together or not up:
        return ""
    replicas = run.cluster.random.randint(2, 3)
    run.users.promise(
        KeptPromise(0, run.group.group, run.group.target, run.group.label, replicas, run.group.apart)
    )
    return "another promise"


def _end_trouble(run: _Run) -> None:
    run.cluster.cut([0] * len(run.cluster.nodes))
    for node in run.cluster.nodes:
        node.full = node.draining = False
        node.forgotten = node.forgotten or node.lost
        _restart(run, node)


# -- claims -----------------------------------------------------------------------------------------
def _check(run: _Run) -> Counter[str]:
    """Check the claims after the rest, and return the numbers of conflicts and restored objects."""
    cluster, history = run.cluster, run.cluster.history
    for name in sorted(history.acknowledged):
        history.check_all_there(name, [one.write for one in cluster.living(name)], "nothing shows why")
    promises = promises_of(cluster)
    group = promises.promises.get(run.group.key)
    if group is None or group.replicas != run.users.promised:
        raise BrokenPromiseError(f"the promise is {group}, and a user made it {run.users.promised}")
    shown = _shown(run)
    wished = {one.target: one for one in promises.living() if one.is_single}
    for name in (LIST, *_listed(cluster)):
        wished.setdefault(name, group)
    found: Counter[str] = Counter()
    for name, promise in sorted(wished.items()):
        replicas = cluster.living(name)
        heads = history.heads(one.write for one in replicas)
        is_shown = fingerprint(name) in shown
        if len(heads) > 1:
            found["conflicts"] += 1
            if not is_shown:
                raise BrokenPromiseError(f"{len(heads)} versions of {name!r} conflict, and none is shown")
        elif is_shown:
            found["cautious"] += 1
        elif heads:
            found["restored"] += 1
            _check_number(cluster, name, promise, replicas, heads)
    return found


def _check_number(
    cluster: ModelCluster, name: bytes, promise: KeptPromise, replicas: list[StoredReplica], heads: set[int]
) -> None:
    usable = [node for node in cluster.nodes if node.is_up]
    number = min(promise.replicas, len(usable))
    there = [cluster.nodes[one.node] for one in replicas]
    nodes = sorted(node.number for node in there)
    if any(one.write not in heads for one in replicas):
        raise BrokenPromiseError(f"a replica of {name!r} is behind, and was not replaced")
    if len(nodes) != number or len(set(nodes)) != number:
        raise BrokenPromiseError(f"{name!r} is on the nodes {nodes}, and {number} replicas are promised")
    racks = {node.rack or node.name for node in there}
    possible = min(number, len({node.rack or node.name for node in usable}))
    if promise.apart and len(racks) < possible:
        raise BrokenPromiseError(f"{name!r} is in {len(racks)} fault domains, and {possible} are promised")


def _listed(cluster: ModelCluster) -> list[bytes]:
    """Return the names in the latest catalogue, as a keeper reads it."""
    there = cluster.living(LIST)
    if not there:
        return []
    latest = max(there, key=lambda one: (one.v_w, -one.object_id))
    return [name for entry in catalogue.decode(latest.data) for name in entry.names]


def _shown(run: _Run) -> set[str]:
    """Return the fingerprints of the objects that a leading keeper shows as conflicts."""
    boards = [
        one
        for node in run.cluster.nodes
        for one in node.replicas.values()
        if one.name == KEPT_NAME and one.type is ObjectType.SHMEM_BLOB and one.data
    ]
    if not boards:
        raise BrokenPromiseError("no keeper leads")
    return {
        mark
        for one in boards
        for mark, row in cast("dict[str, dict[str, object]]", json.loads(one.data)["objects"]).items()
        if row["conflict"]
    }
