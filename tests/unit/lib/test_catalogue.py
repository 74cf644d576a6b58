from __future__ import annotations

import pytest

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError
from dios.lib.catalogue import (
    CatalogueEntry,
    Note,
    Part,
    Tiered,
    UnfinishedFile,
    checked_file,
    decode,
    decode_all,
    decode_notes,
    decode_slowly,
    encode,
    matches,
    pack_parts,
)


def entry(file: str, number: int = 0) -> CatalogueEntry:
    """An entry with a name of its own."""
    return CatalogueEntry(file, number.to_bytes(32, "big"), 10, 20)


def test_entries_come_back_in_order() -> None:
    """Encoding and decoding give the same entries; nothing is an empty catalogue."""
    entries = (entry("b.txt", 1), entry("a.txt", 2))
    assert decode(encode(entries)) == entries
    assert decode(b"") == ()


def test_the_stored_bytes_never_change() -> None:
    """The frozen vectors: version 2 is written, and version 1, which has no digests, is read."""
    entry_1 = CatalogueEntry("a", b"\x07" * 32, 5, 9)
    entry_2 = CatalogueEntry("a", b"\x07" * 32, 5, 9, b"\x08" * 32)
    vector_1 = "92019194a161c420" + "07" * 32 + "0509"
    vector_2 = "92029195a161c420" + "07" * 32 + "0509c420" + "08" * 32
    assert encode([entry_2]).hex() == vector_2
    for vector, expected in ((vector_1, entry_1), (vector_2, entry_2)):
        assert decode(bytes.fromhex(vector)) == (expected,)
        assert list(decode_slowly(bytes.fromhex(vector))) == [expected]


def test_the_stored_bytes_of_files_in_parts_never_change() -> None:
    """The frozen vector of version 3, which is written only with files in parts or unfinished ones."""
    parts = [Part(b"\x07" * 32, b"\x01" * 32), Part(b"\x09" * 32, b"\x02" * 32)]
    large = CatalogueEntry("a", b"\x07" * 32, 5, 9, b"\x08" * 32, 4, pack_parts(parts))
    begun = UnfinishedFile("b", b"\x0a" * 16, 6, 8, 4, pack_parts([Part(b"\x0b" * 32, b"")]))
    stored_parts = "07" * 32 + "01" * 32 + "09" * 32 + "02" * 32
    vector_large = "97a161c420" + "07" * 32 + "0509c420" + "08" * 32 + "04c480" + stored_parts
    vector_begun = "96a162c410" + "0a" * 16 + "060804c440" + "0b" * 32 + "00" * 32
    vector = f"930391{vector_large}91{vector_begun}"
    assert encode([large], [begun]).hex() == vector
    data = bytes.fromhex(vector)
    assert decode_all(data) == ((large,), (begun,), ())
    assert list(decode_slowly(data)) == [large]
    assert large.parts() == tuple(parts)
    assert [large.size_of_part(0), large.size_of_part(1)] == [4, 1]
    assert begun.parts == (Part(b"\x0b" * 32, b""),)


def test_the_stored_bytes_of_tiered_files_never_change() -> None:
    """The frozen vector of version 4, which is written only with tiered files."""
    tier = Tiered("/s", b"\x0c" * 32, stored=True, left=True, manifest=b"\x0d")
    cold = CatalogueEntry("a", b"\x07" * 32, 5, 9, b"\x08" * 32, tier=tier)
    place = "95a22f73c420" + "0c" * 32 + "c3c3c4010d"
    vector = "930491" + "98a161c420" + "07" * 32 + "0509c420" + "08" * 32 + "00c400" + place + "90"
    assert encode([cold]).hex() == vector
    assert decode(bytes.fromhex(vector)) == (cold,)
    assert list(decode_slowly(bytes.fromhex(vector))) == [cold]
    assert (cold.names, cold.local_names, cold.tiered) == ([], [b"\x07" * 32], True)


def test_the_stored_bytes_of_notes_never_change() -> None:
    """The frozen vector of version 5, which is written only with notes."""
    former = CatalogueEntry("a", b"\x07" * 32, 5, 9, b"\x08" * 32)
    new = CatalogueEntry("a", b"\x0e" * 32, 6, 10, b"\x0f" * 32)
    replaced, removed = Note(former, new.packed_objects, 11), Note(former, b"", 12)
    row = "95a161c420" + "07" * 32 + "0509c420" + "08" * 32
    row_new = "95a161c420" + "0e" * 32 + "060ac420" + "0f" * 32
    vector = f"940591{row_new}90" + "92" + f"93{row}c440" + "0e" * 32 + "0f" * 32 + "0b" + f"93{row}c4000c"
    assert encode([new], [], [replaced, removed]).hex() == vector
    data = bytes.fromhex(vector)
    assert decode_all(data) == ((new,), (), (replaced, removed))
    assert list(decode_slowly(data)) == [new]
    assert (replaced.replacement, removed.replacement) == ((Part(b"\x0e" * 32, b"\x0f" * 32),), ())


def test_a_list_without_notes_stays_readable_for_earlier_programs() -> None:
    """When the last note goes, the catalogue has the version that its files need."""
    former = entry("a", 1)
    assert decode_all(encode([entry("a", 2)], [], [Note(former, b"", 1)])).notes
    assert encode([entry("a", 2)], [], []) == encode([entry("a", 2)])
    assert encode([entry("a", 2)])[1] == 2


def test_the_objects_of_a_file_are_packed_as_parts() -> None:
    """A note waits for one object, for each part of a large file, and for none of a stored or no file."""
    parts = pack_parts([Part(b"\x07" * 32, b"\x01" * 32), Part(b"\x09" * 32, b"\x02" * 32)])
    assert entry("a", 1).packed_objects == entry("a", 1).name + bytes(32)
    assert CatalogueEntry("a", b"\x07" * 32, 5, 9, b"", 4, parts).packed_objects == parts
    assert CatalogueEntry("a/", b"", 0, 9).packed_objects == b""
    tier = Tiered("/s", b"\x0c" * 32, stored=True)
    assert CatalogueEntry("a", b"\x07" * 32, 5, 9, tier=tier).packed_objects == b""


def test_parts_that_are_not_those_of_the_file_are_refused() -> None:
    """Neither their number, nor their size, nor a digest that is missing is believed."""
    parts = [Part(b"\x07" * 32, b"\x01" * 32), Part(b"\x09" * 32, b"\x02" * 32)]
    packed = pack_parts(parts)
    for size, part_bytes, stored in (
        (9, 4, packed),
        (4, 4, packed),
        (5, 4, packed[:-1]),
        (5, 4, packed[64:]),
        (5, 4, packed[:-32] + bytes(32)),
        (5, 0, packed),
    ):
        with pytest.raises(DamagedError):
            CatalogueEntry("a", b"\x07" * 32, size, 9, b"", part_bytes, stored).parts()


@pytest.mark.parametrize("data", [b"\xc1", b"\x92\x01\x91\x91\xa1a", encode(())[:1] + b"\x03\x90"])
def test_damage_is_told(data: bytes) -> None:
    """Bytes that are no catalogue, and a catalogue of another version, are refused."""
    with pytest.raises(DamagedError):
        decode(data)


def test_a_file_is_found_by_its_last_parts() -> None:
    """A text matches the whole path that was put or its last parts, never half a part."""
    entries = [entry("data/a.txt", 1), entry("a.txt", 2), entry("data/aa.txt", 3)]
    assert [listed.name[-1] for listed in entries if matches(listed, "a.txt")] == [1, 2]
    assert [listed.name[-1] for listed in entries if matches(listed, "data/a.txt")] == [1]
    assert not any(matches(listed, "txt") for listed in entries)


def test_the_bound_on_entries_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry too many is refused."""
    monkeypatch.setattr(limits, "CATALOGUE_ENTRIES_MAX", 2)
    with pytest.raises(LimitError):
        encode([entry("a"), entry("b"), entry("c")])


def test_notes_can_be_read_without_the_entries() -> None:
    """With the same result, and the same refusals."""
    notes = (Note(entry("a", 1), entry("a", 2).packed_objects, 1), Note(entry("b", 3), b"", 2))
    assert decode_notes(encode([entry("a", 2)], [], notes)) == notes
    assert decode_notes(encode([entry("a", 2)])) == decode_notes(b"") == ()
    for bad in (b"\xc1", b"\x94\x05\x90\x90\x01"):
        with pytest.raises(DamagedError):
            decode_notes(bad)


@pytest.mark.parametrize("bound", ["CATALOGUE_NOTES_MAX", "CATALOGUE_NOTES_PARTS_MAX"])
def test_the_bounds_on_notes_hold(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """One note too many, or one object too many that notes wait for, is refused."""
    notes = [Note(entry("a", number), entry("a", 9).packed_objects, 1) for number in range(3)]
    monkeypatch.setattr(limits, bound, 2)
    assert decode_all(encode([], [], notes[:2])).notes == tuple(notes[:2])
    with pytest.raises(LimitError, match="3 former files wait"):
        encode([], [], notes)


@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[31m", "x" * 5000])
def test_names_that_would_garble_a_terminal_are_not_kept(text: str) -> None:
    """A file name that is empty, too long or not printable is refused."""
    with pytest.raises(InvalidError):
        checked_file(text)


def test_an_entrys_repr_keeps_the_secret() -> None:
    """The name is not in the repr."""
    assert "0707" not in repr(CatalogueEntry("a", b"\x07" * 32, 5, 9))
    assert repr(entry("a")) == "Entry('a', 10 bytes)"
