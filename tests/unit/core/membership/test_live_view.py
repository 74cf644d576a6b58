"""The view of the living nodes is the same for all who know the same, and follows every change."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from dios.core.membership.live_view import live_view
from dios.core.membership.swim import Membership
from dios.ids import NodeId
from dios.wire.gossip import Load, MemberRow
from dios.wire.types import NodeStatus
from labs.sim.event_queue import S
from tests.support.core.membership_faults import heal_everything, unlucky

ROWS = [MemberRow(NodeId(n), f"n{n}", epoch=n % 3 + 1) for n in (7, 2, 9, 4)]


def test_the_order_of_rows_and_their_loads_do_not_matter() -> None:
    """Rows in any order, with any load and version, give the same nodes and the same digest."""
    shuffled = [replace(row, load=Load(row.node), version=row.node) for row in reversed(ROWS)]
    assert live_view(ROWS).nodes == (2, 4, 7, 9)
    assert live_view(ROWS) == live_view(shuffled)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"status": NodeStatus.DEAD}, True),
        ({"status": NodeStatus.LEFT}, True),
        ({"status": NodeStatus.SUSPECT}, False),
        ({"epoch": 9}, True),
        ({"draining": True}, False),
    ],
)
def test_the_digest_follows_the_living_and_their_starts(change: dict[str, int], *, differs: bool) -> None:
    """A death, a good-bye and a restart change the view; a suspicion alone does not."""
    others = [replace(ROWS[0], **change), *ROWS[1:]]
    assert (live_view(others).digest != live_view(ROWS).digest) is differs


@pytest.mark.parametrize("seed", range(4))
def test_every_node_has_the_same_view_after_trouble(seed: int) -> None:
    """The view that is kept is the one that its rows give, and all nodes come to the same one."""
    rng = Random(seed)  # noqa: S311 - a test repeats itself
    world = unlucky(2 + rng.randrange(8), seed)
    for node in world.running():
        view, kept = world.view(node), world.view(node).view
        assert kept == live_view((view.own, *view.members.values()), kept.version)
    heal_everything(world)
    world.run(S)  # those that said good-bye are gone
    assert world.converges(30 * S), world.differences()
    assert len({world.view(node).view.digest for node in world.running()}) <= 1


def test_the_version_counts_changes_of_the_view_alone() -> None:
    """A node that leaves is not in its own view, and a changed load does not change the version."""
    view = Membership(ROWS[0], bytes)
    before = view.view
    view.refresh(1, Load(5))
    assert view.view is before
    view.leave(2)
    assert view.view.nodes == ()
    assert view.view.version > before.version
