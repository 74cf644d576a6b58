"""The load of machines by programs that are no tasks, and when it counts."""

from __future__ import annotations

import pytest

from dios.firmament.coordinator.best_effort import NodeLoad, TaskLoad
from dios.firmament.coordinator.outside_load import NodeTotals, OutsideLoad
from dios.limits import LOAD_HOLD_MS

HOLD_S = LOAD_HOLD_MS / 1000
GB = 10**9


class Measured:
    """Nodes of eight processors and 10 GB whose use is reported at chosen times."""

    def __init__(self) -> None:
        self.load = OutsideLoad()
        self.now = 0.0

    def report(self, cpus: float, node: str = "n1", *, tasks: tuple[float, ...] = (), **more: int) -> None:
        """Report the use of all, the use of each measured task, and the number of tasks if others run."""
        rows = tuple(TaskLoad(number, round(1000 * use), 0, 0) for number, use in enumerate(tasks, start=1))
        load = NodeLoad(round(1000 * cpus), more.get("memory", 0), 0, 0, rows)
        totals = NodeTotals(8, 10 * GB, more.get("running", len(tasks)))
        self.load.record(node, f"boot{more.get('machine', 0)}", load, totals, self.now)

    def after(self, seconds: float, node: str = "n1") -> float:
        """Return the processors that count some seconds later."""
        self.now += seconds
        return self.load.processors(node, self.now)


@pytest.mark.parametrize(
    ("cpus", "counted"), [(0.0, 0), (1.9, 0), (2.0, 2), (3.9, 2), (4.0, 4), (6.1, 6), (8.0, 8), (9.0, 8)]
)
def test_load_counts_in_quarters_of_a_machine(cpus: float, counted: float) -> None:
    """Less than a quarter does not count, so that almost idle machines are alike."""
    measured = Measured()
    measured.report(cpus)
    assert measured.after(HOLD_S) == counted


def test_a_load_counts_after_it_has_lasted() -> None:
    """A load that was measured again and again for LOAD_HOLD_MS counts, and one that ends before does not."""
    measured = Measured()
    measured.report(8)
    assert measured.after(HOLD_S - 1) == 0
    measured.report(0)
    assert measured.after(HOLD_S) == 0
    measured.report(8)
    measured.after(HOLD_S / 2)
    measured.report(8)
    assert measured.after(HOLD_S / 2) == 8


def test_a_load_around_a_level_keeps_it() -> None:
    """A level falls only when the load is clearly below it, so a load that sways around it moves nothing."""
    measured = Measured()
    measured.report(4)
    assert measured.after(HOLD_S) == 4
    for cpus in (3.1, 4.2, 3.5, 5.9):
        measured.report(cpus)
        assert measured.after(HOLD_S) == 4
    measured.report(2.9)
    assert measured.after(HOLD_S) == 2
    measured.report(0.9)
    assert measured.after(HOLD_S) == 0


@pytest.mark.parametrize(
    ("loads", "counted"), [([(4.1, 0), (3.5, 0)], 4), ([(0, 91), (0, 85)], 8)], ids=["cpus", "memory"]
)
def test_a_load_that_sways_from_the_start_counts(loads: list[tuple[float, int]], counted: float) -> None:
    """Reports around a level say the same, although the level is not in force yet."""
    measured = Measured()
    for cpus, percent in 3 * loads:
        measured.report(cpus, memory=percent * GB // 10)
        measured.after(HOLD_S / 6)
    assert measured.after(0) == counted


def test_the_use_of_tasks_is_not_from_outside() -> None:
    """What tasks use is left out, and a task without a measurement counts as a processor."""
    measured = Measured()
    measured.report(8, tasks=(3.0, 0.5), running=3)
    assert measured.after(HOLD_S) == 2


def test_nodes_of_one_machine_do_not_count_each_others_tasks() -> None:
    """They have one load together; a node of another machine has its own."""
    measured = Measured()
    measured.report(6, "n1", tasks=(3.0,))
    measured.report(6, "n2", tasks=(3.0,))
    measured.report(6, "n3", machine=1)
    assert measured.after(HOLD_S, "n1") == 0
    assert measured.after(0, "n2") == 0
    assert measured.after(0, "n3") == 6
    measured.load.keep({"n2"})
    measured.report(6, "n2", tasks=(3.0,))
    assert measured.after(HOLD_S, "n2") == 2
    assert measured.after(0, "n3") == 0


def test_a_machine_whose_memory_is_short_counts_as_full() -> None:
    """It counts as full from 90 percent of its memory in use on, until less than 80 percent are."""
    measured = Measured()
    for used, counted in ((89, 0), (90, 8), (80, 8), (79, 0), (89, 0)):
        measured.report(0, memory=used * GB // 10)
        assert measured.after(HOLD_S) == counted, used


def test_nothing_counts_on_a_node_that_was_not_measured() -> None:
    """A node without measurements has no load from outside."""
    assert Measured().after(HOLD_S, "n9") == 0
