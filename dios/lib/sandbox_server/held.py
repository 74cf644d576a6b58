"""One sandbox of the server: its session, commands that run side by side in it, and its files."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeVar, cast

import msgspec
import trio
from msgspec import Meta

from dios.errors import DiosError, TimeLimitError
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox.async_process import SandboxProcess
from dios.lib.sandbox.async_sandbox import Sandbox
from dios.lib.sandbox.processes.channels import ProgramOutput
from dios.lib.sandbox.result import SandboxDisplay, SandboxResult
from dios.lib.sandbox_server import inside
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.http import AnswerWriter
from dios.lib.sandbox_server.keys import KeyRecord
from dios.lib.sandbox_server.templates import SandboxTemplate
from dios.limits import KIB, MIB

CONTEXTS_MAX: Final = 8
FOLLOWERS_MAX: Final = 8
"""The streams that follow one command."""
_ANSWER_BYTES_MAX: Final = 2 * inside.JSON_CHARS_MAX + KIB
"""The bytes of an answer of ``inside``, which are decoded at once; only a list of files has more."""
_LIST_BYTES_MAX: Final = 8 * MIB
_PARTS_MAX: Final = 16
"""The parts of output that wait for a client; then the command waits, too."""
_SHELL: Final = "/bin/bash"
_OTHER_SHELL: Final = "/bin/sh"

_HELPER: Final = "_dios_server"
"""The variable of a session with ``inside.answer``."""

T = TypeVar("T")
_Former = dict[str, str | None]


class FileEntry(msgspec.Struct, frozen=True):
    """A file as the sandbox describes it: sizes in bytes, the time in nanoseconds since 1970."""

    name: Annotated[str, Meta(max_length=255)]
    path: Annotated[str, Meta(max_length=4096)]
    kind: Literal["file", "folder", "link", "other"]
    size: Annotated[int, Meta(ge=0, le=1 << 62)]
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    modified_ns: Annotated[int, Meta(ge=0, le=1 << 62)]
    target: Annotated[str, Meta(max_length=4096)]


class CommandConfig(NamedTuple):
    """A program and its arguments, its variables in addition to those of the sandbox, and its folder."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    folder: str


class CommandPart(NamedTuple):
    """Output of a command, or its end: the exit status, or the negative number of a signal."""

    stream: str = ""
    data: bytes = b""
    status: int | None = None


class Command:
    """A command that runs, and the streams that follow it."""

    def __init__(
        self,
        process: SandboxProcess,
        config: CommandConfig,
        tag: str,
        deadline: float,
    ) -> None:
        self.process: Final = process
        self.pid: Final = int(process.id, 16)
        self.config: Final = config
        self.tag: Final = tag
        self.is_late = False
        """True once it was killed at its deadline."""
        self.has_gap = False
        """True once output was dropped at the deadline, because a follower did not take it."""
        self._deadline = deadline
        self._followers: Final[list[trio.MemorySendChannel[CommandPart]]] = []

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[trio.MemoryReceiveChannel[CommandPart]]:
        """Yield a channel with the output from now on. Raise RequestError if many follow it already."""
        if len(self._followers) >= FOLLOWERS_MAX:
            raise RequestError(Kind.LIMIT, f"{FOLLOWERS_MAX} clients follow this command, the most")
        sending, receiving = trio.open_memory_channel[CommandPart](_PARTS_MAX)
        self._followers.append(sending)
        async with receiving:
            try:
                yield receiving
            finally:
                if sending in self._followers:
                    self._followers.remove(sending)

    async def run(self) -> int | None:
        """Give the output to those who follow it, and return its exit status, None if the session ended.

        The output is dropped while nobody follows it.
        """
        with contextlib.suppress(DiosError):
            while (part := await self._part()) is not None:
                # A command waits for its slowest follower, up to its deadline.
                deadline = math.inf if self.is_late else self._deadline
                await self._deliver(CommandPart(part.stream, part.data), deadline)
            return await self.process.wait()
        return None

    async def end(self, status: int | None) -> None:
        """Give the exit status to those who follow it; without one their streams just end."""
        if status is not None:
            await self._deliver(CommandPart(status=status), math.inf)
        for channel in self._followers:
            channel.close()
        self._followers.clear()
        with contextlib.suppress(DiosError):
            await self.process.close()

    async def _part(self) -> ProgramOutput | None:
        """Return the next output, None at the end. At its deadline the command is killed."""
        if not self.is_late and self._deadline < math.inf:
            try:
                return await self.process.read(max(0.0, self._deadline - trio.current_time()))
            except TimeLimitError:
                self.is_late = True
                await self.process.kill()
        return await self.process.read()

    async def _deliver(self, part: CommandPart, deadline: float) -> None:
        with trio.move_on_at(deadline) as scope:
            for channel in list(self._followers):
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await channel.send(part)
        self.has_gap |= scope.cancelled_caught


class Context:
    """A session in which code runs: that of the sandbox, or a further one with files of its own."""

    def __init__(self, name: str, box: Sandbox, folder: str) -> None:
        self.name: Final = name
        self.box: Final = box
        self.folder: Final = folder
        """The folder in which it begins; empty for that of the sandbox."""
        self.path = ""
        self.runs = 0


class HeldSandbox:
    """A sandbox that the server holds for a key until its time is over.

    ``began_s`` and ``ends_s`` are seconds since 1970.
    """

    def __init__(
        self,
        key: KeyRecord,
        template_name: str,
        template: SandboxTemplate,
        *,
        seconds: float | None,
        metadata: Mapping[str, str],
        variables: Mapping[str, str],
        request_key: str,
    ) -> None:
        self.name: Final = secrets.token_hex(10)
        self.token: Final = secrets.token_urlsafe(32)
        self.key: Final = key
        self.template_name: Final = template_name
        self.template: Final = template
        self.seconds: Final = seconds
        """The time of life that its client asked for."""
        self.metadata: Final = dict(metadata)
        self.variables: Final = dict(variables)
        self.request_key: Final = request_key
        self.began_s: Final = time.time()
        self.ends_s = self.began_s
        self.scope: Final = trio.CancelScope()
        """Its end ends the sandbox."""
        self.is_open = False
        self.over: Final = trio.Event()
        self.sessions = 1
        """Its own session and those of its further contexts, open or about to be."""
        self.commands: Final[dict[int, Command]] = {}
        self.contexts: Final[dict[str, Context]] = {}
        self.nursery: trio.Nursery | None = None
        """That of its commands, while it is open."""
        self._has_shell = False

    @property
    def box(self) -> Sandbox:
        """The session of the sandbox itself."""
        return self.contexts[self.name].box

    @property
    def awake(self) -> Sandbox:
        """The session of the sandbox itself. Raise RequestError while it is paused."""
        return require_awake(self.box)

    @property
    def is_paused(self) -> bool:
        """True between a pause and a resumption."""
        return self.is_open and self.box.paused

    @property
    def state(self) -> str:
        """Its state for clients: running, paused, or ended once its session has ended by itself."""
        if self.is_open and self.box.ended:
            return "ended"
        return "paused" if self.is_paused else "running"

    @property
    def seconds_left(self) -> float:
        """The time until its end."""
        return max(0.0, self.ends_s - time.time())

    def live_for(self, seconds: float) -> None:
        """End the sandbox after this time from now."""
        self.ends_s = time.time() + seconds
        self.scope.deadline = trio.current_time() + seconds

    def require_open(self) -> None:
        """Raise RequestError if the sandbox has ended."""
        if not self.is_open:
            raise RequestError(Kind.GONE, f"the sandbox {self.name} was not found")

    async def begin(self, context: Context) -> None:
        """Prepare a new session of the sandbox."""
        await context.box.put(_HELPER, inside.answer)
        if self.variables:
            await self.ask(_Former, "set_variables", self.variables, box=context.box)
        context.path = await self.ask(
            Annotated[str, Meta(max_length=4096)], "enter_folder", context.folder, box=context.box
        )
        if self.template.has_programs:
            self._has_shell = await self.ask(bool, "has_file", _SHELL, box=context.box)

    async def ask(self, kind: object, operation: str, *arguments: object, box: Sandbox | None = None) -> T:
        """Return an answer of ``inside``, which has this type. Raise the errors of ``Sandbox.call``."""
        data = await self._asked(box or self.box, operation, *arguments)
        if len(data) > (_LIST_BYTES_MAX if operation == "list" else _ANSWER_BYTES_MAX):
            raise UntrustedResultError("the session sent more than an answer has")
        try:
            return msgspec.json.decode(data, type=kind)  # type: ignore[no-any-return]  # by kind
        except (msgspec.DecodeError, RecursionError) as error:
            raise UntrustedResultError(f"the session sent something else than an answer: {error}") from None

    async def _asked(self, box: Sandbox, operation: str, *arguments: object) -> bytes:
        return cast("bytes", await require_awake(box).call(_HELPER, operation, *arguments))

    # -- commands ---------------------------------------------------------------------------------
    async def start(
        self,
        config: CommandConfig,
        *,
        has_input: bool = False,
        tag: str = "",
        terminal: tuple[int, int] | None = None,
        seconds: float = math.inf,
    ) -> Command:
        """Start a command, which is killed after ``seconds``; ``terminal`` is its rows and columns.

        Raises RequestError without the programs of an image, and the errors of ``Sandbox.start``.
        """
        self.require_programs()
        program, *arguments = config.arguments
        if program == _SHELL and not self._has_shell:
            program = _OTHER_SHELL
        process = await self.awake.start(
            program, *arguments, cwd=config.folder, env=config.variables, pty=terminal
        )
        command = Command(process, config, tag, trio.current_time() + seconds)
        self.commands[command.pid] = command
        nursery = self.nursery
        assert nursery is not None, "it is open"  # noqa: S101 - by the holder
        nursery.start_soon(self._run, command)
        if not has_input and terminal is None:
            await process.end_input()
        return command

    async def _run(self, command: Command) -> None:
        try:
            status = await command.run()
        finally:
            del self.commands[command.pid]
        await command.end(status)

    def require_programs(self) -> None:
        """Raise RequestError if the sandbox has no programs."""
        if not self.template.has_programs:
            raise RequestError(
                Kind.UNSUPPORTED,
                f"sandboxes of the template {self.template_name!r} have no programs: "
                "use run_code, or a template with an image",
            )

    def command(self, pid: int | None, tag: str | None) -> Command:
        """Return a command that runs, by its number or its tag. Raise RequestError."""
        for command in self.commands.values():
            if (pid is not None and command.pid == pid) or (pid is None and tag and command.tag == tag):
                return command
        raise RequestError(Kind.NOT_FOUND, "no such command runs in this sandbox")

    # -- files ------------------------------------------------------------------------------------
    async def read_file(self, path: str, writer: AnswerWriter) -> None:
        """Send the bytes of a file in parts, each of which waits for the client.

        Raises the errors of ``ask``, and RequestError over the bound; once it has begun that cuts the answer.
        """
        size = 0
        while True:
            part = await self._asked(self.box, "read_part", path, size)
            size += len(part)
            if len(part) > inside.FILE_PART_BYTES or size > inside.FILE_BYTES_MAX:
                raise RequestError(Kind.TOO_LARGE, f"the file has more than {inside.FILE_BYTES_MAX:,} bytes")
            if not writer.has_begun:
                await writer.begin("application/octet-stream")
            if part:
                await writer.send(part)
            if len(part) < inside.FILE_PART_BYTES:
                return

    # -- code -------------------------------------------------------------------------------------
    def context(self, name: str | None) -> Context:
        """Return a context by its name, the one of the sandbox itself for None. Raise RequestError."""
        try:
            return self.contexts[name or self.name]
        except KeyError:
            raise RequestError(Kind.NOT_FOUND, f"no context {name!r}: list the contexts") from None

    async def run(
        self,
        context: Context,
        code: str,
        variables: Mapping[str, str],
        on_output: Callable[[str, str], None],
        on_display: Callable[[SandboxDisplay], None],
    ) -> tuple[SandboxResult, str]:
        """Run code, and return the result, and the last value as JSON if it is a list or a dictionary."""
        box = require_awake(context.box)
        former: dict[str, str | None] = {}
        if variables:
            former = await self.ask(_Former, "set_variables", dict(variables), box=box)
        try:
            result = await box.run(code, on_output=on_output, on_display=on_display)
        finally:
            if former and not box.ended:
                await _to_its_end(lambda: self.ask(_Former, "set_variables", former, box=box))
        context.runs += 1
        value = result.value_repr or ""
        as_json = ""
        if value[:1] in {"[", "{"}:
            as_json = await self.ask(
                Annotated[str, Meta(max_length=inside.JSON_CHARS_MAX)], "last_value_json", box=box
            )
        return result, as_json


def require_awake(box: Sandbox) -> Sandbox:
    """Return a session. Raise RequestError while it is paused."""
    if box.paused:
        raise RequestError(Kind.CONFLICT, "the sandbox is paused: resume it, or connect to it")
    return box


async def _to_its_end(function: Callable[[], Awaitable[object]]) -> None:
    """Call a function, also after a cancellation, but for at most a second."""
    with trio.move_on_after(1, shield=True), contextlib.suppress(DiosError, RequestError):
        await function()


@contextlib.asynccontextmanager
async def beside(function: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a function beside the body, whose end it waits for; an error of the body ends it, and comes out."""
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(function)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - not in a group, so that its type is known
            failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
