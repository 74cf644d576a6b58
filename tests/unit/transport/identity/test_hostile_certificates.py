"""Certificates and requests for them with changed bytes: refused as malformed, whatever the parser raises."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from dios.errors import ProtocolError
from dios.ids import Principal
from dios.node import cluster_port
from dios.transport.identity import certificates, joining
from tests.support.peers.connections import make_cluster

CHANGED = (0x00, 0x02, 0x06, 0x13, 0x20, 0x30, 0x7F, 0x80, 0xFF)


def request_of(name: str = "n9") -> bytes:
    """Return a true request for a certificate."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(Ed25519PrivateKey.generate(), algorithm=None).public_bytes(Encoding.DER)


def changed(data: bytes) -> list[bytes]:
    """Return the data with each byte changed, and with several bytes changed."""
    variants = [data[:n] + bytes([value]) + data[n + 1 :] for n in range(len(data)) for value in CHANGED]
    rng = Random(1)  # noqa: S311 - repeatable, nothing secret
    for _ in range(500):
        bent = bytearray(data)
        for _ in range(rng.randrange(2, 6)):
            bent[rng.randrange(len(bent))] = rng.randrange(256)
        variants.append(bytes(bent))
    return variants


def test_a_request_with_changed_bytes_is_refused() -> None:
    """Nothing but ProtocolError comes out, also for a version that does not exist."""
    request = request_of()
    version = request.index(b"\x02\x01\x00")
    with pytest.raises(ProtocolError, match="version"):
        joining.requested_key(request[: version + 2] + b"\x20" + request[version + 3 :])
    for variant in changed(request):
        with contextlib.suppress(ProtocolError):
            joining.requested_key(variant)


def test_a_certificate_with_changed_bytes_is_refused(tmp_path: Path) -> None:
    """The same for a node's certificate, alone and in its chain."""
    (n1,) = make_cluster(tmp_path, "n1")
    for variant in set(changed(n1.chain[0])) - {n1.chain[0]}:
        with contextlib.suppress(ProtocolError):
            certificates.card_of(variant)
        with pytest.raises(ProtocolError):
            certificates.check_signatures((variant, *n1.chain[1:]))


async def test_an_internal_error_ends_one_admission_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in the admission of a machine is recorded, and does not leave the task that serves it."""
    denied: list[str] = []

    async def broken(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("a defect")

    def note(principal: Principal, why: str) -> None:
        denied.append(f"{principal}: {why}")

    class _Links:
        """Links that know no names."""

        knows_name = staticmethod(lambda _: False)

    monkeypatch.setattr(joining, "admit", broken)
    await cluster_port.admit(None, None, _Links(), note, 1)  # type: ignore[arg-type] # nothing reads them
    assert denied == ["join: an internal error"]
