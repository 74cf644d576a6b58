"""The contract of cost models notices each way to break it; files of models are read or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.firmament.custom_model import contract
from dios.firmament.custom_model.loading import ModelFile
from dios.firmament.descriptors import JobDescriptor, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.limits import SCHED_MODEL_BYTES_MAX
from labs.simulate.scheduling.schedulers import scheduler_for

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "own_cost_model.py"

HEAD = """
import numpy as np
from dios.firmament.models.base import BaseModel, PerArcModel
from dios.firmament.models.trivial import TrivialModel
from dios.firmament.models.protocol import Options

class Mine(TrivialModel):
    name = "mine"
    summary = "one line"
"""

BROKEN = {
    "raises": ("def leaf_to_sink(self, state, leaves): return 1 / 0", "line 11: ZeroDivisionError"),
    "floats": (
        "def leaf_to_sink(self, state, leaves): return np.zeros(len(leaves))",
        "leaf_to_sink: answered float64",
    ),
    "too short": ("def leaf_to_sink(self, state, leaves): return np.zeros(1, np.int64)", "shape"),
    "only without machines": (
        "def leaf_to_sink(self, state, leaves): return np.zeros(max(len(leaves), 1), np.int64)",
        "cluster: empty",
    ),
    "grows without bound": (
        (
            "def task_to_unscheduled(self, state, tasks):\n"
            "        return np.full(len(tasks), int(state.now) ** 2, np.int64)"
        ),
        "thirty years later",
    ),
    "chance": (
        (
            "def leaf_to_sink(self, state, leaves):\n"
            "        return np.random.default_rng().integers(0, 9**9, len(leaves))"
        ),
        "answer differently about the same cluster",
    ),
    "counts": (
        (
            "count = 0\n    def leaf_to_sink(self, state, leaves):\n"
            "        self.count += 1\n        return np.full(len(leaves), self.count, np.int64)"
        ),
        "the second answers of the model differ",
    ),
    "writes": (
        (
            "def task_to_unscheduled(self, state, tasks):\n"
            "        state.tasks.priority[tasks] += 1\n        return np.zeros(len(tasks), np.int64)"
        ),
        "column tasks.priority",
    ),
    "writes beside the columns": (
        "def begin(self, state):\n        state.resources.children[state.cluster] = []",
        "descriptions or the tree",
    ),
    "explains with a number": ("def explain(self, state, task, resource): return 5", "explain: answered int"),
    "forgets nobody": (
        (
            "def __init__(self):\n        super().__init__()\n        self.known = set()\n"
            "    def add_tasks(self, state, tasks):\n        self.known.update(tasks.tolist())\n"
            "    def stale_tasks(self, state): return np.array(sorted(self.known), np.int64)"
        ),
        "stale_tasks: row",
    ),
}
"""What is wrong with a model, the method that does it, and what is said of it."""


def checked(source: str, **parameters: str) -> ModelFile:
    """Read a file and check its model."""
    model_file = ModelFile(source)
    contract.check(lambda: model_file.make(parameters))
    return model_file


def test_the_example_keeps_the_contract() -> None:
    """It is what the page shows."""
    model_file = checked(EXAMPLE.read_text(), per_cpu="7")
    assert (model_file.name, model_file.parameters) == ("pack", {"per_cpu": 100})


def test_the_model_of_the_page_fills_the_fullest_machine() -> None:
    """docs/cost-models.md: its model keeps the contract, and does what the page says."""
    page = (EXAMPLE.parents[1] / "docs" / "cost-models.md").read_text()
    model_file = checked(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    scheduler = FlowScheduler(model_file.make({}), SchedulerSettings(certify_every=1))
    for number, cpus in enumerate((4, 2, 3)):
        machine = MachineDescriptor(number, f"n{number}", capacity=Resources(cpus=cpus), slots=4)
        scheduler.add_machine(machine, 0.0)
    for task in range(6):
        scheduler.submit(JobDescriptor(task), [TaskDescriptor(task)], 0.0)
        assert scheduler.round(float(task)).stands
    running = [
        int(scheduler.state.resources.running[scheduler.state.machine_row(machine_id)])
        for machine_id in range(3)
    ]
    assert running == [1, 2, 3]


def test_a_simulation_takes_a_file(tmp_path: Path) -> None:
    """By its name, with parameters; a missing or unreadable one is refused with the reason."""
    scheduler = scheduler_for(str(EXAMPLE), parameters={"per_cpu": "5"})
    assert isinstance(scheduler, FlowScheduler)
    assert scheduler.model.name == "pack"
    (tmp_path / "binary.py").write_bytes(b"\xff")
    (tmp_path / "long.py").write_text("#" * (SCHED_MODEL_BYTES_MAX + 1))
    for name, said in (("none.py", "No such file"), ("binary.py", "UTF-8"), ("long.py", "too long")):
        with pytest.raises(InvalidError, match=said):
            scheduler_for(str(tmp_path / name))


@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_model_is_found(defect: str) -> None:
    """The message says what is wrong, and where the model raised."""
    method, said = BROKEN[defect]
    with pytest.raises(BadModelError) as caught:
        checked(f"{HEAD}\n    {method}\n")
    assert said in str(caught.value)


def test_without_the_break_it_is_kept() -> None:
    """The table above breaks a model that is right."""
    assert checked(HEAD).summary == "one line"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "found: none"),
        ("import os\n1 +", "line 2: SyntaxError"),
        ("import nosuch", "line 1: ModuleNotFoundError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("from dios.firmament.models.trivial import TrivialModel", "found: none"),
        (HEAD + "\nclass Other(TrivialModel):\n    name = 'other'\n", "found: Mine, Other"),
        (HEAD.replace("'mine'", "'x'").replace('name = "mine"', "pass"), "'trivial' is taken"),
        (HEAD.replace('"one line"', '"two\\nlines"'), "one short line of text as its summary"),
        (HEAD.replace('"mine"', "5"), "one short line of text as its name"),
        ("#" * (SCHED_MODEL_BYTES_MAX + 1), "at most"),
    ],
)
def test_a_file_that_is_no_model_is_refused(source: str, said: str) -> None:
    """The message says why, with the line where there is one."""
    with pytest.raises(BadModelError) as caught:
        ModelFile(source)
    assert said in str(caught.value)


def test_a_class_that_another_one_builds_upon_is_not_the_model() -> None:
    """Only the last of a line of classes counts."""
    assert ModelFile(HEAD + "\nclass Last(Mine):\n    name = 'last'\n").name == "last"


@pytest.mark.parametrize(("given", "said"), [("2.5", "a whole number"), ("-1", "-1")])
def test_a_bad_parameter_is_refused(given: str, said: str) -> None:
    """As with the models of the catalogue."""
    with pytest.raises(BadModelError, match=said):
        ModelFile(HEAD).make({"waiting": given})
    with pytest.raises(BadModelError, match="no parameter 'colour'"):
        ModelFile(HEAD).make({"colour": given})
