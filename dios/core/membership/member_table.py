"""The table of nodes, and the rules by which it merges statements about a node.

The protocol that sends and receives statements is in ``dios.core.membership.swim``. The rules:

- A higher epoch wins over everything of a lower one. Within an epoch the higher incarnation wins, and
  within an incarnation the worse status. The other fields of a row follow ``version``, so that news of load
  never looks like a denial of death.
- A statement of a node about itself, over its own authenticated connection, wins over statements of others
  about its epoch. Statements of others about another epoch do not change a node that is connected and alive.
- A statement of another node that a live node is dead makes it suspect here, with a shorter suspicion. A node
  that is suspect here too, and was not heard since, is dead. So neither a healed partition nor a liar can
  make a living node dead.
- A node that hears something worse or newer about itself than it ever stated replies with something newer.
- Counters that only others state rise by at most GOSSIP_VERSION_JUMP_MAX at a time. A node's own are taken as
  they are: it may have had to deny many false statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dios import limits
from dios.core.membership.clocks import ClockRecord
from dios.core.membership.dissemination import Dissemination
from dios.core.membership.live_view import LiveView, is_living, live_view
from dios.core.membership.partners import Partners
from dios.core.membership.table_digest import TableDigest
from dios.ids import NodeId
from dios.wire.gossip import Load, MemberRow
from dios.wire.types import NodeStatus

_MS: Final = 1_000_000
_SUSPICION_NS: Final = limits.GOSSIP_SUSPICION_MS * _MS
_SHORT_SUSPICION_NS: Final = limits.GOSSIP_BROKEN_SUSPICION_MS * _MS
_GONE: Final = frozenset({NodeStatus.DEAD, NodeStatus.LEFT})


class Change(Struct, frozen=True):
    """A new node, or a change of a node in something other than its load.

    ``former`` is its status before, None for a new node. ``restarted`` is set if its epoch changed. Then all
    knowledge about the former epoch is void, also if both statuses are ALIVE.
    """

    member: MemberRow
    former: NodeStatus | None
    restarted: bool = False


class MemberRecord(Struct):
    """The own evidence about another node, which is never sent. Times are ticks of the own clock."""

    proven: int = -1  # the highest epoch that the node itself stated
    heard_ns: int = -1  # the last message from it, or about it from a relay that reached it
    answered_ns: int = -(2**62)  # its last answer to a ping, which shows that the direct path works
    suspected_ns: int = 0
    until_ns: int = 0  # a suspect is declared dead then
    excused_ns: int = 0  # the node has announced that it is silent until then
    asked: int = -1  # the number of the last probe of it through relays
    relay: NodeId = NodeId(0)  # the last relay that reached it
    clock: ClockRecord = field(default_factory=ClockRecord)


class TableChanges(Struct):
    """The results of merging rows into the table."""

    changed: list[Change] = field(default_factory=list)
    forgotten: list[NodeId] = field(default_factory=list)
    suspected: list[NodeId] = field(default_factory=list)
    urgent: list[NodeId] = field(default_factory=list)  # nodes with a new status or incarnation
    denied: bool = False  # a statement about this node itself was wrong
    is_bulk: bool = False  # the rows repair an old difference of tables, and are no news to others


def next_count(count: int) -> int:
    """Return the number after ``count``. The last one repeats, because no node may state a higher one."""
    return min(count + 1, limits.COUNTER_MAX)


def _is_implausible(row: MemberRow, incarnation: int, version: int) -> bool:
    return (
        row.incarnation - incarnation > limits.GOSSIP_VERSION_JUMP_MAX
        or row.version - version > limits.GOSSIP_VERSION_JUMP_MAX
    )


def _is_new_load(held: Load, new: Load) -> bool:
    """Return True if a load has changed by so much that nodes far away should know."""
    return held.tasks.bit_length() != new.tasks.bit_length() or (
        abs(held.memory_bytes - new.memory_bytes) > max(held.memory_bytes, new.memory_bytes) // 4
    )


class MemberTable:
    """This node's own row, the rows of the other nodes, and the ids of removed nodes."""

    __slots__ = (
        "_answered",
        "_own",
        "_standings",
        "_view",
        "by_name",
        "by_status",
        "connections",
        "digest",
        "forgotten",
        "grace_ns",
        "loads",
        "partners",
        "rows",
        "spreading",
        "view_version",
    )

    def __init__(self, own: MemberRow, forgotten: tuple[NodeId, ...]) -> None:
        self.digest: Final = TableDigest()
        self._own = own
        self.digest.put(own)
        self.rows: Final[dict[NodeId, MemberRow]] = {}
        self.by_status: Final[dict[NodeStatus, dict[NodeId, None]]] = {status: {} for status in NodeStatus}
        self.by_name: Final[dict[str, dict[NodeId, None]]] = {}
        self.connections: Final[dict[NodeId, None]] = {}
        self.partners: Final = Partners(own.node)
        self._answered: Final[dict[NodeId, None]] = {}  # in the order of their last answers
        self.forgotten: dict[NodeId, None] = dict.fromkeys(forgotten)
        self.spreading: Final = Dissemination()
        self.loads: Final = Dissemination(1)
        self.grace_ns = 0  # no node is declared dead before this moment
        self.view_version = 1  # counts the changes of the live view
        self._view: LiveView | None = None
        self._standings: Final[dict[NodeId, MemberRecord]] = {}

    def standing(self, node: NodeId) -> MemberRecord | None:
        """Return the own evidence about a node, or None if it is not in the table."""
        return self._standings.get(node)

    @property
    def own(self) -> MemberRow:
        """This node's own row."""
        return self._own

    @own.setter
    def own(self, row: MemberRow) -> None:
        former, self._own = self._own, row
        if row != replace(former, load=row.load, version=row.version):
            self.digest.put(row)
            self._note_view(former, row)

    @property
    def view(self) -> LiveView:
        """The living nodes and this node; computed again only after a change."""
        if self._view is None:
            self._view = live_view((self.own, *self.rows.values()), self.view_version)
        return self._view

    def _note_view(self, before: MemberRow | None, after: MemberRow | None) -> None:
        """Note that a row has changed, which may change the live view."""
        was = None if before is None or not is_living(before.status) else before.epoch
        now = None if after is None or not is_living(after.status) else after.epoch
        if was != now:
            self.view_version += 1
            self._view = None

    def _put(self, row: MemberRow) -> None:
        """Put a row into the table, and into everything that is derived from it."""
        held = self.rows.get(row.node)
        self.rows[row.node] = row
        if held is None or row != replace(held, load=row.load, version=row.version):
            self._index(held, row)
            self.digest.put(row)

    def _index(self, before: MemberRow | None, after: MemberRow | None) -> None:
        self._note_view(before, after)
        if before is not None and (after is None or after.name != before.name):
            del self.by_name[before.name][before.node]
            if not self.by_name[before.name]:
                del self.by_name[before.name]
        if after is not None and (before is None or after.name != before.name):
            self.by_name.setdefault(after.name, {})[after.node] = None
        lived = before is not None and is_living(before.status)
        lives = after is not None and is_living(after.status)
        if before is not None and (after is None or after.status is not before.status):
            del self.by_status[before.status][before.node]
        if after is not None and (before is None or after.status is not before.status):
            self.by_status[after.status][after.node] = None
        if lived and not lives and before is not None:
            self.partners.remove(before.node)
        elif lives and not lived and after is not None:
            self.partners.add(after.node)

    def is_alive(self, node: NodeId) -> bool:
        """Return True if another node is alive and not suspect."""
        return node in self.by_status[NodeStatus.ALIVE]

    def note_answer(self, now: int, node: NodeId) -> None:
        """Note an answer of the node to a ping."""
        standing = self._standings.get(node)
        if standing is not None:
            standing.answered_ns = now
            self._answered.pop(node, None)
            self._answered[node] = None

    def answered_since(self, since: int) -> list[NodeId]:
        """Return the living nodes that answered after ``since``, the latest first."""
        nodes: list[NodeId] = []
        for node in reversed(self._answered):
            if self._standings[node].answered_ns <= since:
                break
            if self.is_alive(node):
                nodes.append(node)
        return nodes

    def status(self, node: NodeId) -> NodeStatus | None:
        """Return the status of another node, or None if it is not in the table."""
        row = self.rows.get(node)
        return None if row is None else row.status

    # -- statements ---------------------------------------------------------------------------------
    def merge(self, now: int, row: MemberRow, changes: TableChanges, *, first_hand: bool) -> None:
        """Merge a received row; ``first_hand`` if it is the sender's own row."""
        if row.node == self.own.node:
            self._merge_own(row, changes)
            return
        if row.node in self.forgotten or (first_hand and row.status in {NodeStatus.SUSPECT, NodeStatus.DEAD}):
            return
        held = self.rows.get(row.node)
        if held is None:
            plausible = first_hand or not _is_implausible(row, 0, 0)
            if plausible and self._make_room(row, first_hand=first_hand):
                self._standings[row.node] = MemberRecord(proven=row.epoch if first_hand else -1)
                self._store(now, row, changes)
            return
        standing = self._standings[row.node]
        if first_hand:
            if row.epoch < standing.proven:
                return
            standing.proven = row.epoch
        if row.epoch == held.epoch:
            self._same_epoch(now, held, row, changes, first_hand=first_hand)
            return
        is_met = row.node in self.connections and held.status is NodeStatus.ALIVE
        believed = row.epoch > held.epoch and not is_met
        if first_hand or (believed and not _is_implausible(row, 0, 0)):
            self._store(now, row, changes)

    def _same_epoch(
        self, now: int, held: MemberRow, row: MemberRow, changes: TableChanges, *, first_hand: bool
    ) -> None:
        if not first_hand and _is_implausible(row, held.incarnation, held.version):
            return
        new = held
        if row.version > held.version or (first_hand and row.version == held.version):
            new = replace(row, incarnation=held.incarnation, status=held.status)
        doubted = False
        if (row.incarnation, row.status) > (held.incarnation, held.status):
            doubted = row.status in _GONE and not first_hand and not self._is_believed(now, held)
            status = NodeStatus.SUSPECT if doubted else row.status
            new = replace(new, incarnation=row.incarnation, status=status)
        if new != held:
            self._store(now, new, changes, soon=doubted)

    def _is_believed(self, now: int, held: MemberRow) -> bool:
        """Return True if another node's statement that this node is dead or has left is believed."""
        if held.status is not NodeStatus.SUSPECT:
            return held.status in _GONE
        standing = self._standings[held.node]
        # A suspect must have had time to answer: several nodes may report its death at the same moment.
        return standing.heard_ns < standing.suspected_ns and now >= max(
            standing.suspected_ns + _SHORT_SUSPICION_NS, self._spared_until(standing)
        )

    def _spared_until(self, standing: MemberRecord) -> int:
        """Return the moment until which no statement makes the node dead."""
        return max(self.grace_ns, standing.excused_ns)

    def _merge_own(self, row: MemberRow, changes: TableChanges) -> None:
        own = self.own
        if row.epoch != own.epoch:
            changes.denied = changes.denied or row.epoch > own.epoch
            return
        # A liar may have raised the counters elsewhere in several statements: follow them in as many.
        most = limits.GOSSIP_VERSION_JUMP_MAX
        new = own
        if (row.incarnation, row.status) > (own.incarnation, own.status):
            incarnation = min(row.incarnation, own.incarnation + most)
            new = replace(new, incarnation=next_count(incarnation))
        if row.version > own.version:
            new = replace(new, version=next_count(min(row.version, own.version + most)))
        if new != own:
            self.own = new
            changes.denied = True
            changes.urgent.append(own.node)

    def _make_room(self, row: MemberRow, *, first_hand: bool) -> bool:
        """Return True if there is room for a row.

        In a full table a new row replaces a dead or left node, unless it is such a row itself. A node that is
        connected also replaces a node that was never heard of except by others, who may have made it up; and
        it alone replaces a dead node that was met.
        """
        if len(self.rows) + 1 < limits.NODES_MAX:
            return True
        if row.status in _GONE:
            return False
        hearsay = [node for node in self.rows if self._standings[node].proven < 0]
        over = next((node for node in hearsay if self.rows[node].status in _GONE), None)
        if over is None and first_hand:
            gone = (node for node, other in self.rows.items() if other.status in _GONE)
            over = next(gone, next(iter(hearsay), None))
        if over is None:
            return False
        self._remove(over)
        return True

    def _remove(self, node: NodeId) -> None:
        row = self.rows.pop(node, None)
        if row is not None:
            self._index(row, None)
        self._standings.pop(node, None)
        for table in (self.connections, self._answered):
            table.pop(node, None)
        for news in (self.spreading, self.loads, self.digest):
            news.drop(node)

    def _store(self, now: int, row: MemberRow, changes: TableChanges, *, soon: bool = False) -> None:
        held = self.rows.get(row.node)
        self._put(row)
        restarted = held is not None and held.epoch != row.epoch
        if restarted:
            self._standings[row.node].clock = ClockRecord()
        news = held is None or restarted or held.status != row.status or held.incarnation != row.incarnation
        if row.status is NodeStatus.SUSPECT and news:
            standing = self._standings[row.node]
            standing.suspected_ns = now
            suspicion_ns = _SHORT_SUSPICION_NS if soon else _SUSPICION_NS
            standing.until_ns = max(now + suspicion_ns, self._spared_until(standing))
            changes.suspected.append(row.node)
        if held is None:
            changes.changed.append(Change(row, None))
        else:
            if news:
                changes.urgent.append(row.node)
            plain = replace(held, load=row.load, version=row.version, incarnation=row.incarnation)
            if plain == row and not news:
                # Only the load changed. It travels with the node's own messages, and far if it matters.
                if _is_new_load(held.load, row.load):
                    self.loads.add(row.node, len(self.rows))
                return
            if plain != row:
                changes.changed.append(Change(row, held.status, restarted))
        if not changes.is_bulk:
            self.spreading.add(row.node, len(self.rows))

    # -- own evidence -------------------------------------------------------------------------------
    def hear(self, now: int, node: NodeId) -> None:
        """Note that the node lives: a suspicion of it lasts its whole time again."""
        standing = self._standings.get(node)
        if standing is not None:
            standing.heard_ns = now
            standing.until_ns = max(standing.until_ns, now + _SUSPICION_NS)

    def connect(self, now: int, node: NodeId, changes: TableChanges) -> None:
        """Note a new connection to the node, which makes it alive here in spite of other statements."""
        standing = self._standings[node]
        standing.heard_ns = now
        standing.excused_ns = 0
        self.connections[node] = None
        self.note_answer(now, node)
        row = self.rows[node]
        if row.status in {NodeStatus.SUSPECT, NodeStatus.DEAD}:
            # Other nodes would not believe this row: the node itself denies with a higher incarnation.
            self._put(replace(row, status=NodeStatus.ALIVE))
            changes.changed.append(Change(self.rows[node], row.status))

    def suspect(self, now: int, node: NodeId, changes: TableChanges, *, soon: bool = False) -> None:
        """Suspect the node on this node's own evidence; ``soon`` for a shorter suspicion."""
        row, standing = self.rows[node], self._standings[node]
        if now < standing.excused_ns:
            return
        if row.status is NodeStatus.ALIVE:
            self._store(now, replace(row, status=NodeStatus.SUSPECT), changes, soon=soon)
        elif row.status is NodeStatus.SUSPECT and soon:
            standing.until_ns = min(standing.until_ns, max(now + _SHORT_SUSPICION_NS, self.grace_ns))

    def excuse(self, node: NodeId, until: int) -> None:
        """Note that the node has announced its silence until this moment: nobody's suspicion ends before."""
        standing = self._standings.get(node)
        if standing is not None:
            standing.excused_ns = until
            standing.until_ns = max(standing.until_ns, until)

    def suspects(self) -> list[tuple[int, NodeId]]:
        """Return the suspects, each after the moment at which it is declared dead."""
        return [(self._standings[node].until_ns, node) for node in self.by_status[NodeStatus.SUSPECT]]

    def expire(self, now: int, changes: TableChanges) -> None:
        """Declare the suspects dead whose time is over."""
        for until, node in self.suspects():
            if until <= now:
                self._store(now, replace(self.rows[node], status=NodeStatus.DEAD), changes)

    def leave(self) -> None:
        """State that this node leaves."""
        self.own = replace(self.own, status=NodeStatus.LEFT)

    def spare(self, until: int) -> None:
        """Declare no node dead before ``until``, because this node was not running."""
        self.grace_ns = until
        for _, node in self.suspects():
            standing = self._standings[node]
            standing.until_ns = max(standing.until_ns, until)

    def remove(self, nodes: Iterable[NodeId], changes: TableChanges) -> None:
        """Drop exactly these nodes for good, and ignore rows about them."""
        wanted = dict.fromkeys(nodes)
        for node in wanted:
            if node not in self.forgotten:
                self._remove(node)
                changes.forgotten.append(node)
        self.forgotten = wanted
