"""Calls that are no valid message, in the words of their callers: what is wrong, and what to do.

Only ``Session`` uses it, after the codec has refused a call.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from typing import Final

import msgspec

from dios import limits
from dios.wire.messages import AnyCall
from dios.wire.schema_words import BOUND, KIND, bound_in_words, kind_in_words

_STEP: Final = re.compile(r"\[(\d+)\]")
_UNITS: Final = ((str, "characters"), ((bytes, bytearray, memoryview), "bytes"), ((tuple, list), "entries"))
_NEXT: Final = {
    "arguments": "Store long data and give it as an input: `dios run --input LABEL=FILE`, in Python inputs=.",
    "data": "Create the object first, and write its bytes in parts.",
    "groups": "Give the groups that the task needs, or put what it needs into one group.",
    "inputs": "Put several files into one group, or into one archive.",
}
"""The advice for arguments that are too large, where "less of it" would not help."""
_SHOWN: Final = 60


def in_words(error: Exception, call: AnyCall) -> str:
    """Return the reason of a refusal by the codec, whose exception is ``error``."""
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:_SHOWN]!r} is not UTF-8 text, which every text of a call must be"
    problem, mark, place = str(error).removeprefix("malformed request: ").partition(" - at `$")
    if not mark:
        return _unsendable(call) or str(error)
    # The first step leads from the request to the call.
    _, *steps = map(int, _STEP.findall(place))
    name, value = _argument(call, steps)
    return _sentence(problem, name, value)


def _argument(call: object, steps: list[int]) -> tuple[str, object]:
    """Return the name of a part of a call, as its caller knows it, and its value."""
    names: list[str] = []
    value = call
    for step in steps:
        if isinstance(value, msgspec.Struct):
            config = value.__struct_config__
            fields = value.__struct_fields__
            number = step - (config.tag is not None and config.array_like)
            if not 0 <= number < len(fields):
                break
            names.append(fields[number])
            value = getattr(value, fields[number])
        elif isinstance(value, tuple | list) and step < len(value):
            names[-1:] = [f"{names[-1] if names else 'entry'}[{step}]"]
            value = value[step]
        else:
            break
    return ".".join(names) or type(call).__name__.lower(), value


def _sentence(problem: str, name: str, value: object) -> str:
    bound, kind = BOUND.match(problem), KIND.match(problem)
    if bound is not None:
        limit = bound_in_words(bound[2], bound[3])
        unit = next((word for types, word in _UNITS if isinstance(value, types)), "")
        if not unit or not isinstance(value, Sized):
            return f"{name} is {_shown(value)}, and must be {limit}"
        advice = f". {_advice(name)}" if bound[2][0] == "<" else ""
        return f"{name} has {len(value)} {unit}, and must have {limit}{advice}"
    if kind is not None:
        return f"{name} must be {kind_in_words(kind[1])}, and is {_shown(value)}"
    return f"{name} is {_shown(value)}, which is not one of its values"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _advice(name: str) -> str:
    return _NEXT.get(name.rpartition(".")[2].partition("[")[0], "Give less of it.")


def _unsendable(call: AnyCall) -> str:
    """Return which argument is of a type that no message has, or is too large for one; "" if none is."""
    sizes = {}
    for name in call.__struct_fields__:
        try:
            sizes[name] = len(msgspec.msgpack.encode(getattr(call, name)))
        except (TypeError, OverflowError):
            return f"{name} is {_shown(getattr(call, name))}, which cannot be sent to a node"
    if sum(sizes.values()) <= limits.FRAME_BYTES_MAX:
        return ""
    name = max(sizes, key=lambda argument: sizes[argument])
    return (
        f"{name}: these are {sizes[name]:,} bytes, and one call has at most {limits.FRAME_BYTES_MAX:,}. "
        f"{_advice(name)}"
    )
