"""``Sandbox``: runs code that nobody has read, in a session of its own that holds what it was given.

``ops`` has the operations. ``async_sandbox`` is the same for programs on asyncio and trio.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar, overload

from dios.client.sync.node import Node, connect_or_start
from dios.errors import MissingEnvironmentError
from dios.lib.sandbox.blocking_steps import finish
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.network.grant import NetworkHeaders
from dios.lib.sandbox.ops import Input, SandboxOps, checked_count
from dios.lib.sandbox.process import SandboxProcess
from dios.lib.sandbox.processes.handles import ProcessOps, ProgramInfo
from dios.lib.sandbox.steps import Steps
from dios.lib.snapshots.beginning import Beginning

if TYPE_CHECKING:
    from types import TracebackType

    from dios.lib.snapshots.snapshots import SandboxSnapshot

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


def _at_once(
    op: Callable[Concatenate[SandboxOps, P], Steps[ProcessOps]],
) -> Callable[Concatenate[Sandbox, P], SandboxProcess]:
    """Return the blocking method for an operation that does not wait for the present run."""

    @functools.wraps(op)
    def method(self: Sandbox, /, *args: P.args, **kwargs: P.kwargs) -> SandboxProcess:
        return SandboxProcess(finish(lambda: self._node, op(self, *args, **kwargs)))

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
    in memory. Such a session has no template and no packages. ``snapshot`` is a state of the files of such a
    sandbox, which ``snapshot()`` has stored in a group: its result, or "dios://GROUP/NAME".

    ``isolation`` names the kernel to which the session makes its system calls: "kernel", that of the machine,
    behind a filter, or "gvisor", a kernel in a process of its own, on a node that has its program ``runsc``.
    Such a session has no template, cannot be forked and has no snapshots; it can begin with one.

    Threads may share a sandbox: their calls run one after the other. Raises UnreachableError if there is no
    node and none can be started, NotSupportedError for a template that the node does not have or cannot
    load, an image that it cannot start, and gVisor where it is missing, InvalidError for arguments that are
    out of range and an image that is damaged or refused, NotPermittedError for ``network`` without the right
    to the network, LimitError, NoSpaceError or OutOfMemoryError if the node has no room, OSError for an
    input that cannot be read.
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
        self._beginning: Final = Beginning(
            str(image),
            snapshot,
            template,
            tuple(packages),
            None if wheels is None else os.fspath(wheels),
            self._isolation,
        )
        self._turn: Final = threading.Lock()
        self._opens_node: Final = not isinstance(node, Node)
        if not isinstance(node, Node):
            node = connect_or_start(node, pool_size=1)
        self._node = node
        try:
            self._prepare(node)
            try:
                self._in_turn(self.open_op(node))
            except MissingEnvironmentError:
                if not self._has_image:
                    raise
                # The node may have removed it since it was brought.
                self._prepare(node, is_missing=True)
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
    pause = _blocking(SandboxOps.pause_op)
    resume = _blocking(SandboxOps.resume_op)
    reset = _blocking(SandboxOps.reset_op)
    start = _at_once(SandboxOps.start_op)
    attach = _at_once(SandboxOps.attach_op)

    def processes(self) -> list[ProgramInfo]:
        """Return the programs that ``start`` began and that run, or whose output was not read yet."""
        return finish(lambda: self._node, self.processes_op())

    @property
    def files(self) -> SandboxFiles:
        """The files of the session, by absolute paths, or paths in its working directory."""
        return SandboxFiles(self)

    @overload
    def fork(self) -> Sandbox: ...
    @overload
    def fork(self, count: int) -> list[Sandbox]: ...
    def fork(self, count: int | None = None) -> Sandbox | list[Sandbox]:
        """Return a sandbox whose session is a fork of this one, with the same variables, modules and files.

        It costs about as much as the fork of a process. The two sessions share nothing that either changes
        afterwards, have the same limits each, and end independently. The fork can be forked, too. ``reset``
        of the fork starts a fresh session. With ``count`` a list of forks is returned.

        The fork of a sandbox with an image begins with its files, without variables and processes. The files
        that differ from the image are copied once for all forks, and ``reset`` returns to them.

        Raises SessionForkError if the sandbox was not made with ``forkable=True``, or the session has
        threads, open files, or inputs that it uses without a copy; it keeps its state. Raises LimitError or
        OutOfMemoryError if the node has no room, SandboxEndedError if the session has ended, and the errors
        of ``snapshot`` for an image.
        """
        number = checked_count(count)
        begin = self._frozen_start() if self._has_image else self.fork_op
        others: list[Sandbox] = []
        try:
            for _ in range(number):
                other = copy.copy(self)
                vars(other)["_turn"] = threading.Lock()
                self._in_turn(begin(other))
                others.append(other)
        except BaseException:
            for other in others:
                other.close()
            raise
        return others if count is not None else others[0]

    def snapshot(self, place: str) -> SandboxSnapshot:
        """Store the files that differ from the image as a snapshot of a group, at ``dios://GROUP/NAME``.

        ``Sandbox(snapshot=...)`` starts a sandbox with these files on any node of the group's members, with
        the value that this returns or with the place. Only bytes that the group does not have are stored; the
        first snapshot of an image in a group stores the image, too. All processes but the session are stopped
        until the files are read, and go on then. Variables and processes are not part of it.

        Raises InvalidError without an image, for another place, or a group that the connection has not;
        NotSupportedError in gVisor, SandboxCodeError if a file cannot be read or the changes are over a
        bound, SandboxEndedError, and the errors of storing files.
        """
        frozen = self._in_turn(self.freeze_op())
        # Most sandboxes have no snapshots.
        from dios.lib.snapshots.preparation import store  # noqa: PLC0415 - see above

        return store(self._node, self._beginning, self._image_name, frozen, place)

    def close(self) -> None:
        """End the session; a second call does nothing."""
        self._closed = True
        if self._turn.locked():
            # Another thread runs code: that ends now.
            finish(lambda: self._node, self.kill_op())
        if self._in_turn(self.close_op()) and self._opens_node:
            self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- images -----------------------------------------------------------------------------------
    def _prepare(self, node: Node, *, is_missing: bool = False) -> None:
        """Bring what the session begins with to the node, unless it is a template or nothing."""
        if self._beginning.is_plain:
            return
        # Most sandboxes need nothing.
        from dios.lib.snapshots.preparation import bring  # noqa: PLC0415 - see above

        environment = bring(node, self._beginning, is_missing=is_missing)
        self._template, self._image_name, self._changes = environment

    def _frozen_start(self) -> Callable[[Sandbox], Steps[None]]:
        """Bring the present files to the node, and return the start of a sandbox with them."""
        frozen = self._in_turn(self.freeze_op())
        from dios.lib.snapshots.preparation import bring_frozen  # noqa: PLC0415 - the same

        bring_frozen(self._node, self._beginning, self._image_name, frozen)
        return functools.partial(self.restart_op, changes=frozen)

    # -- steps ------------------------------------------------------------------------------------
    def _in_turn(self, steps: Steps[T]) -> T:
        with self._turn:
            return finish(lambda: self._node, steps)
