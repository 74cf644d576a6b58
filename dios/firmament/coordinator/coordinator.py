"""A coordinator at work: reads boards, runs rounds, sends placements, answers questions (§6.5.1).

For: ``coordinator.main``. Not for: what boards mean (``books``), who is responsible (``duty``), or any
decision. Nothing here is worth keeping: a coordinator that is killed is replaced by one that reads the
same boards.
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from dios.errors import DiosError
from dios.firmament.coordinator.assignment import Candidate, Duty, duty_of
from dios.firmament.coordinator.node_monitor import Eyes, told_or_said
from dios.firmament.coordinator.observer import Report
from dios.firmament.coordinator.share_storage import Sharing
from dios.firmament.knowledge.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from dios.client.ops.cluster import Member
    from dios.client.trio.node import AsyncNode
    from dios.firmament.coordinator.scheduler_service import Links, Office
    from dios.firmament.coordinator.start_options import Orders
    from dios.wire.messages import Asked, QueueRows

_LOADING: Final = (
    "coordinator: loading the scheduler; the first time its kernels are compiled, which takes a minute, and "
    "runs are placed without it meanwhile\n"
)
_NOTHING_NEW: Final = 2**62
"""A version that no board has: only its head is told."""

_MEMBERS_S: Final = 0.25
_HEAD_WAIT_MS: Final = 500
_SETTLE_S: Final = 3.0
"""So long a node that has come is waited for to say whether it has a coordinator."""
_BOARD_WAIT_MS: Final = 1_000
_AGAIN_S: Final = 0.5
"""While anything waits, costs change with time: a round at least so often."""
_CONTROL_S: Final = 1.0
"""The control interval of rates."""
_HEAR_S: Final = 3.0
"""So long a question about a job waits until all nodes were heard: that takes a control interval."""
_RATES_LEASE_MS: Final = 5_000
"""Rates of a coordinator that is gone hold no longer."""
_HAND_ON_S: Final = 10.0
"""What was taken in the last seconds may be forgotten with a coordinator; what was set is not."""


class Coordinator:
    """The coordinator of one node; ``run`` until cancelled, or the connection to the node ends."""

    def __init__(
        self, node: AsyncNode, orders: Orders, *, knowledge: KnowledgeBase, delegation_s: float
    ) -> None:
        self._node = node
        self._orders = orders
        self._sharing = Sharing(node)
        self._in_office_since = 0.0
        self._knowledge = knowledge
        self._delegation_s = delegation_s
        self._own = ""
        self._own_id = 0
        self._living: dict[str, Member] = {}
        self._followed: set[str] = set()
        """The nodes whose boards are being read."""
        self._living_since: dict[str, float] = {}
        self._candidates: dict[str, Candidate] = {}
        self._duty = Duty()
        self._office: Office | None = None
        self._lock = trio.Lock()
        self._eyes = Eyes(node, knowledge, self._lock)
        self._considering = trio.Lock()
        self._handing_on = trio.Lock()
        """Held from when weights and quotas may change until that is stored."""
        self._dirty = trio.Event()
        self._links_changed = trio.Event()
        self._heard = trio.Event()
        """Set, and replaced, when a node has told what it moved and can do."""
        self._answered: set[tuple[str, int]] = set()
        """Questions that stand on boards and are, or are being, answered."""
        self._reported: dict[str, int] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        own = next(member for member in await self._node.nodes() if member.here)
        self._own, self._own_id = own.name, own.node
        await self._sharing.begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_members, nursery)
                nursery.start_soon(self._eyes.run)
                nursery.start_soon(self._rounds, nursery)
                nursery.start_soon(self._share)
        finally:
            self._eyes.close()

    # Who there is -------------------------------------------------------------------------------------

    async def _follow_members(self, nursery: trio.Nursery) -> None:
        while True:
            members = {member.name: member for member in await self._node.nodes() if member.usable}
            for name in [name for name in self._living if name not in members]:
                self._candidates.pop(name, None)
                self._living_since.pop(name, None)
            for name in [name for name in members if name not in self._living]:
                self._living_since[name] = trio.current_time()
            self._living = members
            for name in [name for name in members if name not in self._followed]:
                self._followed.add(name)
                nursery.start_soon(self._follow_board, name, nursery)
            await self._consider()
            await trio.sleep(_MEMBERS_S)

    async def _consider(self) -> None:
        """Work out the duty anew, and take up or lay down what has changed."""
        async with self._considering:
            duty = self._duty_now()
            if duty.attend and self._office is None:
                # The scheduler's libraries take a second to load, and kernels their time to be compiled.
                from dios.firmament.coordinator.scheduler_service import open_office  # noqa: PLC0415 - see above

                sys.stderr.write(_LOADING)
                wall = time.time() - trio.current_time()
                make = partial(open_office, self._orders, self._own, self._knowledge, wall)
                self._office = await trio.to_thread.run_sync(make)
                self._office.unmeasured = self._eyes.unmeasured
                duty = self._duty_now()
            if duty == self._duty:
                return
            async with self._lock:
                before, self._duty = self._duty, duty
                if self._office is not None:
                    now = trio.current_time()
                    self._office.changed_duty(before, duty, now)
                    if duty.attend and not before.attend:
                        self._in_office_since = now
                        if self._sharing.shares:
                            self._office.learn(self._sharing.shares, now, commitments=True)

    def _duty_now(self) -> Duty:
        now = trio.current_time()
        unknown = [
            name
            for name, since in self._living_since.items()
            if now - since < _SETTLE_S
            and (name not in self._candidates or not self._candidates[name].coordinated)
        ]
        if unknown:
            # Who has just come may be the one to lead: its board, or its coordinator, is on the way.
            return self._duty
        nodes = [self._candidates[name] for name in sorted(self._candidates) if name in self._living]
        return duty_of(self._own_id, nodes, self._orders.set_up, self._delegation_s)

    async def _follow_board(self, name: str, nursery: trio.Nursery) -> None:
        """Read a node's board again and again while it lives."""
        since, duty = 0, self._duty
        while name in self._living:
            if duty is not self._duty:
                since, duty = 0, self._duty
            try:
                board = await self._board(name, since, duty)
            except DiosError as error:
                if self._office is not None:
                    self._office.note(f"{name}: {error}")
                await trio.sleep(_MEMBERS_S)
                continue
            if board.version < since:
                # The node was started anew, and counts from the beginning.
                since = 0
                self._forget_numbers(name)
                continue
            if name == self._own and board.version > since:
                self._eyes.heard(board)
                await self._learn(board.shares_version, board.shares)
            candidate = Candidate(board.node, board.name, board.rack, board.coordinated)
            if self._candidates.get(name) != candidate:
                self._candidates[name] = candidate
                await self._consider()
            if duty is self._duty and board.version > since and self._wants(name, duty):
                since = board.version
                await self._take_in(name, board, nursery)
            if name in duty.below:
                # Others have these first, and how long they waited is no news: they are read anew.
                since = 0
                await trio.sleep(_AGAIN_S)
        self._followed.discard(name)
        self._forget_numbers(name)

    def _wants(self, name: str, duty: Duty) -> bool:
        return name in duty.attend or name in duty.machines or name == self._own

    async def _board(self, name: str, since: int, duty: Duty) -> QueueRows:
        """A node's board once it is newer, or its head where nothing else is wanted of it."""
        wanted = self._wants(name, duty)
        wait_ms = _BOARD_WAIT_MS if wanted else _HEAD_WAIT_MS
        own = name == self._own
        return await self._node.board(
            self._host(name),
            since=since if wanted else _NOTHING_NEW,
            wait_ms=0 if name in duty.below else wait_ms,
            attend=name in duty.attend and self._office is not None,
            own=own,
        )

    def _host(self, name: str) -> str:
        """A node as a call names it; empty for the one that is asked."""
        return "" if name == self._own else name

    def _forget_numbers(self, name: str) -> None:
        """Reports and questions of a node are numbered from its start."""
        self._reported.pop(name, None)
        self._answered = {one for one in self._answered if one[0] != name}

    async def _take_in(self, name: str, board: QueueRows, nursery: trio.Nursery) -> None:
        office, duty = self._office, self._duty
        if office is None or not (name in duty.attend or name in duty.machines):
            return
        async with self._lock:
            for number, data in board.reports:
                if number > self._reported.get(name, 0):
                    self._reported[name] = number
                    office.take_report(name, _decoded(data))
            office.read(name, board, trio.current_time())
        self._dirty.set()
        if name in duty.attend:
            asked = {(name, one.number): one for one in board.asked}
            self._answered = {one for one in self._answered if one[0] != name or one in asked}
            for key in asked.keys() - self._answered:
                self._answered.add(key)
                nursery.start_soon(self._advise, office, name, asked[key])

    async def _advise(self, office: Office, name: str, asked: Asked) -> None:
        with trio.move_on_after(_HEAR_S):
            while office.is_early(asked):
                await self._heard.wait()
        async with self._handing_on:
            async with self._lock:
                answer = await trio.to_thread.run_sync(office.answer, asked)
            if office.terms_changed():
                # What was set is stored before anybody is told so.
                try:
                    await self._hand_on(office)
                except DiosError as error:
                    async with self._lock:
                        answer = office.not_kept(str(error), trio.current_time())
        # Who asked may have given up meanwhile.
        with contextlib.suppress(DiosError):
            await self._node.advise(self._host(name), asked.number, answer)

    # Rounds -------------------------------------------------------------------------------------------

    async def _rounds(self, nursery: trio.Nursery) -> None:
        while True:
            with trio.move_on_after(_AGAIN_S):
                await self._dirty.wait()
            fresh = self._dirty.is_set()
            self._dirty = trio.Event()
            office = self._office
            if office is None or not (fresh or office.waits or office.admits):
                continue
            async with self._lock:
                now = trio.current_time()
                orders = await trio.to_thread.run_sync(office.round, now)
            if office.links_changed:
                self._links_changed.set()
            for order in orders:
                nursery.start_soon(self._send, office, order.host, order.placements, order.preempted)
            if orders and office.waits:
                # Models that place in waves go on at once.
                self._dirty.set()

    async def _send(
        self, office: Office, host: str, placements: list[tuple[int, str]], preempted: list[int]
    ) -> None:
        answer = None
        try:
            answer = await self._node.place(self._host(host), placements, preempted)
        except DiosError as error:
            office.note(f"{host}: {error}")
        async with self._lock:
            office.answered(host, [task for task, _ in placements], preempted, answer, trio.current_time())

    # Shares -------------------------------------------------------------------------------------------

    async def _share(self) -> None:
        """Hand on shares now and then; and, if this coordinator governs, rates in each control interval."""
        hand_on_at = trio.current_time() + _HAND_ON_S
        while True:
            with trio.move_on_after(_CONTROL_S):
                await self._links_changed.wait()
            self._links_changed = trio.Event()
            office, duty = self._office, self._duty
            if office is None or not duty.governs:
                continue
            if trio.current_time() >= hand_on_at:
                hand_on_at = trio.current_time() + _HAND_ON_S
                async with self._handing_on:
                    await told_or_said("shares are not handed on", self._hand_on(office))
            async with self._lock:
                now = trio.current_time()
                links = await trio.to_thread.run_sync(office.rates, now, _RATES_LEASE_MS / 1000)
            with trio.move_on_after(_CONTROL_S):
                async with trio.open_nursery() as nursery:
                    for name in duty.governs:
                        nursery.start_soon(self._govern, office, name, links.get(name))

    async def _hand_on(self, office: Office) -> None:
        async with self._lock:
            shares = await trio.to_thread.run_sync(office.shares, trio.current_time())
        if shares is not None:
            await self._sharing.hand_on(shares)
            office.handed_on()

    async def _govern(self, office: Office, name: str, links: Links | None) -> None:
        rates, guarantees = ((), ()) if links is None else links
        try:
            metered = await self._sharing.govern(
                name, self._host(name), rates, guarantees, lease_ms=_RATES_LEASE_MS
            )
        except DiosError as error:
            office.note(f"{name}: {error}")
            return
        async with self._lock:
            office.metered(name, metered, trio.current_time())
        self._heard.set()
        self._heard = trio.Event()
        await self._learn(metered.shares_version, metered.shares)

    async def _learn(self, version: int, shares: bytes) -> None:
        """Take in shares that another coordinator has handed on.

        Who governs counts for itself; it takes only what was set, but for the time in which its predecessor's
        last words may still be on their way.
        """
        fresh = True
        try:
            fresh = await self._sharing.learn(version, shares)
        except DiosError as error:
            # They are known all the same, and others keep them, too.
            sys.stderr.write(f"coordinator: shares are not kept: {error}\n")
        if not fresh or self._office is None or not self._duty.attend:
            return
        now = trio.current_time()
        new_here = now - self._in_office_since < _HAND_ON_S
        async with self._lock:
            self._office.learn(shares, now, commitments=new_here or not self._duty.governs)


def _decoded(data: bytes) -> Report | None:
    try:
        return msgspec.msgpack.decode(data, type=Report)
    except msgspec.DecodeError:
        return None
