"""The exceptions of calls in their callers: text, notes and traceback arrive whatever their class."""

from __future__ import annotations

import builtins
import decimal
import pickle
import traceback
from typing import Final, NoReturn

import msgspec
import pytest

from dios.lib.executor.remote_errors import (
    RemoteError,
    decode_exception,
    describe_exception,
    encode_exception,
)
from dios.lib.executor.results.harmless import NOTES_MAX


def sent(error: BaseException, *, trust: bool = False) -> BaseException:
    """Return an exception as its caller gets it."""
    error.add_note("in row 7")
    try:
        raise error  # noqa: TRY301 - for the lines of its traceback
    except BaseException as raised:  # noqa: BLE001 - it is this test's own
        return decode_exception(encode_exception(raised, trust=trust), trust=trust)


def local_class(*bases: type[BaseException]) -> type[BaseException]:
    """Return a class that no caller knows."""
    return type("Hidden", bases, {"__module__": "far.away"})


@pytest.mark.parametrize("base", [Exception, ValueError, KeyError, OSError, SyntaxError, UnicodeDecodeError])
def test_an_unknown_class_is_caught_as_its_built_in_class(base: type[Exception]) -> None:
    """The name of the class, the text, the notes and the lines of the worker arrive; a pickle keeps them."""
    arguments = ("utf-8", b"x", 0, 1, "the reason") if base is UnicodeDecodeError else ("the reason",)
    error = sent(local_class(base)(*arguments))
    assert isinstance(error, base)
    assert isinstance(error, RemoteError)
    lines = "".join(traceback.format_exception(error))
    assert "far.away.Hidden: " in lines
    for part in ("the reason", "in row 7", "raise error"):
        assert part in lines
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - of this test
    assert (str(again), type(again), again.__notes__) == (str(error), type(error), ["in row 7"])
    # An exception that a call got from a nested call keeps its name, too.
    assert describe_exception(encode_exception(error)).bases[0] == ("far.away", "Hidden")


def test_a_known_class_stays_what_it_is() -> None:
    """It has its arguments, notes and lines."""
    error = sent(FileNotFoundError(2, "No such file", "a.txt"))
    assert type(error) is FileNotFoundError
    assert (error.filename, error.__notes__) == ("a.txt", ["in row 7"])
    assert "raise error" in str(error.__cause__)


_WITH_MORE: Final = {
    UnicodeDecodeError: ("ascii", b"x", 0, 1, "no"),
    UnicodeEncodeError: ("ascii", "x", 0, 1, "no"),
    UnicodeTranslateError: ("x", 0, 1, "no"),
    ExceptionGroup: ("x", [ValueError(1)]),
}
_BUILT_IN: Final = [
    kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)
]


@pytest.mark.parametrize("kind", _BUILT_IN)
def test_each_built_in_class_stays_what_it_is(kind: type[Exception]) -> None:
    """With the attributes that the interpreter sets, which the class or one above it defines."""
    error = kind(*_WITH_MORE.get(kind, ("x",)))
    names = [name for name in ("name", "path") if hasattr(error, name)]
    for name in names:
        setattr(error, name, f"a {name}")
    returned = sent(error)
    assert type(returned) is kind
    assert [getattr(returned, name) for name in names] == [f"a {name}" for name in names]


class _NamedError(Exception):
    def __init__(self, name: str, path: str) -> None:
        super().__init__(f"{name} at {path}")
        self.name, self.path = name, path


class _NotThereError(ModuleNotFoundError):
    pass


def test_attributes_may_have_the_names_of_built_in_ones() -> None:
    """Those of the class itself, and those of a built-in class above it."""
    error = sent(_NamedError("n", "p"))
    assert type(error) is _NamedError
    assert (error.name, error.path, error.args) == ("n", "p", ("n at p",))
    absent = sent(_NotThereError("x", name="n", path="p"))
    assert type(absent) is _NotThereError
    assert (absent.name, absent.path) == ("n", "p")


def test_parts_that_a_caller_does_not_accept_arrive_as_text() -> None:
    """The exception keeps its class: an error of decimal has a class as its argument."""
    with pytest.raises(decimal.InvalidOperation) as caught:
        decimal.Decimal("x")
    invalid = sent(caught.value)
    assert type(invalid) is decimal.InvalidOperation
    assert "ConversionSyntax" in str(invalid)
    broken = TypeError("x", object(), [1])
    broken.connection = object()  # type: ignore[attr-defined]
    returned = sent(broken)
    assert type(returned) is TypeError
    assert (returned.args[0], returned.args[2]) == ("x", [1])
    assert returned.args[1].startswith("<object object")
    assert vars(returned)["connection"].startswith("<object object")


class _PickleExitsError(ValueError):
    def __reduce__(self) -> NoReturn:
        raise SystemExit(3)


class _TextExitsError(ValueError):
    def __str__(self) -> NoReturn:
        raise KeyboardInterrupt


def test_code_of_an_exception_that_raises_does_not_hide_it() -> None:
    """Neither its pickling nor its text can end the worker."""
    assert str(sent(_PickleExitsError("the reason"))) == "the reason"
    assert isinstance(sent(_PickleExitsError("the reason"), trust=True), ValueError)
    assert "KeyboardInterrupt" in describe_exception(encode_exception(_TextExitsError())).text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, local_class(BaseException)])
def test_no_exception_of_a_worker_ends_its_caller(kind: type[BaseException]) -> None:
    """What does not derive from Exception arrives as a RuntimeError with its name."""
    error = sent(kind("the reason"))
    assert isinstance(error, RuntimeError)
    assert type(error).__name__ == kind.__name__


def test_the_longest_description_of_a_worker_arrives() -> None:
    """An exception whose text, notes and names are all too long is described as far as the bounds go."""
    error = type("Long" + "x" * 1_000, (ValueError,), {})("é" * 100_000)
    for _ in range(100):
        error.add_note("é" * 100_000)
    description = describe_exception(encode_exception(error))
    assert description.text.startswith("éé")
    assert (len(description.notes), len(description.bases)) == (NOTES_MAX, 5)


@pytest.mark.parametrize(
    "parts",
    [
        *(([("a", "b")] * 1_000, "", [], ""), ([], "x" * 1_000_000, [], ""), ([], "", [], "x" * 1_000_000)),
        *(([("a", "b" * 1_000)], "", [], ""), ([], "", [""] * 1_000, ""), ([], "", ["x" * 100_000], "")),
    ],
    ids=range(6),
)
def test_a_description_beyond_the_bounds_is_none(parts: tuple[object, ...]) -> None:
    """A worker that sends more bases, notes or text than one does is not listened to."""
    head = msgspec.msgpack.encode(parts)
    description = describe_exception(len(head).to_bytes(4, "little") + head)
    assert "unknown form" in description.text


def test_a_hostile_worker_gets_no_more_than_a_text() -> None:
    """Long texts are cut, control characters are escaped, and bytes that are no exception are an error."""
    error = sent(local_class(Exception)("\x1b[2J" + "x" * 10_000_000))
    assert len(str(error)) < 70_000
    assert "\x1b" not in "".join(traceback.format_exception(error))
    good = encode_exception(ValueError("x"))
    for data in (b"", b"\xff", b"\xff\xff\xff\xff", good[:9], b"\x01\x00\x00\x00\xc1"):
        assert isinstance(decode_exception(data, trust=False), RuntimeError)
    assert isinstance(decode_exception(good[: len(good) // 2], trust=False), Exception)
