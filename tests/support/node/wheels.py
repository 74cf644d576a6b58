"""Wheels for tests: small ones with given contents, and those of packages that are installed here."""

from __future__ import annotations

import importlib.metadata
import io
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

_MADE_BY_INSTALLERS: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})


def small_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel with these files and requirements; return its path."""
    described = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {text}" for text in requires),
        *(f"Provides-Extra: {text.split(chr(39))[1]}" for text in requires if "extra ==" in text),
    ]
    contents = {
        **(files or {}),
        f"{described}/METADATA": "\n".join(lines) + "\n",
        f"{described}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    return _written(folder / f"{described.removesuffix('.dist-info')}-{tag}.whl", contents, described)


def _written(path: Path, contents: Mapping[str, str | bytes], described: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = "".join(f"{name},,\n" for name in [*contents, f"{described}/RECORD"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {**contents, f"{described}/RECORD": record}.items():
            archive.writestr(name, data)
    return path


def requirements_of(names: Iterable[str]) -> set[str]:
    """Return these distributions with all that they need here, without extras.

    Raises PackageNotFoundError if a distribution is not installed.
    """
    needed: set[str] = set()
    waiting = [re.sub(r"[-_.]+", "-", name).lower() for name in names]
    while waiting:
        if (name := waiting.pop()) in needed:
            continue
        needed.add(name)
        for text in importlib.metadata.requires(name) or []:
            requirement, _, marker = text.partition(";")
            wanted = re.match(r"[\w.-]+", requirement)
            if wanted is None or "extra" in marker:
                continue
            further = re.sub(r"[-_.]+", "-", wanted.group()).lower()
            # A requirement for other systems or versions of Python may be missing here.
            if not marker or _is_installed(further):
                waiting.append(further)
    return needed


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def wheel_of_installed(folder: Path, name: str) -> Path:
    """Write the wheel of a distribution that is installed here; return its path."""
    distribution = importlib.metadata.distribution(name)
    entries = [
        entry for entry in distribution.files or [] if ".." not in entry.parts and entry.suffix != ".pyc"
    ]
    described = next(entry.parts[0] for entry in entries if entry.name == "METADATA")
    contents = {
        entry.as_posix(): entry.read_binary()
        for entry in entries
        if not (entry.parts[0] == described and entry.name in _MADE_BY_INSTALLERS)
    }
    tags = re.findall(rb"^Tag: (\S+)$", contents[f"{described}/WHEEL"], re.MULTILINE)
    parts = zip(*(tag.decode().split("-") for tag in tags), strict=True)
    tag = "-".join(".".join(dict.fromkeys(part)) for part in parts)
    return _written(folder / f"{described.removesuffix('.dist-info')}-{tag}.whl", contents, described)


def renamed_version(folder: Path, wheel: bytes, version: str) -> Path:
    """Write a pure wheel with another version; return its path."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    before = next(name.split("/")[0] for name in contents if name.endswith(".dist-info/METADATA"))
    described = f"{before.partition('-')[0]}-{version}.dist-info"
    renamed = {
        name.replace(before, described): data
        for name, data in contents.items()
        if not name.endswith("/RECORD")
    }
    metadata = f"{described}/METADATA"
    renamed[metadata] = re.sub(rb"(?m)^Version: .*$", f"Version: {version}".encode(), renamed[metadata])
    return _written(folder / f"{described.removesuffix('.dist-info')}-py3-none-any.whl", renamed, described)


def write_index(folder: Path) -> None:
    """Write pages for the wheels in ``folder/wheels``, so that ``folder/simple`` is a package index."""
    projects: dict[str, list[str]] = {}
    for path in sorted((folder / "wheels").glob("*.whl")):
        projects.setdefault(re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower(), []).append(path.name)
    for project, names in projects.items():
        page = folder / "simple" / project / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("".join(f'<a href="../../wheels/{name}">{name}</a>\n' for name in names))
