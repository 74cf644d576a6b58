import os
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from dios import limits
from dios.errors import (
    DiosError,
    ExistsError,
    NotPermittedError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
)
from dios.transport.identity import durable_files, tokens
from dios.transport.identity.certificates import CertificateRole, card_of, make_node, make_root
from dios.transport.identity.identity import Identity, bare_context, known_of, load, load_own
from dios.transport.identity.joining import admit, context_of, join
from dios.transport.tcp.secured import PeerIdentity, Secured, frame_of
from dios.transport.tcp.tls import Listener, connect, dial
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import listening, make_cluster


def request(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, name: str = "n9") -> bytes:
    """A certificate request signed with this key."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    algorithm = None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .sign(key, algorithm)
        .public_bytes(Encoding.DER)
    )


def anybody(peer: PeerIdentity) -> None:
    """Whoever answers is welcome."""
    assert peer.role is CertificateRole.NODE


def altered(data: bytes) -> bytes:
    """The same with its last byte, a part of the signature, changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


@asynccontextmanager
async def held(listener: Listener, n1: Identity, text: str, nursery: trio.Nursery) -> AsyncIterator[Secured]:
    """A connection of whoever holds the token, who then sends what he likes."""
    peer, tls = await connect(listener.address, context_of(tokens.read(text)), n1.cluster, anybody)
    secured = Secured(tls, peer, nursery, None)
    try:
        yield secured
    finally:
        secured.close()


GOOD = request(Ed25519PrivateKey.generate())
HOSTILE: dict[str, bytes] = {
    "rubbish": os.urandom(64),
    "nothing": b"",
    "another message": msgspec.msgpack.encode(("admitted", 1, "n9", GOOD)),
    "too few fields": msgspec.msgpack.encode(("join", 1)),
    "another version": msgspec.msgpack.encode(("join", 1, "n9", GOOD)),
    "version 0": msgspec.msgpack.encode(("join", 0, "n9", GOOD)),
    "no name": msgspec.msgpack.encode(("join", 2, "../n9", GOOD)),
    "a name of lines": msgspec.msgpack.encode(("join", 2, "n9\n", GOOD)),
    "a name too long": msgspec.msgpack.encode(("join", 2, "n" * 64, GOOD)),
    "another's request": msgspec.msgpack.encode(("join", 2, "n9", altered(GOOD))),
    "no request": msgspec.msgpack.encode(("join", 2, "n9", b"\x30\x03\x02\x01\x00")),
    "another kind of key": msgspec.msgpack.encode(
        ("join", 2, "n9", request(ec.generate_private_key(ec.SECP256R1())))
    ),
    "a request too long": msgspec.msgpack.encode(("join", 2, "n9", bytes(8192))),
    "deep nesting": b"\x91" * 10_000,
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_request_gets_nothing(tmp_path: Path, sent: bytes) -> None:
    """Whoever holds a token and sends anything but a proper request is refused, and it counts as no use."""
    (n1,) = make_cluster(tmp_path, "n1")
    text = tokens.issue(n1)
    async with listening(n1) as (listener, nursery), held(listener, n1, text, nursery) as connection:
        connection.send_nowait(frame_of(sent))
        with pytest.raises(DiosError):
            await admit(n1, await listener.accept())
        (answer,) = await connection.receive()
        assert msgspec.msgpack.decode(answer)[0] == "refused"
        assert n1.secret not in answer
        assert await connection.receive() == []
    assert [known.name for known in n1.trust.known] == ["n1"]
    tokens.check(n1.folder, tokens.read(text).number)


async def test_two_requests_or_a_huge_one_get_nothing(tmp_path: Path) -> None:
    """A second request in the same breath, and a frame over the limit, end the connection."""
    (n1,) = make_cluster(tmp_path, "n1")
    proper = frame_of(msgspec.msgpack.encode(("join", 2, "n9", GOOD)))
    for sent in (proper + proper, frame_of(bytes(limits.JOIN_FRAME_BYTES_MAX + 1))[:64]):
        text = tokens.issue(n1)
        async with listening(n1) as (listener, nursery), held(listener, n1, text, nursery) as connection:
            connection.send_nowait(sent)
            with pytest.raises(ProtocolError):
                await admit(n1, await listener.accept())
    assert len(n1.trust.known) == 1


async def test_who_holds_a_token_and_is_silent_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joiner that never asks, and one that stops in the middle of its request, are ended in time."""
    monkeypatch.setattr(limits, "JOIN_MS_MAX", 100)
    (n1,) = make_cluster(tmp_path, "n1")
    for sent in (b"", frame_of(bytes(100))[:50]):
        text = tokens.issue(n1)
        async with listening(n1) as (listener, nursery), held(listener, n1, text, nursery) as connection:
            connection.send_nowait(sent)
            with pytest.raises(TimeLimitError):
                await admit(n1, await listener.accept())
            assert await connection.receive() == []


async def test_a_request_cannot_be_replayed(tmp_path: Path) -> None:
    """The same request sent again under the same token admits nobody a second time."""
    (n1,) = make_cluster(tmp_path, "n1")
    text = tokens.issue(n1)
    answers = []
    async with listening(n1) as (listener, nursery):
        for _ in range(2):
            async with held(listener, n1, text, nursery) as connection:
                connection.send_nowait(frame_of(msgspec.msgpack.encode(("join", 2, "n9", GOOD))))
                with suppress(NotPermittedError):
                    await admit(n1, await listener.accept())
                answers += [msgspec.msgpack.decode(body)[0] for body in await connection.receive()]
    assert answers == ["admitted", "refused"]
    assert len(n1.trust.known) == 2


# -- certificates in the wrong place ----------------------------------------------------------------
class Seen(NamedTuple):
    """Where a false node listens, and what it is told."""

    address: str
    told: list[bytes]


class Forger:
    """Whoever has the keys of a node, and makes certificates that no node would make."""

    def __init__(self, node: Identity) -> None:
        self.node = node
        self.key = Ed25519PrivateKey.generate()

    def signed(self, number: int, name: str = "forged") -> tuple[bytes, ...]:
        """A node's certificate with any id and name, signed as the node does."""
        certificate = make_node(number, name, self.key.public_key(), self.node.chain[0], self.node.key())
        return (certificate, *self.node.chain)

    def context(self, chain: tuple[bytes, ...], *, server: bool = False) -> ssl.SSLContext:
        """TLS that shows this chain, and believes what the node believes."""
        kind = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = bare_context(kind, self.node.chain[-1])
        load_own(context, chain[:-1], self.key)
        return context


def copied(words: bytes, signer: Identity, key: Ed25519PrivateKey, label: str = "") -> bytes:
    """A certificate in these words, or with another label, for this key, signed against the rules."""
    read = x509.load_der_x509_certificate(words)
    issuer = x509.load_der_x509_certificate(signer.chain[0]).subject
    times = read.not_valid_before_utc, read.not_valid_after_utc
    builder = x509.CertificateBuilder(issuer, read.subject, key.public_key(), read.serial_number, *times)
    for extension in read.extensions:
        value = extension.value
        if isinstance(value, x509.AuthorityKeyIdentifier):
            value = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key().public_key())
        if isinstance(value, x509.SubjectAlternativeName) and label:
            value = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(label)])
        builder = builder.add_extension(value, extension.critical)
    return builder.sign(signer.key(), None).public_bytes(Encoding.DER)


@asynccontextmanager
async def false_node(context: ssl.SSLContext, said: bytes = frame_of(b"")) -> AsyncIterator[Seen]:
    """Somebody who listens with this context, says this, and keeps what he is told; his address."""
    told: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, context, server_side=True)
        try:
            if not said:
                await tls.do_handshake()
                await tls.aclose()
                return
            await tls.send_all(said)
            while data := await tls.receive_some():
                told.append(bytes(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await trio.aclose_forcefully(tls)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        host, port = listener.socket.getsockname()
        yield Seen(f"{host}:{port}", told)
        nursery.cancel_scope.cancel()


async def test_a_token_is_no_node(tmp_path: Path) -> None:
    """Who connects with a token's certificate has role JOIN and the token's number, and is no known node."""
    (n1,) = make_cluster(tmp_path, "n1")
    text = tokens.issue(n1)
    async with listening(n1) as (listener, nursery), held(listener, n1, text, nursery):
        accepted = await listener.accept()
        assert accepted.peer.role is CertificateRole.JOIN
        assert accepted.peer.node == tokens.read(text).number
        accepted.close()
    assert [known.name for known in n1.trust.known] == ["n1"]


async def test_a_token_opens_one_door(tmp_path: Path) -> None:
    """Another node than the one that made it refuses a token, also when its holder does not mind."""
    n1, n2 = make_cluster(tmp_path)
    text = tokens.issue(n1)
    async with listening(n2) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="this is n2, and the invitation is for n1"):
            async with held(listener, n1, text, nursery):
                pass


async def test_a_node_does_not_join(tmp_path: Path) -> None:
    """A node's certificate is worth nothing where a token is asked for: no second identity."""
    n1, n2 = make_cluster(tmp_path)
    async with listening(n1) as (listener, nursery):
        dialled = await dial(listener.address, n2, nursery)
        dialled.send_nowait(frame_of(msgspec.msgpack.encode(("join", 2, "n9", GOOD))))
        with pytest.raises(NotPermittedError, match="already"):
            await admit(n1, await listener.accept())
        dialled.close()
    assert len(n1.trust.known) == 2


async def test_a_token_serves_nobody(tmp_path: Path) -> None:
    """Who listens with a token's certificate is refused by nodes and by who joins, and is told nothing."""
    n1, n2 = make_cluster(tmp_path)
    text = tokens.issue(n1)
    forger = Forger(n1)
    forger.key = tokens.read(text).key
    context = forger.context((tokens.read(text).certificate, *n1.chain), server=True)
    async with false_node(context) as (address, told), trio.open_nursery() as nursery:
        with pytest.raises(NotPermittedError, match="not a node of this cluster"):
            await dial(address, n2, nursery)
        with pytest.raises(NotPermittedError, match="not a node of this cluster"):
            await join(address, tokens.issue(n1), name="n9", directory=tmp_path / "n9")
    assert told == []


@pytest.mark.parametrize(
    "label", ["dios:join:000000000000004d", "dios:authority:000000000000004d", "dios:king:000000000000004d"]
)
async def test_only_the_role_of_a_node_is_one(tmp_path: Path, label: str) -> None:
    """A certificate with everything that a node's has but the role is no node's, whoever signed it."""
    n1, n2 = make_cluster(tmp_path)
    forger = Forger(n1)
    certificate = copied(forger.signed(77)[0], n1, forger.key, label)
    false = forger.context((certificate, *n1.chain), server=True)
    async with false_node(false) as (address, told), trio.open_nursery() as nursery:
        with pytest.raises(DiosError, match=r"not a node|roles|not of a cluster"):
            await dial(address, n2, nursery)
    assert told == []


@pytest.mark.parametrize(
    ("number", "name"), [(0, "n9"), (2**63, "n9"), (7, "n9\n"), (7, "../n9"), (7, "n" * 64), (7, "ñ")]
)
async def test_no_node_has_such_an_id_or_name(tmp_path: Path, number: int, name: str) -> None:
    """What a node signs with an id or name that none can have is refused, and is not remembered."""
    n1, n2 = make_cluster(tmp_path)
    forger = Forger(n1)
    chain = forger.signed(number, name)
    async with listening(n2) as (listener, _):
        with pytest.raises(NotPermittedError, match="another kind of id and name"):
            await connect(listener.address, forger.context(chain), n1.cluster, anybody)
    again = load(tmp_path / "n2")
    assert again is not None
    assert len(again.trust.known) == 2


async def test_who_does_not_accept_is_no_peer(tmp_path: Path) -> None:
    """A node that ends the connection, or babbles, where it should say that it accepts, is not spoken to."""
    n1, n2 = make_cluster(tmp_path)
    for said, error in (
        (b"", UnreachableError),
        (frame_of(b"") * 2, ProtocolError),
        (b"\xff" * 4, ProtocolError),
    ):
        async with false_node(n1.server_context, said) as (address, _), trio.open_nursery() as nursery:
            with pytest.raises(error):
                await dial(address, n2, nursery)


async def test_a_token_signs_nobody(tmp_path: Path) -> None:
    """A certificate that was signed with a token's key is refused."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.read(tokens.issue(n1))
    forger = Forger(n1)
    certificate = make_node(77, "n9", forger.key.public_key(), n1.chain[0], token.key)
    for chain in ((certificate, token.certificate, *n1.chain), (certificate, *n1.chain)):
        async with listening(n1) as (listener, _):
            with pytest.raises(NotPermittedError, match="refuses this node"):
                await connect(listener.address, forger.context(chain), n1.cluster, anybody)


async def test_a_chain_is_not_longer_than_its_signers_allow(tmp_path: Path) -> None:
    """A node at the end of the longest chain that signs another all the same gains nothing."""
    names = " ".join(f"n{number}" for number in range(1, limits.CHAIN_CERTIFICATES_MAX))
    nodes = make_cluster(tmp_path, names, in_a_row=True)
    first, last = nodes[0], nodes[-1]
    forger = Forger(last)
    # Signed by the last, in the words of one that has room.
    words = make_node(77, "n99", forger.key.public_key(), first.chain[0], first.key())
    certificate = copied(words, last, forger.key)
    async with listening(first) as (listener, _):
        with pytest.raises(NotPermittedError, match="refuses this node"):
            await connect(
                listener.address, forger.context((certificate, *last.chain)), first.cluster, anybody
            )


async def test_a_node_cannot_pass_for_another(tmp_path: Path) -> None:
    """A node that signs itself a certificate with a known node's id is refused at both ends."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    n3.trust.note(known_of(n2.cards))
    forger = Forger(n1)
    chain = forger.signed(n2.node, "n2")
    async with listening(n3) as (listener, _):
        with pytest.raises(NotPermittedError, match="another key than before"):
            await connect(listener.address, forger.context(chain), n1.cluster, anybody)
    async with (
        false_node(forger.context(chain, server=True)) as (address, told),
        trio.open_nursery() as nursery,
    ):
        with pytest.raises(NotPermittedError, match="another key than before"):
            await dial(address, n3, nursery, expect=n2.node)
    assert told == []


async def test_a_revoked_node_does_not_come_back_under_another_name(tmp_path: Path) -> None:
    """What a revoked node signs for itself afterwards, with a new id and key, opens nothing anywhere."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3", role=NodeRole.AUTHORITY)
    await n1.trust.remove(n2.node)
    await n3.trust.accept(n1.trust.statements[0])
    forger = Forger(n2)
    chain = forger.signed(77, "innocent")
    for node in (n1, n3):
        async with listening(node) as (listener, _):
            with pytest.raises(NotPermittedError, match="was admitted by n2, which was revoked"):
                await connect(listener.address, forger.context(chain), n1.cluster, anybody)


async def test_a_revoked_nodes_tokens_are_worth_nothing(tmp_path: Path) -> None:
    """Nobody gets in by a token that a revoked node made, whoever is asked."""
    n1, n2 = make_cluster(tmp_path, role=NodeRole.AUTHORITY)
    text = tokens.issue(n2)
    await n1.trust.remove(n2.node)
    async with listening(n1) as (listener, _):
        with pytest.raises(NotPermittedError, match="this is n1, and the invitation is for n2"):
            await join(listener.address, text, name="n9", directory=tmp_path / "n9")


async def test_an_authority_of_the_same_name_is_another(tmp_path: Path) -> None:
    """A cluster made to look alike, name by name and number by number, has another key and opens nothing."""
    (n1,) = make_cluster(tmp_path, "n1")
    authority = card_of(n1.chain[-1])
    root_key, forger = Ed25519PrivateKey.generate(), Forger(n1)
    root = make_root(authority.number, authority.name, root_key)
    certificate = make_node(n1.node, "n1", forger.key.public_key(), root, root_key)
    async with listening(n1) as (listener, _):
        with pytest.raises(NotPermittedError, match="refuses this node"):
            await connect(listener.address, forger.context((certificate, root, root)), n1.cluster, anybody)


# -- false answers ----------------------------------------------------------------------------------
def answers(n1: Identity, other: Identity, asked: Ed25519PublicKey) -> dict[str, bytes]:
    """What a false node might say to who asks with this key."""
    key = Ed25519PrivateKey.generate().public_key()
    good = (make_node(77, "n9", asked, n1.chain[0], n1.key()), *n1.chain)
    rest = (n1.secret, n1.trust.statements, ())
    chains: dict[str, tuple[bytes, ...]] = {
        "another key's certificate": (make_node(77, "n9", key, n1.chain[0], n1.key()), *n1.chain),
        "another name's": (make_node(77, "n8", asked, n1.chain[0], n1.key()), *n1.chain),
        "another cluster's": (make_node(77, "n9", asked, other.chain[0], other.key()), *other.chain),
        "one that nobody signed": (altered(good[0]), *n1.chain),
        "no chain": (),
        "a chain of rubbish": (b"\x30", b"\x30"),
    }
    return {
        **{kind: msgspec.msgpack.encode(("admitted", chain, *rest)) for kind, chain in chains.items()},
        "rubbish": os.urandom(100),
        "nothing": b"",
        "a short secret": msgspec.msgpack.encode(("admitted", good, b"short", *rest[1:])),
        "rubbish for a list": msgspec.msgpack.encode(("admitted", good, rest[0], (b"\xc1",), ())),
        "a request": msgspec.msgpack.encode(("join", 2, "n9", GOOD)),
    }


async def test_a_false_answer_makes_no_node(tmp_path: Path) -> None:
    """Whatever a false node answers to who joins, no identity comes of it."""
    (n1,), (other,) = make_cluster(tmp_path / "a", "n1"), make_cluster(tmp_path / "b", "n1")
    for kind in answers(n1, other, n1.key().public_key()):
        async with listening(n1) as (listener, nursery):

            async def answer_falsely(listener: Listener = listener, kind: str = kind) -> None:
                connection = await listener.accept()
                (body,) = await connection.receive()
                read = x509.load_der_x509_csr(msgspec.msgpack.decode(body)[3]).public_key()
                assert isinstance(read, Ed25519PublicKey)
                connection.send_nowait(frame_of(answers(n1, other, read)[kind]))
                await connection.flush()
                connection.close()

            nursery.start_soon(answer_falsely)
            with pytest.raises(ProtocolError):
                await join(listener.address, tokens.issue(n1), name="n9", directory=tmp_path / "n9")
        assert not (tmp_path / "n9").exists(), kind


async def test_one_use_admits_one_of_many_at_a_time(tmp_path: Path) -> None:
    """Eight machines show the same token at once, which admits one: one is admitted and recorded."""
    (n1,) = make_cluster(tmp_path, "n1")
    text = tokens.issue(n1)
    answers: list[str] = []

    async def ask(listener: Listener, name: str, nursery: trio.Nursery) -> None:
        async with held(listener, n1, text, nursery) as connection:
            sent = request(Ed25519PrivateKey.generate(), name)
            connection.send_nowait(frame_of(msgspec.msgpack.encode(("join", 2, name, sent))))
            answers.extend(msgspec.msgpack.decode(body)[0] for body in await connection.receive())

    async def serve(secured: Secured) -> None:
        with suppress(NotPermittedError):
            await admit(n1, secured)

    async with listening(n1) as (listener, nursery), trio.open_nursery() as joining:
        for number in range(8):
            joining.start_soon(ask, listener, f"n{number + 2}", nursery)
        for _ in range(8):
            joining.start_soon(serve, await listener.accept())
    assert sorted(answers) == ["admitted"] + ["refused"] * 7
    assert len(n1.trust.known) == 2
    stored = load(tmp_path / "n1")
    assert stored is not None
    assert {known.name for known in stored.trust.known} == {known.name for known in n1.trust.known}


async def test_two_tokens_admit_no_two_nodes_of_one_name(tmp_path: Path) -> None:
    """Two machines with a token each ask for one name at once: one token stays unused."""
    (n1,) = make_cluster(tmp_path, "n1")
    texts = [tokens.issue(n1) for _ in range(2)]
    answers: list[str] = []

    async def ask(listener: Listener, text: str, nursery: trio.Nursery) -> None:
        async with held(listener, n1, text, nursery) as connection:
            sent = request(Ed25519PrivateKey.generate())
            connection.send_nowait(frame_of(msgspec.msgpack.encode(("join", 2, "n9", sent))))
            answers.extend(msgspec.msgpack.decode(body)[0] for body in await connection.receive())

    async def serve(secured: Secured) -> None:
        with suppress(ExistsError):
            await admit(n1, secured)

    async with listening(n1) as (listener, nursery), trio.open_nursery() as joining:
        for text in texts:
            joining.start_soon(ask, listener, text, nursery)
        for _ in texts:
            joining.start_soon(serve, await listener.accept())
    assert sorted(answers) == ["admitted", "refused"]
    unused = 0
    for text in texts:
        with suppress(NotPermittedError):
            tokens.check(n1.folder, tokens.read(text).number)
            unused += 1
    assert unused == 1


async def test_the_loop_goes_on_while_an_admission_waits_for_the_disk(tmp_path: Path) -> None:
    """A command holds the lock of the tokens: the machine waits, and the node's loop does not."""
    (n1,) = make_cluster(tmp_path, "n1")
    text = tokens.issue(n1)
    locked, free = threading.Event(), threading.Event()

    def hold() -> None:
        with durable_files.locked(n1.folder):
            locked.set()
            free.wait()

    async with listening(n1) as (listener, nursery), held(listener, n1, text, nursery) as connection:
        connection.send_nowait(frame_of(msgspec.msgpack.encode(("join", 2, "n9", GOOD))))
        secured = await listener.accept()
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.to_thread.run_sync, hold)
            while not locked.is_set():
                await trio.lowlevel.checkpoint()
            inner.start_soon(admit, n1, secured)
            for _ in range(100):  # passes of the loop, which would not come back from the first one
                await trio.lowlevel.checkpoint()
            assert len(n1.trust.known) == 1
            free.set()
        (answer,) = await connection.receive()
    assert msgspec.msgpack.decode(answer)[0] == "admitted"
