"""The version of each node, its traffic, and the links of the asked node."""

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

_LINK: Final = "dios_peer_"
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


class LinkReading(NamedTuple):
    """The connection of the asked node with another one; ``sent`` and ``received`` are bytes since its start.

    ``queued`` bytes wait to be sent; it and the duration of a message and its answer are None if unknown.
    """

    connected: bool
    sent: int
    received: int
    at_s: float
    queued: int | None = None
    round_trip_ms: float | None = None


def read_traffic(
    node: Node, members: Sequence[Member], links: Mapping[str, LinkReading] | None = None
) -> dict[str, NodeTraffic]:
    """Return the traffic of the nodes that answer, by name; the asked node has its own name."""
    traffic: dict[str, NodeTraffic] = {}
    for member in [candidate for candidate in members if candidate.usable][:ASKED_MAX]:
        try:
            info = node.info() if member.here else node.info(host=member.name)
        except DiosError:
            continue
        counts = info.counts
        link = None if links is None else links.get(member.name)
        traffic[member.name] = NodeTraffic(
            plain(info.version),
            counts.get("peer_connections", 0),
            counts.get("peer_bytes_sent", 0),
            counts.get("peer_bytes_received", 0),
            time.monotonic(),
            None if link is None else link.round_trip_ms,
        )
    return traffic


def read_links(node: Node) -> dict[str, LinkReading] | None:
    """Return the links of the asked node by peer; None for users who may not see them."""
    try:
        rows = node.read_table("metrics")
    except NotPermittedError:
        return None
    values: dict[str, dict[str, int]] = {}
    for row in rows:
        metric, (key, _, peer) = str(row["metric"]), str(row["labels"]).partition("=")
        if key == "peer" and metric.startswith(_LINK):
            values.setdefault(peer, {})[metric.removeprefix(_LINK)] = int(row["value"])
    now = time.monotonic()
    return {
        plain(peer): LinkReading(
            bool(counters.get("connected")),
            counters.get("link_sent_bytes_total", 0),
            counters.get("link_received_bytes_total", 0),
            now,
            counters.get("queued_bytes"),
            counters["round_trip_seconds"] / _NS_PER_MS if "round_trip_seconds" in counters else None,
        )
        for peer, counters in values.items()
    }


def _rates(
    before: LinkReading | NodeTraffic | None, now: LinkReading | NodeTraffic
) -> tuple[str, str] | None:
    """Return the KB/s out and in between two readings of the same connections; None without them."""
    if before is None or now.at_s <= before.at_s or now.sent < before.sent:
        return None
    span = (now.at_s - before.at_s) * 1e3
    return f"{(now.sent - before.sent) / span:.1f}", f"{max(0, now.received - before.received) / span:.1f}"


def link_row(peer: str, before: LinkReading | None, now: LinkReading) -> tuple[object, ...]:
    """Return a row of texts about a link; the rates need two readings of one connection."""
    if not now.connected:
        return (peer, "down", *[""] * 6)
    out, into = _rates(before, now) or ("", "")
    return (
        peer,
        "up",
        out,
        into,
        f"{now.sent / 1e6:.1f}",
        f"{now.received / 1e6:.1f}",
        "" if now.queued is None else now.queued,
        "" if now.round_trip_ms is None else f"{now.round_trip_ms:.1f}",
    )


def traffic_text(name: str, before: Mapping[str, NodeTraffic], now: Mapping[str, NodeTraffic]) -> str:
    """Return the version and the links of a node as a line of text; the rate needs two readings."""
    current, earlier = now.get(name), before.get(name)
    if current is None:
        return ""
    words = [f"version {current.version or 'unknown'}", f"{current.connections} links"]
    if rates := _rates(earlier, current):
        words.append(f"{rates[0]} KB/s out, {rates[1]} KB/s in")
    if current.round_trip_ms is not None:
        words.append(f"round trip {current.round_trip_ms:.1f} ms")
    return ", ".join(words)
