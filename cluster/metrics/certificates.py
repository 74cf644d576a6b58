"""Makes an authority and certificates for reading the metrics of nodes over mutual TLS.

usage: certificates.py FOLDER HOST [HOST ...]

The folder gets ``authority.pem``, ``server.pem`` with ``server.key`` for these hosts, and ``client.pem`` with
``client.key`` for Prometheus. The key of the authority is not stored, so that nobody can add a client later:
run this again in an empty folder to replace all. Nothing is changed if the folder has them already.
"""  # noqa: INP001 - a script

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID: Final = dt.timedelta(days=825)
_LAST: Final = "authority.pem"
"""Written last, so that its presence means that all files are there."""


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _VALID)
    )


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def make(folder: Path, hosts: list[str]) -> None:
    """Write all files into a folder that exists."""
    authority = "DIOS metrics"
    authority_key = ec.generate_private_key(ec.SECP256R1())
    root = (
        _builder(authority, authority, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    for role, usage in (
        ("server", ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(f"DIOS metrics {role}", authority, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(issued_by, critical=False)
        )
        if role == "server":
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(authority_key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write(folder / f"{role}.key", private)
        _write(folder / f"{role}.pem", certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder / _LAST, root.public_bytes(serialization.Encoding.PEM))


def main() -> int:
    """Make the files, unless they exist."""
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.stderr.write((__doc__ or "").partition("\n\n")[2])
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / _LAST).exists():
        make(folder, sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
