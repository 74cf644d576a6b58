"""The sandbox for programs on asyncio and trio: ``async with dios.aio.Sandbox() as box:``.

``ops`` has the operations. No thread is used: the streams of the session are waited for on the event loop.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar, cast, overload

from dios.client.aio.event_loop import EventLoop
from dios.client.aio.node import AsyncNode, open_node
from dios.client.aio.running_loop import running_loop
from dios.client.sync.node import Node
from dios.errors import InvalidError, MissingEnvironmentError
from dios.lib.sandbox.async_process import SandboxProcess
from dios.lib.sandbox.async_steps import Turn, finish
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.errors import SandboxEndedError
from dios.lib.sandbox.network.grant import NetworkHeaders
from dios.lib.sandbox.ops import NOT_OPEN, Input, SandboxOps, checked_count
from dios.lib.sandbox.processes.handles import ProcessOps, ProgramInfo
from dios.lib.sandbox.steps import Steps
from dios.lib.snapshots.beginning import Beginning

if TYPE_CHECKING:
    from types import TracebackType

    from dios.lib.snapshots.snapshots import SandboxSnapshot

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    op: Callable[Concatenate[SandboxOps, P], Steps[T]],
) -> Callable[Concatenate[Sandbox, P], Coroutine[object, object, T]]:
    """Return the coroutine method for an operation, with its name without ``_op``."""

    @functools.wraps(op)
    async def method(self: Sandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in_turn(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


def _of_files(
    op: Callable[Concatenate[SandboxOps, P], Steps[T]],
) -> Callable[Concatenate[SandboxFiles, P], Coroutine[object, object, T]]:
    """Return the method of ``SandboxFiles`` for an operation."""

    @functools.wraps(op)
    async def method(self: SandboxFiles, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._box._in_turn(op(self._box, *args, **kwargs))  # noqa: SLF001 - a part of it

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = f"SandboxFiles.{method.__name__}"
    return method


def _at_once(
    op: Callable[Concatenate[SandboxOps, P], Steps[ProcessOps]],
) -> Callable[Concatenate[Sandbox, P], Coroutine[object, object, SandboxProcess]]:
    """Return the coroutine method for an operation that does not wait for the present run."""

    @functools.wraps(op)
    async def method(self: Sandbox, /, *args: P.args, **kwargs: P.kwargs) -> SandboxProcess:
        return SandboxProcess(await self._finish(op(self, *args, **kwargs)))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


class SandboxFiles:
    """The files of a sandbox: those of its image, or of its private folder without one.

    A path that is not absolute begins in the working directory.
    """

    def __init__(self, box: Sandbox) -> None:
        self._box: Final = box

    read = _of_files(SandboxOps.read_file_op)
    write = _of_files(SandboxOps.write_file_op)
    list = _of_files(SandboxOps.list_folder_op)
    make_folder = _of_files(SandboxOps.make_folder_op)
    remove = _of_files(SandboxOps.remove_path_op)
    upload = _of_files(SandboxOps.upload_op)
    download = _of_files(SandboxOps.download_op)


class Sandbox(SandboxOps):
    """A Python session in a pure task, for an ``async with`` body; ``dios.Sandbox`` is the blocking one.

    The arguments are those of ``dios.Sandbox``; ``node`` is an open ``AsyncNode`` or the place of one. The
    session starts with the body, which raises the errors of the constructor there.

    Async tasks may share a sandbox: their calls run one after the other. If a call is cancelled while its
    code runs, the code is interrupted, and what it printed is dropped. The session keeps its variables; it is
    ended if the code goes on for two seconds. A call that is cancelled before its turn does nothing.
    """

    def __init__(
        self,
        *,
        node: AsyncNode | str | Path | None = None,
        template: str = "",
        inputs: Mapping[str, Input] | None = None,
        memory: int | str | None = None,
        cpu_seconds: float | None = None,
        timeout: float | None = 60.0,
        bounds: SandboxBounds | None = None,
        network: Iterable[str] = (),
        network_ca: str | Path | bytes | None = None,
        network_headers: NetworkHeaders | None = None,
        forkable: bool = False,
        packages: Iterable[str] = (),
        wheels: str | os.PathLike[str] | None = None,
        image: str = "",
        snapshot: str | SandboxSnapshot = "",
        isolation: str = "kernel",
    ) -> None:
        super().__init__(
            inputs,
            memory,
            cpu_seconds,
            timeout,
            bounds,
            template,
            network,
            network_ca,
            network_headers,
            forkable=forkable,
            has_image=bool(image or snapshot),
            isolation=isolation,
        )
        self._place: Final = node
        self._beginning: Final = Beginning(
            str(image),
            snapshot,
            template,
            tuple(packages),
            None if wheels is None else os.fspath(wheels),
            self._isolation,
        )
        self._stack: Final = contextlib.AsyncExitStack()
        self._loop: EventLoop | None = None
        self._turn = Turn()
        self._is_fork = False

    run = _awaited(SandboxOps.run_op)
    exec = _awaited(SandboxOps.exec_op)
    put = _awaited(SandboxOps.put_op)
    get = _awaited(SandboxOps.get_op)
    call = _awaited(SandboxOps.call_op)
    complete = _awaited(SandboxOps.complete_op)
    describe = _awaited(SandboxOps.describe_op)
    pause = _awaited(SandboxOps.pause_op)
    resume = _awaited(SandboxOps.resume_op)
    reset = _awaited(SandboxOps.reset_op)
    start = _at_once(SandboxOps.start_op)
    attach = _at_once(SandboxOps.attach_op)

    async def processes(self) -> list[ProgramInfo]:
        """Return the programs that ``start`` began and that run, or whose output was not read yet."""
        return await self._finish(self.processes_op())

    @property
    def files(self) -> SandboxFiles:
        """The files of the session, by absolute paths, or paths in its working directory."""
        return SandboxFiles(self)

    @overload
    async def fork(self) -> Sandbox: ...
    @overload
    async def fork(self, count: int) -> list[Sandbox]: ...
    async def fork(self, count: int | None = None) -> Sandbox | list[Sandbox]:
        """Return an open sandbox whose session is a fork of this one, or a list of them.

        End each with ``close``, or use it in an ``async with`` statement; see ``dios.Sandbox.fork``.
        """
        number = checked_count(count)
        begin = await self._frozen_start() if self._has_image else self.fork_op
        others: list[Sandbox] = []
        try:
            for _ in range(number):
                other = copy.copy(self)
                vars(other).update(_turn=Turn(), _is_fork=True)
                await self._in_turn(begin(other))
                others.append(other)
        except BaseException:
            for other in others:
                await other.close()
            raise
        return others if count is not None else others[0]

    async def snapshot(self, place: str) -> SandboxSnapshot:
        """Store the files that differ from the image in a group; see ``dios.Sandbox.snapshot``."""
        frozen = await self._in_turn(self.freeze_op())
        # Most sandboxes have no snapshots.
        from dios.lib.snapshots.preparation import store  # noqa: PLC0415 - see above

        return await self._at_node(lambda node: store(node, self._beginning, self._image_name, frozen, place))

    async def _frozen_start(self) -> Callable[[Sandbox], Steps[None]]:
        """Bring the present files to the node, and return the start of a sandbox with them."""
        frozen = await self._in_turn(self.freeze_op())
        from dios.lib.snapshots.preparation import bring_frozen  # noqa: PLC0415 - the same

        await self._at_node(lambda node: bring_frozen(node, self._beginning, self._image_name, frozen))
        return functools.partial(self.restart_op, changes=frozen)

    async def close(self) -> None:
        """End the session; a second call does nothing. A cancellation waits for it."""
        self._closed = True
        if self._loop is not None:
            await self._loop.shielded(self._close)

    async def _close(self) -> None:
        loop = cast("EventLoop", self._loop)
        if self._turn.is_taken:
            # Another async task runs code: that ends now.
            await finish(loop, lambda: self._node, self.kill_op())
        async with self._turn:
            if await finish(loop, lambda: self._node, self.close_op()):
                await self._stack.aclose()

    async def __aenter__(self) -> Self:
        if self._closed:
            raise SandboxEndedError("this sandbox was closed: make a new one")
        if self._is_fork:
            self._is_fork = False
            return self
        if self._loop is not None:
            raise InvalidError("this sandbox is open already")
        self._loop = running_loop()
        try:
            place = self._place
            await self._prepare()
            if not isinstance(place, AsyncNode):
                place = await self._stack.enter_async_context(open_node(place))
            try:
                await self._in_turn(self.open_op(cast("Node", place)))
            except MissingEnvironmentError:
                if not self._has_image:
                    raise
                # The node may have removed it since it was brought.
                await self._prepare(is_missing=True)
                await self._in_turn(self.reset_op())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _prepare(self, *, is_missing: bool = False) -> None:
        """Bring what the session begins with to the node, unless it is a template or nothing."""
        if self._beginning.is_plain:
            return
        # Most sandboxes need nothing.
        from dios.lib.snapshots.preparation import bring  # noqa: PLC0415 - see above

        environment = await self._at_node(lambda node: bring(node, self._beginning, is_missing=is_missing))
        self._template, self._image_name, self._changes = environment

    async def _at_node(self, operation: Callable[[Node], T]) -> T:
        """Return the result of an operation that waits; a thread does it over a connection of its own."""
        place = self._place
        if isinstance(place, AsyncNode):
            raise InvalidError(
                "packages, images and snapshots need a connection of their own: give the place of the node, "
                "not an open one"
            )
        from dios.lib.snapshots.preparation import at  # noqa: PLC0415 - the same

        return await cast("EventLoop", self._loop).in_thread(functools.partial(at, place, operation))

    # -- steps ------------------------------------------------------------------------------------
    async def _in_turn(self, steps: Steps[T]) -> T:
        if self._loop is None:
            raise InvalidError(NOT_OPEN)
        # The call can be cancelled here, before it does anything.
        await self._loop.checkpoint()
        async with self._turn:
            return await finish(self._loop, lambda: self._node, steps)

    async def _finish(self, steps: Steps[T]) -> T:
        if self._loop is None:
            raise InvalidError(NOT_OPEN)
        await self._loop.checkpoint()
        return await finish(self._loop, lambda: self._node, steps)
