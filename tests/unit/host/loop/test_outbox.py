from __future__ import annotations

import os

from dios import limits
from dios.errors import Code, WouldBlockError
from dios.host.loop.outbox import Outbox
from dios.ids import TaskId
from dios.wire.messages import Buffer, Done, Failure
from tests.support.host.harness import RecordingChannel, open_descriptors

TASK = TaskId(1)


def test_what_is_sent_early_waits_for_the_channel() -> None:
    """Replies to a task without a channel are sent, in order and with descriptors, when it has one."""
    outbox = Outbox(lambda *_: None)
    connection = outbox.open(TASK)
    mine, other = os.pipe()
    outbox.reply(TASK, 0, Done(1), (mine,))
    outbox.reply(TASK, 1, Done(2))
    os.close(mine)
    channel = RecordingChannel()
    connection.attach(channel)  # type: ignore[arg-type] # all that is asked of a channel
    outbox.reply(TASK, 2, Done(3))
    assert [seq for seq, _, _ in channel.replies] == [0, 1, 2]
    assert len(channel.replies[0][2]) == 1
    outbox.close(TASK)
    os.close(other)


def test_unsent_descriptors_are_closed() -> None:
    """A task that never got a channel leaves no descriptor behind."""
    before = open_descriptors()
    outbox = Outbox(lambda *_: None)
    outbox.open(TASK)
    mine, other = os.pipe()
    outbox.reply(TASK, 0, Done(1), (mine,))
    os.close(mine)
    os.close(other)
    outbox.close(TASK)
    assert open_descriptors() == before


def test_nobody_to_tell() -> None:
    """A reply to a task that is gone is dropped."""
    Outbox(lambda *_: None).reply(TASK, 1, Done(1))


def test_overrun_is_reported() -> None:
    """A task that does not read is reported, once its queue is full."""
    told: list[tuple[TaskId, str]] = []
    outbox = Outbox(lambda task, why: told.append((task, why)))
    channel = RecordingChannel()
    channel.failure = WouldBlockError("it does not read")
    outbox.open(TASK, channel)  # type: ignore[arg-type] # all that is asked of a channel
    outbox.reply(TASK, 1, Done(1))
    assert told == [(TASK, "it does not read")]


def test_reply_over_the_bound() -> None:
    """A reply that no frame can hold becomes a refusal that says so."""
    outbox = Outbox(lambda *_: None)
    channel = RecordingChannel()
    outbox.open(TASK, channel)  # type: ignore[arg-type] # all that is asked of a channel
    outbox.reply(TASK, 1, Buffer(0, 0, 0, 0, data=bytes(limits.REPLY_BYTES_MAX)))
    ((_, result, _),) = channel.replies
    assert isinstance(result, Failure)
    assert result.code == Code.EFBIG
