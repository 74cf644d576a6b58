"""Who a node is in its cluster: id, name, key, certificate, and the secret that all nodes share.

Not for: admitting nodes over the network (``dios.transport.identity.joining``), or whom to trust
(``dios.transport.identity.trust``). docs/joining.md specifies the files.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dios.errors import DamagedError, ExistsError, NotPermittedError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import (
    Card,
    CertificateRole,
    card_of,
    cards_of,
    chain_of_pem,
    check_name,
    check_signatures,
    key_digest,
    key_of_pem,
    make_authority,
    make_node,
    pem_of,
    pem_of_key,
    public_key_of,
)
from dios.transport.identity.trust import NO_REVOCATIONS, Known, Trust, roster_of

FOLDER: Final = "identity"
SECRET_BYTES: Final = 32


@dataclass(frozen=True, eq=False)
class Identity:
    """A node's identity, as it stands in its data directory. Its ``repr`` tells no secret."""

    node: NodeId
    name: str
    cluster: bytes
    """SHA-256 of the authority's certificate: what names the cluster."""
    secret: bytes = field(repr=False)
    """32 bytes that the cluster's nodes share, and nobody else has."""
    chain: tuple[bytes, ...] = field(repr=False)
    """Certificates (DER): this node's, its admitter's, and so on to the authority's."""
    trust: Trust = field(repr=False)
    folder: Path

    @property
    def revoked(self) -> frozenset[NodeId]:
        """The nodes that were revoked."""
        return self.trust.revoked

    @property
    def card(self) -> Card:
        """What this node's own certificate says."""
        return card_of(self.chain[0])

    def key(self) -> Ed25519PrivateKey:
        """Read the node's private key; raises DamagedError."""
        return key_of_pem((self.folder / "node.key").read_bytes())

    @cached_property
    def server_context(self) -> ssl.SSLContext:
        """TLS for a listener: asks for a certificate of this cluster."""
        context = bare_context(ssl.PROTOCOL_TLS_SERVER, self.chain[-1])
        # Who joins shows one certificate, signed by this node; the rest of its chain is here.
        for each in self.chain[:-1]:
            context.load_verify_locations(cadata=each)
        self._load_own(context)
        # A session that is resumed would skip the check of certificates.
        context.num_tickets = 0
        return context

    @cached_property
    def client_context(self) -> ssl.SSLContext:
        """TLS for dialling: shows this node's certificate, and asks for one of this cluster."""
        context = bare_context(ssl.PROTOCOL_TLS_CLIENT, self.chain[-1])
        self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.folder / "node.pem", self.folder / "node.key")
        except ssl.SSLError as error:
            raise DamagedError(
                f"key and certificate in {self.folder} do not belong together: {error}; put both back "
                "from a backup"
            ) from None


def bare_context(protocol: ssl._SSLMethod, authority: bytes) -> ssl.SSLContext:
    """TLS 1.3 that trusts one authority's chains and nothing else; names of hosts mean nothing here."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.load_verify_locations(cadata=authority)
    return context


def load_own(context: ssl.SSLContext, chain: Sequence[bytes], key: Ed25519PrivateKey) -> None:
    """Show this chain, with a key that is in no file; raises ssl.SSLError when they do not fit together."""
    # Python takes both from files alone; this one is in memory, and nobody else's.
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem_of(chain) + pem_of_key(key))
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def create_cluster(directory: Path, *, name: str) -> Identity:
    """Make a cluster with one node, named ``name``, in the data directory; all of it or nothing.

    The authority signs this node, and its key is forgotten: there is none that could be stolen. Raises
    ExistsError when the directory has an identity, InvalidError for what cannot be a name.
    """
    check_name(name)
    refuse_second(directory)
    root_key = Ed25519PrivateKey.generate()
    root = make_authority(_random_id(), "dios", root_key)
    key = Ed25519PrivateKey.generate()
    certificate = make_node(_random_id(), name, key.public_key(), root, root_key)
    return install(directory, key, (certificate, root), os.urandom(SECRET_BYTES))


def install(
    directory: Path,
    key: Ed25519PrivateKey,
    chain: tuple[bytes, ...],
    secret: bytes,
    revocations: bytes = NO_REVOCATIONS,
    known: tuple[Known, ...] = (),
) -> Identity:
    """Write a node's identity into its data directory, all of it or nothing, and load it.

    Raises ExistsError when there is one.
    """
    refuse_second(directory)
    me = known_of(card_of(chain[0]))
    files = {
        "authority.pem": pem_of(chain[-1:]),
        "node.pem": pem_of(chain[:-1]),
        "node.key": pem_of_key(key),
        "cluster.secret": secret,
        "epoch": b"0\n",
        "revoked": revocations,
        "known": roster_of({each.node: each for each in (*known, me)}.values()),
    }
    durable_files.install(directory / FOLDER, files)
    made = load(directory)
    assert made is not None, "what was installed is there"  # noqa: S101 - a broken promise of this module
    return made


def refuse_second(directory: Path) -> None:
    """Raise ExistsError when the data directory has an identity already."""
    if (directory / FOLDER).exists():
        raise ExistsError(
            f"{directory} belongs to a node of a cluster already; start it with `dios-node start --data "
            f"{directory}`, or choose another directory"
        )


def load(directory: Path) -> Identity | None:
    """The identity in a data directory; None for a lone node's, which has none.

    Raises DamagedError when it is incomplete or does not fit together, NotPermittedError when others may
    read its secrets.
    """
    folder = directory / FOLDER
    if not folder.exists():
        return None
    try:
        for private in ("node.key", "cluster.secret"):
            _refuse_open(folder / private)
        key = key_of_pem((folder / "node.key").read_bytes())
        chain = (
            *chain_of_pem((folder / "node.pem").read_bytes()),
            *chain_of_pem((folder / "authority.pem").read_bytes()),
        )
        secret = (folder / "cluster.secret").read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(
            f"{error.filename} is missing; put it back from a backup, or let the node join anew in another "
            "data directory"
        ) from None
    try:
        card = _check_chain(chain, key.public_key())
    except ProtocolError as error:
        raise DamagedError(f"the certificates in {folder} are damaged: {error.message}") from None
    if len(secret) != SECRET_BYTES:
        raise DamagedError(f"{folder / 'cluster.secret'} is damaged: it has not {SECRET_BYTES} bytes")
    return Identity(
        node=NodeId(card.number),
        name=card.name,
        cluster=hashlib.sha256(chain[-1]).digest(),
        secret=secret,
        chain=chain,
        trust=Trust(folder),
        folder=folder,
    )


def _refuse_open(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise NotPermittedError(
            f"{path} can be read by other users (mode {mode:04o}); a node does not use it like that. "
            f"If nobody has read it: `chmod 600 {path}`"
        )


def _check_chain(chain: tuple[bytes, ...], key: Ed25519PublicKey) -> Card:
    card = cards_of(chain)[0]
    check_signatures(chain)
    if card.role is not CertificateRole.NODE or card.key != key_digest(key):
        raise ProtocolError("the certificate is no node's, or not that of this key")
    return card


def next_epoch(directory: Path) -> int:
    """Count one start more of this node, durably, and say which it is: 1 for the first.

    Raises DamagedError when the counter cannot be read: a node never starts twice with one epoch.
    """
    path = directory / FOLDER / "epoch"
    try:
        epoch = int(path.read_text(encoding="ascii")) + 1
    except (ValueError, FileNotFoundError) as error:
        raise DamagedError(
            f"{path} does not say how often the node was started: {error}; write a number into it that is "
            "higher than any before"
        ) from None
    durable_files.write(path, b"%d\n" % epoch)
    return epoch


def sign_node(
    identity: Identity, name: str, key: Ed25519PublicKey, *, before: Callable[[], None] = lambda: None
) -> tuple[bytes, ...]:
    """Admit a node: give its key a new id and the name, and remember it. Returns its chain.

    ``before`` is called when nothing else can refuse it, and may. Raises InvalidError for the name,
    ExistsError when a node of that name is known, LimitError when this node can admit no more.
    """
    check_name(name)
    if any(each.name == name for each in identity.trust.known):
        raise name_taken(name)
    identity.trust.check_room()
    made = make_node(_random_id(), name, key, identity.chain[0], identity.key())
    before()
    identity.trust.note(known_of(card_of(made)))
    return (made, *identity.chain)


def name_taken(name: str) -> ExistsError:
    """The error for a name that a node of the cluster has."""
    return ExistsError(
        f"the cluster has a node named {name}; choose another name with --name, or, if that node is gone for "
        f"good, `dios node forget {name}` first"
    )


def admit_here(identity: Identity, directory: Path, *, name: str) -> Identity:
    """Admit a node whose data directory is on this machine, without a token or a connection.

    Raises what ``sign_node`` and ``install`` raise.
    """
    refuse_second(directory)
    key = Ed25519PrivateKey.generate()
    chain = sign_node(identity, name, key.public_key())
    return install(
        directory, key, chain, identity.secret, identity.trust.encode(), tuple(identity.trust.known)
    )


def renew(identity: Identity, certificate: bytes) -> tuple[bytes, ...]:
    """Sign a known node's certificate anew, same id, name and key: a chain through this node.

    For a node whose chain has become long, or goes through nodes that are gone. Raises NotPermittedError
    when that node is not known here, LimitError when this node can sign no more.
    """
    card = card_of(certificate)
    if known_of(card) not in identity.trust.known:
        raise NotPermittedError(f"{card.name} is not known here, or was revoked")
    key = public_key_of(certificate)
    return (make_node(card.number, card.name, key, identity.chain[0], identity.key()), *identity.chain)


def adopt(identity: Identity, chain: tuple[bytes, ...]) -> Identity:
    """Take over, durably, a chain that ``renew`` made elsewhere. Raises ProtocolError for another's."""
    card = _check_chain(chain, identity.key().public_key())
    if card != identity.card or chain[-1] != identity.chain[-1]:
        raise ProtocolError("the new chain is another node's, or another cluster's")
    durable_files.write(identity.folder / "node.pem", pem_of(chain[:-1]))
    made = load(identity.folder.parent)
    assert made is not None, "it is there"  # noqa: S101 - a broken promise of this module
    return made


def known_of(card: Card) -> Known:
    """What the lists keep of a node."""
    return Known(card.number, card.name, card.key)


def _random_id() -> int:
    # Never 0, which means no node.
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1
