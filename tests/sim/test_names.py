"""The index of names in virtual time: lookups find what was acknowledged, whatever happens to other nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labs.sim.cluster.world import INDEXED_NODES, LOOKUPS_SPAN_NS, ClusterWorld, simulate_lookups
from labs.sim.node.checker import BrokenPromiseError
from tests.support.core import broken_index as broken

pytestmark = pytest.mark.long


@pytest.mark.extended(keep=2)
@pytest.mark.parametrize("seed", range(3))
def test_lookups_find_what_was_acknowledged(seed: int) -> None:
    """Nodes restart, freeze and are cut off; names on all others are found as soon as they are created."""
    assert simulate_lookups(seed) > 0


@pytest.mark.parametrize("seed", range(1))
def test_large_clusters_keep_every_promise(seed: int) -> None:
    """A cluster that is large enough for an index keeps every other promise, too."""
    report = ClusterWorld(seed, size=INDEXED_NODES).run(LOOKUPS_SPAN_NS)
    assert report.faults


@pytest.mark.parametrize(
    ("breaks", "first"),
    [
        (broken.hands_nothing_over, 1),  # the first seed passes
        (broken.answers_for_any_view, 0),
        (broken.answers_with_some_names, 0),
        (broken.does_not_wait, 0),
    ],
)
@pytest.mark.extended(keep=2)
def test_broken_index_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index with one broken rule makes a lookup miss an object within a few seeds."""
    breaks(monkeypatch)

    def many() -> None:
        for seed in range(first, first + 20):
            simulate_lookups(seed)

    with pytest.raises(BrokenPromiseError):
        many()
