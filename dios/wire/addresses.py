"""The text form of network addresses in messages: "HOST:PORT", or "[ADDRESS]:PORT" for IPv6.

Tasks and other nodes write such texts, so every part has a range here. ``dios.node.addresses`` has the
stricter rules for addresses in settings.
"""

from __future__ import annotations

import errno
from typing import Final

from dios import limits
from dios.errors import InvalidError

_PORT_DIGITS_MAX: Final = len(str(limits.PORT_MAX))


_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "Another program listens there (ss -ltnp shows it): end it, or choose another port.",
    errno.EADDRNOTAVAIL: "This machine has no such address: choose one that `ip address` shows.",
    errno.EACCES: "Only root may listen on ports below 1024: choose a higher one.",
    errno.EPERM: "Only root may listen on ports below 1024: choose a higher one.",
}


def listen_advice(error: OSError) -> str:
    """Return what to do about an error of listening on an address of this machine."""
    return _LISTEN_ADVICE.get(error.errno or 0, "Choose an address and a port of this machine.")


def split_address(text: str) -> tuple[str, int]:
    """Return host and port. Raise ``InvalidError`` for a text that is not an address."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    # The length is checked first: a number of thousands of digits cannot be read, or only slowly.
    well_formed = len(port) <= _PORT_DIGITS_MAX and port.isascii() and port.isdecimal()
    if not (well_formed and int(port) <= limits.PORT_MAX and _is_host(host)):
        shown = text[: limits.NODE_ADDRESS_CHARS_MAX]
        raise InvalidError(f"{shown!r} is not an address; write HOST:PORT, or [::1]:80 for IPv6")
    return host, int(port)


def _is_host(text: str) -> bool:
    if not 0 < len(text) <= limits.HOST_NAME_BYTES_MAX or not text.isprintable() or " " in text:
        return False
    try:
        text.encode("idna")  # as the resolver does, which raises for an empty or a long label
    except UnicodeError:
        return False
    return True


def join_address(host: str, port: int) -> str:
    """Return host and port as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
