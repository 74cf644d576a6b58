"""Tables of another node, read through the own one."""

from __future__ import annotations

import pytest

from dios.core.calls.tables import LOG_COLUMNS
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.codec import TABLES_VERSION
from tests.support.core.cluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes."""
    new_cluster = Cluster(("r1", "r1"))
    new_cluster.advance(1_000)
    return new_cluster


def test_a_table_of_another_node_is_its_own(cluster: Cluster) -> None:
    """The rows are those of the named node, in parts as they are asked for."""
    here, there = cluster.nodes
    operator = cluster.session(here)
    answer = cluster.call(operator, messages.ReadTable("node@n2"))
    assert isinstance(answer, messages.TableRows)
    assert (answer.table, answer.rows[0]) == ("node@n2", ("node", there.node))
    later = cluster.call(operator, messages.ReadTable("node@n2", 1))
    assert isinstance(later, messages.TableRows)
    assert [row[0] for row in later.rows] == [row[0] for row in answer.rows[1:]]


def test_the_host_of_the_named_node_completes_the_log(cluster: Cluster) -> None:
    """Its own answer has the position that was asked for, and one of another node has another name."""
    operator = cluster.session(cluster.nodes[0])
    own = operator.ask(messages.TableRows, messages.ReadTable("log", 77))
    assert (own.table, own.columns, own.rows, own.following) == ("log", LOG_COLUMNS, (), 77)
    named = operator.ask(messages.TableRows, messages.ReadTable("log@n1", 77))
    assert named == own
    other = cluster.call(operator, messages.ReadTable("log@n2", 77))
    assert isinstance(other, messages.TableRows)
    assert (other.table, other.following) == ("log@n2", 77)


@pytest.mark.parametrize("table", ["log", "log@n1", "log@n2", "node@n2"])
def test_only_the_nodes_user_reads_them(cluster: Cluster, table: str) -> None:
    """Another user is refused by the asked node, whichever node is named."""
    other = cluster.nodes[0].session(Principal("uid:5"))
    assert other.refused(messages.ReadTable(table)) == Code.EPERM


def test_a_node_does_not_believe_another_one_for_its_reader(cluster: Cluster) -> None:
    """A node that passes the call of another user on is refused by the node whose table it is."""
    here, there = cluster.nodes
    other = here.session(Principal("uid:5"))
    state = here.core.state
    # The asking node lets it pass.
    state.node_owner = Principal("uid:5")  # type: ignore[misc] # a node that was changed by its user
    answer = cluster.call(other, messages.ReadTable("log@n2"))
    assert there.core.state.node_owner != "uid:5"
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EPERM


def test_a_node_of_an_earlier_release_is_not_asked(cluster: Cluster) -> None:
    """It would end the connection, because it takes the call for malformed."""
    here, there = cluster.nodes
    assert here.core.state.cluster is not None
    here.core.state.cluster.peer(there.node).version = TABLES_VERSION - 1
    operator = cluster.session(here)
    assert operator.refused(messages.ReadTable("log@n2")) == Code.ENOSYS


def test_no_node_and_no_table_are_said(cluster: Cluster) -> None:
    """An unknown node is unreachable, and an unknown table of another node is what that node says."""
    operator = cluster.session(cluster.nodes[0])
    assert operator.refused(messages.ReadTable("log@nowhere")) == Code.EHOSTUNREACH
    answer = cluster.call(operator, messages.ReadTable("none@n2"))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EINVAL
