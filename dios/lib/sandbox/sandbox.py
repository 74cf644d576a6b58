"""``Sandbox``: runs code that nobody has read, in a session of its own that holds what it was given.

``ops`` has the operations. ``async_sandbox`` is the same for programs on asyncio and trio.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar, cast

from dios.client.sync.connection import Connection
from dios.client.sync.node import Node, connect_or_start
from dios.errors import MissingEnvironmentError
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.network.grant import NetworkHeaders
from dios.lib.sandbox.ops import Input, SandboxOps
from dios.lib.sandbox.steps import Call, Read, Step, Steps

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    op: Callable[Concatenate[SandboxOps, P], Steps[T]],
) -> Callable[Concatenate[Sandbox, P], T]:
    """Return the blocking method for an operation, with its name without ``_op``."""

    @functools.wraps(op)
    def method(self: Sandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._in_turn(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


def _environment(
    node: Node,
    packages: Iterable[str],
    wheels: str | os.PathLike[str] | None,
    template: str,
    image: str,
) -> str:
    if image:
        return _image(node, image, template or ("packages" if packages or wheels is not None else ""))
    # Most sandboxes need none.
    from dios.lib.environments.environments import environment_on  # noqa: PLC0415 - see above

    return environment_on(node, packages, wheels=wheels, template=template)


def _of_files(
    op: Callable[Concatenate[SandboxOps, P], Steps[T]],
) -> Callable[Concatenate[SandboxFiles, P], T]:
    """Return the method of ``SandboxFiles`` for an operation."""

    @functools.wraps(op)
    def method(self: SandboxFiles, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._box._in_turn(op(self._box, *args, **kwargs))  # noqa: SLF001 - a part of it

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = f"SandboxFiles.{method.__name__}"
    return method


def _image(node: Node, image: str, others: str, *, is_missing: bool = False) -> str:
    # Most sandboxes have none.
    from dios.lib.images.images import image_on  # noqa: PLC0415 - see above

    return image_on(node, image, others, is_missing=is_missing)


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


class Sandbox(SandboxOps):
    """A Python session in a pure task, which keeps its variables between runs; a ``with`` body ends it.

    ``template`` names a template in the node's settings: its modules are loaded already, in memory that all
    its sessions share. ``inputs`` are what the session may read, by name: paths of files, bytes, or
    references. ``memory`` (bytes, or text such as "512 MiB") and ``cpu_seconds`` limit the session,
    ``timeout`` the seconds of each operation; None is the node's default, and no limit of time. ``bounds``
    limit the results. ``network`` names origins such as "https://api.example.org", to which it may make
    HTTP requests by way of the node; ``network_ca`` is a file (or its bytes) with the certificates of
    authorities to trust for them, in place of the machine's. ``network_headers`` are headers by origin, such
    as {"https://api.example.org": {"Authorization": "Bearer ..."}}, that are added to the requests outside of
    the session, which does not learn them. With ``forkable`` the session can be forked. ``node`` is an open
    ``Node`` or the place of one; with None and no node running, the program gets a private one, as from
    ``dios.connect``.

    ``packages`` are requirements such as "pandas==2.3", which are installed once and which the session alone
    imports: from the wheels in the folder ``wheels``, or those of the package index of pip. Such a session
    has no template and cannot be forked.

    ``image`` names an OCI image, whose files are the root file system of the session, and whose programs
    ``exec`` runs: "oci-layout:FOLDER[:TAG]", "oci-archive:FILE[:TAG]", or "dios://GROUP/FILE[:TAG]" for an
    archive in a group. ``memory`` and ``cpu_seconds`` are then those of all processes, and changed files are
    in memory. Such a session has no template and no packages, and cannot be forked.

    Threads may share a sandbox: their calls run one after the other. Raises UnreachableError if there is no
    node and none can be started, NotSupportedError for a template that the node does not have or cannot
    load, or an image that it cannot start, InvalidError for arguments that are out of range and an image that
    is damaged or refused, NotPermittedError for ``network`` without the right to the network, LimitError,
    NoSpaceError or OutOfMemoryError if the node has no room, OSError for an input that cannot be read.
    """

    def __init__(
        self,
        *,
        node: Node | str | Path | None = None,
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
            has_image=bool(image),
        )
        self._turn: Final = threading.Lock()
        self._opens_node: Final = not isinstance(node, Node)
        if not isinstance(node, Node):
            node = connect_or_start(node, pool_size=1)
        if image or packages or wheels is not None:
            try:
                self._template = _environment(node, packages, wheels, template, image)
            except BaseException:
                if self._opens_node:
                    node.close()
                raise
        try:
            try:
                self._in_turn(self.open_op(node))
            except MissingEnvironmentError:
                if not image:
                    raise
                # The node may have removed it since it was brought.
                self._template = _image(node, image, template, is_missing=True)
                self._in_turn(self.reset_op())
        except BaseException:
            self.close()
            raise

    run = _blocking(SandboxOps.run_op)
    exec = _blocking(SandboxOps.exec_op)
    put = _blocking(SandboxOps.put_op)
    get = _blocking(SandboxOps.get_op)
    call = _blocking(SandboxOps.call_op)
    complete = _blocking(SandboxOps.complete_op)
    describe = _blocking(SandboxOps.describe_op)
    reset = _blocking(SandboxOps.reset_op)

    @property
    def files(self) -> SandboxFiles:
        """The files of the session, by absolute paths, or paths in its working directory."""
        return SandboxFiles(self)

    def fork(self) -> Sandbox:
        """Return a sandbox whose session is a fork of this one, with the same variables, modules and files.

        It costs about as much as the fork of a process. The two sessions share nothing that either changes
        afterwards, have the same limits each, and end independently. The fork can be forked, too. ``reset``
        of the fork starts a fresh session.

        Raises SessionForkError if the sandbox was not made with ``forkable=True``, or the session has
        threads, open files, or inputs that it uses without a copy; it keeps its state. Raises LimitError or
        OutOfMemoryError if the node has no room, SandboxEndedError if the session has ended.
        """
        other = copy.copy(self)
        vars(other)["_turn"] = threading.Lock()
        self._in_turn(self.fork_op(other))
        return other

    def close(self) -> None:
        """End the session; a second call does nothing."""
        self._closed = True
        if self._turn.locked():
            # Another thread runs code: that ends now.
            self._finish(self.kill_op())
        if self._in_turn(self.close_op()) and self._opens_node:
            self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- steps ------------------------------------------------------------------------------------
    def _in_turn(self, steps: Steps[T]) -> T:
        with self._turn:
            return self._finish(steps)

    def _finish(self, steps: Steps[T]) -> T:
        """Take steps to their end; an exception between two of them, such as Ctrl-C, goes to the next one."""
        done: object = None
        error: BaseException | None = None
        while True:
            try:
                # Two loops, so that a signal between two steps arrives in the try statement, too.
                while True:
                    step = steps.send(done) if error is None else steps.throw(error)
                    error, done = None, None
                    done = self._taken(step)
            except StopIteration as end:
                return cast("T", end.value)
            except BaseException as raised:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    raise
                error = raised

    def _taken(self, step: Step) -> object:
        if isinstance(step, Call):
            return cast("Connection", self._node.link).run(step.operation)
        if isinstance(step, Read):
            return step.reader.read(0, step.timeout_s)
        step.writer.write(step.data, step.timeout_s)
        return None
