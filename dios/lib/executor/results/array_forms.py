"""The forms of numpy: arrays, scalars and types.

Numbers lie in buffers. A type of numbers is described as in files of numpy, and an array of Python objects as
their list. Bytes that numpy's own code relies on are looked at: those of booleans and of letters.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias, cast

import numpy as np

from dios.lib.executor.results.forms import KEY_TYPES, Reading, form, refusal, register, require

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.void]]"
"""An array of any type: mypy has no narrower name for it."""
Dtype: TypeAlias = "np.dtype[np.void]"
"""A type of any kind, the same."""
Masked: TypeAlias = "np.ma.MaskedArray[tuple[int, ...], np.dtype[np.void]]"

_NONE: Final = type(None)
_DESCRIPTION: Final = (str, list, tuple)

_SIMPLE_TYPE: Final = re.compile(r"[<>|=][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,4}[a-zA-Zμ]{1,2}\])?")
_DESCRIPTION_DEPTH_MAX: Final = 8
_LETTER_MAX: Final = 0x10FFFF

_TEXT: Final = np.dtypes.StringDType()
"""Text of any length. Other types of this kind differ in what stands for missing text."""

_SUBCLASSES: Final[dict[str, type[Array]]] = {
    kind.__name__: cast("type[Array]", kind)
    for kind in (np.ndarray, np.memmap, np.matrix, np.recarray, np.char.chararray)
}
"""The types of arrays: they differ in their methods alone. One of a file comes with its content in memory."""


# -- types ------------------------------------------------------------------------------------------
def described(dtype: Dtype) -> object:
    """Return the description of a type, which may contain lists and tuples. Refuse one that would change."""
    if dtype.hasobject or dtype.kind == "T":
        raise refusal(f"an array of the type {dtype}")
    if _has_extras(dtype):
        raise refusal(f"an array of the type {dtype}, which has more than names and numbers")
    try:
        return _described(np.dtype(dtype.descr) if dtype.type is np.record else dtype)
    except ValueError:
        raise refusal(
            f"an array of the type {dtype}, whose fields are out of order or overlap "
            "(numpy.lib.recfunctions.repack_fields puts them in order)"
        ) from None


def _has_extras(dtype: Dtype) -> bool:
    """Return True for a type with alignment or metadata, which types are equal without."""
    if dtype.metadata or dtype.isalignedstruct:
        return True
    inner = [field[0] for field in (dtype.fields or {}).values()]
    return any(map(_has_extras, inner if dtype.subdtype is None else [dtype.subdtype[0]]))


@functools.lru_cache(maxsize=256)
def _described(dtype: Dtype) -> object:
    description = np.lib.format.dtype_to_descr(dtype)
    if dtype_of(description) != dtype:
        raise refusal(f"an array of the type {dtype}, which would change on its way")
    return description


def dtype_of(description: object) -> Dtype:
    """Return the type of a description, or raise UntrustedResultError."""
    if not _is_description(description, 0):
        raise refusal("an array of a type that is not made of numbers")
    dtype = np.lib.format.descr_to_dtype(description)  # type: ignore[arg-type]
    if dtype.hasobject:
        raise refusal("an array of Python objects")
    return dtype


def _is_description(description: object, depth: int) -> bool:
    if type(description) is str:
        return bool(_SIMPLE_TYPE.fullmatch(description))
    if type(description) is tuple:
        inner, shape = description if len(description) == 2 else (None, None)
        return _is_shape(shape) and _is_description(inner, depth + 1)
    return (
        type(description) is list
        and depth < _DESCRIPTION_DEPTH_MAX
        and all(_is_field(field, depth) for field in description)
    )


def _is_field(field: object, depth: int) -> bool:
    """Return True for a name, or a title and a name, with a description and perhaps a shape."""
    if type(field) is not tuple or len(field) not in {2, 3}:
        return False
    names = field[0] if type(field[0]) is tuple else (field[0],)
    return (
        {str}.issuperset(map(type, names))
        and _is_description(field[1], depth + 1)
        and (len(field) == 2 or _is_shape(field[2]))
    )


def _is_shape(shape: object) -> bool:
    return type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)


def _dtype_parts(dtype: Dtype) -> Iterable[object]:
    return (described(dtype),) if not dtype.hasobject or dtype.kind != "O" else ("O",)


def _dtype(description: object) -> Dtype:
    return cast("Dtype", np.dtype(object)) if description == "O" else dtype_of(description)


# -- arrays of numbers ------------------------------------------------------------------------------
def flat_array(description: object, data: memoryview) -> Array:
    """Return the array of one dimension in a buffer. Refuse bytes that are no values of its type."""
    dtype = _simple_dtype(description) if type(description) is str else dtype_of(description)
    if not dtype.itemsize:
        raise refusal("an array whose elements have no bytes")
    array = np.frombuffer(data, dtype=dtype) if data.nbytes else np.empty(0, dtype)
    if dtype.kind not in _ANY_BYTES:
        _require_values(array)
    return array


_ANY_BYTES: Final = frozenset("iufcmMS")
"""The kinds of types whose values may have any bytes."""


@functools.lru_cache(maxsize=256)
def _simple_dtype(description: str) -> Dtype:
    return dtype_of(description)


def _require_values(array: Array) -> None:
    if array.dtype.fields is not None:
        for name in array.dtype.names or ():
            _require_values(array[name])
    elif array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise refusal("a boolean that is neither true nor false")
    elif array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).view(array.dtype.str.replace("U", "u")[:2] + "4")
        if codes.max() > _LETTER_MAX:
            raise refusal("a letter that does not exist")


def _array_parts(array: Array) -> Iterable[object]:
    if array.dtype.hasobject:
        return _object_parts(array)
    plain = np.asarray(array)
    if not (plain.flags.c_contiguous or plain.flags.f_contiguous):
        plain = np.ascontiguousarray(plain)
    order = "C" if plain.flags.c_contiguous else "F"
    flat = plain.ravel(order="K").view(np.uint8) if plain.size else np.empty(0, np.uint8)
    return type(array).__name__, described(array.dtype), array.shape, order, flat.data


def _object_parts(array: Array) -> Iterable[object]:
    if array.dtype not in {np.dtype(object), _TEXT}:
        raise refusal(f"an array of the type {array.dtype}")
    order: Literal["F", "C"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    kind = str(array.dtype.char)
    return type(array).__name__, kind, array.shape, order, list(np.asarray(array).ravel(order))


def _array(items: list[object], reading: Reading) -> Array:
    require(items, str, _DESCRIPTION, tuple, str, (memoryview, list))
    name, description, shape, order, data = items
    sizes = cast("tuple[int, ...]", shape)
    if not {int}.issuperset(map(type, sizes)) or min(sizes, default=0) < 0:
        raise refusal("an array of an impossible shape")
    if 0 in sizes:
        reading.charge(math.prod(size for size in sizes if size))
    if type(data) is list:
        array = text_array(data, reading) if description == _TEXT.char else object_array(data)
    else:
        array = flat_array(description, cast("memoryview", data))
    # Another number of elements is refused.
    array = array.reshape(sizes, order="F" if order == "F" else "C")
    cls = _SUBCLASSES[cast("str", name)]
    if cls is np.recarray and array.dtype.names:
        array = array.view(np.dtype((np.record, array.dtype)))
    return array if cls is np.ndarray else array.view(cls)


def object_array(values: Sequence[object]) -> Array:
    """Return the array of one dimension of some objects, without looking at them."""
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return cast("Array", array)


def text_array(values: Sequence[object], reading: Reading) -> Array:
    """Return the array of one dimension of some texts of any lengths."""
    if not {str}.issuperset(map(type, values)):
        raise refusal("an array of text with other objects")
    reading.charge(sum(map(len, cast("Sequence[str]", values))))
    return cast("Array", np.array(values, dtype=_TEXT))


# -- scalars ----------------------------------------------------------------------------------------
def _scalar_parts(value: np.void) -> Iterable[object]:
    return described(value.dtype), value.tobytes()


def _scalar(items: list[object], _reading: Reading) -> object:
    require(items, _DESCRIPTION, bytes)
    description, data = items
    array = flat_array(description, memoryview(cast("bytes", data)))
    if array.size != 1:
        raise refusal("a number of several numbers")
    return array[0]


_SCALAR_TYPES: Final = tuple(
    kind
    for kind in {np.dtype(code).type for code in np.typecodes["All"] if code != "O"} | {np.void}
    if kind not in KEY_TYPES
)


# -- masked arrays ----------------------------------------------------------------------------------
def _masked_parts(array: Masked) -> Iterable[object]:
    mask = None if array.mask is np.ma.nomask else np.ma.getmaskarray(array)
    fill = array._fill_value  # type: ignore[attr-defined]  # noqa: SLF001 - the property computes one and stores it
    return np.ma.getdata(array), mask, None if fill is None else np.asarray(fill), array.hardmask


def _masked(data: Array, mask: Array | None, fill: Array | None, is_hard: bool) -> object:  # noqa: FBT001 - as it stands in the format
    if fill is not None and (
        fill.shape or data.dtype not in {fill.dtype, np.dtype(object)} or fill.dtype == object
    ):
        raise refusal("a masked array with another fill value")
    if mask is not None and (mask.shape != data.shape or mask.dtype != np.ma.make_mask_descr(data.dtype)):
        raise refusal("a mask of another shape or type")
    array: Masked = np.ma.MaskedArray(data, mask=np.ma.nomask if mask is None else mask, hard_mask=is_hard)  # type: ignore[arg-type]
    if fill is not None:
        array.fill_value = fill[()]  # type: ignore[assignment]
    return array


# -- random numbers ---------------------------------------------------------------------------------
_KEY_WORDS: Final = 624
"""The length of the key of a Mersenne Twister."""


def _random_state_parts(value: np.random.RandomState) -> Iterable[object]:
    state = cast("dict[str, object]", value.get_state(legacy=False))
    if state["bit_generator"] != "MT19937":
        raise refusal("a RandomState of another generator than MT19937")
    inner = cast("dict[str, object]", state["state"])
    return inner["key"], inner["pos"], state["has_gauss"], state["gauss"]


def _random_state(
    key: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], place: int, has_gauss: int, gauss: float
) -> np.random.RandomState:
    if key.dtype != np.uint32 or key.shape != (_KEY_WORDS,) or not 0 <= place <= _KEY_WORDS:
        raise refusal("a RandomState of another shape")
    value = np.random.RandomState(0)
    value.set_state(("MT19937", key, place, has_gauss, gauss))
    return value


def _generator_parts(value: np.random.Generator) -> Iterable[object]:
    if type(value.bit_generator) is not np.random.PCG64:
        raise refusal("a random generator of another kind than PCG64")
    state = value.bit_generator.state
    return state["state"]["state"], state["state"]["inc"], state["has_uint32"], state["uinteger"]


def _generator(state: int, increment: int, has_half: int, half: int) -> np.random.Generator:
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": increment},
        "has_uint32": has_half,
        "uinteger": half,
    }
    return np.random.Generator(bits)


register(
    __name__,
    (
        form(64, tuple(_SUBCLASSES.values()), _array_parts, None, _array)._replace(has_buffers=True),
        form(65, _SCALAR_TYPES, _scalar_parts, None, _scalar, is_key=True),
        form(
            66,
            tuple({type(np.dtype(code)) for code in np.typecodes["All"]}),
            _dtype_parts,
            (_DESCRIPTION,),
            _dtype,
            is_key=True,
        ),
        form(
            67,
            np.ma.MaskedArray,
            _masked_parts,
            (np.ndarray, (np.ndarray, _NONE), (np.ndarray, _NONE), bool),
            _masked,
            schema=lambda array: (array.dtype, array.shape, array.hardmask),
        ),
        form(
            69,
            np.random.RandomState,
            _random_state_parts,
            (np.ndarray, int, int, float),
            _random_state,
        ),
        form(70, np.random.Generator, _generator_parts, (int,) * 4, _generator),
        form(68, type(np.ma.masked), lambda _: (), (), lambda: np.ma.masked),
    ),
)
