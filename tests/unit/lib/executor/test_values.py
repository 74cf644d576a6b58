from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import enum
import io
import math
import pathlib
import pickle
import subprocess
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dios.lib.executor import futures, values
from dios.lib.executor.call_pickles import CallPickler
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.remote_errors import RemoteError, decode_exception, encode_exception
from dios.lib.executor.results import reader
from dios.lib.executor.results.harmless import make_harmless
from dios.lib.executor.values import (
    Encoded,
    ResultKind,
    decode_result,
    decode_stored,
    encode_parts,
    encode_result,
)
from tests.support.result_values import CodedError, difference


# -- messages and blobs -------------------------------------------------------------------------------
def as_blob(encoded: Encoded) -> memoryview:
    """Return the bytes of a blob with a result, as a worker writes them."""
    blob = bytearray()
    for part in encoded.parts():
        blob += bytes(-len(blob) % 64) + part
    return memoryview(blob)


def stored(*sizes: int, rest: bytes = b"") -> memoryview:
    """Return a blob whose description a worker made up."""
    numbers = b"".join(number.to_bytes(8, "little") for number in (len(sizes), *sizes))
    return memoryview(bytearray(numbers) + rest)


@pytest.mark.parametrize(
    "blob",
    [
        *(memoryview(b""), memoryview(b"\0" * 7), stored(), stored(0), stored(3, 1, rest=bytes(200))),
        *(stored(2, 2**63), stored(2, 2**64 - 8), stored(0, 100), stored(0, 0, rest=b"x")),
        *(
            stored(2, 1, 2**63, rest=bytes(200)),
            stored(2, 0, 1, rest=bytes(63)),
            stored(2, 5, rest=bytes(38)),
        ),
        memoryview((2**64 - 1).to_bytes(8, "little") + bytes(1000)),
        memoryview((2**61).to_bytes(8, "little") + bytes(1000)),
        *(stored(0, 1, rest=bytes(40) + b"\xc1"), stored(0, 4, rest=bytes(40) + b"\xdd\xff\xff\xff")),
    ],
    ids=lambda blob: str(len(blob)),
)
def test_a_blob_of_other_sizes_is_refused(blob: memoryview) -> None:
    """Sizes that do not fit the blob are refused before anything is decoded or reserved."""
    with pytest.raises(UntrustedResultError):
        decode_stored(blob, trust=False)


PLAIN, PARTS = encode_result([1])[:1], encode_result((1, {2}))[:1]


@pytest.mark.parametrize(
    "data",
    [
        *(
            PLAIN,
            PLAIN + b"\xa2\xff\xfe",
            PLAIN + b"\x92\x01",
            PLAIN + b"\x91" * 100_000,
            PLAIN + b"\x91\x91\x01",
        ),
        PLAIN + msgspec.msgpack.encode({"a": [1]}),
        PLAIN + msgspec.msgpack.encode({1: 1}),
        PLAIN + msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        *(
            b"",
            b"p" + pickle.dumps(1),
            PARTS,
            PARTS + bytes(15) + b"\xff" * 8,
            PARTS + bytes(16) + b"\xff" * 8,
        ),
        encode_result((1, {2}))[:-1],
    ],
)
def test_bytes_that_are_no_result_are_refused(data: bytes) -> None:
    """Whatever a worker sends instead of a result, the caller gets the one error for it."""
    with pytest.raises(UntrustedResultError):
        decode_result(data, trust=False)


def test_a_pickle_is_loaded_only_with_trust() -> None:
    """The caller decides, not the bytes of the result."""
    for data in (encode_result(range, trust=True), encode_result((1, {2}), trust=True)):
        assert decode_result(data, trust=True) in [range, (1, {2})]
        with pytest.raises(UntrustedResultError, match=r"trust=True"):
            decode_result(data, trust=False)
    assert decode_result(encode_result((1, {2})), trust=True) == (1, {2})


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_buffers_of_a_message_are_aligned(size: int) -> None:
    """Numbers lie where libraries for arrays read them without a copy."""
    decoded = decode_result(bytearray(encode_result((np.ones(size, np.int8), np.arange(5.0)))), trust=False)
    assert isinstance(decoded, tuple)
    assert decoded[1].flags.aligned


def test_the_buffers_of_a_result_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More buffers are refused in either direction, and stay in a pickle."""
    monkeypatch.setattr(values, "BUFFERS_MAX", 2)
    monkeypatch.setattr(reader, "BUFFERS_MAX", 2)
    arrays = [np.arange(number) for number in range(1, 4)]
    assert len(encode_parts(arrays[:2]).buffers) == 2
    with pytest.raises(UntrustedResultError, match="more than 2 arrays"):
        encode_parts(arrays)
    pickled = encode_parts(arrays, trust=True)
    assert len(pickled.buffers) == 2
    assert not difference(arrays, decode_stored(as_blob(pickled), trust=True))
    for count, is_refused in ((2, False), (3, True)):
        blob = as_blob(Encoded(ResultKind.BYTES, b"x", [memoryview(b"")] * count))
        with pytest.raises(UntrustedResultError) if is_refused else contextlib.nullcontext():
            assert decode_stored(blob, trust=False) == b"x"


def test_an_array_beyond_its_part_of_a_blob_is_refused() -> None:
    """A part ends where its size says, whatever lies behind it."""
    good = encode_parts(np.arange(4.0))
    short = Encoded(ResultKind.CLOSED, good.body, [good.buffers[0][:-8], good.buffers[0][-8:]])
    with pytest.raises(UntrustedResultError):
        decode_stored(as_blob(short), trust=False)


# -- nested values ------------------------------------------------------------------------------------
def _levels(count: int) -> list[object]:
    value: list[object] = []
    for _ in range(count - 1):
        value = [value]
    return value


NESTED: Final[dict[str, object]] = {
    "a list of lists": [[1, 2.5], [], ["a", None, True]],
    "tuples of tuples": ((1, (2,)), ("x",), ()),
    "tuples in lists in a tuple": ([(1, 2), (3,)], [(4,)]),
    "dictionaries and lists at one level": {"a": [1], "b": {"c": (2,)}, "d": "e"},
    "numbers": [[math.nan, -0.0, 0.0, 1.0, math.inf], [True, 1, 0, False, -(2**63), 2**64 - 1]],
    "text": [["", "\0", "é", "\U0010ffff", "x" * 1_000]],
    "empty containers": [[], {}, [{}]],
    "six levels": _levels(6),
}
_SHARED: Final = [1]
_LOOP: Final[list[object]] = []
_LOOP.append(_LOOP)


class Text(str):
    """Text of another type."""

    __slots__ = ()


OTHER: Final[dict[str, object]] = {
    "seven levels": _levels(7),
    "lists and tuples at one level": [[1], (1,)],
    "bytes": [[b"x"]],
    "an integer of more than 64 bits": [[2**64]],
    "text without UTF-8": [["\ud800"]],
    "keys that are no text": [{1: 2}],
    "a set": [{1}],
    "many parts": [[0] * 70_000],
    "long text": [["x" * 70_000]],
}


@pytest.mark.parametrize("name", NESTED)
def test_a_small_nested_value_is_one_message(name: str) -> None:
    """Lists, tuples and dictionaries of scalars come back with their types from one step of a decoder."""
    encoded = encode_parts(NESTED[name])
    assert encoded.kind is ResultKind.NESTED
    for decoded in (
        decode_result(encoded.joined(), trust=False),
        decode_stored(as_blob(encoded), trust=False),
    ):
        # This tells types, signs of zero and numbers that are none apart.
        assert repr(decoded) == repr(NESTED[name])


@pytest.mark.parametrize("name", OTHER)
def test_a_nested_value_with_more_keeps_all_of_it(name: str) -> None:
    """A value for which that form is too simple is in the closed one, with its types."""
    encoded = encode_parts(OTHER[name])
    assert encoded.kind is ResultKind.CLOSED
    assert not difference(OTHER[name], decode_result(encoded.joined(), trust=False))


@pytest.mark.parametrize("value", [[_SHARED, [1], _SHARED], [[_SHARED], [1], _SHARED]])
def test_a_container_that_occurs_twice_is_one_object_again(value: list[list[object]]) -> None:
    """Also where the two places are at different levels."""
    decoded = decode_result(encode_result(value), trust=False)
    assert decoded == value
    assert isinstance(decoded, list)
    first = decoded[0] if decoded[0] == _SHARED else decoded[0][0]
    assert first is decoded[2]
    assert first is not decoded[1]


@pytest.mark.parametrize("value", [_LOOP, [Text("x"), []], [{Text("x"): 1}]], ids=["loop", "part", "key"])
def test_a_nested_value_that_would_change_is_refused(value: object) -> None:
    """A list in itself and text of another type are no nested values."""
    with pytest.raises(UntrustedResultError):
        decode_result(encode_result(value), trust=False)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\0", b"\0\xc1", b"\x40\x90", b"\xff\x90", b"\0\x91", b"\0\x90\x90"),
        *(b"\0" + b"\x91" * 7, b"\0" + b"\x91" * 100_000, b"\0\xdd\xff\xff\xff\xff", b"\0\x91\xa1\xff"),
        b"\0" + msgspec.msgpack.encode([0] * 65_600),
        *(b"\0" + msgspec.msgpack.encode(part) for part in ({1: 1}, [b"x"], [{(1, 2): 3}])),
        b"\0" + msgspec.msgpack.encode([msgspec.msgpack.Ext(-1, bytes(4))]),
    ],
    ids=lambda body: str(body[:9]),
)
def test_bytes_that_are_no_nested_value_are_refused(body: bytes) -> None:
    """A worker gets no other types, keys, levels and sizes past the decoder of nested values."""
    with pytest.raises(UntrustedResultError):
        decode_result(b"n" + body, trust=False)


# -- exceptions ---------------------------------------------------------------------------------------
def raised(error: BaseException) -> BaseException:
    """Return an exception after it was raised."""
    try:
        raise error  # noqa: TRY301 - the exception is the test's
    except BaseException as caught:  # noqa: BLE001 - any is good
        return caught


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("x"), KeyError(1), OSError(2, "no"), StopIteration(3), CodedError(5)),
        *(FileNotFoundError(2, "no", "/a"), OSError(18, "no", "/a", None, b"/b")),
    ],
    ids=str,
)
def test_an_exception_comes_back_with_the_remote_traceback(error: Exception) -> None:
    """Exceptions keep type, arguments and attributes, and their cause shows where they were raised."""
    decoded = decode_exception(encode_exception(raised(error)), trust=False)
    assert type(decoded) is type(error)
    assert decoded.args == error.args
    assert str(decoded) == str(error)
    assert vars(decoded) == vars(error)
    assert "raise error" in str(decoded.__cause__)


def _shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_traceback_cannot_control_a_terminal() -> None:
    """Control characters in texts, notes and causes of an exception are escaped; texts are bounded."""
    escape = "\x1b]0;title\x07" + "\u202e"
    inner = ExceptionGroup("group" + escape, [ValueError("inner" + escape)])
    inner.add_note("note" + escape)
    error = ValueError("text" + escape + "x" * 1_000_000)
    error.__cause__ = inner
    text = _shown(decode_exception(encode_exception(raised(error)), trust=False))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b]0;title" in text
    assert len(text) < 500_000


_ESCAPE: Final = "\x1b]0;title\x07" + "\u202e"


def _syntax_error(*place: object) -> SyntaxError:
    return SyntaxError("no", place)  # type: ignore[arg-type]


def _repeated(value: object) -> object:
    """Return a value that shows another one so often that no text of it has an end."""
    for _ in range(40):
        value = ValueError(value, value) if isinstance(value, ValueError) else [value, value]
    return value


class ShownError(ValueError):
    """An exception whose text is made of its attributes."""

    def __init__(self, *values: object) -> None:
        self.values = values

    def __str__(self) -> str:
        return " ".join(map(str, self.values))


class CountedError(ValueError):
    """An exception that shows the number of its rows."""

    rows: Sequence[object] = ()

    def __str__(self) -> str:
        return f"{len(self.rows)} rows"


SHOWN: Final[dict[str, Exception]] = {
    "an exception in an exception": ValueError(ValueError(_ESCAPE)),
    "a reason that is an exception": OSError(2, OSError(_ESCAPE)),
    "a number that is text": OSError(_ESCAPE, "no"),
    "a second file": OSError(2, "no", "/a", None, _ESCAPE),
    "an encoding": UnicodeDecodeError(_ESCAPE, b"x", 0, 1, "x"),
    "a reason of an encoding": UnicodeDecodeError("x", b"x", 0, 1, _ESCAPE),
    "the text of a group": ExceptionGroup(_ESCAPE, [KeyError(1)]),
    "a path": ValueError(pathlib.PurePosixPath("/" + _ESCAPE)),
    "text of numpy": ValueError(np.str_(_ESCAPE)),
    "a time zone": ValueError(dt.timezone(dt.timedelta(0), _ESCAPE)),
    "the name of a module": ImportError(_ESCAPE, name=_ESCAPE),
    "long text": ValueError("x" * 10**6),
    "long bytes": ValueError(b"x" * 10**6),
    "wrong syntax": SyntaxError(_ESCAPE),
    "a wrong line": _syntax_error(_ESCAPE, 1, 1, _ESCAPE),
    "a line number that is text": _syntax_error("a", _ESCAPE, 1, ""),
    "many marks under a line": _syntax_error("a", 1, 1, "x", 1, 3_000_000),
    "a column that is text": _syntax_error("a", 1, "x", "x"),
    "a line that is bytes": _syntax_error("a", 1, 1, b"x"),
    "a frame": ValueError(pd.DataFrame({_ESCAPE: [_ESCAPE]})),
    "a series": ValueError("a series", pd.Series([_ESCAPE], name=_ESCAPE)),
    "an index": OSError(2, pd.Index([_ESCAPE])),
    "an array without dimensions": ValueError(np.array(_ESCAPE)),
    "a table of Arrow": ValueError(pa.table({_ESCAPE: [_ESCAPE]})),
    "a scalar of Arrow": ValueError(pa.scalar(_ESCAPE)),
    "a frame of Polars": ValueError(pl.DataFrame({_ESCAPE: [_ESCAPE]})),
    "names of attributes": ValueError(types.SimpleNamespace(**{_ESCAPE: 1})),
    "a frame in a list": ValueError([pd.DataFrame({_ESCAPE: [_ESCAPE]})]),
    "long text in a list": ValueError(["x" * 10**6]),
    "many parts": ValueError([0] * 10**6),
    "attributes that the class shows": ShownError(["x" * 10**6], pa.scalar(_ESCAPE)),
    "many arguments": ValueError(*["x" * 60_000] * 20),
}


@pytest.mark.parametrize("part", [[0], ValueError(1)], ids=["list", "exception"])
def test_no_text_without_end_is_made(part: object) -> None:
    """Of parts that repeat a hostile worker can make a value whose text would fill the memory."""
    error = ValueError(_repeated(part), "x")
    is_harmless = make_harmless(error)
    assert is_harmless is isinstance(part, list)
    assert not is_harmless or str(error) == "('<a large list>', 'x')"


def test_attributes_that_an_exception_does_not_show_stay() -> None:
    """A list of results is more than the text of an exception, and a class may show its length alone."""
    for error in (ValueError("no"), CountedError("no")):
        error.rows = ["x" * 10**6] * 3  # type: ignore[attr-defined]
        decoded = decode_exception(encode_exception(error), trust=False)
        assert vars(decoded) == vars(error)


@pytest.mark.parametrize("name", SHOWN)
def test_no_part_of_an_exception_controls_a_terminal(name: str) -> None:
    """Whatever part of a built-in exception its text is made of, it is escaped and bounded, and is shown."""
    error = SHOWN[name]
    decoded = decode_exception(encode_exception(error), trust=False)
    text = "".join(traceback.format_exception_only(decoded)) + str(decoded)
    assert text.replace("\n", "").isprintable()
    assert len(text) < 500_000
    assert type(decoded) is type(error) or isinstance(decoded, RemoteError)


def test_harmless_parts_of_an_exception_stay_what_they_are() -> None:
    """Parts whose texts need no escaping keep their types."""
    arguments = (pathlib.PurePosixPath("/a"), np.str_("b"), b"\x1b", 2**5000, dt.UTC, int)
    decoded = decode_exception(encode_exception(ValueError(*arguments)), trust=False)
    assert decoded.args == arguments
    assert list(map(type, decoded.args)) == list(map(type, arguments))
    place = ("a.py", 3, 4, "x = (", 3, 6)
    wrong = decode_exception(encode_exception(SyntaxError("no", place)), trust=False)
    assert isinstance(wrong, SyntaxError)
    assert (wrong.lineno, wrong.offset, wrong.text, wrong.end_offset) == (3, 4, "x = (", 6)


def test_a_traceback_of_many_exceptions_is_bounded() -> None:
    """A group whose groups repeat would be printed for ever: it arrives in words."""
    group: Exception = ValueError("inner")
    for _ in range(12):
        group = ExceptionGroup("group", [group, group, group])
    decoded = decode_exception(encode_exception(group), trust=False)
    assert isinstance(decoded, RemoteError)
    assert len(_shown(decoded)) < 500_000


# -- time ---------------------------------------------------------------------------------------------
def test_a_result_whose_decoding_takes_too_long_can_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timeout of ``result`` holds while the value is decoded, and the value stays."""
    monkeypatch.setattr(futures, "DECODE_S_MIN", -1.0)
    future: CallFuture[object] = CallFuture()
    future.finish(bytearray(encode_result((1, {2}))), failed=False, trust=False)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    assert future.is_undecoded
    assert future.result() == (1, {2})
    assert future.result(0) == (1, {2})


# -- arguments ----------------------------------------------------------------------------------------
def test_members_of_several_bits_are_sent_with_their_flag() -> None:
    """A flag of a script keeps the members that Python does not list when it is sent by value."""

    class Mask(enum.IntFlag):
        X = 11
        Y = 37

    file = io.BytesIO()
    CallPickler(file).dump((Mask, Mask.X))
    program = (
        "import pickle, sys; flag, it = pickle.load(sys.stdin.buffer); print(it.name, *flag.__members__)"
    )
    command = (sys.executable, "-c", program)
    shown = subprocess.run(command, input=file.getvalue(), capture_output=True, check=True).stdout
    assert shown.split() == [b"X", b"X", b"Y"]
