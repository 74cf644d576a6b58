"""The memory limit of a template's control group while its tasks run."""

from __future__ import annotations

from pathlib import Path

import trio

from dios.host.confinement.cgroups import ControlGroup, Hierarchy
from dios.host.process import templates
from dios.host.process.prepared_tasks import PreparedTasks
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.templates import TASK_BYTES
from tests.unit.host.process.test_prepared_tasks import Factory

OWN = 1 << 28


async def test_each_task_adds_to_the_limit_of_its_template(tmp_path: Path) -> None:
    """Pages that only tasks use still count for the process that they were forked from."""
    factory = Factory()
    async with trio.open_nursery() as nursery:
        prepared = PreparedTasks(nursery, 0, factory.make, factory.has_room)
        template = templates._Template(TemplateSetting("data", (), OWN), prepared)
        process = await factory.make(False)
        process.group = ControlGroup([(tmp_path, Hierarchy(tmp_path, 2, frozenset({"memory"})))])
        for count in range(1, 201):
            templates._make_room(template, process)
            template.tasks.add(await factory.make(False))
            limit = int((tmp_path / "memory.max").read_text())
            assert OWN + count * TASK_BYTES <= limit < OWN + (count + 100) * TASK_BYTES
        for child in factory.children:
            child.kill()
            child.close()
