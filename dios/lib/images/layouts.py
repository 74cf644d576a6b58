"""OCI layouts: images as files, whose parts are named by their digests.

``oci-layout:FOLDER[:TAG]`` is a folder with such a layout, ``oci-archive:FILE[:TAG]`` a tar file of one, and
``dios://ALIAS/FILE[:TAG]`` such a file of a group. A layout may come from anybody: each part is compared with
its digest and its size before it counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from dios.errors import InvalidError, NotSupportedError, TooLargeError
from dios.lib.files.paths import PROTOCOL
from dios.lib.images.tar_reader import opened_tar
from dios.limits import IMAGE_ENTRIES_MAX, IMAGE_INDEX_BYTES_MAX, IMAGE_LAYER_BYTES_MAX, IMAGE_LAYERS_MAX, MIB

T = TypeVar("T")

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_TAG: Final = "org.opencontainers.image.ref.name"
_INDEX: Final = "index.json"
_CHUNK: Final = 1 * MIB
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_INDEX_TYPES: Final = frozenset({"application/vnd.oci.image.index.v1+json"})
_LAYER_TYPES: Final = frozenset(
    {
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    }
)
_NESTED_MAX: Final = 2


class Platform(Struct, frozen=True):
    """The machine for which a manifest is."""

    architecture: str = ""
    os: str = ""


class Descriptor(Struct, frozen=True, rename="camel"):
    """The name of a part of a layout."""

    digest: str
    size: Annotated[int, Meta(ge=0, le=IMAGE_LAYER_BYTES_MAX)]
    media_type: str = ""
    annotations: dict[str, str] = {}
    platform: Platform | None = None


class Index(Struct, frozen=True):
    """The list of the manifests of a layout."""

    manifests: Annotated[list[Descriptor], Meta(max_length=1_000)]


class LayoutManifest(Struct, frozen=True):
    """The configuration and the layers of an image, the lowest first."""

    config: Descriptor
    layers: Annotated[list[Descriptor], Meta(max_length=IMAGE_LAYERS_MAX)]


class ProgramSettings(Struct, frozen=True, rename="pascal"):
    """The part of the configuration for programs that is used here."""

    env: list[str] | None = None
    working_dir: str = ""


class ImageConfiguration(Struct, frozen=True):
    """The configuration of an image."""

    architecture: str
    os: str
    config: ProgramSettings | None = None

    @property
    def machine(self) -> str:
        """The architecture as in ``uname``."""
        return _MACHINES.get(self.architecture, self.architecture)


class ImagePlace(NamedTuple):
    """The place of a layout, as a user names it; ``tag`` is empty for the only image of it."""

    scheme: str
    path: str
    tag: str

    def __str__(self) -> str:
        return self.path + (f":{self.tag}" if self.tag else "")


class Blobs(Protocol):
    """The files of a layout."""

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a file for reading. Raise InvalidError if there is none."""


class ImageLayout(NamedTuple):
    """One image of a layout."""

    blobs: Blobs
    digest: str
    manifest: LayoutManifest
    configuration: ImageConfiguration


LAYOUT: Final = "oci-layout:"
ARCHIVE: Final = "oci-archive:"
GROUP: Final = f"{PROTOCOL}://"


def place_of(image: str) -> ImagePlace:
    """Return the place of an image. Raise InvalidError for a text that names none."""
    scheme = next((scheme for scheme in (LAYOUT, ARCHIVE, GROUP) if image.startswith(scheme)), None)
    rest = image.removeprefix(scheme or "")
    if scheme is None or not rest:
        raise InvalidError(
            f"{image[:200]!r} names no image: write {LAYOUT}FOLDER[:TAG], {ARCHIVE}FILE[:TAG] or "
            f"{GROUP}ALIAS/FILE[:TAG]. An image of a registry becomes a layout with "
            "`skopeo copy docker://NAME oci:FOLDER:TAG`"
        )
    path, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        path, tag = rest, ""
    return ImagePlace(scheme, path, tag)


def lasting(image: str) -> str:
    """Return the place of an image that means the same in other working directories. Raise InvalidError."""
    place = place_of(image)
    if place.scheme == GROUP:
        return image
    return f"{place.scheme}{place._replace(path=str(Path(place.path).expanduser().absolute()))}"


class FolderBlobs:
    """A layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file of the layout."""
        try:
            # Without waiting: it may be a pipe, which nobody writes.
            number = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidError(
                f"{self._folder} is no complete OCI layout: {name}: {error.strerror}"
            ) from error
        with open(number, "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise InvalidError(f"{self._folder} is no OCI layout: {name} is no regular file")
            yield file


class ArchiveBlobs:
    """A layout in a tar file, which is not compressed."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._places: Final[dict[str, tuple[int, int]]] = {}
        with path.open("rb") as file, opened_tar(file, may_be_compressed=False) as (_, members):
            for member in members:
                if len(self._places) >= IMAGE_ENTRIES_MAX:
                    raise TooLargeError(f"{path} has over {IMAGE_ENTRIES_MAX:,} files: it is no OCI layout")
                if member.isreg():
                    self._places[os.path.normpath(member.name)] = member.offset_data, member.size

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file of the layout."""
        if name not in self._places:
            raise InvalidError(f"{self._path} is no complete OCI layout: it has no {name}")
        with self._path.open("rb") as file:
            yield io.BufferedReader(_Part(file, *self._places[name]))


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        super().__init__()
        self._file: Final = file
        self._begin: Final = begin
        self._size: Final = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # as it is called
        self._file.seek(self._begin + self._place)
        data = self._file.read(max(0, min(len(buffer), self._size - self._place)))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def read_layout(blobs: Blobs, tag: str, machine: str) -> ImageLayout:
    """Return an image of a layout for a machine. Raise InvalidError for one that is damaged or lacks it."""
    with blobs.open(_INDEX) as file:
        data = file.read(IMAGE_INDEX_BYTES_MAX + 1)
    descriptor = _chosen(_decoded(data, Index), tag, machine)
    for _ in range(_NESTED_MAX):
        if descriptor.media_type not in _INDEX_TYPES:
            break
        descriptor = _chosen(_decoded(_small(blobs, descriptor), Index), "", machine)
    manifest = _decoded(_small(blobs, descriptor), LayoutManifest)
    configuration = _decoded(_small(blobs, manifest.config), ImageConfiguration)
    if configuration.os != "linux":
        raise NotSupportedError(f"the image is for {configuration.os[:100]}, and nodes run on Linux")
    if configuration.machine != machine:
        raise NotSupportedError(
            f"the image is for {configuration.architecture[:100]}, and this machine is {machine}: use another"
        )
    for layer in manifest.layers:
        if layer.media_type not in _LAYER_TYPES:
            raise NotSupportedError(
                f"a layer of the image is of the type {layer.media_type[:200]!r}: only tar, and tar with "
                "gzip, can be read. Convert it, such as with `skopeo copy --dest-compress-format gzip`"
            )
    return ImageLayout(blobs, descriptor.digest, manifest, configuration)


@contextlib.contextmanager
def verified(blobs: Blobs, descriptor: Descriptor) -> Iterator[BinaryIO]:
    """Yield a part of a layout after it was compared with its digest, and compare it again as it was read.

    The bytes count only after the body: somebody else may change the layout at any time. Raise InvalidError.
    """
    match = _DIGEST.fullmatch(descriptor.digest)
    if match is None:
        raise InvalidError(
            f"a part of the image has the digest {descriptor.digest[:200]!r}, which is no sha256"
        )
    with blobs.open(f"blobs/sha256/{match[1]}") as file:
        part = _DigestedPart(file)
        part.require(descriptor)
        part.seek(0)
        yield part  # type: ignore[misc]  # it has the methods that are used
        part.require(descriptor)


class _DigestedPart(io.RawIOBase):
    """A part of a layout, with the digest of the bytes that were read; it is read on, or from its begin."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file: Final = file
        self._digest = hashlib.sha256()
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self._size += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset or whence != io.SEEK_SET:
            raise InvalidError("a part of an image is read from its begin alone")
        self._digest, self._size = hashlib.sha256(), 0
        return self._file.seek(0)

    def require(self, descriptor: Descriptor) -> None:
        """Read the rest. Raise InvalidError unless all bytes that were read are those of the descriptor."""
        while self._size <= descriptor.size and self.read(_CHUNK):
            pass
        if (self._size, f"sha256:{self._digest.hexdigest()}") != (descriptor.size, descriptor.digest):
            raise InvalidError(
                f"the part {descriptor.digest} of the image has other bytes than its name says: it is "
                "damaged, or was changed. Get the image again"
            )


def _small(blobs: Blobs, descriptor: Descriptor) -> bytes:
    if descriptor.size > IMAGE_INDEX_BYTES_MAX:
        raise InvalidError(f"the part {descriptor.digest[:80]} of the image is too long for a description")
    with verified(blobs, descriptor) as file:
        return file.read(descriptor.size)


def _decoded(data: bytes, kind: type[T]) -> T:
    if len(data) > IMAGE_INDEX_BYTES_MAX:
        raise InvalidError("the index of the layout is too long")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"the layout has no valid {kind.__name__}: {error}") from None


def _chosen(index: Index, tag: str, machine: str) -> Descriptor:
    tagged = [row for row in index.manifests if not tag or row.annotations.get(_TAG) == tag]
    fitting = [row for row in tagged if row.platform is None or _machine_of(row.platform) == machine]
    if len(fitting) == 1:
        return fitting[0]
    tags = sorted({row.annotations[_TAG][:100] for row in index.manifests if _TAG in row.annotations})
    if len(fitting) > 1:
        raise InvalidError(f"the layout has several images: add one of the tags {', '.join(tags)}")
    if tagged:
        raise NotSupportedError(f"the layout has no image for {machine}")
    raise InvalidError(f"the layout has no image {tag!r}; its tags: {', '.join(tags) or 'none'}")


def _machine_of(platform: Platform) -> str:
    return _MACHINES.get(platform.architecture, platform.architecture)
