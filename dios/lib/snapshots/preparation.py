"""Brings to a node what a sandbox begins with: an image, a snapshot, or packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from dios.client.sync.node import Node, connect_or_start
from dios.errors import DamagedError
from dios.lib.environments import archives
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.environments.environments import environment_on
from dios.lib.images.change_archives import ChangeArchive
from dios.lib.images.images import image_on
from dios.lib.snapshots.beginning import Beginning
from dios.lib.snapshots.snapshots import (
    SandboxSnapshot,
    archive_of_image,
    bring_changes,
    snapshot_on,
    store_snapshot,
)
from dios.wire.environments import digest_of

T = TypeVar("T")


class SandboxEnvironment(NamedTuple):
    """The names that a session begins with on its node: of its environment, and of the image in it if any."""

    template: str
    image: str
    changes: ChangeArchive | None


def bring(node: Node, beginning: Beginning, *, is_missing: bool = False) -> SandboxEnvironment:
    """Bring what a sandbox begins with to a node. Raise the errors of images, snapshots and packages.

    What this machine has read before is brought only if ``is_missing`` says that the node lacks it.
    """
    packages = "packages" if beginning.packages or beginning.wheels is not None else ""
    if beginning.snapshot:
        others = beginning.template or packages or beginning.image
        snapshot = snapshot_on(
            node, beginning.snapshot, others, is_missing=is_missing, isolation=beginning.isolation
        )
        return SandboxEnvironment(snapshot.name, snapshot.image, snapshot.changes)
    if beginning.image:
        name = image_on(
            node,
            beginning.image,
            beginning.template or packages,
            is_missing=is_missing,
            isolation=beginning.isolation,
        )
        return SandboxEnvironment(name, name, None)
    name = environment_on(
        node, beginning.packages, wheels=beginning.wheels, template=beginning.template, again=False
    )
    return SandboxEnvironment(name, "", None)


def store(node: Node, beginning: Beginning, image: str, frozen: ChangeArchive, place: str) -> SandboxSnapshot:
    """Store the changed files of a sandbox as a snapshot at ``place``, as ``store_snapshot`` does."""
    return store_snapshot(
        node, place, image, lambda: image_archive(node, beginning, image).path, frozen.archive
    )


def bring_frozen(node: Node, beginning: Beginning, image: str, frozen: ChangeArchive) -> None:
    """Bring the changed files of a sandbox to its node, for forks of it. Raise as ``bring`` does."""
    bring_changes(node, frozen.archive, lambda: image_archive(node, beginning, image))


def at(place: str | Path | None, operation: Callable[[Node], T]) -> T:
    """Return the result of an operation on the node at a place, over a connection of its own."""
    with connect_or_start(place, pool_size=1) as node:
        return operation(node)


def image_archive(node: Node, beginning: Beginning, image: str) -> EnvironmentArchive:
    """Return the archive of a sandbox's image, which is read again if this machine has not kept it.

    Raise DamagedError if the place of the image has another one now, and the errors of reading it.
    """
    digest = digest_of(image)
    kept = archives.kept_with_digest(digest)
    if kept is not None:
        return kept
    if beginning.snapshot:
        return archive_of_image(node, beginning.snapshot)
    image_on(node, beginning.image)
    kept = archives.kept_with_digest(digest)
    if kept is None:
        raise DamagedError(
            f"{beginning.image} has another image now, and this machine has not kept that of this sandbox: "
            "make a new one"
        )
    return kept
