"""The passes of a node over its store: their report, their position, and the attempts to repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from socket import socket

import pytest
import trio
from trio.testing import MockClock

from dios.ids import ObjectId
from dios.node.scrubbing import ScrubbedNode, Scrubbing
from dios.node.settings import Settings, load
from dios.store import schema, scrub_report
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Drop
from tests.support.store.records import put, record

LARGE = bytes(range(256)) * 1024
PERIOD_S = 300


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a node that compares its objects every five minutes."""
    return load(tmp_path, flags={"scrub_every": "5min"}, environ={})


@pytest.fixture
def store(settings: Settings) -> Iterator[LmdbStore]:
    """A store with three objects, of which the first and the last are damaged."""
    opened = LmdbStore(settings.data)
    opened.recover()
    opened.apply([put(number, LARGE) for number in (1, 2, 3)])
    for number in (1, 3):
        path = damage(settings, opened, number)
        path.chmod(0o600)
        path.write_bytes(LARGE[::-1])
    yield opened
    opened.close()


def damage(settings: Settings, store: LmdbStore, number: int) -> Path:
    """The extent file of an object."""
    row = schema.decode_row(ObjectId(number), store.stored(ObjectId(number)) or b"")
    name = f"{row.payload.extent:016x}"
    return settings.data / "extents" / name[:2] / name


class Watched:
    """A node that notes what scrubbing says; its users may not connect."""

    def __init__(self) -> None:
        self.distrusted: list[int] = []
        self.audited: list[tuple[str, str]] = []
        self.node = ScrubbedNode(
            self.distrusted.append,
            lambda outcome, mark, _: self.audited.append((outcome, mark)),
            self.open_for,
        )

    def open_for(self, uid: int, _: trio.Nursery) -> socket | None:
        """Refuse a session."""
        assert uid == 1000
        return None

    async def until(self, scrubbing: Scrubbing, holds: Callable[[], bool]) -> None:
        """Scrub until a condition holds."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrubbing.run, self.node)
            while not holds():  # noqa: ASYNC110 - the clock of the test jumps
                await trio.sleep(PERIOD_S)
            nursery.cancel_scope.cancel()


def listed(settings: Settings) -> list[int]:
    """The damaged objects in the report."""
    report = scrub_report.load(settings.data)
    return [] if report is None else [damaged.object_id for damaged in report.open_damage]


@pytest.fixture
def clock() -> MockClock:
    """A clock that jumps when all tasks wait, and gives threads some time before."""
    return MockClock(autojump_threshold=0.01)


async def test_damage_is_reported_once(settings: Settings, store: LmdbStore, clock: MockClock) -> None:
    """Each damaged object is recorded, refused and audited; the reason why it stays damaged is shown."""
    del clock
    watched = Watched()
    scrubbing = Scrubbing(settings, store, lambda: 1_800_000_000 + trio.current_time())
    await watched.until(scrubbing, lambda: scrubbing.counts["scrub_bytes"] > 7 * len(LARGE))
    assert listed(settings) == [1, 3]
    assert set(watched.distrusted) == {1, 3}
    assert len(watched.distrusted) > 2, "later passes found the damage again"
    assert watched.audited == [("damaged", schema.describe(record(number))) for number in (1, 3)]
    report = scrub_report.load(settings.data)
    assert report is not None
    assert {damaged.failure for damaged in report.damaged} == {"its owner may not connect to this node"}
    assert scrubbing.counts["scrub_damaged"] == 2
    assert scrubbing.counts["scrub_repaired"] == 0


async def test_a_pass_continues_after_a_restart(
    settings: Settings, store: LmdbStore, clock: MockClock
) -> None:
    """The object before the stored position is compared in the next pass only."""
    del clock
    report = scrub_report.ScrubReport(after=f"{1:016x}", began=1_800_000_000)
    scrub_report.save(scrub_report.encode(report), settings.data)
    watched = Watched()
    scrubbing = Scrubbing(settings, store, lambda: 1_800_000_100)
    await watched.until(scrubbing, lambda: 3 in listed(settings))
    assert listed(settings) == [3]
    stored = scrub_report.load(settings.data)
    assert stored is not None
    assert stored.began == 1_800_000_000


async def test_the_next_pass_begins_after_the_period(
    settings: Settings, store: LmdbStore, clock: MockClock
) -> None:
    """A complete pass is followed by the next one a period after its start."""
    del clock
    scrubbing = Scrubbing(settings, store, lambda: 1_800_000_000 + trio.current_time())
    starts: set[int] = set()

    def has_begun_twice() -> bool:
        report = scrub_report.load(settings.data)
        starts.update({report.began} if report is not None else set())
        return len(starts) == 2

    await Watched().until(scrubbing, has_begun_twice)
    first, second = sorted(starts)
    assert second - first >= PERIOD_S


async def test_objects_that_are_dropped_leave_the_report(
    settings: Settings, store: LmdbStore, clock: MockClock
) -> None:
    """So do those that were written again, long before the next pass."""
    del clock
    began = 1_800_000_000
    scrubbing = Scrubbing(settings, store, lambda: began)
    watched = Watched()
    await watched.until(scrubbing, lambda: len(listed(settings)) == 2)
    store.apply([Drop(ObjectId(1)), put(3, LARGE)])
    again = Scrubbing(settings, store, lambda: began)
    await watched.until(again, lambda: not listed(settings))
    assert again.counts["scrub_damaged"] == 0


async def test_a_node_may_not_scrub(settings: Settings, store: LmdbStore, clock: MockClock) -> None:
    """With the setting off nothing is read and no report is written."""
    del clock
    scrubbing = Scrubbing(replace(settings, scrub_rate=0), store)
    await scrubbing.run(Watched().node)
    assert scrubbing.counts["scrub_bytes"] == 0
    assert scrub_report.load(settings.data) is None
