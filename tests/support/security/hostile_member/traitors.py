"""Plays with the powers of a true member: it admits, signs and removes, and lies where machines join.

Every statement here is sound by itself: signed by a member, in its form, with the numbers that it may have.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final, cast

import msgspec
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from dios import limits
from dios.errors import DiosError
from dios.transport.identity import identity, joining, statements, tokens
from dios.transport.identity.identity import Identity
from dios.transport.tcp.secured import Secured, frame_of
from dios.transport.tcp.tls import connect, listen
from dios.wire.dcp_frames import encode_frame
from tests.support.security.hostile_member.lies import REVOKED, Lie, Tree, framed
from tests.support.security.hostile_member.member import HostileMember, Victim

SLEEPERS: Final = 6
STAYING: Final = 2
"""The sleepers that nobody removes before their admitter is removed."""
STATEMENTS: Final = 8
WAIT_S: Final = 0.5
_pack: Final = msgspec.msgpack.Encoder().encode


# -- where machines join ----------------------------------------------------------------------------------
async def joiners(member: HostileMember, count: int) -> None:
    """A machine with a true token lies to the node that admits it, in every field, order and number."""
    held = {victim.node: member.issue(victim) for victim in member.victims}
    while member.told < count:
        async with trio.open_nursery() as nursery:
            for victim in member.victims:
                words, sent = _request(member)
                member.told += 1
                member.story.append(f"to {victim.at.name}: {words}")
                nursery.start_soon(_knock, member, victim, held[victim.node], sent)
    assert member.effective, "no node answered a joiner"


def _request(member: HostileMember) -> tuple[str, bytes]:
    """Return words for a false conversation of a joiner, and its bytes."""
    rng, key = member.rng, Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "joiner")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, algorithm=None)
    der = request.public_bytes(Encoding.DER)
    true: Tree = ["join", 2, rng.choice(member.victims).at.name, der]
    shape = rng.choice(("field", "field", "field", "taken", "cut", "twice", "early", "late", "bits", "long"))
    whole = frame_of(_pack(true))
    match shape:
        case "field":
            words, changed = member.lies.wrong(true, "join")
            body = _pack(changed)
            return words, frame_of(body[: limits.DCP_FRAME_BYTES_MAX])
        case "cut":
            return "half a request", whole[: rng.randrange(len(whole))]
        case "twice":
            return "two requests", whole * 2
        case "early":
            return "a hello before the request", encode_frame(member.hello()) + whole
        case "late":
            return "an answer instead of a request", frame_of(_pack(["refused", 1, "no"]))
        case "bits":
            place = rng.randrange(len(der))
            bad = der[:place] + bytes([der[place] ^ 1 << rng.randrange(8)]) + der[place + 1 :]
            return "a false certificate request", frame_of(_pack(["join", 2, "joiner", bad]))
        case "long":
            return "a request that is longer than it says", frame_of(_pack(true)) + rng.randbytes(5_000)
        case _:
            return "the name of another node", whole


async def _knock(member: HostileMember, victim: Victim, text: str, sent: bytes) -> None:
    held = tokens.read(text)
    with trio.move_on_after(WAIT_S), suppress(DiosError, OSError, ssl.SSLError):
        peer, tls = await connect(victim.at.address, joining.context_of(held), held.cluster, lambda _: None)
        secured = Secured(tls, peer, member.nursery, trust=None)
        try:
            secured.send_nowait(sent)
            while await secured.receive():
                member.effective += 1
        finally:
            secured.close()


async def sponsors(member: HostileMember, count: int) -> None:
    """The member admits a machine with its own token, and lies in its answer: no node comes of it."""
    listener = await listen("127.0.0.1:0", member.me, member.nursery)
    answers: list[bytes] = []

    async def serve() -> None:
        with suppress(trio.EndOfChannel):
            while True:
                secured = await listener.accept()
                with trio.move_on_after(WAIT_S), suppress(DiosError):
                    await secured.receive()
                    secured.send_nowait(answers.pop())
                    await secured.flush()
                    member.effective += 1
                secured.close()

    member.nursery.start_soon(serve)
    token = tokens.issue(member.me, uses=1)
    try:
        while member.told < count:
            words, sent = _answer(member)
            answers[:] = [sent]
            member.told += 1
            member.story.append(f"to a joiner: {words}")
            place = member.folder / f"joiner-{member.told}"
            with suppress(DiosError):
                await joining.join(listener.address, token, name="joiner", directory=place)
            assert identity.load(place) is None, f"a node was made of {words}"
        assert member.effective, "no joiner got an answer"
    finally:
        listener.close()


def _answer(member: HostileMember) -> tuple[str, bytes]:
    """Return words for a false answer to a joiner, and its bytes: at best the admission of another node."""
    rng, me, other = member.rng, member.me, member.sleeper
    known = [msgspec.msgpack.decode(_pack(peer)) for peer in me.trust.known]
    true: Tree = ["admitted", list(other.chain), me.secret, list(me.trust.statements), known]
    shape = rng.choice(("field", "field", "another", "cut", "twice", "refused", "mixed", "noise"))
    match shape:
        case "field":
            words, changed = member.lies.wrong(true, "admitted")
            return words, frame_of(_pack(changed)[: limits.DCP_FRAME_BYTES_MAX])
        case "cut":
            whole = frame_of(_pack(true))
            return "half an answer", whole[: rng.randrange(len(whole))]
        case "twice":
            return "two answers", frame_of(_pack(true)) * 2
        case "refused":
            words, changed = member.lies.wrong(cast("Tree", ["refused", 1, "no"]), "refused")
            return words, frame_of(_pack(changed)[: limits.DCP_FRAME_BYTES_MAX])
        case "mixed":
            chain = [other.chain[0], *rng.sample(list(me.chain), len(me.chain))]
            return "a chain in another order", frame_of(_pack(["admitted", chain, *true[2:]]))
        case "noise":
            return "noise", frame_of(rng.randbytes(300))
        case _:
            return "the admission of another node", frame_of(_pack(true))


# -- sound statements ---------------------------------------------------------------------------------------
async def treason(member: HostileMember, count: int) -> None:
    """Sleepers that are admitted and come, and remove each other, in any order.

    Statements of the member that remove honest nodes are signed and held back. Sleepers that are still
    members release them after its removal. (Their own removals of others are a power that members have.)
    """
    rng, me = member.rng, member.me
    mine = [_sleeper(member, number) for number in range(SLEEPERS)]
    member.admitted += mine
    nodes = {victim.node: victim for victim in member.victims}
    honest: dict[int, bytes] = {known.node: known.key for known in me.trust.known if known.node in nodes}
    for number in (2, 2**40, 2**61):
        removed: dict[int, int] = dict.fromkeys(rng.sample(sorted(nodes), 1), 0)
        kept: dict[int, bytes] = {
            me.node: me.card.key,
            **{traitor.node: traitor.card.key for traitor in mine},
        }
        member.held_back.append(statements.make(me.chain, me.key(), number, removed, kept).data)
    for who in mine[:STAYING]:
        for victim in member.victims:
            await _comes(member, who, victim)
    assert member.effective, "no sleeper was served"
    number = 0
    while member.told < count:
        number += 1
        for who in rng.sample([me, *mine], 2):
            others = [traitor for traitor in mine[STAYING:] if traitor is not who]
            gone: dict[int, int] = {traitor.node: 0 for traitor in rng.sample(others, rng.randrange(3))}
            kept = {who.node: who.card.key, **honest}
            kept |= {traitor.node: traitor.card.key for traitor in mine if traitor.node not in gone}
            told = statements.make(who.chain, who.key(), rng.choice((number, number, 1)), gone, kept)
            lies = [Lie(f"{who.name} removes {len(gone)} sleepers", framed([REVOKED, told.data]))]
            lies *= rng.choice((1, 1, 2))
            await member.tell(rng.choice(member.victims), *lies)
        if number % STATEMENTS == 0:
            await _comes(member, rng.choice(mine), rng.choice(member.victims))


def _sleeper(member: HostileMember, number: int) -> Identity:
    name = f"{member.me.name}-{number}"
    return identity.admit_here(member.me, member.folder / name, name=name)


async def _comes(member: HostileMember, who: Identity, victim: Victim, *frames: bytes) -> None:
    """Let a sleeper connect to an honest node, which may refuse it, say hello, and send messages."""
    with trio.move_on_after(WAIT_S), suppress(Exception):  # a node may refuse it in any way
        secured = await member.dial(victim, who)
        try:
            hello = encode_frame(member.hello(node=who.node, name=who.name))
            secured.send_nowait(b"".join([hello, *frames]))
            while await secured.receive():
                member.effective += 1
        finally:
            secured.close()


async def release(member: HostileMember) -> None:
    """Send the statements that were held back with sleepers that are still served, after the removal."""
    member.effective = 0
    frames = [framed([REVOKED, data]) for data in member.held_back]
    for who in member.admitted:
        async with trio.open_nursery() as nursery:
            for victim in member.victims:
                nursery.start_soon(_comes, member, who, victim, *frames)
    assert member.effective, "no sleeper was served after the removal of its admitter"
