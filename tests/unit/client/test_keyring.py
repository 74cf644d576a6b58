from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dios import limits
from dios.client import keyring as keyring_module
from dios.client.keyring import Keyring, _write, default_path
from dios.errors import ExistsError, InvalidError, NotPermittedError
from dios.ids import Name
from dios.wire.nametext import format_name, parse_name

ONE = Name(b"1" * 32)
TWO = Name(b"2" * 32)


def test_absent_file_is_an_empty_keyring(tmp_path: Path) -> None:
    """Nobody has to make the file first."""
    keyring = Keyring.load(tmp_path / "none" / "keyring.toml")
    assert not keyring.groups
    assert not keyring.objects


def test_names_come_back(tmp_path: Path) -> None:
    """What was added is there for the next process, in its section, and only the owner can read it."""
    path = tmp_path / "new" / "keyring.toml"
    keyring = Keyring.load(path)
    keyring.add("analytics", ONE)
    keyring.add("analytics/catalogue", TWO, section="objects")
    again = Keyring.load(path)
    assert dict(again.groups) == {"analytics": ONE}
    assert dict(again.objects) == {"analytics/catalogue": TWO}
    assert path.stat().st_mode & 0o777 == 0o600
    assert again.alias_of(ONE) == "analytics"
    assert again.name_of("analytics") == again.name_of(format_name(ONE)) == ONE


def test_two_processes_do_not_lose_each_others_aliases(tmp_path: Path) -> None:
    """A change starts from the file as it is now, not as it was loaded."""
    path = tmp_path / "keyring.toml"
    first, second = Keyring.load(path), Keyring.load(path)
    first.add("a", ONE)
    second.add("b", TWO)
    assert dict(Keyring.load(path).groups) == {"a": ONE, "b": TWO}


def test_alias_is_not_taken_over_silently(tmp_path: Path) -> None:
    """An alias stands for one name until somebody says to replace it."""
    keyring = Keyring.load(tmp_path / "keyring.toml")
    keyring.add("a", ONE)
    keyring.add("a", ONE)
    with pytest.raises(ExistsError, match="'a'"):
        keyring.add("a", TWO)
    keyring.add("a", TWO, replace=True)
    assert keyring.groups["a"] == TWO
    keyring.remove("a")
    with pytest.raises(InvalidError, match="no 'a'"):
        keyring.remove("a")


@pytest.mark.parametrize("alias", ["", "dios1abc", "with space", "new\nline", 'quo"te', "x" * 129])
def test_odd_aliases_are_refused(tmp_path: Path, alias: str) -> None:
    """An alias can be typed on a command line and never looks like a name."""
    with pytest.raises(InvalidError, match="cannot be an alias"):
        Keyring.load(tmp_path / "keyring.toml").add(alias, ONE)


def test_open_file_is_refused(tmp_path: Path) -> None:
    """A keyring that others can read is not used, and the error says what to do."""
    path = tmp_path / "keyring.toml"
    path.write_text("")
    path.chmod(0o644)
    with pytest.raises(NotPermittedError, match="chmod 600"):
        Keyring.load(path)


def test_damaged_file_is_told(tmp_path: Path) -> None:
    """A file that is no keyring is an error, not an empty keyring that would overwrite it."""
    path = tmp_path / "keyring.toml"
    path.touch(mode=0o600)
    for text in ("[groups", "groups = 1", "[groups]\na = 1", "[groups]\na = 'dios1x'"):
        path.write_text(text)
        with pytest.raises(InvalidError):
            Keyring.load(path)


def test_a_mistyped_name_is_told_where_it_is_used(tmp_path: Path) -> None:
    """The error names the alias, and the other names are of use."""
    path = tmp_path / "keyring.toml"
    keyring = Keyring.load(path)
    keyring.add("a", ONE)
    keyring.add("b", TWO)
    text = format_name(TWO)
    path.write_text(path.read_text().replace(text, text[:-1] + ("q" if text[-1] != "q" else "p")))
    again = Keyring.load(path)
    assert again.name_of("a") == ONE
    for use in (lambda: again.name_of("b"), again.presented, lambda: again.groups["b"]):
        with pytest.raises(InvalidError, match="damaged at 'b'"):
            use()


def test_files_that_somebody_edited_are_read_alike(tmp_path: Path) -> None:
    """Comments, other orders, quotes, spaces and capital letters are all TOML; aliases may occur once."""
    path = tmp_path / "keyring.toml"
    Keyring.load(path).add("a", ONE)
    written = path.read_text()
    name = format_name(ONE)
    for text in (
        written,
        written + "\n# a comment\n",
        written.replace('"a"', "a"),
        written.replace('"a" = ', '"a"='),
        written.replace(name, name.upper()),
        f'[objects]\n\n[groups]\na = "{name}"\n',
        written.replace('"a"', r'"\u0061"'),
    ):
        path.write_text(text)
        assert dict(Keyring.load(path).groups) == {"a": ONE}, text
    line = f'groups."a" = "{name}"\n'
    assert line in written
    for damaged in (written + line, written + f'"b" = "{name[:-2]}', written + f'tasks.b = "{name}'):
        path.write_text(damaged)
        with pytest.raises(InvalidError):
            Keyring.load(path)


def test_a_writer_that_was_stopped_damages_nothing(tmp_path: Path) -> None:
    """After a crash at any byte of a change, the names from before are read, and changes go on."""
    path = tmp_path / "keyring.toml"
    keyring = Keyring.load(path)
    keyring.add("a/1", ONE)
    before = path.read_bytes()
    keyring.add("b-2", TWO)
    after = path.read_bytes()
    assert after.startswith(before)
    for length in range(len(before), len(after) + 1):
        path.write_bytes(after[:length])
        again = Keyring.load(path)
        # The last byte is only the line's end.
        assert set(again.groups) == ({"a/1", "b-2"} if length >= len(after) - 1 else {"a/1"})
        again.add("c", TWO, section="objects")
        again.add("b-2", TWO)
        final = Keyring.load(path)
        assert (dict(final.groups), dict(final.objects)) == ({"a/1": ONE, "b-2": TWO}, {"c": TWO})


def test_a_name_is_added_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is neither read nor written again for one more name, unless another process changed it."""
    path = tmp_path / "keyring.toml"
    keyring = Keyring.load(path)
    keyring.add("a", ONE)
    inode = path.stat().st_ino

    def forbidden(*_: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(keyring_module, "_read", forbidden)
        patch.setattr(keyring_module, "_write", forbidden)
        keyring.add("b", TWO)
        keyring.add("b", ONE, section="objects")
        with pytest.raises(ExistsError):
            keyring.add("a", TWO)
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o777 == 0o600
    Keyring.load(path).add("c", TWO, section="objects")
    keyring.add("d", ONE)
    again = Keyring.load(path)
    assert dict(again.groups) == dict(keyring.groups) == {"a": ONE, "b": TWO, "d": ONE}
    assert dict(again.objects) == dict(keyring.objects) == {"b": ONE, "c": TWO}


def test_a_name_that_cannot_be_stored_is_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure, as of a full disk, leaves the file and the keyring as they were."""
    path = tmp_path / "keyring.toml"
    keyring = Keyring.load(path)
    keyring.add("a", ONE)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="full"):
            keyring.add("b", TWO)
    assert path.read_bytes() == before
    assert "b" not in keyring.groups
    keyring.add("b", TWO)
    assert dict(Keyring.load(path).groups) == {"a": ONE, "b": TWO}


def test_a_new_file_is_synced_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops right after a name was added has the name, also in a new folder."""
    synced: list[Path] = []
    sync = os.fsync

    def noting(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        sync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    folder = tmp_path / "config"
    Keyring.load(folder / "keyring.toml").add("a", ONE)
    assert synced == [tmp_path, folder / "keyring.toml.new", folder]


def test_a_file_with_tables_is_changed(tmp_path: Path) -> None:
    """A keyring in the form of two tables is read, and a change keeps its names."""
    path = tmp_path / "keyring.toml"
    path.touch(mode=0o600)
    path.write_text(f'[groups]\n"a" = "{format_name(ONE)}"\n\n[objects]\n"b" = "{format_name(TWO)}"\n')
    Keyring.load(path).add("c", TWO)
    again = Keyring.load(path)
    assert (dict(again.groups), dict(again.objects)) == ({"a": ONE, "c": TWO}, {"b": TWO})


def test_no_name_is_decoded_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and adding cost no checksum for each name of a large keyring, and presenting only for some."""
    path = tmp_path / "keyring.toml"
    names = {f"g{number}": Name(number.to_bytes(32, "big")) for number in range(1000)}
    path.touch(mode=0o600)
    _write(path, Keyring(path, {"groups": names, "objects": {}})._sections)
    decoded = []

    def parse(text: str) -> Name:
        decoded.append(text)
        return parse_name(text)

    monkeypatch.setattr(keyring_module, "parse_name", parse)
    keyring = Keyring.load(path)
    keyring.add("another", ONE)
    assert "g7" in keyring.groups
    assert keyring.not_presented == 1001 - limits.GROUPS_PRESENTED_MAX
    assert not decoded
    keyring.presented()
    assert len(decoded) == limits.GROUPS_PER_CALL_MAX
    assert keyring.groups["g7"] == names["g7"]


def test_presented_groups_are_bounded(tmp_path: Path) -> None:
    """A Hello takes a bounded number of groups, the newest ones; the next ones are presented later."""
    count = limits.GROUPS_PRESENTED_MAX + 9
    names = {f"g{number}": Name(number.to_bytes(32, "big")) for number in range(count)}
    keyring = Keyring(tmp_path / "k", {"groups": names, "objects": {}})
    newest = list(names.values())[::-1]
    presented = keyring.presented()
    assert presented == tuple(newest[: limits.GROUPS_PER_CALL_MAX])
    assert presented + keyring.presented_later() == tuple(newest[: limits.GROUPS_PRESENTED_MAX])
    assert keyring.not_presented == 9


def test_names_are_not_shown(tmp_path: Path) -> None:
    """The representation of a keyring has no names in it."""
    keyring = Keyring(tmp_path / "k", {"groups": {"a": ONE}, "objects": {}})
    assert "1" * 8 not in repr(keyring)
    assert repr(keyring) == "<Keyring of 1 groups and 0 objects>"


def test_environment_chooses_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """DIOS_KEYRING names another file."""
    monkeypatch.setenv("DIOS_KEYRING", "/somewhere/else.toml")
    assert default_path() == Path("/somewhere/else.toml")
