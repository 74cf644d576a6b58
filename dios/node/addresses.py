"""Checks names, racks and addresses of nodes that users write.

``dios.transport`` resolves names and connects. The functions raise ValueError or TypeError with a message
that completes the sentence "it must be …".
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from dios import limits

_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
PORT_MAX: Final = 65_535


def checked_label(value: object) -> str:
    """Check the name of a node or rack: it must fit into tables, shell words and certificates."""
    if not isinstance(value, str):
        raise TypeError("a name")
    if not _LABEL.fullmatch(value) or len(value) > limits.NODE_NAME_BYTES_MAX:
        raise ValueError(
            f"up to {limits.NODE_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return value


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPV6]:PORT". Raise ValueError with the expected form."""
    host, colon, port = text.rpartition(":")
    wanted = "HOST:PORT, like 10.0.0.1:7400 or [fd00::1]:7400"
    if not colon or not port.isascii() or not port.isdigit() or len(port) > len(str(PORT_MAX)):
        raise ValueError(wanted)
    number = int(port)
    if not 1 <= number <= PORT_MAX:
        raise ValueError(f"{wanted}, with a port from 1 to {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), number
        except ValueError:
            raise ValueError(wanted) from None
    if len(host) > limits.HOST_NAME_BYTES_MAX or not _HOST.fullmatch(host):
        raise ValueError(wanted)
    return host, number


def join_address(host: str, port: int) -> str:
    """Return host and port as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_address(value: object, *, advertised: bool = False) -> str:
    """Check an address as users write it, and return it in its normal form.

    With ``advertised`` it is the address for other nodes; "every address of this machine" is refused then.
    """
    if not isinstance(value, str):
        raise TypeError("HOST:PORT")
    host, port = split_address(value.strip())
    if advertised and is_unspecified(host):
        raise ValueError("an address that other machines can reach, not all addresses of this machine")
    return join_address(host, port)


def is_unspecified(host: str) -> bool:
    """Return True if ``host`` means every address of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return True if ``host`` can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
