"""When the meters of nodes are read, and whether principals compete."""

from __future__ import annotations

from dios.firmament.coordinator.traffic_monitor import CONTROL_S, TrafficMonitor
from dios.wire.messages import Meter, Metered
from dios.wire.types import Traffic

NODES = frozenset({"n1", "n2"})


def metered(**moved: int) -> Metered:
    """The meters of a node: bytes that each principal has sent since the start."""
    meters = tuple(Meter(who, Traffic.OUT, count, 0) for who, count in moved.items())
    return Metered(0, meters, (0, 0, 0), 0, b"")


def test_quiet_nodes_are_read_less_and_less_often() -> None:
    """The pause doubles up to a bound while nothing moves, and is a control interval when bytes move."""
    monitor = TrafficMonitor()
    monitor.keep(NODES)
    assert monitor.due(0.0) == NODES
    now, pauses = 0.0, []
    for _ in range(8):
        monitor.record("n1", metered(a=5), now, limited=False)
        monitor.postpone("n2", now)
        later = now
        while "n1" not in monitor.due(later):
            later += 0.25
        pauses.append(later - now)
        now = later
    assert pauses[0] == CONTROL_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] > CONTROL_S
    monitor.record("n1", metered(a=10**9), now, limited=False)
    assert "n1" in monitor.due(now + CONTROL_S)
    monitor.record("n1", metered(a=10**9), now + 1, limited=False)
    monitor.hurry(frozenset({"n1", "gone"}))
    assert "n1" in monitor.due(now + 1 + CONTROL_S / 2)


def test_a_change_reads_the_meters_at_once_but_not_without_end() -> None:
    """A node that changes all the time is read twice in each interval."""
    monitor = TrafficMonitor()
    monitor.keep(NODES)
    monitor.record("n1", metered(a=5), 10.0, limited=False)
    read = [10.0]
    for tick in range(1, 101):
        now = 10 + tick / 50
        monitor.hurry(NODES)
        if "n1" in monitor.due(now):
            monitor.record("n1", metered(a=5), now, limited=False)
            read.append(now)
    assert len(read) == 1 + 2 / (CONTROL_S / 2)
    monitor.hurry(NODES)
    assert "n1" in monitor.due(20.0)


def test_a_node_with_rates_is_read_in_each_interval() -> None:
    """Its rates are a lease, which has to be renewed, whether or not bytes move."""
    monitor = TrafficMonitor()
    monitor.keep(NODES)
    for now in (0.0, 1.0, 2.0, 3.0):
        monitor.record("n1", metered(), now, limited=True)
        assert "n1" in monitor.due(now + CONTROL_S)


def test_principals_compete_when_two_of_them_move_bytes() -> None:
    """One principal has nobody to share with; two on different nodes may share a link."""
    monitor = TrafficMonitor()
    monitor.keep(NODES)
    for now, first, second in ((0.0, 0, 0), (1.0, 10**8, 0)):
        monitor.record("n1", metered(a=first), now, limited=False)
        monitor.record("n2", metered(b=second), now, limited=False)
        assert not monitor.competing
    monitor.record("n2", metered(b=10**8), 2.0, limited=False)
    assert monitor.competing
    monitor.keep(frozenset({"n1"}))
    assert not monitor.competing
