"""One run of files and their keepers: users and faults for a while, then rest, and the claims.

The keepers are the real ones (``dios.lib.kept``), one for each node, and so is the library of the programs.
They run in the virtual time of ``trio``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Final

import trio
import trio.testing
from msgspec import Struct
from trio._core import _run as trio_run

from dios.errors import ClosedError
from dios.lib.kept.keeper import Keeper
from labs.sim.kept.calls import ModelSession
from labs.sim.kept.claims import Claims
from labs.sim.kept.history import History
from labs.sim.kept.links import async_node
from labs.sim.kept.nodes import ModelCluster, ModelNode, object_name
from labs.sim.kept.safety import Fault
from labs.sim.kept.surroundings import ModelTierStore, surroundings, tier_store
from labs.sim.kept.troubles import Troubles
from labs.sim.kept.users import Users, where_raised
from labs.sim.node.checker import BrokenPromiseError

TROUBLE_S: Final = 75.0
REST_S: Final = 90.0
"""The time in which the keepers restore all numbers: longer than nodes are passed over after a refusal."""
GRACE_MS: Final = 8_000
_BEGIN_S: Final = 60.0
_SETTLED_S: Final = 5.0
GROUP: Final = object_name("group")


class BrokenClaimsError(BrokenPromiseError):
    """Claims that do not hold at the end of a run."""

    def __init__(self, faults: list[Fault], story: list[str]) -> None:
        self.faults: Final = faults
        self.story: Final = story
        self.claims: Final = sorted({fault.claim for fault in faults})
        lines = "\n".join(f"  {fault.claim}: {fault.text}" for fault in dict.fromkeys(faults))
        super().__init__(f"the claims {', '.join(self.claims)} do not hold:\n{lines}")


class KeptReport(Struct):
    """The counts of a run."""

    nodes: int
    replicas: int
    puts: int
    writes: int
    killed: int
    drops: int
    conflicts: int
    cautious: int
    """The objects that were shown as conflicts because no keeper saw which version was later."""
    restored: int
    """The objects that had the promised number of current replicas in the end."""
    leftovers: int
    """The objects that were left by programs that were killed, or that did not get all answers."""
    lost: int
    faults: dict[str, int]
    digest: str


@dataclass(slots=True)
class _Run:
    cluster: ModelCluster
    keepers: dict[int, tuple[ModelSession, trio.CancelScope]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    drops: int = 0

    def fail(self, text: str) -> None:
        self.faults.append(Fault("error", text))

    def log(self, line: str) -> None:
        self.lines.append(f"{self.cluster.now():.6f} {line}")


def simulate_kept(seed: int, programs: int = 0) -> KeptReport:
    """Run a seed. Raise BrokenPromiseError if a claim does not hold."""
    # The order of tasks is random in trio; this is how its authors make it repeatable for Hypothesis.
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc] # noqa: SLF001 - no public way
    trio_run._r.seed(seed)  # noqa: SLF001 - the same
    random = Random(seed)  # noqa: S311 - repeatable on purpose
    clock = trio.testing.MockClock(autojump_threshold=0)
    store = tier_store(random)
    small = {
        "INLINE_BYTES_MAX": random.choice((256, 1_024)),
        "FILE_WHOLE_BYTES_MAX": 3_000,
        "FILE_PART_BYTES": 1_500,
        "FILE_PARTS_ANNOUNCED": random.choice((1, 4)),
        "CATALOGUE_LOOK_MS": random.choice((1_000, 10_000)),
        "KEPT_LOOKS_MAX": random.choice((4, 32)),
        "KEPT_REFUSED_MS": random.choice((5_000, 30_000)),
        "KEPT_DAMAGED_MS": random.choice((5_000, 30_000)),
        "KEPT_COMPARED_MS": 10_000,
    }
    try:
        with surroundings(random, clock.current_time, store, small):
            return trio.run(_simulate, random, store, programs, clock=clock)
    except BaseExceptionGroup as group:
        broken = group.subgroup(BrokenPromiseError)
        if broken is None:
            raise
        cause: BaseException = broken
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise cause from None
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = False  # type: ignore[misc] # noqa: SLF001 - the same


async def _simulate(random: Random, store: ModelTierStore, programs: int) -> KeptReport:
    async with trio.open_nursery() as nursery:
        cluster = ModelCluster(random, random.randint(3, 5), random.choice((0, 2, 3)), History(), nursery)
        run, users = _Run(cluster), Users(cluster, GROUP, store)
        safety = users.safety
        cluster.stored = lambda replica: (
            safety.note_list(replica.data) if replica.name == users.list_name else None
        )
        cluster.destroyed, store.removed = safety.note_destroyed, safety.note_removed
        replicas, apart = random.randint(2, 3), random.random() < 0.5
        users.log = safety.log = run.log
        await users.set_up(replicas, apart=apart)
        for node in cluster.nodes:
            _start_keeper(run, node)
        troubles = Troubles(
            users,
            lambda node, for_ever: _crash(run, node, for_ever=for_ever),
            lambda node: _restart(run, node),
            run.log,
        )
        troubles.apart = apart
        await _settle(cluster, users.list_name, replicas)
        async with trio.open_nursery() as busy:
            for number in range(programs or random.randint(2, 4)):
                busy.start_soon(users.run, number, TROUBLE_S)
            busy.start_soon(troubles.run, TROUBLE_S)
        troubles.end()
        await trio.sleep(REST_S)
        faults, counts = await Claims(users).check()
        faults += run.faults
        if faults:
            raise BrokenClaimsError(faults, run.lines)
        for _, scope in run.keepers.values():
            scope.cancel()
        nursery.cancel_scope.cancel()
    return KeptReport(
        len(cluster.nodes),
        replicas,
        users.puts,
        users.writes,
        users.killed,
        run.drops + sum(session.drops for session, _ in run.keepers.values()),
        counts["conflicts"],
        counts["cautious"],
        counts["restored"],
        counts["leftovers"],
        cluster.history.lost + safety.lost,
        dict(troubles.counts),
        sha256("\n".join(run.lines).encode()).hexdigest(),
    )


async def _settle(cluster: ModelCluster, list_name: bytes, replicas: int) -> None:
    """Wait until the list has its promised replicas: before that the loss of one node may lose the group."""
    with trio.move_on_after(_BEGIN_S):
        while len(cluster.living(list_name)) < replicas:  # noqa: ASYNC110 - a model has no events
            await trio.sleep(1)
    await trio.sleep(_SETTLED_S)


# -- keepers ----------------------------------------------------------------------------------------
def _start_keeper(run: _Run, node: ModelNode) -> None:
    session, scope = ModelSession(run.cluster, node.number, GROUP, keeps=True), trio.CancelScope()
    run.keepers[node.number] = session, scope

    def log(line: str) -> None:
        run.log(f"{node.name} {line}")

    # A clock that runs fast or slow makes the grace time shorter or longer.
    grace_ms = int(GRACE_MS * run.cluster.random.uniform(0.7, 1.4))
    keeper = Keeper(async_node(session), log, grace_ms=grace_ms, rate=1 << 20)

    async def keep() -> None:
        try:
            with scope:
                await keeper.run()
        except* ClosedError:
            pass  # the node ended during a call
        except* BrokenPromiseError:
            raise
        except* Exception as several:  # noqa: BLE001 - a keeper ends with no other one
            run.fail(f"the keeper on {node.name} ended with {where_raised(several)}")

    run.cluster.nursery.start_soon(keep)


def _crash(run: _Run, node: ModelNode, *, for_ever: bool) -> None:
    if node.is_up:
        session, scope = run.keepers.pop(node.number)
        scope.cancel()
        run.drops += session.drops
    run.cluster.crash(node, for_ever=for_ever)


def _restart(run: _Run, node: ModelNode) -> None:
    if not node.is_up and not node.lost:
        run.cluster.start(node)
        _start_keeper(run, node)
