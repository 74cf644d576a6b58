from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import pytest
import trio
import trio.testing
from msgspec.structs import replace

from dios import limits
from dios.core.effects import BindSlot, PublishCounters, UnbindSlot
from dios.host.content import public_pages
from dios.host.content.public_pages import PublicPages
from dios.ids import ObjectId, TaskId
from dios.transport.memory.mapping import map_memory
from dios.transport.memory.memfd import close_all
from dios.wire.messages import Reference
from dios.wire.page import PageWriter, PublicAttributes, read_slot
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity

ONE, TWO = TaskId(1), TaskId(2)
SLOTS = public_pages._SLOTS_AT_ONCE


@pytest.fixture
def pages() -> Iterator[PublicPages]:
    """Pages of two tasks."""
    shared_pages = PublicPages()
    shared_pages.open(ONE)
    shared_pages.open(TWO)
    yield shared_pages
    shared_pages.close_all()
    assert len(shared_pages) == 0


def bind(task: TaskId, slot: int, target: int, size: int = 0) -> BindSlot:
    """A reference to an object in a slot."""
    return BindSlot(
        task,
        Reference(
            ref=100 + slot,
            object=target,
            type=ObjectType.SHMEM_BLOB,
            permissions=31,
            persistence=Persistence.VOLATILE,
            proximity=Proximity.NODE,
            deletion=Deletion.IMMEDIATE,
            buffering=Buffering.DOUBLE,
            slot=slot,
            size=size,
            v_r=0,
            v_w=0,
            a_r=0,
            a_w=0,
            fingerprint="",
        ),
    )


def counters(target: int, size: int, *, zombie: bool = False) -> PublishCounters:
    """Changed counters of an object."""
    return PublishCounters(ObjectId(target), size, 0, 0, 0, 0, 0, zombie)


VIEWS: WeakKeyDictionary[PublicPages, dict[TaskId, memoryview]] = WeakKeyDictionary()
"""The mappings of tasks, which get their descriptor once."""


def shown(pages: PublicPages, task: TaskId, slot: int) -> PublicAttributes:
    """What the task sees through its own mapping."""
    views = VIEWS.setdefault(pages, {})
    if task not in views:
        fd = pages.take_descriptor(task)
        assert fd is not None
        views[task] = map_memory(fd, limits.PUBLIC_PAGE_BYTES, writable=False)
        os.close(fd)
    return read_slot(views[task], slot)


def test_counters_are_seen_by_every_holder(pages: PublicPages) -> None:
    """One publication reaches every slot bound to the object, in every task."""
    for effect in (bind(ONE, 3, 9), bind(ONE, 4, 9), bind(TWO, 0, 9), bind(TWO, 1, 8)):
        pages.bind(effect, 1)
    pages.publish(counters(9, 55), 2)
    sizes = [shown(pages, task, slot).size for task, slot in ((ONE, 3), (ONE, 4), (TWO, 0), (TWO, 1))]
    assert sizes == [55, 55, 55, 0]


def test_a_slot_that_is_not_live_shows_no_counters_until_it_is_bound_again(pages: PublicPages) -> None:
    """Nothing that happens to the object is seen there but its end."""
    pages.bind(bind(ONE, 3, 9), 1)
    pages.bind(replace(bind(TWO, 0, 9), live=False), 1)
    before = shown(pages, TWO, 0)
    pages.publish(counters(9, 55), 2)
    assert (shown(pages, TWO, 0), shown(pages, ONE, 3).size) == (before, 55)
    pages.bind(bind(TWO, 0, 9, size=55), 3)
    pages.publish(counters(9, 56), 4)
    assert shown(pages, TWO, 0).size == 56
    pages.bind(replace(bind(TWO, 0, 9), live=False), 5)
    pages.publish(counters(9, 57, zombie=True), 6)
    hidden = shown(pages, TWO, 0)
    assert (hidden.size, hidden.zombie) == (0, True)


def test_a_slot_that_is_not_live_stays_so_in_the_next_program(pages: PublicPages) -> None:
    """The pages of the predecessor show no more than before."""
    pages.bind(bind(ONE, 3, 9), 1)
    pages.bind(replace(bind(TWO, 0, 9), live=False), 1)
    described, published = pages.hand_over()
    successor = PublicPages()
    successor.take_over(
        [replace(page, fd=os.dup(page.fd), reader=os.dup(page.reader)) for page in described], published
    )
    successor.publish(counters(9, 55), 2)
    assert [shown(successor, task, slot).size for task, slot in ((ONE, 3), (TWO, 0))] == [55, 0]
    successor.unbind(UnbindSlot(TWO, 0))
    successor.bind(bind(TWO, 0, 9), 3)
    successor.publish(counters(9, 56), 4)
    assert shown(successor, TWO, 0).size == 56
    successor.close_all()


def test_older_steps_never_replace_newer_ones(pages: PublicPages) -> None:
    """Effects that waited for the disk do not bring back old counters."""
    pages.bind(bind(ONE, 3, 9), 1)
    pages.publish(counters(9, 70), 7)
    pages.publish(counters(9, 60), 6)
    assert shown(pages, ONE, 3).size == 70
    pages.bind(bind(TWO, 0, 9, size=50), 5)
    assert shown(pages, TWO, 0).size == 70


def test_an_object_with_many_slots_is_shown_in_short_steps(
    pages: PublicPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One publication writes a bounded number of slots; newer counters neither restart nor overtake it."""
    written: list[int] = []
    write = public_pages._write

    def counted(writer: PageWriter, slot: int, effect: PublishCounters) -> None:
        written.append(slot)
        write(writer, slot, effect)

    monkeypatch.setattr(public_pages, "_write", counted)
    many = 5 * SLOTS
    for slot in range(many):
        pages.bind(bind(ONE, slot, 9), 1)
    pages.publish(counters(9, 60), 2)
    assert len(written) == SLOTS
    assert pages.show_more()
    pages.publish(counters(9, 70), 3)
    assert len(written) == 3 * SLOTS
    assert len(set(written)) == len(written), "the slots that waited longest come first"
    written.clear()
    for slot in range(many - SLOTS // 2, many):
        pages.unbind(UnbindSlot(ONE, slot))
    steps = 0
    while pages.show_more():
        steps += 1
    assert len(written) <= many
    assert steps <= 5
    assert {shown(pages, ONE, slot).size for slot in range(many - SLOTS // 2)} == {70}


def test_an_object_with_many_slots_is_read_by_calls(pages: PublicPages) -> None:
    """While some slots show a change late, none permits a read without a call; all do when they are few."""

    def stamps() -> set[int]:
        return {min(shown(pages, ONE, slot).stamp, 1) for slot in pages._pages[ONE].bound}

    def publish(step: int) -> None:
        pages.publish(msgspec.structs.replace(counters(9, 60), direct=True), step)

    for slot in range(SLOTS):
        pages.bind(bind(ONE, slot, 9), 1)
    publish(2)
    assert stamps() == {1}
    pages.bind(bind(ONE, SLOTS, 9), 3)
    assert stamps() == {0}
    publish(4)
    assert stamps() == {0}
    pages.unbind(UnbindSlot(ONE, 7))
    assert stamps() == {0}
    publish(5)
    assert stamps() == {1}


def test_a_damaged_object_is_read_by_calls(pages: PublicPages) -> None:
    """From the discovery on no slot permits a read without a call, new slots and later counters included."""

    def stamps() -> list[int]:
        return [min(shown(pages, ONE, slot).stamp, 1) for slot in sorted(pages._pages[ONE].bound)]

    def publish(target: int, step: int) -> None:
        pages.publish(msgspec.structs.replace(counters(target, 60), direct=True), step)

    pages.bind(bind(ONE, 1, 9), 1)
    pages.bind(bind(ONE, 2, 8), 1)
    publish(9, 2)
    publish(8, 3)
    assert stamps() == [1, 1]
    pages.withhold(ObjectId(9))
    pages.withhold(ObjectId(7))
    assert stamps() == [0, 1]
    pages.bind(bind(ONE, 3, 9), 4)
    publish(9, 5)
    publish(8, 6)
    assert stamps() == [0, 1, 0]


def test_outdated_slots_of_an_ended_task_are_forgotten(pages: PublicPages) -> None:
    """A task ends while its slots wait to be written."""
    for slot in range(2 * SLOTS):
        pages.bind(bind(ONE, slot, 9), 1)
    pages.publish(counters(9, 60), 2)
    pages.close(ONE)
    assert pages.show_more()
    assert not pages.show_more()


async def test_outdated_slots_are_written_in_the_background(pages: PublicPages) -> None:
    """All slots show the newest counters after a while, also those of a second change."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages.run)
        for slot in range(4 * SLOTS):
            pages.bind(bind(ONE, slot, 9), 1)
        for step, size in ((2, 60), (3, 70)):
            pages.publish(counters(9, size), step)
            await trio.testing.wait_all_tasks_blocked()
            assert {shown(pages, ONE, slot).size for slot in range(4 * SLOTS)} == {size}
        nursery.cancel_scope.cancel()


def test_unbound_slot_is_cleared(pages: PublicPages) -> None:
    """A slot given back stands for nothing and is no longer written."""
    pages.bind(bind(ONE, 3, 9), 1)
    pages.unbind(UnbindSlot(ONE, 3))
    pages.publish(counters(9, 70), 2)
    assert not shown(pages, ONE, 3).used
    pages.unbind(UnbindSlot(ONE, 3))


def test_zombies_are_marked(pages: PublicPages) -> None:
    """The end of an object is seen on the page."""
    pages.bind(bind(ONE, 3, 9), 1)
    pages.publish(counters(9, 0, zombie=True), 2)
    assert shown(pages, ONE, 3).zombie


def test_closed_page_is_left_alone(pages: PublicPages) -> None:
    """Effects for a task that is gone do nothing, and its slots are forgotten."""
    pages.bind(bind(ONE, 3, 9), 1)
    pages.close(ONE)
    pages.close(ONE)
    pages.publish(counters(9, 70), 2)
    pages.bind(bind(ONE, 3, 9), 3)
    pages.unbind(UnbindSlot(ONE, 3))
    assert pages._objects == {}


def test_page_is_read_only(pages: PublicPages) -> None:
    """What the task is sent cannot be mapped for writing."""
    fd = pages.take_descriptor(ONE)
    assert fd is not None
    with pytest.raises(OSError, match=r"ermi"):
        mmap.mmap(fd, limits.PUBLIC_PAGE_BYTES)
    os.close(fd)
    assert pages.take_descriptor(TaskId(99)) is None


def test_a_page_kept_ready_is_nobody_elses(pages: PublicPages) -> None:
    """The page made when a task ends is a fresh one, given to one task, and closed with the others."""
    first = pages.take_descriptor(ONE)
    assert first is not None
    before = os.fstat(first).st_ino
    os.close(first)
    pages.bind(bind(ONE, 0, 7), 1)
    pages.close(ONE)
    pages.open(TaskId(3))
    pages.open(TaskId(4))
    descriptors = [pages.take_descriptor(TaskId(number)) for number in (2, 3, 4)]
    inodes = {os.fstat(fd).st_ino for fd in descriptors if fd is not None}
    assert len(inodes) == 3
    assert before not in inodes
    third = descriptors[1]
    assert third is not None
    assert not read_slot(map_memory(third, limits.PUBLIC_PAGE_BYTES, writable=False), 0).used
    close_all(fd for fd in descriptors if fd is not None)
    assert pages.take_descriptor(TaskId(3)) is None


def test_nothing_is_left_open() -> None:
    """After closing all pages the process has the descriptors it had before."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    shared_pages = PublicPages()
    for number in range(5):
        shared_pages.open(TaskId(number))
    for number in range(3):
        shared_pages.close(TaskId(number))
    shared_pages.close_all()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
