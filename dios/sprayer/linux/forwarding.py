"""Whether the kernel would forward packets that a network function forwards as well.

For: engines whose frames the kernel sees too. Not for: switching its forwarding off, which is for whoever
owns the machine: it may be a router on its other interfaces.

Only what comes to an interface's own hardware address is forwarded, and only where the interface has an
address beyond its link; everything that the function lets pass would go out twice then.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.sprayer.linux.packet_socket import ask

_SIOCGIFADDR: Final = 0x8915
_LINK: Final = 0x20
"""The scope of addresses of IPv6 that are good on one link only."""


def check_forwarding(names: Sequence[str]) -> None:
    """InvalidError for an interface with an address from which the kernel forwards, with what ends that."""
    for name in names:
        for version in (4, 6):
            if not _forwards(name, version) or not (address := _address(name, version)):
                continue
            setting = f"net.ipv{version}.conf.{name}.forwarding"
            raise InvalidError(
                f"interface {name!r} has the address {address}, and the kernel forwards what comes by it, as "
                f"the function does: packets would go out twice. `sysctl -w {setting}=0` ends that for this "
                f"interface alone; so does `ip -{version} address flush dev {name}`"
            )


def _forwards(name: str, version: int) -> bool:
    try:
        return Path(f"/proc/sys/net/ipv{version}/conf/{name}/forwarding").read_text().strip() != "0"
    except OSError:
        return False  # Such packets are unknown here.


def _address(name: str, version: int) -> str:
    """An address of an interface that is not only its link's, or "" for none."""
    if version == 4:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
                return socket.inet_ntoa(ask(asked, _SIOCGIFADDR, name)[20:24])
        except OSError:
            return ""
    try:
        rows = [line.split() for line in Path("/proc/self/net/if_inet6").read_text().splitlines()]
    except OSError:
        return ""
    for number, _, _, scope, _, interface in rows:
        if interface == name and not int(scope, 16) & _LINK:
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))
    return ""
