"""Origins: what is one, and which addresses its host may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.errors import InvalidError
from dios.wire.origins import may_be_reached, parse_origin, parse_origins

ORIGINS = [
    ("https://api.example.org", "https://api.example.org", "api.example.org:443"),
    ("https://API.Example.org/", "https://api.example.org", "api.example.org:443"),
    ("https://api.example.org:443", "https://api.example.org", "api.example.org:443"),
    ("http://api.example.org:443", "http://api.example.org:443", "api.example.org:443"),
    ("http://localhost:8000", "http://localhost:8000", "localhost:8000"),
    ("http://127.0.0.1", "http://127.0.0.1", "127.0.0.1:80"),
    ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443", "[2001:db8::1]:8443"),
    ("https://intranet=10.0.0.5", "https://intranet", "10.0.0.5:443"),
    ("https://intranet=fd00::5", "https://intranet", "[fd00::5]:443"),
]


@pytest.mark.parametrize(("text", "shown", "destination"), ORIGINS)
def test_an_origin_has_one_form(text: str, shown: str, destination: str) -> None:
    """Letters, the usual port and a slash make no difference, and the form names the same origin."""
    origin = parse_origin(text)
    assert (str(origin), origin.destination) == (shown, destination)
    assert parse_origin(origin.given) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "api.example.org",
        "ftp://api.example.org",
        "https://",
        "https://*.example.org",
        "https://api.example.org/path",
        "https://api.example.org?x",
        "https://user@api.example.org",
        "https://api.example.org:",
        "https://api.example.org:0",
        "https://api.example.org:65536",
        "https://api.example.org:99999999",
        "https://api..example.org",
        "https://api.example.org.",
        "https://-api.example.org",
        "https://127.1",
        "https://2130706433",
        "https://0x7f.0x1",
        "https://[::1",
        "https://::1",
        "https://[127.0.0.1]x",
        "https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example",
        "https://api.example.org=localhost",
        "https://api.example.org=",
        "https://api.example.org https://evil.example.org",
        "https://api.example.org\n",
        "https://" + "a" * 300,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """A text that could mean more than one server, or none, names no origin."""
    with pytest.raises(InvalidError, match=r"origin|host|port"):
        parse_origin(text)


@given(st.text(max_size=60))
def test_any_text_is_an_origin_or_refused(text: str) -> None:
    """Nothing else is raised, and an origin comes back from its form."""
    for candidate in (text, f"https://{text}", f"http://a.b:{text}", f"http://a={text}"):
        try:
            origin = parse_origin(candidate)
        except InvalidError:
            continue
        assert parse_origin(origin.given) == origin


def test_a_list_has_different_origins_and_a_bound() -> None:
    """Twice the same one is a mistake, with two addresses, too."""
    many = [f"https://h{number}.example" for number in range(limits.ORIGINS_MAX + 1)]
    assert len(parse_origins(many[1:])) == limits.ORIGINS_MAX
    for wrong in (many, ["https://a.b", "https://A.b:443"], ["https://a.b=10.0.0.1", "https://a.b=10.0.0.2"]):
        with pytest.raises(InvalidError):
            parse_origins(wrong)


PRIVATE = [
    "0.0.0.0",  # noqa: S104 - no server
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "64:ff9b:1:7f00:0:100:808:808",
    "::ffff:0:7f00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "fec0::1",
    "fc00::1",
    "fe80::1%eth0",
    "ff02::1",
    "no address",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_is_not_reached_at_a_private_address(address: str) -> None:
    """Whoever owns a name could give it this address."""
    assert not may_be_reached("api.example.org", address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "::ffff:93.184.216.34", "64:ff9b::5db8:d822", "2606:2800:220:1::1"]
)
def test_a_name_is_reached_at_a_public_address(address: str) -> None:
    """Public addresses are all the same."""
    assert may_be_reached("api.example.org", address)
    assert not may_be_reached("localhost", address)


def test_an_address_that_is_named_is_reached() -> None:
    """It is the caller's own word, and for no other address."""
    assert may_be_reached("127.0.0.1", "127.0.0.1")
    assert may_be_reached("::1", "::1")
    assert not may_be_reached("127.0.0.1", "127.0.0.2")
    assert may_be_reached("localhost", "127.0.0.1")
    assert may_be_reached("app.localhost", "::1")
    assert may_be_reached("localhost", "::ffff:127.0.0.1")
    assert not may_be_reached("localhost", "10.0.0.1")
