from __future__ import annotations

import pytest

from dios import limits
from dios.errors import InvalidError
from dios.wire.addresses import join_address, split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:7400", "10.0.0.1", 7400),
        ("[::1]:65535", "::1", 65535),
        ("n1:0", "n1", 0),
        ("bücher.example:80", "bücher.example", 80),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    """Host and port come out of an address, without brackets, and make it again."""
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text


@pytest.mark.parametrize(
    "port", ["", "x", "-1", "65536", "9" * 40, "9" * 5000, "٣", "²", " 1", "1_0", "+1", "0x1"]
)
def test_what_is_no_port_is_refused(port: str) -> None:
    """A port has at most five ASCII digits and is in range; nothing else reaches the system or ``int``."""
    with pytest.raises(InvalidError, match="HOST:PORT"):
        split_address(f"localhost:{port}")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "a\0b",
        "a\nb",
        "\x1b]0;title\x07",
        "[]",
        "h" * (limits.HOST_NAME_BYTES_MAX + 1),
        "a..b",
        "..",
        "l" * 64 + ".example",
        "ü" * 70,
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    """A host has a bounded number of printable characters, so that no terminal or log is misled by it."""
    with pytest.raises(InvalidError, match="HOST:PORT"):
        split_address(f"{host}:80")
