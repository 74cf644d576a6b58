"""Makes small wheels, also such as no honest person would make."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    requires: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel with these files, and return its path.

    ``names`` has the names in the archive of files that shall have another one there.
    """
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    contents = dict(files) | {
        f"{info}/METADATA": "".join(lines),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    renamed = {(names or {}).get(path, path): text for path, text in contents.items()}
    record = "".join(f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in renamed.items())
    renamed[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in renamed.items():
            archive.writestr(place, text)
    return path


def _digest(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
