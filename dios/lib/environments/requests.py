"""The packages that a program asks for: requirements by name, and the place of their wheels."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import InvalidError
from dios.host.environments.interpreter import python_here
from dios.limits import ENVIRONMENT_PACKAGES_MAX

_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"  # its name
    r"\s*(\[[A-Za-z0-9._,\s-]*\])?"  # its extras
    r"\s*([<>=!~]=?=?\s*[^\s,;@/]+(\s*,\s*[<>=!~]=?=?\s*[^\s,;@/]+)*)?"  # its versions
    r"\s*(;[^@/]*)?"  # the condition for which it is needed
)
_REQUIREMENT_CHARS_MAX: Final = 1_000


class EnvironmentRequest(NamedTuple):
    """Requirements in order, and the folder of their wheels, or "" for the package index of pip."""

    requirements: tuple[str, ...]
    wheels: str

    def __str__(self) -> str:
        """Return the requirements as a short text for messages."""
        text = ", ".join(self.requirements[:5])
        return f"{text}, …" if len(self.requirements) > 5 else text

    def digest(self) -> str:
        """Return a text that differs for requests that may have other results.

        The wheels of a folder count with their sizes and times, and the variables that configure pip. A
        package index counts as unchanged.
        """
        lines = [python_here(), *self.requirements]
        if self.wheels:
            for entry in sorted(os.scandir(self.wheels), key=lambda entry: entry.name):
                if entry.name.endswith(".whl"):
                    info = entry.stat()
                    lines.append(f"{entry.name} {info.st_size} {info.st_mtime_ns}")
        else:
            lines += sorted(
                f"{name}={value}" for name, value in os.environ.items() if name.startswith("PIP_")
            )
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def request_for(packages: Iterable[str], wheels: str | os.PathLike[str] | None) -> EnvironmentRequest:
    """Return a request for packages, such as "pandas==2.3". Raise InvalidError for what is no requirement.

    Only names with versions are: a path or a URL would be built from source, by code of the package.
    """
    if isinstance(packages, str):
        raise InvalidError(f'packages is a list of requirements: packages=["{packages}"]')
    requirements = tuple(dict.fromkeys(" ".join(text.split()) for text in packages))
    if not requirements:
        raise InvalidError("an environment has at least one package")
    if len(requirements) > ENVIRONMENT_PACKAGES_MAX:
        raise InvalidError(f"an environment has at most {ENVIRONMENT_PACKAGES_MAX} packages")
    for text in requirements:
        if len(text) > _REQUIREMENT_CHARS_MAX or not _REQUIREMENT.fullmatch(text):
            raise InvalidError(
                f"{text[:200]!r} is no name of a package with versions. Write it like pandas==2.3; for a "
                "path or a URL, build a wheel and give its folder as wheels"
            )
    if wheels is None:
        return EnvironmentRequest(requirements, "")
    folder = Path(wheels).expanduser().absolute()
    if not folder.is_dir():
        raise InvalidError(
            f"cannot install from the wheels in {folder}: it is no folder. Give one with .whl files"
        )
    return EnvironmentRequest(requirements, str(folder))
