from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dios.errors import DiosError
from dios.store.directory import lock_directory, make_directory
from dios.store.lmdb_store import LmdbStore
from tests.support.store.records import descriptors

HOLD = """
import sys
from pathlib import Path
from dios.store.lmdb_store import LmdbStore
store = LmdbStore(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
store.close()
"""


def test_directories_are_for_their_owner(tmp_path: Path) -> None:
    """Every directory that is made is entered by its owner only; one that is there is left alone."""
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_second_process_is_told_who_has_the_store(tmp_path: Path) -> None:
    """While a process has a store open, another is refused with its process id; afterwards it is not."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DiosError, match=rf"in use by process {holder.pid}\."):
            LmdbStore(tmp_path / "data")
        assert holder.stdin is not None
        holder.stdin.close()
        assert holder.wait(30) == 0
    LmdbStore(tmp_path / "data").close()


def test_a_second_store_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """The lock holds within one process too, and a refused store leaves no descriptor behind."""
    store = LmdbStore(tmp_path / "data")
    before = descriptors()
    with pytest.raises(DiosError, match=f"process {os.getpid()}"):
        LmdbStore(tmp_path / "data")
    assert descriptors() == before
    store.close()


def test_an_unreadable_holder_is_another_process(tmp_path: Path) -> None:
    """A lock whose process wrote no id yet still refuses."""
    fd = lock_directory(tmp_path)
    (tmp_path / "lock").write_text("")
    with pytest.raises(DiosError, match="in use by another process"):
        lock_directory(tmp_path)
    os.close(fd)


def test_a_lock_that_is_let_go_meanwhile_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a killed process' child has for a moment more is waited for, and not refused."""
    first = lock_directory(tmp_path)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            os.close(first)

    monkeypatch.setattr(time, "sleep", pause)
    os.close(lock_directory(tmp_path))
    assert len(pauses) == 3
