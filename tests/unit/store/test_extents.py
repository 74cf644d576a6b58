from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from dios import limits
from dios.errors import InvalidError
from dios.store import extents as module
from dios.store.extents import Extents
from dios.store.protocol import FilePayload, InlinePayload
from tests.support.store.records import descriptors

DATA = os.urandom(3 * limits.MIB + 17)


@pytest.fixture
def extents(tmp_path: Path) -> Iterator[Extents]:
    """A fresh folder of extents."""
    opened = Extents(tmp_path / "extents")
    opened.prepare()
    yield opened
    opened.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    """An open file that holds DATA."""
    path = tmp_path / "source"
    path.write_bytes(DATA)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_an_extent_holds_its_bytes_and_tells_their_digest(extents: Extents, source: int) -> None:
    """Bytes and files are written whole, with the digest of what was written."""
    both = extents.write_all([InlinePayload(DATA), FilePayload(source, len(DATA) - 1)])
    for new, expected in zip(both, (DATA, DATA[:-1]), strict=True):
        assert extents.path(new.extent).read_bytes() == expected
        assert new.digest == blake3(expected).digest()
        assert extents.size(new.extent) == len(expected)


def test_an_extent_may_be_read_by_its_owner_only(extents: Extents) -> None:
    """Extents have mode 0400 and their folders 0700."""
    (new,) = extents.write_all([InlinePayload(DATA)])
    path = extents.path(new.extent)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_one_batch_lies_in_one_folder(extents: Extents) -> None:
    """All extents of a batch share a folder, so that one sync makes their names durable."""
    batch = extents.write_all([InlinePayload(b"x" * 100)] * 20)
    assert len({extents.path(new.extent).parent for new in batch}) == 1
    assert sorted(extents.stored()) == sorted({new.extent for new in batch})


def test_a_failed_batch_leaves_no_file_and_no_descriptor(extents: Extents, source: int) -> None:
    """When one of many extents cannot be written, none is there."""
    before = descriptors()
    with pytest.raises(InvalidError, match="ends after"):
        extents.write_all([InlinePayload(DATA), InlinePayload(DATA), FilePayload(source, len(DATA) + 1)])
    assert list(extents.stored()) == []
    assert descriptors() == before


def test_files_that_are_not_extents_are_not_listed(extents: Extents) -> None:
    """Whatever else somebody put into the folders is none of ours."""
    (new,) = extents.write_all([InlinePayload(DATA)])
    folder = extents.path(new.extent).parent
    for name in (
        "README",
        "0",
        "0x12",
        "-1",
        new.digest.hex()[:15],
        extents.path(new.extent).name.upper() + "F",
    ):
        (folder / name).write_text("mine")
    assert list(extents.stored()) == [new.extent]


def test_removing_what_is_gone_is_nothing(extents: Extents) -> None:
    """Removal is repeatable."""
    (new,) = extents.write_all([InlinePayload(DATA)])
    extents.remove([new.extent, new.extent, 12345])
    assert extents.size(new.extent) is None
    with pytest.raises(FileNotFoundError):
        extents.open(new.extent)


def test_an_opened_extent_is_read_only(extents: Extents) -> None:
    """The descriptor of an extent does not write."""
    (new,) = extents.write_all([InlinePayload(DATA)])
    fd = extents.open(new.extent)
    try:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            os.write(fd, b"x")
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(fd)


def test_a_link_in_place_of_an_extent_is_not_followed(extents: Extents, tmp_path: Path) -> None:
    """Nobody makes the store read another file by a symbolic link."""
    (tmp_path / "secret").write_text("secret")
    extents.path(7).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links") as caught:
        extents.open(7)
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("way", [module._copy_file_range, module._send_file, module._copy_through_memory])
def test_every_way_to_copy_gives_the_same_bytes(way: module.Copy, tmp_path: Path, source: int) -> None:
    """Whichever copy the file system allows, piece by piece, the result is the same."""
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        done = 0
        try:
            while done < len(DATA):
                done += way(source, target, done, min(100_001, len(DATA) - done))
        except OSError as error:
            pytest.skip(f"this file system refuses it: errno {error.errno}")
        assert os.pread(target, len(DATA) + 1, 0) == DATA
    finally:
        os.close(target)


def test_a_memfd_is_copied_whole(tmp_path: Path) -> None:
    """Copying between memory and disk works, whatever way the kernel refuses."""
    source = os.memfd_create("source", os.MFD_CLOEXEC)
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(source, DATA)
        module.copy_file(source, target, len(DATA))
        assert os.pread(target, len(DATA) + 1, 0) == DATA
    finally:
        os.close(source)
        os.close(target)


def test_a_file_shorter_than_told_has_no_digest(source: int) -> None:
    """The digest of more bytes than there are is None, not the digest of fewer."""
    assert module.digest_of_file(source, len(DATA)) == blake3(DATA).digest()
    assert module.digest_of_file(source, len(DATA) + 1) is None
    assert module.digest_of_file(source, 0) == blake3(b"").digest()
