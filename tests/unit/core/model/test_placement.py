"""Where a task goes that names no node."""

from __future__ import annotations

from itertools import permutations

from msgspec.structs import replace

from dios.core.model.placement import LeastLoaded
from dios.ids import NodeId
from dios.wire.gossip import Load, MemberRow
from dios.wire.messages import Limits
from dios.wire.types import Fitness, NodeStatus

GIB = 1 << 30
OWN = MemberRow(NodeId(1), "m", load=Load(0, 4, 8 * GIB))
EARLIER = MemberRow(NodeId(3), "a", load=Load(0, 4, 8 * GIB))
LATER = MemberRow(NodeId(2), "z", load=Load(0, 4, 8 * GIB))


def choose(own: MemberRow, *candidates: MemberRow, asked: Limits | None = None, pure: bool = True) -> str:
    """The name of the node chosen, which must not hang on the order of candidates."""
    chosen = {
        LeastLoaded().choose(order, own, asked or Limits(), pure=pure).name
        for order in permutations(candidates)
    }
    assert len(chosen) == 1
    return chosen.pop()


def busy(member: MemberRow, tasks: int, cpus: int = 4) -> MemberRow:
    """The node with this much to do."""
    return replace(member, load=replace(member.load, tasks=tasks, cpus=cpus))


def test_a_node_alone_keeps_its_tasks() -> None:
    """Without candidates the choice is this node, whatever its load."""
    assert choose(busy(OWN, 99)) == "m"


def test_the_fewest_tasks_for_each_processor_win() -> None:
    """A large node with more tasks may have less to do than a small one."""
    assert choose(busy(OWN, 3), busy(EARLIER, 8, 16), busy(LATER, 2)) == "a"


def test_of_equal_nodes_this_one_is_chosen() -> None:
    """A task goes away only where less is to be done."""
    assert choose(OWN, EARLIER, LATER) == "m"
    assert choose(busy(OWN, 1), EARLIER) == "a"


def test_of_equal_others_the_first_by_name_is_chosen() -> None:
    """The choice is the same wherever it is made."""
    assert choose(busy(OWN, 1), LATER, EARLIER) == "a"


def test_a_draining_node_gets_nothing() -> None:
    """Neither another nor this one, as long as somebody else takes tasks."""
    assert choose(busy(OWN, 9), replace(EARLIER, draining=True), busy(LATER, 5)) == "z"
    assert choose(replace(OWN, draining=True), busy(EARLIER, 9)) == "a"


def test_when_all_are_draining_the_task_stays_here() -> None:
    """Somebody asked for it here, and it must run somewhere."""
    assert choose(replace(OWN, draining=True), replace(EARLIER, draining=True)) == "m"


def test_a_suspect_gets_a_task_only_when_nobody_else_is_left() -> None:
    """An idle node that does not answer is worse than a busy one that does."""
    suspect = replace(EARLIER, status=NodeStatus.SUSPECT)
    assert choose(busy(OWN, 50), suspect) == "m"
    assert choose(replace(OWN, draining=True), suspect) == "a"


def test_where_the_memory_is_the_task_goes() -> None:
    """A node with too little free memory for the task's limit comes after those that have it."""
    asked = Limits(memory_bytes=16 * GIB)
    roomy = replace(busy(LATER, 7), load=Load(7, 4, 64 * GIB))
    assert choose(OWN, EARLIER, roomy, asked=asked) == "z"
    assert choose(OWN, EARLIER, asked=asked) == "m"


def test_a_node_that_told_no_processors_counts_as_having_one() -> None:
    """A row without a load is no division by zero."""
    assert choose(busy(OWN, 2), MemberRow(NodeId(9), "new")) == "new"


def test_a_pure_task_goes_where_it_can_run_for_certain() -> None:
    """A busy node that is fit comes before one that does not know yet, and an unfit one comes last."""
    unfit, unknown = replace(EARLIER, fitness=Fitness.UNFIT), replace(OWN, fitness=Fitness.UNKNOWN)
    assert choose(unknown, unfit, busy(LATER, 9)) == "z"
    assert choose(busy(unknown, 9), unfit) == "m"
    assert choose(replace(OWN, fitness=Fitness.UNFIT), replace(LATER, status=NodeStatus.SUSPECT)) == "z"
    assert choose(busy(OWN, 1), unfit, pure=False) == "a"
