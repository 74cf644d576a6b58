"""What a SHMEM_STREAM's ring promises, across processes and against a liar."""

import mmap
import os
import random
import select
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from dios import limits
from dios.errors import (
    ClosedError,
    EndOfStreamError,
    InvalidError,
    ProtocolError,
    TimeLimitError,
    TooLargeError,
    UnreachableError,
)
from dios.transport.memory.memfd import close_all
from dios.transport.rings import waiting_trio
from dios.transport.rings.layout import CONTROL_BYTES, COUNT
from dios.transport.rings.waiting import RingDescriptors, RingReader, create_ring, is_ready, wait_any
from dios.transport.rings.wakeups import receive_wakeups
from dios.wire.types import Mode
from tests.support.host.ring_ends import LIMIT_S, RING, Ends, write_control


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The smallest ring there is."""
    pair = Ends()
    yield pair
    pair.close()


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process, whose exit status says whether it went well."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the status tells the test
            os._exit(1)
        os._exit(0)
    return pid


def exit_status(pid: int) -> int:
    """How a child ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- between processes ----------------------------------------------------------------------------
def numbered(count: int) -> Iterator[bytes]:
    """Messages of many sizes that both processes know, some longer than the ring."""
    source = random.Random(3)  # noqa: S311 - data, no secret
    for number in range(count):
        size = source.choice([0, 1, 60, 1000, RING // 2 - 4, RING // 2, RING, 5 * RING])
        yield bytes([number % 256]) * size


@pytest.mark.parametrize("batched", [False, True], ids=["one by one", "batched"])
def test_messages_of_every_size_cross_between_processes(*, batched: bool, ends: Ends) -> None:
    """Every message arrives once, whole and in order, though either end sleeps again and again."""
    count = 3000

    def write() -> None:
        if batched:
            ends.writer.send_many(numbered(count))
        else:
            for message in numbered(count):
                ends.writer.send(message)
        ends.writer.close()

    pid = in_child(write)
    for expected in numbered(count):
        assert ends.reader.receive(LIMIT_S) == expected
    assert exit_status(pid) == 0
    with pytest.raises(EndOfStreamError):
        ends.reader.receive(LIMIT_S)
    assert (ends.ring.commits(Mode.WRITE), ends.ring.commits(Mode.READ)) == (count, count)


def test_two_processes_answer_each_other(ends: Ends) -> None:
    """Through two rings a question and its answer cross, each end asleep while the other works."""
    back = Ends()

    def answer() -> None:
        while (question := ends.reader.receive(LIMIT_S)) != b"enough":
            back.writer.send(question * 2)

    pid = in_child(answer)
    for number in range(500):
        question = b"%d" % number
        ends.writer.send(question)
        assert back.reader.receive(LIMIT_S) == question * 2
    ends.writer.send(b"enough")
    assert exit_status(pid) == 0
    back.close()


def test_the_node_tells_of_an_end_that_died(ends: Ends) -> None:
    """When a writer's process is gone the node says so for it, and the sleeping reader learns it."""

    def die() -> None:
        ends.writer.send(b"last words")
        os._exit(0)

    exit_status(in_child(die))

    def read() -> None:
        assert ends.reader.receive(LIMIT_S) == b"last words"
        with pytest.raises(EndOfStreamError):
            ends.reader.receive(LIMIT_S)

    pid = in_child(read)
    ends.ring.mark_closed(Mode.WRITE)
    assert ends.ring.is_closed(Mode.WRITE)
    assert exit_status(pid) == 0


# -- ends -----------------------------------------------------------------------------------------
def test_what_was_sent_is_read_before_the_end(ends: Ends) -> None:
    """A closed writer's messages are all read, then comes the end, again and again."""
    ends.writer.send_many([b"a", b"b"])
    ends.writer.close()
    assert ends.reader.readable()
    assert ends.reader.receive_many() == [b"a", b"b"]
    for _ in range(2):
        assert ends.reader.readable()
        with pytest.raises(EndOfStreamError):
            ends.reader.receive(LIMIT_S)
        with pytest.raises(EndOfStreamError):
            ends.reader.acquire_read()


@pytest.mark.parametrize("by_node", [False, True], ids=["closed", "marked closed"])
def test_a_writer_learns_that_its_reader_is_gone(*, by_node: bool, ends: Ends) -> None:
    """Writing to a closed reader is an error, for each way of writing."""
    if by_node:
        ends.ring.mark_closed(Mode.READ)
    else:
        ends.reader.close()
    for write in (
        lambda: ends.writer.send(b"x"),
        lambda: ends.writer.send(bytes(3 * RING)),
        lambda: ends.writer.send_many([b"x"]),
        lambda: ends.writer.acquire_write(1),
    ):
        with pytest.raises(ClosedError, match="reader"):
            write()
    assert ends.writer.writable()


def test_a_writer_that_leaves_within_a_message_is_noticed(ends: Ends) -> None:
    """Half a message and then nothing more is an error, not an end."""
    ends.writer.acquire_write(6)[:] = b"\x09\0\0\0ab"
    ends.writer.commit_write()
    ends.writer.close()
    with pytest.raises(ProtocolError, match="truncated"):
        ends.reader.receive(LIMIT_S)


def test_a_closed_end_is_of_no_more_use(ends: Ends) -> None:
    """What was closed says so, twice is once, and borrowed views are gone."""
    view = ends.writer.acquire_write(10)
    ends.writer.close()
    ends.writer.close()
    with pytest.raises(ValueError, match="released"):
        view[0] = 1
    with pytest.raises(ClosedError):
        ends.writer.send(b"x")
    with pytest.raises(InvalidError):
        ends.writer.commit_write()
    ends.reader.close()
    with pytest.raises(ClosedError):
        ends.reader.receive()
    with pytest.raises(InvalidError):
        ends.reader.commit_read()


def test_the_order_of_acquire_and_commit_is_kept(ends: Ends) -> None:
    """One view at a time, committed once, no longer than acquired, no larger than the ring."""
    with pytest.raises(InvalidError):
        ends.writer.commit_write()
    for size in (0, RING + 1):
        with pytest.raises(InvalidError):
            ends.writer.acquire_write(size)
    ends.writer.acquire_write(RING)
    with pytest.raises(InvalidError):
        ends.writer.acquire_write(1)
    with pytest.raises(InvalidError):
        ends.writer.commit_write(RING + 1)
    ends.writer.commit_write(4)
    with pytest.raises(InvalidError):
        ends.reader.commit_read()
    ends.reader.acquire_read()
    with pytest.raises(InvalidError):
        ends.reader.acquire_read()
    with pytest.raises(InvalidError):
        ends.reader.commit_read(5)
    ends.reader.commit_read()


# -- waiting --------------------------------------------------------------------------------------
def test_a_wait_given_up_changes_nothing(ends: Ends) -> None:
    """After a time limit that passed both ends go on as before."""
    with pytest.raises(TimeLimitError):
        ends.reader.receive(0.001)
    sent = RING // 504
    for number in range(sent):
        ends.writer.send(bytes([number]) * 500, timeout_s=LIMIT_S)
    with pytest.raises(TimeLimitError):
        ends.writer.send(bytes(500), timeout_s=0.001)
    assert [ends.reader.receive(LIMIT_S) for _ in range(sent)] == [bytes([n]) * 500 for n in range(sent)]
    with pytest.raises(TimeLimitError):
        ends.reader.receive(0)
    ends.writer.send(b"again", timeout_s=LIMIT_S)
    assert ends.reader.receive(LIMIT_S) == b"again"


def test_one_wait_is_rung_for_once(ends: Ends) -> None:
    """A reader that sleeps is woken by the first message, and not rung for again by the next ones."""
    assert ends.reader.arm()
    for _ in range(5):
        ends.writer.send(b"x")
    assert receive_wakeups(ends.reader._wakeups) == 1
    ends.reader.disarm()
    assert not ends.reader.arm()
    ends.writer.send(b"x")
    assert not select.select([ends.reader.fileno()], [], [], 0)[0]


def test_waiting_for_any_of_several() -> None:
    """Of several rings and descriptors those are told that are ready, and none when the time is over."""
    first, second = Ends(), Ends()
    out, into = os.pipe()
    waited = [first.reader, second.reader]
    assert wait_any(waited, 0.001, [out]) == ([], [])
    second.writer.send(b"x")
    assert wait_any(waited, LIMIT_S, [out]) == ([second.reader], [])
    os.write(into, b"x")
    assert wait_any(waited, LIMIT_S, [out]) == ([second.reader], [out])
    second.reader.receive()
    first.writer.close()
    os.read(out, 1)
    assert wait_any(waited, LIMIT_S, [out]) == ([first.reader], [])
    assert wait_any([second.writer], LIMIT_S) == ([second.writer], [])

    def write() -> None:
        second.writer.send(b"later")

    pid = in_child(write)
    assert wait_any([second.reader], LIMIT_S) == ([second.reader], [])
    assert exit_status(pid) == 0
    for fd in (out, into):
        os.close(fd)
    first.close()
    second.close()


def test_news_between_a_check_and_a_wait_is_found() -> None:
    """An end that becomes ready after the caller has checked it ends the wait at once."""
    several = [Ends() for _ in range(5)]
    readers = [pair.reader for pair in several]
    for ring_ends in several:
        assert not any(map(is_ready, readers))
        ring_ends.writer.send(b"x")
        assert wait_any(readers, LIMIT_S, checked=True) == ([ring_ends.reader], [])
        assert ring_ends.reader.receive() == b"x"
        assert wait_any(readers, 0.001) == ([], [])
    assert not any(map(is_ready, readers))
    several[2].writer.close()
    assert wait_any(readers, LIMIT_S, checked=True) == ([several[2].reader], [])
    for ring_ends in several:
        ring_ends.close()


async def test_waiting_on_trio(ends: Ends) -> None:
    """Both ends wait on trio without stopping each other, for messages longer than the ring too."""
    messages = list(numbered(50))
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                for message in messages:
                    await trio.to_thread.run_sync(ends.writer.send, message)
                await trio.testing.wait_all_tasks_blocked()
                ends.writer.close()

            nursery.start_soon(write)
            for message in messages:
                assert await waiting_trio.receive(ends.reader, limits.STREAM_MESSAGE_BYTES_MAX) == message
            await waiting_trio.wait_ready(ends.reader)
            with pytest.raises(EndOfStreamError):
                await waiting_trio.receive(ends.reader, limits.STREAM_MESSAGE_BYTES_MAX)
        with trio.move_on_after(0) as scope:
            await waiting_trio.wait_ready(ends.writer)
            await waiting_trio.wait_ready(ends.writer)
        assert scope.cancelled_caught
        assert is_ready(ends.writer)


# -- a peer that lies -----------------------------------------------------------------------------
def lie(ring: RingDescriptors, mode: Mode, word: int, value: int) -> None:
    """Write into an end's control page what it would never write itself."""
    write_control(ring, mode, "Q", word, value)


@pytest.mark.parametrize("tail", [0, 3, 10 + RING + 1, 2**63, 2**64 - 2])
def test_a_writers_impossible_counter_is_refused(tail: int, ends: Ends) -> None:
    """A tail that went back, or is further ahead than the ring is long, costs the stream."""
    ends.writer.send(b"abcdef")
    assert ends.reader.receive() == b"abcdef"
    lie(ends.ring, Mode.WRITE, COUNT, tail)
    for read in (
        ends.reader.receive,
        ends.reader.receive_many,
        ends.reader.acquire_read,
        ends.reader.readable,
    ):
        with pytest.raises(ProtocolError, match="counter"):
            read()


@pytest.mark.parametrize("head", [0, 5, 21, 2**63, 2**64 - 1])
def test_a_readers_impossible_counter_is_refused(head: int, ends: Ends) -> None:
    """A head that went back, or is ahead of what was written, costs the stream."""
    ends.writer.send(b"abcdef")
    ends.reader.receive()
    assert not ends.reader.readable()
    assert ends.writer.acquire_write(1, LIMIT_S)
    ends.writer.commit_write(0)
    ends.writer.send(b"abcdef")
    lie(ends.ring, Mode.READ, COUNT, head)
    with pytest.raises(ProtocolError, match="counter"):
        ends.writer.acquire_write(1)
    with pytest.raises(ProtocolError, match="counter"):
        ends.writer.send(bytes(RING))


def test_an_impossible_length_is_refused(ends: Ends) -> None:
    """A message longer than any may be is refused before a byte of it is awaited."""
    ends.writer.acquire_write(4)[:] = b"\xff\xff\xff\xff"
    ends.writer.commit_write()
    with pytest.raises(ProtocolError, match="over"):
        ends.reader.receive(LIMIT_S)
    with pytest.raises(TooLargeError):
        ends.writer.send(memoryview(mmap.mmap(-1, limits.STREAM_MESSAGE_BYTES_MAX + 1)))


def test_an_end_can_write_only_what_is_its_own() -> None:
    """Neither end's descriptor of the other one's memory can be mapped or opened for writing, root apart."""
    ring = create_ring()
    given = [ring.hand_out(mode) for mode in Mode]
    for _, fd, _ in given:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, CONTROL_BYTES)
        if os.geteuid():
            with pytest.raises(PermissionError):
                os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    close_all(fd for fds in given for fd in fds)
    ring.close()


def test_what_is_no_ring_is_refused() -> None:
    """Descriptors of something else, and sizes out of bounds, are refused, and nothing is left open."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one line for a count
    with pytest.raises(ProtocolError, match="not an end of a ring"):
        RingReader([os.open("/dev/null", os.O_RDWR) for _ in range(3)], RING)
    for size in (limits.STREAM_RING_BYTES_MIN - 1, limits.STREAM_RING_BYTES_MAX + 1):
        with pytest.raises(InvalidError):
            create_ring(size)
    pair = Ends(RING + 1)
    assert pair.ring.ring_bytes == RING + mmap.PAGESIZE
    pair.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - one line for a count


def test_bytes_without_messages(ends: Ends) -> None:
    """``write`` and ``read`` move bytes whatever their bounds; views of what is here wait for nothing."""
    data = bytes(range(256)) * (RING // 512)
    ends.writer.write(data)
    assert ends.reader.read(10) == data[:10]
    assert ends.reader.read() == data[10:]
    with pytest.raises(TimeLimitError):
        ends.reader.read(timeout_s=0)
    room = ends.writer.acquire_room(RING)
    assert len(room) == RING - len(data)
    room[:3] = b"abc"
    ends.writer.commit_write(3)
    assert ends.writer.room == RING - 3
    assert ends.reader.read(100, LIMIT_S) == b"abc"
    with pytest.raises(TimeLimitError):
        ends.writer.write(bytes(2 * RING), timeout_s=0)
    assert ends.writer.room == 0
    ends.writer.close()
    assert len(ends.reader.read()) == RING - 3  # the reader had not told of the three that it read
    with pytest.raises(EndOfStreamError):
        ends.reader.read()


def test_a_stream_that_was_broken_off_has_no_good_end(ends: Ends) -> None:
    """A writer that breaks off leaves a reader that knows that what came is not all."""
    ends.writer.send(b"half of it")
    assert ends.reader.receive() == b"half of it"
    ends.writer.break_off()
    with pytest.raises(UnreachableError, match="ended early"):
        ends.reader.receive()
