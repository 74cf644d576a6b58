"""OCI layouts: the image that a name and a tag mean, and parts that are damaged."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from dios.errors import InvalidError, NotSupportedError, TooLargeError
from dios.host.environments.unpacking import ArchiveReader, read_manifest
from dios.lib.environments import archives
from dios.lib.images import layouts, packing
from dios.lib.images.layouts import (
    ArchiveBlobs,
    FolderBlobs,
    ImageLayout,
    ImagePlace,
    lasting,
    place_of,
    read_layout,
    verified,
)
from dios.limits import IMAGE_INDEX_BYTES_MAX
from dios.wire.images import ImageManifest
from tests.support.layouts import LayoutMaker, archive_of, entry, layer_of

MACHINE = os.uname().machine
LAYER = layer_of([entry("bin/tool", b"#!\n", mode=0o755), entry("bin/same", kind=b"1", link="bin/tool")])


def read(folder: Path, tag: str = "", machine: str = MACHINE) -> ImageLayout:
    """Read an image of a layout in a folder."""
    return read_layout(FolderBlobs(folder), tag, machine)


def pack(layout: ImageLayout) -> archives.EnvironmentArchive:
    """Pack an image, and keep it under its digest."""
    return packing.pack(layout, packing.request_of(layout.digest))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("oci-layout:/a/b:1.0", ("oci-layout:", "/a/b", "1.0")),
        ("oci-layout:a", ("oci-layout:", "a", "")),
        ("oci-layout:/a:1/b", ("oci-layout:", "/a:1/b", "")),
        ("oci-archive:/a.tar:x", ("oci-archive:", "/a.tar", "x")),
        ("dios://group/a.tar:x", ("dios://", "group/a.tar", "x")),
    ],
)
def test_a_text_names_a_layout_and_a_tag(text: str, place: tuple[str, str, str]) -> None:
    """A colon before a slash belongs to the path."""
    assert place_of(text) == ImagePlace(*place)
    assert place_of(lasting(text)).tag == place[2]
    assert Path(place_of(lasting(text)).path).is_absolute() != text.startswith("dios:")


@pytest.mark.parametrize("text", ["", "debian", "docker://debian", "oci-layout:", "oci:/a"])
def test_a_text_that_names_no_layout_is_refused(text: str) -> None:
    """The error says how an image of a registry becomes one."""
    with pytest.raises(InvalidError, match="skopeo copy"):
        place_of(text)


def test_a_tag_chooses_an_image(tmp_path: Path) -> None:
    """One without a tag is the only one; the tags are listed otherwise."""
    maker = LayoutMaker(tmp_path / "layout")
    folder = maker.add([LAYER], "one")
    assert read(folder).digest == read(folder, "one").digest
    maker.add([LAYER, LAYER], "two")
    assert len(read(folder, "two").manifest.layers) == 2
    with pytest.raises(InvalidError, match="one, two"):
        read(folder)
    with pytest.raises(InvalidError, match="'three'; its tags: one, two"):
        read(folder, "three")


def test_an_image_of_another_machine_is_refused(tmp_path: Path) -> None:
    """By its configuration, and by the index."""
    folder = LayoutMaker(tmp_path / "layout").add([LAYER], architecture="riscv64")
    with pytest.raises(NotSupportedError, match="riscv64"):
        read(folder)
    index = json.loads((folder / "index.json").read_bytes())
    index["manifests"][0]["platform"] = {"architecture": "riscv64", "os": "linux"}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(NotSupportedError, match=f"no image for {MACHINE}"):
        read(folder)


def test_an_index_in_an_index_is_followed(tmp_path: Path) -> None:
    """As layouts for several machines have it; one that leads to itself ends."""
    maker = LayoutMaker(tmp_path / "layout")
    folder = maker.add([LAYER])
    inner = (folder / "index.json").read_bytes()
    kind = "application/vnd.oci.image.index.v1+json"
    row = maker.blob(inner, kind)
    (folder / "index.json").write_text(json.dumps({"manifests": [row]}), encoding="utf-8")
    assert read(folder).configuration.machine == MACHINE
    for _ in range(2):
        row = maker.blob(json.dumps({"manifests": [row]}).encode(), kind)
    (folder / "index.json").write_text(json.dumps({"manifests": [row]}), encoding="utf-8")
    with pytest.raises(InvalidError, match="LayoutManifest"):
        read(folder)


def test_each_part_is_compared_with_its_digest(tmp_path: Path) -> None:
    """A byte more, a byte less and another byte are found in every part."""
    folder = LayoutMaker(tmp_path / "layout").add([LAYER])
    for path in (folder / "blobs" / "sha256").iterdir():
        whole = path.read_bytes()
        for damaged in (whole + b" ", whole[:-1], b"!" + whole[1:]):
            path.write_bytes(damaged)
            with pytest.raises(InvalidError, match="other bytes"):
                pack(read(folder))
        path.unlink()
        with pytest.raises(InvalidError, match="no complete OCI layout"):
            pack(read(folder))
        path.write_bytes(whole)
    assert pack(read(folder)).path.exists()


class ChangingFile(io.FileIO):
    """A file whose bytes another process changes after it was read once."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change it."""
        path = Path(str(self.name))
        changed = path.read_bytes().replace(b"2", b"3").replace(b"green", b"other").replace(b"#!", b"!!")
        path.write_bytes(changed)
        return super().seek(offset, whence)


class ChangingBlobs(FolderBlobs):
    """A layout with one part that is changed while it is read."""

    def __init__(self, folder: Path, part: Path) -> None:
        super().__init__(folder)
        self.part = part

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file."""
        if self.part.name in name:
            with ChangingFile(self.part) as changing:
                yield changing
        else:
            with super().open(name) as file:
                yield file


def test_a_part_that_changes_while_it_is_read_does_not_count(tmp_path: Path) -> None:
    """The bytes that are used are those that were compared, and no archive of others is kept."""
    layer = layer_of([entry("own", b"#! no part of an image of another test")])
    folder = LayoutMaker(tmp_path / "layout").add([layer], compressed=False)
    for part in (folder / "blobs" / "sha256").iterdir():
        whole = part.read_bytes()
        with pytest.raises(InvalidError, match="other bytes"):
            pack(read_layout(ChangingBlobs(folder, part), "", MACHINE))
        assert len(part.read_bytes()) == len(whole)
        assert part.read_bytes() != whole
        part.write_bytes(whole)
        assert archives.kept(packing.request_of(read(folder).digest)) is None


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "sha512:" + "a" * 128, "sha256:" + "A" * 64, ""]
)
def test_a_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    """Nothing outside of the layout is opened."""
    layout = read(LayoutMaker(tmp_path / "layout").add([LAYER]))
    descriptor = layout.manifest.config.__class__(digest, 1)
    with pytest.raises(InvalidError, match="no sha256"), verified(layout.blobs, descriptor):
        pass


def test_a_part_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for, and a device never ends."""
    folder = LayoutMaker(tmp_path / "layout").add([LAYER])
    for path in (folder / "index.json", *(folder / "blobs" / "sha256").iterdir()):
        whole = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(InvalidError, match="no regular file"):
            pack(read(folder))
        path.unlink()
        path.symlink_to("/dev/zero")
        with pytest.raises(InvalidError, match="no regular file"):
            pack(read(folder))
        path.unlink()
        path.write_bytes(whole)


def test_an_archive_has_a_bound_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list of files is in memory."""
    file = archive_of(LayoutMaker(tmp_path / "layout").add([LAYER]), tmp_path / "layout.tar")
    monkeypatch.setattr(layouts, "IMAGE_ENTRIES_MAX", 3)
    with pytest.raises(TooLargeError, match="3 files"):
        ArchiveBlobs(file)


def test_descriptions_have_bounds(tmp_path: Path) -> None:
    """An index and a manifest of any length are refused, and those that are no JSON."""
    folder = LayoutMaker(tmp_path / "layout").add([LAYER])
    index = json.loads((folder / "index.json").read_bytes())
    index["manifests"][0]["size"] = IMAGE_INDEX_BYTES_MAX + 1
    for text in (json.dumps(index), " " * (IMAGE_INDEX_BYTES_MAX + 1), "{", "[]", '{"manifests": [1]}'):
        (folder / "index.json").write_text(text, encoding="utf-8")
        with pytest.raises(InvalidError, match=r"too long|no valid Index"):
            read(folder)
    with pytest.raises(InvalidError, match=r"index\.json"):
        read(tmp_path / "nothing")


def test_layers_of_other_kinds_are_refused(tmp_path: Path) -> None:
    """The error says how to convert them."""
    maker = LayoutMaker(tmp_path / "layout")
    folder = maker.add([LAYER])
    digest = json.loads((folder / "index.json").read_bytes())["manifests"][0]["digest"]
    manifest = json.loads((folder / "blobs" / "sha256" / digest[7:]).read_bytes())
    manifest["layers"][0]["mediaType"] = "application/vnd.oci.image.layer.v1.tar+zstd"
    row = maker.blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"manifests": [row]}), encoding="utf-8")
    with pytest.raises(NotSupportedError, match="skopeo"):
        read(folder)


def test_an_archive_has_the_same_image_as_its_folder(tmp_path: Path) -> None:
    """Compressed layers and others; the archive itself is not compressed."""
    for compressed in (True, False):
        folder = LayoutMaker(tmp_path / f"layout-{compressed}").add([LAYER], compressed=compressed)
        file = archive_of(folder, tmp_path / f"{compressed}.tar")
        layout = read_layout(ArchiveBlobs(file), "", MACHINE)
        assert layout.digest == read(folder).digest
        assert pack(layout).name == pack(read(folder)).name
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(InvalidError, match="gunzip"):
        ArchiveBlobs(packed)


def test_the_archive_for_a_node_has_the_files_and_the_settings(tmp_path: Path) -> None:
    """It is kept under the digest of the image."""
    layout = read(LayoutMaker(tmp_path / "layout").add([LAYER], variables=["A=b"], working_dir="/bin"))
    archive = pack(layout)
    assert archives.kept(packing.request_of(layout.digest)) == archive
    reader = ArchiveReader(archive.path.read_bytes())
    manifest = read_manifest(reader)
    assert isinstance(manifest, ImageManifest)
    assert (manifest.settings.variables, manifest.settings.folder) == (("A=b",), "/bin")
    assert [item.path for item in manifest.entries] == ["bin", "bin/same", "bin/tool"]
    assert reader.read(reader.bytes_left) == b"#!\n"


@pytest.mark.parametrize(
    ("working_dir", "added"),
    [
        ("/new/place", ["new", "new/place"]),
        ("/bin", []),
        ("/way/there", []),
        ("/bin/tool", []),
        ("", []),
    ],
)
def test_a_working_directory_that_no_layer_has_is_added(
    tmp_path: Path, working_dir: str, added: list[str]
) -> None:
    """As other programs add it; one behind a link may be there."""
    layer = layer_of([entry("bin/tool"), entry("way", kind=b"2", link="bin")])
    layout = read(LayoutMaker(tmp_path / "layout").add([layer], working_dir=working_dir))
    manifest = read_manifest(ArchiveReader(pack(layout).path.read_bytes()))
    assert isinstance(manifest, ImageManifest)
    paths = [item.path for item in manifest.entries]
    assert sorted(paths) == sorted(["bin", "bin/tool", "way", *added])
    assert manifest.settings.folder == (working_dir or "/")


def test_a_part_of_an_archive_is_a_file() -> None:
    """It is read and sought within its bounds."""
    from dios.lib.images.layouts import _Part

    part = io.BufferedReader(_Part(io.BytesIO(b"0123456789"), 2, 5))
    assert part.read() == b"23456"
    assert part.seek(-2, io.SEEK_END) == 3
    assert part.read(10) == b"56"
