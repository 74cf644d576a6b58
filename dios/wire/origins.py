"""Origins: the text form of a server that a task may reach by HTTP, and the rules for its address.

An origin is a scheme, a host and a port, as in the web: "https://api.example.org". With "=ADDRESS" it names
the address of the host, too, and the name is not resolved.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from dios import limits
from dios.errors import InvalidError
from dios.wire.addresses import join_address
from dios.wire.public_addresses import IPAddress, ipv4_of, is_public

_ORIGIN: Final = re.compile(
    r"(https?)://(\[[0-9a-fA-F:.]{2,45}\]|[0-9a-zA-Z.-]{1,253})(?::([0-9]{1,5}))?/?(?:=([0-9a-fA-F:.]{2,45}))?"
)
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORTS: Final = {"http": 80, "https": 443}
_LOCAL: Final = "localhost"


class Origin(NamedTuple):
    """A server: scheme, host and port. ``address`` is the address that was given for the host, or empty."""

    scheme: str
    host: str
    port: int
    address: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def given(self) -> str:
        """Return the text from which ``parse_origin`` makes this origin."""
        return f"{self}={self.address}" if self.address else str(self)

    @property
    def destination(self) -> str:
        """Return the address to connect to, as "HOST:PORT"."""
        return join_address(self.address or self.host, self.port)


def parse_origin(text: str) -> Origin:
    """Return the origin that a text names. Raise InvalidError for a text that names none."""
    match = _ORIGIN.fullmatch(text)
    shown = text[: limits.NODE_ADDRESS_CHARS_MAX]
    if match is None:
        raise InvalidError(
            f"{shown!r} is not an origin. Write scheme, host and perhaps a port, such as https://api.example.org"
            " or http://127.0.0.1:8000, without a path, a user or a wildcard"
        )
    scheme, host, port, address = match[1], match[2].lower(), match[3], match[4] or ""
    number = int(port) if port else _PORTS[scheme]
    if not 0 < number <= limits.PORT_MAX:
        raise InvalidError(f"{shown!r} has no possible port: choose one from 1 to {limits.PORT_MAX}")
    if host.startswith("["):
        literal = literal_address(host[1:-1])
        host = "" if literal is None else str(literal)
    elif literal_address(host) is None and not _is_name(host):
        host = ""
    pinned = literal_address(address)
    if not host or (address and pinned is None):
        raise InvalidError(
            f"{shown!r} has no possible host. Write a name in ASCII letters (a name in another alphabet"
            " begins with xn--), or an IP address in its usual form"
        )
    return Origin(scheme, host, number, "" if pinned is None else str(pinned))


def parse_origins(texts: Iterable[str]) -> tuple[Origin, ...]:
    """Return different origins. Raise InvalidError for two equal ones, too many, or a text that is none."""
    origins = tuple(map(parse_origin, texts))
    if len(origins) > limits.ORIGINS_MAX:
        raise InvalidError(f"{len(origins)} origins are too many: name at most {limits.ORIGINS_MAX}")
    if len({str(origin) for origin in origins}) < len(origins):
        raise InvalidError("an origin is named twice: name each once, with one address at most")
    return origins


def literal_address(text: str) -> IPAddress | None:
    """Return an IP address that is written in its usual form, or None."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def may_be_reached(host: str, address: str) -> bool:
    """Return True if a host that somebody named may have this address.

    An address is reached if it was named itself, "localhost" on this machine alone, and another name only at
    a public address: whoever owns a name chooses its addresses, and could choose those of a private network.
    """
    literal = literal_address(address.partition("%")[0])
    if literal is None:
        return False
    named = literal_address(host)
    if named is not None:
        return literal == named
    if is_local(host):
        return ipv4_of(literal).is_loopback
    return is_public(literal)


def is_local(host: str) -> bool:
    """Return True for the names of this machine itself, which nobody owns."""
    return host == _LOCAL or host.endswith(f".{_LOCAL}")


def _is_name(host: str) -> bool:
    labels = host.split(".")
    # A name server is not asked for "127.1" or "0x7f.1": they are old forms of addresses.
    return all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])
