"""The records of sandboxes: what a session may answer, and the bounds that its caller enforces."""

from __future__ import annotations

import struct

import msgspec
import pytest

from dios.errors import InvalidError, ProtocolError
from dios.lib.amounts import memory_of, seconds_of
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.pictures import is_jpeg, is_png
from dios.lib.sandbox.protocol import (
    Answer,
    DisplayRecord,
    FailureRecord,
    TableRecord,
    decoded_answer,
    decoded_display,
)

PNG = b"\x89PNG\r\n\x1a\n"

BOUNDS = SandboxBounds(
    repr_chars=10,
    value_bytes=10,
    figures=1,
    figure_bytes=100,
    tables=1,
    table_rows=2,
    table_columns=2,
    cell_chars=5,
    display_bytes=200,
)
encode = msgspec.msgpack.encode


def picture(width: int = 3, height: int = 4) -> bytes:
    """Return the beginning of a picture."""
    return PNG + struct.pack(">I4sII", 13, b"IHDR", width, height)


def table(
    columns: object = ("a",), rows: object = ((1,),), row_count: object = 1, column_count: object = 1
) -> msgspec.Raw:
    """Return an encoded table, right or wrong."""
    return msgspec.Raw(encode([columns, rows, row_count, column_count]))


def test_an_answer_within_the_bounds_is_decoded() -> None:
    """Everything that an honest session sends comes through."""
    failure = FailureRecord("KeyError", "x", "lines", "file")
    answer = Answer(
        1, "r" * 10, failure, [picture()], [table((("é" * 5)[:5],), ((None,), (2.5,)))], b"d" * 10, 5, 6
    )
    checked = decoded_answer(encode(answer), 1, BOUNDS)
    assert checked.answer.failure == failure
    assert checked.answer.figures == [picture()]
    assert checked.tables == [TableRecord(["ééééé"], [[None], [2.5]], 1, 1)]
    assert len(encode(answer)) < BOUNDS.answer_bytes


@pytest.mark.parametrize(
    "answer",
    [
        Answer(1, "r" * 11),
        Answer(1, failure=FailureRecord("t" * 201, "", "")),
        Answer(1, failure=FailureRecord("t", "m" * 10_000, "")),
        Answer(1, failure=FailureRecord("t", "", "l" * 40_000)),
        Answer(1, data=b"d" * 11),
        Answer(1, figures=[picture(), picture()]),
        Answer(1, figures=[picture() + bytes(100)]),
        Answer(1, figures=[b"<svg onload='x'/>"]),
        Answer(1, figures=[PNG]),
        Answer(1, figures=[picture(100_000, 100_000)]),
        Answer(1, figures=[picture(0, 1)]),
        Answer(1, tables=[table(), table()]),
        Answer(1, tables=[table(("a", "b", "c"), ())]),
        Answer(1, tables=[table(("a",), ((1,),) * 3)]),
        Answer(1, tables=[table(("a",), ((1, 2),))]),
        Answer(1, tables=[table(("a",), (("long text",),))]),
        Answer(1, tables=[table(("long name",), ())]),
        Answer(1, tables=[table(("a",), (([1],),))]),
        Answer(1, tables=[table(("a",), (({"x": 1},),))]),
        Answer(1, tables=[table(row_count=-1)]),
        Answer(1, tables=[table(column_count=1 << 63)]),
        Answer(1, tables=[table(rows=((),) * 20_000)]),
        Answer(1, tables=[msgspec.Raw(b"\xc0")]),
        [1, None, None, [], [], b"", -1, 0],
        [1, None, None, [], [], b"", 0, 1 << 63],
        Answer(0),
        Answer(2),
        [1, b"bytes"],
        [1, "x", ["t"]],
        {"value_repr": "x"},
        "text",
        None,
    ],
)
def test_any_other_answer_is_refused(answer: object) -> None:
    """Wrong types, sizes over the bounds, and figures that are no pictures break the protocol."""
    with pytest.raises(ProtocolError):
        decoded_answer(encode(answer), 1, BOUNDS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x97",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x97\xa1\xff",
    ],
    ids=lambda data: bytes(data[:8]).hex(),
)
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    """Cut, deep and huge messages and text that is no UTF-8 break the protocol."""
    with pytest.raises(ProtocolError):
        decoded_answer(data, 1, BOUNDS)


def test_pictures_are_recognized() -> None:
    """A picture begins with the signature and a bounded size of its format."""
    assert is_png(picture())
    assert not is_png(picture()[:-1])
    assert not is_png(picture(width=10_001))
    assert not is_png(b"GIF89a" + picture())
    assert not is_png(PNG + struct.pack(">I4sII", 13, b"iTXt", 3, 4))
    assert is_jpeg(photo())
    assert not is_jpeg(photo()[:-1])
    assert not is_jpeg(photo(height=0))
    assert not is_jpeg(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 1_000)
    assert not is_jpeg(b"\xff\xd8\xff\xe0\x00\x02" + bytes(100))


def photo(width: int = 3, height: int = 4) -> bytes:
    """Return the beginning of a JPEG picture, with another part before that of its size."""
    return b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11" + struct.pack(">BHH", 8, height, width)


def test_a_shown_value_within_the_bounds_is_decoded() -> None:
    """All its forms come through, and a table is checked like one of an answer."""
    record = DisplayRecord(1, "text", "<b>", picture(), photo(), [table()], "id-1")  # type: ignore[arg-type]  # as a session sends it
    shown, rows = decoded_display(encode(record), BOUNDS)
    assert (shown, rows) == (record, TableRecord(["a"], [[1]], 1, 1))
    assert decoded_display(encode(DisplayRecord()), BOUNDS) == (DisplayRecord(), None)


@pytest.mark.parametrize(
    "record",
    [
        [3],
        [0, 5],
        [0, "t" * 11],
        [0, "", "h" * 51],
        [0, "", "", b"GIF89a"],
        [0, "", "", picture(width=0)],
        [0, "", "", b"", picture()],
        [0, "", "", picture() + bytes(200)],
        [0, "", "", b"", b"", [[["a"], [[1]] * 3, 1, 1]]],
        [0, "", "", b"", b"", [[["a"], [[1]], 1, 1]], "no space"],
        [0, "", "", b"", b"", [[["a"], [[1]], 1, 1]] * 2],
        [0, "", "", b"", b"", [], "i" * 65],
    ],
)
def test_a_shown_value_over_the_bounds_is_refused(record: object) -> None:
    """The session that sends it is ended."""
    with pytest.raises(ProtocolError):
        decoded_display(encode(record), BOUNDS)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (64 << 20, 64 << 20),
        ("512 MiB", 512 << 20),
        ("0.5GiB", 512 << 20),
        ("70000000", 70_000_000),
        ("65536KiB", 64 << 20),
        (" 1024 GiB ", 1 << 40),
    ],
)
def test_memory_is_a_number_or_text(given: int | str, size: int) -> None:
    """A size has binary units."""
    assert memory_of(given) == size


@pytest.mark.parametrize(
    "given",
    [0, -1, 1, 1 << 41, 1 << 70, "", "5 MiB", "500 MB", "much", "9" * 400, "9" * 19 + "GiB", 1e9, True, None],
    ids=lambda value: str(value)[:20],
)
def test_other_sizes_of_memory_are_refused(given: int | str) -> None:
    """The error names the argument, and the smallest and the largest memory of a task."""
    with pytest.raises(InvalidError, match=r"memory must be .* from 64 MiB to 1024 GiB"):
        memory_of(given)


def test_times_are_bounded() -> None:
    """No time is so long that the operating system could not wait for it."""
    assert seconds_of(1, "timeout") == 1.0
    for wrong in (0, -1, float("nan"), float("inf"), 1e18, 1e300):
        with pytest.raises(InvalidError, match="timeout must be"):
            seconds_of(wrong, "timeout")


@pytest.mark.parametrize("given", [{"output_bytes": -1}, {"figures": 101}, {"cell_chars": 10**9}])
def test_bounds_have_bounds(given: dict[str, int]) -> None:
    """No number is negative or too large, and the error has its name."""
    with pytest.raises(InvalidError, match=next(iter(given))):
        SandboxBounds(**given)


def test_the_longest_honest_answer_fits_in_a_frame() -> None:
    """The bound of a frame follows from the other bounds."""
    cells = BOUNDS.table_rows * BOUNDS.table_columns
    text = "\U0010ffff"
    answer = Answer(
        1,
        text * BOUNDS.repr_chars,
        FailureRecord(text * 200, text * 8192, text * 32768, "network"),
        [picture() + bytes(70)],
        [table((text * 5,) * 2, ((text * 5,) * 2,) * 2, 1 << 61, 1 << 61)],
        b"",
        1 << 61,
        1 << 61,
    )
    assert cells == 4
    assert len(encode(answer)) <= BOUNDS.answer_bytes
    assert decoded_answer(encode(answer), 1, BOUNDS).tables[0].row_count == 1 << 61
