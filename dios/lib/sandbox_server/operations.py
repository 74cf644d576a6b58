"""The table of operations from which the routes, the OpenAPI document and the tables of the pages follow."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import HeldSandbox
from dios.lib.sandbox_server.holder import SandboxHolder
from dios.lib.sandbox_server.http import AnswerWriter, Head, Reply
from dios.lib.sandbox_server.keys import KeyRecord
from dios.limits import MIB

_JSON_BYTES_MAX: Final = 4 * MIB
_SEGMENT: Final = r"([A-Za-z0-9_.~%-]{1,200})"


class Interface(Enum):
    """A group of operations, with their secret and the form of their failures."""

    REST = "REST"
    E2B_API = "E2B: sandboxes"
    E2B_FILES = "E2B: files"
    E2B_CODE = "E2B: code"
    E2B_RPC = "E2B: Connect-RPC"

    @property
    def takes_key(self) -> bool:
        """True if an API key admits a request; otherwise the access token of a sandbox does."""
        return self in {Interface.REST, Interface.E2B_API}


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was admitted: the key, and the sandbox of the path or of the access token."""

    holder: SandboxHolder
    head: Head
    names: tuple[str, ...]
    key: KeyRecord
    body: bytes
    writer: AnswerWriter
    sandbox: HeldSandbox | None = None

    @property
    def held(self) -> HeldSandbox:
        """The sandbox of the request. Raise RequestError if the path names none of the key."""
        return self.sandbox or self.holder.held(self.key, self.names[0])

    def query(self, name: str) -> str:
        """Return a parameter of the query. Raise RequestError without it."""
        value = self.head.query.get(name, "")
        if not value:
            raise RequestError(Kind.INVALID, f"the parameter {name} is missing")
        return value


Handler = Callable[[Call, msgspec.Struct], Awaitable[Reply | None]]


class NoRequest(msgspec.Struct, frozen=True):
    """A request without a body."""


class Operation(NamedTuple):
    """One row: the route, the name that clients know, what it does, and the function that does it.

    Without a ``handler`` it is not supported, and ``effect`` is the reason. ``answer`` is the type of a JSON
    answer, None for none; ``streams`` is True for a Connect-RPC that answers in parts. Requests with a large
    answer are counted until it is taken.
    """

    interface: Interface
    method: str
    path: str
    name: str
    effect: str
    handler: Handler | None = None
    request: type[msgspec.Struct] = NoRequest
    answer: object = None
    status: int = 200
    body_bytes_max: int = _JSON_BYTES_MAX
    has_raw_body: bool = False
    query: tuple[str, ...] = ()
    streams: bool = False
    has_large_answer: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of its paths, which are still encoded."""
        return re.compile(re.sub(r"\\\{\w+\\\}", lambda _: _SEGMENT, re.escape(self.path)))

    def read(self, body: bytes) -> msgspec.Struct:
        """Return the request of a body. Raise RequestError for one of another form."""
        if self.has_raw_body or self.request is NoRequest:
            return NoRequest()
        try:
            return msgspec.json.decode(body or b"{}", type=self.request)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(Kind.INVALID, f"the request has another form: {error}") from None


def json_reply(value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Return an answer of JSON; bytes are in base64."""
    return Reply(status, msgspec.json.encode(value), headers=headers)
