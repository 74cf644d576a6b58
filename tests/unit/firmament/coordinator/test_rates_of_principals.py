"""Rates for links and stores from what nodes measure."""

from __future__ import annotations

import pytest

from dios.firmament.coordinator.rate_control import RateControl
from dios.limits import RATES_MAX
from dios.wire.messages import Meter, Metered, Rate
from dios.wire.types import Traffic

MB = 1_000_000


def metered(*meters: tuple[str, Traffic, int, int], capacity: tuple[int, int, int]) -> Metered:
    """What a node tells: (principal, traffic, MB moved so far, MB that wait); capacity in MB/s."""
    out, in_, store = (MB * limit for limit in capacity)
    rows = tuple(Meter(who, traffic, moved * MB, waiting * MB) for who, traffic, moved, waiting in meters)
    return Metered(1, rows, (out, in_, store), 0, b"")


def told(control: RateControl, **weights: float) -> dict[str, dict[str, float]]:
    """MB/s by node and principal."""
    return {
        host: {rate.principal: rate.bytes_s / MB for rate in rates}
        for host, rates in control.rates(weights).items()
    }


def test_a_greedy_principal_is_limited_to_what_the_modest_leaves() -> None:
    """Where two want more than a link can, the modest one has all that it asks for, the other the rest."""
    control = RateControl()
    control.record("n1", metered(capacity=(100, 0, 0)), 0.0)
    control.record(
        "n1",
        metered(("greedy", Traffic.OUT, 80, 900), ("modest", Traffic.OUT, 20, 0), capacity=(100, 0, 0)),
        1.0,
    )
    rates = told(control)["n1"]
    assert rates["greedy"] == pytest.approx(80, rel=1e-6)
    # Not stopped by anything: it may come up to as much as anybody has.
    assert rates["modest"] == rates["greedy"]


def test_two_that_want_everything_have_half_each_or_by_weight() -> None:
    """Equal hunger is divided equally, or in proportion to the weights."""
    control = RateControl()
    control.record("n1", metered(capacity=(0, 0, 90)), 0.0)
    meters = ("a", Traffic.STORE, 60, 500), ("b", Traffic.STORE, 30, 900)
    control.record("n1", metered(*meters, capacity=(0, 0, 90)), 1.0)
    assert told(control)["n1"] == pytest.approx({"a": 45, "b": 45}, rel=1e-6)
    assert told(control, a=2.0)["n1"] == pytest.approx({"a": 60, "b": 30}, rel=1e-6)


@pytest.mark.parametrize(
    "meters",
    [
        (("a", Traffic.OUT, 30, 0), ("b", Traffic.OUT, 30, 0)),
        (("a", Traffic.OUT, 100, 900),),
        (("a", Traffic.STORE, 100, 900), ("b", Traffic.STORE, 100, 900)),
    ],
    ids=["enough for both", "nobody else", "capacity unknown"],
)
def test_nobody_is_limited_in_vain(meters: tuple[tuple[str, Traffic, int, int], ...]) -> None:
    """Without a second who wants more than there is, or where nobody knows what there is, no rate is told."""
    control = RateControl()
    control.record("n1", metered(capacity=(100, 0, 0)), 0.0)
    control.record("n1", metered(*meters, capacity=(100, 0, 0)), 1.0)
    assert told(control) == {}


def test_a_full_way_in_limits_those_who_send() -> None:
    """Where bytes come in faster than a node takes them, the rates are told to the nodes that send them."""
    control = RateControl()
    for host in ("n1", "n2", "n3"):
        control.record(host, metered(capacity=(100, 100, 0)), 0.0)
    control.record("n1", metered(("a", Traffic.OUT, 60, 40), capacity=(100, 100, 0)), 1.0)
    control.record("n2", metered(("b", Traffic.OUT, 40, 60), capacity=(100, 100, 0)), 1.0)
    control.record(
        "n3", metered(("a", Traffic.IN, 60, 0), ("b", Traffic.IN, 40, 0), capacity=(100, 100, 0)), 1.0
    )
    rates = told(control)
    assert rates["n1"]["a"] == pytest.approx(50, rel=1e-6)
    assert rates["n2"]["b"] == pytest.approx(50, rel=1e-6)
    assert "n3" not in rates


def test_both_ends_of_a_link_count_once() -> None:
    """What waits at the sender, and is seen at the receiver too, leaves no part of the link idle."""
    control = RateControl()
    both = (100, 100, 0)
    for host in ("n1", "n2"):
        control.record(host, metered(capacity=both), 0.0)
    sent = ("greedy", Traffic.OUT, 20, 640), ("modest", Traffic.OUT, 30, 0)
    came = ("greedy", Traffic.IN, 20, 160), ("modest", Traffic.IN, 30, 0)
    control.record("n1", metered(*sent, capacity=both), 1.0)
    control.record("n2", metered(*came, capacity=both), 1.0)
    assert told(control)["n1"]["greedy"] == pytest.approx(70, rel=1e-6)


def test_a_node_that_starts_anew_counts_from_its_start() -> None:
    """Meters that run back tell nothing about the last interval."""
    control = RateControl()
    control.record(
        "n1", metered(("a", Traffic.OUT, 500, 0), ("b", Traffic.OUT, 500, 0), capacity=(10, 0, 0)), 0.0
    )
    control.record(
        "n1", metered(("a", Traffic.OUT, 5, 99), ("b", Traffic.OUT, 5, 99), capacity=(10, 0, 0)), 1.0
    )
    assert told(control) == {}
    control.record(
        "n1", metered(("a", Traffic.OUT, 15, 99), ("b", Traffic.OUT, 15, 99), capacity=(10, 0, 0)), 2.0
    )
    assert told(control)["n1"] == pytest.approx({"a": 5, "b": 5}, rel=1e-6)
    control.forget("n1")
    assert told(control) == {}


def test_the_tightest_rates_are_told_where_there_are_too_many() -> None:
    """A node is told RATES_MAX rates at the most."""
    control = RateControl()
    control.record("n1", metered(capacity=(1000, 0, 0)), 0.0)
    rows = tuple(
        Meter(f"user {number}", Traffic.OUT, MB, (number + 1) * MB) for number in range(RATES_MAX + 10)
    )
    control.record("n1", Metered(1, rows, (1000 * MB, 0, 0), 0, b""), 1.0)
    (rates,) = control.rates({}).values()
    assert len(rates) == RATES_MAX
    assert all(isinstance(rate, Rate) for rate in rates)
