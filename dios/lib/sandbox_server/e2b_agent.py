"""The interfaces of a sandbox of E2B: its files, the code that runs in it, and Connect-RPC for its commands.

Clients reach them with the access token of the sandbox. Messages of Connect-RPC are JSON, whose names and
forms are those of E2B's public descriptions of its agent (the services ``process`` and ``filesystem``).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, cast

import msgspec
import trio
from msgspec import UNSET, Meta, UnsetType, field

from dios.errors import DiosError
from dios.lib.sandbox.result import SandboxDisplay, SandboxResult, SandboxTable
from dios.lib.sandbox_server import inside
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import (
    Command,
    CommandConfig,
    CommandPart,
    Context,
    FileEntry,
    HeldSandbox,
    beside,
    require_awake,
)
from dios.lib.sandbox_server.holder import TEXT_CHARS_MAX, failure_of
from dios.lib.sandbox_server.http import BODY_BYTES_MAX, Reply
from dios.lib.sandbox_server.operations import Call, Interface, NoRequest, Operation, json_reply

STREAM: Final = "application/connect+json"
LINES: Final = "application/x-ndjson"
FILES_MAX: Final = 100
"""The files of one upload."""
_END: Final = 2
"""The flag of the last message of a stream."""
_PING_S: Final = 50.0
_DEPTH_MAX: Final = 64
_SIGNALS: Final = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}
_KINDS: Final = {"file": "FILE_TYPE_FILE", "folder": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
_BOUNDARY: Final = re.compile(r'multipart/form-data;.*?boundary="?([0-9A-Za-z\'()+_,./:=? -]{1,70})"?')
_FILE_NAME: Final = re.compile(rb'filename="([^"\r\n]{1,4096})"', re.IGNORECASE)

Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Path = Annotated[str, Meta(min_length=1, max_length=4096)]


# -- files --------------------------------------------------------------------------------------------
async def read_file(call: Call, _request: msgspec.Struct) -> None:
    """Send the bytes of a file."""
    _require_user(call)
    await call.held.read_file(call.query("path"), call.writer)


async def write_files(call: Call, _request: msgspec.Struct) -> Reply:
    """Write files: the body, or the parts of a form."""
    _require_user(call)
    kind = call.head.headers.get("content-type", "")
    if kind.startswith("multipart/"):
        files = _parts(call.body, kind)
        if call.head.query.get("path"):
            files = [(call.query("path"), data) for _, data in files[:1]] if len(files) == 1 else []
    else:
        files = [(call.query("path"), call.body)]
    if not 0 < len(files) <= FILES_MAX:
        raise RequestError(Kind.INVALID, f"an upload has 1 to {FILES_MAX} files, and `path` names one")
    rows = []
    for path, data in files:
        await call.held.ask(None, "make_parents", path)
        await call.held.awake.files.write(path, data)
        entry: FileEntry = await call.held.ask(FileEntry, "entry", path)
        rows.append({"name": entry.name, "path": entry.path, "type": "file"})
    return json_reply(rows)


def _parts(body: bytes, kind: str) -> list[tuple[str, bytes]]:
    """Return the names and bytes of the files of a form. Raise RequestError."""
    match = _BOUNDARY.fullmatch(kind.strip())
    if not match:
        raise RequestError(Kind.INVALID, "the form has no boundary")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + match[1].encode(), FILES_MAX + 2)
    if not parts or not parts[-1].startswith(b"--"):
        raise RequestError(Kind.INVALID, f"the form is incomplete, or has more than {FILES_MAX} files")
    files = []
    for part in parts[:-1]:
        head, blank, data = part.partition(b"\r\n\r\n")
        name = _FILE_NAME.search(head)
        if not blank or not name:
            raise RequestError(Kind.INVALID, "a part of the form is no file")
        try:
            files.append((name[1].decode().replace("%22", '"'), data))
        except UnicodeDecodeError:
            raise RequestError(Kind.INVALID, "the name of a file is no UTF-8") from None
    return files


async def health(call: Call, _request: msgspec.Struct) -> Reply:
    """Answer while the sandbox runs."""
    if call.held.box.ended:
        raise RequestError(Kind.GONE, f"the sandbox was not found: {call.held.box.ended}")
    return Reply(204)


# -- code ---------------------------------------------------------------------------------------------
class Cell(msgspec.Struct, frozen=True):
    """Code to run."""

    code: str
    context: Text | None = field(name="context_id", default=None)
    language: Text | None = None
    variables: dict[Text, Text] | None = field(name="env_vars", default=None)


class NewContext(msgspec.Struct, frozen=True):
    """A context to open."""

    language: Text | None = None
    folder: Text | None = field(name="cwd", default=None)


class ContextOfE2b(msgspec.Struct, frozen=True, rename={"name": "id", "folder": "cwd"}):
    """A context as clients of E2B know it."""

    name: str
    folder: str
    language: str = "python"


async def execute(call: Call, request: msgspec.Struct) -> None:
    """Run code, and send what it prints and shows as lines of JSON while it runs."""
    cell = cast("Cell", request)
    _require_python(cell.language)
    held = call.held
    require_awake(held.box)
    context = held.context(cell.context)
    # What a run may send is bounded by the bounds of the sandbox.
    sending, receiving = trio.open_memory_channel[Mapping[str, object]](math.inf)
    failures: list[Exception] = []
    values: list[SandboxDisplay] = []

    def show(display: SandboxDisplay) -> None:
        values.extend([display] if display.is_value else [])
        sending.send_nowait(_shown(display))

    async def run() -> None:
        async with sending:
            try:
                result, as_json = await held.run(
                    context,
                    cell.code,
                    cell.variables or {},
                    lambda stream, text: sending.send_nowait(
                        {"type": stream, "text": text, "timestamp": time.time_ns()}
                    ),
                    show,
                )
            except (DiosError, RequestError) as error:
                failures.append(error)
                return
            for line in _result_lines(result, as_json, context, is_shown=bool(values)):
                sending.send_nowait(line)

    await call.writer.begin(LINES)
    async with receiving, beside(run):
        async for line in receiving:
            if line:
                await call.writer.send(msgspec.json.encode(line) + b"\n")
    for error in failures:
        failure = failure_of(error)
        text = str(error) if failure is None else failure.message
        line = {"type": "error", "name": type(error).__name__, "value": text, "traceback": ""}
        await call.writer.send(msgspec.json.encode(line) + b"\n")


def _shown(display: SandboxDisplay) -> Mapping[str, object]:
    if display.clear:
        return {}
    forms: dict[str, object] = {"type": "result", "is_main_result": display.is_value}
    texts = {"text": display.text, "html": display.html, "png": display.png, "jpeg": display.jpeg}
    forms |= {name: value for name, value in texts.items() if value}
    if display.table is not None:
        forms["data"] = _columns(display.table)
    return forms


def _columns(table: SandboxTable) -> dict[str, list[object]]:
    return {name: [row[place] for row in table.rows] for place, name in enumerate(table.columns)}


def _result_lines(
    result: SandboxResult, as_json: str, context: Context, *, is_shown: bool
) -> list[Mapping[str, object]]:
    """Return the lines after a run; the last value is not repeated if the code has shown it."""
    lines: list[Mapping[str, object]] = [
        {"type": "result", "png": figure, "is_main_result": False} for figure in result.figures
    ]
    lines += [
        {"type": "result", "data": _columns(table), "is_main_result": False}
        for table in result.tables
        if table is not result.value_table
    ]
    if result.value_repr is not None and not is_shown:
        main: dict[str, object] = {"type": "result", "text": result.value_repr, "is_main_result": True}
        if result.value_table is not None:
            main["data"] = _columns(result.value_table)
        if as_json:
            try:
                main["json"] = msgspec.json.decode(as_json)
            except (msgspec.DecodeError, RecursionError):
                main.pop("json", None)  # the session has chosen the text
        lines.append(main)
    if result.error is not None:
        error = result.error
        text = f"{error.message} {error.remedy}" if error.remedy else error.message
        lines.append(
            {"type": "error", "name": error.type, "value": text, "traceback": error.traceback or str(error)}
        )
    lines.append({"type": "number_of_executions", "execution_count": context.runs})
    return lines


def _require_python(language: str | None) -> None:
    if language not in {None, "", "python"}:
        raise RequestError(Kind.UNSUPPORTED, "code runs in Python alone; for others use commands of an image")


async def open_context(call: Call, request: msgspec.Struct) -> Reply:
    """Open a session of its own."""
    new = cast("NewContext", request)
    _require_python(new.language)
    context = await call.holder.open_context(call.held, new.folder or "")
    return json_reply(ContextOfE2b(context.name, context.path), 201)


async def list_contexts(call: Call, _request: msgspec.Struct) -> Reply:
    """List the sessions of the sandbox."""
    return json_reply([ContextOfE2b(item.name, item.path) for item in call.held.contexts.values()])


async def close_context(call: Call, _request: msgspec.Struct) -> Reply:
    """End a session."""
    await call.holder.close_context(call.held, call.names[0])
    return Reply(204)


async def restart_context(call: Call, _request: msgspec.Struct) -> Reply:
    """Start a session afresh."""
    context = call.held.context(call.names[0])
    await context.box.reset()
    await call.held.begin(context)
    context.runs = 0
    return Reply(204)


# -- commands -----------------------------------------------------------------------------------------
class ProcessChoice(msgspec.Struct, frozen=True):
    """A command: its number, or the tag of its start."""

    pid: int | None = None
    tag: Text | None = None


class OneCommand(msgspec.Struct, frozen=True):
    """A command that runs."""

    process: ProcessChoice

    def of(self, held: HeldSandbox) -> Command:
        """Return the command. Raise RequestError."""
        return held.command(self.process.pid, self.process.tag)


class Config(msgspec.Struct, frozen=True):
    """A program, its arguments, variables and folder."""

    program: Text = field(name="cmd")
    arguments: list[str] = field(name="args", default_factory=list)
    variables: dict[Text, Text] = field(name="envs", default_factory=dict)
    folder: Text = field(name="cwd", default="")


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal."""

    rows: int = field(name="rows", default=24)
    columns: int = field(name="cols", default=80)

    def numbers(self) -> tuple[int, int]:
        """Return rows and columns."""
        return self.rows, self.columns


class Terminal(msgspec.Struct, frozen=True):
    """A terminal for a command."""

    size: TerminalSize = field(default_factory=TerminalSize)


class Start(msgspec.Struct, frozen=True):
    """A command to start."""

    process: Config
    pty: Terminal | None = None
    tag: Text = ""
    has_input: bool = field(name="stdin", default=False)


class Signal(OneCommand, frozen=True):
    """A signal to a command."""

    signal: Text = ""


class Resize(OneCommand, frozen=True):
    """The new size of a terminal."""

    pty: Terminal


class Input(msgspec.Struct, frozen=True):
    """Bytes for a command."""

    stdin: bytes | None = None
    pty: bytes | None = None


class SendInput(OneCommand, frozen=True):
    """Bytes for the input of a command."""

    input: Input


async def start_process(call: Call, request: msgspec.Struct) -> None:
    """Start a command, and send its output and its end; at the time limit of the call it is killed."""
    start = cast("Start", request)
    _require_user(call)
    if not start.process.program:
        raise RequestError(Kind.INVALID, "a command has the name of a program")
    command = await call.held.start(
        CommandConfig(
            [start.process.program, *start.process.arguments],
            start.process.variables,
            start.process.folder,
        ),
        has_input=start.has_input,
        tag=start.tag,
        terminal=None if start.pty is None else start.pty.size.numbers(),
        seconds=_limit_s(call),
    )
    async with command.followed() as parts:
        await _follow(call, command, parts, math.inf, is_terminal=start.pty is not None)


async def follow_process(call: Call, request: msgspec.Struct) -> None:
    """Send the output of a command from now on, and its end."""
    command = cast("OneCommand", request).of(call.held)
    async with command.followed() as parts:
        deadline = trio.current_time() + _limit_s(call)
        await _follow(call, command, parts, deadline, is_terminal=False)


async def _follow(
    call: Call, command: Command, parts: AsyncIterator[CommandPart], deadline: float, *, is_terminal: bool
) -> None:
    """Send the events of a command. Raise RequestError if the time is over before its end."""
    send = call.writer
    await send.begin(STREAM)
    await send.send(_message({"event": {"start": {"pid": command.pid}}}))
    while True:
        part: CommandPart | None = None
        with trio.move_on_at(min(deadline, trio.current_time() + _PING_S)):
            try:
                part = await anext(parts)
            except StopAsyncIteration:
                raise RequestError(Kind.GONE, "the session ended, and the command with it") from None
        if part is None:
            if trio.current_time() >= deadline:
                raise RequestError(Kind.TIMEOUT, "the time limit of the call is over; the command goes on")
            await send.send(_message({"event": {"keepalive": {}}}))
            continue
        if part.data:
            name = "pty" if is_terminal else part.stream
            await send.send(_message({"event": {"data": {name: part.data}}}))
        if part.status is not None and command.is_late:
            raise RequestError(Kind.TIMEOUT, "the command was killed at the time limit of the call")
        if part.status is not None and command.has_gap:
            raise RequestError(
                Kind.TIMEOUT, "output was dropped at the time limit of the call: it was not taken in time"
            )
        if part.status is not None:
            await send.send(_message({"event": {"end": _end_of(part.status)}}))
            await send.send(_message({}, _END))
            return


def _end_of(status: int) -> Mapping[str, object]:
    if status < 0:
        return {"exitCode": 128 - status, "exited": False, "status": f"ended by signal {-status}"}
    return {"exitCode": status, "exited": True, "status": f"exit status {status}"}


def _limit_s(call: Call) -> float:
    text = call.head.headers.get("connect-timeout-ms", "")
    if not text:
        return math.inf
    if not text.isdecimal() or len(text) > 10:
        raise RequestError(Kind.INVALID, "Connect-Timeout-Ms is a number of milliseconds")
    return int(text) / 1000


def _message(value: object, flags: int = 0) -> bytes:
    data = msgspec.json.encode(value)
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


def failed_stream(error: RequestError) -> bytes:
    """Return the last message of a stream that failed."""
    return _message({"error": {"code": error.kind.code, "message": error.message}}, _END)


def message_of(body: bytes) -> bytes:
    """Return the only message of the body of a call that is answered by a stream. Raise RequestError."""
    if len(body) < 5 or body[0] != 0 or len(body) != 5 + int.from_bytes(body[1:5], "big"):
        raise RequestError(Kind.INVALID, "the body is not one message of Connect, without compression")
    return body[5:]


async def list_processes(call: Call, _request: msgspec.Struct) -> Reply:
    """List the commands that run."""
    rows = [
        {
            "config": {
                "cmd": command.config.arguments[0],
                "args": command.config.arguments[1:],
                "envs": command.config.variables,
                "cwd": command.config.folder,
            },
            "pid": command.pid,
            **({"tag": command.tag} if command.tag else {}),
        }
        for command in call.held.commands.values()
    ]
    return json_reply({"processes": rows})


async def send_signal(call: Call, request: msgspec.Struct) -> Reply:
    """End a command, or ask it to end."""
    signal = cast("Signal", request)
    if signal.signal not in _SIGNALS:
        raise RequestError(Kind.UNSUPPORTED, f"the signals are {', '.join(_SIGNALS)}")
    await signal.of(call.held).process.kill(_SIGNALS[signal.signal])
    return json_reply({})


async def send_input(call: Call, request: msgspec.Struct) -> Reply:
    """Write to the input of a command."""
    message = cast("SendInput", request)
    stdin, pty = message.input.stdin, message.input.pty
    if (stdin is None) == (pty is None):
        raise RequestError(Kind.INVALID, "the input has either stdin or pty")
    await message.of(call.held).process.write(cast("bytes", pty if stdin is None else stdin))
    return json_reply({})


async def close_input(call: Call, request: msgspec.Struct) -> Reply:
    """Close the input of a command."""
    await cast("OneCommand", request).of(call.held).process.end_input()
    return json_reply({})


async def resize(call: Call, request: msgspec.Struct) -> Reply:
    """Change the size of the terminal of a command."""
    message = cast("Resize", request)
    await message.of(call.held).process.resize(*message.pty.size.numbers())
    return json_reply({})


# -- the file system ----------------------------------------------------------------------------------
class OnePath(msgspec.Struct, frozen=True):
    """A path."""

    path: Path


class Folder(OnePath, frozen=True):
    """A folder, and the number of levels to list."""

    depth: Annotated[int, Meta(ge=0, le=1 << 32)] = 1


class Move(msgspec.Struct, frozen=True):
    """A file, and its new path."""

    source: Path
    destination: Path


class EntryOfE2b(
    msgspec.Struct,
    frozen=True,
    rename={"kind": "type", "modified": "modifiedTime", "target": "symlinkTarget"},
):
    """A file as clients of E2B know it."""

    name: str
    kind: str
    path: str
    size: str
    mode: int
    permissions: str
    owner: str
    group: str
    modified: str
    target: str | UnsetType = UNSET


def _described(entry: FileEntry) -> EntryOfE2b:
    letters = "".join(
        letter if entry.mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx")
    )
    first = {"folder": "d", "link": "l"}.get(entry.kind, "-")
    return EntryOfE2b(
        name=entry.name,
        kind=_KINDS.get(entry.kind, "FILE_TYPE_UNSPECIFIED"),
        path=entry.path,
        size=str(entry.size),
        mode=entry.mode,
        permissions=first + letters,
        owner="root",
        group="root",
        modified=datetime.fromtimestamp(entry.modified_ns / 1e9, UTC).isoformat().replace("+00:00", "Z"),
        target=entry.target or UNSET,
    )


async def stat(call: Call, request: msgspec.Struct) -> Reply:
    """Describe a file."""
    return await _one_entry(call, "entry", cast("OnePath", request).path)


async def make_dir(call: Call, request: msgspec.Struct) -> Reply:
    """Make a folder with those above it."""
    return await _one_entry(call, "make_folder", cast("OnePath", request).path)


async def move(call: Call, request: msgspec.Struct) -> Reply:
    """Rename a file or a folder."""
    moved = cast("Move", request)
    return await _one_entry(call, "move", moved.source, moved.destination)


async def _one_entry(call: Call, operation: str, *arguments: str) -> Reply:
    _require_user(call)
    entry: FileEntry = await call.held.ask(FileEntry, operation, *arguments)
    return json_reply({"entry": _described(entry)})


async def list_dir(call: Call, request: msgspec.Struct) -> Reply:
    """List the files in a folder."""
    _require_user(call)
    folder = cast("Folder", request)
    entries: list[FileEntry] = await call.held.ask(
        Annotated[list[FileEntry], Meta(max_length=inside.ENTRIES_MAX)],
        "list",
        folder.path,
        min(folder.depth or 1, _DEPTH_MAX),
    )
    return json_reply({"entries": [_described(entry) for entry in entries]})


async def remove(call: Call, request: msgspec.Struct) -> Reply:
    """Remove a file, or a folder with its files."""
    _require_user(call)
    await call.held.awake.files.remove(cast("OnePath", request).path)
    return json_reply({})


def _require_user(call: Call) -> None:
    """Raise RequestError for another user than root, who owns everything in a sandbox."""
    name = call.head.query.get("username", "")
    text = call.head.headers.get("authorization", "")
    if text.startswith("Basic "):
        try:
            name = name or base64.b64decode(text[6:], validate=True).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            raise RequestError(Kind.INVALID, "the name of the user cannot be read") from None
    if name not in {"", "root"}:
        raise RequestError(
            Kind.UNSUPPORTED, f"a sandbox has one user, root, and no {name[:40]!r}: leave out user"
        )


def _code(
    method: str, path: str, name: str, effect: str, handler: object, request: type[msgspec.Struct] = NoRequest
) -> Operation:
    return Operation(Interface.E2B_CODE, method, path, name, effect, handler, request)  # type: ignore[arg-type]


def _rpc(
    path: str,
    name: str,
    effect: str,
    handler: object = None,
    request: type[msgspec.Struct] = NoRequest,
    *,
    streams: bool = False,
) -> Operation:
    return Operation(Interface.E2B_RPC, "POST", path, name, effect, handler, request, streams=streams)  # type: ignore[arg-type]


_PROCESS: Final = "/process.Process/"
_FILES: Final = "/filesystem.Filesystem/"
_NO_WATCH: Final = "sandboxes have no inotify: list the folder again"

OPERATIONS: Final = (
    Operation(
        Interface.E2B_FILES, "GET", "/files", "files.read", "a file of at most 64 MiB", read_file
    ),
    Operation(
        Interface.E2B_FILES, "POST", "/files", "files.write, write_files",
        "files of at most 64 MiB together; folders above are made", write_files,
        body_bytes_max=BODY_BYTES_MAX, has_raw_body=True
    ),
    Operation(Interface.E2B_FILES, "GET", "/health", "is_running", "answer while the sandbox runs", health),
    _code(
        "POST", "/execute", "run_code",
        "run Python; results are text, HTML, PNG, JPEG, JSON and columns of tables",
        execute, Cell
    )._replace(has_large_answer=True),
    _code(
        "POST", "/contexts", "create_code_context", "a session with variables and files of its own",
        open_context, NewContext
    ),
    _code("GET", "/contexts", "list_code_contexts", "list them", list_contexts),
    _code("DELETE", "/contexts/{id}", "remove_code_context", "end one", close_context),
    _code(
        "POST", "/contexts/{id}/restart", "restart_code_context",
        "a fresh session; that of the sandbox itself ends its commands", restart_context
    ),
    _rpc(
        _PROCESS + "Start", "commands.run, pty.create",
        "with an image: streamed output, exit codes, `background`, `envs`, `cwd`, `stdin`",
        start_process, Start, streams=True
    ),
    _rpc(
        _PROCESS + "Connect", "commands.connect", "the output of a command from now on", follow_process,
        OneCommand, streams=True
    ),
    _rpc(_PROCESS + "List", "commands.list", "those that run", list_processes),
    _rpc(
        _PROCESS + "SendSignal", "commands.kill", "SIGKILL or SIGTERM to the group of a command",
        send_signal, Signal
    ),
    _rpc(_PROCESS + "SendInput", "send_stdin", "write to its input", send_input, SendInput),
    _rpc(_PROCESS + "CloseStdin", "commands.close_stdin", "close its input", close_input, OneCommand),
    _rpc(_PROCESS + "Update", "pty.resize", "the size of its terminal", resize, Resize),
    _rpc(_FILES + "Stat", "files.exists, get_info", "describe a file", stat, OnePath),
    _rpc(_FILES + "ListDir", "files.list", "at most 10,000 files, `depth` levels", list_dir, Folder)._replace(
        has_large_answer=True
    ),
    _rpc(_FILES + "MakeDir", "files.make_dir", "with the folders above", make_dir, OnePath),
    _rpc(_FILES + "Move", "files.rename", "within the sandbox", move, Move),
    _rpc(_FILES + "Remove", "files.remove", "a folder goes with its files", remove, OnePath),
    _rpc(_PROCESS + "StreamInput", "StreamInput", "clients write by `SendInput`"),
    _rpc(_FILES + "CreateWatcher", "files.watch_dir", _NO_WATCH),
    _rpc(_FILES + "WatchDir", "files.watch_dir", _NO_WATCH, streams=True),
    _rpc(_FILES + "GetWatcherEvents", "files.watch_dir", _NO_WATCH),
    _rpc(_FILES + "RemoveWatcher", "files.watch_dir", _NO_WATCH),
)  # fmt: skip
