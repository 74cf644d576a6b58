"""Everything that is decoded has a bound: each number a range, each text and list a greatest length.

The types are found in the source: every decoder, and every call of ``decode`` and ``convert``. A new message
is therefore part of this test without being named here.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import pytest
from msgspec import Meta, Struct, convert, inspect

from dios.wire import dcp, gossip
from dios.wire.fields import TAG, Tag
from dios.wire.messages import Buffer, Committed, NodeRow, Reference, TaskRow

ROOT: Final = Path(__file__).resolve().parents[3] / "dios"

OWN: Final = {
    "dios/cli/": "a command reads the answers of its own user's coordinator",
    "dios/client/program.py": "a task reads the program that it was started with",
    "dios/core/snapshot.py": "the simulator and a restarted node read the state that they have written",
    "dios/firmament/custom_model/orders.py": "the task of a cost model reads the words of its coordinator",
    "dios/firmament/knowledge/": "a knowledge base checks each entry of a batch after it has decoded it",
    "dios/host/machine/": "the description of a machine is checked after it was decoded",
    "dios/lib/": "a program reads what tasks of its own user have written",
    "dios/packer/": "a command reads a file of its user",
    "dios/core/replay.py": "a user replays the recordings of their own node",
}
"""Parts of the product whose decoders are no borders: nobody harms another user there."""

UNBOUNDED: Final = {
    "StoredAccount.quota": "infinity stands for no limit",
    "_Row.number": "a random number of 64 bits, the most that MessagePack has; a bound in msgspec has 63",
    "SharedSettings.seed": "likewise, the seed of the hash of flows",
    "Payload.extent": "likewise, and the name of a file has room for it",
}
"""Fields without a bound, each with the reason why it needs none."""


class Found(NamedTuple):
    """A place that decodes, and the expression of the type."""

    path: Path
    line: int
    expression: str | None


def _expression(call: ast.Call) -> ast.expr | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    named = next((word.value for word in call.keywords if word.arg == "type"), None)
    if named is not None:
        return named
    place = 0 if name == "Decoder" else 1
    return call.args[place] if len(call.args) > place else None


def _decodes(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in {"Decoder", "decode", "convert"}:
        return False
    owner = ast.unparse(function.value)
    return owner in {"msgspec", "msgpack", "json", "msgspec.msgpack", "msgspec.json", "msgspec.toml"}


def places() -> Iterator[Found]:
    """Every place in the product that decodes bytes or converts values."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        if "msgspec" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _decodes(node):
                expression = _expression(node)
                yield Found(path, node.lineno, None if expression is None else ast.unparse(expression))


PLACES: Final = tuple(
    place for place in places() if not str(place.path.relative_to(ROOT.parent)).startswith(tuple(OWN))
)


def faults(kind: inspect.Type, place: str, seen: set[type]) -> Iterator[str]:
    """Everything without a bound in a type, and in the types of its fields."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            low = kind.ge is None and kind.gt is None
            high = kind.le is None and kind.lt is None
            if (low or high) and place not in UNBOUNDED:
                yield f"{place}: a number without {'a least' if low else 'a greatest'} value"
        case inspect.StrType() | inspect.BytesType() | inspect.ByteArrayType():
            if kind.max_length is None:
                yield f"{place}: a text or bytes without a greatest length"
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            if kind.max_length is None:
                yield f"{place}: a list without a greatest length"
            yield from faults(kind.item_type, place, seen)
        case inspect.DictType():
            if kind.max_length is None:
                yield f"{place}: a map without a greatest length"
            yield from faults(kind.key_type, place, seen)
            yield from faults(kind.value_type, place, seen)
        case inspect.TupleType():
            for part in kind.item_types:
                yield from faults(part, place, seen)
        case inspect.UnionType():
            for part in kind.types:
                yield from faults(part, place, seen)
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
            if kind.cls not in seen:
                seen.add(kind.cls)
                for field in kind.fields:
                    yield from faults(field.type, f"{kind.cls.__name__}.{field.name}", seen)
        case inspect.EnumType() | inspect.LiteralType() | inspect.BoolType() | inspect.NoneType():
            pass
        case _:
            yield f"{place}: a {type(kind).__name__}, which has no bound"


def unbounded(kind: object, name: str) -> list[str]:
    """The faults of a type."""
    return list(faults(inspect.type_info(kind), name, set()))


@pytest.mark.parametrize(
    "place", PLACES, ids=lambda place: f"{place.path.relative_to(ROOT.parent)}:{place.line}"
)
def test_every_decoded_type_is_bounded(place: Found) -> None:
    """Bytes from outside make no value beyond the bounds of its type."""
    relative = str(place.path.relative_to(ROOT.parent))
    assert place.expression is not None, f"{relative}:{place.line} decodes any type"
    module = importlib.import_module(relative.removesuffix(".py").replace("/", "."))
    kind = eval(place.expression, vars(module))  # noqa: S307 - an expression of the product's own source
    assert not unbounded(kind, place.expression)


def test_the_search_finds_the_borders() -> None:
    """The messages of tasks, nodes, gossip, zygotes, the store and the audit log are among the places."""
    borders = {str(place.path.relative_to(ROOT)) for place in PLACES}
    assert borders >= {
        "wire/codec.py",
        "wire/dcp_frames.py",
        "wire/gossip.py",
        "host/process/zygote_messages.py",
        "host/audit/reader.py",
        "store/schema.py",
        "transport/identity/joining.py",
        "transport/identity/tokens.py",
        "transport/identity/trust.py",
        "transport/tcp/announce.py",
    }


class _Inner(Struct):
    number: int


class _Outer(Struct):
    text: str
    data: Annotated[bytes, Meta(max_length=3)]
    items: tuple[Annotated[int, Meta(ge=0, le=3)], ...]
    table: Annotated[dict[Annotated[str, Meta(max_length=3)], _Inner | None], Meta(max_length=3)]
    share: Annotated[float, Meta(ge=0)]
    anything: object


def test_the_walk_finds_each_missing_bound() -> None:
    """A number, text, list or map without a bound is found wherever it is inside of a type."""
    assert unbounded(_Outer, "") == [
        "_Outer.text: a text or bytes without a greatest length",
        "_Outer.items: a list without a greatest length",
        "_Inner.number: a number without a least value",
        "_Outer.share: a number without a greatest value",
        "_Outer.anything: a CustomType, which has no bound",
    ]


def types_of(kind: type[Struct]) -> dict[str, inspect.Type]:
    """The types of the fields of a message."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return {field.name: field.type for field in described.fields}


@pytest.mark.parametrize(
    ("received", "relayed", "fields"),
    [
        (dcp.PeerHello, gossip.MemberRow, "node name rack address epoch"),
        (dcp.Published, Reference, "object size v_r v_w a_r a_w"),
        (dcp.CreateReplica, Reference, "size v_r v_w"),
        (Buffer, Reference, "size v_r v_w"),
        (Committed, Reference, "v_r v_w"),
        (gossip.MemberRow, NodeRow, "epoch labels"),
        (gossip.Load, NodeRow, "tasks cpus memory_bytes"),
        (dcp.Caller, TaskRow, "principal fingerprint label"),
    ],
)
def test_the_first_receiver_is_as_strict_as_the_next(
    received: type[Struct], relayed: type[Struct], fields: str
) -> None:
    """A value that a node takes over and sends on has one range: the liar is blamed, and not the relay."""
    first, then = types_of(received), types_of(relayed)
    assert {name: first[name] for name in fields.split()} == {name: then[name] for name in fields.split()}


def test_the_longest_tag_fits_its_bound() -> None:
    """The bound of messages is that of the longest word with the greatest number of an owner."""
    longest = f"uid:{2**32 - 2}/{'a' * 32}"
    assert TAG.match(longest)
    assert convert(longest, Tag) == longest
