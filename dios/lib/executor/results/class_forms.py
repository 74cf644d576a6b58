"""The forms of objects of the program's own classes, which are rebuilt past all code of the classes."""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import sys
import types
import typing
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, cast

from dios.lib.executor.frames import Function
from dios.lib.executor.results.forms import (
    Form,
    Reading,
    form,
    lines_of,
    name_of,
    names_of,
    owner_of,
    refusal,
    register,
    require,
    require_names,
)

Decode: TypeAlias = Callable[[object], object]

_NONE: Final = type(None)


# -- classes ----------------------------------------------------------------------------------------
_METACLASSES: Final = frozenset({type, ABCMeta, enum.EnumMeta, type(typing.Protocol)})
"""Those of the standard library: others may run code when a class is only compared."""


def class_at(module: str, qualname: str) -> type:
    """Return a class of a module that is imported already, without running code of either.

    Raises UntrustedResultError.
    """
    resolved: object = sys.modules.get(module)
    for part in qualname.split("."):
        resolved = _contents(resolved).get(part)
    if resolved is None:
        raise refusal(f"an object of {module}.{qualname}, a class that this program has not imported")
    if type(resolved) not in _METACLASSES:
        raise refusal(f"an object of {module}.{qualname}, which is no ordinary class here")
    cls = cast("type", resolved)
    if owner_of(cls, "__del__") is not None:
        raise refusal(f"an object of {module}.{qualname}, whose end runs code (__del__)")
    return cls


def _contents(owner: object) -> Mapping[str, object]:
    """Return what a module or class defines, past any ``__getattr__`` of it."""
    if issubclass(type(owner), types.ModuleType):
        return cast("Mapping[str, object]", types.ModuleType.__getattribute__(owner, "__dict__"))
    if issubclass(type(owner), type):
        return names_of(cast("type", owner))
    return {}


def dictionary_of(cls: type) -> Function[dict[str, object]]:
    """Return the function that returns the dictionary of an object of a class, past code of the class."""
    owner = owner_of(cls, "__dict__")
    descriptor = None if owner is None else names_of(owner)["__dict__"]
    if type(descriptor) is not types.GetSetDescriptorType:
        raise refusal(f"an object of {name_of(cls)}, which has no ordinary attributes")
    return cast("Function[dict[str, object]]", descriptor.__get__)


# -- dataclasses ------------------------------------------------------------------------------------
class _Plan(NamedTuple):
    """A dataclass and the places of its fields."""

    cls: type
    names: tuple[str, ...]
    slots: tuple[Function[None] | None, ...]
    """For each field the function that sets its slot, or None for one in the dictionary."""
    dictionary: Function[dict[str, object]] | None
    """Returns the dictionary of an object; None if all fields are slots."""


def _declared(cls: type) -> set[str] | None:
    """Return the names of the fields of a dataclass, or None for another class."""
    owner = owner_of(cls, "__dataclass_fields__")
    fields = None if owner is None else names_of(owner)["__dataclass_fields__"]
    if type(fields) is not dict:
        return None
    return {
        name
        for name, field in fields.items()
        if field._field_type is dataclasses._FIELD  # type: ignore[attr-defined]  # noqa: SLF001
    }


def _plan(description: tuple[str, ...]) -> _Plan:
    module, qualname, *names = description
    cls = class_at(module, qualname)
    if _declared(cls) != set(names):
        raise refusal(f"an object of {module}.{qualname}, which is no dataclass with the same fields")
    slots = tuple(_slot(cls, name) for name in names)
    return _Plan(cls, tuple(names), slots, None if names and all(slots) else dictionary_of(cls))


def _slot(cls: type, name: str) -> Function[None] | None:
    owner = owner_of(cls, name)
    attribute = None if owner is None else names_of(owner)[name]
    if type(attribute) is types.MemberDescriptorType:
        return cast("Function[None]", attribute.__set__)
    if owner_of(type(attribute), "__set__") is not None:
        raise refusal(f"an object of {name_of(cls)}, whose field {name} runs code when it is set")
    return None


def _dataclass(items: list[object], reading: Reading) -> object:
    plan = reading.remember(_plan, items.pop(0))
    if len(items) != len(plan.names):
        raise refusal(f"an object of {name_of(plan.cls)} with another number of fields")
    instance: object = object.__new__(plan.cls)
    if plan.dictionary is not None:
        values = zip(plan.names, items, strict=True)
        plan.dictionary(instance).update(values if not any(plan.slots) else ())
    for name, set_slot, value in zip(plan.names, plan.slots, items, strict=True) if any(plan.slots) else ():
        if set_slot is not None:
            set_slot(instance, value)
        elif plan.dictionary is not None:
            plan.dictionary(instance)[name] = value
    return instance


def description_of(cls: type, *names: str) -> tuple[str, ...]:
    """Return the place of a class and some names: the same tuple each time, so that it is written once."""
    return _shared(cls.__module__, cls.__qualname__, *names)


@functools.lru_cache(maxsize=1024)
def _shared(*names: str) -> tuple[str, ...]:
    return names


_TYPING: Final = frozenset({"__orig_class__"})
"""Attributes that ``typing`` adds to an object of a generic class."""


def _fields(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass."""
    names = _field_names.get(cls)
    if names is None:
        names = _field_names[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return names


_field_names: Final[weakref.WeakKeyDictionary[type, tuple[str, ...]]] = weakref.WeakKeyDictionary()


def _dataclass_parts(value: object) -> Iterable[object]:
    kind = type(value)
    names = _fields(kind)
    own = getattr(value, "__dict__", {})
    if tuple(own) == names:
        return description_of(kind, *names), *own.values()
    for name in set(own).difference(names, _TYPING):
        if not isinstance(getattr(kind, name, None), functools.cached_property):
            raise refusal(f"an object of {name_of(kind)} with an attribute {name} in addition to its fields")
    try:
        return description_of(kind, *names), *(getattr(value, name) for name in names)
    except AttributeError as error:
        raise refusal(f"an object of {name_of(kind)} with a field that has no value ({error})") from None


# -- named tuples and enumerations ------------------------------------------------------------------
def _named_tuple(items: list[object], reading: Reading) -> object:
    description, *values = items
    cls = reading.remember(_named_tuple_class, description)
    if len(values) != len(cast("tuple[str]", names_of(cast("type", owner_of(cls, "_fields")))["_fields"])):
        raise refusal(f"an object of {name_of(cls)} with another number of fields")
    return tuple.__new__(cls, values)


def _named_tuple_class(description: tuple[str, ...]) -> type[tuple[object, ...]]:
    module, qualname = description
    cls = class_at(module, qualname)
    owner = owner_of(cls, "_fields")
    if tuple not in lines_of(cls) or owner is None or type(names_of(owner)["_fields"]) is not tuple:
        raise refusal(f"an object of {module}.{qualname}, which is no named tuple")
    return cls


def _named_tuple_parts(value: tuple[object, ...]) -> Iterable[object]:
    if getattr(value, "__dict__", None):
        raise refusal(f"an object of {name_of(type(value))} with attributes in addition to its fields")
    return description_of(type(value)), *tuple.__iter__(value)


_FLAGS_MAX: Final = 4_096
"""The combinations of a flag that results may add: each stays in its class."""

_FLAG_METHODS: Final = ("_missing_", "_iter_member_", "_numeric_repr_")
"""The methods that make a combination of flags."""


_FUNCTIONS: Final = frozenset({types.FunctionType, types.BuiltinFunctionType})


def _member(items: list[object], _reading: Reading) -> object:
    """Return a member by its name, or a combination of flags by its number."""
    require(items, tuple, (str, int))
    module, qualname = require_names(items[0])
    cls = class_at(module, qualname)
    if enum.Enum not in lines_of(cls) or not names_of(cls)["_member_map_"]:
        raise refusal(f"a member of {module}.{qualname}, which is no enumeration")
    key = items[1]
    table = names_of(cls)["_member_map_" if type(key) is str else "_value2member_map_"]
    members = cast("dict[object, object]", table)
    if key in members:
        return members[key]
    if type(key) is str or enum.Flag not in lines_of(cls):
        raise refusal(f"a member of {module}.{qualname}, which has no {key!r}")
    return _combination(cls, cast("int", key), len(members))


def _combination(cls: type, number: int, count: int) -> object:
    """Return a combination of flags that this program has not used yet."""
    for name in _FLAG_METHODS:
        method = names_of(cast("type", owner_of(cls, name)))[name]
        function = getattr(method, "__func__", method)
        if type(function) not in _FUNCTIONS or function.__module__ not in {"enum", "builtins"}:
            raise refusal(f"a combination of {name_of(cls)}, which has a method {name} of its own")
    member_type = names_of(cls)["_member_type_"]
    if member_type not in {object, int} or owner_of(cls, "__setattr__") is not object:
        raise refusal(f"a combination of {name_of(cls)}, whose members are made by code of its own")
    if not 0 <= number < 2**64 or count > _FLAGS_MAX:
        raise refusal(f"an unknown combination {number} of {name_of(cls)}")
    member: object = enum.Flag.__dict__["_missing_"].__func__(cls, number)
    if type(member) is not cls or dictionary_of(cls)(member)["_value_"] != number:
        raise refusal(f"an unknown combination {number} of {name_of(cls)}")
    return member


def _member_parts(value: enum.Enum) -> Iterable[object]:
    kind = type(value)
    if value.name in kind.__members__ and kind.__members__[str(value.name)] is value:
        return description_of(kind), value.name
    if not isinstance(value, enum.Flag) or type(value.value) is not int:
        raise refusal(f"a member of {name_of(kind)} without a name")
    return description_of(kind), value.value


# -- exceptions -------------------------------------------------------------------------------------
_FIELDS: Final = vars(BaseException)
_EXCEPTION_NAMES: Final = ("name", "path", "name_from")
"""The attributes of built-in exceptions that are neither arguments nor in the dictionary."""


def _exception(items: list[object], _reading: Reading) -> object:
    require(items, tuple, tuple, dict, dict, None, bool)
    description, *others, cause, suppress = items
    args, state, names = cast("tuple[tuple[object, ...], dict[object, object], dict[object, object]]", others)
    module, qualname = require_names(description)
    cls = class_at(module, qualname)
    lines = lines_of(cls)
    if BaseException not in lines:
        raise refusal(f"an object of {module}.{qualname}, which is no exception")
    # The nearest built-in class makes the object: code of other classes does not run.
    builtin = next(base for base in lines if base.__module__ == "builtins")
    if issubclass(builtin, BaseExceptionGroup) and type(args[1]) not in {list, tuple}:
        raise refusal("a group of exceptions that is no list")
    exception = cast("Function[BaseException]", builtin.__new__)(cls, *args)
    cast("Function[None]", builtin.__init__)(exception, *args)  # type: ignore[misc]
    notes = state.get("__notes__", [])
    if (
        type(notes) is not list
        or not {str}.issuperset(map(type, notes))
        or not {str}.issuperset(map(type, state))
    ):
        raise refusal("an exception with other notes than text")
    dictionary_of(cls)(exception).update(cast("dict[str, object]", state))
    for name, value in names.items():
        field = _field_of(cls, cast("str", name))
        if field is None or type(value) is not str:
            raise refusal("an exception with an attribute that its class does not have")
        field.__set__(exception, value)
    if issubclass(type(cause), BaseException):
        _FIELDS["__cause__"].__set__(exception, cause)
    _FIELDS["__suppress_context__"].__set__(exception, suppress)
    return exception


def _exception_parts(error: BaseException) -> Iterable[object]:
    fields = {name: _field_of(type(error), name) for name in _EXCEPTION_NAMES}
    names = {name: None if field is None else field.__get__(error) for name, field in fields.items()}
    return (
        description_of(type(error)),
        tuple(_arguments(error)),
        vars(error),
        {name: value for name, value in names.items() if type(value) is str},
        error.__cause__,
        error.__suppress_context__,
    )


def _field_of(cls: type, name: str) -> types.MemberDescriptorType | None:
    """Return the built-in attribute of a class of exceptions; None if it has none of that name."""
    fields = (vars(base).get(name) for base in lines_of(cls) if base.__module__ == "builtins")
    known = (field for field in fields if type(field) is types.MemberDescriptorType)
    return next(known, None) if name in _EXCEPTION_NAMES else None


def _arguments(error: BaseException) -> tuple[object, ...]:
    """Return the arguments that make an exception again; ``args`` of some exceptions lack parts."""
    if isinstance(error, BaseExceptionGroup):
        return error.message, list(error.exceptions)
    if not isinstance(error, OSError) or error.filename is None:
        return error.args
    names = (error.filename,) if error.filename2 is None else (error.filename, None, error.filename2)
    return error.errno, error.strerror, *names


# -- other objects ----------------------------------------------------------------------------------
_allowed: Final[dict[tuple[str, str], tuple[type, Decode | None]]] = {}


def allow(cls: type, *, decode: Decode | None = None) -> None:
    """Accept objects of ``cls``, and the class itself, in results of executors, in this process.

    ``decode`` gets the object's state (what ``__getstate__`` returns, usually its ``__dict__``) and returns
    the object; a hostile worker chooses the state, so check it there. Without ``decode`` the object gets the
    state as pickle would give it, which runs the ``__new__``, ``__setstate__`` and ``__reduce__`` targets of
    the class.

    ``allow(sklearn.base.BaseEstimator)`` accepts fitted estimators of scikit-learn, whose own code does not
    run before they are used.
    """
    _allowed[cls.__module__, cls.__qualname__] = cls, decode


def is_allowed(cls: type) -> bool:
    """Return True if the program accepts objects of a class."""
    return (cls.__module__, cls.__qualname__) in _allowed


def permitted_class(module: str, qualname: str) -> type | None:
    """Return the class of a name that the program accepts, if it accepts one."""
    permitted = _allowed.get((module, qualname))
    return None if permitted is None else permitted[0]


def _object(items: list[object], reading: Reading) -> object:
    """Return an object of a permitted class, as pickle makes it."""
    if reading.is_comparison:
        return None
    require(items, tuple, bool, tuple, *[None] * 3)
    module, qualname = require_names(items[0])
    permitted = _allowed.get((module, qualname))
    if permitted is None:
        raise refusal(f"an object of {module}.{qualname}")
    _, is_called, args, state, members, pairs = items
    cls, decode = permitted
    if decode is not None:
        return decode(state)
    make = cls if is_called else functools.partial(cast("Function[object]", cls.__new__), cls)
    instance = make(*cast("tuple[object, ...]", args))
    for member in cast("list[object]", members or []):
        cast("list[object]", instance).append(member)
    for key, value in cast("list[tuple[object, object]]", pairs or []):
        cast("dict[object, object]", instance)[key] = value
    _set_state(instance, state)
    return instance


def _set_state(instance: object, state: object) -> None:
    restore = getattr(instance, "__setstate__", None)
    if restore is not None:
        if state is not None:
            restore(state)
        return
    own, slots = state if isinstance(state, tuple) else (state, None)
    for part in (own, slots):
        for name, value in cast("dict[str, object]", part or {}).items():
            object.__setattr__(instance, name, value)


def _object_parts(value: object) -> Iterable[object]:
    kind = type(value)
    reduced = value.__reduce_ex__(5)
    if not isinstance(reduced, tuple):
        raise refusal(f"an object of {name_of(kind)}, which is the global {reduced}")
    make, args, state, members, pairs = (*reduced, None, None, None)[:5]
    if make is copyreg.__newobj__ and args[0] is kind:  # type: ignore[attr-defined]
        args = args[1:]
    elif make is not kind:
        module = getattr(make, "__module__", "")
        raise refusal(f"{module}.{getattr(make, '__qualname__', make)}")
    pair_list = None if pairs is None else list(pairs)
    return description_of(kind), make is kind, args, state, members and list(members), pair_list


# -- the form of an object --------------------------------------------------------------------------
_CONTAINERS: Final = (tuple, list, dict, set, frozenset)

_DATACLASS: Final = form(56, (), _dataclass_parts, None, _dataclass)
_NAMED_TUPLE: Final = form(57, (), _named_tuple_parts, None, _named_tuple)
_MEMBER: Final = form(58, (), _member_parts, None, _member)
_EXCEPTION: Final = form(59, (), _exception_parts, None, _exception)
_OBJECT: Final = form(60, (), _object_parts, None, _object)

register(__name__, (_DATACLASS, _NAMED_TUPLE, _MEMBER, _EXCEPTION, _OBJECT))


def form_of_object(value: object) -> Form:
    """Return the form of an object whose type has none of its own."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return _MEMBER
    if isinstance(value, BaseException):
        return _EXCEPTION
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _NAMED_TUPLE
    if dataclasses.is_dataclass(kind) and not isinstance(value, _CONTAINERS):
        return _DATACLASS
    return _OBJECT
