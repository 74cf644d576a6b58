"""The view of a zygote whose tasks run in containers, and the steps of such a task up to its runtime.

The runtime itself runs in a view: it sees the interpreter, its own libraries, the image and nothing else of
the machine. Its process is the first of a pid namespace, so that the container ends with it. A container
that gets out of its root is in this view, without capabilities in the user namespace that owns it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, NoReturn

import msgspec

from dios import limits
from dios.host.confinement import (
    linux_calls,
    lockdown,
    memory_mounts,
    namespaces,
    private_folder,
    privileges,
    view,
)
from dios.host.confinement.limits_of_task import LimitsOfTask
from dios.host.containers import bundle
from dios.host.containers.runtimes import ContainerSetup, lacking

OF_CHILDREN: Final = frozenset({"pid", "mount", "net", "ipc", "uts", "cgroup_memory"})
"""The mechanisms of the process that becomes the runtime. Its user namespace is that of its zygote."""

_DEVICES: Final = ("/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero")
_PROC: Final = "/proc"
_GROUPS: Final = "/sys/fs/cgroup"
"""A runtime asks which kind of file system this is. Most are content with an empty folder of the view."""

_BELOW: Final = f"{view.ENVIRONMENT}-below"
"""The image, in the view of a zygote whose environment has changes to it."""
_FOLDER: Final = private_folder.MOUNT_POINT
_ROOT: Final = f"{_FOLDER}/root"
_UPPER: Final = f"{_FOLDER}/upper"
_WORK: Final = f"{_FOLDER}/work"
_STATE: Final = f"{_FOLDER}/state"
_BUNDLE: Final = f"{_FOLDER}/bundle"
_OWN_PROC: Final = f"{_FOLDER}/proc"
_NAME: Final = "task"
_START: Final = (
    "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['paths']; "
    "from dios.host.containers.first_process import main; main(order, sys.argv[2])"
)
_TRIAL_BYTES_MAX: Final = 4 * limits.KIB
_ABOVE: Final = 10


class TrialLimits(NamedTuple):
    """The limits of the trial of a runtime."""

    memory_bytes: int = 256 * limits.MIB
    cpu_ms: int = 10_000
    processes: int = 64


def require(available: Iterable[str]) -> None:
    """Raise ``ValueError`` if a condition is missing without which no task has a container."""
    missing = lacking(available)
    if missing:
        raise ValueError(f"an image needs {', '.join(missing)}: see dios doctor")


def _enter_view(setup: ContainerSetup, paths: Sequence[str], image: str) -> tuple[str, ...]:
    """Enter the view of a zygote for containers of the image in the folder ``image``.

    Return the command that starts the first process of a container, without its order. Raise ``OSError``.
    """
    python = (*setup.python.files, *setup.python.executable)
    runtime = (*setup.runtime.files, *setup.runtime.executable)
    trees = view.library_trees((*paths, *python))
    flags = linux_calls.CLONE_NEWNS | linux_calls.CLONE_NEWUTS
    # Python and the image may be in private folders of root, which are out of reach later.
    parts = _parts(setup, trees, (*python, *runtime), image)
    privileges.become_unprivileged()
    view.enter_user_namespace(flags)
    namespaces.hide_host_name()
    libraries = dict.fromkeys(os.path.dirname(os.path.realpath(path)) for path in setup.python.files)  # noqa: PTH120 - no pathlib in the zygote
    imported = dict.fromkeys(os.path.realpath(path) for path in (*sys.path, *paths) if path)
    view.enter(parts, (_GROUPS,))
    # A change of user resets it. The zygote ends when the daemon ends, also while it is stopped.
    linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    order = {
        "paths": [bundle.PYTHON + path for path in imported if os.path.isdir(bundle.PYTHON + path)],  # noqa: PTH112 - the same
        "variables": list(setup.variables),
        "folder": setup.folder,
    }
    interpreter = (
        bundle.PYTHON + setup.python.path,
        "-I",
        "-S",
        "-c",
        _START,
        msgspec.json.encode(order).decode(),
    )
    if not setup.python.loader:
        return interpreter
    search_path = ":".join(bundle.PYTHON + folder for folder in libraries)
    # Through its own loader, so that it runs in an image with another C library, or with none.
    return (bundle.PYTHON + setup.python.loader, "--library-path", search_path, *interpreter)


def _parts(setup: ContainerSetup, trees: Sequence[str], files: Sequence[str], image: str) -> view.ViewParts:
    added = {view.ENVIRONMENT: image} | ({_BELOW: setup.below} if setup.below else {})
    parts = view.parts_of(view.library_trees((*trees, *files)), files, added=added)
    parts.clones.extend(view.clone(tree, bundle.PYTHON + tree) for tree in trees)
    known = {place for place, _, _ in parts.clones}
    parts.clones.extend(view.clone(path, is_device=True) for path in _DEVICES if path not in known)
    # A new one can be mounted only where there is one that hides nothing.
    parts.clones.append(view.clone(_PROC, is_sealed=False))
    if setup.kind.reads_groups:
        parts.clones.append(view.clone(_GROUPS))
    return parts


def _mount(kind: str, place: str, flags: int, options: str = "") -> None:
    data = options.encode() + b"\0" if options else None
    linux_calls.syscall(
        "mount", f"{kind}\0".encode(), place.encode() + b"\0", f"{kind}\0".encode(), flags, data
    )


def prepare(
    setup: ContainerSetup, available: Iterable[str], paths: Sequence[str], image: str, entry: str
) -> ContainerMaker:
    """Enter the view of a zygote for containers of the image in the folder ``image``, and return their maker.

    ``paths`` are folders from which the task imports, and ``entry`` is its ``module:function``. Raise
    ``ValueError`` if a mechanism is missing, ``OSError``.
    """
    require(available)
    return ContainerMaker(setup, _enter_view(setup, paths, image), entry, os.pidfd_open(os.getpid()))


class ContainerMaker(NamedTuple):
    """The part of a zygote that makes containers: what it prepares once for all of them."""

    setup: ContainerSetup
    command: tuple[str, ...]
    entry: str
    own_pidfd: int

    def become(self, bounds: LimitsOfTask, socket: int, console: int) -> NoReturn:
        """Make the calling process, which has new namespaces, the runtime of a container with its task in it.

        The task calls the entry point there, with ``socket`` as descriptor 3; without one it ends at once.
        Raise ``OSError`` at the first step that fails.
        """
        lockdown.die_with_the_zygote(self.own_pidfd)
        os.setsid()
        # It is in its control groups now, whose names it does not see then.
        linux_calls.syscall("unshare", linux_calls.CLONE_NEWCGROUP)
        folder = private_folder.make(bounds.memory_bytes, may_execute=True)
        private_folder.place(folder)
        os.close(folder)
        os.umask(0o022)
        for path in (_ROOT, _UPPER, _WORK, _STATE, _BUNDLE, _OWN_PROC):
            os.mkdir(path, 0o755)  # noqa: PTH102 - no pathlib in the zygote
        # In the place of the machine's, which is gone for whatever comes now.
        _mount("proc", _OWN_PROC, memory_mounts.NO_SUID | memory_mounts.NO_DEV | memory_mounts.NO_EXEC)
        memory_mounts.replace(_PROC, _OWN_PROC)
        # The root of the layer that can be written has the mode of the new root directory.
        lower = f"{view.ENVIRONMENT}:{_BELOW}" if self.setup.below else view.ENVIRONMENT
        _mount("overlay", _ROOT, 0, f"lowerdir={lower},upperdir={_UPPER},workdir={_WORK},userxattr")
        mounts = {bundle.PYTHON: bundle.PYTHON, bundle.CHANGES_PLACE: _UPPER}
        order = bundle.configuration(_ROOT, (*self.command, self.entry), bounds, mounts)
        with open(f"{_BUNDLE}/config.json", "wb") as file:  # noqa: PTH123 - the same
            file.write(msgspec.json.encode(order))
        privileges.no_new_privileges()
        lockdown.place_descriptors(lockdown.open_empty_stdin(), console, socket)
        os.set_inheritable(lockdown.SOCKET, True)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        runtime = self.setup.runtime
        arguments = [
            *(runtime.name, "--root", _STATE, *self.setup.kind.options),
            *("run", "--bundle", _BUNDLE, "--preserve-fds", "1", _NAME),
        ]
        os.execve(runtime.path, arguments, {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": _STATE})  # noqa: S606 - of the settings

    def attempt(self, report_and_end: Callable[[BaseException, int], NoReturn]) -> None:
        """Start a container that ends at once. Raise ``OSError`` with the text of the runtime if it cannot.

        ``report_and_end`` writes an exception to a descriptor, or to the console, and ends the process.
        """
        reading, writing = os.pipe()
        unused, socket = os.pipe()
        pid, pidfd = linux_calls.clone3(namespaces.flags_for(OF_CHILDREN))
        if pid == 0:
            try:
                above = [fcntl.fcntl(number, fcntl.F_DUPFD, _ABOVE) for number in (socket, writing)]
                self._replace(entry="").become(TrialLimits(), *above)
            except BaseException as error:  # noqa: BLE001 - nothing of the zygote may run here
                report_and_end(error, writing)
        for number in (writing, socket, unused):
            os.close(number)
        try:
            # The node ends a zygote that hangs with what is below it: a slow machine is no reason.
            status = os.waitpid(pid, 0)[1]
            text = os.read(reading, _TRIAL_BYTES_MAX).decode(errors="backslashreplace").strip()
        finally:
            os.close(reading)
            os.close(pidfd)
        if status:
            name = self.setup.runtime.name
            raise OSError(f"{name} cannot start a container here: {text or 'it gave no reason'}")
