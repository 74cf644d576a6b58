"""The supervisor's part for forks of sessions: one fork for each order of the daemon, and no other process.

A session that can be forked, and all forks of it, are a *family*: they have one user namespace, one filter
and one listener of that. A session forks itself, because nobody else has its memory. The kernel asks the
supervisor before (``notifications``), which permits one fork for each order. The new process cannot act
before the supervisor has looked at it: it has one thread, which waits for an answer, and no descriptor,
directory or mapping of its origin. Only then does it get its own socket and console, which no other process
ever has, and the daemon learns of it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from dios.host.confinement import limits_of_task, linux_calls, policy, private_folder, syscall_numbers
from dios.host.confinement.notifications import Listener, Notification
from dios.host.process.process_table import ProcessTable
from dios.host.process.session_fork import HARMLESS_THREADS
from dios.host.process.zygote_messages import CreateChild, CreateFailed, FromZygote

HELD_S_MAX: Final = 30.0
"""The time for which a session that wants to fork waits for the order of the daemon."""

FORK_S_MAX: Final = 60.0
"""The time from the permission to fork until the fork has copied its files and is complete."""

WAITED_FOR_S_MAX: Final = 20.0
"""The same while another session of its family wants to fork: a hostile one keeps the others no longer."""

REFUSED_MAX: Final = 1_000
"""The questions of a family that no honest session asks. A process that asks more is ended, because no limit
counts the time of the supervisor."""

_PERMISSIONS_MAX: Final = 16
"""The most attempts of a session to make one fork: a signal ends an attempt."""

_ENDED: Final = "the session ended before it could be forked"
_CANCELLED: Final = "the fork was cancelled"
_NAMES_CHARS_MAX: Final = 400
_GIVEN: Final = frozenset(range(4))
"""The descriptors of a task: standard input, its console twice, and its socket."""


class Reporter(Protocol):
    """The part of the zygote that knows its children and reports them to the daemon."""

    def send(self, message: FromZygote, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message to the daemon."""

    def report_created(self, number: int, pid: int, pidfd: int, folder: int) -> None:
        """Report a child, and remember it. Raise ``OSError``, and end the child, if that fails."""

    def is_known(self, pid: int) -> bool:
        """Return True for a child that was reported and not reaped."""

    def pid_of(self, number: int) -> int:
        """Return the process id of a child that was reported and not reaped, or 0."""


@dataclass(slots=True)
class _Fork:
    """A fork that the daemon has ordered; ``child`` is its process once that has reported.

    ``device`` is that of the private folder of its origin.
    """

    order: CreateChild
    origin: int
    device: int
    socket: int
    console: int
    folder: int = -1
    child: int = 0
    permitted: float = 0.0
    permissions: int = 0

    def close(self) -> None:
        for number in (self.socket, self.console, self.folder):
            if number >= 0:
                os.close(number)
        self.socket = self.console = self.folder = -1


@dataclass(slots=True)
class _Family:
    """A session that can be forked, and its forks: process ids with the devices of their private folders."""

    listener: Listener
    namespace: int
    members: dict[int, int]
    orders: deque[_Fork] = field(default_factory=deque)
    present: _Fork | None = None
    held: dict[int, tuple[Notification, float]] = field(default_factory=dict)
    refused: int = 0
    killed: set[int] = field(default_factory=set)
    """Processes that were killed and are not reaped yet: with several threads that takes a while."""


class _UnfitError(Exception):
    """The process of a fork cannot be used; the text is the reason."""


class SessionFamilies:
    """All families of a node. The supervisor's loop calls ``handle`` and ``expire``."""

    def __init__(self, table: ProcessTable, reporter: Reporter, poll: select.poll) -> None:
        self._table: Final = table
        self._reporter: Final = reporter
        self._poll: Final = poll
        self._families: Final[dict[int, _Family]] = {}
        self._early: Final[list[_Fork]] = []
        """Orders for sessions that have not handed over their listeners yet."""
        self._fork_call: Final = syscall_numbers.number_of("clone")
        self._report_call: Final = syscall_numbers.number_of("setsid")

    # -- members ----------------------------------------------------------------------------------
    def add(self, pid: int, listener: int, device: int) -> None:
        """Add a session that can be forked, with the device of its folder, and own ``listener`` from now on.

        Raise ``OSError``, and own nothing, if that is no listener, or the session has ended.
        """
        family = _Family(Listener(listener), self._table.user_namespace(pid), {pid: device})
        family.listener.check()
        self._families[listener] = family
        self._poll.register(listener, select.POLLIN)
        for fork in [early for early in self._early if early.origin == pid]:
            self._early.remove(fork)
            fork.device = device
            family.orders.append(fork)

    def claims(self, pid: int) -> bool:
        """Return True for a process in the user namespace of a family; those are ended here, if at all."""
        try:
            namespace = self._table.user_namespace(pid)
        except OSError:
            return False
        return any(family.namespace == namespace for family in self._families.values())

    def ending(self, pid: int) -> None:
        """Note that a child has ended and is about to be reaped; a fork may do so before its first report."""
        if self._reporter.is_known(pid) or not any(family.present for family in self._families.values()):
            return
        try:
            namespace = self._table.user_namespace(pid)
        except OSError:
            return  # this kernel does not show that of an ended process: the order ends by the clock
        for family in self._families.values():
            expects = family.present is not None and not family.present.child and pid not in family.killed
            if family.present is not None and expects and family.namespace == namespace:
                family.present.child = pid

    def reaped(self, pid: int) -> None:
        """Note that a child was reaped, known or not."""
        for fork in [early for early in self._early if early.origin == pid]:
            self._early.remove(fork)
            fork.close()
            self._reporter.send(CreateFailed(fork.order.id, _ENDED))
        for family in list(self._families.values()):
            family.killed.discard(pid)
            if family.members.pop(pid, None) is not None:
                family.held.pop(pid, None)
                for fork in [ordered for ordered in family.orders if ordered.origin == pid]:
                    family.orders.remove(fork)
                    self._fail(family, fork, _ENDED)
                self._end_strangers(family)
            present = family.present
            if present is not None and pid == (present.child or present.origin):
                self._fail(family, present, "its process ended before it was complete")
            if not family.members and family.present is None:
                self._drop(family)

    # -- orders -----------------------------------------------------------------------------------
    def order(self, order: CreateChild, descriptors: list[int]) -> None:
        """Order a fork of a session; the result is reported later."""
        origin = self._reporter.pid_of(order.template)
        if not origin:
            self._reporter.send(CreateFailed(order.id, _ENDED))
            return
        task_socket, console = (os.dup(number) for number in descriptors)
        fork = _Fork(order, origin, 0, task_socket, console)
        family = next(
            (candidate for candidate in self._families.values() if origin in candidate.members), None
        )
        if family is None:
            self._early.append(fork)
            return
        fork.device = family.members[origin]
        family.orders.append(fork)
        self._permit_next(family)

    def cancel(self, number: int) -> None:
        """Forget the order of a fork for which the daemon does not wait any more.

        It forgets the fork when it hears that there is none.
        """
        for family in list(self._families.values()):
            for fork in [*family.orders, *([family.present] if family.present else [])]:
                if fork.order.id == number:
                    held = family.held.pop(fork.origin, None)
                    if held is not None:
                        family.listener.refuse(held[0], errno.ECANCELED)
                    self._fail(family, fork, _CANCELLED)
                    return
        for fork in [early for early in self._early if early.order.id == number]:
            self._early.remove(fork)
            fork.close()
        if not self._reporter.pid_of(number):
            self._reporter.send(CreateFailed(number, _CANCELLED))

    def expire(self) -> float | None:
        """End what has waited for too long; return the seconds until this has to be called again."""
        now, deadlines = time.monotonic(), []
        for family in list(self._families.values()):
            ordered = {fork.origin for fork in family.orders}
            for pid, (question, deadline) in list(family.held.items()):
                if pid in ordered:
                    continue  # it waits for its turn
                if deadline <= now:
                    del family.held[pid]
                    family.listener.refuse(question, errno.EAGAIN)
                else:
                    deadlines.append(deadline)
            present, allowed_s = family.present, self._allowed_s(family)
            if present is not None and present.permitted + allowed_s <= now:
                self._fail(family, present, f"it was not complete within {allowed_s:.0f} s")
            if family.present is not None:
                deadlines.append(family.present.permitted + self._allowed_s(family))
        return max(0.0, min(deadlines) - now) if deadlines else None

    # -- questions --------------------------------------------------------------------------------
    def handle(self, ready: Collection[int]) -> None:
        """Answer one question of each family whose listener is ready."""
        for descriptor in ready:
            family = self._families.get(descriptor)
            if family is None:
                continue
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            # Its process may have ended meanwhile: receiving would wait for the next one.
            events = sum(event for _, event in poll.poll(0))
            question = family.listener.receive() if events & select.POLLIN else None
            if question is None:
                if events & select.POLLHUP:
                    self._drop(family)  # every process with this filter has ended
            elif question.number == self._fork_call:
                self._asked_to_fork(family, question)
            else:
                self._heard_from(family, question)

    def _asked_to_fork(self, family: _Family, question: Notification) -> None:
        fork = family.present
        if question.argument != policy.FORK_WORD or question.thread not in family.members:
            self._refuse(family, question)
        elif fork is not None and fork.origin == question.thread and not fork.child:
            # A signal made the kernel repeat the call. If it had made a process, that would be here.
            if self._strangers(family) or fork.permissions >= _PERMISSIONS_MAX:
                family.listener.refuse(question, errno.EPERM)
            else:
                self._let(family, fork, question)
        else:
            family.held[question.thread] = question, time.monotonic() + HELD_S_MAX
            self._permit_next(family)

    @staticmethod
    def _refuse(family: _Family, question: Notification) -> None:
        """Refuse a question that no honest session asks, and end the process that asks too many."""
        family.refused += 1
        if family.refused > REFUSED_MAX and family.listener.is_waiting(question):
            os.kill(question.thread, signal.SIGKILL)  # the number of a thread stands for its process
        family.listener.refuse(question, errno.EPERM)

    @staticmethod
    def _allowed_s(family: _Family) -> float:
        """Return the seconds that the present fork may take."""
        is_waited_for = any(fork.origin in family.held for fork in family.orders)
        return WAITED_FOR_S_MAX if is_waited_for else FORK_S_MAX

    def _permit_next(self, family: _Family) -> None:
        """Permit the next fork that has an order and a question, and only one fork at a time."""
        for fork in list(family.orders):
            if family.present is not None:
                return
            held = family.held.pop(fork.origin, None)
            if held is None:
                continue
            question, _ = held
            family.orders.remove(fork)
            self._end_strangers(family)
            reason = self._not_forkable(fork.origin)
            if reason:
                family.listener.refuse(question, errno.EBUSY)
                self._fail(family, fork, reason)
                continue
            family.present, fork.permitted = fork, time.monotonic()
            self._let(family, fork, question)

    def _not_forkable(self, pid: int) -> str:
        try:
            unexpected = sorted({name for name in self._table.threads(pid) if name not in HARMLESS_THREADS})
        except OSError as error:
            return f"cannot look at its threads: {linux_calls.describe(error)}"
        names = ", ".join(unexpected)[:_NAMES_CHARS_MAX]
        return (
            f"the session has threads ({names}), which a fork would not have: end them first" if names else ""
        )

    @staticmethod
    def _let(family: _Family, fork: _Fork, question: Notification) -> None:
        fork.permissions += 1
        try:
            family.listener.permit(question)
        except OSError:
            return  # it ended: ``reaped`` follows

    def _heard_from(self, family: _Family, question: Notification) -> None:
        """Answer a report of a fork: with its folder at first, and with its descriptors in the end."""
        fork, pid = family.present, question.thread
        try:
            if fork is None or pid in family.members or fork.child not in {0, pid}:
                self._refuse(family, question)
                return
            if not fork.child:
                self._take_in(family, fork, question)
            else:
                self._complete(family, fork, question)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except (OSError, _UnfitError) as error:
            family.listener.refuse(question, errno.EPERM)
            reason = linux_calls.describe(error) if isinstance(error, OSError) else str(error)
            if fork is not None:
                self._fail(family, fork, reason)

    def _take_in(self, family: _Family, fork: _Fork, question: Notification) -> None:
        """Make the private folder of a new fork, over that of its origin, and let it copy the files."""
        pid = question.thread
        if self._reporter.is_known(pid) or not self._table.is_child(pid):
            raise _UnfitError("another process reported in its place")
        pidfd = os.pidfd_open(pid)
        try:
            if not family.listener.is_waiting(question):
                raise _UnfitError("its process ended before it was complete")
            if self._table.user_namespace(pid) != family.namespace:
                raise _UnfitError("another process reported in its place")
            fork.child = pid
            fork.folder = private_folder.make(fork.order.memory_bytes)
            self._table.mount_for(pidfd, fork.folder, private_folder.NEXT)
        finally:
            os.close(pidfd)
        family.listener.permit(question)

    def _complete(self, family: _Family, fork: _Fork, question: Notification) -> None:
        """Look at a fork, and make it a task: with its descriptors, and known to the daemon."""
        pid = question.thread
        device = os.fstat(fork.folder).st_dev
        self._require_clean(pid, device, fork.device)
        limits_of_task.tighten(
            pid,
            memory_bytes=fork.order.memory_bytes,
            cpu_ms=fork.order.cpu_ms,
            processes=fork.order.processes,
            memory_is_counted=self._table.memory_is_counted,
        )
        pidfd = os.pidfd_open(pid)
        stdin, write_end = os.pipe()
        try:
            os.close(write_end)
            self._table.replace_folder_of(pidfd)
            for number, given in enumerate((stdin, fork.console, fork.console, fork.socket)):
                family.listener.give(question, given, number)
            self._reporter.report_created(fork.order.id, pid, pidfd, fork.folder)
        finally:
            os.close(stdin)
            os.close(pidfd)
        family.members[pid], family.present = device, None
        fork.close()
        family.listener.answer(question, 0)
        self._end_strangers(family)
        self._permit_next(family)

    def _require_clean(self, pid: int, device: int, origin: int) -> None:
        """Raise _UnfitError if anything of its origin is left in a fork.

        Nothing can change meanwhile: its one thread waits for an answer. The order is that in which one of
        these can be made of another: a folder, a descriptor, a mapping.
        """
        if self._table.threads(pid):
            raise _UnfitError("the fork has started threads before it was complete")
        if os.getpgid(pid) != pid or os.getsid(pid) != pid:
            raise _UnfitError("the fork is in the process group of its origin")
        if self._table.working_device(pid) != device:
            raise _UnfitError("the fork is in a folder of its origin")
        kept = sorted(self._table.descriptors(pid) - _GIVEN)
        if kept:
            raise _UnfitError(f"the fork kept descriptors of its origin ({kept[:10]})")
        shared = self._table.inherited_mappings(pid, origin)
        if shared:
            names = ", ".join(sorted(set(shared)))[:_NAMES_CHARS_MAX]
            raise _UnfitError(
                f"the session maps memory that its fork would share with it ({names}): make a copy, for "
                "example of what was read from an input without one, and delete the original"
            )

    # -- ends -------------------------------------------------------------------------------------
    def _fail(self, family: _Family, fork: _Fork, reason: str) -> None:
        """Give up an order, end its process, and report the reason."""
        if fork in family.orders:
            family.orders.remove(fork)
        if fork is family.present:
            family.present = None
            self._end_strangers(family)
        fork.close()
        self._reporter.send(CreateFailed(fork.order.id, reason))
        self._permit_next(family)

    def _strangers(self, family: _Family) -> list[int]:
        """Return the processes of a family that are neither known nor expected."""
        expected = 0 if family.present is None else family.present.child
        strangers = []
        for pid in self._table.children():
            if pid != expected and not self._reporter.is_known(pid):
                try:
                    if self._table.user_namespace(pid) == family.namespace:
                        strangers.append(pid)
                except OSError:
                    continue  # it has ended
        return strangers

    def _end_strangers(self, family: _Family) -> None:
        """End processes that nobody ordered; not while a fork is expected, which looks the same at first."""
        if family.present is not None and not family.present.child:
            return
        for pid in self._strangers(family):
            os.kill(pid, signal.SIGKILL)
            family.killed.add(pid)

    def _drop(self, family: _Family) -> None:
        present = [] if family.present is None else [family.present]
        for fork in [*present, *family.orders]:
            self._fail(family, fork, _ENDED)
        if self._families.pop(family.listener.fileno(), None) is not None:
            self._poll.unregister(family.listener.fileno())
            family.listener.close()
