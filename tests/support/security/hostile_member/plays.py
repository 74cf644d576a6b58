"""The plays: what a hostile member says to honest nodes, in which order and when.

Each tells at least a number of lies, which the generator of the member decides; the invariant is checked
after it (``campaign``). A play whose name is in ``PLAYS`` must leave it intact.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias, cast

import msgspec
import trio
import trio.lowlevel

from dios import limits
from dios.errors import DiosError, ProtocolError
from dios.ids import NodeId, TaskId
from dios.transport.identity import statements
from dios.transport.tcp.secured import Secured
from dios.wire import dcp, gossip, messages
from dios.wire.call_table import CALLS
from dios.wire.dcp_frames import Channel, decode_frame, encode_channel, encode_frame
from dios.wire.dcp_table import REQUESTS
from dios.wire.types import Brand, NodeStatus
from tests.support.security.hostile_member import traitors
from tests.support.security.hostile_member.bait import Bait
from tests.support.security.hostile_member.lies import (
    ASK,
    BYTES,
    GOSSIP,
    REPLY,
    REVOKED,
    TEXTS,
    Lie,
    Tree,
    _pack,
    framed,
    tree_of,
)
from tests.support.security.hostile_member.member import ANSWER_S, HostileMember, Line, Victim

Play: TypeAlias = Callable[[HostileMember, int], Awaitable[None]]
BURST: Final = 12
RESULTS: Final = 10
HEAD: Final = struct.Struct("<4sIQ")
LENGTH: Final = struct.Struct("<I")


def one_of(member: HostileMember) -> Victim:
    """Return any victim."""
    return member.rng.choice(member.victims)


# -- one wrong part ---------------------------------------------------------------------------------------
async def fields(member: HostileMember, count: int) -> None:
    """Messages of every type with one part wrong."""
    while member.told < count:
        await member.tell_each(*(member.lies.lie() for _ in member.victims))


async def gossiped_fields(member: HostileMember, count: int) -> None:
    """Gossip of every type with one part wrong, about the member itself and about others."""
    while member.told < count:
        await member.tell_each(*(member.lies.gossip_lie() for _ in member.victims))


async def believable(member: HostileMember, count: int) -> None:
    """Messages that fit their types, with values that are false."""
    while member.told < count:
        await member.tell(one_of(member), *(member.lies.believable() for _ in range(BURST)))


async def bent(member: HostileMember, count: int) -> None:
    """Messages that honest nodes have sent, sent back to them and to others with a leaf changed."""
    while member.told < count:
        heard = [message for _, message in member.heard if not isinstance(message, dcp.Gossip)]
        lies = [
            member.lies.bent(member.rng.choice(heard)) if heard else member.lies.believable()
            for _ in range(BURST)
        ]
        await member.tell(one_of(member), *lies)


# -- membership -------------------------------------------------------------------------------------------
async def claims(member: HostileMember, count: int) -> None:
    """Rows about honest nodes with a false status, epoch, address, number or load."""
    rng = member.rng
    while member.told < count:
        about = rng.choice(member.lies.victims)
        changeable: tuple[dict[str, object], ...] = (
            {"status": rng.choice(list(NodeStatus))},
            {
                "status": rng.choice(list(NodeStatus)),
                "incarnation": rng.choice((1, 2**31, 2**40, 2**63 - 1)),
            },
            {"epoch": rng.choice((0, about.epoch + 1, 2**40, 2**63 - 1))},
            {
                "address": rng.choice(("127.0.0.1:1", "", "[::]:0", "x" * 60)),
                "version": rng.choice((9, 2**31, 2**62)),
            },
            {"draining": True, "version": rng.choice((9, 2**33, 2**63 - 1))},
            {"name": rng.choice(("n1", "n2", "ghost")), "version": rng.choice((9, 2**31))},
            {"rack": rng.choice(("r", "x" * 64)), "version": 2**20},
            {"load": gossip.Load(2**63 - 1, 2**63 - 1, 2**63 - 1), "version": 2**20},
        )
        changes = rng.choice(changeable)
        row = msgspec.structs.replace(about, **changes)
        number = rng.choice((1, 2**50))
        message: gossip.GossipMessage = rng.choice(
            (
                gossip.News(member.row(), (row,)),
                gossip.Ping(member.row(), number, (row,)),
                gossip.Ack(member.row(), number, row.node, (row,)),
                gossip.PingRequest(member.row(), number, row.node, (row,)),
                gossip.Table(member.row(), (row,), rng.random() < 0.2),
            )
        )
        words = f"{type(message).__name__} about {about.name}: {changes}"
        await member.tell(one_of(member), Lie(words, framed([GOSSIP, gossip.encode(message)])))


async def ghosts(member: HostileMember, count: int) -> None:
    """Rows about nodes that do not exist, more than a table has room for."""
    rng = member.rng
    while member.told < count:
        rows = tuple(_gone(rng) for _ in range(rng.choice((1, 16, limits.GOSSIP_TABLE_ROWS_MAX))))
        table = gossip.encode(gossip.Table(member.row(), rows))
        await member.tell(one_of(member), Lie(f"{len(rows)} ghosts", framed([GOSSIP, table])))


def _gone(rng: Random) -> gossip.MemberRow:
    node, status = NodeId(rng.randrange(10_000, 10_400)), rng.choice((NodeStatus.DEAD, NodeStatus.LEFT))
    return gossip.MemberRow(node, f"g{node}", "", "127.0.0.1:1", rng.choice((1, 2)), 0, status)


async def own_rows(member: HostileMember, count: int) -> None:
    """The member's own row with boundary values, which honest nodes pass on to each other."""
    rng = member.rng
    while member.told < count:
        lies: list[Lie] = []
        while len(lies) < len(member.victims):
            row = cast("Tree", tree_of(member.row(version=rng.choice((2, 2**31, 2**63 - 1)))))
            place = rng.randrange(1, len(row))
            row[place] = member.lies._instead(row[place])
            tree: Tree = [63, row, [], []]
            lie = Lie(f"own row [{place}] = {str(row[place])[:40]}", framed([GOSSIP, _pack(tree)]))
            if len(lie.frame) < limits.DCP_FRAME_BYTES_MAX:
                lies.append(lie)
        await member.tell_each(*lies)


async def hellos(member: HostileMember, count: int) -> None:
    """The first message of a connection with one part wrong."""
    rounds = 0
    while member.told < count:
        rounds += 1
        said: list[Tree] = []
        async with trio.open_nursery() as nursery:
            for victim in member.victims:
                words, changed = member.lies.wrong(cast("Tree", tree_of(member.hello())), "hello")
                member.told += 1
                member.story.append(f"to {victim.at.name}: {words}")
                said.append(changed)
                nursery.start_soon(_greet, member, victim, changed)
        for changed in said:
            with suppress(ProtocolError):
                hello, _ = decode_frame(framed(changed)[4:])
                if isinstance(hello, dcp.PeerHello) and hello.epoch > member.epoch:
                    # It counts as that start from now on; its earlier one is not served any more.
                    member.epoch = hello.epoch
        if rounds % 3 == 0:
            await member.lines()


async def _greet(member: HostileMember, victim: Victim, hello: Tree) -> None:
    secured = await member.dial(victim)
    secured.send_nowait(framed(hello))
    await settled(secured, 0.05)
    secured.close()


async def settled(secured: Secured, wait_s: float) -> None:
    """Read until the other end closes, or for a moment."""
    with trio.move_on_after(wait_s):
        try:
            while await secured.receive():
                pass
        except DiosError:
            return


# -- answers ----------------------------------------------------------------------------------------------
async def answers(member: HostileMember, count: int) -> None:
    """False answers to true questions: of the wrong type, with a part wrong, twice, or to other numbers."""
    asked: dict[tuple[int, int], int] = {}
    rng = member.rng

    def lie(line: Line, ask: dcp.Ask) -> list[bytes]:
        key = (line.victim.node, ask.number)
        asked[key] = asked.get(key, 0) + 1
        if asked[key] > 2:
            return [
                encode_frame(dcp.PeerReply(ask.number, messages.Failure(9, "it has nothing of that sort")))
            ]
        tree: Tree = [REPLY, ask.number, tree_of(fitting(member, ask))]
        dice = rng.random()
        if dice < 0.5:
            words, tree = member.lies.wrong(tree, f"answer to {type(ask.body).__name__}")
        elif dice < 0.55:
            words, tree = (
                "an answer of another type",
                [REPLY, ask.number, tree_of(member.lies._made(_any_answer(rng)))],
            )
        else:
            words = f"a fitting answer to {type(ask.body).__name__}: {str(tree)[:300]}"
        frame = framed(tree)
        if len(frame) > limits.DCP_FRAME_BYTES_MAX:
            return []
        member.told += 1
        member.story.append(f"to {line.victim.at.name}: {words}")
        return [frame] * rng.choice((1, 1, 1, 2))

    member.answers, member.stays = lie, True
    victim = one_of(member)
    await member.line(victim)
    bait = await trio.to_thread.run_sync(Bait, victim.at.socket, member.me.name, Random(rng.getrandbits(32)))  # noqa: S311
    try:
        while member.told < count:
            await trio.to_thread.run_sync(bait.turn)
            await member.lines()
    finally:
        member.answers, member.stays = member.honest_answers, False
        bait.close()


def _any_answer(rng: Random) -> type[msgspec.Struct]:
    of_calls = [kind for row in CALLS.values() for kind in row.results]
    return rng.choice(of_calls + [kind for row in REQUESTS.values() for kind in row.results])


def fitting(member: HostileMember, ask: dcp.Ask) -> object:
    """Return an answer of the type that the question calls for, with made-up values; or its tree."""
    body = ask.body
    if isinstance(body, dcp.Forward):
        if isinstance(body.call, messages.Vector):
            return [RESULTS, [tree_of(_result(member, type(call))) for call in body.call.calls]]
        return _result(member, type(body.call))
    if isinstance(body, dcp.Resolve):
        return dcp.Found((reference(member),))
    return _real(member, member.lies._made(member.rng.choice(REQUESTS[type(body)].results)))


def _result(member: HostileMember, call: type) -> object:
    kinds = CALLS[call].results or (messages.Failure,)
    return _real(member, member.lies._made(member.rng.choice(kinds)))


def _real(member: HostileMember, answer: object) -> object:
    """Give an answer references that a node may take over, half of the time."""
    if member.rng.random() < 0.5:
        return answer
    match answer:
        case messages.Created(name, _):
            return messages.Created(name, reference(member))
        case messages.References():
            return messages.References((reference(member),))
        case dcp.Offered():
            return dcp.Offered((reference(member),))
        case dcp.ReplicaCreated():
            return dcp.ReplicaCreated(dcp.HeldReference(member.me.node, reference(member)))
        case _:
            return answer


def reference(member: HostileMember) -> messages.Reference:
    """Return a reference to an object that this member says it has."""
    drawn = cast("messages.Reference", member.lies._made(messages.Reference))
    rng = member.rng
    return msgspec.structs.replace(
        drawn, ref=rng.getrandbits(62) + 1, object=rng.getrandbits(62) + 1, permissions=63
    )


# -- order, number and time -------------------------------------------------------------------------------
async def replays(member: HostileMember, count: int) -> None:
    """Messages again, in another order, late, and to other nodes than those they were for."""
    rng = member.rng
    sent: list[Lie] = []
    while member.told < count:
        burst = [member.lies.believable() for _ in range(BURST // 2)]
        burst += [Lie("its own message again", lie.frame) for lie in rng.sample(sent, min(3, len(sent)))]
        heard = [message for _, message in member.heard if not isinstance(message, dcp.Gossip)]
        for message in rng.sample(heard, min(3, len(heard))):
            words = f"a message of an honest node: {type(message).__name__}"
            burst.append(Lie(words, encode_frame(message)))
        rng.shuffle(burst)
        sent = (sent + burst)[-100:]
        await member.tell(one_of(member), *burst)


async def unasked(member: HostileMember, count: int) -> None:
    """Answers to questions that were never asked, to answered ones, and to those of other nodes."""
    rng = member.rng
    while member.told < count:
        burst = []
        for _ in range(BURST):
            answer = member.lies._made(_any_answer(rng))
            asked = member.pools.of("asked")
            number = rng.choice((rng.choice(asked) if asked else 1, rng.getrandbits(62), 0, 1, 2**63 - 1))
            burst.append(Lie(f"an answer to {number}", framed([REPLY, number, tree_of(answer)])))
        await member.tell(one_of(member), *burst)


async def counts(member: HostileMember, count: int) -> None:
    """Lists of thousands, numbers without end, and the same small thing again and again."""
    rng = member.rng
    caller = tree_of(dcp.Caller(TaskId(70_001), "uid:4711", "f" * 12, Brand.PURE))
    while member.told < count:
        many = rng.choice((256, 4_096, 30_000))
        ids = [rng.getrandbits(62) for _ in range(many)]
        names = [rng.randbytes(32) for _ in range(min(many, 20_000))]
        bodies: list[Tree] = [
            [3, caller, names, 2**63 - 1],
            [9, 70_001, ids],
            [10, ids],
            [
                12,
                1,
                [[caller, 0, 2**63 - 1, [[number, number, 63, True] for number in ids]]],
                ids,
                ids[:4_096],
            ],
            [1, caller, [14, ids[:1_024], 0, 1], []],
            [1, caller, [40, [[30, number] for number in ids[:1_024]]], []],
            [4, caller, [[number, 63] for number in ids], caller, member.me.node],
        ]
        body = rng.choice(bodies)
        waiting = ids[:4_096] if rng.random() < 0.2 else []
        frame = framed([ASK, member.lies.number(), 0, body, sorted(waiting)])
        if len(frame) <= limits.DCP_FRAME_BYTES_MAX:
            await member.tell(one_of(member), Lie(f"{many} parts in request {body[0]}", frame))
        small = framed([ASK, member.lies.number(), 0, [13, rng.randbytes(32)]])
        lies = [Lie("one small request again and again", small)] * rng.choice((1, BURST, 4 * BURST))
        await member.tell(one_of(member), *lies)


async def silence(member: HostileMember, count: int) -> None:
    """Neither pings nor questions are answered for a while, then lies, then silence again."""
    rng = member.rng
    while member.told < count:
        member.answers_pings = False
        member.answers = lambda _line, _ask: ()
        await trio.sleep(rng.choice((0.05, 0.3, 1.2)))
        member.answers_pings, member.answers = True, member.honest_answers
        await member.tell(one_of(member), *(member.lies.believable() for _ in range(2 * BURST)))


# -- bytes ------------------------------------------------------------------------------------------------
async def half_messages(member: HostileMember, count: int) -> None:
    """Frames that are cut, that come byte by byte, that are declared as huge, empty, or are noise."""
    rng = member.rng
    while member.told < count:
        victim = one_of(member)
        line = await member.line(victim)
        whole = member.lies.believable().frame
        cut = rng.randrange(1, len(whole))
        shape = rng.choice(("half", "drip", "huge", "empty", "noise", "not TLS", "longer", "shorter"))
        member.told += 1
        member.story.append(f"to {victim.at.name}: {shape}")
        match shape:
            case "half":
                line.say(whole[:cut])
                await trio.sleep(0.005)
                line.close()
            case "drip":
                await line.drip(whole)
                await member.read_by(line)
            case "huge":
                line.say(LENGTH.pack(rng.choice((limits.DCP_FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1))))
                await member.read_by(line)
            case "empty":
                line.say(LENGTH.pack(0) * rng.choice((1, 500)))
                await member.read_by(line)
            case "noise":
                line.say(LENGTH.pack(cut) + rng.randbytes(cut))
                await member.read_by(line)
            case "longer":
                line.say(LENGTH.pack(len(whole)) + whole[4:] + bytes(4))
                await member.read_by(line)
            case "shorter":
                line.say(LENGTH.pack(cut) + whole[4:])
                await member.read_by(line)
            case _:
                socket.socket.send(line.secured._sock, rng.randbytes(cut))
                with trio.move_on_after(ANSWER_S):
                    await line.ended.wait()
                line.close()


async def transfers(member: HostileMember, count: int) -> None:
    """Data connections without their control connection, with false heads, sizes and purposes."""
    rng = member.rng
    channel = 0
    while member.told < count:
        victim = one_of(member)
        await member.line(victim)
        channel += 1
        secured = await member.dial(victim)
        epoch = rng.choice((member.epoch, member.epoch, member.epoch, 0, 2**62))
        number = rng.choice((channel, channel, channel, 1, 2**62))
        purpose = Channel(rng.choice((0, 0, 0, 1, -1, 2**62)), rng.random() < 0.5)
        secured.send_nowait(encode_frame(member.hello(epoch=epoch, channel=number)) + encode_channel(purpose))
        await settled_once(secured)
        body = _pack(
            [tree_of(dcp.Ask(member.lies.number(), 0, dcp.Disband(cast("dcp.External", rng.randbytes(32)))))]
        )
        size = rng.choice((0, 5, 5, 70_000))
        data = rng.randbytes(size)
        head = HEAD.pack(b"dtr2", len(body), size)
        whole = head + body + data
        shape = rng.choice(("true", "more", "magic", "message size", "size", "cut", "noise", "stream"))
        match shape:
            case "more":
                sent = whole + bytes(32)
            case "magic":
                sent = b"dtr1" + whole[4:]
            case "message size":
                sent = HEAD.pack(b"dtr2", rng.choice((0, 1, 2**22 + 1, 2**32 - 1)), size) + body + data
            case "size":
                sent = (
                    HEAD.pack(b"dtr2", len(body), rng.choice((1, 2**32, 2**32 + 1, 2**63, 2**64 - 1)))
                    + body
                    + data
                )
            case "cut":
                sent = whole[: rng.randrange(len(whole))]
            case "noise":
                sent = rng.randbytes(200)
            case "stream":
                sent = LENGTH.pack(
                    rng.choice((0, 1, limits.STREAM_PIECE_BYTES + 1, 2**32 - 1))
                ) + rng.randbytes(50)
            case _:
                sent = whole
        member.told += 1
        member.story.append(f"to {victim.at.name}: a transfer, {shape}, epoch {epoch}, purpose {purpose}")
        secured.send_nowait(sent)
        await settled(secured, 0.01)
        secured.close()


async def settled_once(secured: Secured) -> None:
    """Wait for the next frames, or the end, or a moment."""
    with trio.move_on_after(0.2):
        try:
            await secured.receive()
        except DiosError:
            return


async def dialled(member: HostileMember, count: int) -> None:
    """Nodes that connect by themselves get false hellos, silence, noise, or a second hello."""
    rng = member.rng

    def serve(secured: Secured) -> None:
        member.nursery.start_soon(_serve_falsely, member, secured)

    member.on_dialled = serve
    while member.told < count:
        for line in await member.lines():
            line.close()
        await trio.sleep(0.2)
        await member.tell(one_of(member), *(member.lies.believable() for _ in range(rng.choice((1, BURST)))))
    member.on_dialled = lambda secured: secured.close()


async def _serve_falsely(member: HostileMember, secured: Secured) -> None:
    rng = member.rng
    shape = rng.choice(("wrong", "silent", "noise", "twice", "another's", "gone", "lie first"))
    member.told += 1
    member.story.append(f"dialled by {secured.peer.name}: {shape}")
    hello = encode_frame(member.hello())
    match shape:
        case "wrong":
            words, changed = member.lies.wrong(cast("Tree", tree_of(member.hello())), "hello")
            member.story.append(words)
            secured.send_nowait(framed(changed))
        case "noise":
            secured.send_nowait(rng.randbytes(200))
        case "twice":
            secured.send_nowait(hello * 2)
        case "another's":
            other = rng.choice(member.victims)
            secured.send_nowait(encode_frame(member.hello(node=other.node, name=other.at.name)))
        case "lie first":
            secured.send_nowait(member.lies.believable().frame + hello)
        case _:
            pass
    if shape != "gone":
        await settled(secured, rng.choice((0.02, 0.2)))
    secured.close()


# -- revocations ------------------------------------------------------------------------------------------
async def revocations(member: HostileMember, count: int) -> None:
    """Statements about removed nodes that are malformed in one part."""
    while member.told < count:
        await member.tell_each(*(_malformed_statement(member) for _ in member.victims))


def _malformed_statement(member: HostileMember) -> Lie:
    rng = member.rng
    while True:
        inner = cast("Tree", msgspec.msgpack.decode(member.lies.statement))
        place = rng.choice(((0,), (1,), (2,), (2, 0)))
        holder: object = inner
        for step in place[:-1]:
            holder = cast("Tree", holder)[step]
        bad: object = rng.choice(
            (*TEXTS, *BYTES, None, -1, 0, 2**63, 2**64 - 1, [[]], [0], [-1], ["x"], [[1]], [[1, b"x"]])
        )
        cast("Tree", holder)[place[-1]] = bad
        body = rng.choice((_pack(inner), _pack(inner)[:-1], _pack(inner) + b"\0", rng.choice(BYTES)))
        if _is_sound(body, member.me.chain[-1]):
            continue
        return Lie(f"revocations {str(inner)[:80]}", framed([REVOKED, body]))


async def removals(member: HostileMember, count: int) -> None:
    """Sound statements that remove nodes which never were, and keep whom the member likes; forged ones."""
    rng, me = member.rng, member.me
    sleeper: dict[int, bytes] = {member.sleeper.node: member.sleeper.card.key}
    while member.told < count:
        many = rng.choice((0, 1, 8, limits.NODES_REMOVED_BY_MEMBER_MAX))
        sources = (0, rng.randrange(1, 2**62), member.sleeper.node)
        removed = {rng.randrange(1, 2**40): rng.choice(sources) for _ in range(many)}
        others: dict[int, bytes] = {
            victim.node: rng.choice((rng.randbytes(32), me.card.key)) for victim in member.victims
        }
        kept: dict[int, bytes] = {me.node: me.card.key, **rng.choice((sleeper, sleeper, others))}
        number = rng.choice((1, 2, rng.randrange(1, 2**40), 2**62))
        chain = me.chain if rng.random() < 0.9 else me.chain[1:]
        data = statements.make(chain, me.key(), number, removed, kept).data
        if rng.random() < 0.1:
            place = rng.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        words = f"statement {number}: {many} removed, {len(kept)} kept"
        await member.tell(one_of(member), Lie(words, framed([REVOKED, data])))


def _is_sound(body: bytes, authority: bytes) -> bool:
    try:
        statements.read(body, authority)
    except ProtocolError:
        return False
    return True


PLAYS: Final[dict[str, Play]] = {
    play.__name__: play
    for play in (
        fields,
        gossiped_fields,
        believable,
        bent,
        claims,
        ghosts,
        own_rows,
        hellos,
        answers,
        replays,
        unasked,
        counts,
        silence,
        half_messages,
        transfers,
        dialled,
        revocations,
        removals,
        traitors.joiners,
        traitors.sponsors,
        traitors.treason,
    )
}
