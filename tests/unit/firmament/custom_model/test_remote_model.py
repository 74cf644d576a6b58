"""A model in another process schedules as it does here, and nothing that it answers can do harm."""

from __future__ import annotations

import numpy as np
import pytest

from dios.firmament.custom_model import answers, orders
from dios.firmament.custom_model.answers import Explained, Failed, Opened, Vectors
from dios.firmament.custom_model.state_changes import StateCopy, StateSender
from dios.firmament.models.catalogue import make
from dios.firmament.rounds.model_guard import ModelError
from tests.support.firmament.cluster_histories import History
from tests.support.firmament.custom_models import derived, opened

ROUNDS = 25
MODELS = {
    "spread": derived("spread", "SpreadModel"),
    "quincy": derived("quincy", "QuincyModel"),
    "sparrow": derived("sparrow", "SparrowModel"),
    "late": derived("late", "LateModel"),
    "apollo": derived("apollo", "ApolloModel"),
    "h-drf": derived("choosy", "HdrfModel"),
    "kmn": derived("kmn", "KmnModel"),
    "coco": derived("coco", "CocoModel"),
}
TABLES = ("tasks", "jobs", "resources")


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_model_elsewhere_decides_as_it_does_here(name: str) -> None:
    """Two clusters with the same history, one with the model in a task, have the same rounds."""
    for seed in (1, 2):
        here, there = History(seed), History(seed)
        model, link = opened(MODELS[name])
        here.scheduler.set_model(make(name), 0.0)
        there.scheduler.set_model(model, 0.0)
        for _ in range(ROUNDS):
            for _ in range(2):
                here.happen()
                there.happen()
            local, other = here.round(), there.round()
            assert (local.deltas, local.cost) == (other.deltas, other.cost), f"seed {seed}"
        assert link.asked > ROUNDS


def test_the_copy_of_the_cluster_is_complete() -> None:
    """After any history, all columns and texts are equal, and an unchanged cluster costs almost nothing."""
    for seed in range(6):
        history, sender, copy = History(seed), StateSender(), StateCopy()
        for _ in range(ROUNDS):
            history.happen()
            history.round()
            order = orders.Ask("begin", [], sender.change(history.state))
            again = orders.decode_order(orders.encode(order))
            assert isinstance(again, orders.Ask)
            assert again.change is not None
            copy.apply(again.change)
            for table in TABLES:
                mine, theirs = vars(getattr(history.state, table)), vars(getattr(copy.state, table))
                for key, value in mine.items():
                    if isinstance(value, np.ndarray):
                        assert value.tobytes() == theirs[key].tobytes(), f"seed {seed}: {table}.{key}"
                    elif key not in {"_free", "_used"}:
                        assert value == theirs[key], f"seed {seed}: {table}.{key}"
            for key in ("machine_ids", "_machine_rows", "now", "cluster", "equivalences", "principals"):
                original, other = getattr(history.state, key), getattr(copy.state, key)
                assert getattr(original, "names", original) == getattr(other, "names", other), (
                    f"seed {seed}: {key}"
                )
            assert np.array_equal(history.state.held, copy.state.held)
        idle = orders.encode(orders.Ask("begin", [], sender.change(history.state)))
        assert len(idle) < 100


def test_events_reach_the_model() -> None:
    """It learns of each machine and task that came or went, and what is gone still has its row then."""
    source = """
import numpy as np
from dios.firmament.models.trivial import TrivialModel

class Mine(TrivialModel):
    name = "mine"
    def __init__(self):
        super().__init__()
        self.tasks, self.machines = set(), set()
    def add_tasks(self, state, tasks):
        self.tasks.update(state.tasks.id[tasks].tolist())
    def remove_task(self, state, task):
        self.tasks.remove(int(state.tasks.id[task]))
    def add_machine(self, state, machine):
        self.machines.add(state.machine_ids[machine])
    def remove_machine(self, state, machine):
        self.machines.remove(state.machine_ids[machine])
    def explain(self, state, task, resource):
        known = set(state.tasks.id[state.tasks.all()].tolist())
        return f"{known ^ self.tasks} {set(state.machine_ids.values()) ^ self.machines}"
"""
    history = History(3)
    model, _ = opened(source)
    history.scheduler.set_model(model, 0.0)
    for _ in range(ROUNDS):
        history.happen()
        history.round()
        row = int(history.state.resources.all()[0])
        assert model.explain(history.state, 0, row) == "set() set()"


HOSTILE = {
    "nothing": b"",
    "nonsense": b"\xc1",
    "another kind": answers.encode(Explained("hello")),
    "another answer": answers.encode(Opened("mine", "", {})),
    "too few": answers.encode(Vectors([])),
    "too many": answers.encode(Vectors([b"", b"", b"", b""])),
    "half a number": answers.encode(Vectors([b"\x00" * 12])),
    "far too many": answers.encode([2, [b""] * 100]),
    "deep": b"\x91" * 100_000,
    "a failure": answers.encode(Failed("it is broken")),
    "a long failure": answers.encode([4, "x" * 10**6]),
}


@pytest.mark.long
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_answer_is_an_error_and_no_more(attack: str) -> None:
    """Each is a ModelError at the question, so the schedule stays as it is."""
    history = History(4)
    model, link = opened(MODELS["spread"])
    history.scheduler.set_model(model, 0.0)
    history.submit()
    for answered in range(4):
        ok = answers.encode(Vectors([]))
        link.replies = [ok] * min(answered, 2) + [HOSTILE[attack]] * 8
        outcome = history.scheduler.round(history.now)
        link.replies = []
        if attack == "too few" and answered < 4 and outcome.stands:
            pytest.fail("an answer without vectors was taken for one")
        assert not outcome.stands
        assert [fault.source for fault in outcome.faults] == ["model mine"]


def test_what_the_model_raises_is_said_with_its_line() -> None:
    """Also from an explanation."""
    source = """
from dios.firmament.models.trivial import TrivialModel

class Mine(TrivialModel):
    name = "mine"
    def explain(self, state, task, resource):
        return "" if task < 10**9 else str(1 / 0)
"""
    model, _ = opened(source)
    with pytest.raises(ModelError, match="line 7: ZeroDivisionError"):
        model.explain(History(5).state, 10**9, 0)


def test_a_model_that_breaks_the_contract_is_not_opened() -> None:
    """The reason is that of the contract."""
    with pytest.raises(ModelError, match="answered float64, not int64"):
        opened(MODELS["spread"] + "    def leaf_to_sink(self, state, leaves): return leaves * 1.5\n")
