"""Labels and racks that are changed while nodes run, and the clocks of nodes as others measure them."""

from __future__ import annotations

import pytest

from dios.errors import Code, InvalidError
from dios.ids import Principal
from dios.wire import messages
from dios.wire.node_labels import check, labels_of, rate_of
from dios.wire.types import Proximity
from tests.support.core.cluster import MS, Cluster

DRIFT = 5_000 * MS


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes; the clock of the third is five seconds ahead."""
    drifting_cluster = Cluster(drifts={3: DRIFT})
    drifting_cluster.advance(4_000)
    return drifting_cluster


def rows_at(cluster: Cluster, number: int) -> dict[str, messages.NodeRow]:
    """The list of nodes as a node sees it."""
    session = cluster.session(cluster.nodes[number - 1])
    return {row.name: row for row in session.ask(messages.Nodes, messages.ListNodes()).nodes}


def test_labels_count_at_once_everywhere(cluster: Cluster) -> None:
    """Set from another node, they are in its row on every node, in its queue's row, and its host has them."""
    operator = cluster.session(cluster.nodes[0])
    reader = cluster.session(cluster.nodes[1])
    before = reader.ask(messages.QueueRows, messages.ReadQueue(wait_ms=0)).version
    call = messages.LabelNode("n2", (("rack", "r7"), ("ssd", "yes"), ("old", "1")))
    operator.ask(messages.Nodes, call)
    operator.ask(messages.Nodes, messages.LabelNode("n2", removed=("old", "none")))
    cluster.advance(1_000)
    for number in (1, 2, 3):
        row = rows_at(cluster, number)["n2"]
        assert (row.rack, labels_of(row.labels)) == ("r7", {"ssd": "yes"})
    queue = reader.ask(messages.QueueRows, messages.ReadQueue(wait_ms=0))
    assert (queue.rack, queue.labels) == ("r7", (("ssd", "yes"),))
    assert queue.version > before, "a scheduler that waits for a change is woken"
    assert cluster.nodes[1].stored_labels == ("r7", (("ssd", "yes"),))


def test_a_new_rack_is_the_one_that_counts_for_nearness(cluster: Cluster) -> None:
    """It survives a new connection, whose hello has the rack that the node started with."""
    cluster.session(cluster.nodes[2]).ask(messages.Nodes, messages.LabelNode("n3", (("rack", "r1"),)))
    cluster.advance(1_000)
    cluster.connect(cluster.nodes[0], cluster.nodes[2])
    here = cluster.nodes[0].core.state.cluster
    assert here is not None
    assert here.proximity_of(cluster.nodes[2].node) is Proximity.RACK


@pytest.mark.parametrize("key", ["rack-link", "pod-link"])
def test_the_links_of_racks_are_rates(key: str) -> None:
    """A label for the link of a rack or pod is bytes per second; others would be read as no bandwidth."""
    check(key, "100MiB")
    assert rate_of({key: "100MiB"}, key) == 100 * 2**20
    assert rate_of({}, key) is None
    for wrong in ("fast", "10", "1.5GiB", "-1B"):
        with pytest.raises(InvalidError, match="must be bytes per second, like 800KiB"):
            check(key, wrong)
        assert rate_of({key: wrong}, key) == 0


def test_only_the_operator_labels(cluster: Cluster) -> None:
    """Another user is refused, and so are labels that could not travel as text."""
    other = cluster.nodes[0].session(Principal("uid:5"))
    refused = cluster.call(other, messages.LabelNode("n2", (("ssd", "yes"),)))
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EPERM
    operator = cluster.session(cluster.nodes[0])
    for bad in (("a,b", "1"), ("a", "b=c"), ("node", "n9"), ("", "1"), ("rack", "r 7")):
        answer = cluster.call(operator, messages.LabelNode("n2", (bad,)))
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EINVAL
    many = tuple((f"label-{number}", "x" * 30) for number in range(32))
    assert isinstance(cluster.call(operator, messages.LabelNode("n2", many)), messages.Failure)
    assert rows_at(cluster, 2)["n2"].labels == ""


def test_labels_that_cannot_be_stored_are_reported(cluster: Cluster) -> None:
    """They count until the next start, and the answer says so."""
    cluster.nodes[1].labels_failure = "the disk is full"
    operator = cluster.session(cluster.nodes[0])
    answer = cluster.call(operator, messages.LabelNode("n2", (("ssd", "yes"),)))
    assert isinstance(answer, messages.Failure)
    assert "cannot be stored for its next start: the disk is full" in answer.message
    assert rows_at(cluster, 2)["n2"].labels == "ssd=yes"


def test_clocks_are_measured_with_the_pings(cluster: Cluster) -> None:
    """The true offset is within the stated error, seen from both sides; the own row has none."""
    rows = rows_at(cluster, 1)
    clocks = {name: row.clock for name, row in rows.items()}
    assert clocks["n1"] is None
    for name, offset in (("n2", 0), ("n3", DRIFT)):
        clock = clocks[name]
        assert clock is not None
        assert abs(clock.offset_ns - offset) <= clock.error_ns < DRIFT // 5
    seen = rows_at(cluster, 3)["n1"].clock
    assert seen is not None
    assert abs(seen.offset_ns + DRIFT) <= seen.error_ns
