import trio
import trio.testing

from dios import limits
from dios.host.content.consoles import Consoles, TaskConsole
from dios.ids import Principal, TaskId


def test_positions_are_absolute() -> None:
    """Bytes are found at the place in the stream where they arrived."""
    console = TaskConsole()
    console.append(b"hello ")
    console.append(b"world")
    assert console.read(6, 5) == b"world"
    assert console.read(0, 100) == b"hello world"
    assert console.read(11, 5) == b""


def test_only_the_tail_is_kept() -> None:
    """What is older than the bound is forgotten, and a read of it gives what is left of its range."""
    console = TaskConsole()
    console.append(b"a" * limits.CONSOLE_TAIL_BYTES)
    console.append(b"bc")
    assert len(console) == limits.CONSOLE_TAIL_BYTES
    assert console.read(0, 2) == b""
    assert console.read(1, 3) == b"aa"
    assert console.read(console.arrived - 2, 2) == b"bc"


async def test_printing_waits_for_who_reads_along() -> None:
    """While a reader comes on there is room only for what it will not miss."""
    console = TaskConsole()
    chunk = b"x" * limits.CONSOLE_READ_BYTES
    seen = 0
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                for _ in range(40):
                    await console.wait_for_room()
                    console.append(chunk)

            nursery.start_soon(write)
            while seen < 40 * len(chunk):
                got = console.read(seen, 10_000)
                seen += len(got)
                if not got:
                    await trio.lowlevel.checkpoint()
    assert seen == console.arrived


async def test_nobody_who_went_away_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """A reader that stays away is waited for once, and again only after it has read again."""
    console = TaskConsole()
    began = trio.current_time()
    for _ in range(100):
        await console.wait_for_room()
        console.append(b"x" * limits.CONSOLE_READ_BYTES)
    assert trio.current_time() - began == limits.CONSOLE_READER_TIMEOUT_MS / 1000
    assert len(console) == limits.CONSOLE_TAIL_BYTES


def test_last_lines() -> None:
    """The last lines are text without blank ones, whatever the bytes are."""
    console = TaskConsole()
    console.append(b"one\n\n  \ntwo\xff\nthree\n")
    assert console.last_lines(2) == ["two\N{REPLACEMENT CHARACTER}", "three"]
    assert TaskConsole().last_lines() == []


def test_ended_consoles_are_bounded() -> None:
    """Consoles of ended tasks stay within a bound together, the oldest goes first."""
    consoles = Consoles()
    count = limits.CONSOLE_ENDED_BYTES_MAX // limits.CONSOLE_TAIL_BYTES + 1
    for number in range(count):
        consoles.of(TaskId(number)).append(b"x" * limits.CONSOLE_TAIL_BYTES)
        consoles.ended(TaskId(number), Principal("uid:0"), TaskId(number))
        consoles.ended(TaskId(number), Principal("uid:0"), TaskId(number))
    assert consoles.read(TaskId(0), 0, 5) == b""
    assert consoles.read(TaskId(count - 1), 0, 5) == b"xxxxx"


def test_the_consoles_of_one_principal_push_out_no_others() -> None:
    """However much the tasks of one principal wrote, the last words of another's task are kept."""
    consoles = Consoles()
    consoles.of(TaskId(1)).append(b"mine")
    consoles.ended(TaskId(1), Principal("uid:7"), TaskId(1))
    for number in range(2, 3 + limits.ENDED_TASKS_KEPT_MAX):
        consoles.of(TaskId(number)).append(b"x" * 20_000)
        consoles.ended(TaskId(number), Principal("uid:8"), TaskId(number))
    assert consoles.read(TaskId(1), 0, 5) == b"mine"
    assert len(consoles._consoles) <= limits.CONSOLE_ENDED_BYTES_MAX // 20_000 + 1
