"""What a task does to a descriptor that it shares with others blocks neither them nor the node, nor fills it.

The flags of an open file are those of all who share it, so a task can make an operation of the node block,
unless that operation cannot block whatever the flags are. Not for: what readers of one object could tell each
other by flags (``test_open_files``).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from dios import limits
from dios.wire import messages
from dios.wire.types import Buffering, Mode, NameKind, ObjectType, Permission
from tests.support.node.raw_client import read
from tests.support.security.hostile_pair import SECRET, Puppet, Stage, open_stage

LARGE = 2 * limits.INLINE_BYTES_MAX
READ, WRITE = int(Permission.READ), int(Permission.WRITE)

ATTACH = """
import contextlib, os, socket
from dios.wire import messages

def opened():
    found = set()
    for fd in range(4, 64):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.add(fd)
    return found

before = opened()
(info,) = node.link.call(messages.Stat({ref}))[0].references
stream = node.handle(info)
end = stream.{end}
mine = opened() - before
"""
FILL = """
filled = 0
for fd in mine:
    with contextlib.suppress(OSError):
        os.set_blocking(fd, False)
        os.eventfd_write(fd, 2**64 - 2)
        filled += 1
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
        filled += 1
        while True:
            sock.send(bytes(4096), socket.MSG_DONTWAIT)
for fd in mine:
    os.set_blocking(fd, True)
end._own_halves[16] = 77  # it says that it waits, so that the other end wakes it
said = filled
"""
TRIES = """
try:
    said = repr(stream.{action})
except dios.DiosError as error:
    said = error.code.name
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One node and its tasks."""
    with open_stage(tmp_path_factory.mktemp("shared-descriptors")) as stage:
        yield stage


@pytest.fixture
def stage(opened: Stage) -> Iterator[Stage]:
    """A fresh secret before, and the victim unharmed after."""
    with opened.attempt() as stage:
        yield stage


def _stream(puppet: Puppet) -> int:
    call = messages.Create(ObjectType.SHMEM_STREAM, name_kind=NameKind.ANONYMOUS, size=4096)
    return puppet.ask(messages.Created, call).reference.ref


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_a_full_end_blocks_neither_its_peer_nor_the_node(stage: Stage, mode: Mode) -> None:
    """A task fills what the ends share and makes it block: peer and node go on."""
    evil = stage.puppet("filler")
    ref = _stream(stage.victim)
    theirs = stage.victim.gives(ref, evil, WRITE if mode is Mode.WRITE else READ)
    mine, yours = ("reader", "writer") if mode is Mode.WRITE else ("writer", "reader")
    stage.victim.does("import dios\n" + ATTACH.format(ref=ref, end=mine))
    evil.does(ATTACH.format(ref=theirs, end=yours))
    assert int(evil.does(FILL)) > 0
    action = "receive(0.05)" if mode is Mode.WRITE else "send(b'x', 0.05)"
    for _ in range(3):
        said = stage.victim.does(TRIES.format(action=action))
        assert said in {"ETIMEDOUT", "EPROTO", "None"}, said
    evil.end()  # the node closes its end, and wakes the peer
    said = stage.victim.does(TRIES.format(action=action.replace("0.05", "30")))
    assert said in {"EOF", "EPIPE", "EPROTO"}, said
    assert read(stage.neighbour, stage.neighbours) == SECRET


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_a_full_end_does_not_keep_the_stream_alive(stage: Stage, mode: Mode) -> None:
    """The node ends a stream with such an end while both of its tasks live."""
    ref = _stream(stage.victim)
    theirs = stage.victim.gives(ref, stage.mallory, WRITE if mode is Mode.WRITE else READ)
    mine, yours = ("reader", "writer") if mode is Mode.WRITE else ("writer", "reader")
    stage.victim.does("import dios\n" + ATTACH.format(ref=ref, end=mine))
    stage.mallory.does(ATTACH.format(ref=theirs, end=yours))
    assert int(stage.mallory.does(FILL)) > 0
    stage.victim.ask(messages.Done, messages.Delete(ref))
    said = stage.victim.does(
        TRIES.format(action="receive(30)" if mode is Mode.WRITE else "send(bytes(8192), 30)")
    )
    assert said in {"EOF", "EPIPE", "EPROTO"}, said
    stage.mallory.does("stream.close()")
    assert read(stage.neighbour, stage.neighbours) == SECRET


@pytest.mark.parametrize("buffering", Buffering, ids=str)
def test_memory_for_writing_stays_as_large_as_it_was_counted(stage: Stage, buffering: Buffering) -> None:
    """A program outside the sandbox cannot fill the node's memory through a descriptor of a small object."""
    client = stage.neighbour
    call = messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, buffering=buffering)
    ref = client.ask(call, messages.Created).reference.ref
    buffer = client.ask(messages.AcquireWrite(ref, LARGE), messages.Buffer)
    fd = client.fds[-1]
    for attempt in (
        lambda: os.ftruncate(fd, 1 << 30),
        lambda: os.pwrite(fd, b"x" * 4096, 1 << 20),
        lambda: os.posix_fallocate(fd, 0, 1 << 30),
        lambda: os.ftruncate(fd, 0),
    ):
        with pytest.raises(PermissionError):
            attempt()
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)  # the node's own writes go where they belong
    client.ask(messages.CommitWrite(ref, buffer.buffer), messages.Committed)
    client.ask(messages.WriteOnce(ref, b"hello", offset=LARGE - 100), messages.Committed)
    assert read(client, ref)[-100:] == b"hello".ljust(100, b"\0")
    client.ask(messages.Delete(ref), messages.Done)
