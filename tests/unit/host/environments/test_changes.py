"""Changes of images on a node's disk: above their image, and never outside their folder."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from dios import limits
from dios.errors import InvalidError, MissingEnvironmentError
from dios.host.containers import runtimes
from dios.host.environments.store import EnvironmentStore, key_for
from dios.ids import Principal
from dios.wire import images
from dios.wire.environments import LENGTH, ArchiveDigest
from dios.wire.images import ChangeEntry, ChangeManifest, EntryKind, ImageEntry, ImageManifest, ImageSettings

USER = Principal("uid:1000")
OTHER = Principal("uid:1001")
SETTINGS = ImageSettings(("A=b",), "/bin")
IMAGE = (
    ImageEntry("bin", EntryKind.FOLDER, 0o755),
    ImageEntry("bin/tool", EntryKind.FILE, 0o755, 3),
    ImageEntry("way", EntryKind.SYMLINK, 0, 0, "/"),
)


def archive_of(magic: bytes, manifest: msgspec.Struct, contents: bytes) -> tuple[str, bytes]:
    """The digest and the bytes of an archive, which nothing has checked."""
    body = msgspec.msgpack.encode(manifest)
    whole = magic + LENGTH.pack(len(body)) + body + contents
    digest = ArchiveDigest()
    digest.add(whole)
    return digest.text, whole


def image_archive() -> tuple[str, bytes]:
    """The archive of an image with a tool."""
    return archive_of(images.MAGIC, ImageManifest(os.uname().machine, SETTINGS, IMAGE), b"abc")


def changes_of(base: str, *entries: ChangeEntry, contents: bytes = b"") -> tuple[str, bytes]:
    """The archive of changes to an image."""
    return archive_of(images.MAGIC_OF_CHANGES, ChangeManifest(base, entries), contents)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a runtime, which the store does not start."""
    monkeypatch.setattr(runtimes, "_PLACES", str(Path(sys.executable).parent))
    monkeypatch.setattr(runtimes, "KNOWN", {Path(sys.executable).name: runtimes.RuntimeKind()})
    if os.geteuid():
        pytest.skip("only root makes the mark of a removed file, and only nodes of root run images")


@pytest.fixture
def store(tmp_path: Path) -> EnvironmentStore:
    """A store without environments."""
    opened = EnvironmentStore(tmp_path / "store", limits.ENVIRONMENTS_BYTES_DEFAULT, runtimes.ANY)
    opened.open()
    return opened


async def test_changes_are_above_their_image_also_after_a_restart(
    store: EnvironmentStore, tmp_path: Path
) -> None:
    """Removed files and replaced folders are marked as the kernel reads them; times are kept."""
    base, whole = image_archive()
    await store.ensure(USER, base, whole)
    digest, whole = changes_of(
        base,
        ChangeEntry("bin", EntryKind.REPLACED_FOLDER, 0o700, modified_ns=7_000_000_000),
        ChangeEntry("bin/own", EntryKind.FILE, 0o640, 2, "", 5_000_000_000, (("user.a", b"b"),)),
        ChangeEntry("way", EntryKind.REMOVED),
        contents=b"xy",
    )
    key = await store.ensure(USER, digest, whole)
    again = EnvironmentStore(tmp_path / "store", limits.ENVIRONMENTS_BYTES_DEFAULT, runtimes.ANY)
    again.open()
    for opened in (store, again):
        assert opened.image_of(key) == SETTINGS
        assert opened.base_of(key) == opened.packages_of(key_for(USER, base))
        assert opened.base_of(key_for(USER, base)) is None
    folder = store.packages_of(key)
    assert os.getxattr(folder / "bin", "user.overlay.opaque") == b"y"
    assert (folder / "bin" / "own").read_bytes() == b"xy"
    assert os.getxattr(folder / "bin" / "own", "user.a") == b"b"
    assert stat.S_IMODE((folder / "bin" / "own").stat().st_mode) == 0o640
    assert [(folder / name).stat().st_mtime for name in ("bin", "bin/own")] == [7.0, 5.0]
    mark = (folder / "way").lstat()
    assert stat.S_ISCHR(mark.st_mode)
    assert mark.st_rdev == 0


async def test_what_the_image_has_not_is_not_marked_as_removed(store: EnvironmentStore) -> None:
    """No link of the image is followed on the way, so that no file of the machine is looked for."""
    base, whole = image_archive()
    await store.ensure(USER, base, whole)
    digest, whole = changes_of(
        base,
        ChangeEntry("bin", EntryKind.FOLDER, 0o755),
        ChangeEntry("bin/nothing", EntryKind.REMOVED),
        ChangeEntry("bin/tool", EntryKind.REMOVED),
        ChangeEntry("way", EntryKind.FOLDER, 0o755),
        ChangeEntry("way/etc", EntryKind.REMOVED),
        ChangeEntry("own", EntryKind.REPLACED_FOLDER, 0o755),
        ChangeEntry("own/x", EntryKind.REMOVED),
    )
    folder = store.packages_of(await store.ensure(USER, digest, whole))
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "bin",
        "bin/tool",
        "own",
        "way",
    ]


async def test_changes_need_an_image_of_the_same_user(store: EnvironmentStore) -> None:
    """Without it, of another user, or above other changes, nothing is written."""
    base, whole = image_archive()
    digest, changes = changes_of(base)
    with pytest.raises(MissingEnvironmentError, match="has not the image"):
        await store.ensure(USER, digest, changes)
    await store.ensure(OTHER, base, whole)
    with pytest.raises(MissingEnvironmentError, match="has not the image"):
        await store.ensure(USER, digest, changes)
    await store.ensure(USER, base, whole)
    await store.ensure(USER, digest, changes)
    above, others = changes_of(digest)
    with pytest.raises(InvalidError, match="something else than an image"):
        await store.ensure(USER, above, others)
    assert len(store.all) == 3


async def test_an_image_stays_while_tasks_run_in_changes_of_it(store: EnvironmentStore) -> None:
    """When it is gone, the changes are as good as missing, until it is brought again."""
    base, whole = image_archive()
    await store.ensure(USER, base, whole)
    digest, changes = changes_of(base)
    key = await store.ensure(USER, digest, changes)
    with store.holding(key):
        assert await store.prune(base) == []
    assert len(await store.prune(base)) == 1
    with pytest.raises(MissingEnvironmentError, match="has not the image"):
        await store.ensure(USER, digest, None)
    await store.ensure(USER, base, whole)
    assert await store.ensure(USER, digest, None) == key
