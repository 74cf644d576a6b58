"""The node's rule for addresses of an origin: a name that was given a private address is not connected to."""

from __future__ import annotations

import socket

import pytest

from dios.errors import Code
from dios.host.network import addresses
from dios.host.network.addresses import Address, is_of_this_machine, network_failure, reachable


def at(*hosts: str) -> list[Address]:
    """Resolved addresses of port 443."""
    return [
        Address(socket.AF_INET6, (host, 443, 0, 0)) if ":" in host else Address(socket.AF_INET, (host, 443))
        for host in hosts
    ]


def test_public_addresses_of_a_name_remain() -> None:
    """Of a name with both kinds, the public ones are tried."""
    addresses = reachable("api.example.org:443", at("10.0.0.1", "93.184.216.34", "::1"))
    assert addresses == at("93.184.216.34")


@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "::ffff:192.168.0.1", "fe80::1%eth0"])
def test_a_name_with_a_private_address_alone_is_refused(host: str) -> None:
    """The message names the address and how to permit it, and the code is that of a refusal."""
    with pytest.raises(PermissionError) as error:
        reachable("api.example.org:443", at(host))
    code, message = network_failure(error.value, "api.example.org:443")
    assert code is Code.EPERM
    assert f"https://api.example.org={host}" in message


def test_addresses_that_were_named_are_reached() -> None:
    """The literal address of an origin is the caller's own word, and localhost is this machine."""
    assert reachable("[::1]:443", at("::1")) == at("::1")
    assert reachable("10.0.0.1:443", at("10.0.0.1")) == at("10.0.0.1")
    assert reachable("localhost:443", at("127.0.0.1", "93.184.216.34")) == at("127.0.0.1")


def test_a_name_does_not_reach_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public address at which the machine would answer itself is refused, unless it was named."""
    assert is_of_this_machine(at("127.0.0.1")[0])
    assert not is_of_this_machine(at("198.51.100.7")[0])
    monkeypatch.setattr(addresses, "is_of_this_machine", lambda place: place in at("93.184.216.34"))
    with pytest.raises(PermissionError, match="is this machine's"):
        reachable("api.example.org:443", at("93.184.216.34"))
    assert reachable("api.example.org:443", at("93.184.216.34", "93.184.216.35")) == at("93.184.216.35")
    assert reachable("93.184.216.34:443", at("93.184.216.34")) == at("93.184.216.34")
