from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import io
import ipaddress
import os
import pathlib
import pickle
import sys
import types
import uuid
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
import pytest

from dios.lib.executor import trusted_results
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.remote_errors import decode_exception, encode_exception
from dios.lib.executor.trusted_results import allow, load
from dios.lib.executor.values import Encoded, decode_result, decode_stored, encode_parts, encode_result


@dataclasses.dataclass
class Point:
    """A record of the caller."""

    x: int
    tags: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A record without a dictionary, which also checks what it gets."""

    x: int

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        assert self.x >= 0


class Colour(enum.Enum):
    """An enumeration of the caller."""

    RED = 1


class Pair(NamedTuple):
    """A named tuple of the caller."""

    left: int
    right: str


class CodedError(Exception):
    """An exception whose initialiser takes something else than its arguments."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Plain:
    """A class that nobody permitted."""

    def __init__(self) -> None:
        self.value = 3


class Permitted(Plain):
    """A class that a test permits."""


class WithEnd:
    """A class whose end runs code."""

    def __del__(self) -> None:
        """Do harm in the caller."""


@dataclasses.dataclass
class RecordWithEnd(WithEnd):
    """A record whose end runs code."""

    path: str = ""


VALUES: Final = [
    *(1, -(2**80), 1.5, float("inf"), "text", "a\ud800", b"bytes", None, True, 1 + 2j),
    *((1, (2,)), [1, [2]], {1, 2}, frozenset({3}), {"a": (1,), (1, 2): None}),
    *(range(3), slice(1, 2), bytearray(b"q")),
    *(dt.date(2024, 2, 29), dt.timedelta(1, 2, 3), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    dt.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    *(decimal.Decimal("1.50"), fractions.Fraction(1, 3), uuid.UUID(int=5)),
    *(collections.Counter("aab"), collections.OrderedDict(b=1, a=2), collections.deque([1], 5)),
    collections.defaultdict(list, a=[1]),
    *(pathlib.Path("/a"), pathlib.PureWindowsPath("c:/a"), ipaddress.ip_network("10.0.0.0/8")),
    *(types.SimpleNamespace(a=1), Point(1, ["a"]), Frozen(2), Colour.RED, Pair(1, "b")),
]
ARRAYS: Final = [
    *(np.arange(5), np.zeros((3, 4), order="F"), np.arange(10)[::2], np.zeros((0, 3)), np.array(5)),
    *(np.array(["a", "bc"]), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])),
    *(np.float32(2), np.datetime64("2020-01-01"), np.array(["2020"], dtype="M8[D]")),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_with_its_type(value: object) -> None:
    """Values of the standard library and the caller's own records are the same after the way."""
    decoded = decode_result(encode_result(value), trust=False)
    assert type(decoded) is type(value)
    assert decoded == value


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_an_array_comes_back_as_it_was(array: object) -> None:
    """Arrays and their elements keep type, shape and order."""
    decoded = decode_result(encode_result(array), trust=False)
    assert isinstance(decoded, np.ndarray | np.generic)
    assert type(decoded) is type(array)
    assert isinstance(array, np.ndarray | np.generic)
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert np.array_equal(decoded, array)


@pytest.mark.parametrize("step", [1, 2])
def test_an_array_in_a_file_comes_back_as_an_array(tmp_path: pathlib.Path, step: int) -> None:
    """The content of a mapped file, or of a part of it, comes back in memory."""
    mapped = np.memmap(tmp_path / "array", np.int32, "w+", shape=(6,))
    mapped[:] = range(6)
    decoded = decode_result(encode_result(mapped[::step]), trust=False)
    assert type(decoded) is np.ndarray
    assert decoded.tolist() == list(range(0, 6, step))


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
    try:
        raise error  # noqa: TRY301 - the exception is the test's
    except Exception as raised:  # noqa: BLE001 - whichever it is
        data = encode_exception(raised)
    decoded = decode_exception(data, trust=False)
    assert type(decoded) is type(error)
    assert decoded.args == error.args
    assert str(decoded) == str(error)
    assert {name: value for name, value in vars(decoded).items() if name != "__notes__"} == vars(error)
    assert "raise error" in str(decoded.__cause__)


def test_a_worker_cannot_end_its_caller() -> None:
    """SystemExit and KeyboardInterrupt of a worker arrive as ordinary errors."""
    for error in (SystemExit(0), KeyboardInterrupt()):
        assert isinstance(decode_exception(encode_exception(error), trust=False), RuntimeError)


def test_other_classes_are_named_with_the_ways_out() -> None:
    """The error names the class, ``dios.allow`` and ``trust=True``; each of them works."""
    data = encode_result(Plain())
    with pytest.raises(UntrustedResultError, match=r"Plain.*dios\.allow\(cls\).*trust=True"):
        decode_result(data, trust=False)
    allow(Permitted)
    permitted = encode_result(Permitted())
    assert vars(decode_result(permitted, trust=False)) == {"value": 3}
    allow(Permitted, decode=lambda state: ("decoded", state))
    assert decode_result(permitted, trust=False) == ("decoded", {"value": 3})
    assert isinstance(decode_result(encode_result(Plain(), trust=True), trust=True), Plain)


# -- hostile pickles ----------------------------------------------------------------------------------
class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: object, *args: object) -> None:
        self.how = function, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Return what a hostile worker likes."""
        return self.how


class Named:
    """Pickles as a call of a builder of this library."""

    def __init__(self, builder: str, *args: object) -> None:
        self.how = getattr(trusted_results, builder), args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Return a call with arguments that the library's own pickler never writes."""
        return self.how


def _nested_tuples() -> bytes:
    body = [pickle.EMPTY_TUPLE, pickle.MEMOIZE]
    for level in range(60):
        body += [
            pickle.BINGET + bytes([level]),
            pickle.BINGET + bytes([level]),
            pickle.TUPLE2,
            pickle.MEMOIZE,
        ]
    return b"\x80\x05}" + b"".join(body) + b"Ks."


def _deep_lists() -> bytes:
    return b"\x80\x05" + b"]" * 100_000 + b"a" * 99_999 + b"."


def _global(module: str, name: str) -> bytes:
    def text(value: str) -> bytes:
        return pickle.SHORT_BINUNICODE + bytes([len(value)]) + value.encode()

    return text(module) + text(name) + pickle.STACK_GLOBAL


_BUILDER: Final = _global(trusted_results.__name__, "_array")
_DATE: Final = _global("datetime", "date")

HOSTILE: Final[dict[str, object]] = {
    "os.system": Calls(os.system, "true"),
    "eval": Calls(eval, "1"),
    "exec": Calls(exec, "1"),
    "compile": Calls(compile, "1", "a", "eval"),
    "open": Calls(open, os.devnull),
    "getattr": Calls(getattr, "text", "upper"),
    "setattr": Calls(setattr, "text", "name", "x"),
    "import": Calls(__import__, "os"),
    "import_module": Calls(__import__("importlib").import_module, "os"),
    "attrgetter": Calls(__import__("operator").attrgetter, "system"),
    "methodcaller": Calls(__import__("operator").methodcaller, "system", "true"),
    "partial": Calls(__import__("functools").partial, os.system, "true"),
    "reduce": Calls(__import__("functools").reduce, min, [1, 2]),
    "map": Calls(map, os.system, ["true"]),
    "loads": Calls(pickle.loads, pickle.dumps(1)),
    "popen": Calls(__import__("subprocess").Popen, ["true"]),
    "run": Calls(__import__("runpy").run_path, "x"),
    "code": Calls(__import__("code").InteractiveInterpreter),
    "codecs": Calls(__import__("codecs").decode, b"1", "unicode_escape"),
    "globals": Calls(globals),
    "breakpoint": Calls(breakpoint),
    "exit": Calls(exit),
    "reconstructor": Calls(__import__("copyreg")._reconstructor, Plain, object, None),
    "new object": pickle.dumps(Plain(), 5),
    "a function of ours that is no builder": Named("allow", int),
    "the loader itself": Named("load", b"", ()),
    "a class that nobody permitted": Named("_object", __name__, "Plain", {}),
    "fields that a record does not have": Named("_dataclass", __name__, "Point", {"x": 1, "y": 2}),
    "fewer fields": Named("_dataclass", __name__, "Point", {"x": 1}),
    "a record that is none": Named("_dataclass", __name__, "Plain", {}),
    "a record whose end runs code": Named("_dataclass", __name__, "RecordWithEnd", {"path": "/"}),
    "a module that is not imported": Named("_dataclass", "antigravity", "Nothing", {}),
    "a class by a path through attributes": Named("_dataclass", "os", "environ.__class__", {}),
    "an exception that is none": Named("_exception", "subprocess", "Popen", (["true"],), {}, None, False),
    "a class with code as an exception": Named("_exception", "os", "_Environ", (), {}, None, False),
    "an enumeration that is none": Named("_enum_member", "os", "PathLike", "x"),
    "a member that does not exist": Named("_enum_member", __name__, "Colour", "mro"),
    "a named tuple of another length": Named("_named_tuple", __name__, "Pair", (1,)),
    "a named tuple that is none": Named("_named_tuple", "builtins", "list", (1,)),
    "an array of objects": Named("_array", "|O", (1,), "C", b"\0" * 8),
    "an array of objects in a record": Named("_array", [("a", "|O")], (1,), "C", b"\0" * 8),
    "an array beyond its bytes": Named("_array", "<f8", (1000,), "C", b"\0" * 8),
    "an array of negative size": Named("_array", "<f8", (-1,), "C", b"\0" * 8),
    "a type that is an expression": Named("_dtype", "__import__('os').system('true')"),
    "a scalar beyond its bytes": Named("_scalar", "<f8", b"1"),
    "a huge bytearray": Calls(bytearray, 10**13),
    "a number by its text": Named("_fraction", "1e1000000000", 1),
    "a path that is a number": Named("_path", "PosixPath", 5),
    "another kind of path": Named("_path", "system", "/"),
    "a factory of another kind": Named("_default_dict", "eval", {}),
    "tuples whose hash never ends": _nested_tuples(),
    "lists without end": _deep_lists(),
    "no pickle": b"nonsense",
    "nothing": b"",
    "a pickle that is cut off": pickle.dumps([1, 2], 5)[:-2],
    "bytes after the end": pickle.dumps(1, 5) + b"x",
    "an old name": b"cos\nsystem\n(S'true'\ntR.",
    "an old instance": b"(S'true'\nios\nsystem\n.",
    "a number as text": b"\x80\x05I" + b"9" * 100 + b"\n.",
    "a persistent name": b"\x80\x05Pos.system\n.",
    "an extension": b"\x80\x05\x82\x01.",
    "a changed builder": b"\x80\x05" + _BUILDER + b"}\x8c\x0c__defaults__)s" + b"}\x86b.",
    "a changed class": b"\x80\x05" + _DATE + b"}\x8c\x01xKsb.",
    "a class as a value": b"\x80\x05" + _DATE + b"\x85.",
    "a called value": b"\x80\x05K\x01)R.",
    "a memo that is empty": b"\x80\x05h\x05.",
    "a stack that is empty": b"\x80\x05a.",
    "a mark that is missing": b"\x80\x05]e.",
    "a length beyond the end": b"\x80\x05\x8d" + b"\xff" * 8 + b".",
}


@contextmanager
def _watching(calls: list[str]) -> Iterator[None]:
    """Note each event of Python's audit hooks that an attack would cause."""
    _watched.append(calls)
    try:
        yield
    finally:
        _watched.clear()


_watched: Final[list[list[str]]] = []
_DANGEROUS: Final = (
    "os.",
    "subprocess.",
    "import",
    "exec",
    "compile",
    "open",
    "socket.",
    "builtins.",
    "code.",
)


def _watch(event: str, _args: object) -> None:
    if _watched and event.startswith(_DANGEROUS):
        _watched[0].append(event)


sys.addaudithook(_watch)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_and_runs_nothing(name: str) -> None:
    """Whatever a worker sends, the caller gets UntrustedResultError, and no function was called."""
    hostile = HOSTILE[name]
    data = hostile if isinstance(hostile, bytes) else pickle.dumps(hostile, 5)
    modules = set(sys.modules)
    calls: list[str] = []
    with pytest.raises(UntrustedResultError), _watching(calls):
        load(data, ())
    assert calls == []
    assert set(sys.modules) == modules


# -- results in blobs ---------------------------------------------------------------------------------
def as_blob(encoded: Encoded) -> memoryview:
    """Return the bytes of a blob with a result, as a worker writes them."""
    blob = bytearray()
    for part in encoded.parts():
        blob += bytes(-len(blob) % 64) + part
    return memoryview(blob)


def stored(*sizes: int, rest: bytes = b"") -> memoryview:
    """Return a blob whose description a worker made up."""
    return memoryview(
        bytearray(b"".join(number.to_bytes(8, "little") for number in (len(sizes), *sizes)) + rest)
    )


@pytest.mark.parametrize("value", [*VALUES, *ARRAYS], ids=lambda value: type(value).__name__)
def test_a_value_in_a_blob_comes_back_with_its_type(value: object) -> None:
    """The form in a blob keeps what the form in a message keeps, and its arrays can be changed."""
    decoded = decode_stored(as_blob(encode_parts(value)), trust=False)
    assert type(decoded) is type(value)
    if isinstance(decoded, np.ndarray):
        assert np.array_equal(decoded, value)  # type: ignore[arg-type]
        assert decoded.flags.writeable
    else:
        assert decoded == value


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_in_a_blob_is_refused_and_runs_nothing(name: str) -> None:
    """A result in a blob is loaded by the same rules as one in a message."""
    hostile = HOSTILE[name]
    data = hostile if isinstance(hostile, bytes) else pickle.dumps(hostile, 5)
    blob = as_blob(Encoded(plain=False, body=data, buffers=[]))
    calls: list[str] = []
    with pytest.raises(UntrustedResultError), _watching(calls):
        decode_stored(blob, trust=False)
    assert calls == []


@pytest.mark.parametrize(
    "blob",
    [
        *(memoryview(b""), memoryview(b"\0" * 7), stored(), stored(0), stored(2, 1, rest=bytes(200))),
        *(stored(1, 2**63), stored(1, 2**64 - 8), stored(0, 100), stored(0, 0, rest=b"x")),
        *(
            stored(1, 1, 2**63, rest=bytes(200)),
            stored(1, 0, 1, rest=bytes(63)),
            stored(1, 5, rest=bytes(38)),
        ),
        memoryview((2**64 - 1).to_bytes(8, "little") + bytes(1000)),
        memoryview((2**61).to_bytes(8, "little") + bytes(1000)),
        *(stored(0, 1, rest=bytes(40) + b"\xc1"), stored(0, 4, rest=bytes(40) + b"\xdd\xff\xff\xff")),
    ],
    ids=lambda blob: str(len(blob)),
)
def test_a_blob_of_other_sizes_is_refused(blob: memoryview) -> None:
    """Sizes that do not fit the blob are refused before anything is loaded or reserved."""
    with pytest.raises(UntrustedResultError):
        decode_stored(blob, trust=False)


def test_an_array_beyond_its_part_of_a_blob_is_refused() -> None:
    """A part ends where its size says, whatever lies behind it."""
    body = pickle.dumps(Named("_array", "<f8", (3,), "C", b"\0" * 16), 5)
    with pytest.raises(UntrustedResultError):
        decode_stored(as_blob(Encoded(plain=False, body=body, buffers=[])), trust=False)
    good = encode_parts(np.arange(4.0))
    short = Encoded(plain=False, body=good.body, buffers=[good.buffers[0][:-8], good.buffers[0][-8:]])
    with pytest.raises(UntrustedResultError):
        decode_stored(as_blob(short), trust=False)


def test_what_is_refused_would_have_run_with_pickle_itself() -> None:
    """The attacks are real: without the check one of them calls its function."""
    data = pickle.dumps(Calls(os.getppid), 5)
    assert pickle.loads(data) == os.getppid()  # noqa: S301 - that is the attack
    with pytest.raises(UntrustedResultError, match="getppid"):
        load(data, ())


def test_buffers_that_are_missing_are_refused() -> None:
    """A pickle that asks for more buffers than there are is refused."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    trusted_results.ResultPickler(file, buffers).dump(np.arange(4))
    assert len(buffers) == 1
    with pytest.raises(UntrustedResultError):
        load(file.getvalue(), ())


def test_an_initialiser_of_the_caller_does_not_run() -> None:
    """A record is put together without the code of its class."""
    data = pickle.dumps(Named("_dataclass", __name__, "Frozen", {"x": -1}), 5)
    loaded = load(data, ())
    assert isinstance(loaded, Frozen)
    assert loaded.x == -1


PLAIN, PICKLED = encode_result([1])[:1], encode_result(complex(1, 2))[:1]


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"\xa2\xff\xfe",  # text that is not UTF-8
        PLAIN + b"\x92\x01",  # a list that ends early
        PLAIN + b"\x91" * 100_000,  # too many lists in each other
        PLAIN,
        PICKLED,
        PICKLED + b"\xff\xff\xff\xff",  # four thousand million buffers, and no size of any
        PICKLED + b"\x01\x00\x00\x00" + b"\xff" * 8,  # a buffer that is larger than the message
    ],
)
def test_bytes_that_are_no_result_are_refused(data: bytes) -> None:
    """Whatever a worker sends instead of a result, the caller gets the one error for it."""
    with pytest.raises(UntrustedResultError):
        decode_result(data, trust=False)
