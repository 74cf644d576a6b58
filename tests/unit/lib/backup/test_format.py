"""The stored bytes of backups, versions 1 and 2: fixed vectors, and records that are no records."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from dios.errors import InvalidError, NotSupportedError
from dios.lib.backup import records
from dios.lib.backup.records import FileList, FileRecord, GroupRecord, RecordKind, Snapshot
from dios.lib.packs import compression
from dios.lib.packs.chunks import PackNumbers, PackReader, PackWriter, StoredChunk
from dios.lib.packs.configuration import BACKUP, StoreConfig, encode_config, read_config
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import PrivateKey, WrappedKey, unwrap
from dios.lib.packs.sealing import DataKey
from tests.support.backups import MemoryTarget

REPOSITORY: Final = bytes(range(16))
KEY: Final = DataKey(bytes(range(32)), REPOSITORY)
PAIR: Final = PrivateKey(bytes(range(32)), bytes(range(32, 64)))
SALT: Final = bytes([7]) * 32
NAME: Final = bytes([2]) * 32
RECIPIENT: Final = "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
WRAPPED: Final = WrappedKey(
    bytes.fromhex("f6edc8920f237abbb1dab853cffd3cac3d11beb43aae2ab7ecc2a7a76e2c8674"),
    bytes.fromhex(
        "09dc9cbecbd11b962ab46bde8485547a9712d1c9040b70430fb39c58dc2b66a4a48a913695a30cbbe42d72573439e506"
    ),
)
DIGEST: Final = "86090611134b90c58a47af241028d675aa79dec82b46b861d06e7ec1f0d518ae"
PACK: Final = "44494f53424b50318fea75115d3920768a4c33f10654bcf5c57d7ea232ec71f734bf57dd6ac9611e636b85a3243795"
PACK_2: Final = (
    "44494f53424b503200000014eee974acae9f087abb830882858d390181cb4bee000000221f11a0f3ee938ac5fb7446e8"
    "2b49f26f216fedb6fc73f91d7f3f247735db66ae0400"
)
LIST: Final = (
    "930191c4200707070707070707070707070707070707070707070707070707070707070707929a00a6646174612f61"
    "c4200101010101010101010101010101010101010101010101010101010101010101070509039294c42086090611134b"
    "90c58a47af241028d675aa79dec82b46b861d06e7ec1f0d518ae00080394c42006d09b290ef6fdd142ac3c6fd54ffea7"
    "2058e1852ec06d99193488751cc7e2d7001b0402c39a02a464617461c400000400009000c2"
)
SNAPSHOT: Final = (
    "9901c410000102030405060708090a0b0c0d0e0f0306c420000000000000000000000000000000000000000000000000"
    "0000000000000000009198a6706170657273c42002020202020202020202020202020202020202020202020202020202"
    "02020202010702c391c42007070707070707070707070707070707070707070707070707070707070707079194c42086"
    "090611134b90c58a47af241028d675aa79dec82b46b861d06e7ec1f0d518ae00080381a6706170657273c42002020202"
    "0202020202020202020202020202020202020202020202020202020281b0636174616c6f6775652f706170657273c420"
    "0303030303030303030303030303030303030303030303030303030303030303"
)


def two_chunks() -> tuple[MemoryTarget, list[StoredChunk]]:
    """A target with a pack of two chunks."""
    target = MemoryTarget()
    writer = PackWriter(target, KEY, {}, salt=lambda size: SALT[:size])
    chunks = [writer.add(b"abc"), writer.add(b"defg")]
    assert writer.add(b"abc") == chunks[0], "the same bytes are stored once"
    writer.flush()
    return target, chunks


def records_of_version_1() -> tuple[FileList, Snapshot]:
    """A list of files and a snapshot that use every field."""
    numbers = PackNumbers()
    places = numbers.places(two_chunks()[1])
    listed = FileList(
        1,
        numbers.packs,
        (
            FileRecord(RecordKind.FILE, "data/a", bytes([1]) * 32, 7, 5, 9, 3, places, 2, True),
            FileRecord(RecordKind.DIRECTORY, "data", b"", 0, 4, 0, 0, ()),
        ),
    )
    group = GroupRecord("papers", NAME, 1, 7, 2, True, numbers.packs, places[:1])
    names = {"papers": NAME}
    objects = {"catalogue/papers": bytes([3]) * 32}
    return listed, Snapshot(1, REPOSITORY, 3, 6, bytes(32), 0, (group,), names, objects)


def test_digests_and_packs_have_these_bytes() -> None:
    """A pack is its magic number and its chunks; its name is the salt of its key."""
    target, chunks = two_chunks()
    assert KEY.digest(b"abc").hex() == DIGEST
    assert {path: data.hex() for path, data in target.files.items()} == {f"packs/{SALT.hex()}": PACK}
    assert [(chunk.offset, chunk.size) for chunk in chunks] == [(8, 3), (27, 4)]


def test_compressed_chunks_have_these_bytes() -> None:
    """In version 2 the length of a chunk is before it, and its method is the first sealed byte."""
    target = MemoryTarget()
    path = f"packs/{SALT.hex()}"
    target.write(path, bytes.fromhex(PACK_2))
    places = [
        StoredChunk(KEY.digest(data), SALT, offset, len(data))
        for data, offset in ((b"abc", 8), (bytes(100), 32))
    ]
    reader = PackReader(target, KEY)
    assert reader.read(places[0]) == b"abc", "it did not become smaller, and needs no zstd"
    if compression.is_installed():
        assert reader.read(places[1]) == bytes(100)
    with pytest.raises(DamagedBackupError, match="packed"):
        reader.read(places[0]._replace(size=4))
    writer = PackWriter(written := MemoryTarget(), KEY, {}, compress=True, salt=lambda size: SALT[:size])
    assert writer.add(b"abc") == places[0]
    writer.flush()
    assert bytes.fromhex(PACK_2).startswith(written.files[path])


def test_without_zstd_chunks_are_stored_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine can read them. A compressed one names the missing package."""
    squeezed = compression.packed(bytes(100))
    assert compression.unpacked(squeezed, 100) == bytes(100)
    monkeypatch.setattr(compression, "is_installed", lambda: False)
    assert compression.packed(bytes(100)) == compression.RAW + bytes(100)
    with pytest.raises(NotSupportedError, match=r"\[zstd\]"):
        compression.unpacked(compression.ZSTD + b"x", 100)


@pytest.mark.parametrize("payload", [b"", b"\x00ab", b"\x01", b"\x01abc", b"\x02abc"])
def test_a_payload_that_is_none_is_damage(payload: bytes) -> None:
    """Whatever is there, nothing else is raised, and no more than the chunk's size is allocated."""
    pytest.importorskip("zstandard")
    with pytest.raises(DamagedBackupError):
        compression.unpacked(payload, 3)


def test_records_have_these_bytes() -> None:
    """Lists of files and snapshots are written and read in the form of version 1."""
    listed, snapshot = records_of_version_1()
    assert records.encode(listed).hex() == LIST
    assert records.encode(snapshot).hex() == SNAPSHOT
    assert records.decode_list(bytes.fromhex(LIST)) == listed
    assert records.decode_snapshot(bytes.fromhex(SNAPSHOT)) == snapshot


def test_only_a_labelled_file_has_a_label_in_its_record() -> None:
    """Lists without labels stay those that earlier programs read, and these refuse the others."""
    listed, _ = records_of_version_1()
    first, second = listed.files
    labelled = msgspec.structs.replace(listed, files=(msgspec.structs.replace(first, secrecy=("a",)), second))
    assert records.decode_list(records.encode(labelled)) == labelled
    rows = msgspec.msgpack.decode(records.encode(labelled))[2]
    assert [len(row) for row in rows] == [11, 10]


def test_sealed_snapshots_have_these_bytes() -> None:
    """A snapshot is encrypted with a key of its salt, and bound to its number."""
    sealed = bytes.fromhex("25e72151bfe486d583ac2f9624eaf1a98ff1a1")
    assert KEY.seal_snapshot(3, SALT, b"abc") == sealed
    assert KEY.open_snapshot(3, SALT, sealed) == b"abc"
    with pytest.raises(DamagedBackupError, match="snapshot 4 was changed"):
        KEY.open_snapshot(4, SALT, sealed)


def test_a_wrapped_key_of_version_1_is_opened() -> None:
    """The private key opens it for its repository, and for no other."""
    assert PAIR.recipient().public.hex() == RECIPIENT
    assert unwrap(WRAPPED, PAIR, REPOSITORY) == bytes(range(32))
    with pytest.raises(DamagedBackupError, match="another recipient"):
        unwrap(WRAPPED, PAIR, bytes(16))


def test_the_configuration_is_text_and_comes_back() -> None:
    """The plain file says the format, its version and the page that describes it."""
    config = StoreConfig(1, REPOSITORY, bytes.fromhex(RECIPIENT), WRAPPED)
    text = encode_config(BACKUP, config)
    assert b'"format": "DIOS backup",\n  "version": 1,' in text
    assert b"docs/backup.md#the-format-of-backups" in text
    target = MemoryTarget()

    def read(changed: bytes) -> StoreConfig | None:
        target.files["config"] = changed
        return read_config(target, BACKUP)

    assert read(text) == config
    later = read(text.replace(b'"version": 1', b'"version": 2'))
    assert later is not None
    assert later.compress
    with pytest.raises(InvalidError, match="version 3"):
        read(text.replace(b'"version": 1', b'"version": 3'))
    with pytest.raises(InvalidError, match="has tiered files"):
        read(text.replace(b"DIOS backup", b"DIOS tier"))


@pytest.mark.parametrize("decode", [records.decode_list, records.decode_snapshot])
@pytest.mark.parametrize("data", [b"", b"\x90", b"\x91\x01", b"\xc1", b"\x91\xa1x", b"\x93\x01\x02\x03"])
def test_bytes_that_are_no_record_are_damage(decode: object, data: bytes) -> None:
    """No bytes raise anything else."""
    assert callable(decode)
    with pytest.raises(DamagedBackupError):
        decode(data)


def test_a_record_of_another_version_says_so() -> None:
    """A later program's backup is no damage: this program is too old."""
    with pytest.raises(InvalidError, match="version 2, this program reads 1"):
        records.decode_list(msgspec.msgpack.encode([2, [], [], "more"]))


def test_a_chunk_in_no_pack_is_damage() -> None:
    """A list cannot name a pack that it does not have."""
    listed, _ = records_of_version_1()
    with pytest.raises(DamagedBackupError, match="a pack that its list does not have"):
        records.decode_list(records.encode(msgspec.structs.replace(listed, packs=())))


def test_no_text_of_a_record_has_a_name() -> None:
    """Names of objects are secrets, also in the text of an error."""
    listed, snapshot = records_of_version_1()
    shown = repr((listed, snapshot, *listed.files, *snapshot.groups))
    assert repr(NAME)[2:20] not in shown
    assert "x01" not in shown
    assert repr(PAIR) == "<PrivateKey>"
    assert PAIR.seal.hex() not in repr(PAIR.recipient())
