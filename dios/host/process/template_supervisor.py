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
from typing import Final, NoReturn

import msgspec

from dios import limits
from dios.host.confinement import limits_of_task, linux_calls, lockdown, private_folder
from dios.host.process import template_process
from dios.host.process.process_table import ProcessTable
from dios.host.process.session_families import Reporter, SessionFamilies
from dios.host.process.session_fork import HARMLESS_THREADS
from dios.host.process.zygote_messages import (
    CreateChild,
    CreateFailed,
    CreateTemplate,
    LoadTemplate,
    TemplateLoaded,
    decode_from_template,
    encode,
)

NAMESPACES: Final = linux_calls.CLONE_NEWNET | linux_calls.CLONE_NEWIPC | linux_calls.CLONE_NEWPID
"""The supervisor's, in addition to those of every zygote."""

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
    pid: int = 0
    """The process, once it was reported: from then on it can only hand over the listener of its filter."""


def start_first_process(own_pidfd: int) -> int:
    """Fork the first process of the own children's pid namespace, which waits for ever. Return its id.

    It ends with this process, and the kernel then ends all others of the namespace: also those that a hostile
    module has forked, or whose signal for that end (PR_SET_PDEATHSIG) it has cleared.
    """
    pid = os.fork()
    if pid == 0:
        lockdown.die_with_the_zygote(own_pidfd)
        signal.set_wakeup_fd(-1)
        # Orphans of the namespace become its children. They are reaped if it ignores their ends.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        linux_calls.close_range(0, 0xFFFF_FFFF)
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
        self._first: Final = start_first_process(prepared.own_pidfd)
        self._templates: dict[int, _Template] = {}
        self._by_link: dict[int, _Template] = {}
        self._starts: dict[int, _Start] = {}
        self._unordered = False
        table.note_mounts()
        self.families: Final = SessionFamilies(table, reporter, poll)
        # Built once, and not in each template.
        _ = prepared.template_filter, prepared.forkable_filter

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
        self.families.handle(ready)

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
        for start in [pending for pending in self._starts.values() if pending.template is template]:
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
        unexpected = sorted({name for name in threads if name not in HARMLESS_THREADS})
        if unexpected:
            names = ", ".join(unexpected)[:_TEXT_BYTES]
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
        sender = _sender(ancillary) if data else 0
        if start.pid:
            self._take_listener(start, sender, data)
        else:
            reason = self._begin_child(start, sender, data)
            if reason:
                self._reporter.send(CreateFailed(start.order.id, reason))
            elif start.order.forkable:
                start.pid = sender
                return
        del self._starts[start.wait.fileno()]
        self._poll.unregister(start.wait)
        start.wait.close()
        os.close(start.folder)
        self._end_unordered()

    def _take_listener(self, start: _Start, sender: int, data: bytes) -> None:
        """Take the listener of a session that can be forked; its message is the number of the descriptor."""
        if not self._reporter.is_known(start.pid):
            return  # it has ended
        if sender != start.pid or not data.isdigit():
            os.kill(start.pid, signal.SIGKILL)
            return
        try:
            pidfd = os.pidfd_open(start.pid)
            try:
                listener = linux_calls.syscall("pidfd_getfd", pidfd, int(data), 0)
            finally:
                os.close(pidfd)
            try:
                self.families.add(start.pid, listener, os.fstat(start.folder).st_dev)
            except OSError:
                os.close(listener)
                raise
            start.wait.send(template_process.GO)
        except OSError:
            os.kill(start.pid, signal.SIGKILL)

    def _begin_child(self, start: _Start, pid: int, data: bytes) -> str:
        """Report the child ``pid``, and let it go on. Return the reason if it cannot."""
        if not pid:
            return "its template ended"
        if pid == start.template.pid:
            return "its template: " + data.decode(errors="backslashreplace")
        if self._reporter.is_known(pid) or not self._table.is_child(pid):
            return "its template sent another process"
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            # It lowers its limits itself, unless a hostile module keeps it from that.
            limits_of_task.tighten(
                pid,
                memory_bytes=start.order.memory_bytes,
                cpu_ms=start.order.cpu_ms,
                processes=start.order.processes,
                memory_is_counted=self._table.memory_is_counted,
            )
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
            children = self._table.children()
        except OSError:
            return  # the kernel does not list children; the end of the node ends them
        for pid in children:
            if pid in known or self._reporter.is_known(pid) or self.families.claims(pid):
                continue
            os.kill(pid, signal.SIGKILL)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the process that sent a message, as the kernel says; 0 if it does not."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    return 0
