"""OCI layouts for tests, made by hand: images of a static busybox, or of chosen entries."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

BUSYBOX = Path("/bin/busybox")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
APPLETS = (
    "sh",
    "cat",
    "echo",
    "env",
    "head",
    "id",
    "ls",
    "ln",
    "mkdir",
    "mount",
    "nc",
    "ps",
    "pwd",
    "rm",
    "sleep",
    "sort",
    "unshare",
    "yes",
)

Entry = tuple[tarfile.TarInfo, bytes]


def entry(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, *, mode: int = 0o644, link: str = ""
) -> Entry:
    """Return an entry of a layer."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
    return info, data


def folder(name: str, mode: int = 0o755) -> Entry:
    """Return a folder of a layer."""
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def layer_of(entries: Iterable[Entry]) -> bytes:
    """Return a layer, as a tar file."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def busybox_layer() -> bytes:
    """Return a layer with a busybox and links to it. Skip without one."""
    if not BUSYBOX.exists():
        pytest.skip("no static busybox (the package busybox-static)")
    return layer_of(
        [
            *map(folder, ("bin", "etc", "tmp", "work", "proc", "dev")),
            entry("bin/busybox", BUSYBOX.read_bytes(), mode=0o755),
            *(entry(f"bin/{name}", kind=tarfile.SYMTYPE, link="busybox") for name in APPLETS),
            entry("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n"),
            entry("etc/release", b"tiny 1.0\n"),
        ]
    )


class LayoutMaker:
    """A layout in a folder, to which images are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifests: list[dict[str, object]] = []
        (path / "blobs" / "sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")

    def add(
        self,
        layers: Sequence[bytes],
        tag: str = "",
        *,
        variables: Sequence[str] = ("PATH=/bin", "COLOR=green"),
        working_dir: str = "/work",
        architecture: str = "",
        compressed: bool = True,
    ) -> Path:
        """Add an image, and return the folder."""
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if compressed else "")
        rows = [self.blob(gzip.compress(layer, 1) if compressed else layer, kind) for layer in layers]
        config = {
            "architecture": architecture or ARCHITECTURES[os.uname().machine],
            "os": "linux",
            "config": {"Env": list(variables), "WorkingDir": working_dir},
        }
        manifest = {
            "schemaVersion": 2,
            "config": self.blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
            "layers": rows,
        }
        row = self.blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
        if tag:
            row["annotations"] = {"org.opencontainers.image.ref.name": tag}
        self._manifests.append(row)
        index = {"schemaVersion": 2, "manifests": self._manifests}
        (self.path / "index.json").write_text(json.dumps(index), encoding="utf-8")
        return self.path

    def blob(self, data: bytes, media_type: str) -> dict[str, object]:
        """Add a part, and return its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        (self.path / "blobs" / "sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": media_type}


def busybox_layout(path: Path) -> Path:
    """Return the folder of a layout with an image of a busybox."""
    return LayoutMaker(path).add([busybox_layer()], "tiny")


def archive_of(layout: Path, target: Path) -> Path:
    """Write a layout as a tar file, and return it."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(layout.rglob("*")):
            archive.add(path, str(path.relative_to(layout)), recursive=False)
    return target
