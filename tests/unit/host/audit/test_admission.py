"""What is refused while the audit log cannot be written, and that it loses no record meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import limits
from dios.core.effects import Audit
from dios.errors import NoSpaceError
from dios.host.audit.admission import refusal
from dios.host.audit.log import AuditLog, BacklogLevel
from dios.host.audit.reader import read, verify
from dios.wire import messages
from dios.wire.messages import AnyCall
from dios.wire.types import Flag, ObjectType

READ = messages.ReadOnce(1)
LOOKUP = messages.Lookup(b"n" * 32)
CREATE = messages.Create(ObjectType.SHMEM_BLOB)
HELLO = messages.Hello(1)
DELETE = messages.Delete(1)
LET_GO = messages.Delete(1, int(Flag.HANDLE_ONLY))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    """A log on a disk that is full."""
    audit_log = AuditLog(tmp_path)
    own = os.dup(audit_log._fd)
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(full, audit_log._fd)
    os.close(full)
    yield audit_log
    os.dup2(own, audit_log._fd)
    os.close(own)
    audit_log.close()


def append(log: AuditLog, size: int) -> int:
    """Append records until so many bytes stand in memory; returns how many there are."""
    while len(log._buffer) < size:
        log.append(Audit(1, "lookup", "empty", "uid:0", "t", "s", "d" * 500))
    with pytest.raises(NoSpaceError):
        log.flush()
    return log.records


def pressure_at(log: AuditLog, size: int) -> BacklogLevel:
    """The pressure when so many bytes stand in memory."""
    append(log, size)
    return log.pressure


def refused(log: AuditLog, *calls: AnyCall) -> list[bool]:
    """Which of the calls are refused."""
    return [refusal(log, call) is not None for call in calls]


def test_pressure_grows_with_what_stands_in_memory(log: AuditLog, tmp_path: Path) -> None:
    """A full disk alone refuses nothing; a full buffer what leaves a record; a long backlog nearly all."""
    calls = (READ, LOOKUP, HELLO, DELETE, CREATE, LET_GO)
    seen = [pressure_at(log, 1), pressure_at(log, limits.AUDIT_BUFFER_BYTES_MAX)]
    assert seen == [BacklogLevel.NONE, BacklogLevel.SOME]
    assert refused(log, *calls) == [False, False, False, False, True, False]
    assert pressure_at(log, limits.AUDIT_BACKLOG_BYTES_MAX) is BacklogLevel.HIGH
    assert refused(log, *calls) == [True, True, True, True, True, False]
    why = refusal(log, READ)
    assert why is not None
    assert "No space left on device" in why.message
    assert str(tmp_path) not in why.message, "a task is not to learn how files are called"


def test_a_vector_is_refused_for_one_of_its_calls(log: AuditLog) -> None:
    """A vector is refused when one of its calls is, and taken when none is."""
    append(log, limits.AUDIT_BUFFER_BYTES_MAX)
    assert refused(log, messages.Vector((READ, CREATE)), messages.Vector((READ, LOOKUP))) == [True, False]


def test_no_record_is_lost_when_there_is_room_again(tmp_path: Path) -> None:
    """What stood in memory is written in order as soon as the disk takes it, and pressure ends."""
    log = AuditLog(tmp_path)
    own = os.dup(log._fd)
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(full, log._fd)
    os.close(full)
    count = append(log, limits.AUDIT_BUFFER_BYTES_MAX + 1)
    os.dup2(own, log._fd)
    os.close(own)
    log.flush()
    assert log.pressure is BacklogLevel.NONE
    log.close()
    assert verify(tmp_path).records == count == len(list(read(tmp_path)))
