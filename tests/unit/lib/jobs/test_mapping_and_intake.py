from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from dios.errors import ClosedError, InvalidError, ProtocolError
from dios.lib.jobs import chunks
from dios.lib.jobs.chunks import Key
from dios.lib.jobs.functions import Functions, functions_of
from dios.lib.jobs.intake import Intake
from dios.lib.jobs.mapping import run_mapper
from dios.lib.jobs.orders import MapOrder, PairsReceived, ReduceOrder, StreamRead
from dios.lib.jobs.records import Document, plan_splits

TEXT = "\n".join(" ".join(f"w{(row * column) % 37}" for column in range(9)) for row in range(200)).encode()
COUNTS = Counter(TEXT.split())
ROOMY = 1 << 20
TINY = 1 << 10

COUNT_PAIRS = """
def map(line):
    for word in line.split():
        yield word, 1
combine = reduce = sum
"""
COUNT_LOOSELY = COUNT_PAIRS.replace("combine = reduce = sum", "def reduce(key, values): return sum(values)")
COUNT_BY_SUM = COUNT_PAIRS.replace("combine = ", "")
COUNT_KEYS = "def map_keys(line): return line.split()\nreduce = sum\n"
COUNT_BLOCKS = """
from collections import Counter
def map_block(block): return Counter(bytes(block).split())
combine = reduce = sum
"""
COUNT_LISTS = """
def map(line):
    for word in line.split():
        yield word, 1
def combine(key, values): return sum(values)
def reduce(key, values): return sum(values)
"""
PROGRAMS = [COUNT_PAIRS, COUNT_LOOSELY, COUNT_BY_SUM, COUNT_KEYS, COUNT_BLOCKS, COUNT_LISTS]


class Kept:
    """An outlet that keeps what is sent; with ``room`` it closes after so many messages."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.sent: list[bytes] = []
        self.room = room

    def send(self, data: bytes) -> None:
        """Keep one message."""
        if len(self.sent) >= self.room:
            raise ClosedError("the reducer is gone")
        self.sent.append(data)

    def close(self) -> None:
        """Nothing more will come."""


class Shelf:
    """A spool in memory, which counts how many there are."""

    alive = 0
    created = 0

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        Shelf.alive += 1
        Shelf.created += 1

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)

    def close(self) -> None:
        """Give the space back."""
        Shelf.alive -= 1


@pytest.fixture(autouse=True)
def _empty_shelf() -> None:
    Shelf.alive = Shelf.created = 0


def functions(source: str) -> Functions:
    """The functions of a job's source."""
    module = ModuleType("job")
    exec(source, vars(module))  # noqa: S102 - the job under test, as a task would import it
    return functions_of(module)


def ignore(number: int, start: int, stop: int) -> None:
    """Progress that nobody looks at."""


def mapped(
    source: str, text: bytes, mappers: int, reducers: int, memory_bytes: int = ROOMY
) -> list[list[list[bytes]]]:
    """What each mapper sends to each reducer."""
    sent: list[list[list[bytes]]] = []
    splits = plan_splits([Document(0, 0, len(text), "text")], mappers)
    for number, segments in enumerate(splits):
        outlets = [Kept() for _ in range(reducers)]
        order = MapOrder(number, 1, reducers, tuple(range(reducers)), segments, memory_bytes, 500)
        run_mapper(order, functions(source), [memoryview(text)], outlets, ignore)
        sent.append([outlet.sent for outlet in outlets])
    return sent


def reduced(
    source: str, streams: list[list[bytes]], *, memory_bytes: int = ROOMY, ordered: bool = False
) -> dict[Key, object]:
    """What a reducer makes of these streams, which come in step with each other."""
    order = ReduceOrder(0, 1, len(streams), memory_bytes, ordered)
    intake = Intake(order, functions(source), Shelf)
    waiting = [list(stream) for stream in streams]
    rng = random.Random(1)  # noqa: S311 - a seeded order of arrival, no secret
    while any(waiting):
        number = rng.choice([index for index, rest in enumerate(waiting) if rest])
        intake.message(number, waiting[number].pop(0))
    assert intake.complete
    keys: list[Key] = []
    values: list[object] = []
    for some_keys, some_values in intake.results():
        keys += some_keys
        values += some_values
    intake.close()
    assert Shelf.alive == 0
    outputs = dict(zip(keys, values, strict=True))
    assert len(outputs) == len(keys)
    return outputs


@pytest.mark.parametrize("source", PROGRAMS)
@pytest.mark.parametrize("memory_bytes", [ROOMY, TINY])
@pytest.mark.parametrize(("mappers", "reducers"), [(1, 1), (3, 2), (2, 5)])
def test_counts_are_right(source: str, memory_bytes: int, mappers: int, reducers: int) -> None:
    """Each way of writing word count gives the same counts, with much memory and with hardly any."""
    sent = mapped(source, TEXT, mappers, reducers, memory_bytes)
    together: dict[Key, object] = {}
    for reducer in range(reducers):
        part = reduced(source, [streams[reducer] for streams in sent], memory_bytes=memory_bytes)
        assert not part.keys() & together.keys()
        together |= part
    assert together == COUNTS
    if memory_bytes == ROOMY:
        assert not Shelf.created


def test_output_does_not_depend_on_who_is_first() -> None:
    """Values come in the order of the mappers' numbers, whatever the order of arrival."""
    source = "def map(line): yield 'all', line\ndef reduce(key, values): return values\ntext = True\n"
    text = b"\n".join(b"%d" % number for number in range(100))
    streams = [to[0] for to in mapped(source, text, 4, 1)]
    for memory_bytes in (ROOMY, TINY):
        outputs = reduced(source, streams, memory_bytes=memory_bytes)
        assert outputs == {"all": [str(number) for number in range(100)]}


def test_ordered_output_is_sorted_by_key() -> None:
    """With ``ordered`` the keys of each output come sorted."""
    streams = [to[0] for to in mapped(COUNT_PAIRS, TEXT, 2, 1)]
    assert list(reduced(COUNT_PAIRS, streams, ordered=True)) == sorted(COUNTS)


def test_an_attempt_that_breaks_off_does_not_count() -> None:
    """Chunks of an attempt without END are forgotten; the next attempt counts once, a third not again."""
    stream = mapped(COUNT_PAIRS, TEXT, 1, 1)[0][0]
    intake = Intake(ReduceOrder(0, 1, 1, ROOMY, ordered=False), functions(COUNT_PAIRS), Shelf)
    assert intake.message(7, stream[0]) == StreamRead(0, 1)
    assert intake.message(7, stream[1]) is None
    intake.closed(7)
    complete = [intake.complete]
    for number in (8, 9):
        assert intake.message(number, stream[0]) == StreamRead(0, 1)
    for number in (8, 9):
        told = [intake.message(number, message) for message in stream[1:]]
        assert told[-1] == PairsReceived(0, 1)
    assert [*complete, intake.complete] == [False, True]
    (keys, values), *_ = intake.results()
    assert dict(zip(keys, values, strict=True)) == COUNTS


def test_a_reducer_that_left_does_not_stop_the_others() -> None:
    """A mapper goes on for the other reducers when one closes its stream."""
    outlets = [Kept(room=1), Kept()]
    order = MapOrder(0, 1, 2, (0, 1), plan_splits([Document(0, 0, len(TEXT))], 1)[0], ROOMY, 500)
    run_mapper(order, functions(COUNT_PAIRS), [memoryview(TEXT)], outlets, ignore)
    assert chunks.tag_of(outlets[1].sent[-1]) is chunks.Tag.END
    assert len(outlets[0].sent) == 1


def test_an_attempt_for_some_reducers_sends_only_their_part() -> None:
    """An attempt for one reducer sends exactly what that reducer would have got from the first one."""
    whole = mapped(COUNT_PAIRS, TEXT, 1, 3)[0]
    outlet = Kept()
    order = MapOrder(0, 1, 3, (1,), plan_splits([Document(0, 0, len(TEXT))], 1)[0], ROOMY, 500)
    run_mapper(order, functions(COUNT_PAIRS), [memoryview(TEXT)], [outlet], ignore)
    assert outlet.sent == whole[1]


def test_progress_adds_up() -> None:
    """What a mapper tells of its progress adds up to the bytes of its split."""
    done: list[int] = []

    def progress(number: int, start: int, stop: int) -> None:
        assert number == 0
        done.append(stop - start)

    order = MapOrder(0, 1, 1, (0,), plan_splits([Document(0, 0, len(TEXT))], 1)[0], ROOMY, 500)
    run_mapper(order, functions(COUNT_KEYS), [memoryview(TEXT)], [Kept()], progress)
    assert sum(done) == len(TEXT)


def test_labels_reach_functions_that_ask() -> None:
    """A map function with two arguments gets the document's label."""
    source = "def map(line, label): yield label, 1\nreduce = len\ntext = True\n"
    source = source.replace("reduce = len", "def reduce(key, values): return len(values)")
    streams = [to[0] for to in mapped(source, b"a\nb\nc\n", 1, 1)]
    assert reduced(source, streams) == {"text": 3}


def test_a_reduce_that_gives_none_leaves_the_key_out() -> None:
    """Only keys whose reduce gave a value are in the output."""
    source = COUNT_BY_SUM.replace(
        "reduce = sum", "def reduce(key, values): return max(values) if key == b'w0' else None"
    )
    streams = [to[0] for to in mapped(source, TEXT, 1, 1)]
    assert reduced(source, streams) == {b"w0": 1}


def test_the_greatest_and_the_least() -> None:
    """Min and max stand for reduce, and are combined on the way, whatever the memory."""
    for fold, wanted in (("max", {"all": 199}), ("min", {"all": 0})):
        source = f"def map(line): yield 'all', int(line)\nreduce = {fold}\ntext = True\n"
        text = b"\n".join(b"%d" % number for number in range(200))
        for memory_bytes in (ROOMY, TINY):
            streams = [to[0] for to in mapped(source, text, 3, 1, memory_bytes)]
            assert reduced(source, streams, memory_bytes=memory_bytes) == wanted


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("reduce = sum", "one of map"),
        ("def map(r): ...\ndef map_keys(r): ...\nreduce = sum", "one of map"),
        ("def map(r): ...", "reduce"),
        ("def map(r): ...\ndef reduce(k): ...", "key, values"),
        ("def map(): ...\nreduce = sum", "record"),
        ("map = 3\nreduce = sum", "function"),
        ("def map_keys(r): ...\ncombine = max\nreduce = sum", "map_keys"),
    ],
)
def test_a_job_that_cannot_work_is_refused(source: str, wrong: str) -> None:
    """A module without the right functions is refused before any data, saying what is missing."""
    with pytest.raises(InvalidError, match=wrong):
        functions(source)


@pytest.mark.parametrize(
    "make",
    [
        lambda: chunks.encode_pairs([b"a"], [1]),
        lambda: chunks.encode_open(5, 1),
        lambda: b"\x93\x09\x00\x00",
    ],
)
def test_a_stream_that_lies_is_refused(make: Callable[[], bytes]) -> None:
    """Pairs before an opening, a mapper that is not one, or a foreign message raise ProtocolError."""
    intake = Intake(ReduceOrder(0, 1, 1, ROOMY, ordered=False), functions(COUNT_PAIRS), Shelf)
    with pytest.raises(ProtocolError):
        intake.message(1, make())
