"""Reads images for a program, and brings them to the node on which its sandboxes run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dios.client.sync.node import Node
from dios.errors import InvalidError, NotSupportedError
from dios.lib.environments import archives
from dios.lib.environments.environments import brought, reported
from dios.lib.images import packing
from dios.lib.images.layouts import (
    GROUP,
    LAYOUT,
    ArchiveBlobs,
    Blobs,
    FolderBlobs,
    ImagePlace,
    place_of,
    read_layout,
)
from dios.wire.types import Isolation

if TYPE_CHECKING:
    from dios.lib.images.group_archives import StoredArchive


def image_on(
    node: Node,
    image: str,
    template: str = "",
    *,
    is_missing: bool = False,
    isolation: Isolation = Isolation.KERNEL,
) -> str:
    """Bring an image to a node, and return the name that takes the place of a template.

    An image that this machine has read before is brought only if ``is_missing`` says that the node lacks it:
    a sandbox that starts there shows that at no cost. ``isolation`` is that of the sandboxes.

    ``image`` is ``oci-layout:FOLDER[:TAG]``, ``oci-archive:FILE[:TAG]``, or ``dios://ALIAS/FILE[:TAG]`` for
    an archive in a group. The result is kept on this machine and on the node, so that the same image is read
    once. Longer work is reported on standard error.

    Raises InvalidError for an image that is damaged, or has entries that no node accepts; NotSupportedError
    for one of another machine, or a node that can start no containers; NoSpaceError if the node has no room,
    TooLargeError over a bound.
    """
    if template:
        raise InvalidError("a sandbox has a template, packages or an image: leave out the others")
    if node.ambient:
        raise NotSupportedError("a task cannot bring an image to the node: do it outside")
    place = place_of(image)
    machine = os.uname().machine
    request, stored = "", None
    if place.scheme == GROUP:
        # Most images are on this machine.
        from dios.lib.images.group_archives import StoredArchive  # noqa: PLC0415 - see above

        stored = StoredArchive(node, place.path)
        request = packing.request_of(stored.digest, place.tag, machine) if stored.digest else ""
        name = _kept(node, request, place, isolation, is_missing=is_missing) if request else None
        if name is not None:
            return name
    with _blobs(place, stored) as blobs:
        layout = read_layout(blobs, place.tag, machine)
        request = request or packing.request_of(layout.digest)
        name = _kept(node, request, place, isolation, is_missing=is_missing)
        if name is not None:
            return name
        with reported(f"reading {place}"):
            archive = packing.pack(layout, request)
    return brought(node, archive, ("",), str(place), isolation)


def _kept(
    node: Node, request: str, place: ImagePlace, isolation: Isolation, *, is_missing: bool
) -> str | None:
    """Return the name of the image that is kept for a request, or None; bring it if the node lacks it."""
    archive = archives.kept(request)
    if archive is not None:
        # A damaged one is refused or, if it is empty, not mapped; one that was replaced is gone.
        with contextlib.suppress(InvalidError, FileNotFoundError, ValueError):
            return brought(node, archive, ("",), str(place), isolation) if is_missing else archive.name
    return None


@contextlib.contextmanager
def _blobs(place: ImagePlace, stored: StoredArchive | None) -> Iterator[Blobs]:
    if stored is not None:
        with stored.copied() as file:
            yield ArchiveBlobs(file)
    elif place.scheme == LAYOUT:
        yield FolderBlobs(Path(place.path).expanduser())
    else:
        try:
            blobs = ArchiveBlobs(Path(place.path).expanduser())
        except OSError as error:
            raise InvalidError(f"cannot read the image {place.path}: {error.strerror}") from error
        yield blobs
