"""A check that the kernel does not forward the packets that a network function forwards.

The kernel forwards packets to an interface's own hardware address, if the interface has an address beyond its
link. Such packets would be sent twice. The setting is not changed here, because the machine may be a router
on its other interfaces.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.sprayer.linux.packet_socket import interface_ioctl

_SIOCGIFADDR: Final = 0x8915
_LINK: Final = 0x20
"""The scope of IPv6 addresses that are valid on one link only."""


def check_forwarding(names: Sequence[str]) -> None:
    """Raise InvalidError, with a remedy, for an interface with an address from which the kernel forwards."""
    for name in names:
        for version in (4, 6):
            if not _forwards(name, version) or not (address := _address(name, version)):
                continue
            setting = f"net.ipv{version}.conf.{name}.forwarding"
            raise InvalidError(
                f"interface {name!r} has the address {address}, and the kernel forwards packets from there, "
                f"so packets would be sent twice. Run `sysctl -w {setting}=0` to stop it for this "
                f"interface, or `ip -{version} address flush dev {name}`"
            )


def _forwards(name: str, version: int) -> bool:
    try:
        return Path(f"/proc/sys/net/ipv{version}/conf/{name}/forwarding").read_text().strip() != "0"
    except OSError:
        return False  # This kernel does not support the version of IP.


def _address(name: str, version: int) -> str:
    """Return an address of an interface that is valid beyond its link, or "" if there is none."""
    if version == 4:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                return socket.inet_ntoa(interface_ioctl(control, _SIOCGIFADDR, name)[20:24])
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
