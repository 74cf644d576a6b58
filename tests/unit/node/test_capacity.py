"""A node finds out what its link and disk carry until it knows, and tells the scheduler."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dios import limits
from dios.host.bandwidth.rates import Rates
from dios.host.machine.capacity import Measurement, MeasurementError
from dios.node.capacity import CapacitySource, CapacitySources, KnownCapacity, NodeCapacity
from dios.node.settings import load
from dios.wire.messages import Metered
from dios.wire.rates import UNMEASURED
from dios.wire.types import Traffic

MB = 10**6


def scripted(*results: Measurement | None) -> Callable[[], Measurement]:
    """Return a measurement with these results one after the other; None fails."""
    left: Iterator[Measurement | None] = iter(results)

    def measure() -> Measurement:
        result = next(left)
        if result is None:
            raise MeasurementError("the disk is nearly full")
        return result

    return measure


def test_unknown_is_a_state_that_ends() -> None:
    """A failed measurement leaves the capacity unknown, with the reason, until one succeeds."""
    estimate = CapacitySources(0, scripted(None, Measurement(70 * MB, was_busy=False)), "not yet")
    assert estimate.known(0) == (None, CapacitySource.UNKNOWN, "not yet")
    estimate.measure()
    assert estimate.known(0) == (None, CapacitySource.UNKNOWN, "the disk is nearly full")
    assert not estimate.is_settled
    estimate.measure()
    assert estimate.known(0) == (70 * MB, CapacitySource.MEASURED, "")
    assert estimate.is_settled


def test_a_busy_machine_is_measured_again_and_the_best_counts() -> None:
    """A measurement of a busy machine counts until a better one; the number of repetitions is bounded."""
    busy = [Measurement(rate * MB, was_busy=True) for rate in (20, 30, 10)]
    estimate = CapacitySources(0, scripted(*busy, Measurement(25 * MB, was_busy=False)), "")
    for known in (20, 30, 30):
        estimate.measure()
        assert estimate.known(0) == (known * MB, CapacitySource.MEASURED, "while the machine was busy")
        assert not estimate.is_settled
    estimate.measure()
    assert estimate.known(0) == (30 * MB, CapacitySource.MEASURED, "")
    assert estimate.is_settled
    always = CapacitySources(0, lambda: Measurement(MB, was_busy=True), "")
    for attempt in range(limits.CAPACITY_BUSY_ATTEMPTS_MAX):
        assert not always.is_settled, attempt
        always.measure()
    assert always.is_settled


@pytest.mark.parametrize(
    ("interface", "measured", "seen", "known"),
    [
        (100, 50, 80, KnownCapacity(100, CapacitySource.INTERFACE, "eth0")),
        (0, 50, 80, KnownCapacity(80, CapacitySource.SEEN)),
        (0, 90, 80, KnownCapacity(90, CapacitySource.MEASURED)),
    ],
)
def test_the_largest_source_counts(interface: int, measured: int, seen: int, known: KnownCapacity) -> None:
    """All but the settings may be too small, so the largest of them is reserved from."""
    estimate = CapacitySources(0, scripted(Measurement(measured, was_busy=False)), "")
    estimate.note_interface(interface, "eth0")
    estimate.measure()
    assert estimate.known(seen) == known


def test_a_setting_fixes_the_capacity() -> None:
    """Nothing is measured, and nothing that is seen changes it."""
    estimate = CapacitySources(7, scripted(), "")
    estimate.measure()
    estimate.note_interface(100, "eth0")
    assert estimate.is_settled
    assert estimate.known(50) == (7, CapacitySource.CONFIGURED, "")


def node(
    disk: CapacitySources, rates: Rates, interface_speed: Callable[[], tuple[int, str]] = lambda: (0, "")
) -> NodeCapacity:
    """Return the capacities of a node with this disk, whose link is known by its interface at most."""
    return NodeCapacity(disk, CapacitySources(0, None, "no speed"), interface_speed, rates)


async def reports(capacity: NodeCapacity, seconds: float) -> list[tuple[float, int, int]]:
    """Return the times and values of all reports in these seconds of the test's clock."""
    reported: list[tuple[float, int, int]] = []

    def report(disk: int, network: int) -> None:
        reported.append((round(trio.current_time(), 3), disk, network))

    with trio.move_on_after(seconds):
        await capacity.keep(report)
    return reported


def test_a_node_reports_what_it_learns_and_changes_that_matter() -> None:
    """Unknown is no report; then each change of a tenth or more is one, after longer and longer pauses."""
    pause = limits.CAPACITY_PAUSE_MS_MIN / 1000
    results = (
        None,
        Measurement(100 * MB, was_busy=True),
        Measurement(105 * MB, was_busy=True),
        Measurement(200 * MB, was_busy=False),
    )
    rates = Rates()
    capacity = node(CapacitySources(0, scripted(*results), "not yet"), rates)
    clock = MockClock(rate=1000)
    reported = trio.run(reports, capacity, 20 * pause, clock=clock)
    assert [(disk, network) for _, disk, network in reported] == [(100 * MB, 0), (200 * MB, 0)]
    assert reported[0][0] >= pause
    assert reported[1][0] - reported[0][0] >= (2 + 4) * pause
    assert rates.learned[Traffic.STORE] == 200 * MB
    rows = capacity.rows()
    assert [(row.resource, row.bytes_s, row.source, row.detail) for row in rows] == [
        ("disk", 200 * MB, "measured", ""),
        ("network", 0, "unknown", "no speed"),
    ]


def test_an_interface_that_comes_up_later_is_seen_although_the_disk_cannot_be_measured() -> None:
    """The link's capacity does not wait for that of the disk."""
    speeds = chain([(0, "")] * 2, repeat((40 * MB, "eth0")))
    disk = CapacitySources(0, scripted(*[None] * 20), "not yet")
    capacity = node(disk, Rates(), lambda: next(speeds))
    reported = trio.run(reports, capacity, 600, clock=MockClock(rate=1000))
    assert [report[1:] for report in reported] == [(0, 40 * MB)]
    assert not disk.is_settled


def test_a_system_that_refuses_a_measurement_leaves_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a refused thread, nor a refused priority, nor an error in a measurement ends the node."""

    def refused(*_: int) -> None:
        raise PermissionError("no priority for you")

    def broken() -> Measurement:
        raise RuntimeError("can't start new thread")

    def rows() -> list[str]:
        capacity = node(CapacitySources(0, scripted(*[None] * 20), "not yet"), Rates())
        assert trio.run(reports, capacity, 600, clock=MockClock(rate=1000)) == []
        return [row.detail for row in capacity.rows()]

    disk = CapacitySources(0, broken, "not yet")
    disk.measure()
    assert disk.known(0).detail == "cannot measure it: can't start new thread"
    with monkeypatch.context() as patched:
        patched.setattr(os, "setpriority", refused)
        assert rows() == ["cannot measure it: no priority for you", "no speed"]
    before = threading.stack_size(1 << 46)
    try:
        assert rows() == ["cannot measure it: can't start new thread", "no speed"]
    finally:
        threading.stack_size(before)


def test_the_most_seen_becomes_known() -> None:
    """A link whose speed nobody says is known once it was busy for a second."""
    now = [0]
    rates = Rates(now=lambda: now[0])
    capacity = node(CapacitySources(9 * MB, None, ""), rates)
    flow = rates.begin("uid:1", Traffic.OUT, 50 * MB)
    now[0] = 10**9
    rates.change(flow, Traffic.OUT, 40 * MB, -40 * MB)
    metered = rates.completed(Metered(0, (), UNMEASURED, 0, b""))
    assert metered.capacity == (40 * MB, 0, 0)
    assert capacity.network == (40 * MB, CapacitySource.SEEN, "")
    assert rates.seen[Traffic.OUT] == 40 * MB


def test_settings_decide_what_is_measured(tmp_path: Path) -> None:
    """A node on the loopback measures both, unless the setting measure is off or a rate is given."""

    def unsettled(**environ: str) -> list[str]:
        flags = {f"DIOS_{name.upper()}": value for name, value in environ.items()}
        settings = load(tmp_path, environ=flags)
        capacity = NodeCapacity.of_node(settings, "127.0.0.1:7400", Rates())
        return [row.detail for row in capacity.rows()]

    assert unsettled() == ["it is not measured yet"] * 2
    assert unsettled(measure="no") == ["the setting measure is off"] * 2
    assert unsettled(store_rate="1MiB", link_rate="1MiB") == ["", ""]
