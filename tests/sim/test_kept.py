"""Keepers in virtual time: seeds keep each claim, repeat themselves, and find keepers that break a rule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import cast

import pytest
import trio
import trio.testing
from blake3 import blake3

from dios.client.aio.node import AsyncNode, AsyncReference
from dios.lib.catalogue import CatalogueEntry, Part, encode, pack_parts
from dios.lib.kept import decisions, keeper, replicas
from dios.lib.kept.decisions import KeptSteps
from dios.lib.kept.objects import LookOrder, PromisedObject
from dios.lib.kept.versions import Seen, VersionState
from dios.sim.kept import world
from dios.sim.kept.history import History
from dios.sim.kept.nodes import ModelCluster, object_name
from dios.sim.kept.session import ModelSession
from dios.sim.kept.users import LIST, Users
from dios.sim.kept.world import GROUP, simulate_kept
from dios.sim.node.checker import BrokenPromiseError

SEEDS_TO_FIND = 25


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("seed", range(4))
def test_seed_keeps_every_claim(seed: int) -> None:
    """Nodes that are killed, lost, cut off and full lose nothing, and have the promised replicas at last."""
    report = simulate_kept(seed)
    assert report.faults
    assert report.restored


@pytest.mark.extended
def test_a_seed_repeats_itself() -> None:
    """The same seed makes the same decisions at the same times."""
    assert simulate_kept(5) == simulate_kept(5)


def highest_wins(states: Iterable[VersionState], seen: Collection[Seen]) -> list[VersionState]:
    """Break the rule of conflicts: the highest version counts."""
    del seen
    return [max(states)]


def what_was_put(self: replicas.Digests, one: AsyncReference, *, written: bool) -> object:
    """Break the rule of large objects that programs edit: their version 1 counts as what was put."""
    del written
    return _state(self, one, written=False)


_state = replicas.Digests.state


def no_copies(*args: object, **keywords: object) -> KeptSteps:
    """Break the promise: nothing is copied."""
    return _next_steps(*args, **keywords)._replace(targets=())  # type: ignore[arg-type]


_next_steps = decisions.next_steps


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the highest version wins": lambda patch: patch.setattr(decisions, "latest", highest_wins),
    "a large version 1 is what was put": lambda patch: patch.setattr(replicas.Digests, "state", what_was_put),
    "nothing is copied": lambda patch: patch.setattr(keeper, "next_steps", no_copies),
}


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that breaks one rule breaks a claim within a few seeds."""
    BROKEN[rule](monkeypatch)
    with pytest.raises(BrokenPromiseError):  # noqa: PT012 - any of the seeds
        for seed in range(SEEDS_TO_FIND):
            simulate_kept(seed)


NAMES = [object_name(f"part {number}") for number in range(3)]


async def until(cluster: ModelCluster, holds: Callable[[set[int]], bool]) -> None:
    """Wait until the nodes of each part are as they should be, in virtual time."""
    with trio.fail_after(300):
        while not all(holds({one.node for one in cluster.living(name)}) for name in NAMES):  # noqa: ASYNC110 - a model has no events
            await trio.sleep(1)


def test_every_part_of_a_large_file_has_the_promised_replicas() -> None:
    """A file in parts is several objects. After the loss of a node each is on two nodes again."""
    random = Random(1)  # noqa: S311 - repeatable on purpose

    async def keep() -> None:
        async with trio.open_nursery() as nursery:
            cluster = ModelCluster(random, 3, 0, History(), nursery)
            users = Users(cluster, GROUP, acknowledge=1)
            users.set_up(2, apart=False)
            packed = pack_parts(Part(name, blake3(b"x").digest()) for name in NAMES)
            entry = CatalogueEntry("large", NAMES[0], 3, 0, b"", 1, packed)
            cluster.living(LIST)[0].data = encode([entry])
            for name in NAMES:
                cluster.store(name, 0, b"x", 0)
            for node in cluster.nodes:
                session = cast("AsyncNode", ModelSession(cluster, node.number))
                kept = keeper.Keeper(session, lambda _: None, grace_ms=1_000, rate=1 << 20)
                nursery.start_soon(kept.run)
            await until(cluster, lambda nodes: len(nodes) == 2)
            cluster.crash(cluster.nodes[0], for_ever=True)
            await until(cluster, lambda nodes: nodes == {1, 2})
            nursery.cancel_scope.cancel()

    trio.run(keep, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_write_is_lost_only_with_all_its_disks() -> None:
    """The history tells a loss with the last disk, which is excused, from a loss while another disk lives."""
    history = History()
    first = history.begin()
    second = history.after(first, b"a")
    assert history.after(first, b"a") == second
    other = history.after(first, b"b")
    assert history.heads([first, second, other]) == {second, other}
    history.acknowledge(b"x", first)
    history.check_all_there(b"x", [second], "")
    with pytest.raises(BrokenPromiseError):
        history.check_all_there(b"x", [], "")
    history.forget_lost(b"x", [])
    history.check_all_there(b"x", [], "")
    assert history.lost == 1
    assert world.REST_S > world.GRACE_MS / 1000


def test_a_new_file_does_not_make_the_keeper_look_at_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the list alone no object is hurried but the new ones: writers cost no more looks."""
    done: dict[LookOrder, list[str]] = defaultdict(list)
    replace, hurry = LookOrder.replace, LookOrder.hurry

    def replaced(self: LookOrder, covered: dict[bytes, PromisedObject]) -> Iterator[None]:
        done[self].append("replace")
        return replace(self, covered)

    def hurried(self: LookOrder) -> None:
        done[self].append("hurry")
        hurry(self)

    monkeypatch.setattr(LookOrder, "replace", replaced)
    monkeypatch.setattr(LookOrder, "hurry", hurried)
    simulate_kept(3)
    pairs = Counter(pair for each in done.values() for pair in pairwise(each))
    assert pairs["replace", "hurry"], "a promise was new"
    assert pairs["replace", "replace"], "lists changed without a new promise or node"
