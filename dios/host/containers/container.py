"""The view of a zygote whose tasks run in containers, and the steps of such a task up to its runtime.

The runtime itself runs in a view: it sees the interpreter, its own libraries, the image and nothing else of
the machine. Its process is the first of a pid namespace, so that the container ends with it. A container
that gets out of its root is in this view, without capabilities in the user namespace that owns it.

A task in gVisor needs no image. Its root then has the interpreter at its own place, and a private folder, as
the view of other pure tasks has.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from dios.host.containers.first_process import (
    TRIAL_BYTES,
    Order,
    kernel_version,
)
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
_PRESERVED: Final = ("--preserve-fds", "2")
"""In addition to the standard ones."""
_START: Final = (
    "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['paths']; "
    "from dios.host.containers.first_process import main; main(order, sys.argv[2])"
)
_TRIAL_BYTES_MAX: Final = 4 * limits.KIB
_PLACES_OF_MOUNTS: Final = ("/dev", "/proc", "/sys", bundle.TEMPORARY, private_folder.MOUNT_POINT)
"""The runtime makes none in a root that cannot be written."""

_ROOT_OPTIONS: Final = {"size": "1m", "nr_inodes": "1024", "mode": "0755"}

_ABOVE: Final = 10
_ALL_DESCRIPTORS: Final = 0xFFFF_FFFF


class TrialLimits(NamedTuple):
    """The limits of the trial of a runtime."""

    memory_bytes: int = 256 * limits.MIB
    cpu_ms: int = 10_000
    processes: int = 64


def require(setup: ContainerSetup, available: Iterable[str]) -> None:
    """Raise ``ValueError`` if a condition is missing without which no task has a container."""
    missing = lacking(available, own_kernel=setup.kind.own_kernel)
    if missing:
        subject = "gVisor" if setup.kind.own_kernel else "an image"
        raise ValueError(f"{subject} needs {', '.join(missing)}: see dios doctor")


def _enter_view(setup: ContainerSetup, paths: Sequence[str], environment: str) -> ContainerParts:
    """Enter the view of a zygote for containers, and return what the root file system of each has.

    ``environment`` is the folder of an image or of packages, or "". Raise ``OSError``.
    """
    python = (*setup.python.files, *setup.python.executable)
    runtime = (*setup.runtime.files, *setup.runtime.executable)
    trees = view.library_trees((*paths, *python))
    flags = linux_calls.CLONE_NEWNS | linux_calls.CLONE_NEWUTS
    parts: view.ViewParts | None = None
    if os.geteuid() == 0:
        # Python and the image may be in private folders of root, which are out of reach later.
        parts = _parts(setup, trees, (*python, *runtime), environment)
        privileges.become_unprivileged()
    view.enter_user_namespace(flags)
    parts = parts or _parts(setup, trees, (*python, *runtime), environment)
    namespaces.hide_host_name()
    imported = [os.path.realpath(path) for path in (*sys.path, *paths) if path]
    view.enter(parts, (_GROUPS,))
    # A change of user resets it. The zygote ends when the daemon ends, also while it is stopped.
    linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if setup.has_image:
        # A kernel of its own keeps files apart from their folder: that would not have the present ones.
        changes = {} if setup.kind.own_kernel else {bundle.CHANGES_PLACE: _UPPER}
        root = ContainerParts((), {bundle.PYTHON: bundle.PYTHON} | changes, {})
        return root._replace(command=_command_in_image(setup, imported))
    variables = os.environ | private_folder.variables()
    if environment:
        trees = [*trees, view.ENVIRONMENT]
        view.import_first_from(view.ENVIRONMENT, imported)
    order = _order(setup, imported, [f"{name}={value}" for name, value in variables.items()])
    # Its folder for temporary files is a mount of its own: see the first process.
    links = {path: target for path, target in private_folder.LINKS.items() if path != bundle.TEMPORARY}
    links = parts.links | links
    return ContainerParts((setup.python.path, *order), {tree: tree for tree in trees}, links)


def _command_in_image(setup: ContainerSetup, imported: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts the first process of a container of an image."""
    order = _order(setup, [bundle.PYTHON + path for path in imported], setup.variables)
    interpreter = (bundle.PYTHON + setup.python.path, *order)
    if not setup.python.loader:
        return interpreter
    libraries = dict.fromkeys(os.path.dirname(os.path.realpath(path)) for path in setup.python.files)  # noqa: PTH120 - no pathlib in the zygote
    search_path = ":".join(bundle.PYTHON + folder for folder in libraries)
    # Through its own loader, so that it runs in an image with another C library, or with none.
    return (bundle.PYTHON + setup.python.loader, "--library-path", search_path, *interpreter)


def _order(setup: ContainerSetup, paths: Iterable[str], variables: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments of the interpreter of a first process, which imports from ``paths``."""
    order: Order = {
        "paths": [path for path in dict.fromkeys(paths) if os.path.isdir(path)],  # noqa: PTH112 - the same
        "variables": list(variables),
        "folder": setup.folder if setup.has_image else bundle.TEMPORARY,
        "links": {} if setup.has_image else {private_folder.TEMPORARY: bundle.TEMPORARY},
        "machine": kernel_version() if setup.kind.own_kernel else "",
    }
    return ("-I", "-S", "-c", _START, msgspec.json.encode(order).decode())


def _parts(
    setup: ContainerSetup, trees: Sequence[str], files: Sequence[str], environment: str
) -> view.ViewParts:
    added = {view.ENVIRONMENT: environment} if environment else {}
    if setup.below:
        added[_BELOW] = setup.below
    parts = view.parts_of(view.library_trees((*trees, *files)), files, added=added)
    if setup.has_image:
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


class ContainerParts(NamedTuple):
    """The command of the first process of a container, and what its root file system has besides an image.

    ``trees`` are folders and files of the view by their places, and ``links`` links by theirs.
    """

    command: tuple[str, ...]
    trees: Mapping[str, str]
    links: Mapping[str, str]


def _place_descriptors(*numbers: int) -> None:
    """Leave these descriptors open as 0, 1 and so on, and no others. All but the first are above 9."""
    for place, number in enumerate(numbers):
        os.dup2(number, place)
    linux_calls.close_range(len(numbers), _ALL_DESCRIPTORS)


def prepare(
    setup: ContainerSetup, available: Iterable[str], paths: Sequence[str], environment: str, entry: str
) -> ContainerMaker:
    """Enter the view of a zygote for containers, and return their maker.

    ``environment`` is the folder of their image or packages, or "" for none. ``paths`` are folders from which
    the task imports, and ``entry`` is its ``module:function``. Raise ``ValueError`` if a mechanism is
    missing, ``OSError``.
    """
    require(setup, available)
    return ContainerMaker(setup, _enter_view(setup, paths, environment), entry, os.pidfd_open(os.getpid()))


class ContainerMaker(NamedTuple):
    """The part of a zygote that makes containers: what it prepares once for all of them."""

    setup: ContainerSetup
    root: ContainerParts
    entry: str
    own_pidfd: int

    def become(self, bounds: LimitsOfTask, task_socket: int, console: int, report: int) -> NoReturn:
        """Make the calling process, which has new namespaces, the runtime of a container with its task in it.

        The task calls the entry point there, with ``task_socket`` as descriptor 3; a trial ends at once. Its
        wait status is written to ``report``. Raise ``OSError`` at the first step that fails.
        """
        lockdown.die_with_the_zygote(self.own_pidfd)
        os.setsid()
        # It is in its control groups now, whose names it does not see then.
        linux_calls.syscall("unshare", linux_calls.CLONE_NEWCGROUP)
        namespaces.start_loopback()
        folder = private_folder.make(bounds.memory_bytes, may_execute=True)
        private_folder.place(folder)
        os.close(folder)
        os.umask(0o022)
        for path in (_ROOT, _UPPER, _WORK, _STATE, _BUNDLE, _OWN_PROC, private_folder.TEMPORARY):
            os.mkdir(path, 0o755)  # noqa: PTH102 - no pathlib in the zygote
        # In the place of the machine's, which is gone for whatever comes now.
        _mount("proc", _OWN_PROC, memory_mounts.NO_SUID | memory_mounts.NO_DEV | memory_mounts.NO_EXEC)
        memory_mounts.replace(_PROC, _OWN_PROC)
        self._fill_root()
        order = bundle.configuration(
            self.setup, _ROOT, (*self.root.command, self.entry), bounds, self.root.trees
        )
        with open(f"{_BUNDLE}/config.json", "wb") as file:  # noqa: PTH123 - the same
            file.write(msgspec.json.encode(order))
        privileges.no_new_privileges()
        runtime, kind = self.setup.runtime, self.setup.kind
        if kind.own_kernel:
            # It passes on these three alone, in all releases: a socket as well.
            _place_descriptors(task_socket, report, console)
        else:
            _place_descriptors(lockdown.open_empty_stdin(), console, console, task_socket, report)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        arguments = [
            *(runtime.name, "--root", _STATE, *kind.options, *self.setup.options),
            *(() if self.entry else kind.trial_options),
            *("run", "--bundle", _BUNDLE, *([] if kind.own_kernel else _PRESERVED), _NAME),
        ]
        variables = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": _STATE, "TMPDIR": private_folder.TEMPORARY}
        os.execve(runtime.path, arguments, variables)  # noqa: S606 - of the settings

    def _fill_root(self) -> None:
        """Mount the root of an image, or make one with links to the interpreter and to a private folder."""
        if self.setup.has_image:
            # The root of the layer that can be written has the mode of the new root directory.
            lower = f"{view.ENVIRONMENT}:{_BELOW}" if self.setup.below else view.ENVIRONMENT
            _mount("overlay", _ROOT, 0, f"lowerdir={lower},upperdir={_UPPER},workdir={_WORK},userxattr")
            return
        # Without marks that the runtime could not keep in its user namespace: it makes this read-only.
        root = memory_mounts.new(_ROOT_OPTIONS)
        memory_mounts.place(root, _ROOT)
        os.close(root)
        for place in (*_PLACES_OF_MOUNTS, *self.root.trees):
            is_file = os.path.isfile(place)  # noqa: PTH113 - no pathlib in the zygote
            folder = os.path.dirname(place) if is_file else place  # noqa: PTH120 - the same
            os.makedirs(_ROOT + folder, exist_ok=True)  # noqa: PTH103 - the same
            if is_file:
                os.close(os.open(_ROOT + place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        for path, target in self.root.links.items():
            os.makedirs(_ROOT + os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - no pathlib here
            if not os.path.lexists(_ROOT + path):
                os.symlink(target, _ROOT + path)  # noqa: PTH211 - the same

    def attempt(self, report_and_end: Callable[[BaseException, int], NoReturn]) -> None:
        """Start a container that ends at once. Raise ``OSError`` with the text of the runtime if it cannot.

        A container with a kernel of its own has to write to memory of this process first. ``report_and_end``
        writes an exception to a descriptor, or to the console, and ends the process.
        """
        reading, writing = os.pipe()
        report_end, report = os.pipe()
        memory = os.memfd_create("trial")
        os.truncate(memory, mmap.PAGESIZE)
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"\0"], [memory])
        pid, pidfd = linux_calls.clone3(namespaces.flags_for(OF_CHILDREN))
        if pid == 0:
            try:
                numbers = theirs.fileno(), writing, report
                above = [fcntl.fcntl(number, fcntl.F_DUPFD, _ABOVE) for number in numbers]
                self._replace(entry="").become(TrialLimits(), *above)
            except BaseException as error:  # noqa: BLE001 - nothing of the zygote may run here
                report_and_end(error, writing)
        theirs.close()
        for number in (writing, report):
            os.close(number)
        try:
            # The node ends a zygote that hangs with what is below it: a slow machine is no reason.
            status = os.waitpid(pid, 0)[1]
            text = os.read(reading, _TRIAL_BYTES_MAX).decode(errors="backslashreplace").strip()
            is_shared = os.pread(memory, len(TRIAL_BYTES), 0) == TRIAL_BYTES
        finally:
            ours.close()
            for number in (reading, report_end, memory, pidfd):
                os.close(number)
        name = self.setup.runtime.name
        if status:
            raise OSError(f"{name} cannot start a container here: {text or 'it gave no reason'}")
        if self.setup.kind.own_kernel and not is_shared:
            raise OSError(f"{name} does not share memory between a container and the node")
