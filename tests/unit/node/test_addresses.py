from __future__ import annotations

import pytest

from dios.node.addresses import checked_address, checked_label, is_loopback, split_address
from dios.wire.addresses import join_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:7400", "10.0.0.1", 7400),
        ("n1.example:1", "n1.example", 1),
        ("[fd00::1]:65535", "fd00::1", 65535),
    ],
)
def test_an_address_is_taken_apart_and_put_together(text: str, host: str, port: int) -> None:
    """Host and port come out of an address, and make it again."""
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "host",
        "host:",
        ":80",
        "host:http",
        "host:0",
        "host:65536",
        "host:٣",
        "a b:1",
        "[fd00:1",
        "-a:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Whatever lacks a host or a port from 1 to 65535 is refused with how it is written."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        checked_address(text)


def test_names_fit_everywhere() -> None:
    """A name has letters, digits and a few signs, and begins with no sign that a shell or flag means."""
    assert checked_label("rack-1.b_2") == "rack-1.b_2"
    for bad in ("", "-r", ".", "a/b", "a\n", "a" * 64, "ä"):
        with pytest.raises(ValueError, match="letters"):
            checked_label(bad)


def test_loopback_is_told_from_other_addresses() -> None:
    """Addresses of this machine alone are known as such, by number and by name."""
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("n1.example")
