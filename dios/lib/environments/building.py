"""Runs the installer, within bounds of time and size, and packs what it has installed into an archive."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from dios.errors import InvalidError, NotSupportedError, TimeLimitError, TooLargeError
from dios.host.environments.interpreter import python_here
from dios.installation import install_command
from dios.lib.environments import archives, installer
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.environments.requests import EnvironmentRequest
from dios.limits import ENVIRONMENT_BYTES_MAX, ENVIRONMENT_INSTALL_S_MAX, MIB
from dios.wire.environments import Package

_LOOK_S: Final = 1.0
_ORDER: Final = "order"
_OUTPUT: Final = "output"
_OUTPUT_CHARS_MAX: Final = 2_000


class _ArchiveInfo(msgspec.Struct):
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct):
    archive_info: _ArchiveInfo | None = None


class _Metadata(msgspec.Struct):
    name: str
    version: str


class _Installed(msgspec.Struct):
    metadata: _Metadata
    download_info: _Download


class _Report(msgspec.Struct):
    """The part of pip's report that is used here."""

    install: list[_Installed]


def build(request: EnvironmentRequest) -> EnvironmentArchive:
    """Install packages, and return their archive, which is kept for the same request.

    Raises InvalidError with the reason of pip, NotSupportedError without pip or Landlock on this machine,
    TimeLimitError and TooLargeError for what is over a bound, OSError.
    """
    if importlib.util.find_spec("pip") is None:
        raise NotSupportedError(
            f"cannot install {request}: this Python has no pip. Add it: {install_command('pip')}"
        )
    with archives.building_folder() as folder:
        _run_installer(folder, request)
        report = msgspec.json.decode((folder / installer.REPORT).read_bytes(), type=_Report)
        return archives.pack(
            folder / installer.PACKAGES, list(map(_package, report.install)), python_here(), request.digest
        )


def _package(row: _Installed) -> Package:
    info = row.download_info.archive_info
    return Package(
        row.metadata.name, row.metadata.version, "" if info is None else info.hashes.get("sha256", "")
    )


def _run_installer(folder: Path, request: EnvironmentRequest) -> None:
    wheels = request.source.folder(folder)
    lines = "".join(f"{requirement}\n" for requirement in request.requirements)
    (folder / installer.REQUIREMENTS).write_text(lines, encoding="utf-8")
    order = installer.Order(str(folder), wheels, os.getpid())
    (folder / _ORDER).write_bytes(msgspec.json.encode(order))
    output = folder / _OUTPUT
    with (
        (folder / _ORDER).open("rb") as ordered,
        output.open("wb") as console,
        subprocess.Popen(
            [sys.executable, "-I", "-m", installer.__name__],
            stdin=ordered,
            stdout=console,
            stderr=console,
            cwd=folder,
        ) as process,
    ):
        try:
            _wait(process, folder, request)
        except BaseException:
            process.kill()
            raise
    if not process.returncode:
        return
    said = output.read_text(errors="replace").strip()[-_OUTPUT_CHARS_MAX:] or "pip failed"
    if process.returncode == installer.CANNOT_CONFINE:
        raise NotSupportedError(
            f"cannot install {request}: the installer cannot be confined on this machine ({said}). See: dios "
            "doctor"
        )
    raise InvalidError(
        f"cannot install {request} from {request.source}: {said}. Check the names and versions; packages "
        "without a wheel are not built"
    )


def _wait(process: subprocess.Popen[bytes], folder: Path, request: EnvironmentRequest) -> None:
    """Wait for the installer; end it over a bound of time or size."""
    end = time.monotonic() + ENVIRONMENT_INSTALL_S_MAX
    while True:
        try:
            process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                raise TimeLimitError(
                    f"cannot install {request}: it took over {ENVIRONMENT_INSTALL_S_MAX:,} s. Try it again, "
                    "or give a folder of wheels"
                ) from None
            if _bytes_below(folder) > 2 * ENVIRONMENT_BYTES_MAX:
                raise TooLargeError(
                    f"cannot install {request}: it has over {ENVIRONMENT_BYTES_MAX // MIB} MiB. Use fewer "
                    "packages"
                ) from None
        else:
            return


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(f"{place}/{name}").st_size
            except OSError:
                continue  # it was moved or removed meanwhile
    return total
