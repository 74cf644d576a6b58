"""Snapshots of sandboxes as values, and what a new sandbox needs to begin with one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from dios.client.keyring import Keyring
from dios.client.sync.node import Node, connect_or_start
from dios.errors import InvalidError, MissingEnvironmentError, NotSupportedError, StaleError
from dios.lib.environments import archives
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.environments.environments import brought
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import PROTOCOL, split_group
from dios.lib.images import change_archives
from dios.lib.images.change_archives import ChangeArchive
from dios.lib.images.packing import request_of
from dios.lib.snapshots.group_store import SnapshotStore
from dios.wire.environments import digest_of, name_for
from dios.wire.types import Isolation

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_RESERVED: Final = frozenset({"parts", "images", "aside"})
_HOSTS: Final = ("",)


@dataclass(frozen=True, slots=True)
class SandboxSnapshot:
    """A stored state of the files of a sandbox: ``dios://GROUP/NAME``, and the digest of its record.

    It can be given to other programs, which need the group to use it. A sandbox that is made from it begins
    with exactly this state, and with an error if another one was stored at the place. ``size`` is the number
    of bytes of the changes to the image.
    """

    place: str
    digest: str
    size: int = 0

    def __str__(self) -> str:
        return self.place


class SnapshotOnNode(NamedTuple):
    """A snapshot on a node: the name that takes the place of a template, the image's, and the changes."""

    name: str
    image: str
    changes: ChangeArchive


def store_snapshot(
    node: Node, place: str, image: str, image_archive: Callable[[], Path], changes: EnvironmentArchive
) -> SandboxSnapshot:
    """Store changes to an image as the snapshot at a place ``dios://GROUP/NAME``.

    ``image`` is the name of the image's environment. Raise InvalidError for another place or a group that the
    connection has not, and the errors of storing files.
    """
    alias, name = _parts_of(place)
    store = _store_of(node, alias)
    digest = store.store(name, digest_of(image), image_archive, changes)
    return SandboxSnapshot(f"{PROTOCOL}://{alias}/{name}", digest, changes.path.stat().st_size)


def remove_snapshot(snapshot: str | SandboxSnapshot, *, node: Node | str | Path | None = None) -> None:
    """Remove a snapshot from its group, with what no other snapshot of the group needs.

    ``node`` is an open ``Node`` or the place of one. Raises InvalidError for a place that has none, and the
    errors of removing files.
    """
    if not isinstance(node, Node):
        with connect_or_start(node, pool_size=1) as opened:
            return remove_snapshot(snapshot, node=opened)
    alias, name = _parts_of(str(snapshot))
    try:
        _store_of(node, alias).remove(name)
    except FileNotFoundError:
        raise _no_snapshot(alias, name) from None


def snapshot_names(group: str, *, node: str | Path | None) -> list[str]:
    """Return the names of the snapshots in a group, as in tries; ``node`` is the place of a node.

    Raises InvalidError for a group that the connection has not.
    """
    with connect_or_start(node, pool_size=1) as opened:
        return _store_of(opened, group).names()


def snapshot_on(
    node: Node,
    snapshot: str | SandboxSnapshot,
    others: str = "",
    *,
    is_missing: bool = False,
    isolation: Isolation = Isolation.KERNEL,
) -> SnapshotOnNode:
    """Read a snapshot from its group, and bring it to a node if ``is_missing`` says that this lacks it.

    What this machine has read before is not read again. ``isolation`` is that of the sandboxes.

    Raises InvalidError for a place that has none, StaleError if another one was stored there meanwhile,
    DamagedError for one with other bytes than its digests say, and the errors of bringing an image.
    """
    if others:
        raise InvalidError("a sandbox has a template, packages, an image or a snapshot: leave out the others")
    if node.ambient:
        raise NotSupportedError("a task cannot bring a snapshot to the node: do it outside")
    alias, name = _parts_of(str(snapshot))
    store = _store_of(node, alias)
    try:
        record, digest = store.record(name)
    except FileNotFoundError:
        raise _no_snapshot(alias, name) from None
    if isinstance(snapshot, SandboxSnapshot) and snapshot.digest != digest:
        raise StaleError(f"another snapshot was stored as {snapshot.place} meanwhile: use its place alone")
    changes = archives.kept_with_digest(record.changes.digest)
    if changes is None:
        with archives.building_folder() as folder:
            store.copy(record.changes, folder / "archive")
            changes = change_archives.keep(folder / "archive", record.changes.digest)
        is_missing = True
    opened = ChangeArchive(changes)
    if opened.manifest.base != record.image:
        raise InvalidError(f"the snapshot {name!r} has changes to another image than its record says")
    if is_missing:
        bring_changes(node, opened.archive, lambda: image_of(store, record.image), isolation)
    return SnapshotOnNode(changes.name, name_for(record.image), opened)


def bring_changes(
    node: Node,
    changes: EnvironmentArchive,
    image: Callable[[], EnvironmentArchive],
    isolation: Isolation = Isolation.KERNEL,
) -> None:
    """Bring changes to a node, after their image if that is missing there, too."""
    try:
        brought(node, changes, _HOSTS, "a snapshot", isolation)
    except MissingEnvironmentError:
        brought(node, image(), _HOSTS, "the image of a snapshot", isolation)
        brought(node, changes, _HOSTS, "a snapshot", isolation)


def image_of(store: SnapshotStore, digest: str) -> EnvironmentArchive:
    """Return the archive of a snapshot's image, which is kept for the next time."""
    archive = archives.kept_with_digest(digest)
    if archive is None:
        with archives.building_folder() as folder:
            store.copy_image(digest, folder / "archive")
            archive = archives.keep(folder / "archive", digest, request_of("image", digest))
    return archive


def archive_of_image(node: Node, snapshot: str | SandboxSnapshot) -> EnvironmentArchive:
    """Return the archive of the image of a snapshot. Raise as ``snapshot_on`` does."""
    alias, name = _parts_of(str(snapshot))
    store = _store_of(node, alias)
    return image_of(store, store.record(name)[0].image)


def _no_snapshot(alias: str, name: str) -> InvalidError:
    return InvalidError(
        f"the group {alias!r} has no snapshot {name!r}: `dios ls {alias}/snapshots` lists them"
    )


def _parts_of(place: str) -> tuple[str, str]:
    alias, name = split_group(place)
    if not place.startswith(f"{PROTOCOL}://") or not _NAME.fullmatch(name) or name in _RESERVED:
        raise InvalidError(
            f"{place!r} is no place of a snapshot: give {PROTOCOL}://GROUP/NAME, a name of letters, digits, "
            "'_', '-' and '.'"
        )
    return alias, name


def _store_of(node: Node, alias: str) -> SnapshotStore:
    keyring = Keyring.load()
    known = keyring.groups.get(alias)
    group = None if known is None else node.group(bytes(known))
    if group is None:
        raise InvalidError(f"there is no group {alias!r} of this connection: `dios group ls` lists yours")
    return SnapshotStore(GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group)))
