"""Finds the modules of a program that its workers cannot import: siblings and editable packages.

A worker sees the interpreter's library and the installed packages. All other modules that a function refers
to are sent as sources, with the modules that these import, and packages as a whole.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from dios.errors import InvalidError

_BYTES_MAX: Final = 16 * 1024 * 1024
_FILES_MAX: Final = 2_000

_LIBRARY: Final = tuple(
    {str(Path(path).resolve()) for path in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)}
    - {"/"}
)
_HERE: Final = __name__.partition(".")[0]


class LocalModules:
    """The local modules of this program that the calls of one executor have needed so far."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self.sources: Final[dict[str, str]] = {}
        self._lock: Final = threading.Lock()
        self._seen: Final[set[str]] = {"__main__", "__mp_main__", _HERE}
        self.add(given)

    def copy(self) -> LocalModules:
        """Return the same for a receiver that begins with everything that this one was sent."""
        with self._lock:
            other = LocalModules()
            other.sources.update(self.sources)
            other._seen.update(self._seen)
        return other

    def add(self, names: Iterable[str]) -> dict[str, str]:
        """Find the local modules among ``names``, and what they import; return the sources that are new.

        Raises InvalidError for a local module whose source cannot be read or is too large.
        """
        with self._lock:
            return self._add(list(names))

    def _add(self, waiting: list[str]) -> dict[str, str]:
        sources: dict[str, str] = {}
        while waiting:
            top = waiting.pop().partition(".")[0]
            if top in self._seen:
                continue
            self._seen.add(top)
            module = sys.modules.get(top)
            if module is None or not _is_local(module):
                continue
            sources.update(_sources(module))
            waiting += _referenced(module)
        self.sources.update(sources)
        if sum(map(len, self.sources.values())) > _BYTES_MAX:
            raise InvalidError(
                f"the program's own modules have more than {_BYTES_MAX} bytes; install the package"
            )
        return sources


def _is_local(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    paths = [file] if isinstance(file, str) else list(getattr(module, "__path__", ()))
    places = [str(Path(path).resolve()) for path in paths]
    return bool(places) and not any(place.startswith(root + "/") for place in places for root in _LIBRARY)


def _sources(module: ModuleType) -> dict[str, str]:
    name = module.__name__
    roots = [Path(path) for path in getattr(module, "__path__", ())]
    if roots:
        files = [(root, path) for root in roots for path in sorted(root.rglob("*.py"))[:_FILES_MAX]]
        return {_name_of(name, root, path): _read(path, name) for root, path in files}
    file = str(module.__file__)
    if not file.endswith(".py"):
        raise InvalidError(f"the module {name} is not Python source ({file}), so install it for the workers")
    return {name: _read(Path(file), name)}


def _name_of(package: str, root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"the source of the module {name} cannot be read: {error}") from None


def _referenced(module: ModuleType) -> set[str]:
    """Return the modules that a module, or another one of its package, refers to by its names."""
    name = module.__name__
    members = [
        member for key, member in list(sys.modules.items()) if key == name or key.startswith(name + ".")
    ]
    referenced: set[str] = set()
    for member in members:
        for value in list(vars(member).values()):
            other = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(other, str):
                referenced.add(other)
    return referenced
