"""The version of each node, and the traffic on its links to other nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dios.client.ops.cluster import Member
from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError, NotPermittedError

ASKED_MAX: Final = 64
"""Nodes that are asked for their traffic; of a larger cluster the others are left out."""

_ROUND_TRIP: Final = "dios_peer_round_trip_seconds"
_NS_PER_MS: Final = 1e6


class NodeTraffic(NamedTuple):
    """A node's version, its connections to other nodes, and the bytes that they have carried until ``at_s``.

    ``round_trip_ms`` is the duration of a message from the asked node and back, None if it is not known.
    """

    version: str
    connections: int
    sent: int
    received: int
    at_s: float
    round_trip_ms: float | None = None


def read_traffic(node: Node, members: Sequence[Member]) -> dict[str, NodeTraffic]:
    """Return the traffic of the nodes that answer, by name; the asked node has its own name."""
    round_trips = _round_trips(node)
    found: dict[str, NodeTraffic] = {}
    for member in [one for one in members if one.usable][:ASKED_MAX]:
        try:
            info = node.info() if member.here else node.info(host=member.name)
        except DiosError:
            continue
        counts = info.counts
        found[member.name] = NodeTraffic(
            plain(info.version),
            counts.get("peer_connections", 0),
            counts.get("peer_bytes_sent", 0),
            counts.get("peer_bytes_received", 0),
            time.monotonic(),
            round_trips.get(member.name),
        )
    return found


def _round_trips(node: Node) -> dict[str, float]:
    """Return the round trips from the asked node in milliseconds; none for users who may not see them."""
    try:
        rows = node.read_table("metrics")
    except NotPermittedError:
        return {}
    return {
        str(row["labels"]).removeprefix("peer="): int(row["value"]) / _NS_PER_MS
        for row in rows
        if row["metric"] == _ROUND_TRIP
    }


def traffic_text(name: str, before: Mapping[str, NodeTraffic], now: Mapping[str, NodeTraffic]) -> str:
    """Return the version and the links of a node as a line of text; the rate needs two readings."""
    found, earlier = now.get(name), before.get(name)
    if found is None:
        return ""
    words = [f"version {found.version or 'unknown'}", f"{found.connections} links"]
    if earlier is not None and found.at_s > earlier.at_s and found.sent >= earlier.sent:
        seconds = found.at_s - earlier.at_s
        out = (found.sent - earlier.sent) / seconds / 1e3
        into = max(0, found.received - earlier.received) / seconds / 1e3
        words.append(f"{out:.1f} KB/s out, {into:.1f} KB/s in")
    if found.round_trip_ms is not None:
        words.append(f"round trip {found.round_trip_ms:.1f} ms")
    return ", ".join(words)
