"""Forks of sessions in the supervisor: turns of the sessions of one family, by a clock that the test sets."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterator
from typing import cast

import pytest

from dios.host.confinement import policy, syscall_numbers
from dios.host.confinement.notifications import Notification
from dios.host.process import session_families
from dios.host.process.process_table import ProcessTable
from dios.host.process.session_families import FORK_S_MAX, WAITED_FOR_S_MAX, SessionFamilies
from dios.host.process.zygote_messages import CreateChild, CreateFailed, FromZygote

HOSTILE, PATIENT = 10, 11
"""Two sessions of one family, each with the number of its process for the daemon, too."""


class Children:
    """Two sessions without threads in one user namespace, and no other child."""

    def user_namespace(self, pid: int) -> int:
        """Return the same for both."""
        del pid
        return 1

    def threads(self, pid: int) -> list[str]:
        """Return none."""
        del pid
        return []

    def children(self) -> list[int]:
        """Return both."""
        return [HOSTILE, PATIENT]


class Daemon:
    """The failures that the daemon hears of."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}

    def send(self, message: FromZygote, descriptors: tuple[int, ...] = ()) -> None:
        """Note a failure."""
        del descriptors
        assert isinstance(message, CreateFailed)
        self.failures[message.id] = message.reason

    def report_created(self, number: int, pid: int, pidfd: int, folder: int) -> None:
        """Do nothing: no fork is complete here."""

    def is_known(self, pid: int) -> bool:
        """Return True for both sessions."""
        return pid in {HOSTILE, PATIENT}

    def pid_of(self, number: int) -> int:
        """Return the process of a session."""
        return number


class Questions:
    """A listener that notes its answers."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.coming: list[Notification] = []
        self.answers: list[tuple[int, int]] = []
        """Each with the thread and the error, which is 0 for a permission."""

    def fileno(self) -> int:
        """Return a descriptor that is always readable."""
        return self._descriptor

    def check(self) -> None:
        """Accept this listener."""

    def receive(self) -> Notification | None:
        """Return the next question."""
        return self.coming.pop(0)

    def permit(self, notification: Notification) -> None:
        """Note a permission."""
        self.answers.append((notification.thread, 0))

    def refuse(self, notification: Notification, code: int) -> None:
        """Note a refusal."""
        self.answers.append((notification.thread, code))


class Supervisor:
    """A family of two sessions at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.daemon = Daemon()
        readable = os.eventfd(1)
        self.questions = Questions(readable)
        monkeypatch.setattr(session_families, "Listener", lambda _: self.questions)
        table = cast("ProcessTable", Children())
        self.families = SessionFamilies(table, self.daemon, select.poll())
        self.families.add(HOSTILE, readable, 1)
        next(iter(self.families._families.values())).members[PATIENT] = 1

    def order(self, session: int) -> None:
        """Order a fork; its number is a hundred more than that of the session."""
        null = os.open(os.devnull, os.O_RDWR)
        self.families.order(CreateChild(session + 100, 0, 0, 0, session, is_fork=True), [null, null])
        os.close(null)

    def ask(self, session: int) -> None:
        """Let a session ask for its fork."""
        number = syscall_numbers.number_of("clone")
        self.questions.coming.append(Notification(1, session, number, policy.FORK_WORD))
        self.families.handle([self.questions.fileno()])


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A family whose hostile session has its permission, and does not fork."""
    family = Supervisor(monkeypatch)
    family.order(HOSTILE)
    family.ask(HOSTILE)
    assert family.questions.answers == [(HOSTILE, 0)]
    yield family
    os.close(family.questions.fileno())


def test_a_session_that_does_not_fork_keeps_the_others_for_a_short_time(supervisor: Supervisor) -> None:
    """Its order ends when another session has waited, which then has its turn."""
    supervisor.order(PATIENT)
    supervisor.ask(PATIENT)
    assert supervisor.families.expire() == WAITED_FOR_S_MAX
    assert supervisor.daemon.failures == {}
    supervisor.now += WAITED_FOR_S_MAX
    assert supervisor.families.expire() == FORK_S_MAX
    assert list(supervisor.daemon.failures) == [HOSTILE + 100]
    assert supervisor.questions.answers[1:] == [(PATIENT, 0)]


def test_a_fork_that_nobody_waits_for_may_take_longer(supervisor: Supervisor) -> None:
    """A question without an order is none that waits."""
    supervisor.ask(PATIENT)
    supervisor.now += WAITED_FOR_S_MAX
    supervisor.families.expire()
    assert supervisor.daemon.failures == {}
    supervisor.now += FORK_S_MAX
    supervisor.families.expire()
    assert list(supervisor.daemon.failures) == [HOSTILE + 100]
    assert supervisor.questions.answers[1:] == [(PATIENT, errno.EAGAIN)]
