"""The order and the result of a spawned function, and the code of its task: the other end of ``spawn``.

An order is the bytes of the task's first input; the result replaces it. References are inputs of the task,
which extension values in the order number. ``dios.lib.spawn`` starts the task.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Final, TypeVar, cast

import msgspec

from dios.client.ops.attributes import Handed
from dios.client.sync.node import Node, Reference, Stream, connect
from dios.errors import DiosError, InvalidError, ProtocolError
from dios.lib.channels import End, Receiver, Sender
from dios.lib.exact_values import as_annotated, built, decode_exact, encode_exact, exact, require_same

T = TypeVar("T")

MODULE: Final = "spawned_program"
"""The task's name for a module that the caller ran as its main program."""

PROGRAM: Final = "program"
"""The label of the input that is the task's own program, for the functions that it spawns."""

_SENDER: Final = 1
_RECEIVER: Final = 2
_REFERENCE: Final = 3

_Ends: typing.TypeAlias = "Sender[object] | Receiver[object]"


class SpawnOrder(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The module and name of the function, and its arguments."""

    module: str
    function: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


def encode_order(
    module: str, function: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[bytes, list[End[object]], dict[str, Handed]]:
    """Return an order's bytes, the ends of channels that move with it, and the references to delegate.

    Raises InvalidError for an argument that cannot be sent.
    """
    moved: list[End[object]] = []
    handed: dict[str, Handed] = {}

    def hook(value: object) -> object:
        number = len(handed)
        if isinstance(value, End):
            if value.used:
                raise InvalidError(f"cannot move {value!r}: this end of the channel was used here")
            sends = isinstance(value, Sender)
            item = value.stream.restrict("write" if sends else "read", "delegate")
            code = _SENDER if sends else _RECEIVER
            moved.append(value)
        elif isinstance(value, Handed | Reference):
            item = value if isinstance(value, Handed) else value.restrict(value.permissions)
            code = _REFERENCE
        else:
            raise InvalidError(f"a {type(value).__name__} cannot be an argument of another task")
        handed[str(number)] = item
        return msgspec.msgpack.Ext(code, number.to_bytes(2, "big"))

    try:
        order = SpawnOrder(
            module,
            function,
            tuple(exact(argument, hook) for argument in args),
            {name: exact(argument, hook) for name, argument in kwargs.items()},
        )
        return msgspec.msgpack.encode(order, enc_hook=hook), moved, handed
    except (TypeError, OverflowError) as error:
        raise InvalidError(f"an argument of {function} cannot travel: {error}") from None


def decode_order(data: bytes, node: Node, opened: list[_Ends]) -> SpawnOrder:
    """Return the order in a task, with its references; ends of channels are added to ``opened``."""

    def hook(code: int, index: memoryview) -> object:
        if code not in {_SENDER, _RECEIVER, _REFERENCE}:
            return built(code, index, hook)
        reference = node.input(str(int.from_bytes(index, "big")))
        if code == _REFERENCE:
            return reference
        if not isinstance(reference, Stream):
            raise ProtocolError("the end of a channel is not a stream")
        end: _Ends = Sender(reference, object) if code == _SENDER else Receiver(reference, object)
        opened.append(end)
        return end

    try:
        return msgspec.msgpack.decode(data, type=SpawnOrder, ext_hook=hook)
    except (msgspec.DecodeError, TypeError, ValueError, ArithmeticError) as error:
        raise ProtocolError(f"this task's order cannot be read: {error}") from None


def decode_result(data: bytes, returns: type[T]) -> T:
    """Return the task's result, checked against the type in its function's annotation."""
    return as_annotated(decode_exact(data), returns)


def hints_of(function: object) -> dict[str, type]:
    """Return the types in a function's annotations; none if the annotations cannot be resolved."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
    return cast("dict[str, type]", hints)


def argument_names(function: FunctionType, count: int) -> list[str]:
    """Return the names of ``count`` arguments, empty for those that belong to ``*args``."""
    code = function.__code__
    return [*code.co_varnames[: code.co_argcount], *[""] * count][:count]


_module: str | None = None


def ordered_module() -> str | None:
    """Return the module for which this task was spawned; None in other tasks."""
    return _module


def serve() -> None:
    """Run as the task of a spawned function: call it as ordered, and replace the order by its result."""
    global _module
    node = connect()
    paper = node.inputs[0]
    opened: list[_Ends] = []
    order = decode_order(paper.read_bytes(), node, opened)
    try:
        _module = order.module
        function = getattr(importlib.import_module(order.module), order.function)
        value = _call(function, order)
        returns = hints_of(function).get("return", object)
        require_same(value, returns, f"the result of {order.function}, whose annotation is {returns},")
        paper.write_bytes(_encoded_result(value))
    finally:
        for end in opened:
            _leave(end)


def _encoded_result(value: object) -> bytes:
    try:
        return encode_exact(value)
    except (TypeError, OverflowError) as error:
        raise InvalidError(f"cannot send this {type(value).__name__} to another task: {error}") from None


def _call(function: FunctionType, order: SpawnOrder) -> object:
    """Call a function with an order's arguments, converted as the function's annotations say."""
    hints = hints_of(function)
    names = argument_names(function, len(order.args))
    args = [_as_hinted(value, hints.get(name, object)) for name, value in zip(names, order.args, strict=True)]
    kwargs = {name: _as_hinted(value, hints.get(name, object)) for name, value in order.kwargs.items()}
    return function(*args, **kwargs)


def _leave(end: _Ends) -> None:
    """Close an end that was not moved on. An unused one is attached first, because the other side waits."""
    if end.stream.zombie:
        return
    if not end.used:
        with suppress(DiosError):
            _ = end.stream.writer if isinstance(end, Sender) else end.stream.reader
    end.close()


def _as_hinted(value: object, hint: type[T]) -> object:
    """Return an argument as the function's annotation says: a tuple, a record, channels of a type."""
    try:
        return msgspec.convert(value, hint, dec_hook=_typed)
    except msgspec.ValidationError as error:
        raise InvalidError(f"an argument does not match the function's annotation: {error}") from None
    except TypeError:
        return value


def _typed(kind: type[T], value: object) -> object:
    """Return an end of a channel with the type of the annotation; other values unchanged."""
    if not isinstance(value, End):
        return value
    item, *_ = typing.get_args(kind) or (object,)
    return type(value)(value.stream, item)
