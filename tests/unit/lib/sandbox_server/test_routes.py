"""What a request may still do after its head: the key is checked again, and failures are told as they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import msgspec
import pytest
import trio

from dios.errors import UnreachableError
from dios.lib.sandbox_server.failures import Kind, RequestError, as_request_error
from dios.lib.sandbox_server.holder import SandboxHolder
from dios.lib.sandbox_server.http import AnswerWriter, Head
from dios.lib.sandbox_server.keys import KeyBounds, KeyFile
from dios.lib.sandbox_server.operations import Call, Operation
from dios.lib.sandbox_server.routes import OPERATIONS, Routes, _answered
from dios.lib.sandbox_server.templates import PLAIN

BOUNDS = KeyBounds(sandboxes=1, memory_bytes=1 << 30, seconds=60)


class Parts:
    """An answer that has begun, and its parts."""

    has_begun = True

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    async def send(self, data: bytes) -> None:
        """Keep a part."""
        self.parts.append(data)


def operation_of(path: str) -> Operation:
    """The operation with a path."""
    return next(row for row in OPERATIONS if row.path == path)


async def test_a_key_that_is_revoked_during_the_body_does_nothing(tmp_path: Path) -> None:
    """The head was admitted; the request is refused before it is done."""
    keys = KeyFile(tmp_path / "keys.json")
    secret = keys.add("one", "", BOUNDS)
    routes = Routes(SandboxHolder(PLAIN, keys, None))
    head = Head("GET", "/v1/sandboxes", {}, {"authorization": f"Bearer {secret}"})
    plan = routes.admit(head)
    writer = cast("AnswerWriter", Parts())
    reply = await plan.answer(b"", writer)
    assert reply is not None
    assert reply.status == 200
    keys.remove("one")
    with pytest.raises(RequestError) as refused:
        await plan.answer(b"", writer)
    assert refused.value.kind is Kind.UNAUTHENTICATED


@pytest.mark.parametrize("path", ["/execute", "/process.Process/Start"])
async def test_an_answer_that_fails_on_its_way_does_not_end_as_a_whole_one(path: str) -> None:
    """A stream of Connect says so in its last message; others break off."""

    async def fail(_call: Call, _request: msgspec.Struct) -> None:
        raise ValueError("a defect")

    operation = operation_of(path)
    body = b'{"code": "1"}'
    if operation.streams:
        body = b'{"process": {"cmd": "ls"}}'
        body = b"\0" + len(body).to_bytes(4, "big") + body
    parts = Parts()
    call = cast("Call", type("AnyCall", (), {"body": body, "writer": parts}))
    if operation.streams:
        assert await _answered(operation, fail, call) is None
        assert b'"error"' in parts.parts[-1]
    else:
        with pytest.raises(trio.BrokenResourceError):
            await _answered(operation, fail, call)


def test_failures_of_the_machine_are_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Their texts have places of the machine, which clients do not learn."""
    with caplog.at_level(logging.ERROR):
        failure = as_request_error(UnreachableError("no node answers at /srv/node0"))
    assert failure.kind is Kind.INTERNAL
    assert "/srv" not in failure.message
    assert "/srv/node0" in caplog.text
