"""Objects of the program's own classes in results."""

from __future__ import annotations

import dataclasses
import enum
import pickle
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Final, cast

import pytest

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.results import class_forms
from dios.lib.executor.results.class_forms import allow
from dios.lib.executor.values import decode_result, encode_result
from tests.support.result_bodies import Node, written
from tests.support.result_values import Access, Bits, Frozen, Pair


class Plain:
    """A class that nobody permitted."""

    def __init__(self) -> None:
        self.value = 3


class Reduced:
    """A class that is made by a call of itself."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[Reduced], tuple[int]]:
        return Reduced, (self.value,)


class Numbers(list[int]):
    """A list of its own class."""


@dataclasses.dataclass
class Held:
    """A record whose field runs code when it is set."""

    value: int

    def __setattr__(self, name: str, value: object) -> None:
        if name == "value" and value == -1:
            raise AssertionError("it ran")
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Based(ABC):
    """A record with a metaclass of the standard library."""

    value: int


class OwnMeta(type):
    """A metaclass with a method that the comparison of types would call."""

    def __hash__(cls) -> int:
        raise AssertionError("it ran")


class Property:
    """A descriptor that runs code."""

    def __set__(self, instance: object, value: object) -> None:
        raise AssertionError("it ran")

    def __get__(self, instance: object, owner: type | None = None) -> int:
        return 0


@dataclasses.dataclass
class WithProperty:
    """A record whose field is a descriptor."""

    value: int = cast("int", Property())


class WithEnd:
    """A class whose end runs code."""

    def __del__(self) -> None:
        """Do harm in the caller."""


@dataclasses.dataclass
class RecordWithEnd(WithEnd):
    """A record whose end runs code."""

    path: str = ""


class OwnFlag(enum.Flag):
    """A flag with a method that makes its combinations."""

    A = 1
    B = 2

    @classmethod
    def _missing_(cls, _value: object) -> OwnFlag:
        raise AssertionError("it ran")


class OwnHash(enum.Enum):
    """An enumeration with a hash of its own."""

    A = 1

    def __hash__(self) -> int:
        return 5


@pytest.fixture(autouse=True)
def no_permissions() -> Iterator[None]:
    """Permit no class but those of a test."""
    permitted = dict(class_forms._allowed)
    class_forms._allowed.clear()
    yield
    class_forms._allowed.clear()
    class_forms._allowed.update(permitted)


def back(value: object) -> object:
    """Return a value after the way."""
    return decode_result(encode_result(value), trust=False)


def reading(code: int, cls: type, *parts: object, names: tuple[str, ...] = ()) -> Callable[[], object]:
    """Return a function that reads an object of a class that a worker made up."""
    value = written(Node(code, (Node(9, (cls.__module__, cls.__qualname__, *names)), *parts)))
    from dios.lib.executor.results.reader import read_value

    return lambda: read_value(value.body, value.buffers)


def test_other_classes_are_named_with_the_ways_out() -> None:
    """The error names the class, ``dios.allow`` and ``trust=True``; each of them works."""
    data = encode_result(Plain())
    with pytest.raises(UntrustedResultError, match=r"Plain.*dios\.allow\(cls\).*trust=True"):
        decode_result(data, trust=False)
    allow(Plain)
    assert vars(decode_result(data, trust=False)) == {"value": 3}
    allow(Plain, decode=lambda state: ("decoded", state))
    assert decode_result(data, trust=False) == ("decoded", {"value": 3})
    assert isinstance(decode_result(encode_result(Plain(), trust=True), trust=True), Plain)


def test_permitted_objects_are_made_as_by_pickle() -> None:
    """Classes that are reduced to a call of themselves, and subclasses of containers, come back."""
    for value in (Reduced(3), Numbers([1, 2])):
        data = encode_result(value)
        with pytest.raises(UntrustedResultError):
            decode_result(data, trust=False)
        allow(type(value))
        decoded = decode_result(data, trust=False)
        assert type(decoded) is type(value)
        assert pickle.dumps(decoded) == pickle.dumps(value)


def test_code_of_a_record_does_not_run() -> None:
    """Neither ``__post_init__`` nor ``__setattr__`` of a record runs, so fields may have any values."""
    frozen = reading(56, Frozen, -1, names=("x",))()
    assert isinstance(frozen, Frozen)
    assert frozen.x == -1
    assert cast("Held", reading(56, Held, -1, names=("value",))()).value == -1
    assert back(Based(2)) == Based(2)


@pytest.mark.parametrize("cls", [WithProperty, RecordWithEnd, OwnMeta("Made", (Frozen,), {})], ids=str)
def test_records_that_could_run_code_are_refused(cls: type) -> None:
    """A record with a descriptor for a field, with an end or with its own metaclass is not built."""
    names = tuple(field.name for field in dataclasses.fields(cls))
    globals()[cls.__qualname__] = cls
    cls.__module__ = __name__
    with pytest.raises(UntrustedResultError):
        reading(56, cls, *("x" for _ in names), names=names)()


def test_a_class_is_a_value_if_it_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are refused by the caller, which alone knows what it permits."""
    data = encode_result([Held, int])
    with pytest.raises(UntrustedResultError, match=r"the class .*Held"):
        decode_result(data, trust=False)
    monkeypatch.setattr(class_forms, "_allowed", {})
    allow(Held)
    assert decode_result(data, trust=False) == [Held, int]


def test_attributes_that_would_be_lost_are_refused() -> None:
    """A record or a named tuple with other attributes does not arrive without them."""
    record = Held(1)
    object.__setattr__(record, "other", 2)
    with pytest.raises(UntrustedResultError, match="attribute other"):
        encode_result(record)
    bare = object.__new__(Held)
    with pytest.raises(UntrustedResultError, match=r"a field that has no value \(.*'value'"):
        encode_result(bare)


def test_combinations_of_flags_are_made_without_code_of_their_class() -> None:
    """A combination is made by Python alone, and each class gets a bounded number of them."""
    assert back(Access.READ | Access.WRITE) is Access.READ | Access.WRITE
    with pytest.raises(UntrustedResultError, match="_missing_"):
        reading(58, OwnFlag, 3)()
    with pytest.raises(UntrustedResultError, match="no 'mro'"):
        reading(58, Access, "mro")()
    for number in (-1, 2**64 - 1, 2**70):
        with pytest.raises(UntrustedResultError):
            reading(58, Access, number if number < 2**64 else str(number))()


Wide = enum.IntFlag("Wide", "A B C D E F G H I J K L M N", module=__name__)


def test_the_class_of_a_flag_does_not_grow_without_end() -> None:
    """A worker that sends ever new combinations is refused at a bound."""
    refused = 0
    for number in range(1 << 14):
        try:
            reading(58, Wide, number)()
        except UntrustedResultError:
            refused += 1
    assert refused > 10_000
    assert len(Wide._value2member_map_) < 5_000


def test_keys_are_of_plain_types() -> None:
    """A key whose class has a hash of its own is refused by the worker, with what to do."""
    assert back({Pair(1, "b"): Bits.A}) == {Pair(1, "b"): Bits.A}
    keys: Final = (
        Frozen(1),
        OwnHash.A,
        (1, Frozen(1)),
        frozenset({Frozen(1)}),
        Pair(cast("int", Frozen(1)), ""),
    )
    for key in keys:
        with pytest.raises(UntrustedResultError, match="as a key"):
            encode_result({key: 1})


def test_a_value_that_contains_itself_is_refused() -> None:
    """A worker says so, instead of trying for ever."""
    value: list[object] = []
    value.append((value,))
    with pytest.raises(UntrustedResultError, match="contains itself"):
        encode_result(value)


def test_values_that_occur_several_times_stay_one_object() -> None:
    """Two references to one object are two references to one object again, in rows, too."""
    row, text, point = {"a": 1}, "x" * 1000, Held(1)
    rows = [{"a": number} for number in range(10)]
    value = [row, [row], text, (text,), point, {"p": point}, rows, rows[3]]
    decoded = cast("list[list[object]]", back(value))
    assert decoded == value
    assert decoded[0] is decoded[1][0]
    assert decoded[2] is decoded[3][0]
    assert decoded[6][3] is decoded[7]
    assert len(encode_result(["y" * 1000] * 1000)) < 20_000
