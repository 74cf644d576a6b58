from __future__ import annotations

from pathlib import Path

from dios.store.lmdb_store import LmdbStore


def test_the_owner_alone_can_enter_the_store(tmp_path: Path) -> None:
    """The database's folder is open to its owner, also one who is not root, and to nobody else."""
    LmdbStore(tmp_path).close()
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "store" / "data.mdb").stat().st_mode & 0o077 == 0
