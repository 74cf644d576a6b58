"""The simulated disk after a power cut, a failed sync, and when it is full."""

from __future__ import annotations

import errno
from random import Random

import pytest

from labs.sim.disk.device import Device, File, PowerCutError
from labs.sim.disk.faults import DiskFault, OneFault

OLD, NEW = b"o" * 64, b"n" * 64
DRAWS = 200


def device(draw: int, number: int = -1, fault: DiskFault = DiskFault.FAIL) -> Device:
    """Return a disk with small pages and a fault at one operation."""
    return Device(Random(draw), OneFault(number, fault), page_bytes=64, sector_bytes=16)  # noqa: S311 - repeatable


def stored(disk: Device, pages: int = 2) -> File:
    """Create a durable file of OLD pages."""
    file = disk.create("f/one")
    disk.allocate(file, 64 * pages)
    disk.write(file, 0, OLD * pages)
    disk.sync(file)
    disk.sync_folder("f")
    return file


def after_cut(disk: Device, size: int = 128) -> bytes:
    """Return the contents of the disk after a power cut."""
    disk.restart()
    return disk.read(disk.open("f/one"), 0, size)


def test_a_power_cut_keeps_any_subset_of_unsynced_pages() -> None:
    """Two unsynced pages survive a power cut in every combination, and some are torn."""
    contents = set()
    for draw in range(DRAWS):
        disk = device(draw)
        file = stored(disk)
        disk.write(file, 0, NEW)
        disk.write(file, 64, NEW)
        contents.add(after_cut(disk))
    assert {OLD + OLD, OLD + NEW, NEW + OLD, NEW + NEW} <= contents
    torn = contents - {OLD + OLD, OLD + NEW, NEW + OLD, NEW + NEW}
    assert torn
    assert all(content[at : at + 16] in (OLD[:16], NEW[:16]) for content in torn for at in range(0, 128, 16))


def test_what_was_synced_survives() -> None:
    """A file survives a power cut after a sync of the file and its folder."""
    for draw in range(DRAWS):
        disk = device(draw)
        file = stored(disk)
        disk.write(file, 0, NEW)
        disk.sync(file)
        assert after_cut(disk) == NEW + OLD


def test_a_name_needs_its_folder_synced() -> None:
    """A synced file may lose its name if its folder was not synced."""
    lost = 0
    for draw in range(DRAWS):
        disk = device(draw)
        disk.sync(disk.create("f/one"))
        disk.restart()
        lost += disk.names() == []
    assert 0 < lost < DRAWS


def test_a_failed_sync_loses_pages_for_good() -> None:
    """After a failed sync a second sync succeeds, and the page may still be missing."""
    contents = set()
    for draw in range(DRAWS):
        disk = device(draw, 6, DiskFault.LOSE)
        file = stored(disk)
        disk.write(file, 0, NEW)
        with pytest.raises(OSError, match="input/output"):
            disk.sync(file)
        disk.sync(file)
        contents.add(after_cut(disk))
    assert contents == {OLD + OLD, NEW + OLD}


def test_write_through_stops_between_words_only() -> None:
    """A power cut during a write-through leaves some first words new and the rest old."""
    contents = set()
    for draw in range(DRAWS):
        disk = device(draw, 5, DiskFault.CUT)
        file = stored(disk)
        with pytest.raises(PowerCutError):
            disk.write_through(file, 0, NEW[:32])
        contents.add(after_cut(disk, 32))
    assert contents == {NEW[:done] + OLD[done:32] for done in range(0, 33, 8)}


def test_a_full_disk_has_space_again_later() -> None:
    """ENOSPC lasts for some operations that need space, while reading continues."""
    disk = device(0)
    file = stored(disk)
    disk.fill_up()
    with pytest.raises(OSError, match="no space") as caught:
        disk.write(file, 0, NEW)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read(file, 0, 64) == OLD
    tries = 0
    while True:
        tries += 1
        try:
            disk.write(file, 0, NEW)
        except OSError:
            assert tries < 100
            continue
        break
    assert disk.read(file, 0, 64) == NEW


def test_a_short_write_takes_a_part_and_says_so() -> None:
    """A short write returns the number of written bytes, which is less than requested."""
    disk = device(1, 5, DiskFault.SHORT)
    file = stored(disk)
    taken = disk.write(file, 0, NEW + NEW)
    assert 0 < taken < 128
    assert disk.read(file, 0, 128) == (NEW + NEW)[:taken] + (OLD + OLD)[taken:]


def test_a_flipped_bit_stays_flipped() -> None:
    """One bit of what is read differs, at every later read too."""
    disk = device(0, 5, DiskFault.FLIP)
    file = stored(disk)
    read = disk.read(file, 0, 128)
    changed = int.from_bytes(read, "big") ^ int.from_bytes(OLD + OLD, "big")
    assert changed.bit_count() == 1
    assert after_cut(disk) == read
