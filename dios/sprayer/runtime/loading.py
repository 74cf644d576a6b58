"""Network functions by name: those that are ready, and those in files of Python.

For: ``dios nf run`` and ``dios nf replay``. Not for: compiling them.
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

READY: Final = {
    "nat": "Nat",
    "firewall": "Firewall",
    "balancer": "Balancer",
    "monitor": "Monitor",
    "redundancy": "Redundancy",
    "synthetic": "Synthetic",
}
"""Modules of ``dios.sprayer.functions``, and the class in each."""
_NEEDED: Final = {int: "a whole number", str: "a text"}


def load(text: str, settings: Mapping[str, object]) -> NetworkFunction:
    """A function by what a person typed: a name of ``READY``, ``FILE.py``, or ``FILE.py:NAME``.

    In a file it is the object or class of that name; without one, the only object of a ``NetworkFunction``,
    or else the only class of them that the file defines. ``settings`` are what a class is made with.
    InvalidError for what is not there, is not clear, or takes no such setting.
    """
    if text in READY:
        module = importlib.import_module(f"dios.sprayer.functions.{text}")
        return _make(getattr(module, READY[text]), settings, module, text)
    path, _, name = text.partition(":")
    if not path.endswith(".py"):
        raise InvalidError(
            f"{text!r} is no network function: name a file, as nat.py:Name, or one of {', '.join(READY)}"
        )
    module = _module(Path(path))
    return _make(_found(module, name, path), settings, module, text)


def settings_of(words: Sequence[str]) -> dict[str, object]:
    """``KEY=VALUE`` words, values as in TOML; what is no TOML is text. InvalidError."""
    found: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidError(f"--set {word}: say KEY=VALUE, as in --set addresses=192.0.2.1")
        if key in found:
            raise InvalidError(f"--set {word}: {key} is set twice")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _module(path: Path) -> ModuleType:
    """A file as a module, which may import what lies beside it."""
    # Not the file's own name: json.py would be everybody's json.
    name = f"network_function_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidError(f"{path}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        where = error.__traceback__
        line = 0
        while where is not None:
            if where.tb_frame.f_code.co_filename == str(path):
                line = where.tb_lineno
            where = where.tb_next
        raise InvalidError(f"{path}{f':{line}' if line else ''}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module


def _found(module: ModuleType, name: str, path: str) -> object:
    """The object or class that is meant."""
    own = vars(module)
    if name:
        if name not in own:
            raise InvalidError(f"{path}: there is no {name} in it")
        return own[name]
    made = {key: each for key, each in own.items() if isinstance(each, NetworkFunction)}
    kinds = {
        key: each
        for key, each in own.items()
        if isinstance(each, type) and issubclass(each, NetworkFunction) and each.__module__ == module.__name__
    }
    for choice in (made, kinds):
        if len(choice) == 1:
            return next(iter(choice.values()))
        if choice:
            raise InvalidError(f"{path}: which one, of {', '.join(choice)}? Say {path}:{next(iter(choice))}")
    raise InvalidError(f"{path}: there is no class of dios.sprayer.NetworkFunction in it")


def _make(found: object, settings: Mapping[str, object], module: ModuleType, text: str) -> NetworkFunction:
    if isinstance(found, NetworkFunction):
        if settings:
            raise InvalidError(
                f"{text}: it is made already, so there is nothing to set ({', '.join(settings)})"
            )
        return found
    if not (isinstance(found, type) and issubclass(found, NetworkFunction)):
        raise InvalidError(f"{text}: this is {type(found).__name__}, and no NetworkFunction")
    wanted = inspect.signature(found).parameters
    for key in settings:
        if key not in wanted:
            known = ", ".join(wanted) or "nothing"
            raise InvalidError(f"{text}: there is no setting {key!r}; known: {known}")
    missing = [key for key, each in wanted.items() if each.default is each.empty and key not in settings]
    if missing:
        raise InvalidError(
            f"{text}: {', '.join(missing)} must be set: {' '.join(f'--set {key}=...' for key in missing)}"
        )
    try:
        fitting = {key: _fitting(value, wanted[key], module) for key, value in settings.items()}
        return found(**fitting)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidError(f"{text}: {error}") from None


def _fitting(value: object, wanted: inspect.Parameter, module: ModuleType) -> object:
    """A value as the parameter wants it: one for a sequence of one, and tables as rows of its kind."""
    wants = next((kind for kind in _NEEDED if wanted.annotation in {kind, kind.__name__}), None)
    if wants is not None and (not isinstance(value, wants) or isinstance(value, bool)):
        raise TypeError(f"{wanted.name} is {value!r}: {_NEEDED[wants]} is needed")
    sequence = re.fullmatch(r"Sequence\[(\w+).*\]", str(wanted.annotation))
    if sequence is None:
        return value
    kind = getattr(module, sequence[1], None)
    values = value if isinstance(value, list) else [value]
    if isinstance(kind, type) and issubclass(kind, tuple):
        return [_row(kind, each, wanted.name) for each in values]
    return values


def _row(kind: type, value: object, key: str) -> object:
    known = ", ".join(inspect.signature(kind).parameters)
    if not isinstance(value, dict):
        raise TypeError(f"{key}: write each as a table, as in {key}=[{{ ... }}], of {known}")
    row = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
    for name in row:
        if name not in inspect.signature(kind).parameters:
            raise TypeError(f"{key}: there is no {name!r}; known: {known}")
    made: object = kind(**row)
    return made
