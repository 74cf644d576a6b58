"""The rules for a request, and the bytes that the gateway sends for one that obeys them.

The session is hostile: each part of a request is compared with a pattern, and what frames a message is
written by the gateway alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dios.errors import InvalidError
from dios.lib.sandbox.network.records import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    REQUEST_BYTES_MAX,
    Header,
    RequestHead,
)
from dios.limits import METHOD_CHARS_MAX
from dios.wire.origins import Origin
from dios.wire.types import RequestEnd

_METHOD: Final = re.compile(rf"[A-Z]{{1,{METHOD_CHARS_MAX}}}")
_NO_METHODS: Final = frozenset({"CONNECT", "TRACE", "TRACK"})
_TARGET: Final = re.compile(r"/[!\"$-~]*")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_SIGN: Final = re.compile(r"[^0-9a-z]")
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
ADDED_HEADERS_MAX: Final = 16
ADDED_CHARS_MAX: Final = 8192
_ADDED: Final = re.compile(rf"(?=[!-~\x80-\xff])[\t -~\x80-\xff]{{1,{ADDED_CHARS_MAX}}}(?<![\t ])")
_BREAKS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+")
_HEAD_BYTES: Final = HEAD_BYTES_MAX // 4

_OURS: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one connection, which the gateway sets or leaves out."""
_NOT_ANSWERED: Final = _OURS | {"alt-svc"}

NO_BODY: Final = frozenset({204, 304})


class RequestError(Exception):
    """A request without a complete answer, within the gateway; ``end`` is the kind of its end."""

    def __init__(self, end: RequestEnd, message: str) -> None:
        super().__init__(message)
        self.end: Final = end
        self.message: Final = message


def request_bytes(head: RequestHead, origin: Origin, added: Sequence[Header] = ()) -> bytes:
    """Return the head of a request to an origin as it is sent. Raise RequestError for one that is refused.

    ``added`` are headers of the caller, which replace those of the session with their names.
    """
    if not is_method(head.method):
        raise _refused(f"the method {head.method[:METHOD_CHARS_MAX]!r}; GET, POST and others are possible")
    if not _TARGET.fullmatch(head.target) or len(head.target) > _HEAD_BYTES:
        raise _refused("the target: it must be a path that begins with /, of ASCII characters without blanks")
    if len(head.headers) > HEADERS_MAX:
        raise _too_large(f"it has {len(head.headers)} headers, and at most {HEADERS_MAX} are sent")
    if head.length is not None and head.length > REQUEST_BYTES_MAX:
        raise _too_large(f"its body has {head.length:,} bytes, and at most {REQUEST_BYTES_MAX:,} are sent")
    host = str(origin).partition("://")[2]
    lines = [f"{head.method} {head.target} HTTP/1.1", f"Host: {host}"]
    hosts = 0
    ours = {_same(name) for name, _ in added}
    for name, value in head.headers:
        _check_header(name, value)
        if _same(name) in ours:
            continue
        if name.lower() != "host":  # ``_check_header`` refuses what looks like it
            lines.append(f"{name}: {value}")
            continue
        hosts += 1
        if hosts > 1 or value.lower() not in {host, f"{host}:{origin.port}"}:
            raise _refused(f"a Host header other than {host}")
    if head.length is None:
        lines.append("Transfer-Encoding: chunked")
    elif head.length or head.method in {"POST", "PUT", "PATCH"}:
        lines.append(f"Content-Length: {head.length}")
    # The headers of the caller do not count: the session would learn their size.
    size = len("\r\n".join([*lines, "Connection: close", "", ""]))
    if size > _HEAD_BYTES:
        raise _too_large(f"its headers have {size:,} bytes, and at most {_HEAD_BYTES:,} are sent")
    lines += [f"{name}: {value}" for name, value in added]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")


def checked_additions(given: Mapping[str, str]) -> list[Header]:
    """Return the headers that the caller adds to requests. Raise InvalidError, without their values.

    The values are secrets.
    """
    if len(given) > ADDED_HEADERS_MAX:
        raise InvalidError(f"{len(given)} headers are too many: add at most {ADDED_HEADERS_MAX} to an origin")
    for name, value in given.items():
        if type(name) is not str or not _NAME.fullmatch(name):
            raise InvalidError("the name of a header has letters, digits and '-'")
        if _same(name).strip("-") in _OURS | {"host"}:
            raise InvalidError(f"the header {name} belongs to the connection, and cannot be added")
        if type(value) is not str or not _ADDED.fullmatch(value):
            raise InvalidError(
                f"the value of the header {name} cannot be sent: it must be a text of 1 to"
                f" {ADDED_CHARS_MAX:,} characters of Latin-1, without line breaks, and without blanks at its"
                " begin and end"
            )
    if len({_same(name) for name in given}) < len(given):
        raise InvalidError("a header is named twice: name each once")
    return list(given.items())


def _same(name: str) -> str:
    """Return the text that is equal for names which a server may take for the same header."""
    # Servers that make variables of headers take "_", and some of them any sign, for "-".
    return _SIGN.sub("-", name.lower())


def is_method(text: str) -> bool:
    """Return True for a method that a request may have."""
    return _METHOD.fullmatch(text) is not None and text not in _NO_METHODS


def _check_header(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise _refused("a header whose name has other characters than names have")
    looks_like = _same(name).strip("-")
    if looks_like in _OURS or (looks_like == "host" and name.lower() != "host"):
        raise _refused(f"the header {name}, which belongs to the connection")
    if not _VALUE.fullmatch(value):
        raise _refused(f"the value of the header {name}: it has a line break or another control character")


def answered_headers(given: list[Header]) -> list[Header]:
    """Return the headers of an answer for the session, without those of the connection.

    Raises RequestError if there are too many.
    """
    kept = [(name, _BREAKS.sub(" ", value)) for name, value in given if name.lower() not in _NOT_ANSWERED]
    if len(kept) > HEADERS_MAX:
        raise _too_large(f"the answer has {len(kept)} headers, and at most {HEADERS_MAX} are accepted")
    return [(name, value) for name, value in kept if _NAME.fullmatch(name)]


def clean_reason(reason: str) -> str:
    """Return the text of a status line without control characters, and not longer than such texts are."""
    return _BREAKS.sub(" ", reason)[:200]


def _refused(subject: str) -> RequestError:
    return RequestError(RequestEnd.REFUSED, f"the sandbox refuses {subject}")


def _too_large(why: str) -> RequestError:
    return RequestError(RequestEnd.TOO_LARGE, f"the request is too large: {why}")
