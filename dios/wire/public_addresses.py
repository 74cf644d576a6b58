"""Public addresses: an allow-list of unicast space, without the blocks of IANA's special registries.

Python's ``is_global`` differs among versions, and counts site-local and translated addresses as global. The
table has the registries of 2025. Space that is not listed as unicast is not public, whatever its use will be.
"""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

IPAddress: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

UNICAST: Final = ("0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3", "2000::/3")
"""The space that IANA assigns for unicast. All other IPv6 space is special or unassigned: loopback,
translated and compatible addresses, SRv6, unique-local, link-local, site-local and multicast addresses."""

SPECIAL: Final = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private use",
    "100.64.0.0/10": "shared address space",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private use",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "automatic multicast tunneling",
    "192.88.99.0/24": "relays of 6to4",
    "192.168.0.0/16": "private use",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "2001::/23": "protocol assignments, with those of Teredo, ORCHID and benchmarking",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4, which contains an IPv4 address",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
}
"""The blocks of unicast space that are special, each with its use. Those that may be reached from everywhere
are here, too: no server that a name is for has such an address."""

_STANDS_FOR_IPV4: Final = ("::ffff:0:0/96", "64:ff9b::/96")
"""IPv6 addresses that are IPv4 addresses for the kernel (mapped), or for a translator of the network (NAT64).
Those of a network's own translator (64:ff9b:1::/48) are not here: only that network knows where they contain
an IPv4 address."""

_unicast: Final = tuple(map(ipaddress.ip_network, UNICAST))
_special: Final = tuple(map(ipaddress.ip_network, SPECIAL))
_stands_for_ipv4: Final = tuple(map(ipaddress.IPv6Network, _STANDS_FOR_IPV4))


def ipv4_of(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if any(address in net for net in _stands_for_ipv4):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_public(address: IPAddress) -> bool:
    """Return True for an address of unicast space that is not special."""
    meant = ipv4_of(address)
    return any(meant in net for net in _unicast) and not any(meant in net for net in _special)
