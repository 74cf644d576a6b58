"""The zygote: a small process with one thread, set up in advance, from which every task is forked.

It executes the requests of ``dios.host.process.zygote_pool`` in the daemon, which arrive over an inherited
socket. It ends, with every child, when that socket closes. Started as
``python -I -m dios.host.process.zygote_start FD``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # a module of the interpreter
import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from array import array
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from dios import forks, limits
from dios.host.confinement import (
    limits_of_task,
    linux_calls,
    lockdown,
    namespaces,
    native_programs,
    private_folder,
    privileges,
    syscall_numbers,
    view,
)
from dios.host.containers.entry_points import EntryPoint, run_entry_point, status_of_container
from dios.host.process import template_supervisor
from dios.host.process.process_table import ProcessTable
from dios.host.process.template_supervisor import TemplateSupervisor
from dios.host.process.zygote_messages import (
    ENTER_GROUP,
    GROUPS_MAX,
    LOCKDOWN_FAILED_STATUS,
    CancelFork,
    ChildCreated,
    ChildExited,
    CreateChild,
    CreateFailed,
    CreateTemplate,
    FromZygote,
    LimitsLowered,
    LoadTemplate,
    LowerLimits,
    PinChild,
    SetupFailed,
    ToZygote,
    ZygoteModules,
    ZygoteReady,
    ZygoteSetup,
    decode_to_zygote,
    encode,
)
from dios.transport.unix.client import descriptors_of
from dios.wire.types import Brand

if TYPE_CHECKING:
    from dios.host.containers.container import ContainerMaker

_ABOVE_TASKS: Final = 10
"""The zygote's own descriptors start here, because 0 to 3 are used in tasks."""

_OOM_SCORE: Final = "500"
_LOG_READ_ALL: Final = 3
_JOIN_SESSION_KEYRING: Final = 1
_REPORT_BYTES: Final = 64
_LOG_BYTES: Final = 16 * limits.KIB
_LOG_READS: Final = 3
_LOG_PAUSE_S: Final = 0.001
_ONE_THREAD: Final = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
_CHILDREN_BYTES: Final = 16 * limits.KIB
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE((2 + GROUPS_MAX) * array("i").itemsize)
_CREDENTIALS: Final = struct.Struct("3i")


class ZygoteProcess:
    """The state of the zygote's main loop."""

    def __init__(self, control: socket.socket, null: int, loaded: LoadedModules, setup: ZygoteSetup) -> None:
        self._control = control
        self._pure = setup.brand is Brand.PURE
        self._null = null
        self._entry = loaded.entry
        self._environment = loaded.environment
        self._pids: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._reports: dict[int, int] = {}
        """The pipes through which containers report the wait statuses of their tasks."""
        self._poll = select.poll()
        limits_of_task.apply_to_zygote(pure=self._pure)
        counted = "cgroup_memory" in setup.available
        table = ProcessTable(memory_is_counted=counted) if setup.templates else None
        if self._pure:
            # A new, empty keyring: otherwise tasks could use the kernel keys of the user who started it.
            with contextlib.suppress(OSError):
                linux_calls.syscall("keyctl", _JOIN_SESSION_KEYRING, None)
        available, trees = frozenset(setup.available), list[str]()
        self._containers: ContainerMaker | None = None
        if setup.container is not None:
            # Other zygotes need none of this.
            from dios.host.containers import container  # noqa: PLC0415 - see above

            self._containers = container.prepare(
                setup.container, available, loaded.paths, loaded.environment, loaded.name
            )
            available = container.OF_CHILDREN
        elif self._pure:
            trees = self._confine(setup, loaded.paths, loaded.environment)
        self._trees = tuple(trees)
        own = os.pidfd_open(os.getpid())
        executable = tuple(path for program in setup.programs for path in program.executable)
        self._prepared = lockdown.LockdownState(available, trees, self._null, own, executable)
        if self._containers is not None:
            self._containers.attempt(_report_and_end)
        self._wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore_signal)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        self._templates: TemplateSupervisor | None = None
        if table is not None:
            self._templates = TemplateSupervisor(
                self._prepared,
                table,
                self,
                self._poll,
                _report_and_end,
                lambda: run_entry_point(loaded.entry),
            )

    @staticmethod
    def _confine(setup: ZygoteSetup, paths: tuple[str, ...], environment: str) -> list[str]:
        """Enter the read-only view and drop privileges, as far as possible. Return the view's trees."""
        files = tuple(path for program in setup.programs for path in program.files)
        trees = view.library_trees((*paths, *files))
        available = set(setup.available)
        links = {f"{native_programs.PLACE}/{program.name}": program.path for program in setup.programs}
        parts = None
        if environment:
            # Without these, the mount would be out of reach, or in the root of the machine.
            require_environment(available)
        added = {view.ENVIRONMENT: environment} if environment else {}
        # The supervisor of templates has a user namespace in any case, so that templates need no rights.
        root = privileges.may_mount() and not setup.templates
        if os.geteuid() == 0 and not root:
            if "mount" in available and privileges.may_mount() and not view.are_open_to_all(trees):
                # Python may be in a private folder of root, which is out of reach after the next line.
                parts = view.parts_of(trees, files, links, added)
            privileges.become_unprivileged()
        flags = linux_calls.CLONE_NEWNS if "mount" in available else 0
        flags |= linux_calls.CLONE_NEWUTS if "uts" in available else 0
        flags |= template_supervisor.NAMESPACES if setup.templates else 0
        if root:
            linux_calls.syscall("unshare", flags)
        elif flags and "user" in available:
            view.enter_user_namespace(flags)
        if "uts" in available:
            namespaces.hide_host_name()
        if "mount" in available:
            view.enter(parts or view.parts_of(trees, files, links, added))
            # It reads /proc, which the view does not have. Libraries that cannot import it go on without it.
            sys.modules.setdefault("psutil", None)  # type: ignore[arg-type] # the import system's mark for that
        if private_folder.is_available(available):
            # Only now: before, these paths belonged to everybody on this machine, and modules were loaded.
            os.environ.update(private_folder.variables())
        if root:
            privileges.become_unprivileged(privileges.KEPT_BY_THE_ZYGOTE)
        # Last, because a change of user resets it. Zygote and tasks end when the daemon ends.
        linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        return [*trees, *added]

    def send(self, message: FromZygote, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message to the daemon."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        self._control.sendmsg([encode(message)], rights)

    def serve(self) -> None:
        """Send Ready, execute requests until the daemon closes the socket, then end every child."""
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        gc.collect()
        gc.freeze()
        # A send can fail when the daemon closes the socket at that moment, which means the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(ZygoteReady(self._trees))
            self._serve_until_closed()
        self._end_all()

    def _serve_until_closed(self) -> None:
        while True:
            wait_s = self._templates.families.expire() if self._templates is not None else None
            ready = [fd for fd, _ in self._poll.poll(None if wait_s is None else 1000 * wait_s + 1)]
            # Orders come first: a session must not make the fork of an order that was taken back meanwhile.
            if self._control.fileno() in ready:
                if not self._receive():
                    return
            elif self._templates is not None:
                self._templates.handle(ready)
            if self._wake in ready:
                os.read(self._wake, limits.ZYGOTE_MESSAGE_BYTES_MAX)
                self._reap()

    def _receive(self) -> bool:
        data, ancillary, _, _ = self._control.recvmsg(limits.ZYGOTE_MESSAGE_BYTES_MAX, _ANCILLARY_BYTES)
        descriptors = list(descriptors_of(ancillary)) if ancillary else []
        if not data:
            return False
        message = decode_to_zygote(data)
        if isinstance(message, LowerLimits):
            self._tighten(message)
        elif isinstance(message, PinChild):
            self._pin(message)
        elif self._templates is not None:
            self._obey(self._templates, message, descriptors)
        elif isinstance(message, CreateChild):
            self._make(message, descriptors)
        return True

    @staticmethod
    def _obey(templates: TemplateSupervisor, message: ToZygote, descriptors: list[int]) -> None:
        try:
            if isinstance(message, CreateTemplate):
                templates.create(message)
            elif isinstance(message, LoadTemplate):
                templates.load(message)
            elif isinstance(message, CancelFork):
                templates.families.cancel(message.id)
            elif isinstance(message, CreateChild) and message.is_fork:
                templates.families.order(message, descriptors)
            elif isinstance(message, CreateChild):
                templates.start(message, descriptors)
        finally:
            for number in descriptors:
                os.close(number)

    def _make(self, make: CreateChild, descriptors: list[int]) -> None:
        """Create a child; an error costs this child and no other, so it is reported and never raised."""
        flags = self._prepared.flags if self._pure else 0
        pidfd = folder = report = report_end = -1
        try:
            # The kernel drops those for which this process has no room.
            task_socket, console, *groups = descriptors
            if len(groups) != make.groups:
                raise ValueError  # noqa: TRY301 - as above
            if self._pure and self._prepared.has_folder:
                folder = private_folder.make(make.memory_bytes)
            if self._containers is not None:
                report_end, report = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            forks.alone(True)
            try:
                pid, pidfd = linux_calls.clone3(flags, settid=self._prepared.tid_address)
            finally:
                forks.alone(False)
            if pid == 0:
                self._become_task(make, task_socket, console, folder, report, groups)
            self.report_created(make.id, pid, pidfd, folder)
            if report_end >= 0:
                self._reports[pid], report_end = report_end, -1
        except ValueError:
            self.send(CreateFailed(make.id, "EMFILE (the zygote has no free descriptors)"))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as error:
            self.send(CreateFailed(make.id, linux_calls.describe(error)))
        finally:
            for number in (*descriptors, pidfd, folder, report, report_end):
                if number >= 0:
                    os.close(number)

    def report_created(self, number: int, pid: int, pidfd: int, folder: int) -> None:
        """Report a child with its pidfd. Raise ``OSError``, and end the child, if that cannot be sent."""
        watched = folder >= 0 and not self._prepared.memory_is_counted
        try:
            # The kernel limits how many descriptors a user may have on their way (ETOOMANYREFS).
            self.send(ChildCreated(number, pid), (pidfd, folder) if watched else (pidfd,))
        except OSError:
            _kill(pid)
            raise
        self._pids[number] = pid
        self._ids[pid] = number

    def is_known(self, pid: int) -> bool:
        """Return True for a child that was reported and not reaped."""
        return pid in self._ids

    def pid_of(self, number: int) -> int:
        """Return the process id of a child that was reported and not reaped, or 0."""
        return self._pids.get(number, 0)

    def _become_task(
        self,
        make: CreateChild,
        task_socket: int,
        console: int,
        folder: int,
        report: int,
        groups: list[int],
    ) -> NoReturn:
        """Lock down the child and run the entry point. No code of the zygote may run after it."""
        try:
            for number in groups:
                os.write(number, ENTER_GROUP)
            signal.set_wakeup_fd(-1)
            # Not the function of ``signal``, which looks for the name of the old handler: 60 page faults.
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            if self._containers is not None:
                self._containers.become(make, task_socket, console, report)
            lock = lockdown.pure if self._pure else lockdown.limbo
            lock(self._prepared, make, task_socket, console, folder)
        except BaseException as error:  # noqa: BLE001 - after any failure this child must not go on
            _report_and_end(error, console)
        if self._environment:
            view.import_first_from(view.ENVIRONMENT, sys.path)
        gc.enable()
        run_entry_point(self._entry)

    def _tighten(self, message: LowerLimits) -> None:
        pid = self._pids.get(message.id)
        reason = ""
        try:
            if pid is None:
                reason = "its process has ended"
            else:
                limits_of_task.tighten(
                    pid,
                    memory_bytes=message.memory_bytes,
                    cpu_ms=message.cpu_ms,
                    processes=message.processes if self._pure and self._containers is None else 0,
                    memory_is_counted=not self._pure or self._prepared.memory_is_counted,
                )
        except OSError as error:
            reason = linux_calls.describe(error)
        except ValueError as error:
            reason = str(error)
        self.send(LimitsLowered(message.id, reason))

    def _pin(self, message: PinChild) -> None:
        pid = self._pids.get(message.id)
        reason = "its process has ended" if pid is None else ""
        if pid is not None:
            try:
                os.sched_setaffinity(pid, message.processors)
            except OSError as error:
                reason = linux_calls.describe(error)
        self.send(LimitsLowered(message.id, reason))

    def _reap(self) -> None:
        while True:
            try:
                if self._templates is not None:
                    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if ended is not None:
                        self._templates.families.ending(ended.si_pid)
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            number = self._ids.pop(pid, None)
            if self._templates is not None:
                self._templates.families.reaped(pid)
            if number is None:
                continue
            del self._pids[number]
            has_ended = True
            if (number_of_pipe := self._reports.pop(pid, -1)) >= 0:
                report = _read_report(number_of_pipe)
                has_ended, status = bool(report), status_of_container(status, report)
            cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1000)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS
            refused = _refused_call(pid) if killed else ""
            memory_bytes = usage.ru_maxrss * limits.KIB
            self.send(ChildExited(number, status, cpu_ms, refused, memory_bytes, has_ended))
            if self._templates is not None:
                self._templates.ended(number)
        if not self._pure:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """End orphans of ended limbo tasks; they are children of this process, which is their subreaper."""
        for pid in _children():
            if pid not in self._ids:
                _kill(pid)

    def _end_all(self) -> None:
        if self._templates is not None:
            self._templates.close()
        for pid in self._ids:
            _kill(pid)
        while True:
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                return
            if not self._pure:
                for pid in _children():
                    _kill(pid)


def _read_report(number: int) -> bytes:
    """Return the report of a container that has ended, and close its pipe; empty if it made none."""
    try:
        return os.read(number, _REPORT_BYTES)
    except BlockingIOError:
        return b""  # a process of the container has kept its end
    finally:
        os.close(number)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the byte in the wake-up pipe is the message."""


def _children() -> list[int]:
    try:
        number = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    listing = b""
    while part := os.read(number, _CHILDREN_BYTES):
        listing += part
    os.close(number)
    return [int(word) for word in listing.split()]


def _kill(pid: int) -> None:
    # Only for own children that were not reaped, so that the number cannot belong to another process.
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _refused_call(pid: int) -> str:
    """Return the name of the call that a filter killed ``pid`` for, if the kernel's log shows it in time."""
    buffer = linux_calls.hold(bytes(_LOG_BYTES))
    for _ in range(_LOG_READS):
        try:
            length = linux_calls.syscall("syslog", _LOG_READ_ALL, linux_calls.address_of(buffer), _LOG_BYTES)
        except OSError:
            return ""
        for line in reversed(buffer.raw[:length].decode(errors="replace").splitlines()):
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if words.get("type") == "1326" and words.get("pid") == str(pid):
                return syscall_numbers.described(words.get("arch", ""), words.get("syscall", ""))
        select.select([], [], [], _LOG_PAUSE_S)
    return ""


class LoadedModules(NamedTuple):
    """The loaded modules of a zygote: the entry point of its tasks, and where they may import from."""

    entry: EntryPoint
    name: str
    paths: tuple[str, ...]
    environment: str


def _load(modules: ZygoteModules) -> LoadedModules:
    """Load the modules. Raise ``ValueError`` if one of them started a thread, with which nothing can fork."""
    sys.path.extend(path for path in modules.paths if path not in sys.path)
    # Numeric libraries start threads when they are loaded, unless these variables limit them to one.
    os.environ.update(_ONE_THREAD)
    for name in modules.preload:
        importlib.import_module(name)
        if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - no pathlib here
            raise ValueError(f"the module {name} starts threads: remove it from preload")
    for name in _ONE_THREAD:
        del os.environ[name]
    entry = _function(modules.entry)
    if modules.warm_up:
        _function(modules.warm_up)()
    return LoadedModules(entry, modules.entry, modules.paths, modules.environment)


def require_environment(available: set[str]) -> None:
    """Raise ``ValueError`` if a mechanism is missing without which no task has an environment."""
    missing = view.FOR_ENVIRONMENTS - available
    if missing:
        raise ValueError(f"an environment needs the mechanisms {', '.join(sorted(missing))}")


def _function(name: str) -> EntryPoint:
    module, _, attribute = name.partition(":")
    entry_point: EntryPoint = getattr(importlib.import_module(module), attribute)
    return entry_point


def _report_and_end(error: BaseException, console: int) -> NoReturn:
    text = f"lock-down failed: {error}\n".encode()
    for number in (console, *lockdown.CONSOLE):
        try:
            os.write(number, text)
            break
        except OSError:
            continue
    os._exit(LOCKDOWN_FAILED_STATUS)


def _prefer_for_oom() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - no pathlib here
            file.write(_OOM_SCORE)
    except OSError:
        return  # only a preference


def _let_the_daemon_answer_soon(control: socket.socket) -> None:
    """Give the daemon's loop a short time slice, so that it need not wait for the end of another's slice.

    It needs little processor time for each call. Where others compute on every processor, a call waited for
    some of their slices, of milliseconds each. The daemon itself does not load what this needs. The zygote
    and its tasks get the kernel's slice, because whoever started the daemon may have a short one.
    """
    with contextlib.suppress(OSError):  # only a preference
        if os.sched_getscheduler(0) == os.SCHED_OTHER and linux_calls.time_slice(0):
            linux_calls.set_time_slice(0, 0)
    credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    daemon = _CREDENTIALS.unpack(credentials)[0]
    # If the daemon has ended, its number may be another process's.
    if daemon != os.getppid():
        return
    try:
        if os.sched_getscheduler(daemon) == os.SCHED_OTHER:
            linux_calls.set_time_slice(daemon, limits.DAEMON_SLICE_NS)
    except OSError:
        return  # only a preference


def main() -> None:
    """Load the modules, set up the zygote and serve; report the reason if it cannot be set up."""
    gc.disable()
    inherited = int(sys.argv[1])
    control = socket.socket(fileno=fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, _ABOVE_TASKS))
    os.close(inherited)
    sys.argv[:] = ["dios-task"]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    modules = _received(control)
    if not isinstance(modules, ZygoteModules):
        return
    _prefer_for_oom()
    _let_the_daemon_answer_soon(control)
    linux_calls.prctl(linux_calls.PR_SET_CHILD_SUBREAPER, 1)
    null = fcntl.fcntl(os.open(os.devnull, os.O_RDWR), fcntl.F_DUPFD_CLOEXEC, _ABOVE_TASKS)
    os.closerange(3, _ABOVE_TASKS)
    os.dup2(null, lockdown.SOCKET)
    try:
        loaded = _load(modules)
        setup = _received(control)
        if not isinstance(setup, ZygoteSetup):
            return
        zygote = ZygoteProcess(control, null, loaded, setup)
    except Exception as error:  # noqa: BLE001 - every error is reported to the daemon
        # The daemon may send the setup only now: it does not look for an answer before.
        control.send(encode(SetupFailed(f"{type(error).__name__}: {error}")))
        control.recv(limits.ZYGOTE_MESSAGE_BYTES_MAX)
        return
    zygote.serve()


def _received(control: socket.socket) -> ToZygote | None:
    """Return the next message, or None if the daemon closed the socket."""
    data = control.recv(limits.ZYGOTE_MESSAGE_BYTES_MAX)
    return decode_to_zygote(data) if data else None
