"""The supervisor's part for templates: it makes their processes, and makes tasks of the sessions they fork.

Nothing that a template sends is believed. The kernel says which process sent a message (SCM_CREDENTIALS). A
session is a child of the supervisor, which mounts its private folder, reports it and reaps it, and ends
processes that nobody ordered.

The supervisor is in namespaces of its own, without a network, in which it has the rights to fork into others.
Templates have none of these rights. The first process of its pid namespace waits and does nothing, so that a
template cannot end the namespace, and the sessions outlive their template.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import msgspec

from dios import limits
from dios.host.process import template_process
from dios.host.process.zygote_messages import (
    CreateChild,
    CreateFailed,
    CreateTemplate,
    FromZygote,
    LoadTemplate,
    TemplateLoaded,
    decode_from_template,
    encode,
)
from dios.host.sandbox import linux_calls, lockdown, private_folder

NAMESPACES: Final = linux_calls.CLONE_NEWNET | linux_calls.CLONE_NEWIPC | linux_calls.CLONE_NEWPID
"""The supervisor's, in addition to those of every zygote."""

HOUSEKEEPERS: Final = ("jemalloc_bg_thd", "polars-ooc-clea")
"""Threads that a template may have: each waits without a lock, and a session does without it.

jemalloc's gives memory back later. That of Polars removes files of other processes."""

_CREDENTIALS: Final = struct.Struct("3i")
_TEXT_BYTES: Final = 512


@dataclass(slots=True)
class _Template:
    """A template: its process, and the link to it."""

    number: int
    pid: int
    link: socket.socket
    loading: bool = False
    loaded: bool = False


@dataclass(slots=True)
class _Start:
    """A session that its template shall fork; ``wait`` is the socket on which that waits for its folder."""

    order: CreateChild
    template: _Template
    wait: socket.socket
    folder: int


class ProcessTable:
    """The machine's table of processes, and the own mounts; opened before the supervisor enters the view."""

    def __init__(self) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._processes: Final = os.open("/proc", flags)
        self._mounts = -1

    def note_mounts(self) -> None:
        """Remember the own mount namespace. Raise ``OSError``."""
        self._mounts = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._processes)

    def mount_for(self, pidfd: int, folder: int) -> None:
        """Mount a private folder in the mount namespace of a child. Raise ``OSError``."""
        linux_calls.syscall("setns", pidfd, linux_calls.CLONE_NEWNS)
        try:
            private_folder.place(folder)
        finally:
            linux_calls.syscall("setns", self._mounts, linux_calls.CLONE_NEWNS)

    def children(self) -> list[int]:
        """Return the ids of the own child processes. Raise ``OSError``."""
        return [int(word) for word in self._read(f"{os.getpid()}/task/{os.getpid()}/children").split()]

    def threads(self, pid: int) -> list[str]:
        """Return the names of the threads of a process, except for its first. Raise ``OSError``."""
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._processes)
        try:
            names = os.listdir(folder)  # noqa: PTH208 - no pathlib in the zygote
        finally:
            os.close(folder)
        others = [name for name in names if name != str(pid)]
        return [self._read(f"{pid}/task/{name}/comm").rstrip("\n") for name in others]

    def shared_memory(self, pid: int) -> list[str]:
        """Return the names of the mappings that a process and its forks can write for each other."""
        rows = [line.split(maxsplit=5) for line in self._read(f"{pid}/maps").splitlines()]
        shared = [row for row in rows if len(row) > 1 and row[1][1] == "w" and row[1][3] == "s"]
        return [row[5] if len(row) > 5 else "no file" for row in shared]

    def _read(self, path: str) -> str:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._processes), "rb") as file:
            return file.read().decode(errors="backslashreplace")


class Reporter(Protocol):
    """The part of the zygote that knows its children and reports them to the daemon."""

    def send(self, message: FromZygote, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message to the daemon."""
        ...

    def report_created(self, number: int, pid: int, pidfd: int, folder: int) -> None:
        """Report a child, and remember it. Raise ``OSError``, and end the child, if that fails."""
        ...

    def is_known(self, pid: int) -> bool:
        """Return True for a child that was reported and not reaped."""
        ...


def start_first_process() -> int:
    """Fork the first process of the own children's pid namespace, which waits for ever. Return its id."""
    pid = os.fork()
    if pid == 0:
        linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        # Orphans of the namespace become its children. They are reaped if it ignores their ends.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        linux_calls.syscall("close_range", 0, 0xFFFF_FFFF, 0)
        while True:
            signal.pause()
    return pid


class TemplateSupervisor:
    """All templates of a node. The zygote's loop calls ``handle`` for descriptors that ``poll`` reports."""

    def __init__(
        self,
        prepared: lockdown.LockdownState,
        table: ProcessTable,
        reporter: Reporter,
        poll: select.poll,
        fail: Callable[[BaseException, int], NoReturn],
        run: Callable[[], NoReturn],
    ) -> None:
        self._prepared: Final = prepared
        self._table: Final = table
        self._reporter: Final = reporter
        self._poll: Final = poll
        self._fail: Final = fail
        self._run: Final = run
        self._first: Final = start_first_process()
        self._templates: dict[int, _Template] = {}
        self._by_link: dict[int, _Template] = {}
        self._starts: dict[int, _Start] = {}
        self._unordered = False
        table.note_mounts()
        # Built once, and not in each template.
        _ = prepared.template_filter

    # -- requests of the daemon -------------------------------------------------------------------
    def create(self, request: CreateTemplate) -> None:
        """Create the process of a template; it waits for the names of its modules."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = pidfd = -1
        try:
            ours.setblocking(False)
            folder = private_folder.make(request.memory_bytes)
            pid, pidfd = linux_calls.clone3(linux_calls.CLONE_NEWNS, settid=self._prepared.tid_address)
            if pid == 0:
                self._become_template(request, theirs, folder)
            self._reporter.report_created(request.id, pid, pidfd, folder)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as error:
            ours.close()
            self._reporter.send(CreateFailed(request.id, linux_calls.describe(error)))
        else:
            template = _Template(request.id, pid, ours)
            self._templates[request.id] = self._by_link[ours.fileno()] = template
            self._poll.register(ours, select.POLLIN)
        finally:
            theirs.close()
            for number in (folder, pidfd):
                if number >= 0:
                    os.close(number)

    def load(self, request: LoadTemplate) -> None:
        """Pass the modules of a template on to it."""
        template = self._templates.get(request.id)
        try:
            if template is None:
                raise BrokenPipeError
            template.loading = True
            template.link.send(encode(request))
        except OSError:
            self._reporter.send(TemplateLoaded(request.id, "its process ended before it could load modules"))

    def start(self, order: CreateChild, descriptors: list[int]) -> None:
        """Order a session from a template; the result is reported later."""
        template = self._templates.get(order.template)
        if template is None or not template.loaded:
            self._reporter.send(CreateFailed(order.id, "its template ended"))
            return
        folder = -1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            folder = private_folder.make(order.memory_bytes)
            socket.send_fds(template.link, [encode(order)], [theirs.fileno(), *descriptors])
        except OSError as error:
            ours.close()
            if folder >= 0:
                os.close(folder)
            self._reporter.send(CreateFailed(order.id, f"its template: {linux_calls.describe(error)}"))
        else:
            self._starts[ours.fileno()] = _Start(order, template, ours, folder)
            self._poll.register(ours, select.POLLIN)
        finally:
            theirs.close()

    # -- events -----------------------------------------------------------------------------------
    def handle(self, ready: Collection[int]) -> None:
        """Handle the descriptors of templates and starts among those that are ready."""
        for descriptor in ready:
            start = self._starts.get(descriptor)
            if start is not None:
                self._begin(start)
            template = self._by_link.get(descriptor)
            if template is not None:
                self._hear(template)

    def ended(self, number: int) -> None:
        """Note that a reported child was reaped."""
        self._unordered = True
        template = self._templates.pop(number, None)
        if template is None:
            self._end_unordered()
            return
        if template.loading:
            self._hear(template)  # its last words
        self._drop_link(template)
        if template.loading:
            self._reporter.send(TemplateLoaded(number, "its process ended while it loaded modules"))
        for start in [each for each in self._starts.values() if each.template is template]:
            self._begin(start)
        self._end_unordered()

    def close(self) -> None:
        """End the pid namespace, with every template and session."""
        os.kill(self._first, signal.SIGKILL)

    def _become_template(self, request: CreateTemplate, link: socket.socket, folder: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Below 4 is no place: the lock-down puts descriptors there.
            lockdown.template(
                self._prepared, request.memory_bytes, link.fileno(), self._prepared.null, folder
            )
            # The numbers of these are now of nobody, or of somebody else.
            link.detach()
            template_process.serve(self._prepared, self._fail, self._run)
        finally:
            os._exit(1)

    def _hear(self, template: _Template) -> None:
        """Receive the one message that a template sends: that it has loaded its modules, or why not."""
        try:
            data = template.link.recv(limits.ZYGOTE_MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        reason = "its process closed its link"
        if data:
            try:
                reason = decode_from_template(data).reason[: template_process.REASON_CHARS_MAX]
            except msgspec.MsgspecError:
                reason = "its process sent something that no template sends"
            if template.loading and not reason:
                reason = self._unfit(template)
            if template.loading and not reason:
                template.loading, template.loaded = False, True
                self._reporter.send(TemplateLoaded(template.number))
                return
        # Everything else ends it: it failed, it speaks although it has nothing to say, or it is gone.
        template.loaded = False
        self._drop_link(template)
        if self._reporter.is_known(template.pid):
            os.kill(template.pid, signal.SIGKILL)
        if template.loading:
            template.loading = False
            self._reporter.send(TemplateLoaded(template.number, reason or "its process broke the protocol"))

    def _drop_link(self, template: _Template) -> None:
        if self._by_link.pop(template.link.fileno(), None) is not None:
            self._poll.unregister(template.link)
            template.link.close()

    def _unfit(self, template: _Template) -> str:
        """Return the reason why nothing can be forked from a template that has loaded its modules."""
        try:
            threads = self._table.threads(template.pid)
            shared = self._table.shared_memory(template.pid)
        except OSError as error:
            return f"cannot look at its threads and memory: {linux_calls.describe(error)}"
        found = sorted({name for name in threads if name not in HOUSEKEEPERS})
        if found:
            names = ", ".join(found)[:_TEXT_BYTES]
            return f"its modules start threads ({names}), with which nothing can fork: leave the module out"
        if shared:
            names = ", ".join(sorted(set(shared)))[:_TEXT_BYTES]
            return f"its modules map memory that all its tasks would share ({names}): leave the module out"
        return ""

    def _begin(self, start: _Start) -> None:
        """Make a task of the process that waits for that, or report why there is none."""
        try:
            data, ancillary, _, _ = start.wait.recvmsg(_TEXT_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            if start.template.number in self._templates:
                return
            data, ancillary = b"", []
        except OSError:
            data, ancillary = b"", []
        del self._starts[start.wait.fileno()]
        self._poll.unregister(start.wait)
        try:
            reason = self._begin_child(start, _sender(ancillary) if data else 0, data)
            if reason:
                self._reporter.send(CreateFailed(start.order.id, reason))
        finally:
            start.wait.close()
            os.close(start.folder)
        self._end_unordered()

    def _begin_child(self, start: _Start, pid: int, data: bytes) -> str:
        """Report the child ``pid``, and let it go on. Return the reason if it cannot."""
        if not pid:
            return "its template ended"
        if pid == start.template.pid:
            return "its template: " + data.decode(errors="backslashreplace")
        if self._reporter.is_known(pid) or not _is_child(pid):
            return "its template sent another process"
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            self._table.mount_for(pidfd, start.folder)
            self._reporter.report_created(start.order.id, pid, pidfd, start.folder)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            return linux_calls.describe(error)
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        try:
            start.wait.send(template_process.GO)
        except OSError:
            os.kill(pid, signal.SIGKILL)
        return ""

    def _end_unordered(self) -> None:
        """End children that nobody ordered, after the end of one: a hostile module forked them.

        A session that starts in another template looks the same, so this waits until none does.
        """
        if not self._unordered or self._starts:
            return
        self._unordered = False
        known = {self._first, *(template.pid for template in self._templates.values())}
        try:
            found = self._table.children()
        except OSError:
            return  # the kernel does not list children; the end of the node ends them
        for pid in found:
            if pid not in known and not self._reporter.is_known(pid):
                os.kill(pid, signal.SIGKILL)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the process that sent a message, as the kernel says; 0 if it does not."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    return 0


def _is_child(pid: int) -> bool:
    """Return True for a running child of this process."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except OSError:
        return False
