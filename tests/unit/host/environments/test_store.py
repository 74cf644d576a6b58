"""The environments on a node's disk: complete or not there, within a bound, each of one principal."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.errors import InvalidError, NoSpaceError, NotSupportedError
from dios.host.environments import unpacking
from dios.host.environments.store import EnvironmentStore, key_for
from dios.ids import Principal
from tests.support.host.environments import archive_of

USER, OTHER = Principal("uid:1000"), Principal("uid:1001")
FILES = {"fruit/__init__.py": "KIND = 'pear'\n", "fruit/data.txt": "x" * 5000}
DIGEST, ARCHIVE = archive_of(FILES)
SIZE = 4096 * (1 + 2 + 2 + 1 + 2)


def store_at(folder: Path, bytes_max: int = limits.ENVIRONMENTS_BYTES_DEFAULT) -> EnvironmentStore:
    """The store in a folder, opened."""
    store = EnvironmentStore(folder, bytes_max)
    store.open()
    return store


def left_in(folder: Path) -> list[str]:
    """All files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_an_environment_is_made_once_and_is_there_after_a_restart(tmp_path: Path) -> None:
    """Its files are those of the archive, readable for all and writable for nobody else; no source is needed
    again.
    """
    store = store_at(tmp_path)
    key = await store.ensure(USER, DIGEST, ARCHIVE)
    packages = store.packages_of(key)
    assert {name: (packages / name).read_text() for name in FILES} == FILES
    assert {path.stat().st_mode & 0o777 for path in packages.rglob("*")} == {0o755, 0o644}
    for again in (store, store_at(tmp_path)):
        assert await again.ensure(USER, DIGEST, None) == key
        (environment,) = again.all
        assert environment.about.size == SIZE
        assert [package.name for package in environment.about.packages] == ["fruit"]


async def test_an_environment_belongs_to_one_principal(tmp_path: Path) -> None:
    """Who knows the digest of another user's environment, and not its bytes, gets nothing."""
    store = store_at(tmp_path)
    await store.ensure(USER, DIGEST, ARCHIVE)
    with pytest.raises(NotSupportedError, match="no environment"):
        await store.ensure(OTHER, DIGEST, None)
    assert await store.ensure(OTHER, DIGEST, ARCHIVE) == key_for(OTHER, DIGEST) != key_for(USER, DIGEST)


async def test_a_claim_without_its_bytes_makes_no_room(tmp_path: Path) -> None:
    """The environments of others stay if the manifest claims more than the archive has."""
    store = store_at(tmp_path, 3 * SIZE)
    await store.ensure(OTHER, DIGEST, ARCHIVE)
    digest, large = archive_of({"large.bin": "x" * (2 * SIZE)})
    with pytest.raises(InvalidError, match="cut off"):
        await store.ensure(USER, digest, large[:-1])
    assert [environment.about.digest for environment in store.all] == [DIGEST]


async def test_a_node_without_environments_starts_nothing_in_former_ones(tmp_path: Path) -> None:
    """The bound 0 is for those that are there, too."""
    await store_at(tmp_path).ensure(USER, DIGEST, ARCHIVE)
    with pytest.raises(NotSupportedError, match="environments_bytes = 0"):
        await store_at(tmp_path, 0).ensure(USER, DIGEST, None)


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (b"", "cut off"),
        (ARCHIVE[:-1], "cut off"),
        (ARCHIVE + b"x", "more bytes"),
        (ARCHIVE[:-1] + b"y", "another digest"),
        (b"PK\3\4" + ARCHIVE, "no archive"),
        (ARCHIVE[:8] + b"\xff\xff\xff\x7f" + ARCHIVE[12:], "too long"),
    ],
)
async def test_what_is_not_the_archive_leaves_nothing(tmp_path: Path, archive: bytes, reason: str) -> None:
    """Bytes that do not belong to the digest are refused with the reason, and no file is left."""
    store = store_at(tmp_path)
    with pytest.raises(InvalidError, match=reason):
        await store.ensure(USER, DIGEST, archive)
    assert not store.all
    assert not left_in(tmp_path)
    assert await store.ensure(USER, DIGEST, ARCHIVE)


async def test_an_archive_is_read_from_a_descriptor_which_is_closed(tmp_path: Path) -> None:
    """The descriptor is closed after success, failure and when the environment is there already."""
    store = store_at(tmp_path / "store")
    file = tmp_path / "archive"
    for content in (ARCHIVE[:-1], ARCHIVE, ARCHIVE):
        file.write_bytes(content)
        number = os.open(file, os.O_RDONLY)
        try:
            await store.ensure(USER, DIGEST, number)
        except InvalidError:
            assert content != ARCHIVE
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(number)


async def test_a_build_that_is_given_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the task that wants it is killed, the build stops at its next file; another one succeeds."""
    store = store_at(tmp_path)
    begun, real = threading.Event(), unpacking.unpack

    def waiting(*args: object) -> bool:
        begun.set()
        stop = args[-1]
        assert isinstance(stop, threading.Event)
        assert stop.wait(60)
        return real(*args)  # type: ignore[arg-type]  # the same arguments

    monkeypatch.setattr(unpacking, "unpack", waiting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.ensure, USER, DIGEST, ARCHIVE)
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
    assert not store.all
    assert not left_in(tmp_path)
    monkeypatch.undo()
    await store.ensure(USER, DIGEST, ARCHIVE)
    assert len(store.all) == 1


async def test_a_killed_node_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """What is not complete is removed at the next start: a temporary folder, one without its record."""
    key = await store_at(tmp_path).ensure(USER, DIGEST, ARCHIVE)
    (tmp_path / ".temporary" / "1-1" / "packages").mkdir(parents=True)
    broken = tmp_path / key_for(USER, "f" * 40)
    (broken / "packages").mkdir(parents=True)
    (broken / "about.json").write_bytes(b"{")
    moved = tmp_path / key_for(OTHER, DIGEST)
    moved.parent.mkdir()
    (tmp_path / key).rename(moved)
    assert not store_at(tmp_path).all
    assert not left_in(tmp_path)


async def test_the_ones_that_were_used_least_recently_make_room(tmp_path: Path) -> None:
    """Within the bound all stay; one that is used stays in any case, and then a new one is refused."""
    store = store_at(tmp_path, 2 * SIZE)
    archives = [archive_of({"fruit/a.py": "", f"fruit/{number}.txt": "y" * 5000}) for number in range(3)]
    keys = [await store.ensure(USER, *archive) for archive in archives[:2]]
    await store.ensure(USER, archives[0][0], None)
    keys.append(await store.ensure(USER, *archives[2]))
    assert {environment.key for environment in store.all} == {keys[0], keys[2]}
    with store.holding(keys[0]):
        store.end_idle = lambda key: key != keys[2]
        with pytest.raises(NoSpaceError, match="running tasks"):
            await store.ensure(USER, *archives[1])
    assert {environment.key for environment in store.all} == {keys[0], keys[2]}


async def test_an_environment_over_the_bound_is_refused(tmp_path: Path) -> None:
    """Nothing else is removed for it; with the bound 0 the node has none at all."""
    with pytest.raises(NoSpaceError, match="environments_bytes"):
        await store_at(tmp_path, SIZE - 1).ensure(USER, DIGEST, ARCHIVE)
    with pytest.raises(NotSupportedError, match="environments_bytes"):
        await store_at(tmp_path, 0).ensure(USER, DIGEST, ARCHIVE)
    assert not left_in(tmp_path)


async def test_packages_for_another_python_are_refused(tmp_path: Path) -> None:
    """The node names both."""
    digest, archive = archive_of(FILES, python="cpython-27 linux vax")
    with pytest.raises(NotSupportedError, match="cpython-27 linux vax"):
        await store_at(tmp_path).ensure(USER, digest, archive)


async def test_unused_environments_are_pruned(tmp_path: Path) -> None:
    """Those of a digest, or those that were not used for a time; never one that is used."""
    store = store_at(tmp_path)
    other = archive_of({"x.py": ""})
    keys = [await store.ensure(USER, DIGEST, ARCHIVE), await store.ensure(USER, *other)]
    assert await store.prune(unused_s=3600) == []
    assert [environment.key for environment in await store.prune(DIGEST)] == [keys[0]]
    with store.holding(keys[1]):
        assert await store.prune() == []
    assert [environment.key for environment in await store.prune()] == [keys[1]]
    assert not left_in(tmp_path)
