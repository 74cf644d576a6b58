"""The traffic of nodes is told from two readings, and only of nodes that answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from dios.client.ops.cluster import Member
from dios.client.sync.node import Node
from dios.errors import NotPermittedError, UnreachableError
from dios.web.observation.traffic import (
    LinkReading,
    NodeTraffic,
    link_row,
    read_links,
    read_traffic,
    traffic_text,
)
from dios.wire.types import NodeStatus


class _Node:
    """A node that is refused its tables, next to one that does not answer."""

    def info(self, *, host: str = "") -> object:
        """Answer for this node."""
        if host:
            raise UnreachableError("silent")
        return SimpleNamespace(version="1\x1b[2J", counts={"peer_bytes_sent": 5, "peer_connections": 1})

    def read_table(self, name: str) -> object:
        """Refuse."""
        raise NotPermittedError(name)


def test_a_silent_node_is_left_out_and_versions_are_harmless() -> None:
    """Only the node that answers has a row, without control characters, and without round trips of others."""
    members = [
        Member(1, name, "", "", NodeStatus.ALIVE, False, 1, 0, 0, 2, 0, here)
        for name, here in (("n1", True), ("n2", False))
    ]
    traffic = read_traffic(cast("Node", _Node()), members)
    assert list(traffic) == ["n1"]
    assert traffic["n1"].version.isprintable()
    assert (traffic["n1"].sent, traffic["n1"].received, traffic["n1"].round_trip_ms) == (5, 0, None)
    assert read_links(cast("Node", _Node())) is None
    with_links = read_traffic(cast("Node", _Node()), members, {"n1": LinkReading(True, 0, 0, 1.0, None, 2.5)})
    assert with_links["n1"].round_trip_ms == 2.5


def test_links_are_read_from_the_metrics() -> None:
    """A link has its bytes, and what is not known of it stays empty; rates need two readings."""

    def metric(name: str, peer: str, value: int) -> dict[str, object]:
        return {"metric": f"dios_peer_{name}", "labels": f"peer={peer}", "value": value}

    rows = [
        metric("connected", "n2\x1b", 1),
        metric("link_sent_bytes_total", "n2\x1b", 5_000),
        metric("round_trip_seconds", "n2\x1b", 1_500_000),
        metric("connected", "n3", 0),
        {"metric": "dios_peer_bytes_sent_total", "labels": "", "value": 7},
    ]
    links = read_links(cast("Node", SimpleNamespace(read_table=lambda _name: rows)))
    assert links is not None
    assert list(links) == ["n2\\x1b", "n3"]
    now = links["n2\\x1b"]._replace(at_s=12.0)
    assert link_row("n2", None, now) == ("n2", "up", "", "", "0.0", "0.0", "", "1.5")
    earlier = now._replace(sent=1_000, at_s=10.0)
    assert link_row("n2", earlier, now)[:4] == ("n2", "up", "2.0", "0.0")
    assert link_row("n3", None, links["n3"])[:2] == ("n3", "down")


def test_a_rate_needs_two_readings_of_one_process() -> None:
    """The first reading and the one after a restart have no rate."""
    first = {"n1": NodeTraffic("1", 2, 1_000, 0, 10.0, 1.5)}
    later = {"n1": NodeTraffic("1", 2, 5_000, 2_000, 12.0, 1.5)}
    assert traffic_text("n1", {}, first) == "version 1, 2 links, round trip 1.5 ms"
    assert "2.0 KB/s out, 1.0 KB/s in" in traffic_text("n1", first, later)
    assert "KB/s" not in traffic_text("n1", later, {"n1": NodeTraffic("1", 2, 10, 10, 13.0)})
    assert traffic_text("n2", first, later) == ""
