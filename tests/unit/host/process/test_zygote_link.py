"""The daemon's end of the socket of a zygote: messages that are none, cut, or without their descriptor.

Not for: what happens to the zygote and its tasks then (``tests/integration/test_zygote.py``).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from dios import limits, start_watch
from dios.errors import ProtocolError, WouldBlockError
from dios.host.process.zygote_link import ZygoteLink
from dios.host.process.zygote_messages import (
    ChildCreated,
    CreateFailed,
    LowerLimits,
    SetupFailed,
    ZygoteModules,
    ZygoteSetup,
    encode,
)
from dios.host.process.zygote_process import start_zygote
from dios.start_watch import Activity
from dios.wire.types import Brand

SETUP = ZygoteSetup(Brand.PURE, ())


class Ends:
    """A link without a process, and the other end of its socket."""

    def __init__(self) -> None:
        ours, self.theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = ZygoteLink(cast("object", None), ours, SETUP)  # type: ignore[arg-type] # it is not used here


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """Both ends."""
    pair = Ends()
    yield pair
    pair.link._control.close()
    pair.theirs.close()


BAD = {
    "bytes": (b"\x00", "cannot read"),
    "a message to a zygote": (encode(LowerLimits(1, 0, 0, 0)), "cannot read"),
    "a text that is too long": (encode(SetupFailed("x" * 9_000)), "cannot read"),
    "a message that the kernel cuts": (encode(SetupFailed("x" * limits.ZYGOTE_MESSAGE_BYTES_MAX)), "over"),
}


@pytest.mark.parametrize("case", BAD)
async def test_no_message_of_a_zygote_is_taken_for_one(ends: Ends, case: str) -> None:
    """The link reports what it got with one kind of error, and the next message is read as usual."""
    data, match = BAD[case]
    await ends.theirs.send(data)
    with pytest.raises(ProtocolError, match=match):
        await ends.link._receive()
    await ends.theirs.send(encode(SetupFailed("a reason")))
    assert await ends.link._receive() == SetupFailed("a reason")


async def test_a_child_without_its_descriptor_is_a_failure(ends: Ends) -> None:
    """A daemon that has no descriptor left for a new process gives up this one alone."""
    await ends.theirs.send(encode(ChildCreated(5, 100)))
    reply = await ends.link._receive()
    assert isinstance(reply, CreateFailed)
    assert reply.id == 5
    assert "EMFILE" in reply.reason


async def test_the_end_of_the_socket_is_the_end(ends: Ends) -> None:
    """A zygote that has ended has no more messages."""
    ends.theirs.close()
    assert await ends.link._receive() is None


async def test_a_zygote_that_starts_late_is_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much time passes, a zygote that is stopped, or gets no processor, has not failed."""
    del autojump_clock
    started = start_zygote(Brand.PURE, ZygoteModules("os:getpid", (), (), ""))
    os.kill(started.process.pid, signal.SIGSTOP)
    looks: list[int] = []

    def activity(pid: int) -> Activity:
        looks.append(pid)
        if len(looks) == 2 * limits.START_QUIET_MAX:
            os.kill(pid, signal.SIGCONT)
        return Activity(0, waits=True)

    monkeypatch.setattr(start_watch, "activity_of", activity)
    link = await ZygoteLink.start(SETUP, ZygoteModules("os:getpid", (), (), ""), started)
    assert set(looks) == {link.pid}
    assert trio.current_time() >= limits.START_QUIET_MAX
    await link.close()


async def test_a_zygote_that_hangs_is_reported(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that does nothing at many looks in a row fails, and the process is ended."""
    del autojump_clock
    started = start_zygote(Brand.PURE, ZygoteModules("os:getpid", (), (), ""))
    os.kill(started.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(start_watch, "activity_of", lambda _: Activity(0, waits=False))
    with pytest.raises(WouldBlockError, match="hung"):
        await ZygoteLink.start(SETUP, ZygoteModules("os:getpid", (), (), ""), started)
    assert started.process.returncode is not None
