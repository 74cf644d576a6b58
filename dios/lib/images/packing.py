"""Packs the files of an image into an archive, as a node reads it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO, Final

from dios.errors import InvalidError
from dios.lib.environments import archives
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.images.layers import LayeredFiles
from dios.lib.images.layouts import ImageConfiguration, ImageLayout, verified
from dios.limits import MIB
from dios.wire.environments import LENGTH, ArchiveDigest
from dios.wire.images import MAGIC, ImageManifest, ImageSettings, encode_image

_CHUNK: Final = 1 * MIB
_FORMAT: Final = b"dios image 1\n"
"""Changes with the result for the same image, so that an older archive is not used."""

_REQUEST_CHARS: Final = 40


def request_of(*parts: str) -> str:
    """Return the name under which an archive is kept: of the digest of an image, or of what it is read from.

    ``parts`` are texts without line ends.
    """
    return hashlib.sha256(_FORMAT + "\n".join(parts).encode()).hexdigest()[:_REQUEST_CHARS]


def pack(layout: ImageLayout, request: str) -> EnvironmentArchive:
    """Return the archive of an image, which is kept for the next time under the name ``request``.

    Raise InvalidError for an image that is damaged or refused, TooLargeError over a bound, OSError.
    """
    with archives.building_folder() as folder:
        contents = folder / "contents"
        with contents.open("w+b") as file:
            files = LayeredFiles(file)
            for layer in layout.manifest.layers:
                with verified(layout.blobs, layer) as blob:
                    files.add(blob)
            file.flush()
            target = folder / "archive"
            digest = _write(target, files, file, layout.configuration)
        return archives.keep(target, digest, request)


def _write(target: Path, files: LayeredFiles, contents: BinaryIO, configuration: ImageConfiguration) -> str:
    settings = configuration.config
    variables = tuple((settings.env if settings is not None else None) or ())
    folder = (settings.working_dir if settings is not None else "") or "/"
    # Other programs make it when they start a container.
    files.add_folder(folder)
    packed = list(files.files())
    try:
        manifest = ImageManifest(
            configuration.machine, ImageSettings(variables, folder), tuple(row.entry for row in packed)
        )
        body = encode_image(manifest)
    except UnicodeEncodeError:
        raise InvalidError("the image has a text that is not UTF-8: it cannot be used") from None
    digest = ArchiveDigest()
    with target.open("wb") as archive:
        for data in (MAGIC, LENGTH.pack(len(body)), body):
            digest.add(data)
            archive.write(data)
        for row in packed:
            contents.seek(row.offset)
            for start in range(0, row.entry.size, _CHUNK):
                data = contents.read(min(_CHUNK, row.entry.size - start))
                digest.add(data)
                archive.write(data)
    return digest.text
