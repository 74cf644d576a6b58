"""Reads a value in the closed format: operations on scalars, within a budget and until a deadline.

A body has scalars in MessagePack, and operations, each a byte and a number. An operation adds parts to the
innermost open form: the next scalars, a whole list of scalars, a value that an earlier operation made, or a
form of as many parts as its number says. A form is built when it has all of its parts. So the order of the
operations is the nesting, a value cannot contain itself, and the work is linear in the number of operations.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.results import builtin_forms
from dios.lib.executor.results.forms import (
    FORM_OF_CODE,
    DecodeTimeoutError,
    copied_bytes,
    form_of_code,
    refusal,
    require,
    require_names,
)

T = TypeVar("T")

Buffers: TypeAlias = "Sequence[memoryview]"

SCALARS: Final = 0
"""The next scalars, as many as the number says."""
OCTETS: Final = 1
"""The same of ``bytes``."""
SHARED: Final = 2
"""A value again: that of the operation with this number."""
BUFFER: Final = 3
"""The next buffer, whose number it has."""
SCALAR_LIST: Final = 4
"""A list of the next scalars."""
SCALAR_TUPLE: Final = 5
"""A tuple of the next scalars."""

LIST: Final = builtin_forms.LIST
TUPLE: Final = builtin_forms.TUPLE

USED_AGAIN: Final = 0x80
"""Added to an operation of one value that a later SHARED names."""

NESTING_MAX: Final = 500
"""Python prints, compares and hashes nested values by recursion."""

ELEMENTS_FREE: Final = 1_000_000
ELEMENTS_PER_BYTE: Final = 16
"""A value has at most as many elements, repeated ones counted each time, as its bytes allow in this way."""

NESTED_LEVELS_MAX: Final = 6
"""The levels of containers in a nested value of MessagePack."""
NESTED_BYTES_MAX: Final = 64 * 1024
"""The bytes of such a value, which is decoded in one step."""

TEXT_PER_ELEMENT: Final = 16
"""The length of text or bytes that counts as an element where they are repeated."""

BUFFERS_MAX: Final = 1_000_000
"""The buffers of a result, each of which takes memory of its own."""

_OPERATIONS_PER_LOOK: Final = 2_048
"""The operations between two looks at the clock."""

_SLOW_CODE_MIN: Final = 40
"""Building a form of this code or above may take long: the clock is looked at before each."""


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The parts of a value, without its buffers."""

    scalars: list[bytes]
    """Arrays of MessagePack."""
    octets: list[bytes]
    kinds: bytes
    """The operations."""
    counts: bytes
    """The number of each operation, 32 bits."""


class Kept(NamedTuple):
    """A value that is used again, its elements and the depth of its nesting."""

    value: object
    elements: int
    height: int


_body: Final = msgspec.msgpack.Decoder(Body)
_plain: Final = msgspec.msgpack.Decoder(
    int
    | float
    | str
    | bool
    | None
    | list[int | float | str | bool | None]
    | dict[str, int | float | str | bool | None]
)
_scalars: Final = msgspec.msgpack.Decoder(list[int | float | str | bool | None])


def read_value(body: memoryview | bytes, buffers: Buffers, deadline: float | None = None) -> object:
    """Return a value that ``writer`` wrote, or that a hostile worker made up.

    Raises UntrustedResultError, which names what is not accepted, and DecodeTimeoutError after ``deadline``,
    a time of ``time.monotonic``.
    """
    return guarded(lambda: Reader(body, buffers, deadline).read())


def read_plain(body: memoryview | bytes) -> object:
    """Return a scalar, or a list or dictionary of scalars; the same errors."""
    try:
        return _plain.decode(body)
    except _PLAIN_ERRORS as error:
        raise _unreadable(error) from None


def read_plain_tuple(body: memoryview | bytes) -> object:
    """Return a tuple of scalars; the same errors."""
    try:
        return tuple(_scalars.decode(body))
    except _PLAIN_ERRORS as error:
        raise _unreadable(error) from None


def read_nested(body: memoryview | bytes) -> object:
    """Return containers of scalars and containers; the same errors.

    The bits of the first byte say at which levels a sequence is a tuple.
    """
    if not 0 < len(body) <= 1 + NESTED_BYTES_MAX or body[0] >> NESTED_LEVELS_MAX:
        raise refusal("a nested value of an impossible size or form")
    try:
        return _nested_decoder(body[0]).decode(body[1:])
    except _PLAIN_ERRORS as error:
        raise _unreadable(error) from None


@functools.lru_cache(maxsize=1 << NESTED_LEVELS_MAX)
def _nested_decoder(tuples: int) -> msgspec.msgpack.Decoder[object]:
    """Return the decoder of values with tuples at some levels and lists at the others."""
    scalar = int | float | str | bool | None
    part: object = scalar
    for level in reversed(range(NESTED_LEVELS_MAX)):
        sequence = tuple[part, ...] if tuples >> level & 1 else list[part]  # type: ignore[valid-type]
        part = scalar | sequence | dict[str, part]  # type: ignore[valid-type]
    return msgspec.msgpack.Decoder(part)


_PLAIN_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _unreadable(error: Exception) -> UntrustedResultError:
    return refusal(f"a value that cannot be built ({type(error).__name__}: {str(error)[:1000]})")


def guarded(read: Callable[[], object]) -> object:
    """Return what ``read`` returns; turn any error into an UntrustedResultError."""
    try:
        return read()
    except (UntrustedResultError, DecodeTimeoutError):
        raise
    except Exception as error:  # noqa: BLE001 - made-up parts can raise anything that their types raise
        raise _unreadable(error) from None


class Reader:
    """Builds the value of a body. Values that are used again stay in ``kept``, by their operations."""

    def __init__(
        self,
        body: memoryview | bytes,
        buffers: Buffers,
        deadline: float | None = None,
        *,
        is_comparison: bool = False,
    ) -> None:
        self.is_comparison = is_comparison
        decoded = _body.decode(body)
        self._kinds: Final = decoded.kinds
        self._counts: Final = memoryview(decoded.counts).cast("I")
        if len(self._kinds) != len(self._counts):
            raise refusal("operations without their numbers")
        self._chunks: Final = iter(decoded.scalars)
        self._pool: list[object] = []
        self._at = 0
        self._octets: Final = decoded.octets
        self._next_octets = 0
        self._buffers: Final = buffers
        self._next_buffer = 0
        self._deadline: Final = deadline
        self._elements_max: Final = elements_max(len(body) + (sum(map(len, buffers)) if buffers else 0))
        self._elements = 0
        self._charged = 0
        self._remembered: Final[dict[int, tuple[object, object, object]]] = {}
        self.kept: Final[dict[int, Kept]] = {}

    def charge(self, elements: int) -> None:
        """Count elements that no bytes of the result pay for. Raise UntrustedResultError over the budget."""
        self._charged += elements
        if elements < 0 or self._charged > self._elements_max:
            raise refusal(f"more than {self._elements_max:,} elements, too many for its size")

    def check_time(self) -> None:
        """Raise DecodeTimeoutError after the deadline."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DecodeTimeoutError("the result is not decoded yet: ask for it again, with a longer timeout")

    def remember(self, function: Callable[[tuple[str, ...]], T], names: object) -> T:
        """Return ``function(names)`` for a tuple of text, which is called once for a result."""
        known = self._remembered.get(id(names))
        if known is None:
            # The entry keeps the tuple, so that its identity stays.
            known = self._remembered[id(names)] = (names, function, function(require_names(names)))
        if known[1] is not function:
            raise refusal("a class in the place of another")
        return cast("T", known[2])

    def read(self) -> object:
        """Return the value."""
        # Of the innermost open form: its parts, their number, its code, its operation if the value is used
        # again, the elements before it, and the depth of the nesting in its parts.
        items: list[object] = []
        wanted, code, place, before, height = 1, LIST, -1, 0, 0
        outer: list[tuple[list[object], int, int, int, int, int]] = []
        for operation, (kind, count) in enumerate(zip(self._kinds, self._counts, strict=True)):
            if not operation % _OPERATIONS_PER_LOOK:
                self.check_time()
            plain = kind & ~USED_AGAIN
            if plain > SCALAR_TUPLE:
                outer.append((items, wanted, code, place, before, height))
                if len(outer) > NESTING_MAX:
                    raise refusal(f"values that are nested deeper than {NESTING_MAX}")
                items, wanted, code, height = [], count, plain, 0
                place, before = -1 if kind == plain else operation, self._elements
                self._elements += 1
            elif kind == SCALARS:
                items += self._scalars(count)
                self._elements += count
            else:
                inner = self._add(items, kind, count, code, operation, len(outer))
                height = max(inner, height)
            while len(items) >= wanted and outer:
                value = self._built(code, items, wanted)
                height += 1
                if place >= 0:
                    self.kept[place] = Kept(value, self._elements - before, height)
                inner = height
                items, wanted, code, place, before, height = outer.pop()
                items.append(value)
                height = max(height, inner)
        if outer or len(items) != 1 or self._next_buffer != len(self._buffers):
            raise refusal("parts of no value")
        return items[0]

    def _built(self, code: int, items: list[object], wanted: int) -> object:
        if len(items) > wanted:
            raise refusal("more parts than a value has")
        if code == LIST:
            return items
        if code == TUPLE:
            return tuple(items)
        row = FORM_OF_CODE.get(code) or form_of_code(code)
        if code >= _SLOW_CODE_MIN:
            self.check_time()
        if row.has_copies:
            self.charge(sum(map(copied_bytes, items)))
        if row.parts is None:
            return row.build(items, self)
        if [*map(type, items)] != row.exact:
            require(items, *row.parts)
        return row.build(*items)

    def _add(
        self, items: list[object], kind: int, count: int, outer_code: int, operation: int, depth: int
    ) -> int:
        """Add a part to the innermost form, and return the depth of the nesting in it."""
        code = kind & ~USED_AGAIN
        height = 0
        if kind == SHARED:
            kept = self.kept[count]
            items.append(kept.value)
            self._elements += kept.elements
            self.charge(kept.elements)
            if depth + kept.height > NESTING_MAX:
                raise refusal(f"values that are nested deeper than {NESTING_MAX}")
            return kept.height
        if code == SCALAR_LIST or code == SCALAR_TUPLE:  # noqa: PLR1714, SIM109 - a set costs more than both
            scalars = self._scalars(count)
            items.append(scalars if code == SCALAR_LIST else tuple(scalars))
            self._elements += count + 1
            height = 1
        elif code == SCALARS:
            items += self._scalars(count)
            self._elements += count
        elif code == OCTETS:
            stop = self._next_octets + count
            if stop > len(self._octets):
                raise refusal("fewer bytes than it says")
            items += self._octets[self._next_octets : stop]
            self._next_octets = stop
            self._elements += count
        elif code == BUFFER and count == self._next_buffer and form_of_code(outer_code).has_buffers:
            items.append(self._buffers[count])
            self._next_buffer += 1
        else:
            raise refusal("a buffer in the place of a value")
        if kind != code:
            self._keep_last(operation, items, code, count)
        return height

    def _keep_last(self, operation: int, items: list[object], code: int, count: int) -> None:
        """Keep the part that an operation without parts of its own has added."""
        value = items[-1]
        if code in {SCALAR_LIST, SCALAR_TUPLE}:
            self.kept[operation] = Kept(value, count + 1, 1)
        elif code in {SCALARS, OCTETS} and count == 1:
            length = len(value) if isinstance(value, str | bytes) else 0
            self.kept[operation] = Kept(value, 1 + length // TEXT_PER_ELEMENT, 0)
        else:
            raise refusal("parts that are used again as if they were a value")

    def _scalars(self, count: int) -> list[object]:
        """Return the next scalars."""
        start = self._at
        self._at += count
        if self._at <= len(self._pool):
            return self._pool[start : self._at]
        scalars = self._pool[start:]
        while len(scalars) < count:
            self.check_time()
            chunk = next(self._chunks, None)
            if chunk is None:
                raise refusal("fewer scalars than it says")
            self._pool = cast("list[object]", _scalars.decode(chunk))
            self._at = count - len(scalars)
            scalars += self._pool[: self._at]
        return scalars


def elements_max(size: int) -> int:
    """Return the elements that a result of ``size`` bytes may have."""
    return ELEMENTS_FREE + ELEMENTS_PER_BYTE * size
