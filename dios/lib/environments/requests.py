"""The packages that a program asks for: requirements by name, and the source of their wheels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from dios.errors import InvalidError
from dios.host.environments.interpreter import python_here
from dios.lib.environments.requirement_files import MARK, digests_of, requirements_in
from dios.lib.environments.sources import WheelSource
from dios.limits import ENVIRONMENT_PACKAGES_MAX

_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"  # its name
    r"\s*(\[[A-Za-z0-9._,\s-]*\])?"  # its extras
    r"\s*([<>=!~]=?=?\s*[^\s,;@/#$]+(\s*,\s*[<>=!~]=?=?\s*[^\s,;@/#$]+)*)?"  # its versions
    r"\s*(;[^@/#$]*)?"  # the condition for which it is needed
)
_REQUIREMENT_CHARS_MAX: Final = 1_000


class EnvironmentRequest(NamedTuple):
    """Requirements in order, the source of their wheels, and a text that differs for other requests."""

    requirements: tuple[str, ...]
    source: WheelSource
    digest: str

    def __str__(self) -> str:
        """Return the requirements as a short text for messages."""
        text = ", ".join(digests_of(requirement)[0] for requirement in self.requirements[:5])
        return f"{text}, …" if len(self.requirements) > 5 else text


def request_for(packages: Iterable[str], source: WheelSource) -> EnvironmentRequest:
    """Return a request for packages, such as "pandas==2.3", from a source with its present wheels.

    Raises InvalidError as ``checked`` does, and OSError for a source that cannot be read.
    """
    requirements = checked(packages)
    lines = [python_here(), *requirements, str(source), *source.marks()]
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return EnvironmentRequest(requirements, source, digest)


def checked(packages: Iterable[str]) -> tuple[str, ...]:
    """Return requirements, each once, with those of the files that items such as "@lock.txt" name.

    Raises InvalidError for a text that is no requirement. Only names with versions are: a path or a URL would
    be built from source, by code of the package.
    """
    if isinstance(packages, str):
        raise InvalidError(f'packages is a list of requirements: packages=["{packages}"]')
    texts = [text for item in packages for text in _expanded(item)]
    requirements = tuple(dict.fromkeys(" ".join(text.split()) for text in texts))
    if not requirements:
        raise InvalidError("an environment has at least one package")
    if len(requirements) > ENVIRONMENT_PACKAGES_MAX:
        raise InvalidError(f"an environment has at most {ENVIRONMENT_PACKAGES_MAX} packages")
    for text in requirements:
        _check(text)
    return requirements


def _expanded(item: str) -> list[str]:
    return requirements_in(item) if item.startswith(MARK) else [item]


def _check(text: str) -> None:
    """Raise InvalidError for a text that is no requirement, with digests of its wheels or without."""
    plain, _ = digests_of(text)
    has_options = any(word.startswith("-") for word in plain.split())
    if has_options or len(plain) > _REQUIREMENT_CHARS_MAX or not _REQUIREMENT.fullmatch(plain):
        raise InvalidError(
            f"{text[:200]!r} is no name of a package with versions. Write it like pandas==2.3; for a path or "
            "a URL, build a wheel and give its folder as wheels"
        )
