"""What a person writes for a node's name, rack and address, checked.

Not for: looking names up or connecting (``dios.transport``). What is refused here raises ValueError or
TypeError whose message completes the sentence "it must be …".
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
    """A node's or a rack's name: what fits a table, a shell's word and a certificate."""
    if not isinstance(value, str):
        raise TypeError("a name")
    if not _LABEL.fullmatch(value) or len(value) > limits.NODE_NAME_BYTES_MAX:
        raise ValueError(
            f"up to {limits.NODE_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return value


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT"; ValueError saying what it must be."""
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
    """The text of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_address(value: object, *, advertised: bool = False) -> str:
    """An address as people and settings write it, in one spelling.

    With ``advertised`` it is what others are told: "every address of this machine" is none.
    """
    if not isinstance(value, str):
        raise TypeError("HOST:PORT")
    host, port = split_address(value.strip())
    if advertised and is_unspecified(host):
        raise ValueError("an address that other machines can reach; this one only says where to listen")
    return join_address(host, port)


def is_unspecified(host: str) -> bool:
    """Whether ``host`` means every address of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether ``host`` can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
