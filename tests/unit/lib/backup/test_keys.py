"""The files of a key pair: their text, and files that are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dios.errors import InvalidError, NotPermittedError
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import (
    PrivateKey,
    Recipient,
    generate,
    load_private,
    load_recipient,
    save_pair,
    unwrap,
    wrap,
)
from dios.lib.packs.writer_state import StateFile, WriterState

PAIR = PrivateKey(bytes(range(32)), bytes(range(32, 64)))


def test_the_files_have_these_lines(tmp_path: Path) -> None:
    """A key is one line of hexadecimal digits with a check, and only its owner can read it."""
    public = save_pair(tmp_path / "key", PAIR)
    private_line = (tmp_path / "key").read_text().splitlines()[-1]
    assert private_line == f"dios-backup-key-1 {bytes(range(64)).hex()} 30591ec3"
    public_line = public.read_text().splitlines()[-1]
    assert public_line == (
        "dios-backup-recipient-1 8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
        f"{bytes(range(32, 64)).hex()} 3dcea700"
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert load_private(tmp_path / "key") == PAIR
    assert load_recipient(public) == PAIR.recipient()


def test_no_key_is_written_over(tmp_path: Path) -> None:
    """A second pair in the same place is refused, and the first stays."""
    save_pair(tmp_path / "key", PAIR)
    with pytest.raises(FileExistsError):
        save_pair(tmp_path / "key", generate())
    (tmp_path / "key").unlink()
    with pytest.raises(FileExistsError):
        save_pair(tmp_path / "key", generate())
    assert not (tmp_path / "key").exists()


def test_files_that_are_no_keys_are_refused(tmp_path: Path) -> None:
    """The wrong half, a mistyped digit, and a file that others may read have their own messages."""
    public = save_pair(tmp_path / "key", PAIR)
    with pytest.raises(InvalidError, match=r"FILE\.pub, which is for --recipient"):
        load_private(public)
    with pytest.raises(InvalidError):
        load_recipient(tmp_path / "key")
    public.write_text(public.read_text().replace("8f40", "8f41"))
    with pytest.raises(InvalidError, match="or it is damaged"):
        load_recipient(public)
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(NotPermittedError, match="chmod 600"):
        load_private(tmp_path / "key")


def test_a_key_is_wrapped_for_its_recipient_alone() -> None:
    """Neither another key, nor one whose writers have another secret, opens it."""
    wrapped = wrap(bytes(32), PAIR.recipient(), bytes(16))
    assert unwrap(wrapped, PAIR, bytes(16)) == bytes(32)
    for other in (generate(), PrivateKey(PAIR.private, bytes(32))):
        with pytest.raises(DamagedBackupError, match="cannot open"):
            unwrap(wrapped, other, bytes(16))


def test_who_knows_only_the_public_key_makes_no_backup_of_ours() -> None:
    """A store that wraps a key of its own without the writers' secret is found out."""
    forged = wrap(bytes(32), Recipient(PAIR.recipient().public, bytes(32)), bytes(16))
    with pytest.raises(DamagedBackupError):
        unwrap(forged, PAIR, bytes(16))


def test_keys_are_synced_with_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops right after a key was written has it: whatever it seals is of no use otherwise."""
    synced: list[Path] = []
    sync = os.fsync

    def noting(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        sync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    save_pair(tmp_path / "key", PAIR)
    assert synced.count(tmp_path) == 2
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    state = StateFile("place")
    state.save(WriterState(bytes(16), bytes(32)))
    folder = state.path.parent
    assert {tmp_path / "config", folder.parent} <= set(synced)
    assert synced.index(state.path.with_suffix(".new")) < len(synced) - 1 - synced[::-1].index(folder)
