from __future__ import annotations

import pytest

from dios import limits
from dios.errors import Conflict, DamagedError, InvalidError, LimitError
from dios.lib.catalogue import CatalogueEntry, checked_file, decode, edit, encode, matching


def entry(file: str, number: int = 0) -> CatalogueEntry:
    """An entry with a name of its own."""
    return CatalogueEntry(file, number.to_bytes(32, "big"), 10, 20)


class Memory:
    """A stored catalogue in memory; ``interrupt`` is run once between a read and the write after it."""

    def __init__(self) -> None:
        self.data = b""
        self.version = 0
        self.interrupt: list[CatalogueEntry] = []
        self.always = False

    def read(self) -> tuple[bytes, int]:
        """Content and version; then somebody else may come between."""
        seen = self.data, self.version
        if self.interrupt:
            other = self.interrupt if self.always else [self.interrupt.pop()]
            self.data, self.version = encode([*decode(self.data), *other]), self.version + 1
        return seen

    def replace(self, data: bytes, version: int) -> None:
        """Write, if the version is the one that was read."""
        if version != self.version:
            raise Conflict("somebody wrote")
        self.data, self.version = data, version + 1


def test_entries_come_back_in_order() -> None:
    """Encoding and decoding give the same entries; nothing is an empty catalogue."""
    entries = (entry("b.txt", 1), entry("a.txt", 2))
    assert decode(encode(entries)) == entries
    assert decode(b"") == ()


def test_the_stored_bytes_never_change() -> None:
    """The frozen vector of format version 1."""
    assert encode([CatalogueEntry("a", b"\x07" * 32, 5, 9)]).hex() == "92019194a161c420" + "07" * 32 + "0509"


@pytest.mark.parametrize("data", [b"\xc1", b"\x92\x01\x91\x91\xa1a", encode(())[:1] + b"\x02\x90"])
def test_damage_is_told(data: bytes) -> None:
    """Bytes that are no catalogue, and a catalogue of another version, are refused."""
    with pytest.raises(DamagedError):
        decode(data)


def test_an_edit_that_was_overtaken_keeps_both() -> None:
    """When somebody writes between read and write the edit is done again on what they wrote."""
    stored = Memory()
    stored.interrupt = [entry("theirs", 1)]
    edit(stored, lambda entries: [*entries, entry("mine", 2)])
    assert [found.file for found in decode(stored.data)] == ["theirs", "mine"]


def test_an_edit_gives_up_in_the_end() -> None:
    """An edit that is overtaken every time ends with Conflict and writes nothing of its own."""
    stored = Memory()
    stored.interrupt, stored.always = [entry("theirs")], True
    with pytest.raises(Conflict):
        edit(stored, lambda entries: [*entries, entry("mine")])
    assert "mine" not in {found.file for found in decode(stored.data)}


def test_a_file_is_found_by_its_last_parts() -> None:
    """A text matches the whole path that was put or its last parts, never half a part."""
    entries = [entry("data/a.txt", 1), entry("a.txt", 2), entry("data/aa.txt", 3)]
    assert [found.name[-1] for found in matching(entries, "a.txt")] == [1, 2]
    assert [found.name[-1] for found in matching(entries, "data/a.txt")] == [1]
    assert matching(entries, "txt") == []


def test_the_bound_on_entries_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry too many is refused."""
    monkeypatch.setattr(limits, "CATALOGUE_ENTRIES_MAX", 2)
    with pytest.raises(LimitError):
        encode([entry("a"), entry("b"), entry("c")])


@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[31m", "x" * 5000])
def test_names_that_would_garble_a_terminal_are_not_kept(text: str) -> None:
    """A file name that is empty, too long or not printable is refused."""
    with pytest.raises(InvalidError):
        checked_file(text)


def test_an_entrys_repr_keeps_the_secret() -> None:
    """The name is not in the repr."""
    assert "0707" not in repr(CatalogueEntry("a", b"\x07" * 32, 5, 9))
    assert repr(entry("a")) == "Entry('a', 10 bytes)"
