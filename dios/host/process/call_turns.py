"""The order in which connections make their calls: principals take turns, and then each one's connections.

A turn is TURN_UNITS_MAX units of work in one pass of the event loop. All connections of a principal, its
sessions and its tasks, share its turn. So a user with hundreds of connections gets no more turns than a user
with one. While only one principal has connections, its turn is TURN_ALONE_UNITS_MAX units, so that its
connections rarely wait for each other; the node's own work has its turn after that.

A connection with few short calls goes before those of its principal that wait with long queues: it may use
TURN_LIGHT_UNITS_MAX units each time that as many waiting connections had a turn as wait. So it waits for a
pass of the loop, not for all queues, and delays these little.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import trio

from dios import limits
from dios.ids import Principal

_TURN: Final = limits.TURN_UNITS_MAX
_TURN_ALONE: Final = limits.TURN_ALONE_UNITS_MAX
_LIGHT: Final = limits.TURN_LIGHT_UNITS_MAX


class _Share:
    """The turn of a principal: its units left in the present round, negative after more work than a turn.

    ``again`` comes before ``waiting``. It has connections with few short calls, and those that were woken
    when others had used up the turn.
    ``served`` is the number of connections that were woken after they had waited.
    """

    __slots__ = ("again", "connections", "credit", "principal", "round", "served", "waiting")

    def __init__(self, principal: Principal, now: int) -> None:
        self.principal: Final = principal
        self.credit = _TURN
        self.round = now
        self.connections = 0
        self.served = 0
        self.waiting: Final[OrderedDict[CallTurn, None]] = OrderedDict()
        self.again: Final[OrderedDict[CallTurn, None]] = OrderedDict()

    @property
    def contended(self) -> bool:
        """Return True if a connection waits."""
        return bool(self.waiting or self.again)

    def refill(self, now: int, turn: int) -> None:
        """Add a turn for each round since the last time; no more than one can be saved up."""
        self.credit = min(turn, self.credit + (now - self.round) * turn)
        self.round = now

    def wake(self) -> None:
        """Wake connections in their order until their work probably uses up the turn.

        A connection that made more calls than its turn allowed sits out as many turns of its own, so the
        steps of this function are few compared with the work that was done before.
        """
        room = self.credit
        visits = len(self.again) + len(self.waiting)
        while visits and room > 0:
            visits -= 1
            queue = self.again or self.waiting
            turn = next(iter(queue))
            if queue is self.waiting:
                turn.credit = min(_TURN, turn.credit + _TURN)
                if turn.credit <= 0:
                    queue.move_to_end(turn)
                    continue
            if turn.expected > room < self.credit:
                return  # it would use up the turn before those that were woken now
            del queue[turn]
            self.served += queue is self.waiting
            room -= turn.expected
            turn.woken.set()


class CallTurn:
    """The place of one connection. The connection calls ``leave`` at its end."""

    __slots__ = (
        "_light",
        "_light_until",
        "_share",
        "_turns",
        "_used",
        "credit",
        "expected",
        "round",
        "woken",
    )

    def __init__(self, turns: CallTurns, share: _Share) -> None:
        self._turns: Final = turns
        self._share: Final = share
        self.credit = _TURN
        self.expected = 1
        self._used = 0
        # The units that this connection may use before those that wait; more when ``served`` has grown.
        self._light = _LIGHT
        self._light_until = 0
        self.round = -1
        self.woken = trio.Event()

    def begins(self) -> bool:
        """Begin a turn if the connection may make calls now. Call this only after a checkpoint."""
        turns, share = self._turns, self._share
        self._end_turn()
        if share.contended:
            return share.credit > 0 < self.credit and self._goes_first()
        if self.round == turns.round and not turns.working:
            turns.round += 1  # this connection is back, so that all others had their chance
        now = turns.round
        if share.round != now:
            share.refill(now, turns.turn)
        if self.round != now:
            self.credit = min(_TURN, self.credit + (now - self.round) * _TURN)
        if share.credit <= 0 or self.credit <= 0:
            return False
        self.round = now
        return True

    def _goes_first(self) -> bool:
        """Return True if this connection may make calls before those of its principal that wait already."""
        share = self._share
        if share.served >= self._light_until:
            self._light = _LIGHT
            self._light_until = share.served + len(share.waiting) + len(share.again)
        return self.expected <= self._light

    async def wait(self) -> None:
        """Wait for the next turn and begin it. Others have a chance to make calls before that."""
        turns, share = self._turns, self._share
        if not turns.waiting:
            await trio.lowlevel.checkpoint()
            if self.begins():
                return
        self._end_turn()
        queue = share.again if self._goes_first() else share.waiting
        while True:
            self.woken = trio.Event()
            queue[self] = None
            turns.enter(share)
            try:
                await self.woken.wait()
            finally:
                queue.pop(self, None)
            if share.credit > 0:
                break
            queue = share.again  # connections that were woken earlier have used up the turn
        self.round = turns.round

    def _end_turn(self) -> None:
        if self._used:
            self.expected, self._used = self._used, 0

    def spend(self, units: int) -> None:
        """Count work that was done in this turn."""
        self._used += units
        self._light -= units
        self.credit -= units
        self._share.credit -= units

    def leave(self) -> None:
        """Give up the place."""
        self._turns.forget(self._share)


class CallTurns:
    """All principals with connections. A trio task in ``nursery`` gives turns while any connection waits."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery: Final = nursery
        self._shares: Final[dict[Principal, _Share]] = {}
        self.waiting: Final[dict[_Share, None]] = {}
        """The principals of which a connection waits."""
        self.round = 0
        self.working = False

    @property
    def turn(self) -> int:
        """The units of a principal's turn: more if no other principal has connections."""
        return _TURN if len(self._shares) > 1 else _TURN_ALONE

    def join(self, principal: Principal) -> CallTurn:
        """Return a place for a new connection of this principal."""
        share = self._shares.get(principal)
        if share is None:
            share = self._shares[principal] = _Share(principal, self.round)
        share.connections += 1
        return CallTurn(self, share)

    def forget(self, share: _Share) -> None:
        """Remove a connection, and its principal if that was the last one."""
        share.connections -= 1
        if not share.connections:
            del self._shares[share.principal]

    def enter(self, share: _Share) -> None:
        """Give turns to this principal, of which a connection waits."""
        self.waiting[share] = None
        if not self.working:
            self.working = True
            self._nursery.start_soon(self._give_turns, name="turns of connections")

    async def _give_turns(self) -> None:
        try:
            while self.waiting:
                await trio.lowlevel.checkpoint()
                self.round += 1
                for share in tuple(self.waiting):
                    share.refill(self.round, self.turn)
                    share.wake()
                    if not share.contended:
                        del self.waiting[share]
        finally:
            self.working = False
