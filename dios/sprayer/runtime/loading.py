"""Loading of network functions by name: built-in functions and functions in Python files.

It is used by ``dios nf run`` and ``dios nf replay``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from dios.errors import InvalidError
from dios.sprayer.network_function import NetworkFunction

BUILT_IN: Final = {
    "nat": "Nat",
    "firewall": "Firewall",
    "balancer": "Balancer",
    "monitor": "Monitor",
    "redundancy": "Redundancy",
    "dpi": "DeepInspection",
    "nat64": "Nat64",
    "siit": "Siit",
    "synthetic": "Synthetic",
}
"""Modules of ``dios.sprayer.functions``, and the class in each."""
_NEEDED: Final = {int: "an integer", str: "a string"}


def load(text: str, settings: Mapping[str, object]) -> NetworkFunction:
    """Return a function by name: a name of ``BUILT_IN``, ``FILE.py``, or ``FILE.py:NAME``.

    ``NAME`` is an object or class in the file. Without it, the file must have exactly one object of type
    ``NetworkFunction``, or else define exactly one subclass of it. ``settings`` are the arguments of a class.
    Raises InvalidError if the function is missing or ambiguous, or does not have such a setting.
    """
    if text in BUILT_IN:
        module = importlib.import_module(f"dios.sprayer.functions.{text}")
        return _make(getattr(module, BUILT_IN[text]), settings, module, text)
    path, _, name = text.partition(":")
    if not path.endswith(".py"):
        raise InvalidError(
            f"{text!r} is no network function: give a file, as nat.py:Name, or one of {', '.join(BUILT_IN)}"
        )
    module = _module(Path(path))
    return _make(_find(module, name, path), settings, module, text)


def settings_of(words: Sequence[str]) -> dict[str, object]:
    """Parse ``KEY=VALUE`` words; values are TOML, other values are strings. Raises InvalidError."""
    settings: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidError(f"--set {word}: write KEY=VALUE, as in --set addresses=192.0.2.1")
        if key in settings:
            raise InvalidError(f"--set {word}: {key} is set twice; give it once")
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = value
    return settings


def _module(path: Path) -> ModuleType:
    """Load a file as a module; it can import files in the same folder."""
    # A prefix is added because a file json.py would otherwise replace the standard module for everyone.
    name = f"network_function_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidError(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        trace = error.__traceback__
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(path):
                line = trace.tb_lineno
            trace = trace.tb_next
        raise InvalidError(f"{path}{f':{line}' if line else ''}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module


def _find(module: ModuleType, name: str, path: str) -> object:
    """Return the object or class that is selected in a module."""
    own = vars(module)
    if name:
        if name not in own:
            raise InvalidError(f"{path}: the file does not define {name}")
        return own[name]
    instances = {key: member for key, member in own.items() if isinstance(member, NetworkFunction)}
    kinds = {
        key: member
        for key, member in own.items()
        if isinstance(member, type)
        and issubclass(member, NetworkFunction)
        and member.__module__ == module.__name__
    }
    for choice in (instances, kinds):
        if len(choice) == 1:
            return next(iter(choice.values()))
        if choice:
            raise InvalidError(
                f"{path}: the file defines several functions: {', '.join(choice)}."
                f" Choose one, as in {path}:{next(iter(choice))}"
            )
    raise InvalidError(f"{path}: the file defines no subclass of dios.sprayer.NetworkFunction")


def _make(function: object, settings: Mapping[str, object], module: ModuleType, text: str) -> NetworkFunction:
    if isinstance(function, NetworkFunction):
        if settings:
            raise InvalidError(
                f"{text}: this is an object, not a class, so it has no settings ({', '.join(settings)})"
            )
        return function
    if not (isinstance(function, type) and issubclass(function, NetworkFunction)):
        raise InvalidError(f"{text}: this is of type {type(function).__name__}, not a NetworkFunction")
    wanted = inspect.signature(function).parameters
    for key in settings:
        if key not in wanted:
            known = ", ".join(wanted) or "none"
            raise InvalidError(f"{text}: there is no setting {key!r}; known settings: {known}")
    missing = [
        key
        for key, parameter in wanted.items()
        if parameter.default is parameter.empty and key not in settings
    ]
    if missing:
        raise InvalidError(
            f"{text}: {', '.join(missing)} must be set: {' '.join(f'--set {key}=...' for key in missing)}"
        )
    try:
        fitting = {key: _convert(value, wanted[key], module) for key, value in settings.items()}
        return function(**fitting)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidError(f"{text}: {error}") from None


def _convert(value: object, wanted: inspect.Parameter, module: ModuleType) -> object:
    """Convert a value for a parameter: a single value to a sequence, and tables to rows of its type."""
    wants = next((kind for kind in _NEEDED if wanted.annotation in {kind, kind.__name__}), None)
    if wants is not None and (not isinstance(value, wants) or isinstance(value, bool)):
        raise TypeError(f"{wanted.name} must be {_NEEDED[wants]}, not {value!r}")
    sequence = re.fullmatch(r"Sequence\[(\w+).*\]", str(wanted.annotation))
    if sequence is None:
        return value
    kind = getattr(module, sequence[1], None)
    values = value if isinstance(value, list) else [value]
    if isinstance(kind, type) and issubclass(kind, tuple):
        return [_row(kind, entry, wanted.name) for entry in values]
    return values


def _row(kind: type, value: object, key: str) -> object:
    known = ", ".join(inspect.signature(kind).parameters)
    if not isinstance(value, dict):
        raise TypeError(f"{key}: write each row as a table, as in {key}=[{{ ... }}], with {known}")
    row = {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in value.items()}
    for name in row:
        if name not in inspect.signature(kind).parameters:
            raise TypeError(f"{key}: there is no field {name!r}; known fields: {known}")
    record: object = kind(**row)
    return record
