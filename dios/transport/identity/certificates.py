"""The certificates of a cluster: creating and reading them, and the order in which they may follow.

Three roles: the *authority* signs the first node, and its key exists only for that moment; *nodes* sign
other nodes, unless they are *workers*; *join* certificates are part of a token and sign nothing. Only join
certificates expire, and only the node that signed one judges its time, because clocks differ.
``dios.transport.identity.trust`` has the trusted nodes, ``dios.transport.identity.identity`` stores the
certificates.
"""

from __future__ import annotations

import enum
import hashlib
import re
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

_FROM: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_LABEL: Final = re.compile(r"dios:(authority|node|join):([0-9a-f]{16})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORKER: Final = "worker"
"""The unit in the subject of a worker's certificate."""
_CARDS_KEPT: Final = 4 * limits.NODES_MAX


class CertificateRole(enum.StrEnum):
    """The role of a certificate's owner."""

    AUTHORITY = "authority"
    NODE = "node"
    JOIN = "join"


class CertificateDetails(NamedTuple):
    """The content of one certificate that matters to the cluster."""

    role: CertificateRole
    number: int
    """The id of a node, or the number of a token or of the authority."""
    name: str
    key: bytes
    """SHA-256 of the public key."""
    is_worker: bool = False
    """True for a node that computes for its users, and neither admits, removes, schedules nor administers."""


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
    except Exception as error:  # noqa: BLE001 - the parser's exceptions have no common base
        raise ProtocolError(f"the certificate is not of a cluster: {error}") from None
    match = _LABEL.fullmatch(label)
    if match is None or len(names) != 1 or not isinstance(key, Ed25519PublicKey):
        raise ProtocolError("the certificate is not of a cluster: it has no role, or another kind of key")
    card = CertificateDetails(
        CertificateRole(match[1]), int(match[2], 16), str(names[0].value), key_digest(key), units == [_WORKER]
    )
    if card.role is CertificateRole.NODE and not (0 < card.number < 2**63 and is_name(card.name)):
        raise ProtocolError("the certificate is not of a cluster: a node has another kind of id and name")
    return card


def signer_of(certificate: bytes) -> tuple[int, str]:
    """Return number and name of the stated signer; the signature is checked with the chain."""
    issuer = x509.load_der_x509_certificate(certificate).issuer
    (number,) = issuer.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
    (name,) = issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    return int(str(number.value), 16), str(name.value)


def cards_of(chain: Sequence[bytes]) -> tuple[CertificateDetails, ...]:
    """Read a chain, from the peer's certificate to the authority's; raises ProtocolError.

    The caller must have checked the signatures.
    """
    if not 2 <= len(chain) <= limits.CHAIN_CERTIFICATES_MAX:
        raise ProtocolError(f"a chain of {len(chain)} certificates is too short, or too long")
    cards = tuple(card_of(certificate) for certificate in chain)
    between = all(card.role is CertificateRole.NODE and not card.is_worker for card in cards[1:-1])
    if (
        cards[-1].role is not CertificateRole.AUTHORITY
        or not between
        or cards[0].role is CertificateRole.AUTHORITY
    ):
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


def make_authority(number: int, name: str, key: Ed25519PrivateKey) -> bytes:
    """Return the certificate of a new cluster's authority, signed by itself."""
    subject = _subject(name, number)
    builder = _builder(subject, CertificateRole.AUTHORITY, number, key.public_key())
    builder = _as_signer(builder, limits.CHAIN_CERTIFICATES_MAX - 2)
    return _signed(builder, subject, key)


def make_node(
    number: int,
    name: str,
    key: Ed25519PublicKey,
    signer: bytes,
    signer_key: Ed25519PrivateKey,
    *,
    is_worker: bool = False,
) -> bytes:
    """Return a node's certificate; LimitError if the signer is too far from the authority to sign."""
    issuer, room = _signer(signer)
    subject = _subject(name, number, _WORKER if is_worker else "")
    builder = _builder(subject, CertificateRole.NODE, number, key)
    # The last certificate that fits the chain may sign nothing.
    may_sign = room and not is_worker
    builder = _as_signer(builder, room - 1) if may_sign else _as_no_signer(builder, _FOR_EVER)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return _signed(builder.add_extension(usage, critical=False), issuer, signer_key)


def make_join(
    number: int, expires_s: int, key: Ed25519PublicKey, signer: bytes, signer_key: Ed25519PrivateKey
) -> bytes:
    """Return the certificate of a join token, valid until ``expires_s`` (seconds since 1970, signer's clock).

    Raises LimitError like ``make_node``, because a node that joined with it could not be admitted.
    """
    issuer, _ = _signer(signer)
    builder = _builder(_subject("join", number), CertificateRole.JOIN, number, key)
    builder = _as_no_signer(builder, datetime.fromtimestamp(expires_s, UTC))
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return _signed(builder.add_extension(usage, critical=False), issuer, signer_key)


def _signer(certificate: bytes) -> tuple[x509.Certificate, int]:
    """Return the signer, and the number of certificates that may still follow below it."""
    read = x509.load_der_x509_certificate(certificate)
    room = _room(read)
    if room is None and card_of(certificate).is_worker:
        raise NotPermittedError(
            f"{card_of(certificate).name} is a worker and admits no nodes. Invite at another node."
        )
    if room is None:
        raise LimitError(
            f"{card_of(certificate).name} is {limits.CHAIN_CERTIFICATES_MAX - 1} certificates away from the "
            "authority and cannot admit nodes. Make the invitation at a node that was in the cluster earlier."
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
        .not_valid_before(_FROM)
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
