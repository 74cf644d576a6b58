"""Finds the operation of a request, checks its secret, and gives failures the form of its protocol."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

import trio

from dios.errors import DiosError
from dios.lib.sandbox_server import e2b_agent, e2b_api, rest
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import HeldSandbox
from dios.lib.sandbox_server.holder import SandboxHolder, failure_of
from dios.lib.sandbox_server.http import AnswerWriter, Application, Head, Plan, Reply
from dios.lib.sandbox_server.keys import KeyRecord
from dios.lib.sandbox_server.operations import Call, Handler, Interface, Operation, json_reply

OPERATIONS: Final = (*rest.OPERATIONS, *e2b_api.OPERATIONS, *e2b_agent.OPERATIONS)
"""All operations, one row each."""
OPENAPI_PATH: Final = "/openapi.json"
_ANSWERS_OF_A_SANDBOX: Final = 2
"""The runs at once for each sandbox that a key may have, also those whose answer the client takes slowly."""
_RPC: Final = ("/process.Process/", "/filesystem.Filesystem/")

_log: Final = logging.getLogger(__name__)
_PATTERNS: Final = tuple((operation, operation.pattern) for operation in OPERATIONS)
_AGENT_PORTS: Final = frozenset({"", "49983", "49999"})
"""The ports of a sandbox of E2B that its clients use by themselves: its agent, and its interpreter."""
_NO_RETRY: Final = (("Should-Retry", "false"),)
"""Clients of E2B would repeat a request over a limit, which only the end of a sandbox changes."""


class Routes(Application):
    """The operations on the sandboxes of a server."""

    def __init__(self, holder: SandboxHolder) -> None:
        self._holder: Final = holder

    def admit(self, head: Head) -> Plan:
        """Return the plan for a request: its operation, if its secret admits it."""
        with _keys_read():
            return self._plan(head)

    def _plan(self, head: Head) -> Plan:
        if (head.method, head.path) == ("GET", OPENAPI_PATH):
            return Plan("", 0, _openapi)
        operation, names = _operation(head)
        key, held = self._admitted(operation, head)
        handler = operation.handler
        if handler is None:
            raise RequestError(Kind.UNSUPPORTED, f"{operation.name} is not supported: {operation.effect}")

        unknown = head.query.keys() - set(operation.query)
        if operation.interface is Interface.REST and unknown:
            raise RequestError(
                Kind.INVALID, f"the query has unknown parameters: {', '.join(sorted(unknown))}"
            )

        async def answer(body: bytes, writer: AnswerWriter) -> Reply | None:
            # The body has taken its time: what the head was admitted for may be over.
            with _keys_read():
                self._holder.require_valid(key)
            if held is not None:
                held.require_open()
            call = Call(self._holder, head, names, key, body, writer, held)
            return await _answered(operation, handler, call)

        most = _ANSWERS_OF_A_SANDBOX * key.bounds.sandboxes if operation.has_large_answer else None
        return Plan(key.name, operation.body_bytes_max, answer, most)

    def _admitted(self, operation: Operation, head: Head) -> tuple[KeyRecord, HeldSandbox | None]:
        """Return the key of a request, and the sandbox of an access token. Raise RequestError."""
        headers, holder = head.headers, self._holder
        if operation.interface.takes_key:
            secret = headers.get("x-api-key", "")
            authorization = headers.get("authorization", "")
            if not secret and authorization.startswith("Bearer "):
                secret = authorization.removeprefix("Bearer ").strip()
            return holder.key_of(secret), None
        if headers.get("e2b-sandbox-port", "") not in _AGENT_PORTS:
            raise RequestError(Kind.UNSUPPORTED, "this server passes on no ports of sandboxes")
        if "signature" in head.query:
            raise RequestError(
                Kind.UNSUPPORTED, "this server serves no signed addresses: use files.read and files.write"
            )
        token = headers.get("x-access-token", "") or headers.get("e2b-traffic-access-token", "")
        held = holder.held_with_token(headers.get("e2b-sandbox-id", ""), token)
        return held.key, held

    def refusal(self, head: Head | None, error: RequestError) -> Reply:
        """Return a failure in the form of the protocol of a request."""
        headers = _NO_RETRY if error.kind is Kind.LIMIT else ()
        path = head.path if head else ""
        if path.startswith(_RPC):
            if head and head.headers.get("content-type", "").startswith(e2b_agent.STREAM):
                return Reply(200, e2b_agent.failed_stream(error), e2b_agent.STREAM, headers)
            return json_reply({"code": error.kind.code, "message": error.message}, error.kind.status, headers)
        return json_reply({"code": error.kind.status, "message": error.message}, error.kind.status, headers)


@contextlib.contextmanager
def _keys_read() -> Iterator[None]:
    """Raise RequestError if the body cannot read the keys."""
    try:
        yield
    except (DiosError, OSError) as error:
        _log.error("the keys cannot be read: %s", error)
        raise RequestError(Kind.INTERNAL, "the server cannot read its keys: its log has the reason") from None


def _operation(head: Head) -> tuple[Operation, tuple[str, ...]]:
    """Return the operation of a request, and the names in its path. Raise RequestError."""
    for operation, pattern in _PATTERNS:
        match = pattern.fullmatch(head.path) if operation.method == head.method else None
        if match:
            return operation, tuple(map(unquote, match.groups()))
    if head.path.startswith(_RPC):
        raise RequestError(Kind.UNSUPPORTED, f"this server has no call {head.path[:100]}")
    raise RequestError(
        Kind.NOT_FOUND, f"this server has no {head.method} {head.path[:100]}: see {OPENAPI_PATH}"
    )


@functools.cache
def _document() -> Reply:
    return json_reply(rest.openapi())


async def _openapi(_body: bytes, _responder: AnswerWriter) -> Reply:
    return _document()


async def _answered(operation: Operation, handler: Handler, call: Call) -> Reply | None:
    """Call the function of an operation.

    A failure of a stream that has begun is its last message; other answers that have begun break off.
    """
    try:
        body = e2b_agent.message_of(call.body) if operation.streams else call.body
        return await handler(call, operation.read(body))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            _log.exception("a request failed: %s", operation.name)
            failure = RequestError(Kind.INTERNAL, "the server has a defect: its log has it")
        if not call.writer.has_begun:
            raise failure from error
        if not operation.streams:
            raise trio.BrokenResourceError from error
        await call.writer.send(e2b_agent.failed_stream(failure))
        return None
