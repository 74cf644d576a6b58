"""Checks names, racks and addresses of nodes that users write.

``dios.transport`` resolves names and connects. The functions raise ValueError or TypeError with a message
that completes the sentence "it must be …".
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from dios import limits
from dios.errors import InvalidError
from dios.wire import addresses
from dios.wire.addresses import join_address

_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")


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
    wanted = f"HOST:PORT, like 10.0.0.1:7400 or [fd00::1]:7400, with a port from 1 to {limits.PORT_MAX}"
    try:
        host, port = addresses.split_address(text)
        if text.startswith("["):
            return str(ipaddress.IPv6Address(host)), port
    except (InvalidError, ValueError):
        raise ValueError(wanted) from None
    if not port or not _HOST.fullmatch(host):
        raise ValueError(wanted)
    return host, port


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
