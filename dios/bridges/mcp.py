"""A server of the Model Context Protocol whose tools run code in sandboxes, for agents that need Python.

The person who starts the server chooses the inputs and the limits of all sessions; an agent opens sessions
and runs code in them, and names no file of the machine. ``mcp_http`` serves the same tools over HTTP.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from dios.client.plain_text import plain_lines
from dios.errors import DiosError
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.result import ProgramResult, SandboxResult
from dios.lib.sandbox.sandbox import Sandbox
from dios.limits import KIB, MIB

SESSIONS_MAX: Final = 16
"""The sessions that are open at once, of all clients."""

BOUNDS: Final = SandboxBounds(
    output_bytes=32 * KIB, repr_chars=8 * KIB, value_bytes=MIB, figures=4, figure_bytes=MIB, tables=0
)
"""The bounds of what a session returns: as much as a language model reads, and data frames as text."""

TEXT_CHARS_MAX: Final = 2 * MIB
"""The characters of a value that ``get`` returns as text, which may be longer than the encoded value."""

_NAME_SHOWN: Final = 100
_END_WAIT_S: Final = 10.0
_INTERRUPT_EVERY_S: Final = 0.2

_INSTRUCTIONS: Final = (
    "A Python interpreter in a sandbox: {network}, no files of the machine, no other programs. Call open"
    " once, then run with the session's name; variables stay between runs. The value of the last expression"
    " is returned as in a notebook, open figures of matplotlib as pictures. Files are written in the working"
    " directory."
)

_WITH_PROGRAMS: Final = (
    "A machine in a sandbox, with a shell, the programs of its image, and Python: {network}. Call open once,"
    " then exec or run with the session's name; files stay between calls, variables of run, too. fork opens a"
    " session that begins with the files of another one."
)

Content: TypeAlias = "list[str | Image]"
ToolContext: TypeAlias = Context[None, object]
ClientOf: TypeAlias = Callable[[ToolContext], str]
T = TypeVar("T")


@dataclass(slots=True)
class _Session:
    """A session of a client; ``box`` is None until ``making`` has made the sandbox."""

    client: str
    making: Future[Sandbox]
    box: Sandbox | None = None
    used_s: float = 0.0
    calls: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def _only_client(_context: ToolContext) -> str:
    return ""


class SandboxTools:
    """The tools of one server, and its open sessions by name.

    ``client_of`` returns the identity of the client that calls, which is empty if nothing distinguishes
    clients. A session of a known client serves that client alone; any other session serves the clients that
    know its name, which is random. ``idle_s`` is the time after which a session that nobody uses is closed.
    With ``has_programs`` the sandboxes have an image, and there are tools for its programs and files.
    """

    def __init__(
        self,
        make: Callable[[], Sandbox],
        inputs: tuple[str, ...] = (),
        origins: tuple[str, ...] = (),
        *,
        client_of: ClientOf | None = None,
        idle_s: float | None = None,
        has_programs: bool = False,
    ) -> None:
        self._make: Final = make
        self._inputs: Final = inputs
        self._origins: Final = origins
        self._client_of: Final = client_of or _only_client
        self._has_clients: Final = client_of is not None
        self._idle_s: Final = idle_s
        self._has_programs: Final = has_programs
        self._sessions: Final[dict[str, _Session]] = {}
        self._closing = False
        # One thread for the call of each session, and one to close or interrupt it.
        self._threads: Final = ThreadPoolExecutor(2 * SESSIONS_MAX, "sandbox")

    def server(
        self, auth: AuthSettings | None = None, verifier: TokenVerifier | None = None
    ) -> MCPServer[None]:
        """Return the server with the tools; it closes the sessions when it ends."""

        @asynccontextmanager
        async def lifespan(_server: MCPServer[None]) -> AsyncIterator[None]:
            sweeping = asyncio.create_task(self._sweep())
            try:
                yield
            finally:
                sweeping.cancel()
                self.close_all()

        known = ", ".join(f"/inputs/{name} (or inputs[{name!r}])" for name in self._inputs)
        network = (
            f"no network but HTTP requests to {', '.join(self._origins)}" if self._origins else "no network"
        )
        instructions = _WITH_PROGRAMS if self._has_programs else _INSTRUCTIONS
        told = instructions.format(network=network) + (f" Files of the user: {known}." if known else "")
        server = MCPServer(
            "dios",
            instructions=told,
            lifespan=lifespan,
            log_level="WARNING",
            auth=auth,
            token_verifier=verifier,
        )
        programs = (self.exec, self.files) if self._has_programs else ()
        sessions = (self.open, self.run, self.put, self.get, self.fork, self.reset, self.list, self.close)
        for tool in (*sessions, *programs):
            server.add_tool(tool, structured_output=False)
        return server

    # -- tools ------------------------------------------------------------------------------------
    async def open(self, context: ToolContext) -> str:
        """Open a session with a fresh Python interpreter, and return its name."""
        name = self._new_name()
        session = _Session(self._client_of(context), self._threads.submit(self._make))
        self._sessions[name] = session
        try:
            box = await _done(session.making)
        except BaseException:
            self._end(name)
            raise
        session.box, session.used_s = box, time.monotonic()
        return name

    async def run(self, session: str, code: str, context: ToolContext) -> Content:
        """Run Python code in a session; return its output, the value of its last expression and figures.

        An exception is returned as a traceback, with what the sandbox refused and how to get it. At its time
        limit the code is stopped, and the session keeps its variables.
        """
        return content_of(await self._call(session, context, lambda box: box.run(code)))

    async def exec(
        self,
        session: str,
        arguments: builtins.list[str],
        context: ToolContext,
        stdin: str = "",
        cwd: str = "",
    ) -> str:
        """Run a program in a session; return its output and its exit status.

        ``arguments`` are the program and its arguments, which no shell reads: for a line of a shell give
        ["sh", "-c", LINE]. ``stdin`` is its input, ``cwd`` its working directory. At its time limit it is
        killed, and the session goes on.
        """
        done = await self._call(session, context, lambda box: box.exec(*arguments, stdin=stdin, cwd=cwd))
        return text_of_program(done)

    async def files(self, session: str, folder: str, context: ToolContext) -> str:
        """List the files in a folder of a session: kind, size in bytes, permissions and name."""
        rows = await self._call(session, context, lambda box: box.files.list(folder))
        lines = [f"{row.kind:6} {row.size:>12} {row.mode:04o} {row.name}" for row in rows]
        return "\n".join(lines) or "the folder is empty"

    async def put(self, session: str, name: str, value: str, context: ToolContext) -> str:
        """Set a variable of a session to a text, or write a text to a file if the name has a dot or slash."""
        given = value if name.isidentifier() else value.encode(errors="backslashreplace")
        await self._call(session, context, lambda box: box.put(name, given))
        return f"{plain_lines(name)} is there"

    async def get(self, session: str, name: str, context: ToolContext) -> str:
        """Return a variable of a session as JSON, or the text of a file if the name has a dot or slash."""
        return await self._call(session, context, lambda box: _text_of(name, box.get(name)))

    async def fork(self, session: str, context: ToolContext) -> str:
        """Open a session that begins with the variables and files of another one, and return its name.

        Neither of the two sees later changes of the other. Close forks after use.
        """
        self._box(session, context)
        name = self._new_name()
        making: Future[Sandbox] = Future()
        self._sessions[name] = _Session(self._client_of(context), making)
        try:
            box = await self._call(session, context, lambda origin: _forked(origin, making))
        except BaseException:
            self._sessions.pop(name, None)
            if not making.cancel():
                # It is being made, or is there already: a cancelled call goes on in its thread.
                self._threads.submit(_close, making)
            raise
        session_entry = self._sessions.get(name)
        if session_entry is None:
            raise ToolError("the session was closed")
        session_entry.box, session_entry.used_s = box, time.monotonic()
        return name

    def _new_name(self) -> str:
        """Return a name for another session. Raise ToolError if there is no room for one."""
        if self._closing:
            raise ToolError("the server is about to end")
        if len(self._sessions) >= SESSIONS_MAX:
            raise ToolError(f"{SESSIONS_MAX} sessions are open, which is the most: close one first")
        return f"session-{secrets.token_hex(12)}"

    async def reset(self, session: str, context: ToolContext) -> str:
        """Start a session afresh, without variables and files; needed after it has ended."""
        await self._call(session, context, lambda box: box.reset())
        return f"{session} is fresh"

    async def list(self, context: ToolContext) -> str:
        """List the open sessions, each with the reason if it has ended."""
        client = self._client_of(context)
        if self._has_clients and not client:
            return (
                "no session can be listed, because nothing says which ones are yours: use the names from open"
            )
        lines = [
            f"{name}: {_state(session)}"
            for name, session in self._sessions.items()
            if session.client == client
        ]
        return "\n".join(lines) or "no session is open"

    async def close(self, session: str, context: ToolContext) -> str:
        """Close a session; its variables and files are lost."""
        self._box(session, context)
        ending = self._end(session)
        if ending is not None:
            await _done(ending)
        return f"{session} is closed"

    # -- ends -------------------------------------------------------------------------------------
    def close_client(self, client: str) -> None:
        """Close the sessions of a client that has left."""
        for name in [name for name, session in self._sessions.items() if session.client == client]:
            self._end(name)

    def close_all(self) -> None:
        """Close all sessions, and wait for their ends; none is opened any more. Later calls do nothing."""
        self._closing = True
        endings = [self._end(name) for name in list(self._sessions)]
        wait([ending for ending in endings if ending is not None], _END_WAIT_S)
        self._threads.shutdown(wait=False)

    async def _sweep(self) -> None:
        """Close sessions that nobody has used for a while."""
        while self._idle_s is not None:
            await asyncio.sleep(min(self._idle_s / 4, 60.0))
            latest = time.monotonic() - self._idle_s
            for name, session in list(self._sessions.items()):
                if session.box is not None and not session.calls and session.used_s < latest:
                    self._end(name)

    def _end(self, name: str) -> Future[None] | None:
        """Forget a session, and close its sandbox in a thread; its present call then ends."""
        session = self._sessions.pop(name, None)
        return None if session is None else self._threads.submit(_close, session.making)

    # -- calls ------------------------------------------------------------------------------------
    def _box(self, name: str, context: ToolContext) -> tuple[_Session, Sandbox]:
        session = self._sessions.get(name)
        if session is None or session.box is None or session.client != self._client_of(context):
            idle = f" One that is not used for {self._idle_s:.0f} s is closed." if self._idle_s else ""
            raise ToolError(
                f"you have no session {name[:_NAME_SHOWN]!r}; open returns the name of one.{idle}"
            )
        return session, session.box

    async def _call(self, name: str, context: ToolContext, function: Callable[[Sandbox], T]) -> T:
        """Call a function on a session, after the calls before it; one that is cancelled is interrupted."""
        session, _ = self._box(name, context)
        session.calls += 1
        try:
            async with session.turn:
                # It may have been closed during the wait.
                _, box = self._box(name, context)
                call = self._threads.submit(function, box)
                try:
                    return await _done(call)
                except asyncio.CancelledError:
                    if not call.done() and not self._closing:
                        self._threads.submit(_interrupt, box, call)
                    raise
        finally:
            session.calls -= 1
            session.used_s = time.monotonic()


async def _done(call: Future[T]) -> T:
    """Wait for a call in a thread; what it refused is for the agent to read."""
    try:
        return await asyncio.wrap_future(call)
    except DiosError as error:
        raise ToolError(plain_lines(error.message)) from error
    except OSError as error:
        raise ToolError(f"{error.filename or 'the machine'}: {error.strerror or error}") from error


def _close(making: Future[Sandbox]) -> None:
    """Close a sandbox, as soon as it is made if it is; the errors of a node that is gone do not matter."""
    with suppress(DiosError, OSError, CancelledError):
        making.result().close()


def _forked(origin: Sandbox, making: Future[Sandbox]) -> Sandbox:
    """Fork a sandbox, unless nobody waits for that any more."""
    if not making.set_running_or_notify_cancel():
        raise ToolError("the call was cancelled")
    try:
        box = origin.fork()
    except BaseException as error:
        making.set_exception(error)
        raise
    making.set_result(box)
    return box


def _interrupt(box: Sandbox, call: Future[T]) -> None:
    """Interrupt a call until it ends; one that has not begun cannot be interrupted yet."""
    while not call.done():
        box.interrupt()
        wait([call], _INTERRUPT_EVERY_S)


def _state(session: _Session) -> str:
    if session.box is None:
        return "it is being opened"
    return plain_lines(session.box.ended) or "open"


def _text_of(name: str, value: object) -> str:
    """Return a value as text. Raise ToolError if it cannot be shown, or is too long."""
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=repr)
        except (ValueError, TypeError, RecursionError) as error:
            raise ToolError(f"the value of {name} cannot be shown as JSON: {error}") from None
    text = plain_lines(text)
    if len(text) > TEXT_CHARS_MAX:
        raise ToolError(f"{name} has {len(text):,} characters, over {TEXT_CHARS_MAX:,}: take a part of it")
    return text


def text_of_program(done: ProgramResult) -> str:
    """Return the output and the end of a program as text, whose control characters are escaped."""
    parts = [done.stdout.rstrip("\n")]
    if done.stderr:
        parts.append(f"[stderr]\n{done.stderr.rstrip()}")
    if done.error is not None:
        parts.append(f"[error]\n{done.error}")
    elif done.exit_code:
        parts.append(f"[exit status {done.exit_code}]")
    return plain_lines("\n".join(part for part in parts if part)) or "(no output)"


def content_of(result: SandboxResult) -> Content:
    """Return a result as texts, whose control characters are escaped, and pictures."""
    parts = [result.stdout.rstrip("\n")]
    if result.stderr:
        parts.append(f"[stderr]\n{result.stderr.rstrip()}")
    if result.value_repr is not None:
        parts.append(f"[value]\n{result.value_repr}")
    if result.error is not None:
        parts.append(f"[error]\n{result.error}")
    text = plain_lines("\n".join(part for part in parts if part))
    pictures = [Image(data=figure, format="png") for figure in result.figures]
    return [text or "(no output)", *pictures]
