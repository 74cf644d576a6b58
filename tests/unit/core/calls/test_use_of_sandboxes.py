"""Records of programs and ports in sandboxes: the owner makes them, and nobody inside can."""

from __future__ import annotations

import pytest

from dios.core import effects
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import Permission, SandboxUse
from tests.support.core.harness import Client, Node


class Place:
    """A node with a sandbox and its owner."""

    def __init__(self) -> None:
        self.node = Node()
        self.owner = self.node.session()
        self.sandbox = self.owner.run()
        self.ref = self.sandbox.reference.ref
        self.fingerprint = self.sandbox.reference.fingerprint

    def recorded(self, *fields: object, by: Client | None = None) -> tuple[str, str, str]:
        """The record of a call."""
        (by or self.owner).ask(messages.Done, messages.RecordUse(self.ref, *fields))  # type: ignore[arg-type]
        (audit,) = [effect for effect in self.node.outcome.after if isinstance(effect, effects.Audit)]
        assert audit.principal == "uid:1000"
        assert audit.subject == self.fingerprint
        return audit.action, audit.outcome, audit.detail


@pytest.fixture
def place() -> Place:
    """One node."""
    return Place()


def test_a_record_has_the_program_and_not_its_arguments(place: Place) -> None:
    """The beginning and the end have the same number."""
    assert place.recorded(SandboxUse.PROGRAM, 255, "/bin/sh", 2) == (
        "exec",
        "ok",
        "000000ff /bin/sh, arguments: 2",
    )
    assert place.recorded(SandboxUse.END, 255, "", 3) == ("exec", "ended", "000000ff with status 3")
    assert place.recorded(SandboxUse.END, 255, "", -9) == ("exec", "ended", "000000ff by signal 9")
    assert place.recorded(SandboxUse.END, 255) == ("exec", "ended", "000000ff")
    assert place.recorded(SandboxUse.PORT, 7, "", 8080) == ("forward", "ok", "00000007 port 8080")


def test_a_sandbox_records_nothing_about_itself(place: Place) -> None:
    """Its self-reference has the right to write, and another task of the owner has no reference."""
    own = place.sandbox.self_ref
    assert place.sandbox.refused(messages.RecordUse(own, SandboxUse.PROGRAM, 1, "sh", 0)) == Code.EPERM
    other = place.owner.run()
    assert other.refused(messages.RecordUse(place.ref, SandboxUse.PROGRAM, 1, "sh", 0)) == Code.EBADF


def test_a_reader_records_nothing(place: Place) -> None:
    """The right to write is that to give orders."""
    other = place.owner.run(inputs=(messages.Handed(place.ref, int(Permission.READ)),))
    (given,) = other.welcome.inputs
    assert other.refused(messages.RecordUse(given.ref, SandboxUse.PROGRAM, 1, "sh", 0)) == Code.EPERM


@pytest.mark.parametrize(
    "fields", [(SandboxUse.PROGRAM, 1, "a\nb", 0), (SandboxUse.PROGRAM, 1, "sh"), (SandboxUse.PORT, 1)]
)
def test_a_record_is_one_line_with_a_number(place: Place, fields: tuple[object, ...]) -> None:
    """Other records are refused."""
    assert place.owner.refused(messages.RecordUse(place.ref, *fields)) == Code.EINVAL  # type: ignore[arg-type]


def test_a_sandbox_that_has_ended_starts_nothing(place: Place) -> None:
    """Its owner can still record how a program ended."""
    place.node.end(place.sandbox.task)
    call = messages.RecordUse(place.ref, SandboxUse.PROGRAM, 1, "sh", 0)
    assert place.owner.refused(call) == Code.ESRCH
    assert place.recorded(SandboxUse.END, 1)[2] == "00000001"
