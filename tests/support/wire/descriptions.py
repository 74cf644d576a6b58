"""The messages as msgspec sees them: strategies that make any of them, and the rows of their tables.

Not for: claims; ``test_codec.py`` and ``test_wire_format.py`` make those out of it.
"""

import enum
from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from dios.wire import messages
from dios.wire.call_table import CALLS as CALL_TABLE
from dios.wire.mandates import MandateTerms
from dios.wire.types import Permission

Anything: TypeAlias = st.SearchStrategy[object]
U63 = 2**63 - 1
RANGES = {U63: "u63", 2**62: "0..2^62", 2**62 // 10**6: "0..2^62/10^6", 2**32 - 1: "u32", 2**16 - 1: "u16"}
"""How the page writes the ranges of numbers from 0 on."""


def members(alias: object) -> tuple[type[msgspec.Struct], ...]:
    """The message classes of a union."""
    structs: tuple[type[msgspec.Struct], ...] = getattr(alias, "__args__", ())
    return structs


CALLS = members(messages.AnyCall)
RESULTS = members(messages.AnyResult)
EVENTS = members(messages.SelfEvent)
PARTS = (
    messages.Handed,
    messages.Limits,
    messages.Bound,
    messages.Reference,
    messages.TaskRow,
    messages.LimitRow,
    messages.HandedRow,
    messages.NodeRow,
    messages.ClockReading,
    messages.ResourceCapacity,
    messages.Work,
    messages.Constraint,
    messages.DeviceRequest,
    messages.Device,
    messages.DeviceGrant,
    messages.ThreadPlace,
    messages.Near,
    messages.Placement,
    messages.PromisedStart,
    messages.KeptRoom,
    messages.Submission,
    messages.Occupant,
    messages.Asked,
    messages.Rate,
    messages.Guarantee,
    messages.HeldPart,
    messages.Meter,
    messages.Holding,
    messages.Quota,
    MandateTerms,
)


def tag_of(kind: type[msgspec.Struct]) -> int:
    """The number that a message begins with; -1 for a part of messages, which has none."""
    tag = kind.__struct_config__.tag
    return tag if isinstance(tag, int) else -1


def strategy(kind: inspect.Type) -> Anything:
    """Any value of a described type, within its bounds."""
    match kind:
        case inspect.IntType():
            return st.integers(-(2**63) if kind.ge is None else kind.ge, U63 if kind.le is None else kind.le)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern)
        case inspect.StrType():
            return st.text(max_size=min(kind.max_length or 20, 20))
        case inspect.BytesType():
            return st.binary(min_size=kind.min_length or 0, max_size=min(kind.max_length or 50, 50))
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.UnionType():
            return st.one_of([strategy(member) for member in kind.types])
        case inspect.VarTupleType():
            items = st.lists(
                strategy(kind.item_type), min_size=kind.min_length or 0, max_size=min(4, kind.max_length or 4)
            )
            return items.map(tuple)
        case inspect.TupleType():
            return st.tuples(*(strategy(part) for part in kind.item_types))
        case inspect.DictType():
            return st.dictionaries(strategy(kind.key_type), strategy(kind.value_type), max_size=3)
        case inspect.StructType():
            return messages_of(kind.cls)
    raise AssertionError(f"no strategy for {kind}")


def messages_of(kind: type[msgspec.Struct]) -> Anything:
    """Any message of one class."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return st.builds(kind, *(strategy(field.type) for field in described.fields))


def told(kind: inspect.Type) -> str:
    """A type as the page writes it."""
    match kind:
        case inspect.IntType():
            if kind.le is None:
                return "int"
            named = RANGES.get(kind.le) if kind.ge == 0 else None
            return named or f"int {kind.ge}..{kind.le}"
        case inspect.BoolType():
            return "bool"
        case inspect.NoneType():
            return "nil"
        case inspect.StrType(pattern=str(), max_length=47):
            return "tag"
        case inspect.StrType(pattern=str()):
            return "user"
        case inspect.StrType():
            return f"str ≤ {kind.max_length}" if kind.max_length else "str"
        case inspect.BytesType():
            if kind.min_length and kind.min_length == kind.max_length:
                return f"bin {kind.max_length}"
            return f"bin ≤ {kind.max_length}" if kind.max_length else "bin"
        case inspect.EnumType() | inspect.StructType():
            return kind.cls.__name__
        case inspect.UnionType():
            return " or ".join(told(member) for member in kind.types if not too_many(kind, member))
        case inspect.VarTupleType():
            bound = f" ≤ {kind.max_length}" if kind.max_length else ""
            return f"[{told(kind.item_type)}]{bound}"
        case inspect.TupleType():
            return f"[{', '.join(told(part) for part in kind.item_types)}]"
        case inspect.DictType():
            return f"map of {told(kind.key_type)} to {told(kind.value_type)}"
    raise AssertionError(f"no words for {kind}")


def too_many(union: inspect.UnionType, member: inspect.Type) -> bool:
    """A union of all messages is told by its first one only: the page says the rest."""
    return len(union.types) > 3 and member is not union.types[0]


def row(kind: type[msgspec.Struct]) -> str:
    """The row of one message in ``docs/wire-format.md``."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    fields = ", ".join(f"{field.name}: {told(field.type)}{default(field)}" for field in described.fields)
    name = kind.__name__ if tag_of(kind) < 0 else f"{tag_of(kind)} | {kind.__name__}"
    return f"| {name} | {fields} |"


def call_row(call: type) -> str:
    """The row of one call in ``docs/calls.md``."""
    row = CALL_TABLE[call]
    needs = "" if row.reference is None else f"{row.reference}{_right(row.right)}"
    exempt = ", ".join(str(exemption.name).lower() for exemption in row.exemptions)
    words = (row.route, row.flow, row.audit, row.effect, row.closing)
    cells = (
        call.__name__,
        needs,
        " or ".join(kind.__name__ for kind in row.results),
        *(word.name.lower() for word in words),
        exempt,
    )
    return f"| {' | '.join(cells)} |"


def _right(right: Permission) -> str:
    return f", {str(right.name).lower()}" if right else ""


def word_rows(kind: type[enum.Enum]) -> list[str]:
    """The rows of the words of a column of ``docs/calls.md``."""
    return [f"| {word.name.lower()} | {word.value} |" for word in kind]


def default(field: inspect.Field) -> str:
    """What a field is when it is left out."""
    if field.required:
        return ""
    value = field.default
    if isinstance(value, enum.Enum):
        return f" = {value.name}"
    if value is None:
        return " = nil"
    if isinstance(value, tuple):
        return " = []"
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    if isinstance(value, int):
        return f" = {value}"
    return ' = ""' if isinstance(value, str | bytes) else " = its defaults"


def enumerations() -> Iterator[type[enum.Enum]]:
    """Every enumeration that some message holds."""
    seen: dict[str, type[enum.Enum]] = {}
    for kind in (*CALLS, *RESULTS, *EVENTS, *PARTS):
        described = inspect.type_info(kind)
        assert isinstance(described, inspect.StructType)
        for field in described.fields:
            types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            for described_kind in types:
                if isinstance(described_kind, inspect.EnumType):
                    seen[described_kind.cls.__name__] = described_kind.cls
    yield from (seen[name] for name in sorted(seen))


def enumeration_row(kind: type[enum.Enum]) -> str:
    """The row of one enumeration in ``docs/wire-format.md``."""
    return f"| {kind.__name__} | {', '.join(f'{member.value} {member.name}' for member in kind)} |"


def sample(kind: inspect.Type, number: int = 1) -> object:
    """One fixed value of a described type, for the frozen vectors; ``number`` makes neighbours differ."""
    match kind:
        case inspect.IntType():
            return min(max(number * 1000, kind.ge or 0), kind.le or U63)
        case inspect.BoolType():
            return True
        case inspect.NoneType():
            return None
        case inspect.StrType(pattern=str(), max_length=47):
            return f"uid:{number}/word"
        case inspect.StrType(pattern=str()):
            return f"uid:{number}"
        case inspect.StrType():
            return f"text {number}"
        case inspect.BytesType():
            return bytes(range(number, number + (kind.min_length or 5)))
        case inspect.EnumType():
            return list(kind.cls)[number % len(kind.cls)]
        case inspect.UnionType():
            return sample(
                next(member for member in kind.types if not isinstance(member, inspect.NoneType)), number
            )
        case inspect.VarTupleType():
            return (sample(kind.item_type, number), sample(kind.item_type, number + 1))
        case inspect.TupleType():
            return tuple(sample(part, number + place) for place, part in enumerate(kind.item_types))
        case inspect.DictType():
            return {"key": sample(kind.value_type, number)}
        case inspect.StructType():
            return sample_message(kind.cls, number)
    raise AssertionError(f"no sample of {kind}")


def sample_message(kind: type[msgspec.Struct], number: int = 1) -> msgspec.Struct:
    """One fixed message of a class."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return kind(*(sample(field.type, number + place) for place, field in enumerate(described.fields)))


def plain(value: object) -> object:
    """A message as another encoder would be given it: arrays, and the tag first."""
    if isinstance(value, msgspec.Struct):
        fields = [plain(getattr(value, name)) for name in value.__struct_fields__]
        tag = tag_of(type(value))
        return fields if tag < 0 else [tag, *fields]
    if isinstance(value, enum.IntEnum):
        return int(value)
    if isinstance(value, tuple):
        return [plain(element) for element in value]
    return value
