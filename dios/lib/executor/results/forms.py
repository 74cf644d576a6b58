"""The rows of the closed format: for each type its parts, and how it is built from them again."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.frames import Function

T = TypeVar("T")


class Reading(Protocol):
    """The reader of a result, as the forms use it."""

    is_comparison: bool
    """True in a worker that compares the decoded value. It leaves out objects of permitted classes."""

    def charge(self, elements: int) -> None:
        """Count elements that no bytes of the result pay for. Raise UntrustedResultError over the budget."""

    def check_time(self) -> None:
        """Raise DecodeTimeoutError after the deadline."""

    def remember(self, function: Callable[[tuple[str, ...]], T], names: object) -> T:
        """Return ``function(names)`` for a tuple of text, which is called once for a result."""
        ...


class DecodeTimeoutError(TimeoutError):
    """The time for decoding a result is over. Nothing is known about the result: decode it again."""


_LIBRARY_CODE_MIN: Final = 64
"""The forms of libraries have this code or above."""


class Form(NamedTuple):
    """A row of the format.

    ``parts`` has the exact types of each part, or None for any type, and ``build`` gets the parts as
    arguments. With ``parts`` None, ``build`` gets a list of any number of parts, and the reader.
    """

    code: int
    types: tuple[type, ...]
    """The exact types whose values have this form; empty if ``form_of_object`` decides."""
    take_apart: Function[Iterable[object]]
    parts: tuple[type | tuple[type, ...] | None, ...] | None
    build: Function[object]
    exact: list[type] | None = None
    """The types of the parts, if each has one type."""
    is_key: bool = False
    """True if values of these types are keys: their hash runs no code of the program."""
    has_buffers: bool = False
    has_copies: bool = False
    """True if building may copy the bytes of the parts, which are charged, because they may be shared."""
    schema: Function[object] | None = None
    """Returns what the worker compares of the value and the decoded one: their schema, not their numbers."""


def form(
    code: int,
    types: type | tuple[type, ...],
    take_apart: Function[Iterable[object]],
    parts: Sequence[type | tuple[type, ...] | None] | None,
    build: Function[object],
    *,
    is_key: bool = False,
    schema: Function[object] | None = None,
) -> Form:
    """Return a row; a tuple of types among the parts is a choice."""
    exact = [part for part in parts or () if isinstance(part, type)]
    choices = {kind for part in parts or () for kind in (part if isinstance(part, tuple) else (part,))}
    return Form(
        code,
        types if isinstance(types, tuple) else (types,),
        take_apart,
        None if parts is None else tuple(parts),
        build,
        exact=exact if parts is not None and len(exact) == len(parts) else None,
        is_key=is_key,
        has_buffers=memoryview in exact,
        has_copies=code >= _LIBRARY_CODE_MIN or not choices.isdisjoint({str, bytes}),
        schema=schema,
    )


# -- the registry -----------------------------------------------------------------------------------
_HERE: Final = __name__.rpartition(".")[0]
_MODULES: Final = {
    "builtin_forms": (range(8, 56), ""),
    "class_forms": (range(56, 64), ""),
    "array_forms": (range(64, 72), "numpy"),
    "matrix_forms": (range(72, 76), "scipy"),
    "arrow_forms": (range(76, 84), "pyarrow"),
    "polars_forms": (range(84, 88), "polars"),
    "pandas_forms": (range(88, 108), "pandas"),
    "dtype_forms": (range(108, 116), "pandas"),
    "estimator_forms": (range(116, 120), "sklearn"),
}
"""The modules with forms: their codes, and the package that they need and import when they are loaded."""

LIBRARIES: Final = frozenset(package for _, package in _MODULES.values() if package)
"""The packages whose types may have forms that are not loaded yet."""

_MODULE_OF_CODE: Final = {code: name for name, (codes, _) in _MODULES.items() for code in codes}

FORM_OF_CODE: Final[dict[int, Form]] = {}
FORM_OF_TYPE: Final[dict[type, Form]] = {}
FORM_OF_PACKAGE: Final[dict[str, Callable[[type], Form | None]]] = {}
"""For a package, the function that returns the form of a class of it that is not in the table."""
_SIZED_TYPES: Final[set[type]] = set()
"""The types of libraries with ``nbytes``, which runs no code of the program."""
KEY_TYPES: Final[set[type]] = {int, float, str, bytes, bool, type(None)}


def register(module: str, forms: Iterable[Form]) -> None:
    """Add the forms of a module. Raises ValueError for a code that is not its own, or used twice."""
    for row in forms:
        if _MODULE_OF_CODE.get(row.code) != module.rpartition(".")[2] or row.code in FORM_OF_CODE:
            raise ValueError(f"{module} cannot have a form of code {row.code}")
        FORM_OF_CODE[row.code] = row
        for kind in row.types:
            if kind in FORM_OF_TYPE:
                raise ValueError(f"{kind} has two forms")
            FORM_OF_TYPE[kind] = row
        if row.is_key:
            KEY_TYPES.update(row.types)
        if row.code >= _LIBRARY_CODE_MIN:
            _SIZED_TYPES.update(kind for kind in row.types if owner_of(kind, "nbytes") is not None)


def form_of_code(code: int) -> Form:
    """Return the form of a code; load its module. Raises UntrustedResultError for a code without one."""
    module = _MODULE_OF_CODE.get(code)
    if module is not None and code not in FORM_OF_CODE:
        try:
            import_module(f"{_HERE}.{module}")
        except ImportError as error:
            package = _MODULES[module][1]
            raise refusal(f"a value of {package}, which is not installed here ({error})") from None
    if code not in FORM_OF_CODE:
        raise refusal(f"a form {code} that does not exist")
    return FORM_OF_CODE[code]


def load_forms_of(package: str) -> None:
    """Load the forms of the types of a package that the program has imported."""
    for name, (_, needed) in _MODULES.items():
        if needed == package:
            import_module(f"{_HERE}.{name}")


# -- copies -----------------------------------------------------------------------------------------
def copied_bytes(part: object) -> int:
    """Return the number of bytes that a form copies of a part: those of text, bytes and arrays."""
    kind = type(part)
    if kind is str or kind is bytes:
        return len(cast("str", part))
    return cast("int", part.nbytes) if kind in _SIZED_TYPES else 0  # type: ignore[attr-defined]


# -- refusals ---------------------------------------------------------------------------------------
def refusal(content: str) -> UntrustedResultError:
    """Return the error for a result with content that a caller does not accept."""
    return UntrustedResultError(
        f"the result contains {content}. A caller does not accept this from a sandboxed worker: return "
        "built-in types, permit the class with dios.allow(cls), or make the executor with trust=True if you "
        "trust the code that ran"
    )


def require(items: Sequence[object], *parts: type | tuple[type, ...] | None) -> None:
    """Raise UntrustedResultError if some items have not exactly these types; None admits any type."""
    if len(items) != len(parts):
        raise refusal(f"{len(items)} parts in the place of {len(parts)}")
    for item, kinds in zip(items, parts, strict=True):
        if kinds is None or type(item) is kinds:
            continue
        if not isinstance(kinds, tuple) or type(item) not in kinds:
            raise refusal(f"a {name_of(type(item))} in the place of another part")


def name_of(cls: type) -> str:
    """Return the full name of a class, past properties of its metaclass."""
    module, qualname = (type.__dict__[name].__get__(cls) for name in ("__module__", "__qualname__"))
    return f"{module}.{qualname}".removeprefix("builtins.")


def require_names(names: object) -> tuple[str, ...]:
    """Return a tuple of text, or raise UntrustedResultError."""
    if type(names) is not tuple or set(map(type, names)) != {str}:
        raise refusal("something else in the place of names")
    return names


# -- keys -------------------------------------------------------------------------------------------
_COLLISIONS_MAX: Final = 256
"""The keys that may have one hash: each lookup compares a key with all of them."""

_HASHES: Final[frozenset[tuple[type, type]]] = frozenset(
    {(enum.Enum, object), *((kind, kind) for kind in (int, str, float, bytes, tuple))}
)
"""The classes whose hash and equality a key of the program's own class may have."""


def require_keys(keys: Collection[object]) -> None:
    """Raise UntrustedResultError for keys whose hash runs code of the program, or takes for ever."""
    if not KEY_TYPES.issuperset(map(type, keys)):
        for key in keys:
            if not _is_key(key):
                raise refusal(
                    f"an object of {name_of(type(key))} as a key, whose hash is that of its own class; "
                    "return a list of pairs instead"
                )
    if len(keys) > _COLLISIONS_MAX:
        count = collections.Counter(map(hash, keys)).most_common(1)[0][1]
        if count > _COLLISIONS_MAX:
            raise refusal(f"{count:,} keys with the same hash")


def _is_key(key: object) -> bool:
    kind = type(key)
    if kind in KEY_TYPES:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(_is_key, cast("Iterable[object]", key)))
    owners = [owner_of(kind, method) for method in ("__hash__", "__eq__", "__getattribute__")]
    if (owners[0], owners[1]) not in _HASHES or owners[2] not in {object, owners[1]}:
        return False
    return not issubclass(kind, tuple) or all(map(_is_key, tuple.__iter__(cast("tuple[object]", key))))


_lines_of: Final = type.__dict__["__mro__"].__get__
_names_of: Final = type.__dict__["__dict__"].__get__
"""Both read a class past any code of its metaclass."""


def owner_of(cls: type, name: str) -> type | None:
    """Return the class in which an attribute of a class is defined."""
    for base in lines_of(cls):
        if name in _names_of(base):
            return base
    return None


def lines_of(cls: type) -> tuple[type, ...]:
    """Return a class and its bases."""
    return cast("tuple[type, ...]", _lines_of(cls))


def names_of(cls: type) -> Mapping[str, object]:
    """Return what a class defines itself."""
    return cast("Mapping[str, object]", _names_of(cls))
