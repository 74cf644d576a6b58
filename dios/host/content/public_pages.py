"""The public pages of all tasks: memory that the node writes and tasks can only read (thesis §4.5.1).

The layout of a slot is in ``dios.wire.page``. The core decides when something is published.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

import trio
from msgspec import UNSET
from msgspec.structs import replace

from dios import limits
from dios.core.effects import BindSlot, PublishCounters, UnbindSlot
from dios.errors import DiosError
from dios.host.handover import format as form
from dios.ids import ObjectId, TaskId
from dios.transport.memory.mapping import map_memory
from dios.transport.memory.memfd import close_all, create_memory, reopen_read_only
from dios.wire.page import PageWriter

_SLOTS_AT_ONCE: Final = 256
"""The slots of one object that are written in one step. The others follow in turns of ``PublicPages.run``."""

_END: Final = PublishCounters(ObjectId(0), 0, 0, 0, 0, 0, 0, zombie=True)
"""The counters of an object that is deleted, for those who may not know others."""


class TaskPage:
    """One task's page in ``view``: the objects that its slots show.

    The ``still`` slots show no counters, because the task may not know them.
    """

    __slots__ = ("_view", "bound", "fd", "memory", "still", "writer")

    def __init__(self, view: memoryview, next_stamp: int = 1) -> None:
        self._view: Final = view
        self.fd = self.memory = -1
        self.writer: Final = PageWriter(view, next_stamp)
        self.bound: Final[dict[int, ObjectId]] = {}
        self.still: Final[set[int]] = set()

    def close(self) -> None:
        """Release the view."""
        self.writer.release()
        self._view.release()


class SharedPage(TaskPage):
    """A page in shared memory: the node's mapping, and a descriptor until the task has it.

    The node keeps a descriptor for writing, with which the program that replaces it maps the page again. So
    the memory has no seal against writing: the mode of the memory (0400) keeps tasks from opening it again.
    """

    __slots__ = ()

    def __init__(self, taken: form.Page | None = None) -> None:
        if taken is not None:
            super().__init__(map_memory(taken.fd, limits.PUBLIC_PAGE_BYTES), taken.next_stamp)
            self.memory, self.fd = taken.fd, taken.reader
            return
        fd = create_memory(limits.PUBLIC_PAGE_BYTES, "dios public page", sealable=False)
        try:
            view = map_memory(fd, limits.PUBLIC_PAGE_BYTES)
            reader = reopen_read_only(fd)
        except BaseException:
            os.close(fd)
            raise
        super().__init__(view)
        self.memory, self.fd = fd, reader

    def close(self) -> None:
        """Unmap the page and close its descriptors."""
        super().close()
        close_all(fd for fd in (self.memory, self.fd) if fd >= 0)


class _ShownObject:
    """The slots that show one object's counters, and the counters published last.

    The ``still`` slots show no counters, but the end of the object. The first ``outdated`` of the others show
    earlier counters. An object with more slots than are written at
    once is never read without a call, because some slots show a write after its answer.
    """

    __slots__ = ("counters", "outdated", "places", "step", "still")

    def __init__(self) -> None:
        self.places: Final[OrderedDict[tuple[TaskId, int], PageWriter]] = OrderedDict()
        self.still: Final[dict[tuple[TaskId, int], PageWriter]] = {}
        self.counters: PublishCounters | None = None
        self.outdated = 0
        self.step = 0

    def add(self, place: tuple[TaskId, int], writer: PageWriter) -> None:
        """Show the object in one more slot."""
        self.places[place] = writer
        if len(self.places) == _SLOTS_AT_ONCE + 1:
            for (_, slot), page_writer in self.places.items():
                page_writer.close(slot)

    def show(self, counters: PublishCounters) -> None:
        """Write the counters to all slots if they are few, else to some of those that are outdated."""
        if counters.zombie:
            for (_, slot), writer in self.still.items():
                _write(writer, slot, _END)
        places = self.places
        if len(places) <= _SLOTS_AT_ONCE:
            for (_, slot), writer in places.items():
                _write(writer, slot, counters, direct=counters.direct)
            self.outdated = 0
            return
        for _ in range(min(self.outdated, _SLOTS_AT_ONCE)):
            place, writer = next(iter(places.items()))
            places.move_to_end(place)
            _write(writer, place[1], counters)
        self.outdated = max(self.outdated - _SLOTS_AT_ONCE, 0)


class PublicPages:
    """Every task's page, and the slots of every object in them.

    Effects that waited for the disk may run after those of later steps. So each publishing method takes the
    number of its step, and older values never replace newer ones. Thousands of slots can show one
    object; then each publication writes some of them, and the others follow.
    """

    def __init__(self, make: Callable[[], TaskPage] = SharedPage) -> None:
        self._make: Final = make
        self._pages: Final[dict[TaskId, TaskPage]] = {}
        self._spare: TaskPage | None = None
        self._objects: Final[dict[ObjectId, _ShownObject]] = {}
        self._withheld: Final[OrderedDict[ObjectId, None]] = OrderedDict()
        self._outdated: Final[deque[ObjectId]] = deque()
        self._has_outdated = trio.Event()

    def __len__(self) -> int:
        return len(self._pages)

    def open(self, task: TaskId) -> None:
        """Create the page of a new task. Raise OSError if memory or descriptors are exhausted."""
        spare, self._spare = self._spare, None
        self._pages[task] = self._make() if spare is None else spare

    def take_descriptor(self, task: TaskId) -> int | None:
        """Return the descriptor for the task to map, which the caller closes; the node needs it no more.

        Return None if the task has ended, or has it already.
        """
        page = self._pages.get(task)
        if page is None or page.fd < 0:
            return None
        fd, page.fd = page.fd, -1
        return fd

    def close(self, task: TaskId) -> None:
        """Free the page of an ended task. Do nothing if it has no page."""
        page = self._pages.pop(task, None)
        if page is None:
            return
        for slot, bound in page.bound.items():
            self._forget(task, slot, bound)
        page.close()
        if self._spare is None:
            # Prepare the page of the next task now, when nobody waits for it.
            with contextlib.suppress(OSError, DiosError):
                self._spare = self._make()

    def close_all(self) -> None:
        """Free every page."""
        for task in list(self._pages):
            self.close(task)
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    # -- the successor of this process -----------------------------------------------------------------
    def hand_over(self) -> tuple[tuple[form.Page, ...], tuple[form.Counters, ...]]:
        """Describe all pages, and the counters that their slots show."""
        pages = tuple(
            form.Page(
                task,
                page.memory,
                page.fd,
                page.writer.last_stamp() + 1,
                tuple(
                    form.BoundSlot(slot, target, still=slot in page.still or UNSET)
                    for slot, target in page.bound.items()
                ),
            )
            for task, page in self._pages.items()
        )
        return pages, tuple(_described(target, shown) for target, shown in self._objects.items())

    def take_over(self, pages: Iterable[form.Page], counters: Iterable[form.Counters]) -> None:
        """Continue with the pages of the predecessor."""
        for counter in counters:
            shown = self._objects[ObjectId(counter.object)] = _ShownObject()
            shown.step, shown.outdated = counter.step, counter.outdated
            if counter.published is not None:
                shown.counters = PublishCounters(
                    ObjectId(counter.object), *counter.published, zombie=counter.zombie, direct=counter.direct
                )
            if shown.outdated:
                self._outdated.append(ObjectId(counter.object))
                self._has_outdated.set()
        for described in pages:
            task = TaskId(described.task)
            page = self._pages[task] = SharedPage(described)
            for slot in described.bound:
                target = page.bound[slot.slot] = ObjectId(slot.object)
                shown = self._objects.setdefault(target, _ShownObject())
                if slot.still is True:
                    page.still.add(slot.slot)
                    shown.still[task, slot.slot] = page.writer
                else:
                    shown.places[task, slot.slot] = page.writer

    def bind(self, effect: BindSlot, step: int) -> None:
        """Show a reference in its slot from now on."""
        page = self._pages.get(effect.task)
        if page is None:
            return
        reference = effect.reference
        slot = reference.slot
        before = page.bound.get(slot)
        if before is not None:
            self._forget(effect.task, slot, before)
        page.still.discard(slot)
        target = ObjectId(reference.object)
        shown = self._objects.get(target)
        if shown is None:
            shown = self._objects[target] = _ShownObject()
        counters = shown.counters
        page.bound[slot] = target
        is_zombie = counters is not None and counters.zombie
        if not effect.live:
            page.still.add(slot)
            shown.still[effect.task, slot] = page.writer
            page.writer.bind(reference, zombie=is_zombie, dirty=0)
            return
        page.writer.bind(reference, zombie=is_zombie, dirty=0 if counters is None else counters.dirty)
        # A new slot is opened for reads without a call when the counters are published again, not now: this
        # effect may have waited for the disk, and the object may have changed since.
        shown.add((effect.task, slot), page.writer)
        if counters is not None and shown.step > step:
            _write(page.writer, slot, counters)

    def unbind(self, effect: UnbindSlot) -> None:
        """Clear a slot."""
        page = self._pages.get(effect.task)
        if page is None:
            return
        bound = page.bound.pop(effect.slot, None)
        page.still.discard(effect.slot)
        if bound is not None:
            page.writer.clear(effect.slot)
            self._forget(effect.task, effect.slot, bound)

    def publish(self, effect: PublishCounters, step: int) -> None:
        """Update an object's counters in the slots that show them; if there are many, ``run`` goes on."""
        shown = self._objects.get(effect.object)
        if shown is None or step < shown.step:
            return
        shown.step = step
        if effect.direct and effect.object in self._withheld:
            effect = replace(effect, direct=False)
        shown.counters = effect
        is_queued = shown.outdated > 0
        shown.outdated = len(shown.places)
        shown.show(effect)
        if shown.outdated and not is_queued:
            self._outdated.append(effect.object)
            self._has_outdated.set()

    def withhold(self, target: ObjectId) -> None:
        """Let nobody read an object without a call any more, because its bytes were found damaged.

        Programs may have mapped these bytes. They keep them for the version, so that this does not end when
        the object is repaired.
        """
        self._withheld[target] = None
        if len(self._withheld) > limits.SCRUB_WITHHELD_MAX:
            self._withheld.popitem(last=False)
        shown = self._objects.get(target)
        if shown is None or len(shown.places) > _SLOTS_AT_ONCE:
            return  # an object with more slots than that is never read without a call
        if shown.counters is not None:
            shown.counters = replace(shown.counters, direct=False)
        for (_, slot), writer in shown.places.items():
            writer.close(slot)

    async def run(self) -> None:
        """Write outdated slots until cancelled, a part of one object's in each turn."""
        while True:
            await self._has_outdated.wait()
            self._has_outdated = trio.Event()
            while self.show_more():
                await trio.lowlevel.checkpoint()

    def show_more(self) -> bool:
        """Write some outdated slots of one object; return False if there are none."""
        if not self._outdated:
            return False
        target = self._outdated.popleft()
        shown = self._objects.get(target)
        if shown is not None and shown.counters is not None:
            shown.show(shown.counters)
            if shown.outdated:
                self._outdated.append(target)
        return True

    def _forget(self, task: TaskId, slot: int, bound: ObjectId) -> None:
        shown = self._objects.get(bound)
        if shown is not None:
            shown.places.pop((task, slot), None)
            shown.still.pop((task, slot), None)
            if not shown.places and not shown.still:
                del self._objects[bound]


def _described(target: ObjectId, shown: _ShownObject) -> form.Counters:
    now = shown.counters
    if now is None:
        return form.Counters(target, shown.step, shown.outdated, None)
    published = (now.size, now.v_r, now.v_w, now.a_r, now.a_w, now.dirty)
    return form.Counters(target, shown.step, shown.outdated, published, now.zombie, now.direct)


def _write(writer: PageWriter, slot: int, counters: PublishCounters, *, direct: bool = False) -> None:
    writer.publish(
        slot,
        counters.size,
        counters.v_r,
        counters.v_w,
        counters.a_r,
        counters.a_w,
        counters.dirty,
        zombie=counters.zombie,
        direct=direct,
    )
