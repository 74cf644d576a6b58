"""The forms of messages and records that earlier releases read.

Their structures have fewer fields at the end, and they refuse a surplus one in many places.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import astuple, replace

from dios.wire.scheduling import KeptRoom, Occupant, Submission
from dios.wire.types import Cause

_ROWS: Final = (Submission, Occupant, KeptRoom)


def earlier_form(value: object) -> object:
    """Return a value as arrays without the fields at their ends that have their defaults.

    In rows of a queue no run has a bound of its time, and a task that was ended for it was killed, as far as
    earlier releases know. A call with such a bound keeps it, so that they refuse the call.
    """
    if isinstance(value, Struct):
        if isinstance(value, _ROWS):
            value = replace(value, work=replace(value.work, time_ms=0))
        fields: list[object] = list(astuple(value))
        for default in reversed(value.__struct_defaults__):
            if fields[-1] != default:
                break
            fields.pop()
        tag = value.__struct_config__.tag
        return [*(() if tag is None else (tag,)), *map(earlier_form, fields)]
    if isinstance(value, tuple | list):
        return [earlier_form(element) for element in value]
    return Cause.KILLED if value is Cause.TIME else value
