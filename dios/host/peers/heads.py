"""The audit heads that nodes keep of each other, so that no node can lose or rewrite its log unnoticed.

A node sends the heads of its log to AUDIT_HEAD_KEEPERS connected nodes. Each keeps some heads of every node
in ``DATA/audit-heads``, and returns the newest to a node that connects. ``dios.host.audit.heads`` has the
format.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ProtocolError
from dios.host.audit import heads as formats
from dios.host.audit.heads import AuditHead, parse_head
from dios.host.peers.connection_protocols import RemoteIdentity
from dios.host.peers.link import PeerSession
from dios.ids import NodeId
from dios.wire.dcp_frames import HEADS_VERSION, AuditHeads

_log: Final = logging.getLogger(__name__)

LOST: Final = "lost"
BEHIND: Final = "behind"
FORGED: Final = "forged"
"""Outcomes of records about other nodes' logs."""


class _Finding(NamedTuple):
    """A reason for a record: its outcome, and its detail."""

    outcome: str
    detail: str


class _Findings(NamedTuple):
    """The result of checking a message: own heads that another node kept, and a reason for a record."""

    returned: tuple[AuditHead, ...]
    reason: _Finding | None


class _Arrived(NamedTuple):
    """Heads that a node sent, by the node whose log they are of, with its name and the digest of its key."""

    session: PeerSession
    name: str
    key: bytes
    heads: dict[int, list[AuditHead]]


class HeadKeeper:
    """The heads that this node keeps of others, in ``folder``.

    ``own_key`` is the SHA-256 of this node's public key. ``record`` is called with an outcome, the name of a
    node and a detail for the audit log, ``returned`` with a genuine head of this node that another node kept,
    and the name of that node.
    """

    def __init__(
        self,
        node: NodeId,
        own_key: bytes,
        folder: Path,
        nursery: trio.Nursery,
        record: Callable[[str, str, str], None],
    ) -> None:
        self._node: Final = node
        self._own_key: Final = own_key
        self._folder: Final = folder
        self._nursery: Final = nursery
        self._record: Final = record
        self.returned: Callable[[AuditHead, str], None] = _ignore
        self._arrived: Final[dict[NodeId, _Arrived]] = {}
        self._served: Final[set[NodeId]] = set()
        self._recorded: Final[dict[NodeId, _Finding]] = {}
        self._storing: Final = trio.Lock()

    def path_of(self, node: NodeId) -> Path:
        """Return the file with the heads of another node."""
        return self._folder / f"{node:x}"

    # -- sending --------------------------------------------------------------------------------------
    def publish(self, head: AuditHead, sessions: Iterable[tuple[NodeId, PeerSession]]) -> None:
        """Send this node's newest head to some of the connected nodes, always the same if possible."""
        able = [(node, session) for node, session in sessions if session.version >= HEADS_VERSION]
        for _, session in sorted(able, key=lambda pair: self._distance(pair[0]))[: limits.AUDIT_HEAD_KEEPERS]:
            session.send_message(AuditHeads((head.line,)))

    def _distance(self, node: NodeId) -> int:
        """Return a number by which the nodes that keep this node's heads are chosen."""
        return (node ^ self._node) * 0x9E3779B97F4A7C15 % 2**64

    def met(self, node: NodeId, session: PeerSession) -> None:
        """Return the newest head that is kept of a node, which is connected."""
        if session.version >= HEADS_VERSION:
            self._nursery.start_soon(self._return_newest, node, session, name="return an audit head")

    async def _return_newest(self, node: NodeId, session: PeerSession) -> None:
        newest = (await self.kept_of(node)).newest
        if newest is not None and not session.closed:
            session.send_message(AuditHeads((newest.line,)))

    async def kept_of(self, node: NodeId) -> formats.StoredHeads:
        """Return the heads that are kept of a node; none if they cannot be read."""
        try:
            return await trio.to_thread.run_sync(formats.read_heads, self.path_of(node))
        except OSError as error:
            _log.warning("cannot read audit heads of another node", extra={"why": str(error)})
            return formats.StoredHeads((), 0)

    # -- receiving ------------------------------------------------------------------------------------
    def receive(self, node: NodeId, peer: RemoteIdentity, session: PeerSession, message: AuditHeads) -> None:
        """Check and store the heads of a message soon; of several messages about one log only the newest.

        Raise ProtocolError if a head is malformed, or of a third node.
        """
        heads: dict[int, list[AuditHead]] = {}
        for head in map(parse_head, message.lines):
            heads.setdefault(head.node, []).append(head)
        if heads.keys() - {node, self._node}:
            raise ProtocolError("a node sent the audit head of a third node")
        if waiting := self._arrived.get(node):
            heads = waiting.heads | heads
        self._arrived[node] = _Arrived(session, peer.name, peer.key, heads)
        if node not in self._served:
            self._served.add(node)
            self._nursery.start_soon(self._serve, node, name="store audit heads")

    async def _serve(self, node: NodeId) -> None:
        """Store the heads of a node, at most every AUDIT_HEAD_STORED_MS_MIN."""
        while arrived := self._arrived.pop(node, None):
            async with self._storing:
                findings = await trio.to_thread.run_sync(self._store, arrived)
            for head in findings.returned:
                self.returned(head, arrived.name)
            if findings.reason is not None:
                self._report(node, arrived, findings.reason)
            await trio.sleep(limits.AUDIT_HEAD_STORED_MS_MIN / 1000)
        self._served.discard(node)

    def _report(self, node: NodeId, arrived: _Arrived, finding: _Finding) -> None:
        if self._recorded.get(node) == finding:
            return
        self._recorded[node] = finding
        _log.warning(
            "the audit log of another node is not what it was",
            extra={"peer": arrived.name, "outcome": finding.outcome, "why": finding.detail},
        )
        self._record(finding.outcome, arrived.name, finding.detail)
        if finding.outcome != LOST:
            self._nursery.start_soon(self._return_newest, node, arrived.session, name="return an audit head")

    def _store(self, arrived: _Arrived) -> _Findings:
        """Store genuine heads of the sender; runs in a thread."""
        # Imported late: a node without other nodes needs no cryptography.
        from dios.host.audit.signing import digest_of, is_genuine  # noqa: PLC0415 - see above

        returned: list[AuditHead] = []
        reason: _Finding | None = None
        for head in itertools.chain.from_iterable(arrived.heads.values()):
            owner = self._own_key if head.node == self._node else arrived.key
            if digest_of(head.key) != owner or not is_genuine(head):
                reason = _Finding(FORGED, "it sent a head that is not signed with the node's key")
            elif head.node == self._node:
                returned.append(head)
            else:
                try:
                    reason = self._merge(head) or reason
                except OSError as error:
                    _log.warning("cannot store an audit head of another node", extra={"why": str(error)})
        return _Findings(tuple(returned), reason)

    def _merge(self, head: AuditHead) -> _Finding | None:
        """Store a head of another node. Return a finding if its log is not a continuation."""
        path = self.path_of(NodeId(head.node))
        stored = formats.read_heads(path)
        newest = stored.newest
        if newest is None or newest.order < head.order:
            formats.write_heads(path, formats.with_head(stored.heads, head))
        if newest is None or (newest.era, newest.digest) == (head.era, head.digest):
            return None
        former = f"{newest.records} records with the digest {newest.digest.hex()}"
        if newest.era < head.era:
            return _Finding(
                LOST, f"it lost records after {head.since}, and its operator accepted that; it had {former}"
            )
        if newest.order < head.order:
            return None
        return _Finding(BEHIND, f"it has {head.records} records, and it had {former}")


def _ignore(head: AuditHead, keeper: str) -> None:
    del head, keeper
