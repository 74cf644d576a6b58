"""A wait set finds every message, whatever was done with its ends since the last wait."""

import os
import random
from collections.abc import Iterator

import pytest

from dios.transport.rings.end import RingEnd
from dios.transport.rings.wait_set import WaitSet
from dios.transport.rings.waiting import is_ready
from tests.support.host.ring_ends import RING, Ends

_COUNT = 20


@pytest.fixture
def rings() -> Iterator[list[Ends]]:
    """Several of the smallest rings."""
    pairs = [Ends() for _ in range(_COUNT)]
    yield pairs
    for pair in pairs:
        pair.close()


@pytest.fixture
def waits() -> Iterator[WaitSet]:
    """An empty set."""
    created = WaitSet()
    yield created
    created.close()


def test_a_message_between_two_waits_is_found(rings: list[Ends], waits: WaitSet) -> None:
    """An end that had nothing at the first wait is returned by the second one."""
    waits.replace(ring.reader for ring in rings)
    assert waits.wait(0) is None
    rings[7].writer.send(b"x")
    assert waits.wait() is rings[7].reader
    assert rings[7].reader.receive() == b"x"
    assert waits.wait(0) is None


def test_only_ends_with_news_are_looked_at(
    rings: list[Ends], waits: WaitSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first wait, the silent ends cost nothing."""
    looks: list[RingEnd] = []

    def look(end: RingEnd) -> bool:
        looks.append(end)
        return is_ready(end)

    monkeypatch.setattr("dios.transport.rings.wait_set.is_ready", look)
    waits.replace(ring.reader for ring in rings)
    assert waits.wait(0) is None
    assert len(looks) == _COUNT
    looks.clear()
    for _ in range(3):
        rings[3].writer.send(b"x")
        assert waits.wait() is rings[3].reader
        rings[3].reader.receive()
        assert waits.wait(0) is None
    assert set(looks) == {rings[3].reader}


def test_busy_ends_are_returned_in_turns(rings: list[Ends], waits: WaitSet) -> None:
    """An end that always has a message does not hide another one."""
    waits.replace(ring.reader for ring in rings)
    for busy in rings[:3]:
        busy.writer.send_many([b"x"] * 10)
    ready = [waits.wait() for _ in range(6)]
    assert (
        {id(end) for end in ready[:3]}
        == {id(end) for end in ready[3:]}
        == {id(ring.reader) for ring in rings[:3]}
    )


def test_an_end_that_was_used_otherwise_is_waited_for_again(rings: list[Ends], waits: WaitSet) -> None:
    """A wait of the end itself replaces the announced one; the next message is found all the same."""
    reader, writer = rings[0].reader, rings[0].writer
    waits.replace(ring.reader for ring in rings)
    assert waits.wait(0) is None
    assert reader.arm()
    reader.disarm(woken=False)
    writer.send(b"x")
    assert waits.wait() is reader


def test_closed_ends_are_ready_and_others_no_longer_count(rings: list[Ends], waits: WaitSet) -> None:
    """A closed member is returned; an end that was taken out is not, and its descriptor can be used again."""
    waits.replace(ring.reader for ring in rings)
    assert waits.wait(0) is None
    rings[1].reader.close()
    assert waits.wait() is rings[1].reader
    waits.replace([rings[2].reader])
    again = Ends()
    rings[3].writer.send(b"x")
    assert waits.wait(0) is None
    waits.replace([rings[2].reader, again.reader])
    again.writer.send(b"y")
    assert waits.wait() is again.reader
    again.close()


def test_a_forked_process_has_no_use_of_it(waits: WaitSet) -> None:
    """The kernel's list is shared with the parent, so that a child must make a set of its own."""
    assert waits.usable
    pid = os.fork()
    if not pid:
        os._exit(int(waits.usable))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_message_and_no_room_is_missed(seed: int, rings: list[Ends], waits: WaitSet) -> None:
    """After random sends, receives and changes, a wait returns an end if and only if one is ready."""
    source = random.Random(seed)  # noqa: S311 - no secret
    sent = [0] * _COUNT
    members: list[int] = []
    readers: dict[RingEnd, int] = {ring.reader: number for number, ring in enumerate(rings)}
    for _ in range(400):
        action = source.randrange(6)
        number = source.randrange(_COUNT)
        if action == 0:
            members = source.sample(range(_COUNT), source.randrange(1, _COUNT))
            waits.replace(rings[member].reader for member in members)
        elif action == 1 and rings[number].writer.room > RING // 3:
            rings[number].writer.send(bytes(source.randrange(RING // 3)))
            sent[number] += 1
        elif action == 2 and sent[number]:
            rings[number].reader.receive()
            sent[number] -= 1
        elif action == 3 and not sent[number] and rings[number].reader.arm():
            rings[number].reader.disarm(woken=source.random() < 0.5)
        else:
            ready = {member for member in members if sent[member]}
            end = waits.wait(0)
            assert (None if end is None else readers[end] in ready) == (True if ready else None)
            if end is None:
                # All that was read is given back, so that a long message finds its room.
                assert all(rings[member].writer.room == RING for member in members)
