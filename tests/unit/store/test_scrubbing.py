from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from dios import limits
from dios.errors import DamagedError, InvalidError
from dios.ids import ObjectId
from dios.store import environment, schema
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Drop, InlinePayload, Put
from dios.store.scrubbing import Damage, Pace, Scrubber
from tests.support.store.records import content, put, record

SMALL = b"a small value"
LARGE = bytes(range(256)) * 1024
HUGE = bytes(range(256)) * 4 * (limits.SCRUB_SLICE_BYTES // 256)
"""A value of four slices."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    """An empty store."""
    opened = LmdbStore(tmp_path / "data")
    opened.recover()
    yield opened
    opened.close()


def file_of(tmp_path: Path, size: int) -> Path:
    """The extent file of this size, which can be written from now on."""
    (extent,) = [
        path
        for path in (tmp_path / "data" / "extents").glob("*/*")
        if path.is_file() and path.stat().st_size == size
    ]
    extent.chmod(0o600)
    return extent


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        before = file.read(1)
        file.seek(place)
        file.write(bytes([before[0] ^ 1]))


def flip_in_row(tmp_path: Path, store: LmdbStore, number: int, place: int) -> LmdbStore:
    """Close the store, change one bit of a row, and open the store again."""
    store.close()
    with lmdb.open(str(tmp_path / "data" / "store"), max_dbs=3, map_size=limits.GIB) as env:
        objects = env.open_db(environment.OBJECTS)
        with env.begin(objects, write=True) as txn:
            row = bytearray(txn.get(schema.key_of(ObjectId(number))) or b"")
            row[place] ^= 1
            txn.put(schema.key_of(ObjectId(number)), bytes(row))
    opened = LmdbStore(tmp_path / "data")
    opened.recover()
    return opened


def whole_pass(scrubber: Scrubber) -> list[Damage]:
    """The damage that a pass finds."""
    damages: list[Damage] = []
    while True:
        step = scrubber.step()
        damages += [] if step.damage is None else [step.damage]
        if step.is_end:
            return damages


def damage_of(store: LmdbStore) -> list[tuple[int, str]]:
    """The damaged objects with their problems."""
    return [(damage.object, damage.problem) for damage in whole_pass(Scrubber(store))]


def test_a_sound_store_has_no_damage(store: LmdbStore) -> None:
    """Rows without content, small, large and huge contents are compared; an empty store is, too."""
    assert damage_of(store) == []
    store.apply([Put(record(1)), put(2, SMALL), put(3, LARGE), put(4, HUGE)])
    assert damage_of(store) == []


def test_a_flipped_bit_in_an_extent_is_found(store: LmdbStore, tmp_path: Path) -> None:
    """Also in the last slice. From then on the object is refused, and all others are served."""
    store.apply([put(1, LARGE), put(2, HUGE), put(3, LARGE[1:])])
    assert content(store, 2) == HUGE
    flip(file_of(tmp_path, len(HUGE)), len(HUGE) - 1)
    (damage,) = whole_pass(Scrubber(store))
    assert (damage.object, damage.problem) == (2, "does not match its BLAKE3 digest")
    with pytest.raises(DamagedError):
        store.open_content(ObjectId(2))
    assert content(store, 3) == LARGE[1:]


def test_a_found_extent_is_checked_even_if_its_file_looks_unchanged(store: LmdbStore, tmp_path: Path) -> None:
    """A bit that flips on the medium changes no time of the file: the damage itself ends the trust in it."""
    store.apply([put(1, LARGE)])
    flip(file_of(tmp_path, len(LARGE)), 7)
    # The store has not opened this extent since it wrote it, so that it trusts the file as it is.
    assert content(store, 1) != LARGE
    assert damage_of(store) == [(1, "does not match its BLAKE3 digest")]
    with pytest.raises(DamagedError):
        store.open_content(ObjectId(1))


def test_a_flipped_bit_in_an_inline_content_is_found(store: LmdbStore, tmp_path: Path) -> None:
    """The content behind the body of a row is compared with its digest."""
    store.apply([put(1, SMALL), put(2, SMALL)])
    store = flip_in_row(tmp_path, store, 1, -1)
    assert damage_of(store) == [(1, "does not match its BLAKE3 digest")]
    store.close()


def test_a_flipped_bit_in_a_row_is_found(store: LmdbStore, tmp_path: Path) -> None:
    """Nothing but its id is known of an object whose row fails its check."""
    store.apply([put(1, SMALL), put(2, SMALL)])
    store = flip_in_row(tmp_path, store, 1, 40)
    (damage,) = whole_pass(Scrubber(store))
    assert (damage.object, damage.row) == (1, None)
    assert "check value" in damage.problem
    store.close()


def test_a_truncated_and_a_missing_file_are_found(store: LmdbStore, tmp_path: Path) -> None:
    """Their problems say what it is."""
    store.apply([put(1, LARGE), put(2, HUGE)])
    with file_of(tmp_path, len(LARGE)).open("r+b") as file:
        file.truncate(100)
    file_of(tmp_path, len(HUGE)).unlink()
    assert damage_of(store) == [
        (1, f"its file has 100 bytes instead of {len(LARGE)}"),
        (2, "its file is missing"),
    ]


def test_an_object_that_is_replaced_during_the_pass_is_sound(store: LmdbStore, tmp_path: Path) -> None:
    """Its old file was damaged and half read when the new version was written."""
    store.apply([put(1, HUGE)])
    flip(file_of(tmp_path, len(HUGE)), 5)
    scrubber = Scrubber(store)
    assert not scrubber.step().is_end
    store.apply([put(1, LARGE)])
    assert whole_pass(scrubber) == []
    assert damage_of(store) == []


def test_an_object_that_is_dropped_during_the_pass_is_no_damage(store: LmdbStore, tmp_path: Path) -> None:
    """The next object is compared then."""
    store.apply([put(1, HUGE), put(2, LARGE)])
    flip(file_of(tmp_path, len(HUGE)), 5)
    flip(file_of(tmp_path, len(LARGE)), 5)
    scrubber = Scrubber(store)
    assert not scrubber.step().is_end
    store.apply([Drop(ObjectId(1))])
    assert [damage.object for damage in whole_pass(scrubber)] == [2]


def test_a_pass_continues_after_an_object(store: LmdbStore) -> None:
    """A new start continues behind the last object that was compared, and with the one that was not."""
    store.apply([put(1, SMALL), put(2, HUGE), put(3, LARGE)])
    scrubber = Scrubber(store)
    scrubber.step()
    assert scrubber.after == 1
    scrubber.close()
    scrubber = Scrubber(store, scrubber.after)
    read = 0
    while not (step := scrubber.step()).is_end:
        read += step.cost
    assert len(HUGE) + len(LARGE) <= read < len(HUGE) + len(LARGE) + limits.SCRUB_SLICE_BYTES
    assert scrubber.after is None


def test_a_step_is_bounded(store: LmdbStore) -> None:
    """Many small rows are read in several steps, and each counts as a page at least."""
    store.apply([put(number, SMALL) for number in range(1, limits.SCRUB_ROWS_MAX + 2)])
    scrubber = Scrubber(store)
    first = scrubber.step()
    assert scrubber.after == limits.SCRUB_ROWS_MAX
    assert first.cost == limits.SCRUB_ROWS_MAX * limits.SCRUB_ROW_BYTES
    assert not first.is_end
    assert scrubber.step().is_end


def test_the_pace_follows_from_the_rate() -> None:
    """The delays keep the rate over parts of different sizes; time without work is not saved up."""
    pace = Pace(1_000)
    assert pace.delay(500, 10.0) == 0.5
    assert pace.delay(100, 10.5) == pytest.approx(0.1)
    assert pace.delay(1_000, 10.5) == pytest.approx(1.1)
    assert pace.delay(1_000, 500.0) == 1.0


# -- repair -------------------------------------------------------------------------------------------
def row_of(store: LmdbStore, number: int) -> schema.ObjectRow:
    """The present row of an object."""
    return schema.decode_row(ObjectId(number), store.stored(ObjectId(number)) or b"")


@pytest.mark.parametrize("data", [LARGE, HUGE])
def test_a_damaged_extent_is_replaced_by_the_same_bytes(
    store: LmdbStore, tmp_path: Path, data: bytes
) -> None:
    """The record stays as it is, the old file goes, and the totals are the same."""
    store.apply([put(1, data, v_w=7)])
    usage = store.usage()
    old = file_of(tmp_path, len(data))
    flip(old, 9)
    (damage,) = whole_pass(Scrubber(store))
    assert damage.row is not None
    assert store.restore(damage.row, InlinePayload(data))
    assert content(store, 1) == data
    assert not old.exists()
    assert damage_of(store) == []
    assert store.usage() == usage
    store.close()
    opened = LmdbStore(tmp_path / "data")
    assert list(opened.recover()) == [record(1, size=len(data), v_w=7)]
    assert opened.damaged == []
    assert content(opened, 1) == data
    opened.close()


def test_a_damaged_inline_content_is_replaced(store: LmdbStore, tmp_path: Path) -> None:
    """Its row is written again."""
    store.apply([put(1, SMALL)])
    store = flip_in_row(tmp_path, store, 1, -1)
    (damage,) = whole_pass(Scrubber(store))
    assert damage.row is not None
    assert store.restore(damage.row, InlinePayload(SMALL))
    assert content(store, 1) == SMALL
    store.close()


def test_other_bytes_are_never_accepted(store: LmdbStore, tmp_path: Path) -> None:
    """The row's digest decides, and nothing is left of the refused bytes."""
    store.apply([put(1, LARGE)])
    row = row_of(store, 1)
    with pytest.raises(InvalidError):
        store.restore(row, InlinePayload(LARGE[::-1]))
    assert content(store, 1) == LARGE
    assert file_of(tmp_path, len(LARGE)).exists()


def test_a_new_version_is_never_replaced(store: LmdbStore, tmp_path: Path) -> None:
    """An object that was written or dropped since its damage was found stays as it is."""
    store.apply([put(1, LARGE), put(2, LARGE)])
    rows = row_of(store, 1), row_of(store, 2)
    store.apply([put(1, HUGE), Drop(ObjectId(2))])
    assert not any(store.restore(row, InlinePayload(LARGE)) for row in rows)
    assert content(store, 1) == HUGE
    assert store.stored(ObjectId(2)) is None
    assert file_of(tmp_path, len(HUGE)).exists()
    assert store.usage()["extents"] == 1
