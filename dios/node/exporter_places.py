"""The addresses at which metrics may be served."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import InvalidError

REPORTED: Final = "reported: "
"""The beginning of a line that an exporter writes for the log of its node."""


class TlsFiles(NamedTuple):
    """The files of mutual TLS, in PEM format."""

    certificate: Path
    key: Path
    clients: Path
    """The certificates of the authorities whose clients are served."""


class ExporterPlace(NamedTuple):
    """An address at which metrics are served."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the address as a setting has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(address: str) -> ExporterPlace:
    """Return the place that ``HOST:PORT`` means.

    Raises:
        InvalidError: the address is malformed.
    """
    # Late, because every daemon loads this module and few serve metrics.
    import ipaddress  # noqa: PLC0415 - see above

    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port) if port.isascii() and port.isdigit() else 0
    except ValueError:
        number = 0
    if not 0 < number < 2**16:
        raise InvalidError(
            f"cannot serve metrics at {address!r}: it is no address with a port of 1 to 65535. "
            "Write it like 127.0.0.1:9464 or [::1]:9464."
        )
    return ExporterPlace(host, number)


def require_protected(place: ExporterPlace, tls: TlsFiles | None, users: Collection[int] = ()) -> None:
    """Raise InvalidError if other machines could read the metrics without a certificate.

    Raise it also if ``users`` are named, who would have no effect with TLS.
    """
    if tls is not None and users:
        raise InvalidError(
            f"cannot serve metrics at {place} to users by their number: over TLS the certificates of clients "
            "decide who reads them. Leave out either --uid (metrics_uids) or the files of TLS (metrics_tls)."
        )
    import ipaddress  # noqa: PLC0415 - as above

    if tls is None and not ipaddress.ip_address(place.host).is_loopback:
        raise InvalidError(
            f"cannot serve metrics at {place}: everybody who reaches the address could read them. Use a "
            "loopback address, or name a certificate, its key and the clients' authority (metrics_tls)."
        )
