"""The server's own REST interface, for programs without a client of E2B, and its OpenAPI document."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Final, cast

import msgspec
import trio
from msgspec import Meta

from dios.errors import DiosError, TimeLimitError
from dios.installation import version
from dios.lib.sandbox.result import SandboxDisplay, SandboxFailure, SandboxTable
from dios.lib.sandbox_server import inside
from dios.lib.sandbox_server.e2b_api import Seconds, Text
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import FileEntry, HeldSandbox
from dios.lib.sandbox_server.http import BODY_BYTES_MAX, Reply
from dios.lib.sandbox_server.operations import Call, Interface, NoRequest, Operation, json_reply

_END_S: Final = 1.0


class NewSandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sandbox to create."""

    template: Text = "base"
    seconds: Seconds | None = None
    metadata: dict[Text, Text] = {}
    environment: dict[Text, Text] = {}


class SandboxRow(msgspec.Struct, frozen=True):
    """A sandbox, which is running, paused or ended; times are seconds since 1970."""

    id: str
    template: str
    state: str
    began: float
    ends: float
    metadata: dict[str, str]


class Life(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds of life from now."""

    seconds: Seconds


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Python code."""

    code: str
    environment: dict[Text, Text] = {}


class ShownValue(msgspec.Struct, frozen=True):
    """A value that the code has shown; pictures are in base64."""

    text: str
    html: str
    png: bytes
    jpeg: bytes


class RunResult(msgspec.Struct, frozen=True):
    """The end of a run; figures are PNG in base64."""

    ok: bool
    stdout: str
    stderr: str
    value: str | None
    error: SandboxFailure | None
    figures: list[bytes]
    tables: list[SandboxTable]
    shown: list[ShownValue]


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the image, and its arguments; no shell reads them."""

    arguments: Annotated[list[str], Meta(min_length=1, max_length=10_000)]
    environment: dict[Text, Text] = {}
    folder: Text = ""
    stdin: str = ""
    seconds: Seconds = 60


class ProgramEnd(msgspec.Struct, frozen=True):
    """The end of a program: its exit status, or the negative number of the signal that ended it."""

    exit_code: int
    stdout: str
    stderr: str


class SnapshotName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a snapshot."""

    name: Text


class SnapshotRow(msgspec.Struct, frozen=True):
    """A snapshot: the template that begins with it."""

    template: str


def _row(held: HeldSandbox) -> SandboxRow:
    return SandboxRow(held.name, held.template_name, held.state, held.began_s, held.ends_s, held.metadata)


async def create(call: Call, request: msgspec.Struct) -> Reply:
    """Create a sandbox."""
    new = cast("NewSandbox", request)
    held = await call.holder.create(
        call.key, new.template, seconds=new.seconds, metadata=new.metadata, variables=new.environment
    )
    return json_reply(_row(held), 201)


async def list_sandboxes(call: Call, _request: msgspec.Struct) -> Reply:
    """List the sandboxes of the key."""
    return json_reply([_row(held) for held in call.holder.all_of(call.key)])


async def describe(call: Call, _request: msgspec.Struct) -> Reply:
    """Describe a sandbox."""
    return json_reply(_row(call.held))


async def end(call: Call, _request: msgspec.Struct) -> Reply:
    """End a sandbox."""
    await call.holder.end(call.held)
    return Reply(204)


async def set_life(call: Call, request: msgspec.Struct) -> Reply:
    """Set the time of life from now."""
    call.holder.set_life(call.held, cast("Life", request).seconds)
    return json_reply(_row(call.held))


async def pause(call: Call, _request: msgspec.Struct) -> Reply:
    """Stop all processes of a sandbox."""
    await call.held.box.pause()
    return json_reply(_row(call.held))


async def resume(call: Call, _request: msgspec.Struct) -> Reply:
    """Let a sandbox go on."""
    await call.held.box.resume()
    return json_reply(_row(call.held))


async def run(call: Call, request: msgspec.Struct) -> Reply:
    """Run code."""
    held, code = call.held, cast("Code", request)
    shown: list[ShownValue] = []

    def show(display: SandboxDisplay) -> None:
        if not display.clear:
            shown.append(ShownValue(display.text, display.html, display.png, display.jpeg))

    def ignore(_stream: str, _text: str) -> None:
        """The result has the whole text."""

    result, _ = await held.run(held.context(None), code.code, code.environment, ignore, show)
    return json_reply(
        RunResult(
            ok=result.ok,
            stdout=result.stdout,
            stderr=result.stderr,
            value=result.value_repr,
            error=result.error,
            figures=list(result.figures),
            tables=list(result.tables),
            shown=shown,
        )
    )


async def execute(call: Call, request: msgspec.Struct) -> Reply:
    """Run a program to its end."""
    held, program = call.held, cast("Program", request)
    held.require_programs()
    process = await held.awake.start(*program.arguments, cwd=program.folder, env=program.environment)
    try:
        ended = await process.communicate(program.stdin, program.seconds)
    except TimeLimitError:
        text = f"the program ran for {program.seconds:g} s and was killed"
        raise RequestError(Kind.TIMEOUT, text) from None
    finally:
        with trio.move_on_after(_END_S, shield=True), contextlib.suppress(DiosError):
            if process.returncode is None:
                await process.kill()
            await process.close()
    code = cast("int", ended.exit_code)  # it has ended
    return json_reply(ProgramEnd(code, ended.stdout, ended.stderr))


async def read_file(call: Call, _request: msgspec.Struct) -> None:
    """Send the bytes of a file."""
    await call.held.read_file(call.query("path"), call.writer)


async def write_file(call: Call, _request: msgspec.Struct) -> Reply:
    """Write a file."""
    path = call.query("path")
    await call.held.ask(None, "make_parents", path)
    await call.held.awake.files.write(path, call.body)
    return Reply(204)


async def remove_file(call: Call, _request: msgspec.Struct) -> Reply:
    """Remove a file, or a folder with its files."""
    await call.held.awake.files.remove(call.query("path"))
    return Reply(204)


async def list_folder(call: Call, _request: msgspec.Struct) -> Reply:
    """List the files in a folder."""
    kind = Annotated[list[FileEntry], Meta(max_length=inside.ENTRIES_MAX)]
    return json_reply(await call.held.ask(kind, "list", call.query("path"), 1))


async def snapshot(call: Call, request: msgspec.Struct) -> Reply:
    """Store the files of a sandbox."""
    template = await call.holder.snapshot(call.held, cast("SnapshotName", request).name)
    return json_reply(SnapshotRow(template), 201)


async def remove_snapshot(call: Call, _request: msgspec.Struct) -> Reply:
    """Remove a snapshot."""
    await call.holder.remove_snapshot(call.key, f"snapshot/{call.names[0]}")
    return Reply(204)


def _rest(method: str, path: str, name: str, effect: str, handler: object, **more: object) -> Operation:
    return Operation(Interface.REST, method, f"/v1{path}", name, effect, handler, **more)  # type: ignore[arg-type]


_BOX: Final = "/sandboxes/{id}"
_FILE: Final[Mapping[str, object]] = {
    "has_raw_body": True,
    "body_bytes_max": BODY_BYTES_MAX,
    "query": ("path",),
}

OPERATIONS: Final = (
    _rest(
        "POST", "/sandboxes", "create", "start a sandbox of a template", create, request=NewSandbox,
        answer=SandboxRow, status=201
    ),
    _rest(
        "GET", "/sandboxes", "list", "list the sandboxes of the key", list_sandboxes,
        answer=list[SandboxRow]
    ),
    _rest("GET", _BOX, "describe", "describe a sandbox", describe, answer=SandboxRow),
    _rest("DELETE", _BOX, "delete", "end a sandbox", end, status=204),
    _rest(
        "POST", _BOX + "/life", "set_life", "set its seconds of life from now", set_life, request=Life,
        answer=SandboxRow
    ),
    _rest("POST", _BOX + "/pause", "pause", "stop all its processes", pause, answer=SandboxRow),
    _rest("POST", _BOX + "/resume", "resume", "let them go on", resume, answer=SandboxRow),
    _rest(
        "POST", _BOX + "/run", "run", "run Python code", run, request=Code, answer=RunResult,
        has_large_answer=True
    ),
    _rest(
        "POST", _BOX + "/exec", "exec", "run a program of the image to its end", execute, request=Program,
        answer=ProgramEnd, has_large_answer=True
    ),
    _rest("GET", _BOX + "/files", "read", "read a file", read_file, answer=bytes, query=("path",)),
    _rest(
        "PUT", _BOX + "/files", "write", "write a file, the body of the request", write_file, status=204,
        **_FILE
    ),
    _rest(
        "DELETE", _BOX + "/files", "remove", "remove a file or a folder", remove_file, status=204,
        query=("path",)
    ),
    _rest(
        "GET", _BOX + "/folder", "list_folder", "list the files in a folder", list_folder,
        answer=list[FileEntry], query=("path",), has_large_answer=True
    ),
    _rest(
        "POST", _BOX + "/snapshot", "snapshot",
        "store the files of a sandbox with an image, as a template", snapshot, request=SnapshotName,
        answer=SnapshotRow, status=201
    ),
    _rest(
        "DELETE", "/snapshots/{id}", "remove_snapshot", "remove a snapshot, TEMPLATE.NAME", remove_snapshot,
        status=204
    ),
)  # fmt: skip


def openapi() -> dict[str, object]:
    """Return the OpenAPI document of the REST interface."""
    types = [operation.request for operation in OPERATIONS if operation.request is not NoRequest]
    types += [operation.answer for operation in OPERATIONS if operation.answer not in {None, bytes}]  # type: ignore[misc]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schema_of)
    failure = {"type": "object", "properties": {"code": {"type": "integer"}, "message": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "DIOS sandboxes", "version": version()},
        "paths": paths,
        "components": {
            "schemas": {**components, "Failure": failure},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _described(operation: Operation, schema_of: Mapping[str, object]) -> dict[str, object]:
    binary: dict[str, object] = {"application/octet-stream": {}}
    parameters = [_parameter("id", "path")] if "{id}" in operation.path else []
    parameters += [_parameter(name, "query") for name in operation.query]
    answer: dict[str, object] = {"description": operation.effect}
    if operation.answer is bytes:
        answer["content"] = binary
    elif operation.answer is not None:
        answer["content"] = {"application/json": {"schema": schema_of[str(operation.answer)]}}
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Failure"}}}
    document: dict[str, object] = {
        "operationId": operation.name,
        "summary": operation.effect,
        "responses": {
            str(operation.status): answer,
            "default": {"description": "the reason why it was not done", "content": refused},
        },
    }
    if parameters:
        document["parameters"] = parameters
    if operation.has_raw_body:
        document["requestBody"] = {"required": True, "content": binary}
    elif operation.request is not NoRequest:
        content = {"application/json": {"schema": schema_of[str(operation.request)]}}
        document["requestBody"] = {"required": True, "content": content}
    return document


def _parameter(name: str, place: str) -> dict[str, object]:
    return {"name": name, "in": place, "required": True, "schema": {"type": "string"}}
