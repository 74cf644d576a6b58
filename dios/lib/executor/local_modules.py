"""Finds the packages of a program that its workers may lack: siblings, editable packages, other folders.

A worker sees the interpreter's library and the packages that are installed there. All other packages that a
function refers to are sent as archives, with those that their sources import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

from dios.errors import InvalidError
from dios.lib.executor.archives import Archive, pack
from dios.limits import LOCAL_PACKAGES_BYTES_MAX, MIB

_LIBRARY: Final = tuple(
    {str(Path(path).resolve()) for path in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)}
    - {"/"}
)
_HERE: Final = __name__.partition(".")[0]
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

_IMPORTS: Final = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_DYNAMIC_IMPORTS: Final = re.compile(
    rb"""\b(?:import_module|__import__|find_spec|files|path|get_data)
    \(\s*["'](\w+)(?:\.[\w.]+)?["']""",
    re.VERBOSE,
)
"""Calls of importlib and its resources, or of functions with the same names, with the name of a module."""


class LocalModules:
    """The local packages of this program that the calls of one executor have needed so far."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self.archives: Final[list[Archive]] = []
        self._lock: Final = threading.Lock()
        self._seen: Final[set[str]] = {"__main__", "__mp_main__", _HERE}
        self._failed: Final[dict[str, InvalidError]] = {}
        self.add(given)

    def copy(self) -> LocalModules:
        """Return the same for a receiver that begins with everything that this one was sent."""
        with self._lock:
            other = LocalModules()
            other.archives.extend(self.archives)
            other._seen.update(self._seen)
        return other

    def add(self, names: Iterable[str]) -> list[Archive]:
        """Pack the local packages among ``names``, and those that they import; return the new archives.

        Raises InvalidError for a local package among ``names`` that cannot be sent.
        """
        return self._add_all({name.partition(".")[0] for name in names}, set())

    def add_imports(self, source: bytes, package: str) -> None:
        """Pack the local packages that a source text imports, and the package to which the text belongs."""
        self._add_all(set(), _imported(source) | ({package} if package else set()))

    def _add_all(self, tops: set[str], imported: set[str]) -> list[Archive]:
        with self._lock:
            for top in tops & self._failed.keys():
                raise self._failed[top].with_traceback(None)
            first = len(self.archives)
            waiting = list(imported)
            failed: InvalidError | None = None
            for top in tops - self._seen:
                try:
                    self._add(top, waiting)
                except InvalidError as error:
                    failed = self._failed[top] = error
            while waiting:
                top = waiting.pop().partition(".")[0]
                try:
                    self._add(top, waiting)
                except InvalidError as error:
                    # Perhaps no call imports it: an import has this error.
                    problem = str(error).encode(errors="replace").decode()
                    self.archives.append(Archive(top, "", b"", problem=problem))
            if failed is not None:
                raise failed
            return self.archives[first:]

    def _add(self, top: str, waiting: list[str]) -> None:
        if top in self._seen:
            return
        self._seen.add(top)
        try:
            self._add_package(top, waiting)
        except (OSError, RuntimeError) as error:
            raise InvalidError(
                f"the package {top} cannot be sent to workers: {error}. Make its folder readable, or install "
                "the package where the nodes run"
            ) from error

    def _add_package(self, top: str, waiting: list[str]) -> None:
        module = sys.modules.get(top)
        places = _places(top, module)
        if not places or any(map(is_of_library, places)):
            return
        is_spare = any(_is_installation(place.parent) for place in places)
        archive = pack(top, [*places, *_metadata(top, places)], is_spare=is_spare)
        total = sum(len(other.content) for other in (archive, *self.archives))
        if total > LOCAL_PACKAGES_BYTES_MAX:
            raise InvalidError(
                f"the package {top} cannot be sent to workers: all packages have {total / MIB:.0f} MiB "
                f"together, over {LOCAL_PACKAGES_BYTES_MAX // MIB}. Install some where the nodes run"
            )
        files = archive.files()
        if not (files.contents or files.unreadable):
            return
        self.archives.append(archive)
        waiting += [] if module is None else _referenced(module)
        for _, source in files.sources():
            waiting += _imported(source)


def _places(name: str, module: ModuleType | None) -> list[Path]:
    """Return the folders of a package, or the one file of a module; none if it is built in or not there.

    Raises InvalidError for a local module that is no source.
    """
    if module is None:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # noqa: BLE001 - of a finder of the program
            return []
        paths, file = _of_spec(spec)
    else:
        paths, file = list(getattr(module, "__path__", ())), getattr(module, "__file__", None)
    places = [Path(path).absolute() for path in paths or ([file] if isinstance(file, str) else [])]
    places = [place for place in places if place.exists()]
    for place in places:
        if not place.is_dir() and place.suffix != ".py" and not is_of_library(place):
            raise InvalidError(
                f"the module {name} cannot be sent to workers: it is no Python source ({place}). Install it "
                "where the nodes run"
            )
    return places


def _of_spec(spec: ModuleSpec | None) -> tuple[list[str], str | None]:
    if spec is None:
        return [], None
    return list(spec.submodule_search_locations or ()), spec.origin if spec.has_location else None


def is_of_library(place: Path) -> bool:
    """Return True for a path below the interpreter's library and the packages that are installed with it."""
    resolved = str(place.resolve())
    return any(resolved.startswith(root + "/") for root in _LIBRARY)


def _is_installation(folder: Path) -> bool:
    """Return True for a folder into which an installer puts packages, such as that of ``pip --target``."""
    return not _INSTALLED.isdisjoint(folder.parts) or any(folder.glob("*.dist-info"))


def _metadata(name: str, places: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders with the metadata of a package, such as its entry points."""
    for parent in {place.parent for place in places}:
        for folder in (*parent.glob("*.dist-info"), *parent.glob("*.egg-info")):
            lines: list[str] = []
            for listed in ("RECORD", "top_level.txt"):
                with contextlib.suppress(OSError):
                    lines += (folder / listed).read_text("utf-8", "replace").splitlines()
            if any(re.split("[/,.]", line)[0] == name for line in lines):
                yield folder


def _imported(source: bytes) -> set[str]:
    """Return the top-level names of the modules that a source text imports, inside functions as well."""
    names = set(_DYNAMIC_IMPORTS.findall(source))
    for origin, listed in _IMPORTS.findall(source):
        names.update(part.strip().partition(b" ")[0].partition(b".")[0] for part in listed.split(b","))
        names.add(origin)
    return {text for name in names if (text := name.decode("ascii", "replace")).isidentifier()}


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
