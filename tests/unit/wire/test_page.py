import struct

import msgspec
import pytest

from dios import limits
from dios.errors import UnreachableError
from dios.wire.messages import Reference
from dios.wire.page import QUADS_PER_SLOT, STAMP_QUAD, PageWriter, read_slot
from dios.wire.types import Buffering, Deletion, ObjectType, Permission, Persistence, Proximity


def reference(slot: int = 3, **changes: int) -> Reference:
    """A reference whose every attribute differs from every other."""
    numbers = {"ref": 2**62 + 1, "object": 2**63 + 5, "size": 70, "v_r": 71, "v_w": 72, "a_r": 73, "a_w": 74}
    numbers.update(changes)
    return Reference(
        ref=numbers["ref"],
        object=numbers["object"],
        type=ObjectType.SHMEM_STREAM,
        permissions=27,
        persistence=Persistence.DURABLE,
        proximity=Proximity.CLUSTER,
        deletion=Deletion.IMMORTAL,
        buffering=Buffering.RAW,
        slot=slot,
        size=numbers["size"],
        v_r=numbers["v_r"],
        v_w=numbers["v_w"],
        a_r=numbers["a_r"],
        a_w=numbers["a_w"],
        fingerprint="0" * 12,
    )


def new_page() -> memoryview:
    """A page of plain memory."""
    return memoryview(bytearray(limits.PUBLIC_PAGE_BYTES))


def test_bind_and_read() -> None:
    """A bound slot reads back every attribute of its reference."""
    page = new_page()
    PageWriter(page).bind(reference(), dirty=5)
    assert read_slot(page, 3) == (
        True,
        False,
        2**62 + 1,
        2**63 + 5,
        5,
        27,
        1,
        3,
        2,
        1,
        70,
        71,
        72,
        73,
        74,
        5,
        0,
    )


def test_publish_changes_only_counters() -> None:
    """Publishing renews the counters and leaves the identity alone."""
    page = new_page()
    writer = PageWriter(page)
    writer.bind(reference())
    writer.publish(3, 1, 2, 3, 4, 5, 6, zombie=True)
    slot = read_slot(page, 3)
    assert (slot.size, slot.v_r, slot.v_w, slot.a_r, slot.a_w, slot.dirty) == (1, 2, 3, 4, 5, 6)
    assert slot.zombie
    assert (slot.ref, slot.object, slot.permissions) == (2**62 + 1, 2**63 + 5, 27)


def test_clear() -> None:
    """A cleared slot stands for nothing, and its neighbours are untouched."""
    page = new_page()
    writer = PageWriter(page)
    for slot in (2, 3, 4):
        writer.bind(reference(slot, ref=slot))
    writer.clear(3)
    assert [read_slot(page, slot).ref for slot in (2, 3, 4)] == [2, 0, 4]
    assert not read_slot(page, 3).used


def test_last_slot() -> None:
    """The last slot of the page lies inside it."""
    page = new_page()
    last = limits.REFERENCES_PER_TASK_MAX - 1
    PageWriter(page).bind(reference(last))
    assert read_slot(page, last).used


def test_sequence_wraps() -> None:
    """The sequence counter runs over its end without a slot becoming unreadable."""
    page = new_page()
    writer = PageWriter(page)
    struct.pack_into("@I", page, 3 * limits.PUBLIC_SLOT_BYTES, 2**32 - 2)
    writer.bind(reference())
    writer.publish(3, 9, 9, 9, 9, 9, 9, zombie=False)
    assert read_slot(page, 3).size == 9


def test_rebinding_after_torn_write() -> None:
    """A slot whose counter was left odd becomes readable with the next bind."""
    page = new_page()
    writer = PageWriter(page)
    struct.pack_into("@I", page, 3 * limits.PUBLIC_SLOT_BYTES, 7)
    writer.bind(reference())
    assert read_slot(page, 3).used


def test_torn_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that stays half written is an error, not an endless loop."""
    monkeypatch.setattr(limits, "PUBLIC_SLOT_READS_MAX", 10)
    page = new_page()
    struct.pack_into("@I", page, 0, 1)
    with pytest.raises(UnreachableError, match="cannot read the public page"):
        read_slot(page, 0)


def test_frozen_layout() -> None:
    """The bytes of one slot stand where docs/semantics.md says."""
    page = new_page()
    PageWriter(page).bind(reference(0), zombie=True, dirty=9)
    fields = struct.unpack("=IIQQ8BQQQIII", page[:68])
    assert fields == (2, 3, 2**62 + 1, 2**63 + 5, 5, 27, 1, 3, 2, 1, 0, 0, 70, 71, 72, 73, 74, 9)


def test_wrong_size() -> None:
    """A mapping of another size is refused."""
    with pytest.raises(ValueError, match="a page has"):
        PageWriter(memoryview(bytearray(16)))


def stamp(page: memoryview, slot: int = 3) -> int:
    """The stamp of a slot, as its holder sees it."""
    return page.cast("Q")[slot * QUADS_PER_SLOT + STAMP_QUAD]


def publish(writer: PageWriter, v_w: int, *, direct: bool = True, zombie: bool = False) -> None:
    """Publish a version."""
    writer.publish(3, 1, 0, v_w, 0, 0, 0, zombie=zombie, direct=direct)


def test_a_stamp_belongs_to_one_version_in_one_binding() -> None:
    """A version has its stamp again after it was closed; another version or binding never has it."""
    page = new_page()
    writer = PageWriter(page)
    writer.bind(reference())
    assert stamp(page) == 0, "a new slot is open once its counters are published"
    seen = []
    for v_w in (1, 2, 1):
        publish(writer, v_w)
        seen.append(stamp(page))
        publish(writer, v_w, direct=False)
        assert stamp(page) == 0
        publish(writer, v_w)
        assert stamp(page) == seen[-1]
    writer.clear(3)
    assert stamp(page) == 0
    writer.bind(reference())
    publish(writer, 1)
    assert len({*seen, stamp(page), 0}) == 5


def test_only_readers_of_living_objects_get_a_stamp() -> None:
    """Without the right to read, and on a zombie that came back for others, every read stays a call."""
    page = new_page()
    writer = PageWriter(page)
    writer.bind(msgspec.structs.replace(reference(), permissions=Permission.ALL & ~Permission.READ))
    publish(writer, 1)
    assert stamp(page) == 0
    writer.bind(reference())
    publish(writer, 1, direct=False, zombie=True)
    publish(writer, 1)
    assert stamp(page) == 0


def test_a_writer_takes_any_bytes() -> None:
    """A program that may open every memory can overwrite its own page; the node's writing does not fail."""
    page = new_page()
    writer = PageWriter(page)
    writer.bind(reference())
    page[:] = b"\xff" * len(page)
    writer.publish(3, 1, 2, 3, 0, 0, 0, zombie=False, direct=True)
    page[:] = b"\xff" * len(page)
    writer.clear(3)
    page[:] = b"\xff" * len(page)
    writer.bind(reference())
