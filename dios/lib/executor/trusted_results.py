"""The types that a result may contain, for a caller who trusts no worker.

A worker pickles a result with ``ResultPickler``. The pickle names only functions of this module, and types of
the standard library that run no code of others when they are built. The caller loads the pickle with
``load``, which refuses all other names. Dataclasses, enumerations, named tuples and exceptions of the caller
are rebuilt without running code of their classes, and their modules are never imported.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import io
import ipaddress
import pathlib
import pickle
import re
import sys
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.frames import Function
from dios.lib.executor.pickle_check import check

T = TypeVar("T")

Buffers: TypeAlias = "Sequence[bytes | memoryview]"
Decode: TypeAlias = Callable[[object], object]

_HERE: Final = __name__


def _refused(content: str) -> UntrustedResultError:
    return UntrustedResultError(
        f"the result contains {content}, which a caller does not accept from a sandboxed worker. Return "
        "built-in"
        " types, permit the class with dios.allow(cls), or make the executor with trust=True if you trust"
        " the code that ran"
    )


# -- what the caller permits ------------------------------------------------------------------------
_allowed: Final[dict[tuple[str, str], tuple[type, Decode | None]]] = {}


def allow(cls: type, *, decode: Decode | None = None) -> None:
    """Accept objects of ``cls`` in results of executors, in this process.

    ``decode`` gets the object's state (what ``__getstate__`` returns, usually its ``__dict__``) and returns
    the object; a hostile worker chooses the state, so check it there. Without ``decode`` the object gets the
    state as pickle would give it, which runs the ``__new__``, ``__setstate__`` and ``__reduce__`` targets of
    the class.
    """
    _allowed[cls.__module__, cls.__qualname__] = cls, decode


# -- the worker's side ------------------------------------------------------------------------------
class ResultPickler(pickle.Pickler):
    """Takes the value of a result apart into what ``load`` accepts."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)

    def reducer_override(self, value: object) -> object:  # type: ignore[override]
        """Return how to build ``value``, or NotImplemented for what pickle does itself."""
        kind = type(value)
        simple = _SIMPLE_REDUCERS.get(kind)
        if simple is not None:
            return simple(value)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            return NotImplemented
        package = kind.__module__.partition(".")[0]
        if package in _PACKAGE_REDUCERS:
            reduced = _PACKAGE_REDUCERS[package](value)
            if reduced is not None:
                return reduced
        return _reduced_object(value, kind)


def _arguments(error: BaseException) -> tuple[object, ...]:
    """Return the arguments that make an exception again; ``args`` of an OSError lacks the file names."""
    if not isinstance(error, OSError) or error.filename is None:
        return error.args
    names = (error.filename,) if error.filename2 is None else (error.filename, None, error.filename2)
    return error.errno, error.strerror, *names


def _reduced_object(value: object, kind: type) -> object:
    place = kind.__module__, kind.__qualname__
    if isinstance(value, enum.Enum):
        return _enum_member, (*place, value.name)
    if isinstance(value, BaseException):
        state = dict(vars(value))
        return _exception, (*place, _arguments(value), state, value.__cause__, value.__suppress_context__)
    if isinstance(value, tuple) and kind is not tuple and hasattr(kind, "_fields"):
        return _named_tuple, (*place, tuple(value))
    if dataclasses.is_dataclass(kind) and not isinstance(value, tuple | list | dict | set | frozenset):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
        return _dataclass, (*place, fields)
    own = {name for base in kind.__mro__[:-1] for name in vars(base)}
    plain = own.isdisjoint({"__reduce__", "__reduce_ex__"})
    if plain and kind.__module__ != "builtins" and kind not in _STANDARD_TYPES:
        reduced = value.__reduce_ex__(5)
        if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__ and reduced[1] == (kind,):  # type: ignore[attr-defined]
            return _object, (*place, reduced[2])
    return NotImplemented


def _reduced_array(value: object) -> object:
    import numpy as np  # noqa: PLC0415 - only where the program uses it

    # A file that is mapped in the worker is not one of the caller, who gets its content as an array.
    plain = type(value) in {np.ndarray, np.memmap}
    if plain and isinstance(value, np.ndarray) and not value.dtype.hasobject:
        if not (value.flags.c_contiguous or value.flags.f_contiguous):
            value = np.ascontiguousarray(value)
        order = "C" if value.flags.c_contiguous else "F"
        flat = value.ravel(order="K").view(np.uint8) if value.size else np.empty(0, np.uint8)
        description = np.lib.format.dtype_to_descr(value.dtype)
        return _array, (description, value.shape, order, pickle.PickleBuffer(flat))  # type: ignore[arg-type]
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return _scalar, (np.lib.format.dtype_to_descr(value.dtype), value.tobytes())
    if isinstance(value, np.dtype) and not value.hasobject:
        return _dtype, (np.lib.format.dtype_to_descr(value),)
    return None


def _reduced_arrow(value: object) -> object:
    import pyarrow as pa  # noqa: PLC0415 - the same

    if not isinstance(value, pa.Table | pa.RecordBatch):
        return None
    table = value if isinstance(value, pa.Table) else pa.Table.from_batches([value])
    return _arrow_table, (_arrow_bytes(table),)


def _reduced_polars(value: object) -> object:
    import polars as pl  # noqa: PLC0415 - the same

    if isinstance(value, pl.DataFrame):
        return _polars_frame, (_arrow_bytes(value.to_arrow()),)
    if isinstance(value, pl.Series):
        return _polars_series, (_arrow_bytes(value.to_frame().to_arrow()),)
    return None


def _reduced_pandas(value: object) -> object:
    import pandas as pd  # noqa: PLC0415 - the same

    try:
        import pyarrow as pa  # noqa: PLC0415 - the same
    except ImportError:
        return None
    if isinstance(value, pd.DataFrame):
        return _pandas_frame, (_arrow_bytes(pa.Table.from_pandas(value)),)
    if isinstance(value, pd.Series):
        name = value.name
        return _pandas_series, (_arrow_bytes(pa.Table.from_pandas(value.to_frame("values"))), name)
    return None


def _arrow_bytes(table: object) -> pickle.PickleBuffer:
    import pyarrow as pa  # noqa: PLC0415 - the same

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:  # type: ignore[attr-defined]
        writer.write_table(table)
    return pickle.PickleBuffer(sink.getvalue())


_PACKAGE_REDUCERS: Final[dict[str, Callable[[object], object]]] = {
    "numpy": _reduced_array,
    "pyarrow": _reduced_arrow,
    "polars": _reduced_polars,
    "pandas": _reduced_pandas,
}

_SIMPLE_REDUCERS: Final[dict[type, Function[object]]] = {
    decimal.Decimal: lambda value: (_decimal, (str(value),)),
    fractions.Fraction: lambda value: (_fraction, (value.numerator, value.denominator)),
    uuid.UUID: lambda value: (_uuid, (value.bytes,)),
    collections.Counter: lambda value: (_counter, (dict(value),)),
    collections.OrderedDict: lambda value: (_ordered_dict, (list(value.items()),)),
    collections.deque: lambda value: (_deque, (list(value), value.maxlen)),
    collections.defaultdict: lambda value: (_default_dict, (_factory_name(value), dict(value))),
    zoneinfo.ZoneInfo: lambda value: (_zone, (value.key,)),
    types.SimpleNamespace: lambda value: (_namespace, (dict(vars(value)),)),
    **{
        kind: lambda value: (_path, (type(value).__name__, str(value)))
        for kind in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
    },
    **{
        kind: lambda value: (_address, (type(value).__name__, str(value)))
        for kind in (
            ipaddress.IPv4Address,
            ipaddress.IPv6Address,
            ipaddress.IPv4Network,
            ipaddress.IPv6Network,
            ipaddress.IPv4Interface,
            ipaddress.IPv6Interface,
        )
    },
}

_FACTORIES: Final = {kind.__name__: kind for kind in (int, float, str, bytes, bool, list, dict, set, tuple)}


def _factory_name(value: collections.defaultdict[object, object]) -> str:
    factory = value.default_factory
    name = "" if factory is None else getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name) is not factory:
        raise TypeError(f"the factory of a defaultdict in a result is {factory!r}; return dict(value)")
    return name


# -- the caller's side ------------------------------------------------------------------------------
def load(data: bytes, buffers: Buffers) -> object:
    """Return the value of a result that ``ResultPickler`` wrote, or that a hostile worker made up.

    Raises UntrustedResultError, which names what is not accepted.
    """
    try:
        check(data)
        return _ResultUnpickler(io.BytesIO(data), buffers=buffers).load()
    except UntrustedResultError:
        raise
    except Exception as error:  # noqa: BLE001 - a made-up pickle can raise anything that its types raise
        raise _refused(f"a value that cannot be built ({type(error).__name__}: {error})") from None


class _ResultUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        builder = _BUILDERS.get((module, name))
        if builder is not None:
            return builder
        permitted = _allowed.get((module, name))
        if permitted is not None and permitted[1] is None:
            return permitted[0]
        raise _refused(f"{module}.{name}")


def _class(module: str, qualname: str) -> type:
    """Return a class of a module that is imported already, without running code of either."""
    resolved: object = sys.modules.get(module)
    for part in qualname.split("."):
        resolved = _names_of(resolved).get(part)
    if resolved is None:
        raise _refused(f"an object of {module}.{qualname}, a class that this program has not imported")
    if not isinstance(resolved, type):
        raise _refused(f"an object of {module}.{qualname}, which is no class here")
    if any("__del__" in _names_of(base) for base in type.mro(resolved)):
        raise _refused(f"an object of {module}.{qualname}, whose end runs code (__del__)")
    return resolved


def _names_of(owner: object) -> Mapping[str, object]:
    """Return what a module or class defines, past any ``__getattr__`` of it."""
    if isinstance(owner, types.ModuleType):
        return cast("Mapping[str, object]", types.ModuleType.__getattribute__(owner, "__dict__"))
    if isinstance(owner, type):
        return cast("Mapping[str, object]", type.__getattribute__(owner, "__dict__"))
    return {}


def _enum_member(module: str, qualname: str, name: str) -> object:
    cls = _class(module, qualname)
    members = _names_of(cls).get("_member_map_")
    if not issubclass(cls, enum.Enum) or not isinstance(members, dict) or name not in members:
        raise _refused(f"a member of {module}.{qualname}, which has no {name!r}")
    return members[name]


def _named_tuple(module: str, qualname: str, values: tuple[object, ...]) -> object:
    cls = _class(module, qualname)
    fields = _names_of(cls).get("_fields")
    if not issubclass(cls, tuple) or not isinstance(fields, tuple) or len(fields) != len(values):
        raise _refused(f"an object of {module}.{qualname}, which is no named tuple of {len(values)} fields")
    return tuple.__new__(cls, values)


def _dataclass(module: str, qualname: str, fields: dict[str, object]) -> object:
    cls = _class(module, qualname)
    declared = _names_of(cls).get("__dataclass_fields__")
    if not isinstance(declared, dict) or set(fields) != {
        name
        for name, field in declared.items()
        if field._field_type is dataclasses._FIELD  # type: ignore[attr-defined]  # noqa: SLF001
    }:
        raise _refused(f"an object of {module}.{qualname}, which is no dataclass with the same fields")
    instance: object = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance


def _object(module: str, qualname: str, state: object) -> object:
    permitted = _allowed.get((module, qualname))
    if permitted is None:
        raise _refused(f"an object of {module}.{qualname}")
    cls, decode = permitted
    if decode is not None:
        return decode(state)
    instance = cast("Function[object]", cls.__new__)(cls)
    restore = getattr(instance, "__setstate__", None)
    if restore is not None:
        restore(state)
        return instance
    own, slots = state if isinstance(state, tuple) else (state, None)
    for part in (own, slots):
        for name, value in (part or {}).items():
            object.__setattr__(instance, name, value)
    return instance


def _exception(
    module: str,
    qualname: str,
    args: tuple[object, ...],
    state: dict[str, object],
    cause: BaseException | None,
    suppress: bool,  # noqa: FBT001 - as it stands in the pickle
) -> object:
    cls = _class(module, qualname)
    if not issubclass(cls, BaseException):
        raise _refused(f"an object of {module}.{qualname}, which is no exception")
    # The nearest built-in class makes the object: code of other classes does not run.
    builtin = next(base for base in type.mro(cls) if base.__module__ == "builtins")
    exception = cast("Function[BaseException]", builtin.__new__)(cls, *args)
    cast("Function[None]", builtin.__init__)(exception, *args)  # type: ignore[misc]
    if type(state) is dict:
        object.__getattribute__(exception, "__dict__").update(
            {name: value for name, value in state.items() if type(name) is str}
        )
    if isinstance(cause, BaseException):
        exception.__cause__ = cause
    exception.__suppress_context__ = bool(suppress)
    return exception


def _array(description: object, shape: tuple[int, ...], order: str, flat: object) -> object:
    import numpy as np  # noqa: PLC0415 - only where a result has arrays

    kind = _dtype(description)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise _refused("an array of an impossible shape")
    # frombuffer refuses objects, and reshape another number of bytes.
    return np.frombuffer(flat, dtype=np.uint8).view(kind).reshape(shape, order="F" if order == "F" else "C")  # type: ignore[call-overload]


def _scalar(description: object, data: bytes) -> object:
    import numpy as np  # noqa: PLC0415 - the same

    return np.frombuffer(data, dtype=_dtype(description), count=1)[0]  # type: ignore[call-overload]


_SIMPLE_TYPE: Final = re.compile(r"[<>|=][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,4}[a-zA-Zμ]{1,2}\])?")


def _dtype(description: object) -> object:
    import numpy as np  # noqa: PLC0415 - the same

    if not _is_description(description, 0):
        raise _refused("an array of a type that is not made of numbers")
    dtype = np.lib.format.descr_to_dtype(description)  # type: ignore[arg-type]
    if dtype.hasobject:
        raise _refused("an array of Python objects")
    return dtype


def _is_description(description: object, depth: int) -> bool:
    if isinstance(description, str):
        return bool(_SIMPLE_TYPE.fullmatch(description))
    if isinstance(description, tuple):
        inner, shape = description if len(description) == 2 else (None, None)
        return isinstance(shape, tuple) and _is_description(inner, depth + 1)
    return (
        isinstance(description, list)
        and depth < 8
        and all(
            isinstance(field, tuple)
            and len(field) in {2, 3}
            and isinstance(field[0], str | tuple)
            and _is_description(field[1], depth + 1)
            for field in description
        )
    )


def _arrow_table(data: object) -> object:
    import pyarrow as pa  # noqa: PLC0415 - the same

    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def _polars_frame(data: object) -> object:
    import polars as pl  # noqa: PLC0415 - the same

    return pl.from_arrow(_arrow_table(data))


def _polars_series(data: object) -> object:
    import polars as pl  # noqa: PLC0415 - the same

    return cast("Iterable[object]", pl.from_arrow(_arrow_table(data)))[0]  # type: ignore[index]


def _pandas_frame(data: object) -> object:
    table = _arrow_table(data)
    return table.to_pandas()  # type: ignore[attr-defined]


def _pandas_series(data: object, name: object) -> object:
    series = _pandas_frame(data)["values"]  # type: ignore[index]
    series.name = name
    return cast("object", series)


def _decimal(text: str) -> decimal.Decimal:
    return decimal.Decimal(_of(str, text))


def _fraction(numerator: int, denominator: int) -> fractions.Fraction:
    return fractions.Fraction(_of(int, numerator), _of(int, denominator))


def _uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=_of(bytes, data))


def _zone(key: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(_of(str, key))


def _counter(counts: dict[object, int]) -> collections.Counter[object]:
    return collections.Counter(_of(dict, counts))


def _ordered_dict(items: list[tuple[object, object]]) -> collections.OrderedDict[object, object]:
    return collections.OrderedDict(_of(list, items))


def _deque(items: list[object], length: int | None) -> collections.deque[object]:
    return collections.deque(_of(list, items), length)


def _default_dict(factory: str, items: dict[object, object]) -> collections.defaultdict[object, object]:
    return collections.defaultdict(_FACTORIES[factory] if factory else None, _of(dict, items))


def _namespace(values: dict[str, object]) -> types.SimpleNamespace:
    return types.SimpleNamespace(**_of(dict, values))


def _path(kind: str, text: str) -> pathlib.PurePath:
    kinds = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
    return {path_class.__name__: path_class for path_class in kinds}[kind](_of(str, text))


def _address(kind: str, text: str) -> object:
    known = {
        address_class.__name__: address_class
        for address_class in _SIMPLE_REDUCERS
        if address_class.__module__ == "ipaddress"
    }
    return known[kind](_of(str, text))


def _bytearray(data: bytes = b"") -> bytearray:
    return bytearray(_of(bytes, data))


def _of(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise _refused(f"a {type(value).__name__} in the place of a {kind.__name__}")
    return value


_STANDARD_TYPES: Final = frozenset(
    {
        *(dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone),
        *(complex, range, slice, set, frozenset, bytearray),
    }
)
"""Types that are built by a call with the pickled arguments, which bound the work themselves."""

_BUILDERS: Final[dict[tuple[str, str], object]] = {
    **{(kind.__module__, kind.__name__): kind for kind in _STANDARD_TYPES if kind is not bytearray},
    ("builtins", "bytearray"): _bytearray,
    **{
        (_HERE, builder.__name__): builder
        for builder in (
            *(_enum_member, _named_tuple, _dataclass, _object, _exception, _array, _scalar, _dtype),
            *(_arrow_table, _polars_frame, _polars_series, _pandas_frame, _pandas_series),
            *(_decimal, _fraction, _uuid, _counter, _ordered_dict, _deque, _default_dict, _namespace),
            *(_path, _address, _zone),
        )
    },
}
"""The names that the pickle of a result may contain, and what they stand for."""
