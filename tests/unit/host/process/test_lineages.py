"""Lineages without tasks: how many are kept, and when the others end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from dios.errors import NotSupportedError
from dios.host.confinement.cgroups import ControlGroups
from dios.host.process import lineages
from dios.host.process.lineages import OWN, Lineage
from dios.host.process.zygote_link import ZygoteLink
from dios.host.process.zygote_messages import ZygoteModules, ZygoteSetup
from dios.host.process.zygote_pool import NO_LIMITS, ZygotePool
from dios.wire.types import Brand
from tests.unit.host.process.test_prepared_tasks import BOUNDS, Factory

KEPT = 2


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ZygotePool]:
    """A pool that keeps few lineages, and has no zygote."""
    monkeypatch.setattr(lineages, "IDLE_LINEAGES_MAX", KEPT)
    async with trio.open_nursery() as nursery:
        modules, setup = ZygoteModules("program:main", (), ()), ZygoteSetup(Brand.PURE, ())
        yield ZygotePool(nursery, modules, setup, {}, ControlGroups([]), 0, BOUNDS, accept_weaker=True)
        nursery.cancel_scope.cancel()


def names(pool: ZygotePool) -> list[str]:
    """Return the names of the lineages that are kept."""
    return [lineage.name for lineage in pool.lineages.all]


def work(lineage: Lineage) -> None:
    """Let a lineage have a task."""
    lineage.zygote = cast(
        "ZygoteLink", SimpleNamespace(children={1: None}, alive=True, close=trio.sleep_forever)
    )


def rest(lineage: Lineage) -> None:
    """End the task."""
    assert lineage.zygote is not None
    lineage.zygote.children.clear()


async def test_lineages_with_tasks_displace_none_without(pool: ZygotePool) -> None:
    """The bound is one of those that no task uses."""
    for number in range(2 * KEPT):
        with pool.using(f"busy {number}") as lineage:
            work(lineage)
    for number in range(KEPT + 1):
        with pool.using(f"idle {number}"):
            pass
    assert names(pool) == [
        OWN,
        *(f"busy {n}" for n in range(2 * KEPT)),
        *(f"idle {n + 1}" for n in range(KEPT)),
    ]


async def test_lineages_end_with_the_last_task(pool: ZygotePool) -> None:
    """No other zygote needs to start before a superfluous one ends."""
    users = []
    for number in range(KEPT + 1):
        with pool.using(f"busy {number}") as lineage:
            work(lineage)
            users.append(lineage)
    for lineage in users:
        assert len(names(pool)) == KEPT + 2
        rest(lineage)
        child = await Factory().make(False)
        pool._on_end(child)
        child.close()
    assert names(pool) == [OWN, *(f"busy {n + 1}" for n in range(KEPT))]


async def test_a_lineage_whose_task_waits_for_its_turn_is_kept(pool: ZygotePool) -> None:
    """Its zygote is not ended between its start and its first task."""
    with pool.using("waits") as lineage:
        for number in range(2 * KEPT):
            with pool.using(f"idle {number}"):
                pass
        assert lineage in pool.lineages.all
    assert len(names(pool)) == KEPT + 1


async def test_a_supervisor_that_starts_belongs_to_a_lineage_that_is_kept(
    pool: ZygotePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nobody waits for its template any more: a lineage that is forgotten would not end it."""
    is_idle: list[bool] = []

    async def start(*_: object) -> ZygoteLink:
        await trio.lowlevel.checkpoint()
        is_idle.append(pool.lineages.all[-1].is_idle)
        raise NotSupportedError("no supervisor here")

    monkeypatch.setattr(ZygoteLink, "start", start)
    with pytest.raises(NotSupportedError):
        await pool.template_link("of uid:1")
    assert is_idle == [False]


async def test_a_template_that_ended_before_the_turn_is_loaded_again(
    pool: ZygotePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start waits for it, and does not ask the caller to try again."""
    steps: list[str] = []

    async def prepare(template: str) -> None:
        await trio.lowlevel.checkpoint()
        steps.append(f"prepare {template}")

    async def fork(template: str, *_: object, forkable: bool) -> None:
        await trio.lowlevel.checkpoint()
        steps.append(f"fork {template} {forkable}")

    monkeypatch.setattr(pool.templates, "prepare", prepare)
    monkeypatch.setattr(pool.templates, "fork", fork)
    await pool.spawn(Brand.PURE, NO_LIMITS, "data")
    await pool.spawn(Brand.PURE, NO_LIMITS, forkable=True)
    assert steps == ["prepare data", "fork data False", "prepare ", "fork  True"]


async def test_no_process_is_made_in_advance_while_the_pool_pauses(pool: ZygotePool) -> None:
    """Neither for the pool nor for templates: a successor could not continue it."""
    assert pool.has_room()
    pool.pause()
    assert not pool.has_room()
    pool.unpause()
    assert pool.has_room()
