"""Lineages of environments: each has its own, which ends when nothing runs there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio

from dios.errors import DiosError
from dios.host.process.lineages import OWN, Lineages, lineage_of
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.templates import ProcessMaker
from dios.ids import Principal

NODE, USER = Principal("uid:0"), Principal("uid:1000")


class NoProcesses:
    """Makes no processes."""

    def may_prepare(self, lineage: str) -> bool:
        """Have none in advance."""
        del lineage
        return False

    async def make_prepared(self, lineage: str) -> TaskProcess:
        """Refuse."""
        raise DiosError(lineage)

    def maker_of(self, lineage: str) -> ProcessMaker:
        """Return itself: no template is used."""
        del lineage
        return cast("ProcessMaker", self)

    def has_room(self) -> bool:
        """Have none."""
        return False


@pytest.fixture
async def lineages() -> AsyncIterator[Lineages]:
    """No lineages but that of the node's own user."""
    async with trio.open_nursery() as nursery:
        yield Lineages(nursery, NoProcesses(), (), (), "", defaults=ProcessLimits(1, 0, 1), prepared_max=0)


def test_each_environment_of_a_principal_has_a_lineage() -> None:
    """No two of these tasks are forked from the same zygote, whose view has one environment."""
    names = {
        lineage_of(principal, NODE, is_gateway=is_gateway, environment=environment)
        for principal in (NODE, USER)
        for is_gateway in (False, True)
        for environment in ("", "owner/1", "owner/2")
    }
    assert len(names) == 12


async def test_a_lineage_knows_its_environment(lineages: Lineages) -> None:
    """Others have none."""
    name = lineage_of(USER, NODE, is_gateway=False, environment="owner/1")
    assert lineages.use(name).environment == "owner/1"
    assert lineages.use(OWN).environment == ""
    assert lineages.use(lineage_of(USER, NODE, is_gateway=False)).environment == ""


async def test_lineages_of_an_environment_end_when_nothing_starts_there(lineages: Lineages) -> None:
    """While a task starts, the environment is used; others are not affected."""
    name, other = (
        lineage_of(USER, NODE, is_gateway=False, environment=environment) for environment in ("o/1", "o/2")
    )
    lineage = lineages.use(name)
    lineages.use(other)
    with lineage.starting():
        assert lineages.any_task_in("o/1")
        assert lineages.take_idle_in("o/1") is None
    assert not lineages.any_task_in("o/1")
    assert lineages.take_idle_in("o/1") == [lineage]
    assert {lineage.name for lineage in lineages.all} == {OWN, other}
