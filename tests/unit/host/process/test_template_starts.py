"""The start of a template, which may take long on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
import trio
from trio.testing import MockClock

from dios import start_watch
from dios.errors import NotSupportedError
from dios.host.process.task_process import TaskProcess
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.templates import Templates
from dios.start_watch import Activity
from tests.unit.host.process.test_prepared_tasks import BOUNDS, Factory

if TYPE_CHECKING:
    from dios.host.process.task_process import ProcessLimits
    from dios.host.process.zygote_link import ZygoteLink

HOUR_S = 3600


class SlowLink:
    """The supervisor of templates, in place of a zygote: loading takes an hour."""

    alive = True

    def __init__(self, factory: Factory) -> None:
        self.factory = factory

    async def make_template(self, bounds: ProcessLimits) -> TaskProcess:
        """Return a process that does not exist."""
        del bounds
        return await self.factory.make(False)

    async def load(self, *_: object) -> str:
        """Load the modules."""
        await trio.sleep(HOUR_S)
        return ""


class Maker:
    """The part of the pool that templates need."""

    def __init__(self) -> None:
        self.factory = Factory()

    async def template_link(self) -> ZygoteLink:
        """Return the slow one."""
        return cast("ZygoteLink", SlowLink(self.factory))

    async def counted(self, child: TaskProcess) -> TaskProcess:
        """Count nothing."""
        return child

    async def lowered(self, *_: object) -> bool:
        """Lower nothing."""
        return True

    def has_room(self) -> bool:
        """Return True."""
        return True


async def _run_here(function: Callable[[], bool]) -> bool:
    return function()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_template_that_loads_slowly_is_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """An hour is no failure while its process waits for a processor; one that does nothing hangs."""
    del autojump_clock
    monkeypatch.setattr(start_watch, "activity_of", lambda _: Activity(0, waits=waits))
    # The clock of the test would jump over the hour while a thread looks.
    monkeypatch.setattr(trio.to_thread, "run_sync", _run_here)
    maker = Maker()
    async with trio.open_nursery() as nursery:
        templates = Templates([TemplateSetting("data", ())], nursery, maker, defaults=BOUNDS)
        if waits:
            await templates.prepare("data")
            assert trio.current_time() >= HOUR_S
        else:
            with pytest.raises(NotSupportedError, match="hung while it loaded"):
                await templates.prepare("data")
        nursery.cancel_scope.cancel()
    for child in maker.factory.children:
        child.close()
