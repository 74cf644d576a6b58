"""The certificates of a cluster: creating and reading them, and the order in which they may follow.

Three kinds: the *root* of the cluster signs its first node; *nodes* have a role, which says if they sign
others; *join* certificates are part of a token and sign nothing. Certificates of nodes that sign have no end,
because nobody else could renew the first. All others end. TLS does not judge times, because clocks differ:
``end_of`` does, with a tolerance and with a reason for the operator. A certificate that another authority
than the first one signed again contains the admission, and the admission is judged (``admission_of``).
``dios.transport.identity.trust`` has the trusted nodes, ``dios.transport.identity.identity`` stores the
certificates.
"""

from __future__ import annotations

import enum
import hashlib
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError, NotPermittedError, ProtocolError
from dios.wire.node_roles import NodeRight, NodeRole, refusal, roles_of

_FROM: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_LABEL: Final = re.compile(r"dios:(authority|node|join):([0-9a-f]{16})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CARDS_KEPT: Final = 4 * limits.NODES_MAX
_ADMISSION: Final = x509.ObjectIdentifier("2.25.164985442046512543004708155346357492292")
"""The extension of a certificate that was signed again; its number is a UUID (X.667)."""
_LONG: Final = b"\x30\x82"
"""The beginning of a sequence of 256 to 65,535 bytes in DER; the number of bytes follows in two."""


class CertificateRole(enum.StrEnum):
    """The kind of a certificate's owner."""

    ROOT = "authority"
    NODE = "node"
    JOIN = "join"


class CertificateDetails(NamedTuple):
    """The content of one certificate that matters to the cluster."""

    role: CertificateRole
    number: int
    """The id of a node, or the number of a token or of the root."""
    name: str
    key: bytes
    """SHA-256 of the public key."""
    node_role: NodeRole = NodeRole.MEMBER
    """The roles of a node; of no meaning for others."""
    since_s: int = 0
    """The time at which it was signed, seconds since 1970 by its signer's clock; 0 if it has no end."""
    until_s: int | None = None
    """The time at which it ends, by the same clock; None for no end."""
    admission: tuple[bytes, ...] = ()
    """The certificates (DER) of a renewed node's admission that its chain does not have, its own first."""

    def may(self, right: NodeRight) -> bool:
        """Return True if it is the certificate of a node with this right."""
        return self.role is CertificateRole.NODE and right in self.node_role.rights

    def why_not(self, right: NodeRight) -> str:
        """Return the sentence that refuses its owner an act without this right; empty if it has the right."""
        return "" if self.may(right) else refusal(self.name, str(self.node_role), right)

    @property
    def renewal_s(self) -> float | None:
        """The time from which its owner asks for the next one, at half of its life; None for no end."""
        return None if self.until_s is None else (self.since_s + self.until_s) / 2

    def is_same_node(self, other: CertificateDetails) -> bool:
        """Return True if another certificate is for the same node, name, key and role."""
        return self._undated() == other._undated()

    def _undated(self) -> CertificateDetails:
        return self._replace(since_s=0, until_s=None, admission=())


def is_name(name: str) -> bool:
    """Return True if a node can have this name."""
    return len(name) <= limits.NODE_NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return a node's name; raise InvalidError unless it has only letters, digits, ``.``, ``_`` and ``-``."""
    if not is_name(name):
        raise InvalidError(
            f"{name[:80]!r} cannot be a node's name. Use 1 to {limits.NODE_NAME_BYTES_MAX} letters, digits, "
            "'.', '_' or '-', and begin with a letter or digit."
        )
    return name


def key_digest(key: Ed25519PublicKey) -> bytes:
    """Return the SHA-256 of a public key, as in cards."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def public_key_of(certificate: bytes) -> Ed25519PublicKey:
    """Return the key of a certificate; ProtocolError if it is of another kind."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise ProtocolError("the key is not an Ed25519 key")
    return key


def pem_of_key(key: Ed25519PrivateKey) -> bytes:
    """Return a private key as PEM text."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_of_pem(data: bytes) -> Ed25519PrivateKey:
    """Return the private key of a PEM text; raises DamagedError."""
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"this is not a private key: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise DamagedError("this private key is not an Ed25519 key")
    return key


def pem_of(chain: Sequence[bytes]) -> bytes:
    """Return certificates as PEM text, in their order."""
    return b"".join(
        x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM) for certificate in chain
    )


def chain_of_pem(data: bytes) -> tuple[bytes, ...]:
    """Return the certificates of a PEM text; raises DamagedError."""
    try:
        certificates = x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise DamagedError(f"these are not certificates: {error}") from None
    return tuple(certificate.public_bytes(Encoding.DER) for certificate in certificates)


@lru_cache(maxsize=_CARDS_KEPT)
def card_of(certificate: bytes) -> CertificateDetails:
    """Read one certificate; raises ProtocolError if no node could have made it."""
    try:
        read = x509.load_der_x509_certificate(certificate)
        names = read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        labels = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (label,) = labels.get_values_for_type(x509.UniformResourceIdentifier)
        key = read.public_key()
        units = [
            str(unit.value) for unit in read.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        ]
        signs = read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        since_s, until_s = _life(read)
        node_role = _node_role(units, signs=signs)
        admission = _admission_in(read)
    except Exception as error:  # noqa: BLE001 - the parser's exceptions have no common base
        raise ProtocolError(f"the certificate is not of a cluster: {error}") from None
    match = _LABEL.fullmatch(label)
    if match is None or len(names) != 1 or not isinstance(key, Ed25519PublicKey):
        raise ProtocolError("the certificate is not of a cluster: it has no role, or another kind of key")
    role = CertificateRole(match[1])
    card = CertificateDetails(
        role,
        int(match[2], 16),
        str(names[0].value),
        key_digest(key),
        node_role if role is CertificateRole.NODE else NodeRole.MEMBER,
        since_s,
        until_s,
        admission,
    )
    if admission and (role is not CertificateRole.NODE or card.may(NodeRight.SIGN)):
        raise ProtocolError("the certificate is not of a cluster: its owner is never renewed")
    if card.role is CertificateRole.NODE and not (0 < card.number < 2**63 and is_name(card.name)):
        raise ProtocolError("the certificate is not of a cluster: a node has another kind of id and name")
    return card


def _node_role(units: Sequence[str], *, signs: bool) -> NodeRole:
    """Return the role of a node. Certificates of releases up to 0.2 have none: their nodes sign others."""
    if not units:
        return NodeRole.AUTHORITY if signs else NodeRole.MEMBER
    (unit,) = units
    role = roles_of(unit)
    if signs and NodeRight.SIGN not in role.rights:
        raise ProtocolError(f"a certificate for the role {role} signs others")
    return role


def _admission_in(certificate: x509.Certificate) -> tuple[bytes, ...]:
    """Return the certificates in the extension of a renewed certificate; none without it."""
    try:
        extension = certificate.extensions.get_extension_for_oid(_ADMISSION).value
    except x509.ExtensionNotFound:
        return ()
    if not isinstance(extension, x509.UnrecognizedExtension):
        raise ProtocolError("the extension with the admission cannot be read")
    (admission,) = _sequences(extension.value)
    inner = tuple(_sequences(admission[len(_LONG) + 2 :]))
    if not 0 < len(inner) < limits.CHAIN_CERTIFICATES_MAX:
        raise ProtocolError(f"an admission of {len(inner)} certificates is too short, or too long")
    return inner


def _sequences(data: bytes) -> list[bytes]:
    """Divide bytes into sequences (DER), each with its head; raises ProtocolError."""
    sequences, place, head = [], 0, len(_LONG) + 2
    while place < len(data):
        end = place + head + int.from_bytes(data[place + len(_LONG) : place + head], "big")
        if not data.startswith(_LONG, place) or end > len(data):
            raise ProtocolError("the extension with the admission is malformed")
        sequences.append(data[place:end])
        place = end
    return sequences


def _sequence(parts: Sequence[bytes]) -> bytes:
    body = b"".join(parts)
    return _LONG + len(body).to_bytes(2, "big") + body


def _life(certificate: x509.Certificate) -> tuple[int, int | None]:
    """Return the beginning and the end of a certificate, in seconds since 1970; 0 and None for no end."""
    if certificate.not_valid_after_utc >= _FOR_EVER:
        return 0, None
    begin_s = int(certificate.not_valid_before_utc.timestamp())
    return begin_s + (limits.CERTIFICATE_SKEW_S if begin_s else 0), int(
        certificate.not_valid_after_utc.timestamp()
    )


def end_of(chain: Sequence[CertificateDetails], now_s: float | None = None) -> str:
    """Return the reason why a chain is over by this machine's clock; empty if it is not.

    ``now_s`` is the time in seconds since 1970. Ends are judged CERTIFICATE_SKEW_S late, because clocks
    differ.
    """
    now_s = time.time() if now_s is None else now_s
    for card in chain:
        if card.until_s is None or now_s <= card.until_s + limits.CERTIFICATE_SKEW_S:
            continue
        if card.role is CertificateRole.JOIN:
            return "the invitation has expired. Make a new one there with `dios-node invite`."
        return (
            f"the certificate of {card.name} ended at {utc_text(card.until_s)}, and the clock here says "
            f"{utc_text(now_s)}. {card.name} renews it by itself as soon as it reaches an authority. If one "
            "of the two clocks is wrong, set it."
        )
    return ""


def utc_text(time_s: float) -> str:
    """Return a time in seconds since 1970 as text."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def signer_of(certificate: bytes) -> tuple[int, str]:
    """Return number and name of the stated signer; the signature is checked with the chain."""
    issuer = x509.load_der_x509_certificate(certificate).issuer
    (number,) = issuer.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
    (name,) = issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    return int(str(number.value), 16), str(name.value)


def cards_of(chain: Sequence[bytes]) -> tuple[CertificateDetails, ...]:
    """Read a chain, from the peer's certificate to the root's; raises ProtocolError.

    Of a node that was renewed, these are its present certificate, and then those above it when it was
    admitted: a signer that renewed it answers for nothing. The caller must have checked the signatures of
    ``chain``.
    """
    return (_cards(chain)[0], *_cards(admission_of(tuple(chain)))[1:])


@lru_cache(maxsize=limits.NODES_MAX)
def admission_of(chain: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the chain with which the owner of a chain was admitted; the same if nobody else renewed it.

    Raises ProtocolError if it contains an admission that is not one of this node, in this role.
    """
    inner = card_of(chain[0]).admission
    if not inner:
        return chain
    try:
        signer, _ = signer_of(inner[-1])
    except Exception as error:  # noqa: BLE001 - the parser's exceptions have no common base
        raise ProtocolError(f"the admission in a certificate cannot be read: {error}") from None
    above = [place for place in range(1, len(chain)) if card_of(chain[place]).number == signer]
    if not above:
        raise ProtocolError("the admission in a certificate has a signer that is not in the chain")
    admission = (*inner, *chain[above[0] :])
    check_signatures(admission)
    card = _cards(admission)[0]
    if card.admission or not card.is_same_node(card_of(chain[0])):
        raise ProtocolError("the admission in a certificate is of another node, name, key or role")
    return admission


def _cards(chain: Sequence[bytes]) -> tuple[CertificateDetails, ...]:
    if not 2 <= len(chain) <= limits.CHAIN_CERTIFICATES_MAX:
        raise ProtocolError(f"a chain of {len(chain)} certificates is too short, or too long")
    cards = tuple(card_of(certificate) for certificate in chain)
    between = all(card.may(NodeRight.SIGN) for card in cards[1:-1])
    if cards[-1].role is not CertificateRole.ROOT or not between or cards[0].role is CertificateRole.ROOT:
        raise ProtocolError("the roles in the chain of certificates do not follow each other")
    return cards


_SIGNATURE_HEAD: Final = b"\x03\x41\x00"
"""The beginning of a signature by Ed25519 in DER: a bit string of 64 bytes without unused bits."""


def check_signatures(chain: Sequence[bytes]) -> None:
    """Check that each certificate of the chain is signed by the next, and the last by itself.

    This is for a chain in a message; TLS has checked the chain of a connection. Raises ProtocolError.
    """
    try:
        read = [x509.load_der_x509_certificate(certificate) for certificate in chain]
        for issued, signer in zip(read, [*read[1:], read[-1]], strict=True):
            issued.verify_directly_issued_by(signer)
        rooms = [_room(signer) for signer in read[1:]]
    except Exception as error:  # noqa: BLE001 - the same
        raise ProtocolError(f"the chain of certificates is not valid: {error}") from None
    # Otherwise the number of unused bits of a signature could be changed, where they are zero.
    if not all(
        data.endswith(_SIGNATURE_HEAD + certificate.signature)
        for data, certificate in zip(chain, read, strict=True)
    ):
        raise ProtocolError(
            "the chain of certificates is not valid: a signature is not encoded as DER demands"
        )
    for below, room in enumerate(rooms):
        if room is None or room < below:
            raise ProtocolError("the chain of certificates is not valid: it has a signer that may not sign")


def make_root(number: int, name: str, key: Ed25519PrivateKey) -> bytes:
    """Return the certificate of a new cluster's root, signed by itself."""
    subject = _subject(name, number)
    builder = _builder(subject, CertificateRole.ROOT, number, key.public_key())
    builder = _as_signer(builder.not_valid_before(_FROM), limits.CHAIN_CERTIFICATES_MAX - 2)
    return _signed(builder, subject, key)


class Life(NamedTuple):
    """The life of a certificate, in seconds since 1970 by its signer's clock."""

    since_s: int
    until_s: int


def life_of(days: int, now_s: float | None = None) -> Life | None:
    """Return the life of a certificate that is signed now, or None if ``days`` is 0, for no end."""
    since_s = int(time.time() if now_s is None else now_s)
    return Life(since_s, since_s + days * 86_400) if days else None


def make_node(
    number: int,
    name: str,
    key: Ed25519PublicKey,
    signer: bytes,
    signer_key: Ed25519PrivateKey,
    *,
    role: NodeRole = NodeRole.MEMBER,
    life: Life | None = None,
    admission: Sequence[bytes] = (),
) -> bytes:
    """Return a node's certificate; LimitError if the signer is too far from the root to sign.

    It has no end without a ``life``, and for a role that signs. ``admission`` has the certificates of a
    renewed node's admission that are not in the new chain.
    """
    issuer, room = _signer(signer)
    builder = _builder(_subject(name, number, str(role)), CertificateRole.NODE, number, key)
    if NodeRight.SIGN in role.rights and room:
        builder = _as_signer(builder.not_valid_before(_FROM), room - 1)
    elif life is None or NodeRight.SIGN in role.rights:
        # The last signer that fits the chain signs nothing.
        builder = _as_no_signer(builder.not_valid_before(_FROM), _FOR_EVER)
    else:
        begin = datetime.fromtimestamp(int(life.since_s) - limits.CERTIFICATE_SKEW_S, UTC)
        builder = _as_no_signer(builder.not_valid_before(begin), datetime.fromtimestamp(life.until_s, UTC))
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(usage, critical=False)
    if admission:
        builder = builder.add_extension(
            x509.UnrecognizedExtension(_ADMISSION, _sequence(admission)), critical=False
        )
    return _signed(builder, issuer, signer_key)


def make_join(
    number: int, expires_s: int, key: Ed25519PublicKey, signer: bytes, signer_key: Ed25519PrivateKey
) -> bytes:
    """Return the certificate of a join token, valid until ``expires_s`` (seconds since 1970, signer's clock).

    Raises LimitError like ``make_node``, because a node that joined with it could not be admitted.
    """
    issuer, _ = _signer(signer)
    builder = _builder(_subject("join", number), CertificateRole.JOIN, number, key)
    builder = _as_no_signer(builder.not_valid_before(_FROM), datetime.fromtimestamp(expires_s, UTC))
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return _signed(builder.add_extension(usage, critical=False), issuer, signer_key)


def _signer(certificate: bytes) -> tuple[x509.Certificate, int]:
    """Return the signer, and the number of certificates that may still follow below it."""
    read = x509.load_der_x509_certificate(certificate)
    room = _room(read)
    card = card_of(certificate)
    if room is None and card.role is CertificateRole.NODE and not card.may(NodeRight.SIGN):
        raise NotPermittedError(
            f"{card.why_not(NodeRight.SIGN)}. Invite there: `dios node ls` shows the roles."
        )
    if room is None:
        raise LimitError(
            f"{card.name} is {limits.CHAIN_CERTIFICATES_MAX - 1} certificates away from the "
            "root and cannot admit nodes. Make the invitation at a node that was in the cluster earlier."
        )
    return read, room


def _room(certificate: x509.Certificate) -> int | None:
    """Return the number of signers that may follow below a certificate's owner; None if it may not sign."""
    return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length


def _subject(name: str, number: int, unit: str = "") -> x509.Name:
    # The number makes subjects distinct, because chains are built by them.
    parts = {NameOID.COMMON_NAME: name, NameOID.SERIAL_NUMBER: f"{number:016x}"}
    if unit:
        parts[NameOID.ORGANIZATIONAL_UNIT_NAME] = unit
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts.items()])


def _builder(
    subject: x509.Name, role: CertificateRole, number: int, key: Ed25519PublicKey
) -> x509.CertificateBuilder:
    label = x509.UniformResourceIdentifier(f"dios:{role}:{number:016x}")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([label]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _as_signer(builder: x509.CertificateBuilder, room: int) -> x509.CertificateBuilder:
    return (
        builder.not_valid_after(_FOR_EVER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=room), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )


def _as_no_signer(builder: x509.CertificateBuilder, until: datetime) -> x509.CertificateBuilder:
    return (
        builder.not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder, issuer: x509.Name | x509.Certificate, key: Ed25519PrivateKey
) -> bytes:
    name = issuer if isinstance(issuer, x509.Name) else issuer.subject
    certificate = (
        builder.issuer_name(name)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, algorithm=None)
    )
    return certificate.public_bytes(Encoding.DER)
