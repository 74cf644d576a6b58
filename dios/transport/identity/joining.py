"""The admission of a machine to a cluster: it shows a token, and gets a certificate and the secret.

``docs/clusters.md`` specifies the conversation: one request and one answer over a connection in which both
ends are already authenticated. ``dios.transport.identity.tokens`` has the tokens.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Meta, Struct

from dios import limits
from dios.errors import (
    DiosError,
    InvalidError,
    NotPermittedError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
    error_for,
    unwrap_group,
)
from dios.transport.identity import statements, tokens
from dios.transport.identity.certificates import (
    CertificateRole,
    card_of,
    cards_of,
    check_name,
    check_signatures,
    key_digest,
    signer_of,
)
from dios.transport.identity.generations import SECRET_BYTES
from dios.transport.identity.identity import (
    Identity,
    bare_context,
    install,
    known_of,
    load_own,
    name_taken,
    prepare_node,
    refuse_second,
)
from dios.transport.identity.tokens import Token
from dios.transport.identity.trust import Known
from dios.transport.tcp.secured import PeerIdentity, Secured, frame_of
from dios.transport.tcp.tls import SilentError, connect, for_another
from dios.transport.tcp.tls_socket import TlsSocket
from dios.wire.node_roles import NodeRole

_VERSION: Final = 2

_Certificate: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=limits.CERTIFICATE_BYTES_MAX)]
_Statement: TypeAlias = Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)]
_Version: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class JoinRequest(Struct, frozen=True, array_like=True, tag="join"):
    """The request of a joining machine."""

    version: _Version
    name: Annotated[str, Meta(min_length=1, max_length=limits.NODE_NAME_BYTES_MAX)]
    request: _Certificate
    """A certificate request, signed with the future node's key as a proof of its possession."""


class Admitted(Struct, frozen=True, array_like=True, tag="admitted"):
    """The new node's identity: its chain, and the data that all nodes share."""

    chain: Annotated[tuple[_Certificate, ...], Meta(max_length=limits.CHAIN_CERTIFICATES_MAX)]
    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    statements: Annotated[tuple[_Statement, ...], Meta(max_length=limits.NODES_MAX)]
    known: Annotated[tuple[Known, ...], Meta(max_length=limits.NODES_MAX)]
    generations: Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)] = b""
    """The later secrets (``dios.transport.identity.generations``), empty if there are none."""


class Refused(Struct, frozen=True, array_like=True, tag="refused"):
    """The reason of a refusal."""

    code: Annotated[int, Meta(ge=0, le=2**15 - 1)]
    message: Annotated[str, Meta(max_length=limits.REFUSAL_BYTES_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_request: Final = msgspec.msgpack.Decoder(JoinRequest)
_answer: Final[msgspec.msgpack.Decoder[Admitted | Refused]] = msgspec.msgpack.Decoder(Admitted | Refused)


# -- the joining machine ----------------------------------------------------------------------------
async def join(address: str, token: str, *, name: str, directory: Path) -> Identity:
    """Join the cluster at ``address``, "HOST:PORT", as a node ``name``; return its identity, stored durably.

    Raises InvalidError for an invalid token or name, ExistsError if the name is taken or the directory has an
    identity, NotPermittedError if the token is used up, has expired or is for another node, UnreachableError
    if nobody answers, TimeLimitError after JOIN_MS_MAX, ProtocolError for an answer that no node would
    give. After an error the directory is unchanged.
    """
    held = tokens.read(token)
    check_name(name)
    refuse_second(directory)
    key = Ed25519PrivateKey.generate()
    with trio.move_on_after(limits.JOIN_MS_MAX / 1000):
        admitted = await _ask(address, held, name, key)
        _check(admitted, held, name, key)
        return install(
            directory,
            key,
            admitted.chain,
            admitted.secret,
            admitted.statements,
            admitted.known,
            admitted.generations,
        )
    raise TimeLimitError(f"{address} did not answer within {limits.JOIN_MS_MAX} ms. Try again.")


async def _connected(
    address: str, token: Token, check: Callable[[PeerIdentity], None]
) -> tuple[PeerIdentity, TlsSocket]:
    """Connect to a member. Ask a silent one again, which may be busy, until the time of the join is over."""
    while True:
        try:
            return await connect(address, context_of(token), token.cluster, check)
        except SilentError:
            await trio.sleep(limits.PEER_RETRY_MS_MIN / 1000)


async def _ask(address: str, token: Token, name: str, key: Ed25519PrivateKey) -> Admitted:
    meant, meant_name = signer_of(token.certificate)

    def check(peer: PeerIdentity) -> None:
        if peer.node != meant:
            raise NotPermittedError(for_another(peer.name, meant_name))

    peer, tls = await _connected(address, token, check)
    try:
        async with trio.open_nursery() as nursery:
            secured = Secured(tls, peer, nursery, trust=None)
            try:
                subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
                request = (
                    x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm=None)
                )
                secured.send_nowait(
                    frame_of(_encode(JoinRequest(_VERSION, name, request.public_bytes(Encoding.DER))))
                )
                await secured.flush()
                bodies = await secured.receive()
            finally:
                secured.close()
    except BaseExceptionGroup as group:
        raise unwrap_group(group) from None
    if not bodies:
        raise UnreachableError(
            f"{address} closed the connection without an answer. Read the log of that node."
        )
    try:
        answer = _answer.decode(bodies[0])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{address} gave a malformed answer: {error}") from None
    if isinstance(answer, Refused):
        raise error_for(answer.code, answer.message)
    return answer


def context_of(token: Token) -> ssl.SSLContext:
    """Return the TLS context of a holder of the token; raises InvalidError."""
    context = bare_context(ssl.PROTOCOL_TLS_CLIENT, token.authority)
    try:
        load_own(context, [token.certificate], token.key)
    except ssl.SSLError:
        raise InvalidError("the invitation is damaged. Make a new one with `dios-node invite`.") from None
    return context


def _check(admitted: Admitted, token: Token, name: str, key: Ed25519PrivateKey) -> None:
    """Raise ProtocolError unless the answer is a node's identity in the token's cluster."""
    card = cards_of(admitted.chain)[0]
    check_signatures(admitted.chain)
    for statement in admitted.statements:
        statements.read(statement, token.authority)
    mine = (
        card.role is CertificateRole.NODE and card.name == name and card.key == key_digest(key.public_key())
    )
    if not mine or admitted.chain[-1] != token.authority:
        raise ProtocolError("the certificate in the answer is not the requested one")


# -- the admitting node -----------------------------------------------------------------------------
async def admit(
    identity: Identity,
    connection: Secured,
    *,
    taken: Callable[[str], bool] = lambda _name: False,
    days: int = limits.CERTIFICATE_DAYS,
) -> Known:
    """Serve a connection whose peer has the role JOIN, close it, and return the admitted node.

    ``taken`` returns True if a node of the cluster has that name, in addition to those known here. The
    certificate ends after ``days``, 0 for no end. A refused peer gets the reason, which is raised here too:
    NotPermittedError for the token, ExistsError or InvalidError for the name, LimitError if the cluster is
    full, ProtocolError for a malformed request, TimeLimitError after JOIN_MS_MAX.
    """
    try:
        with trio.move_on_after(limits.JOIN_MS_MAX / 1000):
            try:
                answer, node = await _admitted(identity, connection, taken, days)
            except DiosError as error:
                await _send(connection, Refused(error.code, error.message[: limits.REFUSAL_BYTES_MAX]))
                raise
            await _send(connection, answer)
            return node
        raise TimeLimitError(f"the peer sent no request to join within {limits.JOIN_MS_MAX} ms")
    finally:
        connection.close()


async def _admitted(
    identity: Identity, connection: Secured, taken: Callable[[str], bool], days: int
) -> tuple[Admitted, Known]:
    number = connection.peer.node
    if connection.peer.role is not CertificateRole.JOIN:
        raise NotPermittedError("the peer is a node already and cannot join")
    role = await trio.to_thread.run_sync(tokens.check, identity.folder, number)
    bodies = await connection.receive()
    if len(bodies) != 1:
        raise ProtocolError("the peer did not send one request to join")
    try:
        asked = _request.decode(bodies[0])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed request to join: {error}") from None
    if asked.version != _VERSION:
        raise ProtocolError(
            f"this node speaks version {_VERSION} of the join protocol, the peer {asked.version}. Use the "
            "same release on both machines."
        )
    key = requested_key(asked.request)
    # The file of tokens, and the list of nodes, are written in threads. One admission at a time, so that the
    # name and the place are still free at its end; and to its end, so that what is counted is also recorded.
    async with identity.trust.admitting:
        with trio.CancelScope(shield=True):
            chain = await _recorded(identity, asked.name, key, number, taken, role=role, days=days)
    known = next(member for member in identity.trust.known if member.node == card_of(chain[0]).number)
    listed = (*(member for member in identity.trust.known if member is not known), known)
    statements_sent = _most_important(identity.trust.statements)
    document = identity.generations.document
    return Admitted(chain, identity.secret, statements_sent, listed, document), known


async def _recorded(
    identity: Identity,
    name: str,
    key: Ed25519PublicKey,
    token: int,
    taken: Callable[[str], bool],
    *,
    role: NodeRole,
    days: int,
) -> tuple[bytes, ...]:
    """Count a use of the token, then record a node of this name; return its chain.

    A request that fails before the use costs none. After a crash between the two, the use is counted and no
    node was admitted.
    """
    if taken(name):
        raise name_taken(name)
    chain = prepare_node(identity, name, key, role=role, days=days)
    await trio.to_thread.run_sync(tokens.use, identity.folder, token)
    # A node of this name may have connected meanwhile.
    if taken(name) or any(member.name == name for member in identity.trust.known):
        raise name_taken(name)
    await identity.trust.record(known_of(cards_of(chain)))
    return chain


def _most_important(listed: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return as many statements as fit into the answer, this node's first; others come with connections."""
    room, chosen = limits.TRUST_BYTES_MAX, []
    for statement in listed:
        if len(statement) <= room:
            room -= len(statement)
            chosen.append(statement)
    return tuple(chosen)


def requested_key(request: bytes) -> Ed25519PublicKey:
    """Return the key of a request for a certificate (DER). Raise ProtocolError if it is malformed."""
    try:
        read = x509.load_der_x509_csr(request)
        key = read.public_key()
        valid = read.is_signature_valid
    except Exception as error:  # noqa: BLE001 - the parser's exceptions have no common base
        raise ProtocolError(f"malformed certificate request: {error}") from None
    if not valid or not isinstance(key, Ed25519PublicKey):
        raise ProtocolError("the certificate request is not signed with an Ed25519 key")
    return key


async def _send(connection: Secured, message: Admitted | Refused) -> None:
    connection.send_nowait(frame_of(_encode(message)))
    await connection.flush()
