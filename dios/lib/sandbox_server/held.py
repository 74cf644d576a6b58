"""One sandbox of the server: its session, commands that run side by side in it, and its files."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
import trio
from msgspec import Meta

from dios.errors import DiosError
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox.async_sandbox import Sandbox
from dios.lib.sandbox.result import SandboxDisplay, SandboxResult
from dios.lib.sandbox_server import inside
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.keys import KeyRecord
from dios.lib.sandbox_server.templates import SandboxTemplate
from dios.limits import MIB

COMMANDS_MAX: Final = 64
"""The commands of a sandbox that run at once."""
CONTEXTS_MAX: Final = 8
FOLLOWERS_MAX: Final = 8
"""The streams that follow one command."""
FILE_BYTES_MAX: Final = 64 * MIB
"""The bytes of a file that a client reads."""
_PARTS_MAX: Final = 16
"""The parts of output that wait for a client; then the command waits, too."""
_POLL_S_MIN: Final = 0.002
_POLL_S_MAX: Final = 0.1
_KILL: Final = 9

_HELPER: Final = "_dios_server"
"""The variable of a session with ``inside.answer``."""

T = TypeVar("T")
Pid = Annotated[int, Meta(ge=1, le=1 << 31)]
Status = Annotated[int, Meta(ge=-128, le=255)]
Part = Annotated[bytes, Meta(max_length=inside.PART_BYTES)]
FilePart = Annotated[bytes, Meta(max_length=inside.FILE_PART_BYTES)]


class FileEntry(msgspec.Struct, frozen=True):
    """A file as the sandbox describes it: sizes in bytes, the time in nanoseconds since 1970."""

    name: Annotated[str, Meta(max_length=255)]
    path: Annotated[str, Meta(max_length=4096)]
    kind: Literal["file", "folder", "link", "other"]
    size: Annotated[int, Meta(ge=0, le=1 << 62)]
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    modified_ns: Annotated[int, Meta(ge=0, le=1 << 62)]
    target: Annotated[str, Meta(max_length=4096)]


class CommandPart(msgspec.Struct, frozen=True):
    """Output of a command, or its end: the exit status, or the negative number of a signal."""

    stdout: bytes = b""
    stderr: bytes = b""
    status: int | None = None


class Command:
    """A command that runs, and the streams that follow it."""

    def __init__(
        self,
        pid: int,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: str,
        tag: str,
        deadline: float,
    ) -> None:
        self.pid: Final = pid
        self.deadline = deadline
        self.is_late = False
        """True once it was killed at its deadline."""
        self.arguments: Final = tuple(arguments)
        self.variables: Final = dict(variables)
        self.folder: Final = folder
        self.tag: Final = tag
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

    @property
    def has_room(self) -> bool:
        """True if every follower has room for output."""
        return all(channel.statistics().current_buffer_used < _PARTS_MAX - 1 for channel in self._followers)

    def deliver(self, part: CommandPart) -> None:
        """Give a part to the followers, and after the end no further one."""
        for channel in self._followers:
            with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):
                channel.send_nowait(part)
        if part.status is not None:
            self.forget()

    def forget(self) -> None:
        """End the streams that follow the command."""
        for channel in self._followers:
            channel.close()
        self._followers.clear()


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
        metadata: Mapping[str, str],
        variables: Mapping[str, str],
        request_key: str,
    ) -> None:
        self.name: Final = secrets.token_hex(10)
        self.token: Final = secrets.token_urlsafe(32)
        self.key: Final = key
        self.template_name: Final = template_name
        self.template: Final = template
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
        self._work = trio.Event()

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
            await self.ask(object, "set_variables", self.variables, box=context.box)
        context.path = await self.ask(
            Annotated[str, Meta(max_length=4096)], "enter_folder", context.folder, box=context.box
        )
        self.contexts[context.name] = context

    async def ask(self, kind: object, operation: str, *arguments: object, box: Sandbox | None = None) -> T:
        """Return an answer of ``inside``, which has this type. Raise the errors of ``Sandbox.call``."""
        value = await require_awake(box or self.box).call(_HELPER, operation, *arguments)
        try:
            return msgspec.convert(value, kind)  # type: ignore[no-any-return]  # by kind
        except msgspec.ValidationError as error:
            raise UntrustedResultError(f"the session sent something else than an answer: {error}") from None

    # -- commands ---------------------------------------------------------------------------------
    async def start(
        self,
        arguments: Sequence[str],
        *,
        variables: Mapping[str, str],
        folder: str = "",
        has_input: bool = False,
        tag: str = "",
        seconds: float = math.inf,
    ) -> Command:
        """Start a command, which is killed after ``seconds``.

        Raises RequestError without the programs of an image, or over the bound.
        """
        if not self.template.has_programs:
            raise RequestError(
                Kind.UNSUPPORTED,
                f"sandboxes of the template {self.template_name!r} have no programs: "
                "use run_code, or a template with an image",
            )
        if not arguments or not arguments[0]:
            raise RequestError(Kind.INVALID, "a command has the name of a program")
        if len(self.commands) >= COMMANDS_MAX:
            raise RequestError(Kind.LIMIT, f"{COMMANDS_MAX} commands run in this sandbox, the most: end one")
        pid: int = await self.ask(Pid, "start", list(arguments), dict(variables), folder, has_input)
        command = self.commands[pid] = Command(
            pid, arguments, variables, folder, tag, trio.current_time() + seconds
        )
        self._work.set()
        return command

    def command(self, pid: int | None, tag: str | None) -> Command:
        """Return a command that runs, by its number or its tag. Raise RequestError."""
        for command in self.commands.values():
            if (pid is not None and command.pid == pid) or (pid is None and tag and command.tag == tag):
                return command
        raise RequestError(Kind.NOT_FOUND, "no such command runs in this sandbox")

    async def write(self, command: Command, data: bytes) -> None:
        """Write to the input of a command; wait while it does not read."""
        pause_s = _POLL_S_MIN
        while data:
            count: int = await self.ask(Annotated[int, Meta(ge=0, le=len(data))], "write", command.pid, data)
            data = data[count:]
            if data:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S_MAX)

    async def pump(self) -> None:
        """Bring the output of all commands to those who follow them, until this is cancelled."""
        pause_s = _POLL_S_MIN
        while True:
            if not self.commands:
                self._work = trio.Event()
                await self._work.wait()
                pause_s = _POLL_S_MIN
            await trio.sleep(pause_s)
            if self.is_paused:
                pause_s = _POLL_S_MAX
                continue
            try:
                await self._kill_late()
                has_news = await self._poll(
                    [pid for pid, command in self.commands.items() if command.has_room]
                )
            except (DiosError, RequestError):
                if self.box.paused:
                    continue
                # The session ended, or its answers are none: no command can be followed any more.
                for command in self.commands.values():
                    command.forget()
                self.commands.clear()
                continue
            pause_s = _POLL_S_MIN if has_news else min(2 * pause_s, _POLL_S_MAX)

    async def _kill_late(self) -> None:
        for command in list(self.commands.values()):
            if not command.is_late and trio.current_time() >= command.deadline:
                command.is_late = True
                await self.ask(object, "signal", command.pid, _KILL)

    async def _poll(self, pids: Sequence[int]) -> bool:
        news: dict[int, tuple[bytes, bytes, int | None]] = await self.ask(
            dict[int, tuple[Part, Part, Status | None]], "poll", list(pids)
        )
        has_news = False
        for pid in pids:
            if pid not in news:
                # The session was started afresh.
                self.commands.pop(pid).forget()
                continue
            part = CommandPart(*news[pid])
            if part != CommandPart():
                has_news = True
                self.commands[pid].deliver(part)
            if part.status is not None:
                del self.commands[pid]
        return has_news

    # -- files ------------------------------------------------------------------------------------
    async def read_file(self, path: str) -> bytes:
        """Return the bytes of a file. Raise RequestError over the bound, and the errors of ``ask``."""
        data = bytearray()
        while True:
            part: bytes = await self.ask(FilePart, "read_part", path, len(data))
            data += part
            if len(data) > FILE_BYTES_MAX:
                raise RequestError(Kind.TOO_LARGE, f"the file has more than {FILE_BYTES_MAX:,} bytes")
            if len(part) < inside.FILE_PART_BYTES:
                return bytes(data)

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
            former = await self.ask(dict[str, str | None], "set_variables", dict(variables), box=box)
        try:
            result = await box.run(code, on_output=on_output, on_display=on_display)
        finally:
            if former and not box.ended:
                await _to_its_end(lambda: self.ask(object, "set_variables", former, box=box))
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
    """Call a function even after a cancellation, for a second."""
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
