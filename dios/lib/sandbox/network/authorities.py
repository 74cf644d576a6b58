"""The certificates of the authorities that a gateway trusts: those of this machine, or a file of the user."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.limits import MIB

_BYTES_MAX: Final = 16 * MIB
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
BEGIN: Final = b"-----BEGIN CERTIFICATE-----"


def authorities(given: str | Path | bytes | None = None) -> bytes:
    """Return certificates in PEM form: those of a file or of bytes, by default those that Python trusts.

    Python's own are in the file SSL_CERT_FILE or the folder SSL_CERT_DIR, if these variables are set. Raises
    InvalidError if there are none, OSError for a file that cannot be read.
    """
    if given is None:
        certificates = b"".join(_of_this_machine())
        missing = (
            "this machine has no certificates of authorities, which https origins need. Install the package"
            " ca-certificates, or name a file: network_ca= (--network-ca), or SSL_CERT_FILE"
        )
    else:
        certificates = given if isinstance(given, bytes) else _read(Path(given))
        missing = f"{given if not isinstance(given, bytes) else 'network_ca'} has no certificate in PEM form"
    if BEGIN not in certificates or len(certificates) > _BYTES_MAX:
        raise InvalidError(missing)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=certificates.decode("ascii", "replace")
        )
    except ssl.SSLError as error:
        raise InvalidError(f"{missing}: {error.reason or error.strerror}") from None
    return certificates


def _of_this_machine() -> Iterator[bytes]:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        yield _read(Path(paths.cafile))
        return
    folder = Path(paths.capath) if paths.capath else None
    for bundle in _BUNDLES:
        if Path(bundle).is_file() and (folder is None or folder.resolve() == Path(bundle).parent.resolve()):
            yield _read(Path(bundle))
            return
    if folder is not None:
        # Each certificate is there under its hash, and most of them once more under a name.
        for path in sorted(folder.glob("*.[0-9]")):
            yield _read(path)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_BYTES_MAX + 1) + b"\n"
