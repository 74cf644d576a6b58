"""A commit of the database that fails at its very last page: what it leaves, and what the store says."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.errors import DamagedError
from dios.store.lmdb_store import LmdbStore
from tests.support.store.records import content, put

LARGE, OTHER = b"large" * 20_000, b"other" * 20_000


def meta_descriptor(data: Path) -> int:
    """The descriptor through which LMDB writes its meta pages: the one that syncs each write."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and entry.readlink() == data / "store" / "data.mdb":
            fd = int(entry.name)
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC:
                return fd
    pytest.skip("this LMDB keeps no descriptor of its own for meta pages")


@contextlib.contextmanager
def last_page_refused(data: Path, device: str, flags: int) -> Iterator[None]:
    """Inside, meta pages go to a device that takes nothing."""
    meta = meta_descriptor(data)
    kept, refusing = os.dup(meta), os.open(device, flags)
    try:
        os.dup2(refusing, meta, inheritable=False)
        yield
    finally:
        os.dup2(kept, meta, inheritable=False)
        os.close(refusing)
        os.close(kept)


@pytest.mark.parametrize(("device", "flags"), [("/dev/full", os.O_RDWR), ("/dev/null", os.O_RDONLY)])
def test_a_commit_that_fails_at_its_last_page_stops_the_store(
    tmp_path: Path, device: str, flags: int
) -> None:
    """Whatever the cause, all calls say to restart, and the new extent stays until the next start."""
    store = LmdbStore(tmp_path)
    try:
        store.recover()
        store.apply([put(1, LARGE)])
        with (
            last_page_refused(tmp_path, device, flags),
            pytest.raises(DamagedError, match="Restart the node"),
        ):
            store.apply([put(1, OTHER)])
        with pytest.raises(DamagedError, match="Restart the node"):
            store.apply([put(2, b"small")])
        with pytest.raises(DamagedError, match="Restart the node"):
            store.open_content(put(1, b"").record.object)
        # The page may be on the disk after all, and would name it.
        assert sum(len(files) for _, _, files in os.walk(tmp_path / "extents")) == 2
    finally:
        store.close()
    again = LmdbStore(tmp_path)
    try:
        again.recover()
        assert content(again, 1) == LARGE
        assert not again.damaged
        assert again.usage()["extents"] == 1
    finally:
        again.close()
