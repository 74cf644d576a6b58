"""The messages about quotas: each node learns what the others hold, what waits, and why, if it is new."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dios.firmament.coordinator.assignment import Assignment
from dios.firmament.coordinator.cluster_state import TrackedCluster
from dios.firmament.coordinator.first_fit import FirstFitScheduler
from dios.firmament.coordinator.node_admission import REFRESH_S, NodeAdmissions
from dios.wire import codec
from dios.wire.fields import U63_MAX
from dios.wire.messages import DeviceRequest, Holding, Quota, SetAdmission, Work
from tests.support.firmament.coordinated_nodes import CoordinatedNodes

NAMES = frozenset({"n1", "n2", "n3"})
ALL = Assignment(NAMES, NAMES, governs=NAMES)
NO_LIMIT = math.inf
QUOTAS = {
    "uid:1": (3.0, 2.5, NO_LIMIT, NO_LIMIT, NO_LIMIT, 4.0),
    "uid:2": (NO_LIMIT,) * 6,
}
WORK = Work(cpus_milli=1_500, memory_bytes=7, devices=(DeviceRequest("gpu", 2),))


class Play(CoordinatedNodes):
    """Nodes whose runs the simple rule places, and the messages that they get."""

    def __init__(self) -> None:
        scheduler = FirstFitScheduler()
        super().__init__(scheduler, scheduler.round)
        self.admissions = NodeAdmissions()

    def due(
        self,
        assignment: Assignment = ALL,
        informed: frozenset[str] = NAMES,
        *,
        quotas: Mapping[str, Sequence[float]] = QUOTAS,
        silent: frozenset[str] = frozenset(),
    ) -> dict[str, SetAdmission]:
        """Return the messages that are due now; all nodes but the silent ones answer them."""
        cluster: TrackedCluster = self.cluster
        messages = self.admissions.due(cluster, quotas, assignment, informed, self.now)
        for name in messages.keys() - silent:
            self.admissions.confirm(name, messages[name])
        return messages


def test_each_node_learns_what_the_others_hold() -> None:
    """Running tasks and those on their way count at their nodes; a principal without a limit is left out."""
    play = Play()
    play.submit("n1", WORK, "uid:1")
    play.submit("n1", Work(cpus_milli=10, memory_bytes=10, best_effort=True), "uid:1")
    play.submit("n1", WORK, "uid:2")
    play.nodes["n1"].devices = play.nodes["n2"].devices = (DeviceRequest("gpu", 8),)
    play.read()
    play.round()
    places = [
        task.place for task in play.cluster.tasks.values() if task.row.principal == "uid:1" and task.place
    ]
    messages = play.due()
    assert len(places) == 1
    for name, message in messages.items():
        held = Holding() if name == places[0] else Holding(1, 1_500, 7, 0, 0, 2)
        assert message.quotas == (Quota("uid:1", 3, 2_500, None, None, None, 4, held),)


def test_only_what_is_new_is_sent_and_again_after_a_while() -> None:
    """An unchanged message is repeated after REFRESH_S, and at once to a node that has restarted."""
    play = Play()
    play.read()
    assert play.due().keys() == NAMES
    assert not play.due()
    play.admissions.forget("n2")
    assert play.due().keys() == {"n2"}
    play.now += REFRESH_S
    assert play.due().keys() == NAMES
    play.due(quotas={})
    assert play.admissions.is_idle


def test_a_message_without_an_answer_is_sent_until_it_is_heard() -> None:
    """The answer may be late or lost: a quota that was removed must not stay on the node for ever."""
    play = Play()
    play.read()
    play.due()
    removed = play.due(quotas={}, silent=frozenset({"n2"}))
    assert removed["n2"].quotas == ()
    assert not play.admissions.is_idle
    assert play.due(quotas={}, silent=frozenset({"n2"})) == {"n2": removed["n2"]}
    play.due()
    play.admissions.confirm("n2", removed["n2"])
    assert play.due(quotas={}).keys() == NAMES, "the answer is to an earlier message"


def test_quotas_and_holdings_fit_the_message() -> None:
    """Units are not lost by rounding, a quota beyond all holdings is none, and huge needs do not overflow."""
    play = Play()
    play.read()
    quotas = {"uid:1": (NO_LIMIT, 1.001, 1e30, float(U63_MAX), NO_LIMIT, NO_LIMIT)}
    for message in play.due(quotas=quotas).values():
        assert codec.decode_request(codec.encode_request(1, message)[4:]).call == message
        (quota,) = message.quotas or ()
        assert (quota.tasks, quota.cpus_milli, quota.memory_bytes, quota.disk_io) == (None, 1_001, None, None)
    assert Holding(network=U63_MAX).plus(Holding(network=1)) == Holding(network=U63_MAX)


def test_a_node_whose_shares_are_unknown_gets_no_quotas() -> None:
    """Its shares may be newer than those of a coordinator that has just begun, so they come first."""
    play = Play()
    play.read()
    messages = play.due(informed=frozenset({"n3"}))
    assert {name: message.quotas is None for name, message in messages.items()} == {
        "n1": True,
        "n2": True,
        "n3": False,
    }


def test_a_scheduler_gives_a_reason_only_where_it_attends_and_runs_wait() -> None:
    """A run that has waited for a moment only does not wait for a turn."""
    play = Play()
    play.submit("n1", Work(cpus_milli=10_000), "uid:7")
    play.read()
    messages = play.due()
    assert {name: message.hold_ms > 0 for name, message in messages.items()} == {
        "n1": True,
        "n2": False,
        "n3": False,
    }
    assert {message.waiting for message in messages.values()} == {()}
    play.now += 2.0
    assert {message.waiting for message in play.due().values()} == {("uid:7",)}
    elsewhere = Assignment(frozenset({"n2"}), NAMES, governs=NAMES)
    assert play.due(elsewhere)["n1"].hold_ms == 0
    assert not play.admissions.is_idle
