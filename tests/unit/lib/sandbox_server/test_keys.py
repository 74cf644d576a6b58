"""The file of the server's keys."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dios.errors import DiosError, ExistsError, InvalidError, NotPermittedError
from dios.lib.sandbox_server.keys import KeyBounds, KeyFile

BOUNDS = KeyBounds(sandboxes=2, memory_bytes=1 << 30, seconds=60)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    """An empty file of keys."""
    return KeyFile(tmp_path / "dios" / "keys.json")


def test_a_key_is_found_by_its_text_alone(keys: KeyFile) -> None:
    """The file has its digest, and no part of its text."""
    secret = keys.add("laptop", "uid:1000", BOUNDS)
    record = keys.owner(secret)
    assert record is not None
    assert (record.name, record.principal, record.bounds) == ("laptop", "uid:1000", BOUNDS)
    for other in ("", secret[:-1], secret + "0", secret.upper(), record.digest, "e2b_" + "0" * 40, "ä" * 44):
        assert keys.owner(other) is None
    stored = keys.path.read_text()
    assert secret not in stored
    assert secret.removeprefix("e2b_") not in stored
    assert keys.path.stat().st_mode & 0o777 == 0o600


def test_a_key_without_a_user_is_its_own_principal(keys: KeyFile) -> None:
    """Its bounds count its own sandboxes alone."""
    keys.add("a", "", BOUNDS)
    assert keys.keys()["a"].principal == "key:a"


def test_changes_of_other_processes_count_at_once(keys: KeyFile) -> None:
    """A server that runs reads the file again when it has changed."""
    running = KeyFile(keys.path)
    assert not running.keys()
    secret = keys.add("a", "", BOUNDS)
    assert running.owner(secret) is not None
    keys.remove("a")
    assert running.owner(secret) is None
    keys.path.unlink()
    assert not running.keys()


def test_names_are_checked(keys: KeyFile) -> None:
    """A name is taken once, and has letters, digits and inner hyphens."""
    keys.add("a-1", "", BOUNDS)
    with pytest.raises(ExistsError):
        keys.add("a-1", "", BOUNDS)
    for name in ("", "A", "-a", "a-", "a.b", "a/b", "a" * 41, "ä"):
        with pytest.raises(InvalidError):
            keys.add(name, "", BOUNDS)
    with pytest.raises(InvalidError):
        keys.remove("b")
    assert list(keys.keys()) == ["a-1"]


def test_a_file_that_others_could_read_or_that_is_damaged_is_refused(keys: KeyFile) -> None:
    """Nobody is admitted by it until its owner has looked at it."""
    secret = keys.add("a", "", BOUNDS)
    keys.path.chmod(0o640)
    with pytest.raises(NotPermittedError):
        KeyFile(keys.path).owner(secret)
    keys.path.chmod(0o600)
    for text in ("", "[]", json.dumps({"version": 2, "keys": []}), '{"version": 1, "keys": [{}]}'):
        keys.path.write_text(text)
        with pytest.raises(DiosError):
            KeyFile(keys.path).owner(secret)


def test_nothing_is_left_of_a_change_that_failed(keys: KeyFile) -> None:
    """The folder has the file of keys alone."""
    keys.add("a", "", BOUNDS)
    with pytest.raises(ExistsError):
        keys.add("a", "", BOUNDS)
    assert os.listdir(keys.path.parent) == ["keys.json"]  # noqa: PTH208 - names
