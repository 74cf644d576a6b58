"""The order of a spawned function and its result, and what the task of it does: the other end of ``spawn``.

Not for: starting the task (``dios.lib.spawn``). An order is the bytes of the task's first input; the result
takes its place there. References travel beside it, as inputs that the order's extension values number.
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
from dios.lib import channels
from dios.lib.channels import End, Receiver, Sender

T = TypeVar("T")

MODULE: Final = "spawned_program"
"""What the task calls a module that the caller ran as its main program."""

PROGRAM: Final = "program"
"""The label of the input that is the task's own program, for the functions that it spawns."""

_SENDER: Final = 1
_RECEIVER: Final = 2
_REFERENCE: Final = 3

_Ends: typing.TypeAlias = "Sender[object] | Receiver[object]"


class SpawnOrder(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Which function of which module to call, and with what."""

    module: str
    function: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


def encode_order(
    module: str, function: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[bytes, list[End[object]], dict[str, Handed]]:
    """An order's bytes, the ends of channels that move with it, and the references to hand over.

    Raises InvalidError for an argument that cannot travel.
    """
    moved: list[End[object]] = []
    handed: dict[str, Handed] = {}

    def hook(value: object) -> object:
        number = len(handed)
        if isinstance(value, End):
            if value.used:
                raise InvalidError(f"{value!r} was used here, and an end that was used cannot move")
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

    order = SpawnOrder(module, function, tuple(args), dict(kwargs))
    try:
        return msgspec.msgpack.encode(order, enc_hook=hook), moved, handed
    except (TypeError, OverflowError) as error:
        raise InvalidError(f"an argument of {function} cannot travel: {error}") from None


def decode_order(data: bytes, node: Node, opened: list[_Ends]) -> SpawnOrder:
    """The order in a task, with the references it was handed; ends of channels are added to ``opened``."""

    def hook(code: int, index: memoryview) -> object:
        reference = node.input(str(int.from_bytes(index, "big")))
        if code == _REFERENCE:
            return reference
        if not isinstance(reference, Stream):
            raise ProtocolError("an end of a channel is no stream")
        end: _Ends = Sender(reference, object) if code == _SENDER else Receiver(reference, object)
        opened.append(end)
        return end

    try:
        return msgspec.msgpack.decode(data, type=SpawnOrder, ext_hook=hook)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"this task's order cannot be read: {error}") from None


def decode_result(data: bytes, returns: type[T]) -> T:
    """What the task left, checked against the type that its function's annotation promises."""
    return channels.decode(data, returns)


def hints_of(function: object) -> dict[str, type]:
    """The types in a function's annotations; nothing for one whose annotations cannot be understood."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
    return cast("dict[str, type]", hints)


_module: str | None = None


def ordered_module() -> str | None:
    """The module that this task was spawned for; None in what was not spawned."""
    return _module


def serve() -> None:
    """Be the task of a spawned function: call it as ordered, and leave its result in the order's place."""
    global _module
    node = connect()
    paper = node.inputs[0]
    opened: list[_Ends] = []
    order = decode_order(paper.read_bytes(), node, opened)
    try:
        _module = order.module
        function = getattr(importlib.import_module(order.module), order.function)
        paper.write_bytes(channels.encode(_call(function, order)))
    finally:
        for end in opened:
            _leave(end)


def _call(function: FunctionType, order: SpawnOrder) -> object:
    """Call a function with an order's arguments, each as the function's annotations have it."""
    hints = hints_of(function)
    code = function.__code__
    # More arguments than names are those of a *args.
    names = [*code.co_varnames[: code.co_argcount], *[""] * len(order.args)]
    args = [
        _as_hinted(value, hints.get(name, object)) for name, value in zip(names, order.args, strict=False)
    ]
    kwargs = {name: _as_hinted(value, hints.get(name, object)) for name, value in order.kwargs.items()}
    return function(*args, **kwargs)


def _leave(end: _Ends) -> None:
    """Close an end that did not move on. One that was never used is taken first, for the other side waits."""
    if end.stream.zombie:
        return
    if not end.used:
        with suppress(DiosError):
            _ = end.stream.writer if isinstance(end, Sender) else end.stream.reader
    end.close()


def _as_hinted(value: object, hint: type[T]) -> object:
    """An argument as the function's annotation has it: a tuple, a record, channels of a type."""
    try:
        return msgspec.convert(value, hint, dec_hook=_typed)
    except msgspec.ValidationError as error:
        raise InvalidError(f"an argument is not as the function has it: {error}") from None
    except TypeError:
        return value


def _typed(kind: type[T], value: object) -> object:
    """An end of a channel for the type that the annotation gives it; other things as they are."""
    if not isinstance(value, End):
        return value
    item, *_ = typing.get_args(kind) or (object,)
    return type(value)(value.stream, item)
