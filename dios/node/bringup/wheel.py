"""Makes a wheel of the running version of this package, so that other machines get the same version.

It needs no network and no build tool: the package is pure Python, and a wheel is an archive of its files and
of its description. An installed package and a checkout give the same archive for the same files.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import NotSupportedError
from dios.installation import DISTRIBUTION, FILE_NAME
from dios.node.doctor.promises import page

_DATE: Final = (2020, 1, 1, 0, 0, 0)
"""Every entry has this date, so that the same files give the same bytes."""

_DESCRIPTION: Final = "Wheel-Version: 1.0\nGenerator: dios up\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT: Final = frozenset({"RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json"})


class Wheel(NamedTuple):
    """A wheel's file name and bytes."""

    name: str
    data: bytes


def of_running_version() -> Wheel:
    """Return the wheel of the package that runs. Raise NotSupportedError if it was never installed."""
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise NotSupportedError(
            f"cannot upload this version: the package {DISTRIBUTION} is not installed here, so its "
            "description is missing. Install it with pip, then run the command again."
        ) from None
    version = installed.version
    folder = f"{FILE_NAME}-{version}.dist-info"
    package = Path(__file__).parents[2]
    files = {name: path.read_bytes() for name, path in package_files(package).items()}
    for entry in installed.files or []:
        if entry.parts[0] == folder and entry.name not in _LEFT_OUT:
            files[entry.as_posix()] = entry.read_binary()
    files[f"{folder}/WHEEL"] = _DESCRIPTION.encode()
    return Wheel(f"{FILE_NAME}-{version}-py3-none-any.whl", _archive(files, folder))


def package_files(package: Path) -> dict[str, Path]:
    """Return the files of a package that belong into a wheel, by their names there.

    A checkout has the page of the promises outside of the package's folder.
    """
    paths = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {f"dios/{path.relative_to(package).as_posix()}": path for path in paths}
    return dict(sorted({**files, "dios/node/doctor/threat-model.md": page()}.items()))


def _archive(files: dict[str, bytes], folder: str) -> bytes:
    record = "".join(f"{name},{_record_hash(data)},{len(data)}\n" for name, data in files.items())
    files = {**files, f"{folder}/RECORD": f"{record}{folder}/RECORD,,\n".encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date_time=_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _record_hash(data: bytes) -> str:
    """Return a digest as the format's file RECORD spells it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
