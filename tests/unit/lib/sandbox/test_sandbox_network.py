"""The rules for requests of a session with a granted network, and the authorities that it trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.errors import InvalidError, ProtocolError
from dios.lib.sandbox.network import records
from dios.lib.sandbox.network.authorities import authorities
from dios.lib.sandbox.network.checked import RequestError, answered_headers, request_bytes
from dios.lib.sandbox.network.grant import NetworkGrant, headers_from_variables
from dios.lib.sandbox.network.records import RequestHead
from dios.wire.origins import parse_origin
from tests.support.web_servers import Authority

ORIGIN = parse_origin("https://api.example.org:8443")

texts = st.text(max_size=20) | st.sampled_from(["GET", "/", "Host", "a\r\nb", "X", "api.example.org:8443"])


def test_the_head_of_a_request_is_written_by_the_gateway() -> None:
    """Host, the framing and the end of the connection are not the session's."""
    head = RequestHead(0, "POST", "/a?b=c", [("Host", "api.example.org:8443"), ("X-Y", "z")], 3)
    assert request_bytes(head, ORIGIN) == (
        b"POST /a?b=c HTTP/1.1\r\nHost: api.example.org:8443\r\nX-Y: z\r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )
    streamed = request_bytes(RequestHead(0, "PUT", "/", [], None), ORIGIN)
    assert b"\r\nTransfer-Encoding: chunked\r\n" in streamed
    assert b"Content-Length" not in streamed
    assert b"Content-Length" not in request_bytes(RequestHead(0, "GET", "/", [], 0), ORIGIN)


@given(texts, texts, st.lists(st.tuples(texts, texts), max_size=4), st.none() | st.integers(0, 1 << 40))
def test_any_request_is_one_request_or_refused(
    method: str, target: str, headers: list[tuple[str, str]], length: int | None
) -> None:
    """Whatever the session chooses, the head ends where it should, and has one Host and one framing."""
    try:
        data = request_bytes(RequestHead(0, method, target, headers, length), ORIGIN)
    except RequestError:
        return
    head, end, rest = data.partition(b"\r\n\r\n")
    assert (end, rest) == (b"\r\n\r\n", b"")
    lines = head.split(b"\r\n")
    assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert names.count(b"host") == 1
    assert names.count(b"connection") == 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert len(lines[0].split(b" ")) == 3


@given(st.lists(st.tuples(texts, texts), max_size=4))
def test_any_answer_has_headers_of_one_line(headers: list[tuple[str, str]]) -> None:
    """Headers of the connection are dropped, and no value has a line break."""
    for name, value in answered_headers([*headers, ("Transfer-Encoding", "chunked"), ("X", "a\r\nb")]):
        assert name.lower() != "transfer-encoding"
        assert not set("\r\n\0") & set(name + value)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    """Rubbish raises ProtocolError and nothing else."""
    try:
        records.decode_request(data)
    except ProtocolError:
        return


def test_authorities_are_those_of_a_file_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE names the machine's; a text without a certificate is refused, and says what to do."""
    pem = Authority().pem
    file = tmp_path / "ca.pem"
    file.write_bytes(pem)
    assert pem in authorities(file)
    assert authorities(pem) == pem
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert pem in authorities()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with pytest.raises(InvalidError, match="ca-certificates"):
        authorities()
    for wrong in (b"", b"text", b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n"):
        with pytest.raises(InvalidError, match="certificate"):
            authorities(wrong)


def test_the_folder_of_authorities_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with certificates under their hashes is what OpenSSL reads, too."""
    pem = Authority().pem
    (tmp_path / "1234abcd.0").write_bytes(pem)
    (tmp_path / "readme").write_text("not this")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    if ssl.get_default_verify_paths().capath != str(tmp_path):
        pytest.skip("this Python does not read SSL_CERT_DIR")
    assert authorities().strip() == pem.strip()


def test_mistakes_in_arguments_are_found_before_anything_starts() -> None:
    """A single text instead of a list, authorities without origins, and what is no origin."""
    with pytest.raises(InvalidError, match=r'\["https://a.b"\]'):
        NetworkGrant("https://a.b", None)
    with pytest.raises(InvalidError, match="network="):
        NetworkGrant([], b"")
    with pytest.raises(InvalidError, match="origin"):
        NetworkGrant(["a.b"], None)
    assert NetworkGrant(["http://127.0.0.1"], None).origins


ADDED = {
    "a header of the connection": {"Connection": "close"},
    "a length": {"content_length": "3"},
    "a host": {"Host": "evil.example.org"},
    "a name with a line": {"X: y\r\nZ": "secret"},
    "a value with a line": {"X": "secret\r\nY: z"},
    "an empty value": {"X": ""},
    "a value with blanks around": {"X": " secret"},
    "a value that is too long": {"X": "secret" * 2000},
    "a value out of the alphabet": {"X": "secret\u20ac"},
    "a name twice": {"X-Key": "secret", "x_key": "secret"},
    "many": {f"X-{number}": "secret" for number in range(17)},
}


@pytest.mark.parametrize("headers", ADDED.values(), ids=ADDED)
def test_headers_that_cannot_be_added_are_refused_without_their_values(headers: dict[str, str]) -> None:
    """The message names the header, and never the value, which is a secret."""
    with pytest.raises(InvalidError) as told:
        NetworkGrant([str(ORIGIN)], None, {str(ORIGIN): headers})
    assert "secret" not in str(told.value)


@given(texts, texts, st.lists(st.tuples(texts, texts), max_size=4), st.none() | st.integers(0, 1 << 40))
def test_an_added_header_is_sent_once_and_never_overridden(
    method: str, target: str, headers: list[tuple[str, str]], length: int | None
) -> None:
    """Whatever the session sends, its own header of the name is dropped."""
    spelled = [*headers, ("X", "forged"), ("x", "forged")]
    try:
        data = request_bytes(RequestHead(0, method, target, spelled, length), ORIGIN, [("X", "ours")])
    except RequestError:
        return
    named = [line for line in data.split(b"\r\n") if line.lower().startswith(b"x:")]
    assert named == [b"X: ours"]


def test_the_value_of_a_header_is_in_a_file(tmp_path: Path) -> None:
    """A path stands for the value, also with words before it and with signs of headers in it."""
    key = tmp_path / "my=key:@ file"
    key.write_text("secret\n")
    key.chmod(0o600)
    headers = headers_from_variables(
        [f"https://a.example=Authorization:Bearer @{key}", f"https://a.example=X-Key:@{key}"]
    )
    assert headers == {"https://a.example": {"Authorization": "Bearer secret", "X-Key": "secret"}}


def test_a_file_that_others_can_read_has_no_secret(tmp_path: Path) -> None:
    """Each mistake is told with what to do, and without the value."""
    key = tmp_path / "key"
    key.write_text("value-of-the-key")
    key.chmod(0o640)
    wrong = {str(key): "chmod 600", "key": "whole path", str(tmp_path / "none"): "cannot read"}
    for path, told in wrong.items():
        with pytest.raises(InvalidError, match=told) as refused:
            headers_from_variables([f"https://a.example=X-Key:@{path}"])
        assert "value-of" not in str(refused.value)
    key.chmod(0o600)
    key.write_text(" \n")
    with pytest.raises(InvalidError, match="is empty"):
        headers_from_variables([f"https://a.example=X-Key:@{key}"])
