"""A coordinator at work: reads boards, runs rounds, sends placements, answers questions (§6.5.1).

For: ``coordinator.main``. Not for: what boards mean (``books``), who is responsible (``duty``), or any
decision. Nothing here is worth keeping: a coordinator that is killed is replaced by one that reads the
same boards.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from dios.errors import DiosError
from dios.firmament.coordinator.duty import Candidate, Duty, SetUp, duty_of
from dios.firmament.coordinator.observer import Observer, Report
from dios.firmament.knowledge import KnowledgeBase

if TYPE_CHECKING:
    from dios.client.aio import AsyncNode
    from dios.client.cluster import Member
    from dios.firmament.coordinator.office import Office
    from dios.wire.messages import Asked, BoardRows

KNOWLEDGE: Final = "knowledge"
"""The label of the durable object in which a node keeps what its coordinator has measured."""

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
_LOOK_S: Final = 2.0
_KEEP_S: Final = 60.0
"""Measurements of the last minute may go with the node."""


class Coordinator:
    """The coordinator of one node; ``run`` until cancelled, or the connection to the node ends."""

    def __init__(
        self, node: AsyncNode, set_up: SetUp, model: str, *, knowledge: KnowledgeBase, delegation_s: float
    ) -> None:
        self._node = node
        self._set_up = set_up
        self._model = model
        self._knowledge = knowledge
        self._delegation_s = delegation_s
        self._observer = Observer(knowledge)
        self._own = ""
        self._own_id = 0
        self._own_board: BoardRows | None = None
        self._living: dict[str, Member] = {}
        self._followed: set[str] = set()
        """The nodes whose boards are being read."""
        self._living_since: dict[str, float] = {}
        self._candidates: dict[str, Candidate] = {}
        self._duty = Duty()
        self._office: Office | None = None
        self._lock = trio.Lock()
        self._considering = trio.Lock()
        self._dirty = trio.Event()
        self._answered: set[tuple[str, int]] = set()
        """Questions that stand on boards and are, or are being, answered."""
        self._reported: dict[str, int] = {}
        self._kept = b""

    async def run(self) -> None:
        """Work until cancelled."""
        own = next(member for member in await self._node.nodes() if member.here)
        self._own, self._own_id = own.name, own.node
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_members, nursery)
                nursery.start_soon(self._observe)
                nursery.start_soon(self._rounds, nursery)
        finally:
            self._observer.close()

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
                from dios.firmament.coordinator.office import open_office  # noqa: PLC0415 - see above

                sys.stderr.write(_LOADING)
                make = partial(open_office, self._model, self._own, str(self._set_up), self._knowledge)
                self._office = await trio.to_thread.run_sync(make)
                self._office.unmeasured = self._observer.unmeasured
                duty = self._duty_now()
            if duty == self._duty:
                return
            async with self._lock:
                before, self._duty = self._duty, duty
                if self._office is not None:
                    self._office.changed_duty(before, duty, trio.current_time())

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
        return duty_of(self._own_id, nodes, self._set_up, self._delegation_s)

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
                self._own_board = board
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

    async def _board(self, name: str, since: int, duty: Duty) -> BoardRows:
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

    async def _take_in(self, name: str, board: BoardRows, nursery: trio.Nursery) -> None:
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
        async with self._lock:
            answer = await trio.to_thread.run_sync(office.answer, asked)
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
            if office is None or not (fresh or office.waits):
                continue
            async with self._lock:
                now = trio.current_time()
                orders = await trio.to_thread.run_sync(office.round, now)
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

    # Eyes -----------------------------------------------------------------------------------------------

    async def _observe(self) -> None:
        """Look at this node's tasks now and then; tell whoever schedules, and keep it on the node."""
        keep_at = trio.current_time() + _KEEP_S
        while True:
            board = self._own_board
            if board is None:
                await trio.sleep(_MEMBERS_S)
                continue
            # The scheduler of this coordinator, if it has one, reads and adds to the same knowledge.
            async with self._lock:
                await trio.to_thread.run_sync(self._observer.look, board)
                report = self._observer.report(self._own)
            if report is not None:
                await self._tell("its measurements are not told", self._node.report(report))
            if trio.current_time() >= keep_at:
                keep_at = trio.current_time() + _KEEP_S
                await self._keep()
            await trio.sleep(_LOOK_S)

    async def _keep(self) -> None:
        stored = [reference for reference in self._node.inputs if reference.label == KNOWLEDGE]
        if not stored:
            return
        async with self._lock:
            data = await trio.to_thread.run_sync(self._knowledge.to_bytes)
        if data != self._kept:
            self._kept = data
            await self._tell("its measurements are not kept", stored[0].write_bytes(data))

    async def _tell(self, what: str, doing: Awaitable[object]) -> None:
        """Do what may fail without harm to the scheduling; its failures stand in the task's console."""
        try:
            await doing
        except DiosError as error:
            sys.stderr.write(f"coordinator: {what}: {error}\n")


def _decoded(data: bytes) -> Report | None:
    try:
        return msgspec.msgpack.decode(data, type=Report)
    except msgspec.DecodeError:
        return None
