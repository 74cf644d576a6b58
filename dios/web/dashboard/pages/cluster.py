"""The page of the cluster: nodes by rack, and the commands that drain and forget them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from nicegui import ui

from dios.client.ops.cluster import Member
from dios.client.plain_text import plain
from dios.client.sync.node import Node
from dios.errors import DiosError
from dios.web.dashboard.layout import attempt, confirmed, fill, follow, heading, note, poll, table
from dios.web.observation.cluster_view import ClusterView, Row
from dios.web.observation.figures import amounts_of
from dios.web.observation.session import ClusterSession
from dios.web.observation.traffic import (
    LinkReading,
    NodeTraffic,
    link_row,
    read_links,
    read_traffic,
    traffic_text,
)
from dios.wire.types import NodeStatus

_GIB: Final = 2**30
_TRAFFIC_S: Final = 5.0
_LINKS: Final = (
    "to", "state", "KB/s out", "KB/s in", "MB out", "MB in", "bytes waiting", "round trip ms",
)  # fmt: skip


def show(session: ClusterSession, _: str = "") -> None:
    """Make the content; versions and links are read less often than the rest."""
    before: dict[str, NodeTraffic] = {}
    now: dict[str, NodeTraffic] = {}
    links_before: dict[str, LinkReading] = {}

    def read(node: Node) -> tuple[dict[str, NodeTraffic], dict[str, LinkReading] | None]:
        links = read_links(node)
        return read_traffic(node, session.watcher.view.nodes, links), links

    async def update() -> None:
        try:
            traffic, links = await session.call(read)
        except (DiosError, OSError):
            return  # the page says already that the node does not answer
        before.clear()
        before.update(now)
        now.clear()
        now.update(traffic)
        hidden.set_visibility(links is None)
        alone.set_visibility(links == {})
        table_of_links.set_visibility(bool(links))
        rows = [link_row(peer, links_before.get(peer), link) for peer, link in sorted((links or {}).items())]
        fill(table_of_links, _LINKS, rows)
        links_before.clear()
        links_before.update(links or {})

    def traffic_of(name: str) -> str:
        return traffic_text(name, before, now)

    follow(session, partial(_nodes, session, traffic_of))
    heading("Links of the asked node")
    hidden = note("Only the node's own user and root can see them.")
    alone = ui.label("It has no links: it is alone.")
    table_of_links = table(_LINKS, (), label="links")
    for part in (hidden, alone, table_of_links):
        part.set_visibility(False)
    ui.label(
        "Bytes are those of the present connections. The links between other nodes are on their pages: "
        "dios ui --node NAME."
    ).classes("text-caption")
    poll(update, _TRAFFIC_S)


def _nodes(session: ClusterSession, traffic_of: Callable[[str], str], view: ClusterView) -> None:
    racks: dict[str, list[Member]] = {}
    for node in view.nodes:
        racks.setdefault(plain(node.rack), []).append(node)
    alone = len(view.nodes) < 2
    for rack, nodes in sorted(racks.items()):
        heading("Node" if alone else f"Rack {rack}" if rack else "Nodes without a rack")
        with ui.row().classes("w-full items-stretch"):
            for node in nodes:
                _card(session, node, view.rows_of_nodes.get(node.name, {}), traffic_of(node.name))


def _card(session: ClusterSession, node: Member, row: Row, traffic: str) -> None:
    name = plain(node.name) or "this node"
    words = [*node.condition.split(", "), *(["asked"] if node.here else [])]
    with ui.card().classes("min-w-60").props('role="group" aria-label="node"'):
        with ui.row().classes("items-center"):
            colour = "positive" if node.usable else "negative"
            ui.badge(words[0], color="warning" if node.draining or not node.fit else colour)
            ui.label(name).classes("text-bold")
            ui.label(", ".join(words[1:])).classes("text-caption")
        if not node.usable:
            since = time.strftime("%H:%M:%S", time.localtime(node.since_ns / 1e9)) if node.since_ns else ""
            ui.label(f"It does not answer since {since}." if since else "It does not answer.")
        else:
            free = f"{node.memory_bytes / _GIB:.1f} GiB free"
            ui.label(f"{node.tasks} tasks, {node.cpus} processors, {free}, as it reported last")
        if row:
            # The measured use is unknown until the node has measured it.
            for amount in (*amounts_of(row, "set aside"), *amounts_of(row, "used")):
                ui.label(f"{amount.name}: {amount}").classes("text-caption")
                share = amount.used / amount.most if amount.most else 0
                ui.linear_progress(share, show_value=False).props(f'aria-label="{amount.name}"')
        elif node.usable and len(session.watcher.view.nodes) > 1:
            ui.label("Reservations are unknown.").classes("text-caption")
        if traffic:
            ui.label(traffic).classes("text-caption")
        if node.name and not node.here:
            with ui.row():
                wish = "undrain" if node.draining else "drain"
                if node.usable:
                    ui.button(wish, on_click=partial(_set, session, node.name, wish)).props("dense flat")
                if node.status is NodeStatus.DEAD:
                    ui.button("forget", on_click=partial(_forget, session, node.name)).props("dense flat")


async def _set(session: ClusterSession, name: str, wish: str) -> None:
    await attempt(lambda: session.call(lambda node: node.set_node(name, wish)))


async def _forget(session: ClusterSession, name: str) -> None:
    question = f"Forget {plain(name)}? Its certificate is revoked for good; to come back it must join again."
    if await confirmed(question):
        await _set(session, name, "forget")
