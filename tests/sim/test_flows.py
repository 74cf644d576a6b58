"""Clusters with secrecy labels in virtual time: no secret gets where its label forbids it, whatever fails.

``make sim`` runs more seeds. The histories of one node, which also map memory, are in
``tests/property/test_flows.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labs.sim.cluster.world import simulate_flows
from labs.sim.event_queue import S
from labs.sim.node.checker import BrokenPromiseError
from tests.support.core import broken_cores as broken

SHORT_NS = 5 * S
SEEDS_TO_FIND = 60

FOUND = {
    21: "a task that might declassify was notified of a child's exit code without getting its tags",
}


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("seed", [2, 0, 1])
def test_no_secret_is_where_its_label_forbids_it(seed: int) -> None:
    """Tasks on all nodes write and report all that they know, and their secrets stay within their labels."""
    report = simulate_flows(seed)
    assert report.learned > 10
    assert report.confined > 1


@pytest.mark.extended
@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_leak_has_none(seed: int) -> None:
    """Seeds that found a defect in the core pass now."""
    simulate_flows(seed, SHORT_NS)


@pytest.mark.parametrize(
    ("breaks", "first"),
    [
        (broken.writes_anywhere, 0),  # the first seeds find each of them as well, but later
        (broken.children_begin_clean, 0),
        (broken.trusts_every_reference, 0),
        (broken.delegates_to_anybody, 0),
        (broken.creates_without_label, 0),
        (broken.restarts_forget_labels, 1),
        (broken.reads_leave_no_tag, 4),
        (broken.labels_are_local, 7),
        (broken.copies_lose_their_label, 7),
    ],
)
@pytest.mark.extended(keep=4)
def test_a_core_that_loses_a_label_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core without one of the rules lets a secret out within a few seeds."""
    breaks(monkeypatch)

    def many() -> None:
        for seed in range(first, first + SEEDS_TO_FIND):
            simulate_flows(seed, SHORT_NS)

    with pytest.raises(BrokenPromiseError, match="label"):
        many()
