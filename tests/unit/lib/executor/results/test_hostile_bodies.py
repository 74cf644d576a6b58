"""Bodies that a hostile worker made up: they are refused, and take neither memory nor run code."""

from __future__ import annotations

import itertools
import math
import re
import struct
import sys
import sysconfig
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.results import class_forms, reader
from dios.lib.executor.results.builtin_forms import DICT, LIST, RECORD, TUPLE
from dios.lib.executor.results.forms import DecodeTimeoutError, form_of_code
from dios.lib.executor.results.reader import Body, read_value
from dios.lib.executor.results.writer import WrittenValue, write_value
from tests.support.result_bodies import Node, tree_of, variants, written
from tests.support.result_values import VALUES
from tests.support.spying import CALLS, Spy

_MEMORY_MAX: Final = 24 * 1024 * 1024
"""Memory for a body of a few kilobytes."""

# The forms of libraries are loaded before anything watches.
for _code in (64, 72, 76, 84, 88, 108):
    form_of_code(_code)

SPY: Final = Node(56, (Node(TUPLE, (Spy.__module__, "Spy", "x")), 1))


def np_array(array: np.ndarray[tuple[int, ...], np.dtype[np.int8]]) -> Node:
    """Return the form of an array."""
    return Node(64, ("ndarray", array.dtype.str, Node(TUPLE, array.shape), "C", memoryview(array.tobytes())))


def _nested_type(levels: int) -> Node:
    kind = Node(TUPLE, ("int8",))
    for _ in range(levels):
        kind = Node(TUPLE, ("list", Node(TUPLE, ("", kind, True, None))))
    return kind


REPLACEMENTS: Final = (
    *(SPY, None, -1, 2**40, 1e300, "x", "O", b"", b"x" * 9, memoryview(bytearray(8)), Node(TUPLE, ())),
    *(Node(TUPLE, (2**40, 2**40)), Node(LIST, (SPY,)), Node(DICT, ("x", SPY)), Node(DICT, (SPY, "x"))),
    Node(19, (0, 10**9, 1)),
)


@pytest.fixture(autouse=True)
def no_permissions() -> Iterator[None]:
    """Permit no class."""
    permitted = dict(class_forms._allowed)
    class_forms._allowed.clear()
    yield
    class_forms._allowed.update(permitted)


@contextmanager
def watching() -> Iterator[None]:
    """Watch memory and dangerous events."""
    _watched.clear()
    CALLS.clear()
    tracemalloc.start()
    _is_watching.append(True)
    try:
        yield
    finally:
        _is_watching.clear()
        tracemalloc.stop()
    assert _watched == []


def read_or_refuse(value: WrittenValue) -> bool:
    """Read a body; return True if it was refused. Check that it called nothing and needed little memory."""
    arrow = pa.total_allocated_bytes()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    refused = False
    try:
        read_value(value.body, value.buffers)
    except UntrustedResultError:
        refused = True
    assert CALLS == []
    assert tracemalloc.get_traced_memory()[1] - before < _MEMORY_MAX
    assert pa.total_allocated_bytes() - arrow < _MEMORY_MAX
    return refused


_is_watching: Final[list[bool]] = []
_watched: Final[list[str]] = []
_DANGEROUS: Final = (
    "os.exec",
    "os.system",
    "os.remove",
    "os.rename",
    "subprocess.",
    "exec",
    "socket.",
    "code.",
    "ctypes.",
    "pickle.",
)
_LIBRARIES: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def _watch(event: str, args: tuple[object, ...]) -> None:
    if not _is_watching or not event.startswith(_DANGEROUS):
        return
    # Libraries load parts of themselves when they are used first.
    if event != "exec" or not getattr(args[0], "co_filename", "").startswith(_LIBRARIES):
        _watched.append(f"{event} {args}")


sys.addaudithook(_watch)


def _require_harmless_variants(value: object, replacements: Sequence[object]) -> None:
    original = write_value(value)
    read_value(original.body, original.buffers)
    with watching():
        for tree in variants(tree_of(original), replacements):
            read_or_refuse(written(tree))


@pytest.mark.parametrize("name", VALUES)
def test_no_part_of_a_value_runs_code_of_the_program(name: str) -> None:
    """Each part of a value is replaced by a record of the program: none of its methods runs."""
    _require_harmless_variants(VALUES[name], (SPY, Node(LIST, (SPY,))))


@pytest.mark.extended
@pytest.mark.parametrize("name", VALUES)
def test_no_variant_of_a_value_runs_code_or_takes_memory(name: str) -> None:
    """Each part of a value is replaced by others: the result is refused, or is built within the memory."""
    _require_harmless_variants(VALUES[name], REPLACEMENTS)


def test_the_record_notes_its_methods() -> None:
    """The record of these tests would notice: an ordinary use of it calls methods."""
    spy = read_value(written(SPY).body, [])
    assert CALLS == []
    assert isinstance(hash(spy), int)
    assert "__hash__" in CALLS
    CALLS.clear()


# -- repeated parts ---------------------------------------------------------------------------------
def doubled(levels: int, code: int) -> WrittenValue:
    """Return a value of two equal parts, which have two equal parts, and so on."""
    operations = [(code | reader.USED_AGAIN, 2)] * levels + [(code | reader.USED_AGAIN, 0)]
    return body_of(operations + [(reader.SHARED, place) for place in range(levels, 0, -1)])


def body_of(
    operations: Sequence[tuple[int, int]], scalars: Sequence[object] = (), octets: Sequence[bytes] = ()
) -> WrittenValue:
    """Return a body of any operations."""
    kinds = bytes(kind for kind, _ in operations)
    counts = struct.pack(f"<{len(operations)}I", *(count for _, count in operations))
    chunks = [msgspec.msgpack.encode(scalars)] if scalars else []
    return WrittenValue(msgspec.msgpack.encode(Body(chunks, list(octets), kinds, counts)), [])


@pytest.mark.parametrize("code", [LIST, TUPLE])
def test_parts_that_repeat_without_end_are_refused(code: int) -> None:
    """A value whose text, comparison or hash would double with each level is refused."""
    with watching():
        assert not read_or_refuse(doubled(10, code))
        assert read_or_refuse(doubled(40, code))


def test_long_text_that_repeats_is_bounded() -> None:
    """A list of many references to one long text is refused, though it takes little memory itself."""
    text = "x" * 1_000_000
    many = [(reader.SHARED, 1)] * 5_000
    operations = [(LIST, 1 + len(many)), (reader.SCALARS | reader.USED_AGAIN, 1), *many]
    few = [(LIST, 3), (reader.SCALARS | reader.USED_AGAIN, 1), *many[:2]]
    assert read_or_refuse_plainly(body_of(operations, [text]))
    assert not read_or_refuse_plainly(body_of(few, [text]))


_OPERATIONS_OF_ARRAY: Final = [(64, 5), (reader.SCALARS, 2), (reader.SCALAR_TUPLE, 1), (reader.SCALARS, 1)]
_TEXTS: Final = ["x" * 255] * 10_000


class Copied(NamedTuple):
    """A part that forms copy, and such a form, as operations and scalars."""

    part: Sequence[tuple[int, int]]
    scalars: Sequence[object]
    form: Sequence[tuple[int, int]]
    scalars_of_form: Sequence[object] = ()
    octets: Sequence[bytes] = ()
    buffers: Sequence[memoryview] = ()

    def written(self, count: int) -> WrittenValue:
        """Return a list of the part and of ``count`` forms with it."""
        (first, number), *rest = self.part
        operations = [(LIST, 1 + count), (first | reader.USED_AGAIN, number), *rest]
        scalars = [*self.scalars, *list(self.scalars_of_form) * count]
        whole = body_of([*operations, *list(self.form) * count], scalars, self.octets)
        return WrittenValue(whole.body, list(self.buffers))


COPIED: Final = {
    "bytes": Copied([(reader.OCTETS, 1)], [], [(15, 1), (reader.SHARED, 1)], octets=[b"x" * 1_000_000]),
    "text": Copied([(reader.SCALARS, 1)], ["1" * 1_000_000], [(28, 1), (reader.SHARED, 1)]),
    "an array": Copied(
        [*_OPERATIONS_OF_ARRAY, (reader.BUFFER, 0)],
        ["ndarray", "<f8", 1_000_000, "C"],
        [(101, 1), (reader.SHARED, 1)],
        buffers=[memoryview(bytes(8_000_000))],
    ),
    "a list of texts": Copied(
        [(reader.SCALAR_LIST, len(_TEXTS))],
        _TEXTS,
        [*_OPERATIONS_OF_ARRAY, (reader.SHARED, 1)],
        ["ndarray", "T", len(_TEXTS), "C"],
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_no_part_is_copied_without_end(name: str) -> None:
    """Text, bytes and arrays count in full for each form that may copy them."""
    assert not read_or_refuse_plainly(COPIED[name].written(3))
    assert read_or_refuse_plainly(COPIED[name].written(90))


def read_or_refuse_plainly(value: WrittenValue) -> bool:
    """Return True if a body is refused."""
    try:
        read_value(value.body, value.buffers)
    except UntrustedResultError:
        return True
    return False


def test_values_nest_as_deeply_as_python_prints() -> None:
    """Up to 500 levels are read, and more are refused, also if they come from a part that is used again."""
    deep = [(LIST, 1)] * 499
    with watching():
        assert not read_or_refuse(body_of([*deep, (LIST, 0)]))
        assert read_or_refuse(body_of([*deep, (LIST, 1), (LIST, 0)]))
        first = [(LIST | reader.USED_AGAIN, 1), *deep[:299], (LIST, 0)]
        assert not read_or_refuse(body_of([(LIST, 2), *first, *deep[:190], (reader.SHARED, 1)]))
        assert read_or_refuse(body_of([(LIST, 2), *first, *deep[:250], (reader.SHARED, 1)]))
        assert read_or_refuse(body_of([(TUPLE, 1)] * 200_000 + [(TUPLE, 0)]))


def _buffers(places: Sequence[int]) -> WrittenValue:
    """Return a list of ``bytes`` in some of two buffers."""
    forms = [operation for place in places for operation in ((16, 1), (reader.BUFFER, place))]
    return WrittenValue(body_of([(LIST, len(places)), *forms]).body, [memoryview(b"x"), memoryview(b"y")])


OPERATIONS: Final[dict[str, WrittenValue]] = {
    "nothing": body_of([]),
    "two values": body_of([(LIST, 0), (LIST, 0)]),
    "a value that is not complete": body_of([(LIST, 2), (reader.SCALARS, 1)], [1]),
    "more parts than it wants": body_of([(LIST, 1), (reader.SCALARS, 2)], [1, 2]),
    "fewer scalars": body_of([(LIST, 2**32 - 1), (reader.SCALARS, 2**32 - 1)], [1]),
    "a list of fewer scalars": body_of([(reader.SCALAR_LIST, 2**32 - 1)], [1]),
    "fewer bytes": body_of([(LIST, 2**32 - 1), (reader.OCTETS, 2**32 - 1)], [], [b"x"]),
    "a list in the scalars": body_of([(reader.SCALARS, 1)], [[1]]),
    "an extension value in the scalars": body_of([(reader.SCALARS, 1)], [msgspec.msgpack.Ext(1, b"x")]),
    "a later value": body_of([(LIST, 2), (reader.SHARED, 2), (LIST, 0)]),
    "the value that is open": body_of([(LIST | reader.USED_AGAIN, 1), (reader.SHARED, 0)]),
    "a value that does not stay": body_of([(LIST, 2), (LIST, 0), (reader.SHARED, 1)]),
    "several scalars that stay": body_of([(LIST, 2), (reader.SCALARS | reader.USED_AGAIN, 2)], [1, 2]),
    "no scalar that stays": body_of(
        [(LIST, 2), (LIST, 0), (reader.SCALARS | reader.USED_AGAIN, 0), (LIST, 0)]
    ),
    "a shared value that stays": body_of(
        [(LIST, 2), (LIST | 0x80, 0), (reader.SHARED | reader.USED_AGAIN, 1)]
    ),
    "a buffer that is missing": body_of([(16, 1), (reader.BUFFER, 0)]),
    "a buffer as a value": WrittenValue(body_of([(LIST, 1), (reader.BUFFER, 0)]).body, [memoryview(b"x")]),
    "a buffer that is used twice": _buffers((0, 0)),
    "buffers in another order": _buffers((1, 0)),
    "a buffer that is not used": _buffers((0,)),
    "unknown operations": body_of([(6, 0)]),
    "unknown forms": body_of([(127, 0)]),
    "a form of a package without it": body_of([(115, 0)]),
    "no body": WrittenValue(b"nonsense", []),
    "nothing at all": WrittenValue(b"", []),
    "operations without numbers": WrittenValue(msgspec.msgpack.encode(Body([], [], b"\0\0", b"")), []),
    "a part of a number": WrittenValue(msgspec.msgpack.encode(Body([], [], b"\0", b"abc")), []),
    "a chunk that is cut off": WrittenValue(
        msgspec.msgpack.encode(
            Body([b"\xdd\xff\xff\xff\xff"], [], bytes([reader.SCALARS]), struct.pack("<I", 1))
        ),
        [],
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_that_make_no_value_are_refused(name: str) -> None:
    """Whatever the operations are, the reader refuses those that a writer does not write."""
    with watching():
        assert read_or_refuse(OPERATIONS[name])


# -- forms ------------------------------------------------------------------------------------------
def equal_hashes() -> Node:
    """Return a dictionary of many integers with the same hash."""
    keys = [
        Node(14, ((number * (2**61 - 1)).to_bytes(20, "little"),)) for number in range(2**70, 2**70 + 50_000)
    ]
    return Node(DICT, tuple(part for key in keys for part in (key, None)))


RANGE: Final = Node(19, (0, 10**9, 1))
FORMS: Final[dict[str, object]] = {
    "keys with one hash": equal_hashes(),
    "a record as a key": Node(DICT, (SPY, 1)),
    "a record in a set": Node(12, (SPY,)),
    "a record in a tuple in a frozen set": Node(13, (Node(TUPLE, (SPY,)),)),
    "a list as a key": Node(DICT, (Node(LIST, ()), 1)),
    "a key without a value": Node(DICT, ("a",)),
    "names that are no text": Node(RECORD, (Node(TUPLE, (1,)), 2)),
    "rows of nothing": Node(45, (0, Node(LIST, ()))),
    "rows that are too short": Node(45, (2, Node(LIST, (1, 2, 3)))),
    "a huge fraction": Node(29, (Node(14, (b"\1" * 100_000,)), 3)),
    "a time of a record": Node(24, (2020, 1, 1, SPY, 0, 0, 0, None, 0)),
    "a zone by a path": Node(27, ("../../etc/passwd",)),
    "a pattern that prints": Node(40, ("a", 128)),
    "a pattern of many ranges": Node(40, ("[\0-\uffff]" * 1000, 2)),
    "a pattern of many ranges that minds the case": Node(40, ("[\0-\uffff]" * 1000, 0)),
    "a pattern of many written ranges": Node(40, ("[\0-\\uffff]" * 1000, 0)),
    "a pattern of a huge length": Node(40, ("a" * 70_000, 0)),
    "a pattern of many ranges that says so": Node(40, ("(?i:" + "[\0-\uffff]" * 1000 + ")", 0)),
    "a path of another kind": Node(38, ("system", "/")),
    "a factory of another kind": Node(33, ("eval", Node(DICT, ()))),
    "a type that is no data": Node(47, ("subprocess", "Popen")),
    "a file that is larger than it is": Node(41, ("x", None, 10**12)),
    "an array of letters of C": Node(43, ("u", memoryview(b"\xff" * 4))),
    "a class by a path through attributes": Node(56, (Node(TUPLE, ("os", "environ.__class__")),)),
    "a class that is no record": Node(56, (Node(TUPLE, ("subprocess", "Popen")),)),
    "a module that is not imported": Node(56, (Node(TUPLE, ("antigravity", "Nothing")),)),
    "other fields": Node(56, (Node(TUPLE, (Spy.__module__, "Spy", "y")), 1)),
    "fewer fields": Node(56, (Node(TUPLE, (Spy.__module__, "Spy", "x")),)),
    "a named tuple that is none": Node(57, (Node(TUPLE, ("builtins", "tuple")), 1)),
    "a member that is none": Node(58, (Node(TUPLE, ("enum", "Flag")), 5)),
    "an exception that is none": Node(
        59,
        (Node(TUPLE, ("subprocess", "Popen")), Node(TUPLE, ()), Node(DICT, ()), Node(DICT, ()), None, False),
    ),
    "a note that is a record": Node(
        59,
        (
            *(Node(TUPLE, ("builtins", "ValueError")), Node(TUPLE, ())),
            *(Node(DICT, ("__notes__", Node(LIST, (SPY,)))), Node(DICT, ()), None, False),
        ),
    ),
    "an object that nobody permitted": Node(
        60,
        (Node(TUPLE, ("subprocess", "Popen")), True, Node(TUPLE, (Node(LIST, ("true",)),)), None, None, None),
    ),
    "an array beyond its bytes": Node(
        64, ("ndarray", "<f8", Node(TUPLE, (1000,)), "C", memoryview(bytes(8)))
    ),
    "an array of negative size": Node(64, ("ndarray", "<f8", Node(TUPLE, (-1,)), "C", memoryview(bytes(8)))),
    "an array of a huge empty shape": Node(
        64, ("ndarray", "<f8", Node(TUPLE, (0, 2**40)), "C", memoryview(b""))
    ),
    "an array of nothing": Node(64, ("ndarray", "|V0", Node(TUPLE, (2**40,)), "C", memoryview(b""))),
    "a shape that is a range": Node(64, ("ndarray", "<f8", RANGE, "C", memoryview(bytes(8)))),
    "an array of objects": Node(64, ("ndarray", "|O", Node(TUPLE, (1,)), "C", memoryview(bytes(8)))),
    "an array of objects in a record": Node(
        64, ("ndarray", Node(LIST, (Node(TUPLE, ("a", "|O")),)), Node(TUPLE, (1,)), "C", memoryview(bytes(8)))
    ),
    "a boolean of two": Node(64, ("ndarray", "|b1", Node(TUPLE, (1,)), "C", memoryview(b"\2"))),
    "a letter that does not exist": Node(
        64, ("ndarray", "<U1", Node(TUPLE, (1,)), "C", memoryview(b"\xff" * 4))
    ),
    "a type that is an expression": Node(66, ("__import__('os').system('true')",)),
    "a random state beyond its key": Node(
        69, (Node(64, ("ndarray", "<u4", Node(TUPLE, (624,)), "C", memoryview(bytes(2496)))), 10**6, 0, 0.0)
    ),
    "a column of nulls": Node(76, (Node(TUPLE, ("null",)), Node(TUPLE, (10**9,)), None)),
    "a column of empty bytes": Node(
        76, (Node(TUPLE, ("bytes", 0)), Node(TUPLE, (10**9,)), None, memoryview(b""))
    ),
    "a column of records without fields": Node(76, (Node(TUPLE, ("struct",)), Node(TUPLE, (10**9,)), None)),
    "a column beyond its bytes": Node(
        76, (Node(TUPLE, ("int64",)), Node(TUPLE, (10**9,)), None, memoryview(bytes(8)))
    ),
    "text that is no text": Node(
        76,
        (
            Node(TUPLE, ("string",)),
            Node(TUPLE, (1,)),
            None,
            memoryview(b"\0\0\0\0\1\0\0\0"),
            memoryview(b"\xff"),
        ),
    ),
    "offsets beyond the values": Node(
        76,
        (
            Node(TUPLE, ("string",)),
            Node(TUPLE, (1,)),
            None,
            memoryview(b"\0\0\0\0\xff\0\0\0"),
            memoryview(b"x"),
        ),
    ),
    "an extension type": Node(81, (Node(TUPLE, ("extension", "x")),)),
    "a type that nests without end": Node(81, (_nested_type(120),)),
    "a table of many fields and batches": Node(
        79,
        (
            Node(80, (Node(TUPLE, (Node(TUPLE, ("x", Node(TUPLE, ("null",)), True, None)),) * 100), None)),
            *(900_000, Node(TUPLE, ())),
        ),
    ),
    "a sparse column of a huge length": Node(
        97,
        (
            Node(64, ("ndarray", "<f8", Node(TUPLE, (0,)), "C", memoryview(b""))),
            Node(64, ("ndarray", "<i4", Node(TUPLE, (0,)), "C", memoryview(b""))),
            *(0.0, 10**12, "integer"),
        ),
    ),
    "categories of a huge range": Node(
        96, (np_array(np.zeros(1, np.int8)), Node(91, (0, 10**12, 1, None)), False)
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_with_other_parts_is_refused(name: str) -> None:
    """Parts that a writer does not write are refused, before memory is taken and without a call."""
    value = written(FORMS[name])
    with watching():
        assert read_or_refuse(value)


def test_equal_hashes_are_refused_by_the_worker_too() -> None:
    """A worker that returns such keys gets the reason."""
    with pytest.raises(UntrustedResultError, match="same hash"):
        write_value(dict.fromkeys((number * (2**61 - 1) for number in range(500)), 1))


def _looks(value: WrittenValue, deadline: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often the reader looks at a clock that goes on by 1 with each look."""
    clock = itertools.count(1)
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    read_value(value.body, value.buffers, deadline)
    return next(clock) - 1


@pytest.mark.parametrize(
    ("value", "looks_min"),
    [
        ([{number} for number in range(5_000)], 3),
        (list(range(200_000)), 6),
        ([re.compile(str(number)) for number in range(20)], 20),
        ([np.zeros(number) for number in range(20)], 20),
    ],
    ids=["operations", "scalars", "patterns", "arrays"],
)
def test_work_ends_at_the_deadline(value: object, looks_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is looked at during all of the work, and ends it whenever the deadline passes."""
    body = write_value(value)
    looks = _looks(body, math.inf, monkeypatch)
    assert looks >= looks_min
    for deadline in range(looks):
        with pytest.raises(DecodeTimeoutError):
            _looks(body, deadline, monkeypatch)
    assert _looks(body, looks, monkeypatch) == looks
