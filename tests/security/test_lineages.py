"""Processes of different principals, and gateways, share no memory layout, stack guard or hash secret."""

from __future__ import annotations

import ast

import pytest
import trio

from dios.host.confinement.mechanisms import Mechanism
from dios.host.process import lineages
from dios.host.process.lineages import OWN
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.zygote_pool import NO_LIMITS, ZygotePool
from dios.wire.types import Brand
from tests.support.node.confinement import attempt, mechanisms_or_skip, pool_with_templates

SECRETS = ("address of the C library", "address of the heap", "stack guard", "hash of a text")
LINEAGES = (OWN, "of uid:1", "of uid:2", "gateways ", "gateways of uid:1")


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has."""
    return mechanisms_or_skip()


async def secrets_of(
    pool: ZygotePool, lineage: str, template: str = "", *, forkable: bool = False
) -> list[int]:
    """Return the secrets of a task of a lineage."""
    if template or forkable:
        await pool.prepare(template, lineage, forkable=forkable)
    task = await pool.spawn(Brand.PURE, NO_LIMITS, template, lineage=lineage, forkable=forkable)
    try:
        answer = await attempt(task, "secrets")
    finally:
        task.close()
    secrets = ast.literal_eval(answer.removeprefix("did:"))
    assert len(secrets) == len(SECRETS)
    return list(secrets)


def shared(tasks: list[list[int]]) -> set[str]:
    """Return the secrets that two of these tasks have in common."""
    return {
        name
        for number, name in enumerate(SECRETS)
        if len({secrets[number] for secrets in tasks}) < len(tasks)
    }


async def test_tasks_of_different_lineages_share_no_secret(mechanisms: dict[str, Mechanism]) -> None:
    """Each principal has zygotes of its own, and others for gateways."""
    async with pool_with_templates(mechanisms, pool_size=1) as pool:
        assert shared([await secrets_of(pool, lineage) for lineage in LINEAGES]) == set()


async def test_sessions_of_different_lineages_share_no_secret(mechanisms: dict[str, Mechanism]) -> None:
    """Templates, and the processes from which forkable sessions start, are those of one principal."""
    async with pool_with_templates(mechanisms, TemplateSetting("data", ("json",))) as pool:
        tasks = [await secrets_of(pool, lineage) for lineage in LINEAGES[:2]]
        tasks += [await secrets_of(pool, lineage, "data") for lineage in LINEAGES[:2]]
        assert shared(tasks) == set()
        forkable = [await secrets_of(pool, lineage, forkable=True) for lineage in LINEAGES[:2]]
        assert shared([*tasks[:2], *forkable]) == set()


async def test_a_public_template_is_shared(mechanisms: dict[str, Mechanism]) -> None:
    """Sessions of a template that the settings call public share its secrets, and those of no other task."""
    async with pool_with_templates(mechanisms, TemplateSetting("data", ("json",), is_public=True)) as pool:
        first, second = [await secrets_of(pool, lineage, "data") for lineage in LINEAGES[:2]]
        assert first == second
        assert shared([first, await secrets_of(pool, OWN)]) == set()
        assert len(pool.lineages.template_rows()) == 1
        assert pool.lineages.template_rows()[0].tasks == 2


async def test_lineages_without_tasks_are_ended(
    mechanisms: dict[str, Mechanism], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a bound, those that were not used for the longest time end at once, and none that has a task."""
    monkeypatch.setattr(lineages, "IDLE_LINEAGES_MAX", 1)
    async with pool_with_templates(mechanisms) as pool:
        busy = await pool.spawn(Brand.PURE, NO_LIMITS, lineage="busy")
        for name in ("first", "second", "third"):
            await secrets_of(pool, name, forkable=True)
            while not pool.lineages.use(name).is_idle:  # noqa: ASYNC110 - the kernel reports no such event
                await trio.sleep(0.01)
        assert [lineage.name for lineage in pool.lineages.all] == [OWN, "busy", "third"]
        assert len(pool.pids) == len(pool.lineages.all)
        assert await attempt(busy, "secrets")
        busy.close()
