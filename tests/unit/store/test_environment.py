from __future__ import annotations

from pathlib import Path

from dios.store.environment import EXTENTS, prepare_new
from dios.store.lmdb_store import LmdbStore


def test_a_new_store_finds_the_folders_that_were_prepared(tmp_path: Path) -> None:
    """The folders are those that the store would make, and it opens with them."""
    prepare_new(tmp_path)
    prepared = sorted((tmp_path / EXTENTS).iterdir())
    LmdbStore(tmp_path).close()
    assert len(prepared) == 256
    assert sorted((tmp_path / EXTENTS).iterdir()) == prepared


def test_a_store_with_a_database_is_left_alone(tmp_path: Path) -> None:
    """A folder that is missing in an old store is missing afterwards: opening the store makes it."""
    LmdbStore(tmp_path).close()
    (tmp_path / EXTENTS / "00").rmdir()
    prepare_new(tmp_path)
    assert not (tmp_path / EXTENTS / "00").exists()


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    """The store reports it when it is opened."""
    (tmp_path / EXTENTS).write_text("a file")
    prepare_new(tmp_path)
    assert (tmp_path / EXTENTS).is_file()
