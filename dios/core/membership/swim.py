"""The membership protocol: the nodes of the cluster and their status, by SWIM with Lifeguard; pure, in ticks.

The host opens connections and reports them here. The rules about rows are in
``dios.core.membership.member_table``.

Each node pings GOSSIP_PINGS_PER_PERIOD others every GOSSIP_PERIOD_MS. A node that does not answer is pinged
through others. If it still does not answer it becomes *suspect*, which is sent to all nodes and to itself. A
suspect that does not deny in time is *dead*. A denial is the node's own row with a higher incarnation. Every
message carries its sender's own row, so a denial needs a path in one direction only. See docs/membership.md
for times and proofs by simulation.

Prior art: SWIM (Das, Gupta, Motivala 2002) has random round-robin probing, indirect probes, suspicion and
incarnations, and news that travels with probes. Lifeguard (Dadgar, Phillips, Currey 2018) informs a suspect
first of all, and a node that was late itself does not trust its own judgement. In addition to both, a broken
connection shortens the suspicion here, any message from a node prolongs it, and a node that replaces its
program announces its silence, so that the others wait longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dios import limits
from dios.core.membership.clocks import ClockOffset
from dios.core.membership.live_view import LiveView
from dios.core.membership.member_table import Change, MemberTable, TableChanges, next_count
from dios.core.membership.probes import Probe, Probes
from dios.ids import NodeId
from dios.wire import gossip
from dios.wire.gossip import GossipMessage, Load, MemberRow
from dios.wire.types import Fitness, NodeStatus

__all__ = ["Change", "Decision", "Membership"]

_MS: Final = 1_000_000
_PING_NS: Final = limits.GOSSIP_PERIOD_MS * _MS
_ACK_NS: Final = limits.GOSSIP_ACK_TIMEOUT_MS * _MS
_SUSPECTED_NS: Final = limits.GOSSIP_SUSPICION_MS * _MS
_STALL_NS: Final = limits.GOSSIP_STALL_MS * _MS
_DEAD_PING_NS: Final = limits.GOSSIP_DEAD_PERIOD_MS * _MS
_RECENT_ANSWER_NS: Final = limits.GOSSIP_RECENT_ANSWER_MS * _MS
_TABLE_NS: Final = limits.GOSSIP_TABLE_PERIOD_MS * _MS
_REPAIR_NS: Final = limits.GOSSIP_REPAIR_PERIOD_MS * _MS
_LIVING: Final = (NodeStatus.ALIVE, NodeStatus.SUSPECT)
ALL_PROBED: Final = limits.GOSSIP_PARTNERS + 1


class Decision(Struct):
    """The result of one call: messages to send in any order, and changes to act on in this order.

    A message to a node without a connection may be lost, but is a good reason to open a connection.
    ``forgotten`` are nodes that were removed, each reported once; the own id among them means that this node
    was removed.
    """

    send: list[tuple[NodeId, GossipMessage]] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)
    forgotten: list[NodeId] = field(default_factory=list)


class Membership:
    """One node's view of the cluster.

    ``entropy`` returns random bytes; ``forgotten`` are the nodes that were removed before. Times are
    nanoseconds of a monotonic clock. Only their differences count, and the clocks of two nodes are never
    compared.
    """

    __slots__ = (
        "_dead_ns",
        "_next",
        "_probes",
        "_round_ns",
        "_rounds",
        "_table",
        "_table_ns",
        "_urgent_left",
    )

    def __init__(
        self, own: MemberRow, entropy: Callable[[int], bytes], forgotten: Iterable[NodeId] = ()
    ) -> None:
        self._table: Final = MemberTable(own, tuple(forgotten))
        self._probes: Final = Probes(entropy)
        self._next: int | None = None
        self._rounds = 0
        self._urgent_left = limits.GOSSIP_URGENT_PER_PERIOD
        self._round_ns = 0
        self._dead_ns = 0
        self._table_ns = 0

    # -- reading ------------------------------------------------------------------------------------
    @property
    def own(self) -> MemberRow:
        """This node's own row."""
        return self._table.own

    @property
    def members(self) -> Mapping[NodeId, MemberRow]:
        """The rows of all other nodes, dead ones too, at most NODES_MAX - 1; a live view."""
        return MappingProxyType(self._table.rows)

    @property
    def forgotten(self) -> frozenset[NodeId]:
        """The nodes that were removed, as far as this node knows."""
        return frozenset(self._table.forgotten)

    def named(self, name: str) -> list[MemberRow]:
        """Return the rows of the other nodes with this name. Cheap."""
        return [self._table.rows[node] for node in self._table.by_name.get(name, ())]

    def with_id(self, text: str) -> MemberRow | None:
        """Return the row of the other node whose id is written like this, or None. Cheap."""
        try:
            row = self._table.rows.get(NodeId(int(text, 16)))
        except ValueError:
            return None
        return row if row is not None and text == f"{row.node:x}" else None

    def is_forgotten(self, node: NodeId) -> bool:
        """Return True if this node knows that ``node`` was removed. Cheap."""
        return node in self._table.forgotten

    @property
    def next_tick(self) -> int | None:
        """The moment at which ``tick`` should be called; None while there is no node to probe."""
        return self._next

    @property
    def probes_all(self) -> bool:
        """Return True in a small cluster, in which every node probes all others."""
        return len(self._table.by_status[NodeStatus.ALIVE]) <= ALL_PROBED

    def clock_of(self, now: int, node: NodeId) -> ClockOffset | None:
        """Return the measured offset of another node's clock, or None. Cheap."""
        standing = self._table.standing(node)
        return None if standing is None else standing.clock.reading(now)

    def alive(self) -> tuple[MemberRow, ...]:
        """Return the rows of the other living nodes, including suspects."""
        by_status, rows = self._table.by_status, self._table.rows
        return tuple(rows[node] for status in _LIVING for node in by_status[status])

    @property
    def view(self) -> LiveView:
        """The living nodes with their epochs, sorted by id, this node included until it leaves. Cheap."""
        return self._table.view

    @property
    def view_version(self) -> int:
        """The number of changes of ``view`` so far, which costs less than the view."""
        return self._table.view_version

    # -- events -------------------------------------------------------------------------------------
    def tick(self, now: int) -> Decision:
        """Do what is due at ``now``; a call that is early does no harm."""
        decision, changes = self._begin(now)
        self._check_probes(now, decision, changes)
        self._table.expire(now, changes)
        if self.own.status is not NodeStatus.LEFT and now >= self._round_ns:
            self._round(now, decision)
        return self._end(now, decision, changes)

    def connected(self, now: int, member: MemberRow) -> Decision:
        """Note an authenticated connection to a node that stated the row ``member`` about itself.

        Fields of the row that are not known may have their defaults. A node that is not in ``members``
        afterwards was removed, or has an epoch below a former one, or found the table full.
        """
        node = member.node
        decision, changes = self._begin(now)
        if node == self.own.node or node in self._table.forgotten:
            return self._end(now, decision, changes)
        self._table.merge(now, member, changes, first_hand=True)
        standing = self._table.standing(node)
        if standing is not None and standing.proven == member.epoch:
            # Send its row as it was before this connection: a node that was declared dead must know.
            decision.send.append((node, self._digests(node, answer=False)))
            self._table.connect(now, node, changes)
            self._probes.open.pop(node, None)
        return self._end(now, decision, changes)

    def disconnected(self, now: int, node: NodeId) -> Decision:
        """Note that the connection broke or was refused: a short suspicion begins at once."""
        decision, changes = self._begin(now)
        standing = self._table.standing(node)
        if standing is not None:
            self._table.connections.pop(node, None)
            before = self._table.status(node)
            self._table.suspect(now, node, changes, soon=True)
            if before is NodeStatus.ALIVE:
                self._ask_others(now, node, self._probes.number(), decision)
        return self._end(now, decision, changes)

    def excuse(self, node: NodeId, until: int) -> None:
        """Draw no conclusion from the node's silence before ``until``, because it has announced it. Cheap."""
        self._table.excuse(node, until)

    def closed(self, node: NodeId) -> None:
        """Note that the connection ended because neither node had used it for a while. Cheap."""
        self._table.connections.pop(node, None)

    def heard(self, now: int, node: NodeId) -> None:
        """Note any message from the node over its own connection. Cheap."""
        self._table.hear(now, node)
        self._probes.open.pop(node, None)

    def received(self, now: int, sender: NodeId, message: GossipMessage) -> Decision:
        """Handle a gossip message over the connection of ``sender``; invalid parts change nothing."""
        decision, changes = self._begin(now)
        if sender == self.own.node or sender in self._table.forgotten:
            return self._end(now, decision, changes)
        if message.row.node == sender:
            self._table.merge(now, message.row, changes, first_hand=True)
        self.heard(now, sender)
        changes.is_bulk = len(message.updates) > limits.GOSSIP_UPDATES_MAX
        before = self._table.digest.parts if isinstance(message, gossip.Table) else ()
        for row in message.updates:
            self._table.merge(now, row, changes, first_hand=False)
        if isinstance(message, gossip.Table):
            self._repaired(now, sender, message, decision, changed=before != self._table.digest.parts)
        self._answer(now, sender, message, decision)
        self._correct_sender(sender, message, decision, changes)
        return self._end(now, decision, changes)

    # -- statements of this node about itself -------------------------------------------------------
    def refresh(self, now: int, load: Load) -> Decision:
        """Set the own load; it travels with the messages that are sent anyway."""
        decision, changes = self._begin(now)
        if load != self.own.load:
            self._table.own = replace(self.own, load=load, version=next_count(self.own.version))
        return self._end(now, decision, changes)

    def drain(self, now: int, *, on: bool) -> Decision:
        """Start or end draining, during which this node gets no new tasks; announce it to all nodes."""
        decision, changes = self._begin(now)
        if on != self.own.draining:
            self._table.own = replace(self.own, draining=on, version=next_count(self.own.version))
            self._send_to_all(decision)
            changes.urgent.append(self.own.node)
        return self._end(now, decision, changes)

    def label(self, now: int, rack: str, labels: str) -> Decision:
        """Set the own rack and labels; announce them to all nodes."""
        decision, changes = self._begin(now)
        if (rack, labels) != (self.own.rack, self.own.labels):
            version = next_count(self.own.version)
            self._table.own = replace(self.own, rack=rack, labels=labels, version=version)
            self._send_to_all(decision)
            changes.urgent.append(self.own.node)
        return self._end(now, decision, changes)

    def report_fitness(self, now: int, fitness: Fitness) -> Decision:
        """State this node's ability to run pure tasks; announce it to all nodes."""
        decision, changes = self._begin(now)
        if fitness != self.own.fitness:
            version = next_count(self.own.version)
            self._table.own = replace(self.own, fitness=fitness, version=version)
            self._send_to_all(decision)
            changes.urgent.append(self.own.node)
        return self._end(now, decision, changes)

    def coordinate(self, now: int, *, on: bool) -> Decision:
        """State that this node has, or has no longer, a coordinator; some nodes learn it at once."""
        decision, changes = self._begin(now)
        if on != self.own.coordinated:
            self._table.own = replace(self.own, coordinated=on, version=next_count(self.own.version))
            changes.urgent.append(self.own.node)
        return self._end(now, decision, changes)

    def bar(self, now: int, schedulers: tuple[NodeId, ...]) -> Decision:
        """State the nodes whose schedulers have lost their lease here; some nodes learn it at once."""
        decision, changes = self._begin(now)
        if schedulers != self.own.barred:
            self._table.own = replace(self.own, barred=schedulers, version=next_count(self.own.version))
            changes.urgent.append(self.own.node)
        return self._end(now, decision, changes)

    def hold_secrets(self, now: int, mark: int) -> Decision:
        """State the mark of the cluster's secrets that this node has; some nodes learn it at once."""
        decision, changes = self._begin(now)
        if mark != self.own.secrets:
            self._table.own = replace(self.own, secrets=mark, version=next_count(self.own.version))
            changes.urgent.append(self.own.node)
        return self._end(now, decision, changes)

    def leave(self, now: int) -> Decision:
        """Announce to all nodes that this node stops; from now on it probes no others."""
        decision, changes = self._begin(now)
        self._table.leave()
        self._send_to_all(decision)
        return self._end(now, decision, changes)

    def remove(self, now: int, nodes: Iterable[NodeId]) -> Decision:
        """Drop these nodes and ignore rows about them; nodes that were removed before and are not are not."""
        decision, changes = self._begin(now)
        self._table.remove(nodes, changes)
        return self._end(now, decision, changes)

    # -- one call -----------------------------------------------------------------------------------
    def _begin(self, now: int) -> tuple[Decision, TableChanges]:
        if self._next is not None and now - self._next > _STALL_NS:
            # This node was frozen or starved: the missing answers may be waiting in its own sockets.
            self._probes.open.clear()
            self._table.spare(now + _SUSPECTED_NS)
            self._round_ns = now
        return Decision(), TableChanges()

    def _end(self, now: int, decision: Decision, changes: TableChanges) -> Decision:
        for node in dict.fromkeys(changes.suspected):
            if self._table.status(node) is NodeStatus.SUSPECT and self._is_witness(node):
                # Nodes that learn of the suspicion inform the suspect: one answer is enough to deny it.
                self._ping(node, self._probes.number(), decision)
        if changes.urgent:
            # A new status travels at once, not with the next round: each node that learns it sends it on.
            for node in self._choose_relays(now)[: self._urgent_left]:
                self._urgent_left -= 1
                decision.send.append((node, self._news(node, changes.urgent)))
        decision.changed = changes.changed
        decision.forgotten = changes.forgotten
        self._next = self._next_deadline(now)
        return decision

    def _next_deadline(self, now: int) -> int | None:
        if self.own.status is NodeStatus.LEFT:
            return None
        by_status = self._table.by_status
        moments = [until for until, _ in self._table.suspects()]
        moments += [probe.until_ns for probe in self._probes.open.values()]
        if any(by_status[status] for status in _LIVING):
            moments.append(self._round_ns)
        elif by_status[NodeStatus.DEAD]:
            moments.append(max(self._round_ns, self._dead_ns))
        return max(now, min(moments)) if moments else None

    # -- probes -------------------------------------------------------------------------------------
    def _probed(self) -> list[NodeId]:
        """Return the nodes that are probed in turn: all living ones, or the successor and the partners."""
        table = self._table
        if self.probes_all:
            return list(table.by_status[NodeStatus.ALIVE])
        chosen = dict.fromkeys(table.partners.chosen(table.is_alive))
        successor = table.partners.successor(table.is_alive)
        if successor is not None:
            chosen[successor] = None
        return list(chosen)

    def _next_probed(self) -> list[NodeId]:
        """Return the nodes to probe now. Every second probe is one of the successor.

        So each node is probed once in two periods for certain, and by its partners in addition.
        """
        table = self._table
        self._rounds += 1
        if self._rounds % 2:
            successor = table.partners.successor(table.is_alive)
            return [] if successor is None else [successor]
        return self._probes.next(self._probed(), limits.GOSSIP_PINGS_PER_PERIOD)

    def _is_witness(self, suspect: NodeId) -> bool:
        """Return True if this node pings a suspect of which it learned.

        In a large cluster only some do: a suspect that lives would drown in connections.
        """
        nodes = len(self._table.rows)
        if nodes <= limits.GOSSIP_WITNESSES or suspect in self._table.connections:
            return True
        return self._probes.draw(nodes) < limits.GOSSIP_WITNESSES

    def _choose_relays(self, now: int, except_for: NodeId | None = None) -> list[NodeId]:
        """Return a few live nodes at random: those that answered lately, then those with a connection."""
        table, wanted = self._table, limits.GOSSIP_RELAYS
        chosen: list[NodeId] = []
        for source in (
            lambda: table.answered_since(now - _RECENT_ANSWER_NS),
            lambda: filter(table.is_alive, table.connections),
            lambda: table.by_status[NodeStatus.ALIVE],
        ):
            if len(chosen) < wanted:
                rest = [node for node in source() if node != except_for and node not in chosen]
                chosen += self._probes.pick(rest, wanted - len(chosen))
        return chosen

    def _round(self, now: int, decision: Decision) -> None:
        self._round_ns = now + _PING_NS
        self._urgent_left = limits.GOSSIP_URGENT_PER_PERIOD
        for node in self._next_probed():
            probe = self._probes.open.get(node)
            if probe is None:
                probe = self._probes.open[node] = Probe(self._probes.number(), now + _ACK_NS)
                standing = self._table.standing(node)
                if standing is not None:
                    standing.clock.note_ping(probe.number, now)
            else:
                self._end_clock_probe(node)
            self._ping(node, probe.number, decision)
        for _, node in sorted(self._table.suspects())[: limits.GOSSIP_RELAYS]:
            number = self._probes.number()
            self._ping(node, number, decision)
            self._ask_others(now, node, number, decision)
        dead, alive = self._table.by_status[NodeStatus.DEAD], self._table.by_status[NodeStatus.ALIVE]
        if dead and now >= self._dead_ns:
            # After a partition each side considers the other dead: pings of dead nodes heal that.
            self._dead_ns = now + _DEAD_PING_NS
            self._ping(self._probes.pick(list(dead), 1)[0], self._probes.number(), decision)
        if alive and now >= self._table_ns:
            self._table_ns = now + _TABLE_NS
            partner = self._probes.pick(self._probed(), 1)[0]
            decision.send.append((partner, self._digests(partner, answer=True)))

    def _check_probes(self, now: int, decision: Decision, changes: TableChanges) -> None:
        for node, probe in list(self._probes.open.items()):
            if self._table.status(node) is not NodeStatus.ALIVE:
                del self._probes.open[node]
            elif probe.until_ns > now:
                continue
            elif not probe.relayed:
                probe.relayed = True
                probe.until_ns = now + _ACK_NS
                self._end_clock_probe(node)
                self._ping(node, probe.number, decision)
                self._ask_others(now, node, probe.number, decision)
            else:
                del self._probes.open[node]
                self._table.suspect(now, node, changes)
                self._ask_others(now, node, self._probes.number(), decision)

    def _end_clock_probe(self, node: NodeId) -> None:
        """Measure no clock with an answer that may be to either of two pings."""
        standing = self._table.standing(node)
        if standing is not None:
            standing.clock.note_ping(-1, 0)

    def _ping(self, node: NodeId, number: int, decision: Decision) -> None:
        decision.send.append((node, gossip.Ping(self.own, number, self._updates_for(node))))

    def _ask_others(self, now: int, target: NodeId, number: int, decision: Decision) -> None:
        standing = self._table.standing(target)
        if standing is None:
            return
        standing.asked = number
        relays = self._choose_relays(now, target)
        if standing.relay not in relays and self._table.status(standing.relay) is NodeStatus.ALIVE:
            relays.append(standing.relay)
        for relay in relays:
            updates = self._updates_for(relay, (target,))
            message = gossip.PingRequest(self.own, number, target, updates)
            decision.send.append((relay, message))

    # -- answers ------------------------------------------------------------------------------------
    def _answer(self, now: int, sender: NodeId, message: GossipMessage, decision: Decision) -> None:
        if isinstance(message, gossip.Ping):
            self._send_ack(now, sender, message.number, self.own.node, decision)
        elif isinstance(message, gossip.PingRequest):
            if message.target == self.own.node:
                self._send_ack(now, sender, message.number, self.own.node, decision)
            elif message.target != sender and message.target in self._table.rows:
                number = self._probes.add_relayed(sender, message.number, message.target, now + _ACK_NS)
                self._ping(message.target, number, decision)
        elif isinstance(message, gossip.Ack):
            self._handle_ack(now, sender, message, decision)
        elif isinstance(message, gossip.Digests):
            self._compare(sender, message, decision)

    def _handle_ack(self, now: int, sender: NodeId, message: gossip.Ack, decision: Decision) -> None:
        standing = self._table.standing(message.subject)
        if message.subject == sender:
            self._table.note_answer(now, sender)
            if standing is not None:
                standing.clock.note_answer(message.number, message.clock_ns, now)
            relayed_probe = self._probes.finish_relayed(message.number, sender, now)
            if relayed_probe is not None:
                self._send_ack(now, relayed_probe.asker, relayed_probe.number, sender, decision)
            return
        if standing is not None and standing.asked == message.number:
            standing.relay = sender
            self.heard(now, message.subject)

    def _correct_sender(
        self, sender: NodeId, message: GossipMessage, decision: Decision, changes: TableChanges
    ) -> None:
        """Send the sender news if it is wrong about this node, or if it is suspect or dead here.

        News is answered only if it changed the own row: two nodes that cannot convince each other must not
        exchange messages for ever.
        """
        about_sender = self._table.status(sender) in {NodeStatus.DEAD, NodeStatus.SUSPECT}
        if isinstance(message, gossip.News):
            needed = self.own.node in changes.urgent
        else:
            needed = changes.denied or about_sender
        if needed and all(to != sender for to, _ in decision.send):
            decision.send.append((sender, self._news(sender)))

    def _send_ack(self, now: int, asker: NodeId, number: int, subject: NodeId, decision: Decision) -> None:
        updates = self._updates_for(asker, (subject,))
        decision.send.append((asker, gossip.Ack(self.own, number, subject, updates, max(now, 0))))

    # -- news in messages ---------------------------------------------------------------------------
    def _updates_for(self, to: NodeId, about: Sequence[NodeId] = ()) -> tuple[MemberRow, ...]:
        """Return the news for a message to ``to``: first bad news about itself, then about ``about``."""
        chosen: dict[NodeId, None] = {}
        if self._table.status(to) not in {None, NodeStatus.ALIVE}:
            chosen[to] = None
        chosen.update(dict.fromkeys(about[: limits.GOSSIP_UPDATES_MAX - 1]))
        room = limits.GOSSIP_UPDATES_MAX - len(chosen)
        chosen.update(dict.fromkeys(self._table.spreading.take(room)))
        room = min(limits.GOSSIP_UPDATES_MAX - len(chosen), limits.GOSSIP_LOADS_PER_MESSAGE)
        if len(self._table.rows) > ALL_PROBED and room > 0:
            chosen.update(dict.fromkeys(self._table.loads.take(room)))
        rows = self._table.rows
        return tuple(rows[node] for node in chosen if node in rows)

    def _news(self, to: NodeId, about: Sequence[NodeId] = ()) -> gossip.News:
        return gossip.News(self.own, self._updates_for(to, about))

    def _send_to_all(self, decision: Decision) -> None:
        """Send the own row to all living nodes; in a large cluster to those with a connection alone."""
        table = self._table
        few = len(table.rows) <= limits.GOSSIP_WITNESSES
        for member in self.alive():
            if few or member.node in table.connections:
                decision.send.append((member.node, self._news(member.node)))

    # -- comparison of tables -----------------------------------------------------------------------
    def _digests(self, to: NodeId, *, answer: bool) -> gossip.Digests:
        row = self._table.rows.get(to)
        bad_news = () if row is None or row.status is NodeStatus.ALIVE else (row,)
        return gossip.Digests(self.own, self._table.digest.parts, answer, bad_news)

    def _compare(self, sender: NodeId, message: gossip.Digests, decision: Decision) -> None:
        """Send the own rows of the parts that differ, and the own digests if the sender asked for them."""
        differing = self._table.digest.differing(message.parts)
        if not differing:
            return
        if message.answer:
            decision.send.append((sender, self._digests(sender, answer=False)))
        # Begin anywhere, so that parts that always differ do not keep the others waiting.
        first = self._probes.draw(len(differing))
        rows = [
            self.own if node == self.own.node else self._table.rows[node]
            for part in differing[first:] + differing[:first]
            for node in self._table.digest.nodes(part)
        ]
        most, count = limits.GOSSIP_TABLE_ROWS_MAX, limits.GOSSIP_TABLES_PER_ANSWER
        for start in range(0, min(len(rows), most * count), most):
            more = start + most < len(rows) and start + most >= most * count
            table = gossip.Table(self.own, tuple(rows[start : start + most]), more)
            decision.send.append((sender, table))

    def _repaired(
        self, now: int, sender: NodeId, message: gossip.Table, decision: Decision, *, changed: bool
    ) -> None:
        """Compare tables again soon after rows that changed the own table, at once if there are more."""
        if not changed:
            return
        self._table_ns = min(self._table_ns, now + _REPAIR_NS)
        if message.more:
            decision.send.append((sender, self._digests(sender, answer=False)))
