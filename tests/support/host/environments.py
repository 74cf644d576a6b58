"""Archives of environments for tests."""

from __future__ import annotations

from collections.abc import Mapping

from dios.host.environments.interpreter import python_here
from dios.wire.environments import ArchivedFile, ArchiveDigest, Manifest, Package, encode_head


def archive_of(files: Mapping[str, str], *, python: str = "") -> tuple[str, bytes]:
    """Return the digest and the bytes of an archive with these files."""
    contents = {path: text.encode() for path, text in files.items()}
    manifest = Manifest(
        python or python_here(),
        (Package("fruit", "1.0"),),
        tuple(ArchivedFile(path, len(data)) for path, data in contents.items()),
    )
    archive = encode_head(manifest) + b"".join(contents.values())
    digest = ArchiveDigest()
    digest.add(archive)
    return digest.text, archive
