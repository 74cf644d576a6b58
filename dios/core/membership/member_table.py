"""The table of nodes, and which of two statements about a node counts.

Not for: asking and telling (``dios.core.membership.swim``). Everything here is a rule about rows:

- A higher epoch wins over everything of a lower one. Within an epoch the higher incarnation wins, and
  within that the worse status. All else in a row goes by ``version``, so that news of load never looks
  like a denial of death.
- What a node says of itself over its own authenticated connection wins over what others say of its epoch.
  What others say of another epoch is not believed of a node that is connected and alive.
- Another's word that a node is dead makes a live one suspect, for a shorter time; one that is suspect here
  too, and was not heard since, is dead. So neither a healed partition nor a liar ends the living.
- Who hears something worse or newer of itself than it ever said, says something newer.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dios import limits
from dios.core.membership.dissemination import Spreading
from dios.ids import NodeId
from dios.wire.gossip import MemberRow
from dios.wire.types import NodeStatus

_MS: Final = 1_000_000
_SUSPECTED_NS: Final = limits.GOSSIP_SUSPICION_MS * _MS
_CUT_OFF_NS: Final = limits.GOSSIP_BROKEN_SUSPICION_MS * _MS
_OVER: Final = frozenset({NodeStatus.DEAD, NodeStatus.LEFT})


class Change(Struct, frozen=True):
    """A node is new, or changed in something else than its load.

    ``former`` is its status before, None for one that was never seen. ``restarted`` says that its epoch is
    another than before: whatever was known of the former one is over, also where both statuses are ALIVE.
    """

    member: MemberRow
    former: NodeStatus | None
    restarted: bool = False


class Standing(Struct):
    """What this node knows of another by itself, and tells nobody. Times are ticks of the own clock."""

    proven: int = -1  # the highest epoch that the node itself stated
    connected: bool = False
    heard_ns: int = -1  # when it was last heard, or another vouched for it
    answered_ns: int = -(2**62)  # when it last answered a ping: the way to it is good
    suspected_ns: int = 0
    until_ns: int = 0  # when it is dead, if it is a suspect
    asked: int = -1  # the number of the last question about it that others were asked
    relay: NodeId = NodeId(0)  # who last vouched for it


class Findings(Struct):
    """What came of looking at rows."""

    changed: list[Change] = field(default_factory=list)
    forgotten: list[NodeId] = field(default_factory=list)
    suspected: list[NodeId] = field(default_factory=list)
    urgent: list[NodeId] = field(default_factory=list)  # nodes whose life or death is news
    denied: bool = False  # something was said of this node itself that is not so


def _too_far(row: MemberRow, incarnation: int, version: int) -> bool:
    return (
        row.incarnation - incarnation > limits.GOSSIP_VERSION_JUMP_MAX
        or row.version - version > limits.GOSSIP_VERSION_JUMP_MAX
    )


class MemberTable:
    """This node's own row, those of the others, and who is forgotten."""

    __slots__ = ("_standings", "forgotten", "grace_ns", "own", "rows", "spreading")

    def __init__(self, own: MemberRow, forgotten: tuple[NodeId, ...]) -> None:
        self.own = own
        self.rows: Final[dict[NodeId, MemberRow]] = {}
        self.forgotten: Final[dict[NodeId, None]] = dict.fromkeys(forgotten[: limits.NODES_FORGOTTEN_MAX])
        self.spreading: Final = Spreading()
        self.grace_ns = 0  # before this nobody is declared dead
        self._standings: Final[dict[NodeId, Standing]] = {}

    def standing(self, node: NodeId) -> Standing | None:
        """What this node knows of a node in the table by itself."""
        return self._standings.get(node)

    def status(self, node: NodeId) -> NodeStatus | None:
        """The status of another node, None for one that is not in the table."""
        row = self.rows.get(node)
        return None if row is None else row.status

    # -- statements ---------------------------------------------------------------------------------
    def merge(self, now: int, row: MemberRow, found: Findings, *, first_hand: bool) -> None:
        """Consider a row that somebody told; ``first_hand`` when it is the teller's own."""
        if row.node == self.own.node:
            self._about_own(row, found)
            return
        if row.node in self.forgotten or (first_hand and row.status in {NodeStatus.SUSPECT, NodeStatus.DEAD}):
            return
        held = self.rows.get(row.node)
        if held is None:
            if not _too_far(row, 0, 0) and self._room(row):
                self._standings[row.node] = Standing(proven=row.epoch if first_hand else -1)
                self._put(now, row, found)
            return
        standing = self._standings[row.node]
        if first_hand:
            if row.epoch < standing.proven:
                return
            standing.proven = row.epoch
        if row.epoch == held.epoch:
            self._same_epoch(now, held, row, found, first_hand=first_hand)
            return
        believed = row.epoch > held.epoch and not (standing.connected and held.status is NodeStatus.ALIVE)
        if (first_hand or believed) and not _too_far(row, 0, 0):
            self._put(now, row, found)

    def _same_epoch(
        self, now: int, held: MemberRow, row: MemberRow, found: Findings, *, first_hand: bool
    ) -> None:
        if _too_far(row, held.incarnation, held.version):
            return
        new = held
        if row.version > held.version or (first_hand and row.version == held.version):
            new = replace(row, incarnation=held.incarnation, status=held.status)
        told = False
        if (row.incarnation, row.status) > (held.incarnation, held.status):
            told = row.status is NodeStatus.DEAD and not self._believable(now, held)
            status = NodeStatus.SUSPECT if told else row.status
            new = replace(new, incarnation=row.incarnation, status=status)
        if new != held:
            self._put(now, new, found, soon=told)

    def _believable(self, now: int, held: MemberRow) -> bool:
        """Whether another's word that this node is dead is enough here."""
        if held.status is not NodeStatus.SUSPECT:
            return held.status in _OVER
        standing = self._standings[held.node]
        # A suspect must have had the time for an answer: several may tell of its death at once.
        return standing.heard_ns < standing.suspected_ns and now >= max(
            standing.suspected_ns + _CUT_OFF_NS, self.grace_ns
        )

    def _about_own(self, row: MemberRow, found: Findings) -> None:
        own = self.own
        if row.epoch != own.epoch:
            found.denied = found.denied or row.epoch > own.epoch
            return
        if _too_far(row, own.incarnation, own.version):
            found.denied = True
            return
        new = own
        if (row.incarnation, row.status) > (own.incarnation, own.status):
            new = replace(new, incarnation=row.incarnation + 1)
        if row.version > own.version:
            new = replace(new, version=row.version + 1)
        if new != own:
            self.own = new
            found.denied = True
            found.urgent.append(own.node)

    def _room(self, row: MemberRow) -> bool:
        """Whether there is a row for one more; whoever is over makes room, and gets none in a full table."""
        if len(self.rows) + 1 < limits.NODES_MAX:
            return True
        if row.status in _OVER:
            return False
        over = next((node for node, other in self.rows.items() if other.status in _OVER), None)
        if over is None:
            return False
        self._remove(over)
        return True

    def _remove(self, node: NodeId) -> None:
        self.rows.pop(node, None)
        self._standings.pop(node, None)
        self.spreading.drop(node)

    def _put(self, now: int, row: MemberRow, found: Findings, *, soon: bool = False) -> None:
        held = self.rows.get(row.node)
        self.rows[row.node] = row
        restarted = held is not None and held.epoch != row.epoch
        news = held is None or restarted or held.status != row.status or held.incarnation != row.incarnation
        if row.status is NodeStatus.SUSPECT and news:
            standing = self._standings[row.node]
            standing.suspected_ns = now
            standing.until_ns = max(now + (_CUT_OFF_NS if soon else _SUSPECTED_NS), self.grace_ns)
            found.suspected.append(row.node)
        if held is None:
            found.changed.append(Change(row, None))
        else:
            if news:
                found.urgent.append(row.node)
            plain = replace(held, load=row.load, version=row.version, incarnation=row.incarnation)
            if plain == row and not news:
                return  # nothing but its load: that travels with its own messages
            if plain != row:
                found.changed.append(Change(row, held.status, restarted))
        self.spreading.add(row.node, len(self.rows))

    # -- own evidence -------------------------------------------------------------------------------
    def hear(self, now: int, node: NodeId) -> None:
        """The node lives, as of now: a suspicion gets its whole time again."""
        standing = self._standings.get(node)
        if standing is not None:
            standing.heard_ns = now
            standing.until_ns = max(standing.until_ns, now + _SUSPECTED_NS)

    def connect(self, now: int, node: NodeId, found: Findings) -> None:
        """A new connection to it stands: here it is alive, whatever was said."""
        standing = self._standings[node]
        standing.connected = True
        standing.heard_ns = standing.answered_ns = now
        row = self.rows[node]
        if row.status in {NodeStatus.SUSPECT, NodeStatus.DEAD}:
            # Nobody else would believe this row: the node itself will deny with a higher incarnation.
            self.rows[node] = replace(row, status=NodeStatus.ALIVE)
            found.changed.append(Change(self.rows[node], row.status))

    def suspect(self, now: int, node: NodeId, found: Findings, *, soon: bool = False) -> None:
        """This node itself has reason to suspect that one; ``soon`` when the reason is a strong one."""
        row = self.rows[node]
        if row.status is NodeStatus.ALIVE:
            self._put(now, replace(row, status=NodeStatus.SUSPECT), found, soon=soon)
        elif row.status is NodeStatus.SUSPECT and soon:
            standing = self._standings[node]
            standing.until_ns = min(standing.until_ns, max(now + _CUT_OFF_NS, self.grace_ns))

    def suspects(self) -> list[tuple[int, NodeId]]:
        """Who is suspect, with the moment at which it is dead."""
        return [
            (self._standings[node].until_ns, node)
            for node, row in self.rows.items()
            if row.status is NodeStatus.SUSPECT
        ]

    def expire(self, now: int, found: Findings) -> None:
        """Whose suspicion has lasted long enough is dead."""
        for until, node in self.suspects():
            if until <= now:
                self._put(now, replace(self.rows[node], status=NodeStatus.DEAD), found)

    def spare(self, until: int) -> None:
        """This node was not running: nobody is declared dead before ``until``."""
        self.grace_ns = until
        for _, node in self.suspects():
            standing = self._standings[node]
            standing.until_ns = max(standing.until_ns, until)

    def forget(self, node: NodeId, found: Findings) -> None:
        """The node is gone for good, and whatever is still said of it is void."""
        if node in self.forgotten or len(self.forgotten) >= limits.NODES_FORGOTTEN_MAX:
            return
        self._remove(node)
        self.forgotten[node] = None
        self.spreading.add(node, len(self.rows))
        found.forgotten.append(node)
