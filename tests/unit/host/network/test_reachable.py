"""The node's rule for addresses of an origin: a name that was given a private address is not connected to."""

from __future__ import annotations

import errno
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


def connecting_fails(monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int]) -> None:
    """Let the kernel answer a question about an address with an error."""

    class Probe(socket.socket):
        def connect(self, name: tuple[str, int]) -> None:  # type: ignore[override]
            if name[0] in numbers:
                raise OSError(numbers[name[0]], "the kernel's reason")
            super().connect(name)

    monkeypatch.setattr(socket, "socket", Probe)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOBUFS, errno.EACCES, errno.EINVAL])
def test_an_address_that_may_be_this_machines_is_not_reached(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An error that does not say that there is no way to it is no answer."""
    monkeypatch.setattr(addresses, "may_be_reached", lambda _host, _address: True)
    connecting_fails(monkeypatch, {"198.51.100.7": number})
    with pytest.raises(OSError, match="the kernel's reason"):
        reachable("api.example.org:443", at("198.51.100.7"))
    assert reachable("api.example.org:443", at("198.51.100.7", "198.51.100.8")) == at("198.51.100.8")


@pytest.mark.parametrize(
    "number", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL]
)
def test_an_address_without_a_way_is_no_address_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel has a way to each of its own."""
    connecting_fails(monkeypatch, {"198.51.100.7": number})
    assert not is_of_this_machine(at("198.51.100.7")[0])
