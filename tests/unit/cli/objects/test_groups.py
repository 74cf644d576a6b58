from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from dios.cli.objects import groups
from dios.client.keyring import Keyring
from dios.ids import Name
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS
from dios.lib.kept.promises import KeptStatus, Promises
from dios.lib.kept.records import ShortObject


@pytest.fixture
def _keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyring with two groups, one with a catalogue."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    keyring = Keyring.load()
    keyring.add("old", Name(b"\x01" * 32))
    keyring.add(CATALOGUE_ALIAS + "old", Name(b"\x02" * 32), section="objects")
    keyring.add("other", Name(b"\x03" * 32))


@pytest.mark.usefixtures("_keyring")
def test_an_alias_can_be_free_again() -> None:
    """A forgotten group goes from the keyring with its catalogue, and no other does; no node need run."""
    done = CliRunner().invoke(groups.app, ["forget", "old", "--yes"])
    assert done.exit_code == 0, done.output
    assert list(Keyring.load().groups) == ["other"]
    assert not Keyring.load().objects


@pytest.mark.usefixtures("_keyring")
@pytest.mark.parametrize(("words", "told"), [(["old"], "--yes"), (["none", "--yes"], "has no 'none'")])
def test_a_group_is_not_forgotten_by_mistake(words: list[str], told: str) -> None:
    """Without a terminal to ask at it takes --yes, and an alias that there is."""
    done = CliRunner().invoke(groups.app, ["forget", *words])
    assert done.exit_code == 1
    assert told in done.output
    assert list(Keyring.load().groups) == ["old", "other"]


def test_parts_of_a_file_that_are_short_are_listed_by_their_file() -> None:
    """Several objects of one file have the same label, and the others that of the list of the files."""
    short = [ShortObject(mark, "p", 2, 1, 0, "") for mark in ("c", "b", "a")]
    promises = cast("Promises", SimpleNamespace(short_objects=lambda: short))
    promise = KeptStatus("p", "papers", 2, apart=False, is_single=False)
    listed = groups._short_rows(promises, {"b": "large", "c": "large"}, promise)
    assert [(row.file, row.fingerprint) for row in listed] == [
        ("(the list of the files)", "a"),
        ("large", "b"),
        ("large", "c"),
    ]
