"""Tasks that tell all they know on random histories: nothing reaches a place that its tags forbid.

This is non-interference for explicit flows. ``DIOS_PROPERTY_WALKS`` makes more walks than the suite does.
"""

from __future__ import annotations

import os

import pytest

from dios.core.calls import flows
from dios.wire import messages
from tests.support.core.flow_walk import Walk

STEPS = 250


@pytest.mark.parametrize("seed", range(int(os.environ.get("DIOS_PROPERTY_WALKS", "4"))))
def test_nothing_goes_where_its_label_forbids(seed: int) -> None:
    """The core refuses exactly the flows that the rules forbid, and no tag reaches an object without it."""
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    assert walk.refusals > 10
    assert walk.writes > 10


@pytest.mark.parametrize(
    "kind",
    [
        messages.ReadOnce,
        messages.WriteOnce,
        messages.AcquireWrite,
        messages.Attach,
        messages.Copy,
    ],
)
def test_a_core_without_one_of_the_rules_is_detected(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule is needed: without it a walk ends in a difference."""
    monkeypatch.setitem(flows._RULES, kind, (flows._no_flow, None))
    with pytest.raises(AssertionError):
        _walk_several()


def _walk_several() -> None:
    for seed in range(4):
        walk = Walk(seed)
        for _ in range(STEPS):
            walk.step()
