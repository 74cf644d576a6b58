"""The blocks of IANA's registries are not public, and ordinary addresses next to them are."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.wire.public_addresses import SPECIAL, UNICAST, is_public

REGISTERED = [
    "0.0.0.0/8",
    "0.0.0.0/32",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.0.0/29",
    "192.0.0.8/32",
    "192.0.0.9/32",
    "192.0.0.10/32",
    "192.0.0.170/32",
    "192.0.0.171/32",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.88.99.2/32",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "::1/128",
    "::/128",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001::/32",
    "2001:1::1/128",
    "2001:1::2/128",
    "2001:1::3/128",
    "2001:2::/48",
    "2001:3::/32",
    "2001:4:112::/48",
    "2001:10::/28",
    "2001:20::/28",
    "2001:30::/28",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
]
"""The rows of the IANA IPv4 and IPv6 Special-Purpose Address Registries (iana-ipv4-special-registry,
iana-ipv6-special-registry), without the two IPv6 blocks that stand for IPv4 addresses."""

OTHERS = ["224.0.0.0/4", "::/96", "::ffff:0:0:0/96", "fec0::/10", "ff00::/8"]
"""Multicast, IPv4-compatible (RFC 4291), IPv4-translated (RFC 2765), site-local (RFC 3879)."""

ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@pytest.mark.parametrize("block", [*REGISTERED, *OTHERS])
def test_no_registered_block_is_public(block: str) -> None:
    """The first, the last and a middle address of each block are refused."""
    net = ipaddress.ip_network(block)
    for place in (0, net.num_addresses // 2, net.num_addresses - 1):
        assert not is_public(net[place])


@pytest.mark.parametrize("block", REGISTERED + OTHERS)
@pytest.mark.parametrize("prefix", ["::ffff:0:0/96", "64:ff9b::/96"])
def test_an_ipv6_form_is_what_its_ipv4_address_is(block: str, prefix: str) -> None:
    """A mapped address, and one that the network translates, are refused with their IPv4 block."""
    net = ipaddress.ip_network(block)
    if net.version == 4:
        assert not is_public(ipaddress.IPv6Network(prefix)[int(net[net.num_addresses // 2])])


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255"),
        *("128.0.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0"),
        *("198.17.255.255", "198.20.0.0", "203.0.114.0", "223.255.255.255"),
        *("2001:200::", "2001:db7:ffff::", "2001:db9::", "2003::1", "2620:4f:8001::", "3ffe:ffff::1"),
        *("2a00:1450:4001::1", "::ffff:1.1.1.1", "64:ff9b::101:101"),
    ],
)
def test_the_neighbours_of_the_blocks_are_public(address: str) -> None:
    """Nothing beyond the registered blocks is refused."""
    assert is_public(ipaddress.ip_address(address))


@given(ADDRESSES)
def test_a_public_address_is_global_for_python_too(address: ipaddress.IPv4Address) -> None:
    """The table is at least as strict as the interpreter's, of any version."""
    if is_public(address):
        assert address.is_global or "ffff" in address.exploded
        assert not address.is_multicast


def test_every_block_of_the_table_is_unicast_space() -> None:
    """A special block outside of the unicast space would be a row without effect."""
    unicast = list(map(ipaddress.ip_network, UNICAST))
    for block in map(ipaddress.ip_network, SPECIAL):
        assert any(
            block.version == net.version and int(net[0]) <= int(block[0]) and int(block[-1]) <= int(net[-1])
            for net in unicast
        )
