"""Asks other nodes for the heads of this node's audit log that they keep."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from dios import limits
from dios.errors import DiosError, ProtocolError
from dios.host.audit.heads import KnownHeads, PublishedHead, parse_head
from dios.host.audit.signing import digest_of, is_genuine
from dios.host.peers import handshake
from dios.host.peers.connection_protocols import NodeDescription
from dios.node import seeds
from dios.transport.identity import identity
from dios.transport.identity.identity import Identity
from dios.transport.tcp.tls import dial
from dios.wire.dcp_frames import AuditHeads, decode_frame


async def ask_known_nodes(data: Path, within_ms: int) -> KnownHeads:
    """Ask at most AUDIT_KEEPERS_ASKED_MAX nodes that the node in ``data`` knows for the heads of its log."""
    own = identity.load(data)
    if own is None:
        return KnownHeads()
    addresses = list(seeds.read(data))
    random.shuffle(addresses)
    addresses = addresses[: limits.AUDIT_KEEPERS_ASKED_MAX]
    answers: dict[str, KnownHeads] = {}

    async def ask(address: str) -> None:
        try:
            answers[address] = KnownHeads(await _heads_kept_at(address, own, nursery))
        except (DiosError, OSError) as error:
            answers[address] = KnownHeads(unknown=(str(error),))

    with trio.move_on_after(within_ms / 1000):
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address)
    known = KnownHeads()
    for address in addresses:
        silent = KnownHeads(unknown=(f"{address} does not answer in time",))
        known = known.with_others(answers.get(address, silent))
    return known


async def _heads_kept_at(address: str, own: Identity, nursery: trio.Nursery) -> tuple[PublishedHead, ...]:
    """Return the genuine heads of a node's log that another node keeps. Raise DiosError or OSError."""
    line = await dial(address, own, nursery)
    try:
        handshake.send_hello(line, NodeDescription(own.node, 0, own.name, "", ""), handshake.HEADS)
        opened = await handshake.receive_hello(line)
        bodies = opened.rest or await line.receive()
    finally:
        line.close()
    message = decode_frame(bodies[0])[0] if bodies else None
    if not isinstance(message, AuditHeads):
        raise ProtocolError(
            f"{line.peer.name} at {address} keeps no audit heads; it may have an older release"
        )
    heads = [parse_head(text) for text in message.lines]
    return tuple(
        PublishedHead(head, f"kept by {line.peer.name}")
        for head in heads
        if head.node == own.node and digest_of(head.key) == own.card.key and is_genuine(head)
    )
