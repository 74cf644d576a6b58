"""Images on a node's disk: unpacked once, with their permissions, and never outside their folder."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from dios import limits
from dios.errors import InvalidError, MissingEnvironmentError, NotSupportedError
from dios.host.confinement.privileges import UNPRIVILEGED_ID
from dios.host.containers import runtimes
from dios.host.environments.store import EnvironmentStore
from dios.ids import Principal
from dios.wire.environments import LENGTH, ArchiveDigest
from dios.wire.images import MAGIC, EntryKind, ImageEntry, ImageManifest, ImageSettings

USER = Principal("uid:1000")
SETTINGS = ImageSettings(("A=b",), "/bin")
ENTRIES = (
    ImageEntry("bin", EntryKind.FOLDER, 0o500),
    ImageEntry("tmp", EntryKind.FOLDER, 0o1777),
    ImageEntry("bin/other", EntryKind.FILE, 0o000, 5),
    ImageEntry("bin/tool", EntryKind.FILE, 0o755, 3),
    ImageEntry("bin/up", EntryKind.SYMLINK, 0, 0, "../../../etc/passwd"),
    ImageEntry("bin/same", EntryKind.HARD_LINK, 0, 0, "bin/tool"),
)


def archive_with(
    *entries: ImageEntry, contents: bytes = b"12345abc", machine: str = os.uname().machine
) -> tuple[str, bytes]:
    """The digest and the bytes of an archive, which nothing has checked."""
    body = msgspec.msgpack.encode(ImageManifest(machine, SETTINGS, entries))
    whole = MAGIC + LENGTH.pack(len(body)) + body + contents
    digest = ArchiveDigest()
    digest.add(whole)
    return digest.text, whole


def files_below(folder: Path) -> list[Path]:
    """All files and links below a folder."""
    return [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a runtime, which the store does not start."""
    monkeypatch.setattr(runtimes, "_PLACES", str(Path(sys.executable).parent))
    monkeypatch.setattr(runtimes, "KNOWN", {Path(sys.executable).name: runtimes.RuntimeKind()})


def store_at(folder: Path, container_runtime: str = runtimes.ANY) -> EnvironmentStore:
    """The store in a folder, opened."""
    store = EnvironmentStore(folder, limits.ENVIRONMENTS_BYTES_DEFAULT, container_runtime)
    store.open()
    return store


async def test_a_node_without_images_writes_nothing_of_one(tmp_path: Path) -> None:
    """Its owner's setting, or a machine without a runtime, is known before the archive is unpacked."""
    digest, whole = archive_with(*ENTRIES)
    for setting, reason in ((runtimes.NO_RUNTIME, "runs no images"), ("crun", "no OCI runtime")):
        store = store_at(tmp_path, setting)
        with pytest.raises(NotSupportedError, match=reason):
            await store.ensure(USER, digest, whole)
        with pytest.raises(MissingEnvironmentError):
            await store.ensure(USER, digest, None)
    assert files_below(tmp_path) == []


async def test_an_image_is_unpacked_and_known_after_a_restart(tmp_path: Path) -> None:
    """The node can read and remove everything; links are made and not followed."""
    store = store_at(tmp_path)
    digest, whole = archive_with(*ENTRIES)
    key = await store.ensure(USER, digest, whole)
    root = store.packages_of(key)
    assert (root / "bin/tool").read_bytes() == b"abc"
    assert (root / "bin/same").stat().st_ino == (root / "bin/tool").stat().st_ino
    assert os.readlink(root / "bin/up") == "../../../etc/passwd"  # noqa: PTH115 - the text of the link
    modes = {
        name: stat.S_IMODE((root / name).stat().st_mode) for name in ("bin", "tmp", "bin/other", "bin/tool")
    }
    assert modes == {"bin": 0o700, "tmp": 0o1777, "bin/other": 0o400, "bin/tool": 0o755}
    for again in (store, store_at(tmp_path)):
        assert again.image_of(key) == SETTINGS
    (environment,) = await store.prune()
    assert environment.about.files == len(ENTRIES)
    assert store.image_of(key) is None
    assert not root.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
async def test_the_files_belong_to_the_user_of_tasks(tmp_path: Path) -> None:
    """That user is root in a container, and could not change the files of another one there."""
    store = store_at(tmp_path)
    digest, whole = archive_with(*ENTRIES)
    root = store.packages_of(await store.ensure(USER, digest, whole))
    owners = {path.lstat().st_uid for path in (root, *root.rglob("*"))}
    assert owners == {UNPRIVILEGED_ID}


@pytest.mark.parametrize(
    "entries",
    [
        (ImageEntry("../escaped", EntryKind.FILE),),
        (ImageEntry("way", EntryKind.SYMLINK, 0, 0, "/tmp"), ImageEntry("way/escaped", EntryKind.FILE)),
        (ImageEntry("escaped", EntryKind.HARD_LINK, 0, 0, "../../../about.json"),),
        (ImageEntry("escaped", EntryKind.HARD_LINK, 0, 0, "/etc/passwd"),),
        (ImageEntry("dev", EntryKind.SYMLINK, 0, 0, "/tmp"),),
        (ImageEntry("f", EntryKind.FILE, 0, 100),),
        (ImageEntry("f", EntryKind.FILE, 0, 1),),
    ],
)
async def test_a_hostile_archive_leaves_nothing(tmp_path: Path, entries: tuple[ImageEntry, ...]) -> None:
    """Whatever its caller has not checked, the node does."""
    store = store_at(tmp_path / "environments")
    digest, whole = archive_with(*entries)
    with pytest.raises(InvalidError):
        await store.ensure(USER, digest, whole)
    assert files_below(tmp_path) == []


async def test_the_digest_is_that_of_all_bytes(tmp_path: Path) -> None:
    """Another byte in a file, and other permissions, are another image."""
    store = store_at(tmp_path)
    digest, _ = archive_with(*ENTRIES)
    for other in (
        archive_with(*ENTRIES, contents=b"12345abX")[1],
        archive_with(*ENTRIES[:3], ImageEntry("bin/tool", EntryKind.FILE, 0o777, 3))[1],
    ):
        with pytest.raises(InvalidError, match="another digest"):
            await store.ensure(USER, digest, other)
    assert store.all == []


async def test_an_image_of_another_machine_is_refused(tmp_path: Path) -> None:
    """Before it is unpacked."""
    digest, whole = archive_with(*ENTRIES, machine="riscv64")
    with pytest.raises(NotSupportedError, match="riscv64"):
        await store_at(tmp_path).ensure(USER, digest, whole)
