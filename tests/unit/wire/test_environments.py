"""Names and archives of environments: what is in a manifest, and the bytes of both."""

from __future__ import annotations

import msgspec
import pytest

from dios import limits
from dios.errors import InvalidError
from dios.wire.environments import (
    MAGIC,
    ArchivedFile,
    ArchiveDigest,
    Manifest,
    Package,
    decode_manifest,
    digest_of,
    encode_head,
    name_for,
)

MANIFEST = Manifest(
    "cpython-311 linux x86_64",
    (Package("fruit", "1.0", "ab" * 32),),
    (ArchivedFile("fruit/__init__.py", 4), ArchivedFile("seed.py", 2)),
)
HEAD = (
    "44494f53454e56318700000093b863707974686f6e2d333131206c696e7578207838365f36349193a56672756974a331"
    "2e30d9406162616261626162616261626162616261626162616261626162616261626162616261626162616261626162"
    "61626162616261626162616261626162616261629292b166727569742f5f5f696e69745f5f2e70790492a7736565642e"
    "707902"
)


def manifest_with(*paths: str) -> bytes:
    """The bytes of a manifest with files of these paths."""
    return msgspec.msgpack.encode(("python", (), tuple((path, 1) for path in paths)))


def test_the_bytes_of_an_archive_never_change() -> None:
    """The head of an archive and the digest of a whole one are those that were frozen."""
    assert encode_head(MANIFEST).hex() == HEAD
    assert decode_manifest(encode_head(MANIFEST)[len(MAGIC) + 4 :]) == MANIFEST
    digest = ArchiveDigest()
    for part in (encode_head(MANIFEST), b"x=1\n", b"\n\n"):
        digest.add(part)
    assert digest.text == "eab759d53043b180256bd75748906448f759bd57"


def test_a_name_has_a_digest_and_no_template_has_such_a_name() -> None:
    """A template has no digest; what only begins like an environment is refused."""
    digest = "0123456789" * 4
    assert digest_of(name_for(digest)) == digest
    assert len(name_for(digest)) <= limits.NODE_NAME_BYTES_MAX
    assert digest_of("data") == digest_of("") == ""
    for text in ("environment:", "environment:" + digest[1:], "environment:" + digest.replace("1", "G")):
        with pytest.raises(ValueError, match="hexadecimal"):
            digest_of(text)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//x",
        "a/./x",
        "",
        "a/",
        "a\0b",
        "a\nb",
        "/".join("x" * 40),
        "x" * 2000,
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    """A manifest names files below its folder alone."""
    with pytest.raises(InvalidError):
        decode_manifest(manifest_with("good.py", path))


def test_a_path_is_one_file() -> None:
    """No path comes twice, or is a folder as well."""
    for paths in (("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")):
        with pytest.raises(InvalidError):
            decode_manifest(manifest_with(*paths))


def test_the_size_of_an_environment_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, folders and bytes over the bounds are refused, whatever follows the manifest."""
    monkeypatch.setattr(limits, "ENVIRONMENT_BYTES_MAX", 5)
    with pytest.raises(InvalidError, match="MiB"):
        MANIFEST.check()
    monkeypatch.setattr(limits, "ENVIRONMENT_FILES_MAX", 2)
    with pytest.raises(InvalidError, match="folders"):
        decode_manifest(manifest_with("a/b/c/d"))


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x93\x01\x90\x90", b"\x94\xa1a\x90\x90\x90", b"\xff" * 9])
def test_what_is_no_manifest_is_refused(body: bytes) -> None:
    """Other bytes raise an error that says so."""
    with pytest.raises(InvalidError, match="manifest"):
        decode_manifest(body)


def test_small_files_count_as_blocks_of_the_disk() -> None:
    """The bytes on the disk are those of whole blocks, for files and folders."""
    assert MANIFEST.disk_bytes() == 4096 * (2 + 2 + 1 + 2)
