"""The traffic of nodes is told from two readings, and only of nodes that answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from dios.client.ops.cluster import Member
from dios.client.sync.node import Node
from dios.errors import NotPermittedError, UnreachableError
from dios.web.observation.traffic import NodeTraffic, read_traffic, traffic_text
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
    found = read_traffic(cast("Node", _Node()), members)
    assert list(found) == ["n1"]
    assert found["n1"].version.isprintable()
    assert (found["n1"].sent, found["n1"].received, found["n1"].round_trip_ms) == (5, 0, None)


def test_a_rate_needs_two_readings_of_one_process() -> None:
    """The first reading and the one after a restart have no rate."""
    first = {"n1": NodeTraffic("1", 2, 1_000, 0, 10.0, 1.5)}
    later = {"n1": NodeTraffic("1", 2, 5_000, 2_000, 12.0, 1.5)}
    assert traffic_text("n1", {}, first) == "version 1, 2 links, round trip 1.5 ms"
    assert "2.0 KB/s out, 1.0 KB/s in" in traffic_text("n1", first, later)
    assert "KB/s" not in traffic_text("n1", later, {"n1": NodeTraffic("1", 2, 10, 10, 13.0)})
    assert traffic_text("n2", first, later) == ""
