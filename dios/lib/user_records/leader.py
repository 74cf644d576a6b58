"""The loop of a node that acts on a user's records, in a session of the node that acts for the user.

All nodes with a copy of the records have one. Among those that are alive and may keep copies, by their
roles, the node with the smallest id leads, in its own view; it acts once it has led for SERVICE_SETTLE_MS. So
after a change of the members, or a partition, two act for no longer than their views differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, NamedTuple

import msgspec
import trio

from dios import limits
from dios.errors import ClosedError, DiosError, ExistsError
from dios.lib.closing import close_all_async
from dios.lib.user_records.copies import RecordCopies
from dios.lib.user_records.kind import RecordKind, S
from dios.wire.node_roles import NodeRight
from dios.wire.types import NodeStatus, ObjectType

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode, AsyncReference
    from dios.client.ops.cluster import Member


class Round(NamedTuple, Generic[S]):
    """A round of a leading node.

    ``moved`` if the members have changed, or if this node did not lead before; ``repaired`` if the copies of
    the records were made equal. With ``suspects`` a member may be dead: the others will say so in seconds.
    """

    records: S
    members: Sequence[Member]
    here: Member
    now: float
    moved: bool
    repaired: bool
    suspects: bool


class Leader(Generic[S]):
    """The loop for one user.

    ``begin`` is called when this node begins to lead. It returns a function that acts for one round, whose
    state is forgotten when this node does not lead any more; the tasks in the nursery end then. ``watch`` is
    called with the members and the time in each round, also while another node leads.
    """

    def __init__(
        self,
        node: AsyncNode,
        kind: RecordKind[S],
        log: Callable[[str], None],
        begin: Callable[[trio.Nursery], Callable[[Round[S]], Awaitable[None]]],
        *,
        round_ms: int,
        watch: Callable[[Sequence[Member], float], object] = lambda _members, _now: None,
    ) -> None:
        self._node: Final = node
        self._kind: Final = kind
        self._log: Final = log
        self._begin: Final = begin
        self._round_s: Final = round_ms / 1000
        self._watch: Final = watch
        self.copies: Final = RecordCopies(node, kind)
        self._members: tuple[tuple[int, NodeStatus, bool], ...] = ()
        self._repaired_at = float("-inf")
        self._first_since: float | None = None
        self._act: Callable[[Round[S]], Awaitable[None]] | None = None
        self._board: AsyncReference | None = None
        self._shown = b""

    @property
    def leads(self) -> bool:
        """Return True while this node leads."""
        return self._act is not None

    async def run(self) -> None:
        """Act until cancelled. Raise DiosError if the connection ends."""
        failure = ""
        while True:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        await self._round(nursery)
                        failure = ""
                    except ClosedError:
                        raise
                    except DiosError as error:
                        if error.message != failure:
                            failure = error.message
                            self._log(failure)
                        self._repaired_at = float("-inf")
                    await trio.sleep(self._round_s)

    async def _round(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        members = await self._node.nodes()
        self._watch(members, now)
        known = tuple(sorted((member.node, member.status, member.draining) for member in members))
        moved = known != self._members
        repaired = moved or now - self._repaired_at > limits.SERVICE_REPAIR_MS / 1000
        if repaired:
            await self.copies.find()
            self._members, self._repaired_at = known, now
        here = next(member for member in members if member.here)
        if not self._may_act(members, here, now):
            await self._rest(nursery)
            return
        begins = self._act is None
        self._act = self._act or self._begin(nursery)
        if repaired or begins:
            await self.copies.repair(
                [member.name for member in members if member.usable and member.may(NodeRight.KEEP)]
            )
        records = await self.copies.read_own(here.name)
        suspects = any(member.status is NodeStatus.SUSPECT for member in members)
        await self._act(Round(records, members, here, now, moved or begins, repaired or begins, suspects))

    def _may_act(self, members: Sequence[Member], here: Member, now: float) -> bool:
        """Return True if this node leads and has led for SERVICE_SETTLE_MS."""
        holders = self.copies.nodes
        able = [member for member in members if member.name in holders and (member.here or member.usable)]
        able = [member for member in able if member.may(NodeRight.KEEP)] or able
        if not able or min(member.node for member in able) != here.node:
            self._first_since = None
            return False
        if self._first_since is None:
            self._first_since = now
        return now - self._first_since >= limits.SERVICE_SETTLE_MS / 1000

    async def _rest(self, nursery: trio.Nursery) -> None:
        """Forget what this node knew as the leader."""
        if self._act is None:
            return
        self._act = None
        board, self._board = self._board, None
        nursery.cancel_scope.cancel()
        if board is not None:
            with trio.CancelScope(shield=True), suppress(DiosError):
                await board.destroy()

    async def show(self, report: msgspec.Struct) -> None:
        """Write what only the leader knows where the user's commands read it."""
        data = msgspec.json.encode(report)
        if self._board is None:
            try:
                self._board = await self._node.create(ObjectType.SHMEM_BLOB, flags=self._kind.flag)
            except ExistsError:
                references = await self._node.lookup(self._kind.special_name, local_only=True)
                self._board = next(
                    (reference for reference in references if reference.type is ObjectType.SHMEM_BLOB), None
                )
                await close_all_async(reference for reference in references if reference is not self._board)
            self._shown = b""
        if self._board is not None and data != self._shown:
            try:
                await self._board.write_bytes(data)
            except DiosError:
                board, self._board = self._board, None
                await close_all_async([board])
                raise
            self._shown = data
