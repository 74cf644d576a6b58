"""The identity of a node in its cluster: id, name, key, certificates, and the secret that all nodes share.

``docs/clusters.md`` specifies the files. ``dios.transport.identity.joining`` admits nodes over the network,
``dios.transport.identity.trust`` has the trusted nodes.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dios import limits
from dios.errors import DamagedError, ExistsError, InvalidError, NotPermittedError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import (
    CertificateDetails,
    CertificateRole,
    admission_of,
    card_of,
    cards_of,
    chain_of_pem,
    check_name,
    check_signatures,
    key_digest,
    key_of_pem,
    life_of,
    make_node,
    make_root,
    pem_of,
    pem_of_key,
)
from dios.transport.identity.generations import FILE as GENERATIONS_FILE
from dios.transport.identity.generations import SECRET_BYTES, GenerationStore, KnownGenerations, file_of
from dios.transport.identity.generations import read as read_generations
from dios.transport.identity.trust import Known, Trust, roster_of, statements_of
from dios.trusted_files import require_trusted
from dios.wire.node_roles import NodeRight, NodeRole

FOLDER: Final = "identity"
RENEWAL_PROTOCOL: Final = "dios-renewal-1"
"""The protocol (ALPN) of a connection on which a node gets its next certificate."""
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the ssl module does not name."""


@dataclass(frozen=True, eq=False)
class Identity:
    """A node's identity, as stored in its data directory. Its ``repr`` contains no secret."""

    node: NodeId
    name: str
    cluster: bytes
    """The SHA-256 of the root's certificate, which identifies the cluster."""
    secret: bytes = field(repr=False)
    """The cluster's first secret: 32 bytes that only its nodes, and those that were removed, have."""
    chain: tuple[bytes, ...] = field(repr=False)
    """The certificates (DER): this node's, that of its admitter, and so on to the root's."""
    trust: Trust = field(repr=False)
    generations: GenerationStore = field(repr=False)
    """The later secrets of the cluster, with which nodes seal."""
    folder: Path

    @property
    def revoked(self) -> frozenset[NodeId]:
        """Return the revoked nodes."""
        return self.trust.revoked

    @property
    def cards(self) -> tuple[CertificateDetails, ...]:
        """Return the content of this node's certificate, and of those above it when it was admitted."""
        return cards_of(self.chain)

    @property
    def card(self) -> CertificateDetails:
        """Return the content of this node's own certificate."""
        return card_of(self.chain[0])

    def key(self) -> Ed25519PrivateKey:
        """Read the node's private key; raises DamagedError."""
        return key_of_pem((self.folder / "node.key").read_bytes())

    @cached_property
    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of a listener, which requires a certificate of this cluster."""
        context = bare_context(ssl.PROTOCOL_TLS_SERVER, self.chain[-1])
        # A joining machine has one certificate, signed by this node; the rest of its chain is here.
        for certificate in self.chain[:-1]:
            context.load_verify_locations(cadata=certificate)
        self._load_own(context)
        # A resumed session would skip the check of certificates.
        context.num_tickets = 0
        context.set_alpn_protocols([RENEWAL_PROTOCOL])
        return context

    @cached_property
    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context to connect with this node's certificate, requiring one of the cluster."""
        context = bare_context(ssl.PROTOCOL_TLS_CLIENT, self.chain[-1])
        self._load_own(context)
        return context

    @cached_property
    def renewal_context(self) -> ssl.SSLContext:
        """Return the TLS context to connect with a node that signs, for this node's next certificate."""
        context = bare_context(ssl.PROTOCOL_TLS_CLIENT, self.chain[-1])
        self._load_own(context)
        context.set_alpn_protocols([RENEWAL_PROTOCOL])
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.folder / "node.pem", self.folder / "node.key")
        except ssl.SSLError as error:
            raise DamagedError(
                f"the key and the certificate in {self.folder} do not match: {error}. Restore both "
                "from a backup."
            ) from None


def bare_context(protocol: ssl._SSLMethod, authority: bytes) -> ssl.SSLContext:
    """Return a TLS 1.3 context that trusts one root's chains only; host names are not checked.

    Neither are ends: its user judges them (``certificates.end_of``), with a tolerance and a reason.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.verify_flags |= _NO_CHECK_TIME
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.load_verify_locations(cadata=authority)
    return context


def load_own(context: ssl.SSLContext, chain: Sequence[bytes], key: Ed25519PrivateKey) -> None:
    """Load this chain and a key that is in no file; ssl.SSLError if they do not match."""
    # Python loads both from files only; this file is in memory and private.
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem_of(chain) + pem_of_key(key))
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def create_cluster(directory: Path, *, name: str, root_key_file: Path | None = None) -> Identity:
    """Create a cluster with one node ``name`` in the data directory, completely or not at all.

    The root of the cluster signs this node, which is an authority. The root's key is forgotten, so that it
    cannot be stolen, or written into the new file ``root_key_file`` first, for ``authorize``. Raises
    ExistsError if the directory has an identity or there is that file, InvalidError for an invalid name,
    OSError.
    """
    check_name(name)
    refuse_second(directory)
    root_key = Ed25519PrivateKey.generate()
    root = make_root(_random_id(), "dios", root_key)
    key = Ed25519PrivateKey.generate()
    certificate = make_node(_random_id(), name, key.public_key(), root, root_key, role=NodeRole.AUTHORITY)
    if root_key_file is not None:
        _write_new(root_key_file, pem_of_key(root_key))
    return install(directory, key, (certificate, root), os.urandom(SECRET_BYTES))


def _write_new(path: Path, data: bytes) -> None:
    if path.exists():
        raise ExistsError(f"{path} exists. Choose another file for the key of the new cluster.")
    durable_files.write(path, data)


def authorize(directory: Path, root_key_file: Path) -> Identity:
    """Make the stopped node in ``directory`` an authority, with the key of its cluster's root.

    Its new certificate is stored durably before the old one goes. Raises DamagedError if the file has no
    key, NotPermittedError if it has the key of another cluster, InvalidError if the node is in no cluster,
    OSError.
    """
    own = load(directory)
    if own is None:
        raise InvalidError(f"the node in {directory} is in no cluster")
    require_trusted(root_key_file, "the key of the cluster's root")
    _refuse_open(root_key_file)
    root_key = key_of_pem(root_key_file.read_bytes())
    if key_digest(root_key.public_key()) != card_of(own.chain[-1]).key:
        raise NotPermittedError(f"{root_key_file} has the key of another cluster than that of {own.name}")
    certificate = make_node(
        own.node, own.name, own.key().public_key(), own.chain[-1], root_key, role=NodeRole.AUTHORITY
    )
    return _stored(own, (certificate, own.chain[-1]))


def install(
    directory: Path,
    key: Ed25519PrivateKey,
    chain: tuple[bytes, ...],
    secret: bytes,
    statements: tuple[bytes, ...] = (),
    known: tuple[Known, ...] = (),
    generations: bytes = b"",
) -> Identity:
    """Write a node's identity into its data directory, completely or not at all, and load it.

    Raises ExistsError if there is one.
    """
    refuse_second(directory)
    me = known_of(cards_of(chain))
    files = {
        "authority.pem": pem_of(chain[-1:]),
        "node.pem": pem_of(chain[:-1]),
        "node.key": pem_of_key(key),
        "cluster.secret": secret,
        "epoch": b"0\n",
        "revoked": statements_of(statements),
        "known": roster_of({member.node: member for member in (*known, me)}.values()),
    }
    if generations:
        document = read_generations(generations, chain[-1])
        files[GENERATIONS_FILE] = file_of(KnownGenerations(document))
    durable_files.install(directory / FOLDER, files)
    installed = load(directory)
    assert installed is not None, "what was installed is there"  # noqa: S101 - a broken promise of this module
    return installed


def refuse_second(directory: Path) -> None:
    """Raise ExistsError if the data directory has an identity."""
    if (directory / FOLDER).exists():
        raise ExistsError(
            f"{directory} belongs to a node of a cluster. Start it with `dios-node start --data "
            f"{directory}`, or choose another directory."
        )


def load(directory: Path) -> Identity | None:
    """Return the identity in a data directory; None for a single node without a cluster.

    Raises DamagedError if it is incomplete or inconsistent, NotPermittedError if others may read its secrets.
    """
    folder = directory / FOLDER
    if not folder.exists():
        return None
    require_trusted(folder, "the node's identity")
    try:
        for private in ("node.key", "cluster.secret"):
            _refuse_open(folder / private)
        if (folder / GENERATIONS_FILE).exists():
            _refuse_open(folder / GENERATIONS_FILE)
        key = key_of_pem((folder / "node.key").read_bytes())
        chain = (
            *chain_of_pem((folder / "node.pem").read_bytes()),
            *chain_of_pem((folder / "authority.pem").read_bytes()),
        )
        secret = (folder / "cluster.secret").read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(
            f"{error.filename} is missing. Restore it from a backup, or let the node join again with another "
            "data directory."
        ) from None
    try:
        card = _check_chain(chain, key.public_key())
    except ProtocolError as error:
        raise DamagedError(f"the certificates in {folder} are damaged: {error.message}") from None
    if len(secret) != SECRET_BYTES:
        raise DamagedError(f"{folder / 'cluster.secret'} is damaged: it must have {SECRET_BYTES} bytes")
    trust = Trust(folder, chain)
    return Identity(
        node=NodeId(card.number),
        name=card.name,
        cluster=hashlib.sha256(chain[-1]).digest(),
        secret=secret,
        chain=chain,
        trust=trust,
        generations=GenerationStore(folder, trust),
        folder=folder,
    )


def _refuse_open(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise NotPermittedError(
            f"{path} can be read by other users (mode {mode:04o}), so the node does not use it. "
            f"If nobody has read it: `chmod 600 {path}`"
        )


def _check_chain(chain: tuple[bytes, ...], key: Ed25519PublicKey) -> CertificateDetails:
    card = cards_of(chain)[0]
    check_signatures(chain)
    if card.role is not CertificateRole.NODE or card.key != key_digest(key):
        raise ProtocolError("the certificate is not that of a node with this key")
    return card


def next_epoch(directory: Path) -> int:
    """Count one more start of this node durably, and return the number, 1 for the first start.

    Raises DamagedError if the counter cannot be read: a node must never start twice with one epoch.
    """
    path = directory / FOLDER / "epoch"
    try:
        epoch = int(path.read_text(encoding="ascii")) + 1
    except (ValueError, FileNotFoundError) as error:
        raise DamagedError(
            f"cannot read the number of starts from {path}: {error}. Write a number into it that is "
            "higher than any before."
        ) from None
    if not 1 <= epoch <= limits.EPOCH_MAX:
        raise DamagedError(
            f"cannot start: {path} counts {epoch - 1} starts, which is not from 0 to {limits.EPOCH_MAX - 1}. "
            "Write a number into it that is higher than any before, or join the cluster again with a new "
            "data directory."
        )
    durable_files.write(path, b"%d\n" % epoch)
    return epoch


def sign_node(
    identity: Identity,
    name: str,
    key: Ed25519PublicKey,
    *,
    role: NodeRole = NodeRole.MEMBER,
    days: int = limits.CERTIFICATE_DAYS,
) -> tuple[bytes, ...]:
    """Admit a node: give its key a new id and the name, and record it. Returns its chain.

    This blocks until the record is on disk. Raises the errors of ``prepare_node``.
    """
    chain = prepare_node(identity, name, key, role=role, days=days)
    identity.trust.note(known_of(cards_of(chain)))
    return chain


def prepare_node(
    identity: Identity,
    name: str,
    key: Ed25519PublicKey,
    *,
    role: NodeRole = NodeRole.MEMBER,
    days: int = limits.CERTIFICATE_DAYS,
) -> tuple[bytes, ...]:
    """Return the chain of a new node with this key, name and role, which nothing records so far.

    Raises InvalidError for the name, ExistsError if a node of that name is known, LimitError if this node can
    admit no more, NotPermittedError if its role does not let it sign.
    """
    check_name(name)
    if any(member.name == name for member in identity.trust.known):
        raise name_taken(name)
    identity.trust.check_room()
    certificate = make_node(
        _random_id(), name, key, identity.chain[0], identity.key(), role=role, life=life_of(days)
    )
    return (certificate, *identity.chain)


def name_taken(name: str) -> ExistsError:
    """Return the error for a name that a node of the cluster has."""
    return ExistsError(
        f"the cluster has a node named {name}. Choose another name with --name, or, if that node is gone for "
        f"good, `dios node forget {name}` first."
    )


def admit_here(
    identity: Identity,
    directory: Path,
    *,
    name: str,
    role: NodeRole = NodeRole.MEMBER,
    days: int = limits.CERTIFICATE_DAYS,
) -> Identity:
    """Admit a node whose data directory is on this machine, without a token or a connection.

    Raises the errors of ``sign_node`` and ``install``.
    """
    refuse_second(directory)
    key = Ed25519PrivateKey.generate()
    chain = sign_node(identity, name, key.public_key(), role=role, days=days)
    return install(
        directory,
        key,
        chain,
        identity.secret,
        identity.trust.statements,
        tuple(identity.trust.known),
        identity.generations.document,
    )


def renew(
    identity: Identity,
    chain: Sequence[bytes],
    key: Ed25519PublicKey,
    *,
    days: int = limits.CERTIFICATE_DAYS,
    now_s: float | None = None,
) -> tuple[bytes, ...]:
    """Sign a known node's certificate again, with the same id, name, key and role; return its new chain.

    ``chain`` must be verified. The new certificate ends ``days`` after ``now_s``, this machine's clock in
    seconds since 1970, and contains the certificates with which the node was admitted, as far as they are
    not this node's as well. Raises NotPermittedError if that node is not known here, signs others itself,
    or this node's role does not let it sign, LimitError if this node can sign no more.
    """
    card, admission = card_of(chain[0]), admission_of(tuple(chain))
    if (card.number, card.key) not in {(known.node, known.key) for known in identity.trust.known}:
        raise NotPermittedError(f"{card.name} is not known here, or was revoked")
    if key_digest(key) != card.key:
        raise ProtocolError(f"{card.name} asked for a certificate for another key than its own")
    if card.may(NodeRight.SIGN):
        raise NotPermittedError(f"{card.name} is an authority, whose certificate has no end")
    shared = 0
    for its, own in zip(reversed(admission), reversed(identity.chain), strict=False):
        if its != own:
            break
        shared += 1
    foreign = admission[: len(admission) - shared]
    certificate = make_node(
        card.number,
        card.name,
        key,
        identity.chain[0],
        identity.key(),
        role=card.node_role,
        life=life_of(days, now_s),
        # Its first signer renews it: the new chain says all.
        admission=() if admission[1:] == identity.chain else foreign,
    )
    return (certificate, *identity.chain)


def adopt(identity: Identity, chain: tuple[bytes, ...]) -> Identity:
    """Store a chain that ``renew`` made at another node, durably; return the identity with it.

    The list of known nodes stays the same object, so that connections go on. Raises ProtocolError for another
    node's chain, or one with another admission.
    """
    card = _check_chain(chain, identity.key().public_key())
    if not card.is_same_node(identity.card) or chain[-1] != identity.chain[-1]:
        raise ProtocolError("the new chain is of another node or another cluster")
    if admission_of(chain)[1:] != admission_of(identity.chain)[1:]:
        raise ProtocolError("the new chain does not say who admitted this node")
    return _stored(identity, chain)


def _stored(identity: Identity, chain: tuple[bytes, ...]) -> Identity:
    durable_files.write(identity.folder / "node.pem", pem_of(chain[:-1]))
    identity.trust.adopt(chain)
    return replace(identity, chain=chain)


def known_of(chain: Sequence[CertificateDetails]) -> Known:
    """Return the entry of the node with these certificates in the list of known nodes."""
    card = chain[0]
    return Known(card.number, card.name, card.key, tuple(admitter.number for admitter in chain[1:-1]))


def _random_id() -> int:
    # Never 0, which means no node.
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1
