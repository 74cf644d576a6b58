"""Compiles the kernels of a coordinator while the image is built; Numba keeps them in NUMBA_CACHE_DIR."""  # noqa: INP001 - the image runs it by its path

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

from dios.firmament.coordinator.office import open_office
from dios.firmament.descriptors import (
    Affinity,
    Constraint,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.knowledge import KnowledgeBase
from dios.firmament.models import catalogue
from dios.firmament.scheduler import FlowScheduler

MACHINES = 6
ROUNDS = 40
MODELS = ("spread", "coco")
"""Their networks have all shapes; the other models need no kernel more."""
FULL = 40
"""More tasks than have a place."""


class Play:
    """A small cluster with a short and eventful life, always the same; its decisions do not matter."""

    def __init__(self, model: str) -> None:
        self._chance = random.Random(1)  # noqa: S311 - a play, no secret
        self._scheduler = FlowScheduler(catalogue.make(model), knowledge=KnowledgeBase("image", 1))
        self._tasks: list[int] = []
        self._made = 0
        self._fills = True

    def run(self) -> None:
        """Fill the cluster and empty it again and again, while machines come and go."""
        for machine in range(MACHINES):
            self._join(machine, 0.0)
        for number in range(ROUNDS):
            now = float(number)
            if len(self._tasks) > FULL or not self._tasks:
                self._fills = not self._tasks
            if self._fills:
                self._submit(number, now)
            else:
                self._finish(now)
            self._scheduler.round(now)
            self._explain()
            if number % 5 == 0:
                machine = self._chance.randrange(MACHINES)
                self._scheduler.remove_machine(machine, now)
                self._scheduler.round(now)
                self._join(machine, now)

    def _join(self, machine: int, now: float) -> None:
        size, name = Resources(4.0, 1e9), f"m{machine}"
        labels = (("node", name),)
        added = MachineDescriptor(machine, name, f"r{machine % 2}", size, 4, labels=labels)
        self._scheduler.add_machine(added, now)

    def _submit(self, job: int, now: float) -> None:
        fresh = []
        for _ in range(self._chance.randrange(1, 9)):
            picky = self._chance.random() < 0.2
            where = (Constraint("node", value=f"m{self._chance.randrange(MACHINES)}"),) if picky else ()
            demand = Resources(self._chance.choice((0.0, 0.5, 2.0)), self._chance.choice((0.0, 2e8)))
            priority = self._chance.randrange(3)
            fresh.append(TaskDescriptor(self._made, demand, priority=priority, constraints=where))
            self._made += 1
        together = job % 4 == 0
        gang = JobDescriptor(job, gang=len(fresh), affinity=Affinity.SPREAD_MACHINES)
        self._scheduler.submit(gang if together else JobDescriptor(job), fresh, now)
        self._tasks += [task.task for task in fresh]

    def _explain(self) -> None:
        for task in self._tasks[:1]:
            self._scheduler.explain(task)

    def _finish(self, now: float) -> None:
        self._chance.shuffle(self._tasks)
        for _ in range(min(len(self._tasks), self._chance.randrange(1, 9))):
            self._scheduler.finished(self._tasks.pop(), now)


def main(folder: Path) -> None:
    """Compile, and name what came out: ``made`` tells one image's kernels from another's."""
    open_office("spread", "image", "centralised", KnowledgeBase("image", 1))
    for model in MODELS:
        Play(model).run()
        sys.stdout.write(f"{model}: {len(list(folder.rglob('*.nbc')))} kernels\n")
    kernels = sorted(path for path in folder.rglob("*") if path.is_file())
    if not kernels:
        sys.exit(f"no kernel was kept in {folder}")
    digest = hashlib.sha256()
    for path in kernels:
        digest.update(path.read_bytes())
    (folder / "made").write_text(f"{digest.hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
