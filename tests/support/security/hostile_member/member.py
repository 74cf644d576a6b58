"""The hostile member: a real identity, and a control connection to each honest node over which it may lie.

It answers pings and requests like an honest node, so that its victims go on talking with it, until a play
gives it other ``answers``. The plays are in ``plays``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import trio

from dios.errors import DiosError, NotPermittedError, ProtocolError
from dios.ids import NodeId
from dios.node.local_cluster import LocalNode
from dios.transport.identity import statements
from dios.transport.identity.identity import Identity
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import Listener, dial, listen
from dios.wire import dcp, gossip, messages
from dios.wire.codec import DCP_VERSION
from dios.wire.dcp_frames import Control, decode_frame, encode_frame
from tests.fuzz.dcp import Pools
from tests.support.security.hostile_member.lies import Lie, Lies

ANSWER_S: Final = 20.0
RETRY_S: Final = 0.01
HEARD_MAX: Final = 300
MARK: Final = 2**61
"""Numbers of pings from here on are marks: their answer shows that everything before was read."""

Answers: TypeAlias = Callable[["Line", dcp.Ask], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Victim:
    """An honest node: its files and address, and its row in the table of members."""

    at: LocalNode
    row: gossip.MemberRow

    @property
    def node(self) -> NodeId:
        """Its id."""
        return self.row.node


class StuckError(Exception):
    """An honest node neither answered a member nor closed its connection."""


class ForgottenError(Exception):
    """An honest node refuses the member's certificate."""


class Line:
    """A control connection with one honest node."""

    def __init__(self, victim: Victim, secured: Secured, epoch: int) -> None:
        self.victim: Final = victim
        self.epoch: Final = epoch
        self.secured: Final = secured
        self.ended: Final = trio.Event()
        self.marks: dict[int, trio.Event] = {}
        self._after_drip: list[bytes] | None = None

    def say(self, *frames: bytes) -> None:
        """Send bytes, after the frame that is being sent byte by byte."""
        for frame in frames:
            if self._after_drip is not None:
                self._after_drip.append(frame)
            elif not self.secured.closed:
                self.secured.send_nowait(frame)

    async def drip(self, frame: bytes) -> None:
        """Send 60 bytes of a frame one by one, then the rest. Answers to the node wait meanwhile."""
        self._after_drip = []
        for place in range(min(len(frame), 60)):
            if not self.secured.closed:
                self.secured.send_nowait(frame[place : place + 1])
            await trio.lowlevel.checkpoint()
        waiting, self._after_drip = self._after_drip, None
        self.say(frame[60:], *waiting)

    def close(self) -> None:
        """End the connection."""
        self.secured.close()
        self.ended.set()


class HostileMember:
    """A member of the cluster of ``victims``, whose lies ``seed`` decides."""

    def __init__(
        self,
        me: Identity,
        sleeper: Identity,
        victims: Sequence[Victim],
        seed: int,
        nursery: trio.Nursery,
        own: str,
    ) -> None:
        self.me: Final = me
        self.folder = Path()
        """A place for the files of machines that it admits."""
        self.issue: Callable[[Victim], str] = lambda victim: victim.at.address
        """Returns a token of an honest node."""
        self.admitted: list[Identity] = []
        """Sleepers that honest nodes have met, which their operator forgets in the end."""
        self.effective = 0
        """The number of conversations outside the member's own connections that an honest party answered."""
        self.held_back: list[bytes] = []
        """Statements that are released after the member's removal."""
        self.sleeper: Final = sleeper
        """A node that this member has signed, and that nobody else has met."""
        self.victims: Final = tuple(victims)
        self.rng: Final = Random(seed)  # noqa: S311 - repeatable, nothing secret
        self._seed: Final = seed
        self.nursery: Final = nursery
        self.pools: Final = Pools()
        self.pools.add("node", me.node, *(victim.node for victim in victims))
        self.pools.add("task", *range(70_000, 70_020))
        self.epoch = 1
        self.rack = ""
        self.address = "127.0.0.1:1"
        self.answers: Answers = self.honest_answers
        self.answers_pings = True
        self.stays = False
        """True while a lost connection is made again at once, so that questions are not kept waiting."""
        self.told = 0
        self.story: Final[deque[str]] = deque(maxlen=400)
        """The last lies, in words."""
        self.heard: Final[deque[tuple[NodeId, dcp.Message]]] = deque(maxlen=HEARD_MAX)
        """The last messages of honest nodes."""
        self.lies: Final = Lies(self.rng, self.pools, self.row(), own)
        self.lies.statement = statements.make(me.chain, me.key(), 1, {}, {me.node: me.card.key}).data
        self.lies.victims = tuple(victim.row for victim in victims)
        self.malformed: Final[list[str]] = []
        """The faults of honest nodes' messages."""
        self._lines: Final[dict[NodeId, Line]] = {}
        self._mark = MARK
        self._dialled: Final[dict[NodeId, trio.Lock]] = {victim.node: trio.Lock() for victim in victims}
        self.on_dialled: Callable[[Secured], None] = lambda secured: secured.close()
        """What is done with a connection that an honest node makes."""

    def row(self, **changes: object) -> gossip.MemberRow:
        """Return this member's own row."""
        fields: dict[str, object] = {
            "node": self.me.node,
            "name": self.me.name,
            "rack": self.rack,
            "address": self.address,
            "epoch": self.epoch,
            "version": 1,
            **changes,
        }
        return gossip.MemberRow(**fields)  # type: ignore[arg-type] # its fields by name

    # -- connections ----------------------------------------------------------------------------------
    async def listen(self) -> Listener:
        """Open a port, which honest nodes get as this member's address."""
        listener = await listen("127.0.0.1:0", self.me, self.nursery)
        self.address = listener.address
        self.lies.row = self.row()
        self.nursery.start_soon(self._accept, listener)
        return listener

    async def _accept(self, listener: Listener) -> None:
        try:
            while True:
                self.on_dialled(await listener.accept())
        except trio.EndOfChannel:
            return

    def hello(self, **changes: object) -> dcp.PeerHello:
        """Return the first message of this member."""
        fields: dict[str, object] = {
            "oldest": 1,
            "newest": DCP_VERSION,
            "node": self.me.node,
            "epoch": self.epoch,
            "name": self.me.name,
            "rack": self.rack,
            "address": self.address,
            **changes,
        }
        return dcp.PeerHello(**fields)  # type: ignore[arg-type] # its fields by name

    async def dial(self, victim: Victim, who: Identity | None = None) -> Secured:
        """Make a connection and say nothing on it; raise ForgottenError where this member is refused."""
        deadline = trio.current_time() + ANSWER_S
        while True:
            try:
                return await dial(victim.at.address, who or self.me, self.nursery, expect=victim.node)
            except NotPermittedError as error:
                raise ForgottenError(str(error)) from None
            except (DiosError, OSError) as error:
                if trio.current_time() > deadline:
                    raise StuckError(f"{victim.at.name} does not accept connections: {error}") from None
                await trio.sleep(RETRY_S)

    async def line(self, victim: Victim) -> Line:
        """Return the connection with a node; make it where there is none."""
        async with self._dialled[victim.node]:
            line = self._lines.get(victim.node)
            if line is not None and not line.ended.is_set():
                return line
            deadline = trio.current_time() + ANSWER_S
            while trio.current_time() < deadline:
                secured = await self.dial(victim)
                secured.send_nowait(encode_frame(self.hello()))
                with trio.move_on_after(ANSWER_S):
                    bodies = await _received(secured)
                    if bodies:
                        line = Line(victim, secured, self.epoch)
                        self._lines[victim.node] = line
                        self._take(line, bodies)
                        self.nursery.start_soon(self._read, line)
                        return line
                # The other node makes a connection itself at this moment, which this member does not serve.
                secured.close()
                await trio.sleep(RETRY_S)
            raise StuckError(f"{victim.at.name} says no hello")

    async def _read(self, line: Line) -> None:
        try:
            while bodies := await _received(line.secured):
                self._take(line, bodies)
        finally:
            line.close()
            for mark in line.marks.values():
                mark.set()
        if self.stays:
            with suppress(StuckError, ForgottenError):
                await self.line(line.victim)

    def _take(self, line: Line, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            try:
                self._take_one(line, body)
            except ProtocolError as error:
                # An honest node that passes on a lie is blamed for it by the next one.
                self.malformed.append(f"{line.victim.at.name} sent a malformed message: {error.message}")

    def _take_one(self, line: Line, body: bytes) -> None:
        message, _ = decode_frame(body)
        if isinstance(message, Control | dcp.PeerHello):
            return
        self.heard.append((line.victim.node, message))
        if isinstance(message, dcp.Ask):
            self._learn(message)
            line.say(*self.answers(line, message))
        elif isinstance(message, dcp.Gossip):
            self._gossiped(line, gossip.decode(message.message))

    def _learn(self, asked: dcp.Ask) -> None:
        self.pools.add("asked", asked.number)
        caller: dcp.Caller | None = getattr(asked.body, "caller", None)
        if caller is not None:
            self.pools.add("task", caller.task)

    def _gossiped(self, line: Line, message: gossip.GossipMessage) -> None:
        match message:
            case gossip.Ping(number=number) if self.answers_pings:
                line.say(_gossip(gossip.Ack(self.row(), number, self.me.node)))
            case gossip.PingRequest(number=number, target=target) if (
                target == self.me.node and self.answers_pings
            ):
                line.say(_gossip(gossip.Ack(self.row(), number, self.me.node)))
            case gossip.Ack(number=number) if number in line.marks:
                line.marks.pop(number).set()

    def honest_answers(self, line: Line, asked: dcp.Ask) -> list[bytes]:
        """Answer a request like a node that has nothing."""
        match asked.body:
            case dcp.Resolve():
                answer: dcp.Answer = dcp.Found(())
            case dcp.ReconcileReferences():
                answer = dcp.UnknownReferences((), ())
            case dcp.Rows():
                answer = messages.Tasks(())
            case dcp.Release() | dcp.TasksEnded() | dcp.Disband() | dcp.DeliverEvent() | dcp.KeepOutput():
                answer = messages.Done(1)
            case _:
                answer = messages.Failure(9, "it has nothing of that sort")
        return [encode_frame(dcp.PeerReply(asked.number, answer))]

    # -- lying ----------------------------------------------------------------------------------------
    async def tell(self, victim: Victim, *lies: Lie) -> None:
        """Send lies one after the other over one connection, and wait until they are read or cost it."""
        await self._tell(victim, lies)
        self._reseed()

    async def tell_each(self, *lies: Lie) -> None:
        """Send each honest node one lie at the same time, and wait until all are read or cost connections."""
        async with trio.open_nursery() as nursery:
            for victim, lie in zip(self.victims, lies, strict=True):
                nursery.start_soon(self._tell, victim, (lie,))
        self._reseed()

    async def _tell(self, victim: Victim, lies: Sequence[Lie]) -> None:
        line = await self.line(victim)
        self.told += len(lies)
        for lie in lies:
            self.story.append(f"to {victim.at.name}: {lie.words}")
            line.say(lie.frame)
        await self.read_by(line)

    def _reseed(self) -> None:
        # What was heard meanwhile depends on time: no more than one step of a play may depend on it.
        self.rng.seed(f"{self._seed} {self.told}")

    async def read_by(self, line: Line) -> None:
        """Wait until a node has read everything that was sent on a connection, or has ended it."""
        self._mark += 1
        number = self._mark
        done = line.marks[number] = trio.Event()
        line.say(_gossip(gossip.Ping(self.row(), number)))
        if line.ended.is_set():
            return
        with trio.move_on_after(ANSWER_S):
            await done.wait()
            return
        raise StuckError(f"{line.victim.at.name} neither answers nor closes a connection")

    async def lines(self) -> list[Line]:
        """Return a connection with every honest node."""
        return [await self.line(victim) for victim in self.victims]

    def close(self) -> None:
        """End all connections."""
        for line in self._lines.values():
            line.close()

    async def served_by(self, victim: Victim) -> str:
        """Return this member or its sleeper if a node serves them, else nothing."""
        line = self._lines.get(victim.node)
        if line is not None:
            with trio.move_on_after(ANSWER_S):
                await line.ended.wait()
            if not line.ended.is_set():
                return "a connection of the member"
        for who in (self.me, self.sleeper):
            with suppress(ForgottenError):
                (await self.dial(victim, who)).close()
                return who.name
        return ""


async def _received(secured: Secured) -> list[bytes]:
    try:
        return await secured.receive()
    except DiosError:
        return []


def _gossip(message: gossip.GossipMessage) -> bytes:
    return encode_frame(dcp.Gossip(gossip.encode(message)))


@asynccontextmanager
async def joined(
    me: Identity, sleeper: Identity, victims: Sequence[Victim], seed: int, own: str
) -> AsyncIterator[HostileMember]:
    """A member with a port and a connection to every honest node, for the length of a context."""
    async with trio.open_nursery() as nursery:
        member = HostileMember(me, sleeper, victims, seed, nursery, own)
        listener = await member.listen()
        try:
            await member.lines()
            yield member
        finally:
            member.close()
            listener.close()
            nursery.cancel_scope.cancel()
