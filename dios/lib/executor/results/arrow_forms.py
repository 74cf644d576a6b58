"""The forms of pyarrow: arrays as their type, the lengths of their parts, and their buffers.

The types are those whose length is bounded by their buffers. A length that no buffer bounds, such as that of
a column of nulls, counts as elements. There is no compression, and no type of the program's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, cast

import pyarrow as pa
import pyarrow.types as pt

from dios.lib.executor.frames import Function
from dios.lib.executor.results.forms import Reading, form, refusal, register, require

_NONE: Final = type(None)

_SIMPLE: Final = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16()),
        *(pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.month_day_nano_interval()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    )
}
_DECIMALS: Final = {
    name: getattr(pa, name)
    for name in ("decimal32", "decimal64", "decimal128", "decimal256")
    if hasattr(pa, name)
}
_TYPE_DEPTH_MAX: Final = 64
"""Types nest as deeply; pyarrow looks at them by recursion."""


# -- types ------------------------------------------------------------------------------------------
def described_type(kind: pa.DataType, depth: int = 0) -> tuple[object, ...]:
    """Return the description of a type, or raise UntrustedResultError for one without."""
    if depth > _TYPE_DEPTH_MAX:
        raise refusal(f"a type of Arrow that is nested deeper than {_TYPE_DEPTH_MAX}")
    name = str(kind)
    if name in _SIMPLE:
        return (name,)
    if pt.is_timestamp(kind):
        return "timestamp", kind.unit, kind.tz
    if pt.is_decimal(kind):
        return f"decimal{kind.bit_width}", kind.precision, kind.scale
    if pt.is_fixed_size_binary(kind):
        return "bytes", kind.byte_width
    if pt.is_dictionary(kind):
        parts = (described_type(part, depth + 1) for part in (kind.index_type, kind.value_type))
        return "dictionary", *parts, bool(kind.ordered)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return "list" if pt.is_list(kind) else "large_list", described_field(kind.value_field, depth + 1)
    if pt.is_fixed_size_list(kind):
        return "fixed_list", described_field(kind.value_field, depth + 1), kind.list_size
    if pt.is_map(kind):
        fields = (described_field(field, depth + 1) for field in (kind.key_field, kind.item_field))
        return "map", *fields, bool(kind.keys_sorted)
    if pt.is_struct(kind):
        return "struct", *(described_field(field, depth + 1) for field in kind)
    raise refusal(f"an array of the type {kind} of Arrow; convert it to another type")


def described_field(field: pa.Field, depth: int = 0) -> tuple[object, ...]:
    """Return the description of a field."""
    metadata = None if field.metadata is None else tuple(field.metadata.items())
    return field.name, described_type(field.type, depth), field.nullable, metadata


def type_of(description: object, depth: int = 0) -> pa.DataType:
    """Return the type of a description, or raise UntrustedResultError."""
    if depth > _TYPE_DEPTH_MAX:
        raise refusal(f"a type of Arrow that is nested deeper than {_TYPE_DEPTH_MAX}")
    if type(description) is not tuple or not description or type(description[0]) is not str:
        raise refusal("a type of Arrow without a name")
    name, *parts = description
    if name in _SIMPLE and not parts:
        return _SIMPLE[name]
    if name in _DECIMALS:
        require(parts, int, int)
        return _DECIMALS[name](*parts)
    if name == "struct":
        return pa.struct([field_of(part, depth + 1) for part in parts])
    maker, kinds = _PARAMETERS[name]
    require(parts, *(_KINDS[kind] for kind in kinds))
    inner = {"type": type_of, "field": field_of}
    return maker(
        *(
            inner[kind](part, depth + 1) if kind in inner else part
            for kind, part in zip(kinds, parts, strict=True)
        )
    )


def field_of(description: object, depth: int = 0) -> pa.Field:
    """Return the field of a description, or raise UntrustedResultError."""
    if type(description) is not tuple:
        raise refusal("a field of Arrow without a description")
    require(description, str, tuple, bool, (tuple, _NONE))
    name, kind, nullable, metadata = description
    return pa.field(name, type_of(kind, depth), nullable, _metadata(metadata))


def _metadata(items: object) -> dict[bytes, bytes] | None:
    if items is None:
        return None
    pairs = cast("tuple[tuple[bytes, bytes], ...]", items)
    for pair in pairs:
        if type(pair) is not tuple:
            raise refusal("metadata of Arrow that is no pairs")
        require(pair, bytes, bytes)
    return dict(pairs)


_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    **{kind.__name__: kind for kind in (str, int, bool)},
    "text or none": (str, _NONE),
    "type": tuple,
    "field": tuple,
}
_PARAMETERS: Final[dict[str, tuple[Function[pa.DataType], tuple[str, ...]]]] = {
    "timestamp": (pa.timestamp, ("str", "text or none")),
    "bytes": (pa.binary, ("int",)),
    "dictionary": (pa.dictionary, ("type", "type", "bool")),
    "list": (pa.list_, ("field",)),
    "large_list": (pa.large_list, ("field",)),
    "fixed_list": (pa.list_, ("field", "int")),
    "map": (pa.map_, ("field", "field", "bool")),
}
"""The types with parameters: the function that makes one, and the kinds of its parameters."""


# -- arrays -----------------------------------------------------------------------------------------
def _array_parts(array: pa.Array) -> Iterable[object]:
    lengths: list[int] = []
    buffers: list[memoryview | None] = []
    _add_parts(_compact(array), lengths, buffers)
    return described_type(array.type), tuple(lengths), *buffers


def _compact(array: pa.Array) -> pa.Array:
    """Return an array without the parts of its buffers that it does not use."""
    described_type(array.type)
    if not _is_part(array):
        return array
    return pa.ipc.open_stream(_written(array)).read_all().column(0).chunk(0)


def _is_part(array: pa.Array) -> bool:
    """Return True if an array, or a part of it, uses a part of its buffers."""
    if array.offset or array.get_total_buffer_size() > 2 * array.nbytes + _SPARE_BYTES:
        return True
    return any(map(_is_part, _inner(array)))


_SPARE_BYTES: Final = 4096


def _written(array: pa.Array) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], schema=pa.schema([pa.field("", array.type)]))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _inner(array: pa.Array) -> list[pa.Array]:
    """Return the arrays in an array."""
    kind = array.type
    if pt.is_dictionary(kind):
        return [array.indices, array.dictionary]
    if pt.is_struct(kind):
        return [array.field(number) for number in range(kind.num_fields)]
    return [array.values] if kind.num_fields else []


def _add_parts(array: pa.Array, lengths: list[int], buffers: list[memoryview | None]) -> None:
    lengths.append(len(array))
    is_dictionary = pt.is_dictionary(array.type)
    own = array.indices if is_dictionary else array
    buffers += [
        None if part is None else memoryview(part) for part in own.buffers()[: array.type.num_buffers]
    ]
    for inner in _inner(array)[is_dictionary:]:
        _add_parts(inner, lengths, buffers)


def _array(items: list[object], reading: Reading) -> pa.Array:
    description, lengths, *buffers = items
    (array,) = _arrays([type_of(description)], lengths, buffers, reading)
    array.validate(full=True)
    reading.check_time()
    return array


def _arrays(
    types: list[pa.DataType], lengths: object, buffers: list[object], reading: Reading
) -> list[pa.Array]:
    """Return arrays of some types from the lengths of all their parts and their buffers."""
    numbers = lengths if type(lengths) is tuple else ()
    if not {int}.issuperset(map(type, numbers)) or not {memoryview, _NONE}.issuperset(map(type, buffers)):
        raise refusal("an array of Arrow without lengths or buffers")
    rest, parts = iter(numbers), iter(cast("list[memoryview | None]", buffers))
    arrays = [_built(kind, rest, parts, reading) for kind in types]
    if next(rest, None) is not None or next(parts, reading) is not reading:
        raise refusal("an array of Arrow with more parts than its type has")
    return arrays


def _built(
    kind: pa.DataType, lengths: Iterator[int], parts: Iterator[memoryview | None], reading: Reading
) -> pa.Array:
    length = next(lengths)
    buffers = [
        None if part is None else pa.py_buffer(part)
        for part in (next(parts) for _ in range(kind.num_buffers))
    ]
    if _is_boundless(kind):
        reading.charge(length)
    if pt.is_dictionary(kind):
        return pa.DictionaryArray.from_buffers(
            kind, length, buffers, _built(kind.value_type, lengths, parts, reading)
        )
    children = [_built(kind.field(number).type, lengths, parts, reading) for number in range(kind.num_fields)]
    if pt.is_map(kind) and (children[0].null_count or children[0].field(0).null_count):
        # pyarrow ends the process for such a map.
        raise refusal("a map of Arrow without some of its keys")
    return pa.Array.from_buffers(kind, length, buffers, children=children)


def _is_boundless(kind: pa.DataType) -> bool:
    """Return True for a type whose elements need no bytes."""
    return (
        pt.is_null(kind)
        or (pt.is_struct(kind) and not kind.num_fields)
        or (pt.is_fixed_size_list(kind) and not kind.list_size)
        or (pt.is_fixed_size_binary(kind) and not pt.is_decimal(kind) and not kind.byte_width)
    )


def _chunked(description: object, chunks: list[pa.Array]) -> pa.ChunkedArray:
    require(chunks, *[_ARRAY_TYPES] * len(chunks))
    return pa.chunked_array(chunks, type_of(description))


def _types(base: type) -> tuple[type, ...]:
    return tuple(kind for kind in vars(pa.lib).values() if isinstance(kind, type) and issubclass(kind, base))


_ARRAY_TYPES: Final = _types(pa.Array)


# -- tables -----------------------------------------------------------------------------------------
def _schema_parts(schema: pa.Schema) -> tuple[object, ...]:
    metadata = None if schema.metadata is None else tuple(schema.metadata.items())
    return tuple(map(described_field, schema)), metadata


def _schema(fields: tuple[object, ...], metadata: tuple[object, ...] | None) -> pa.Schema:
    return pa.schema(list(map(field_of, fields)), _metadata(metadata))


def _batches_parts(table: pa.Table | pa.RecordBatch) -> Iterable[object]:
    """Return the parts of a table whose columns have chunks of the same lengths."""
    if table.num_rows and not table.num_columns:
        raise refusal("a table with rows and without columns")
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    lengths: list[int] = []
    buffers: list[memoryview | None] = []
    for column in chain.from_iterable(batch.columns for batch in batches):
        _add_parts(_compact(column), lengths, buffers)
    return table.schema, len(batches), tuple(lengths), *buffers


def _batches(items: list[object], reading: Reading) -> list[pa.RecordBatch]:
    schema, count, *_ = items
    require(items[:2], pa.Schema, int)
    types = [field.type for field in schema]  # type: ignore[attr-defined]
    reading.charge(cast("int", count) * max(1, len(types)))
    arrays = _arrays(types * cast("int", count), items[2], items[3:], reading)
    batches = []
    for start in range(0, len(arrays), len(types) or 1):
        batches.append(pa.RecordBatch.from_arrays(arrays[start : start + len(types)], schema=schema))
        batches[-1].validate(full=True)
        reading.check_time()
    return batches


def _batch(items: list[object], reading: Reading) -> pa.RecordBatch:
    schema = items[0]
    batches = _batches(items, reading)
    if len(batches) > 1 or (not batches and len(cast("pa.Schema", schema))):
        raise refusal("several batches in the place of one")
    return batches[0] if batches else pa.RecordBatch.from_arrays([], schema=schema)


def _table(items: list[object], reading: Reading) -> pa.Table:
    return pa.Table.from_batches(_batches(items, reading), schema=items[0])


def _table_parts(table: pa.Table) -> Iterable[object]:
    lengths = {tuple(len(chunk) for chunk in column.chunks) for column in table.columns}
    return _batches_parts(table) if len(lengths) <= 1 else (table.schema, list(table.columns))


def _any_table(items: list[object], reading: Reading) -> pa.Table:
    """Return a table by its batches, or by columns whose chunks have other lengths."""
    if len(items) != 2 or type(items[1]) is not list:
        return _table(items, reading)
    schema, columns = cast("tuple[pa.Schema, list[pa.ChunkedArray]]", items)
    require([schema, *columns], pa.Schema, *[pa.ChunkedArray] * len(columns))
    table = pa.Table.from_arrays(columns, schema=schema)
    table.validate()
    return table


register(
    __name__,
    (
        form(
            76, _ARRAY_TYPES, _array_parts, None, _array, schema=lambda array: (array.type, len(array))
        )._replace(has_buffers=True),
        form(
            77,
            pa.ChunkedArray,
            lambda value: (described_type(value.type), value.chunks),
            (tuple, list),
            _chunked,
        ),
        form(
            78,
            pa.RecordBatch,
            _batches_parts,
            None,
            _batch,
            schema=lambda batch: (batch.schema, batch.num_rows),
        )._replace(has_buffers=True),
        form(
            79, pa.Table, _table_parts, None, _any_table, schema=lambda table: (table.schema, table.num_rows)
        )._replace(has_buffers=True),
        form(80, pa.Schema, _schema_parts, (tuple, (tuple, _NONE)), _schema),
        form(81, _types(pa.DataType), lambda value: (described_type(value),), (tuple,), type_of),
        form(82, pa.Field, lambda value: (described_field(value),), (tuple,), field_of),
        form(
            83,
            _types(pa.Scalar),
            lambda value: (pa.array([value], value.type),),
            (_ARRAY_TYPES,),
            lambda array: array[0],
        ),
    ),
)
