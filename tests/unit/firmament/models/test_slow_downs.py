"""Measured slow-downs reach the costs of CoCo and Whare-Map."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dios.errors import InvalidError
from dios.firmament.cluster.state import ClusterState
from dios.firmament.coordinator.query_handler import PolicyTerms
from dios.firmament.descriptors import Interference, TaskDescriptor
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample
from dios.firmament.models import slow_downs
from dios.firmament.models.catalogue import make
from dios.firmament.models.coco import PENALTIES, CocoModel
from dios.firmament.models.cost_terms import BadModelError, class_numbers
from dios.firmament.models.whare import TASKS, WhareC, WhareModel
from dios.firmament.policies.stored_shares import StoredPolicy
from tests.support.firmament import clusters as small
from tests.support.firmament.coco import arcs, ask, fill, ready

HARMLESS_DEVILS = "100,100,100,100,100,100,190,100,100,100,100,100,100,100,100,100"
"""A machine on which devils disturb nobody, and a rabbit next to a sheep takes nearly twice its time."""
DEVILS = ",".join(["100,100,100,300"] * 4)


def test_the_text_of_a_matrix_is_read_as_it_was_written() -> None:
    """16 numbers in percent, by rows; anything else is refused with the parameter's name."""
    matrix = [[1.0, 1.25, 2.0, 3.5]] * 4
    text = slow_downs.slow_downs_text(matrix)
    read = slow_downs.parse_slow_downs("coco", text)
    assert read is not None
    assert read.tolist() == matrix
    assert slow_downs.parse_slow_downs("coco", "") is None
    for wrong in ("1,2", "a,b", ",".join(["0"] * 16), ",".join(["1.5"] * 16), ",".join(["1000"] * 16)):
        with pytest.raises(BadModelError, match="slow_downs"):
            make("coco", slow_downs=wrong)
    with pytest.raises(InvalidError, match="4 rows"):
        slow_downs.slow_downs_text([[1.0]])


def test_the_largest_matrix_is_a_parameter_that_a_coordinator_takes_and_stores() -> None:
    """Its text is not longer than a parameter of `dios sched set-model` may be."""
    text = slow_downs.slow_downs_text([[50.0] * 4] * 4)
    terms = msgspec.convert({"model": "coco", "parameters": {"slow_downs": text}}, type=PolicyTerms)
    stored = StoredPolicy(terms.model, tuple(terms.parameters.items()), (), 0.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=StoredPolicy) == stored
    assert (CocoModel(slow_downs=text).penalties == 1).all()


def test_penalties_are_the_excess_of_the_run_time_symmetric_and_at_most_one() -> None:
    """The worse direction counts; a speed-up costs nothing; twice as long or longer is 1."""
    penalties = slow_downs.penalties_of(
        np.array([[0.9, 1.2, 1, 1], [1.5, 1, 1, 1], [1, 1, 1, 4], [1, 1, 1, 1]])
    )
    assert penalties[0, 0] == 0
    assert penalties[0, 1] == penalties[1, 0] == pytest.approx(0.5)
    assert penalties[2, 3] == penalties[3, 2] == 1


def _cost(neighbour: Interference, parameter: str) -> int:
    """Return the cost for a sheep, by CoCo, of a machine of four slots on which one task runs."""
    state = small.cluster(1, slots=4)
    fill(state, 0, 0, interference=neighbour)
    small.add_task(state, ask(9, interference=Interference.SHEEP))
    (cost,) = arcs(state, ready(state, slow_downs=parameter)).cost.tolist()
    return int(cost)


def test_coco_avoids_the_neighbours_that_were_measured_to_disturb() -> None:
    """By the thesis' penalties a sheep avoids a devil; where rabbits are worse, it avoids these."""
    devil, rabbit = Interference.DEVIL, Interference.RABBIT
    assert _cost(devil, "") > _cost(rabbit, "")
    assert _cost(devil, HARMLESS_DEVILS) < _cost(rabbit, HARMLESS_DEVILS)
    assert (CocoModel().penalties == PENALTIES).all()


def _whare(parameter: str, *, measured: bool = False) -> dict[int, int]:
    """Return Whare-C's cost of each machine for class a: a devil runs on 0, and a turtle on 1."""
    base = KnowledgeBase("n0", 1)
    for name in ("a", "b", "c"):
        base.add(Sample(name, "fast", "m", 1, {Metric.PS_PER_INSTRUCTION: 1000}, ()))
    if measured:
        base.add(Sample("a", "fast", "m", 1, {Metric.PS_PER_INSTRUCTION: 1100}, ("b",)))
    state = ClusterState(knowledge=base)
    for number in (0, 1):
        small.add_machine(state, number, machine_type="fast", slots=3)
    running = (("b", Interference.DEVIL, 0), ("c", Interference.TURTLE, 1))
    for number, (name, kind, at) in enumerate(running):
        row = small.add_task(state, TaskDescriptor(number, equivalence=name, interference=kind))
        small.run(state, row, at)
    # Two tasks wait, so their class has an arc to each machine.
    for number in (8, 9):
        small.add_task(state, TaskDescriptor(number, equivalence="a", interference=Interference.SHEEP))
    model: WhareModel = WhareC(slow_downs=parameter, mutual=0.0)
    model.begin(state)
    mine = class_numbers(TASKS, np.array([state.equivalences.number("a")]))
    options = model.class_to_resources(state, mine)
    costs = dict(zip(options.target.tolist(), options.cost.tolist(), strict=True))
    return {number: costs[int(small.machine(state, number))] for number in (0, 1)}


def test_whare_map_assumes_the_measured_slow_down_for_pairs_that_never_ran_together() -> None:
    """Without it the machines cost the same; with it the devil's costs three times a task alone."""
    without = _whare("")
    assert without[0] == without[1] == 1000
    assert _whare(DEVILS) == {0: 3000, 1: 1000}


def test_a_measured_pair_has_precedence_over_an_assumed_one() -> None:
    """Class a next to b was measured at 1,100, so the parameter's factor of three is not used."""
    assert _whare(DEVILS, measured=True)[0] == 1100
