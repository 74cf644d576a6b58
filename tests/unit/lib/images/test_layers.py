"""Layers of images: the files that result, and the entries that are refused."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from dios.errors import InvalidError, TooLargeError
from dios.lib.images import layers, tar_reader
from dios.lib.images.layers import LayeredFiles
from dios.limits import ENVIRONMENT_BYTES_MAX, ENVIRONMENT_PATH_CHARS_MAX, IMAGE_TARGET_CHARS_MAX, MIB
from dios.wire.images import EntryKind
from tests.support.layouts import Entry, entry, folder, layer_of


def files_of(*contents: list[Entry]) -> dict[str, object]:
    """The files that result from layers: bytes, the targets of links, or the modes of folders."""
    stored = io.BytesIO()
    tree = LayeredFiles(stored)
    for entries in contents:
        tree.add(io.BytesIO(layer_of(entries)))
    result: dict[str, object] = {}
    for row in tree.files():
        item = row.entry
        if item.kind is EntryKind.FILE:
            result[item.path] = stored.getvalue()[row.offset : row.offset + item.size]
        elif item.kind is EntryKind.FOLDER:
            result[item.path] = item.mode
        else:
            result[item.path] = (item.kind.name, item.target)
    return result


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    """A link."""
    return entry(name, kind=kind, link=target)


def test_files_folders_and_links_come_out() -> None:
    """A path may begin with a dot or a slash; folders that a layer leaves out are there."""
    tree = files_of([entry("./a/b/c", b"1"), entry("/d", b"2"), link("l", "../x"), folder("t", 0o1777)])
    assert tree == {"a": 0o755, "a/b": 0o755, "a/b/c": b"1", "d": b"2", "l": ("SYMLINK", "../x"), "t": 0o1777}


def test_a_folder_comes_before_what_is_in_it_and_a_file_before_its_links() -> None:
    """A node writes the entries in their order."""
    tree = files_of([folder("z"), entry("z/f", b"1"), link("a", "z/f", tarfile.LNKTYPE)])
    assert list(tree) == ["z", "a", "z/f"]
    assert tree["z/f"] == ("HARD_LINK", "a")
    assert tree["a"] == b"1"


def test_a_later_layer_replaces_files_and_keeps_folders() -> None:
    """A folder that becomes a file loses what was in it."""
    first = [folder("d"), entry("d/x", b"1"), entry("f", b"1"), folder("e"), entry("e/y", b"1")]
    tree = files_of(first, [folder("d", 0o700), entry("f", b"22"), entry("e", b"3")])
    assert tree == {"d": 0o700, "d/x": b"1", "f": b"22", "e": b"3"}


def test_whiteouts_remove_what_earlier_layers_have() -> None:
    """Files of the same layer stay, in whatever order they come."""
    first = [
        folder("d"),
        entry("d/x", b"1"),
        entry("d/y", b"1"),
        entry("f", b"1"),
        folder("o"),
        entry("o/p", b"1"),
    ]
    second = [
        entry("d/.wh.x"),
        entry(".wh.f"),
        entry("o/q", b"2"),
        entry("o/.wh..wh..opq"),
        entry(".wh..wh.plnk", b"?"),
    ]
    assert files_of(first, second) == {"d": 0o755, "d/y": b"1", "o": 0o755, "o/q": b"2"}
    assert files_of(first, [entry("d/x", b"2"), entry("d/.wh.x")])["d/x"] == b"2"
    assert files_of([entry(".wh.nothing")]) == {}


def test_a_hard_link_keeps_the_bytes_of_a_file_that_is_removed_or_replaced() -> None:
    """As in a file system."""
    first = [entry("f", b"1"), link("g", "f", tarfile.LNKTYPE)]
    assert files_of(first, [entry(".wh.f")]) == {"g": b"1"}
    assert files_of(first, [entry("f", b"2")]) == {"f": b"2", "g": b"1"}


def test_marks_of_other_users_are_not_kept() -> None:
    """Of the mode of a file, the permissions alone are."""
    tree = LayeredFiles(io.BytesIO())
    tree.add(io.BytesIO(layer_of([entry("f", b"1", mode=0o6755), folder("d", 0o7777)])))
    assert [row.entry.mode for row in tree.files()] == [0o1777, 0o755]


def test_devices_are_left_out_below_dev_alone() -> None:
    """A container has devices of its own there."""
    null = entry("dev/null", kind=tarfile.CHRTYPE)
    assert files_of([folder("dev"), null]) == {"dev": 0o755}
    for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"S", b"9"):
        with pytest.raises(InvalidError, match="cannot be"):
            files_of([entry("tmp/null", kind=kind)])


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../f", b"1")],
        [entry("a/../../f", b"1")],
        [entry("a/../f", b"1")],
        [link("way", "/etc"), entry("way/f", b"1")],
        [entry("way", b"1"), entry("way/f", b"1")],
        [link("way", "/etc"), entry("way/.wh.f")],
        [link("way", "/etc"), entry("way/.wh..wh..opq")],
        [link("f", "/etc/shadow", tarfile.LNKTYPE)],
        [link("f", "../etc/shadow", tarfile.LNKTYPE)],
        [folder("d"), link("f", "d", tarfile.LNKTYPE)],
        [entry(".wh.", b"")],
        [entry(".wh...", b"")],
        [entry("/".join("a" * 70), b"")],
        [link("f", "")],
        [link("f", "x" * (IMAGE_TARGET_CHARS_MAX + 1))],
        [entry("a" * 256, b"")],
        [entry("é" * 128, b"")],
        [entry("a" * 256 + "/f", b"")],
        [entry("/" * ENVIRONMENT_PATH_CHARS_MAX + "f", b"")],
        [entry("f"), link("g", "/" * ENVIRONMENT_PATH_CHARS_MAX + "f", tarfile.LNKTYPE)],
    ],
)
def test_an_entry_that_leads_out_is_refused(entries: list[Entry]) -> None:
    """Through a parent, a link, or a file; no path of a layer is ever used on a disk."""
    with pytest.raises(InvalidError, match="cannot be used"):
        files_of(entries)


def test_a_name_that_is_no_text_is_refused() -> None:
    """A manifest has texts alone."""
    info = tarfile.TarInfo("f\udcff")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(InvalidError, match="UTF-8"):
        LayeredFiles(io.BytesIO()).add(io.BytesIO(target.getvalue()))


def test_a_bomb_is_refused_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the bytes that a layer unpacks to, of the bytes of files, and of the number of entries."""
    bomb = gzip.compress(layer_of([entry("f", bytes(4 * MIB))]))
    assert len(bomb) < MIB // 10
    monkeypatch.setattr(layers, "ENVIRONMENT_BYTES_MAX", 3 * MIB)
    with pytest.raises(TooLargeError, match="3 MiB"):
        LayeredFiles(io.BytesIO()).add(io.BytesIO(bomb))
    monkeypatch.setattr(layers, "IMAGE_ENTRIES_MAX", 2)
    with pytest.raises(TooLargeError, match="2 files"):
        files_of([folder(name) for name in "abc"])
    reader = tar_reader.TarReader(io.BytesIO(bytes(100)), 50)
    with pytest.raises(TooLargeError, match="unpacks to over"):
        reader.read(51)


def test_names_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one file, those of all layers together, and the fields that a layer has for all files."""
    longest = [entry("/".join(["a" * 255] * 4)), link("l", "x" * IMAGE_TARGET_CHARS_MAX)]
    assert len(files_of(longest)) == 5
    with pytest.raises(InvalidError, match="too long"):
        files_of([entry("a" * MIB)])
    layer = bytearray()
    for number in range(100):
        layer += tarfile.TarInfo.create_pax_global_header({f"field{number}": "x"})
        layer += tarfile.TarInfo(f"f{number}").tobuf()
    with pytest.raises(InvalidError, match="64 fields"):
        LayeredFiles(io.BytesIO()).add(io.BytesIO(layer + bytes(1024)))
    monkeypatch.setattr(layers, "IMAGE_MANIFEST_BYTES_MAX", 100)
    assert list(files_of([entry("a" * 99)], [entry("b")])) == ["a" * 99, "b"]
    with pytest.raises(TooLargeError, match="long names"):
        files_of([entry("a" * 99)], [link("b", "c")])


def test_a_file_that_only_announces_its_size_takes_no_memory() -> None:
    """A layer that is cut off, or has an impossible header, is refused."""
    info = tarfile.TarInfo("f")
    info.size = ENVIRONMENT_BYTES_MAX - 1
    for layer in (info.tobuf(), info.tobuf() + b"x" * 1000, b"no tar file" * 100, b"\x1f\x8bbroken", b""):
        with pytest.raises(InvalidError, match=r"layer|cut off|read"):
            LayeredFiles(io.BytesIO()).add(io.BytesIO(layer))


def test_a_header_of_any_length_is_read_in_no_memory() -> None:
    """An extended header of a gigabyte is refused before it is read, and one with a negative size, too."""
    long = tarfile.TarInfo("x")
    long.type, long.size = tarfile.XHDTYPE, 1 << 30
    backward = tarfile.TarInfo("x")
    body = b"14 size=-5000\n"
    backward.type, backward.size = tarfile.XHDTYPE, len(body)
    for layer in (
        long.tobuf() + bytes(2048),
        backward.tobuf() + body.ljust(512, b"\0") + tarfile.TarInfo("f").tobuf() + bytes(1024),
    ):
        with pytest.raises(InvalidError):
            LayeredFiles(io.BytesIO()).add(io.BytesIO(layer))
