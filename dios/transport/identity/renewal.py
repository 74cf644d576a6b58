"""The renewal of a node's certificate: one request and one answer over a connection of its own.

The connection is the one that all nodes make, with another protocol (ALPN) in its handshake. It is open also
to a member whose certificate is over, and opens nothing else. Only nodes that sign serve it.
``docs/clusters.md`` specifies the conversation.
"""

from __future__ import annotations

import time
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta, Struct

from dios import limits
from dios.errors import (
    DiosError,
    NotPermittedError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
    error_for,
    unwrap_group,
)
from dios.transport.identity.certificates import (
    CertificateDetails,
    cards_of,
    check_signatures,
    end_of,
    utc_text,
)
from dios.transport.identity.identity import RENEWAL_PROTOCOL, Identity, renew
from dios.transport.tcp.secured import PeerIdentity, Secured, frame_of
from dios.transport.tcp.tls import connect
from dios.wire.node_roles import NodeRight

_VERSION: Final = 1

_Certificate: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=limits.CERTIFICATE_BYTES_MAX)]


class RenewalRequest(Struct, frozen=True, array_like=True, tag="renew"):
    """The request of a node, whose key the certificate of the connection has."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]


class RenewalAnswer(Struct, frozen=True, array_like=True, tag="renewed"):
    """The node's next chain, with the root's certificate last, and the signer's clock."""

    chain: Annotated[tuple[_Certificate, ...], Meta(max_length=limits.CHAIN_CERTIFICATES_MAX)]
    clock_s: Annotated[int, Meta(ge=0, le=2**53)]


class RenewalRefusal(Struct, frozen=True, array_like=True, tag="refused"):
    """The reason of a refusal."""

    code: Annotated[int, Meta(ge=0, le=2**15 - 1)]
    message: Annotated[str, Meta(max_length=limits.REFUSAL_BYTES_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_request: Final = msgspec.msgpack.Decoder(RenewalRequest)
_answer: Final[msgspec.msgpack.Decoder[RenewalAnswer | RenewalRefusal]] = msgspec.msgpack.Decoder(
    RenewalAnswer | RenewalRefusal
)


class ReceivedCertificate(NamedTuple):
    """A chain that ``identity.adopt`` accepts, the name of its signer, and the signer's clock."""

    chain: tuple[bytes, ...]
    signer: str
    clock_s: int


async def ask(address: str, own: Identity, *, now_s: float | None = None) -> ReceivedCertificate:
    """Return the next chain of this node, signed by the node at "HOST:PORT"; nothing is stored.

    ``now_s`` is this machine's clock, seconds since 1970. Raises UnreachableError if nobody answers,
    TimeLimitError after RENEWAL_MS_MAX, NotPermittedError if that node does not sign, refuses this node, or
    has a clock by which the new certificate would be over here, ProtocolError for an answer that no node
    gives.
    """
    with trio.move_on_after(limits.RENEWAL_MS_MAX / 1000):
        signer, answer = await _ask(address, own)
        cards = cards_of(answer.chain)
        check_signatures(answer.chain)
        if not cards[0].is_same_node(own.card) or answer.chain[-1] != own.chain[-1]:
            raise ProtocolError(f"{signer.name} at {address} signed a certificate of another node")
        here_s = time.time() if now_s is None else now_s
        if end_of(cards, here_s):
            raise NotPermittedError(
                f"{signer.name} at {address} signs certificates that are over here: its clock says "
                f"{utc_text(answer.clock_s)}, and this node's {utc_text(here_s)}. Set the wrong one."
            )
        return ReceivedCertificate(answer.chain, signer.name, answer.clock_s)
    raise TimeLimitError(f"{address} did not answer within {limits.RENEWAL_MS_MAX} ms")


async def _ask(address: str, own: Identity) -> tuple[PeerIdentity, RenewalAnswer]:
    def check(peer: PeerIdentity) -> None:
        refusal = own.trust.refusal(peer.chain) or peer.chain[0].why_not(NodeRight.SIGN)
        if refusal:
            raise NotPermittedError(refusal)
        if not peer.renews:
            raise NotPermittedError(f"{peer.name} has an older release, which renews no certificates")

    peer, tls = await connect(address, own.renewal_context, own.cluster, check)
    try:
        async with trio.open_nursery() as nursery:
            secured = Secured(tls, peer, nursery, own.trust)
            try:
                key = own.key().public_key().public_bytes_raw()
                secured.send_nowait(frame_of(_encode(RenewalRequest(_VERSION, key))))
                await secured.flush()
                bodies = await secured.receive()
            finally:
                secured.close()
    except BaseExceptionGroup as group:
        raise unwrap_group(group) from None
    if not bodies:
        raise UnreachableError(f"{peer.name} at {address} closed the connection without an answer")
    try:
        answer = _answer.decode(bodies[0])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{peer.name} at {address} gave a malformed answer: {error}") from None
    if isinstance(answer, RenewalRefusal):
        raise error_for(answer.code, f"{peer.name} at {address}: {answer.message}")
    return peer, answer


async def serve(
    own: Identity, connection: Secured, *, days: int = limits.CERTIFICATE_DAYS, now_s: float | None = None
) -> CertificateDetails:
    """Serve a connection of a node that renews, close it, and return the content of the new certificate.

    The certificate ends ``days`` after ``now_s``, this machine's clock; 0 days for no end. A refused peer
    gets the reason, which is raised here too: NotPermittedError if it is not known or this node does not
    sign, LimitError if this node can sign no more, ProtocolError for a malformed request, TimeLimitError
    after RENEWAL_MS_MAX.
    """
    try:
        with trio.move_on_after(limits.RENEWAL_MS_MAX / 1000):
            try:
                chain = await _renewed(own, connection, days, now_s)
            except DiosError as error:
                await _send(connection, RenewalRefusal(error.code, error.message[: limits.REFUSAL_BYTES_MAX]))
                raise
            await _send(connection, RenewalAnswer(chain, int(time.time() if now_s is None else now_s)))
            return cards_of(chain)[0]
        raise TimeLimitError(f"the peer sent no request within {limits.RENEWAL_MS_MAX} ms")
    finally:
        connection.close()


async def _renewed(own: Identity, connection: Secured, days: int, now_s: float | None) -> tuple[bytes, ...]:
    bodies = await connection.receive()
    if len(bodies) != 1:
        raise ProtocolError("the peer did not send one request")
    try:
        asked = _request.decode(bodies[0])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed request for a certificate: {error}") from None
    if asked.version != _VERSION:
        raise ProtocolError(
            f"this node speaks version {_VERSION} of {RENEWAL_PROTOCOL}, the peer {asked.version}. Use the "
            "same release on both machines."
        )
    # The role comes from the chain that TLS has verified, never from the request.
    key = Ed25519PublicKey.from_public_bytes(asked.key)
    return renew(own, connection.peer.certificates, key, days=days, now_s=now_s)


async def _send(connection: Secured, message: RenewalAnswer | RenewalRefusal) -> None:
    connection.send_nowait(frame_of(_encode(message)))
    await connection.flush()
