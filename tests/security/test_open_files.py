"""Who may read the same bytes gets no way to talk: position and flags of a descriptor are each reader's own.

A copied descriptor shares both with the one it was copied from, so that a task that may only read could tell
another one something by moving to a place, or by setting flags. Not for: writing through a descriptor
(``test_read_only_memory``), or where the sandbox forbids other ways (``test_escape_kernel``).
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator

import pytest

from dios import limits
from dios.client.sync.node import Reference
from dios.transport.memory.memfd import create_memory
from dios.wire import messages
from dios.wire.types import Buffering, NameKind, ObjectType
from tests.support.security.hostile_pair import Puppet, Stage, open_stage

LARGE = 3 * limits.INLINE_BYTES_MAX

TELL = """
import fcntl, os
os.lseek(fds[-1], {place}, os.SEEK_SET)
fcntl.fcntl(fds[-1], fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
"""
HEAR = """
import fcntl, os
flags = fcntl.fcntl(fds[{which}], fcntl.F_GETFL)
said = [os.lseek(fds[{which}], 0, os.SEEK_CUR), flags & (os.O_NONBLOCK | os.O_APPEND), flags & os.O_ACCMODE]
"""
GET_FLAGS, NO_TIME_OF_READING = 0x80086601, 0x80
UNTOUCHED = "[0, 0, 0]"
READ = """
import mmap, os
os.pread(fds[-1], 1, 0)
mmap.mmap(fds[-1], 4096, mmap.MAP_SHARED, mmap.PROT_READ)[0]
"""
LOOK = """
import os
status = os.fstat(fds[-1])
said = [status.st_ino, status.st_nlink, status.st_blocks, *status[7:]]
said += [status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns]
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One node and its tasks."""
    with open_stage(tmp_path_factory.mktemp("open-files")) as stage:
        yield stage


@pytest.fixture
def stage(opened: Stage) -> Iterator[Stage]:
    """A fresh secret before, and the victim unharmed after."""
    with opened.attempt() as stage:
        yield stage


def _blob(stage: Stage, kind: str) -> Reference:
    """A large object of the director's: ``kind`` says what its bytes stand in."""
    object_type = ObjectType.DURABLE_BLOB if kind == "durable" else ObjectType.SHMEM_BLOB
    buffering = Buffering.RAW if kind == "raw" else Buffering.DOUBLE
    blob = stage.director.create(object_type, naming=NameKind.ANONYMOUS, buffering=buffering)
    blob.write_bytes(b"x" * LARGE)
    if kind == "composed":
        with blob.write(offset=100, size=8) as request:
            request.view[:] = b"8 bytes."
    return blob


def _reads(puppet: Puppet, blob: Reference, how: str) -> None:
    """Let the task get a descriptor of the object's bytes, the last of its ``fds``."""
    blob.delegate(puppet.task, "read")
    ref = puppet.given(blob.object_id).ref
    call = messages.AcquireRead(ref) if how == "acquired" else messages.ReadOnce(ref, LARGE)
    if how == "in-a-vector":
        (result,) = puppet.ask(messages.Results, messages.Vector((call,))).results
    else:
        result = puppet.ask(messages.Buffer, call)
    assert isinstance(result, messages.Buffer), result
    assert result.mapping is messages.Mapping.READ_ONLY


@pytest.mark.parametrize("how", ["acquired", "at-once", "in-a-vector"])
@pytest.mark.parametrize("kind", ["adopted", "composed", "raw", "durable"])
def test_readers_share_no_open_file(stage: Stage, kind: str, how: str) -> None:
    """What one reader does to its descriptor, no other sees, and none is open for writing."""
    blob = _blob(stage, kind)
    first, other = stage.mallory, stage.confederate
    _reads(first, blob, how)
    assert first.does(HEAR.format(which=-1)) == UNTOUCHED
    first.does(TELL.format(place=4242))
    _reads(other, blob, how)
    assert other.does(HEAR.format(which=-1)) == UNTOUCHED, "the second reader heard"
    other.does(TELL.format(place=17))
    assert first.does(HEAR.format(which=-1)).startswith("[4242, "), "the first reader heard"
    _reads(first, blob, how)
    assert first.does(HEAR.format(which=-1)) == UNTOUCHED
    blob.delete()


def _records_reads() -> bool:
    """Return True on a kernel that cannot be told to leave out the time of the last reading of memory."""
    memory, flags = create_memory(1), bytearray(8)
    try:
        fcntl.ioctl(memory, GET_FLAGS, flags)
    except OSError:
        return True
    finally:
        os.close(memory)
    return not int.from_bytes(flags, sys.byteorder) & NO_TIME_OF_READING


@pytest.mark.parametrize("kind", ["adopted", "composed", "raw"])
def test_no_reader_sees_that_another_reads(stage: Stage, kind: str) -> None:
    """The times, the size and the links of memory stay as they were, whoever reads and maps it."""
    if _records_reads():
        pytest.skip("this kernel records the time of the last reading of memory")
    blob = _blob(stage, kind)
    for reader in (stage.mallory, stage.confederate):
        _reads(reader, blob, "acquired")
    before = stage.confederate.does(LOOK)
    for _ in range(20):
        stage.mallory.does(READ)
    assert stage.confederate.does(LOOK) == before


@pytest.mark.parametrize("kind", ["adopted", "durable"])
def test_equal_bytes_are_two_files(stage: Stage, kind: str) -> None:
    """Who stores what another one has stored gets a file of its own, which tells nothing of the other."""
    before, mine = _blob(stage, kind), _blob(stage, kind)
    _reads(stage.victim, before, "acquired")
    _reads(stage.mallory, mine, "acquired")
    theirs, own = (json.loads(puppet.does(LOOK)) for puppet in (stage.victim, stage.mallory))
    assert own[0] != theirs[0]
    assert own[1] == theirs[1]
