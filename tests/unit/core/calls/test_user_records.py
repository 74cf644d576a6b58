"""The records of services and kept replicas: names that the sessions of a user find, and no task."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios.core.model.names import KEPT, SERVICES, special_name
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import Brand, Flag, NameKind, ObjectType, Permission, Persistence
from tests.support.core.cluster import Citizen, Cluster
from tests.support.core.harness import OWNER, Client, Node

NAME = special_name(SERVICES)
CREATE = messages.Create(ObjectType.DURABLE_BLOB, flags=int(Flag.SERVICES), data=b"records")


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes."""
    return Cluster(("r1", "r1"))


def visible_sizes(client: Client) -> list[int]:
    """The sizes of the records that a client finds."""
    answer = client.call(messages.Lookup(NAME))
    assert isinstance(answer, messages.References)
    return [reference.size for reference in answer.references]


def found_kept(client: Client) -> int:
    """The number of records of kept replicas that a client finds."""
    answer = client.call(messages.Lookup(special_name(KEPT)))
    assert isinstance(answer, messages.References)
    return len(answer.references)


def started(cluster: Cluster, me: Citizen, call: messages.Run) -> Citizen:
    """The task that a session starts with a run call."""
    me.call(replace(call, flags=call.flags | int(Flag.NON_BLOCKING)))
    (task,) = cluster.start_spawned()
    return task


def test_every_session_of_the_user_finds_them_on_every_node(cluster: Cluster) -> None:
    """Also those that begin later, and those at a node that has a copy."""
    here, there = cluster.nodes
    me = here.session()
    assert visible_sizes(me) == []
    created = me.call(CREATE)
    assert isinstance(created, messages.Created)
    assert visible_sizes(here.session()) == visible_sizes(there.session()) == [7]
    copied = me.call(
        messages.Copy(
            created.reference.ref, me.welcome.self_ref.ref, persistence=Persistence.DURABLE, host="n2"
        )
    )
    assert isinstance(copied, messages.References)
    assert visible_sizes(there.session()) == [7, 7]


def test_no_other_user_finds_them_and_no_task_of_the_user(cluster: Cluster) -> None:
    """A task that is a member of the home group could otherwise change what is started for its user."""
    here, _ = cluster.nodes
    me = here.session()
    me.call(CREATE)
    assert me.welcome.home is not None
    program = me.create(data=b"pass").reference.ref
    task = started(cluster, me, messages.Run(program, groups=(me.welcome.home.ref,)))
    assert visible_sizes(task) == []
    assert visible_sizes(here.session(Principal("uid:2000"))) == []
    assert task.refused(CREATE) == Code.EPERM


def test_a_user_has_one_record_on_a_node(cluster: Cluster) -> None:
    """A second one is refused, as is one of another type, or in a group of the caller's choice."""
    here, _ = cluster.nodes
    me = here.session()
    me.call(CREATE)
    assert me.refused(CREATE) == Code.EEXIST
    assert me.welcome.home is not None
    for bad in (
        messages.Create(ObjectType.GROUP, flags=int(Flag.SERVICES)),
        messages.Create(ObjectType.SHMEM_BLOB, (me.welcome.home.ref,), flags=int(Flag.SERVICES)),
        messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, flags=int(Flag.SERVICES)),
    ):
        assert me.refused(bad) == Code.EINVAL
    elsewhere = messages.Create(ObjectType.SHMEM_BLOB, flags=int(Flag.SERVICES), host="n2")
    assert me.ask(messages.Failure, elsewhere).code == Code.EPERM


def test_a_node_alone_keeps_no_services() -> None:
    """Its home groups have random names, so no other node could ever find the records."""
    assert Node().session().refused(CREATE) == Code.EINVAL


def test_the_node_knows_whose_services_it_has(cluster: Cluster) -> None:
    """The supervisor asks it; a copy that came from another node counts, too."""
    here, there = cluster.nodes

    def principals(client: Client) -> list[tuple[int | str, ...]]:
        answer = client.call(messages.ReadTable("services"))
        assert isinstance(answer, messages.TableRows)
        return list(answer.rows)

    me = here.session(Principal("uid:2000"))
    created = me.call(CREATE)
    assert isinstance(created, messages.Created)
    assert principals(here.session()) == [("uid:2000",)]
    assert principals(there.session()) == []
    me.call(
        messages.Copy(
            created.reference.ref, me.welcome.self_ref.ref, persistence=Persistence.DURABLE, host="n2"
        )
    )
    assert principals(there.session()) == [("uid:2000",)]


@pytest.mark.parametrize("host", ["n1", "n2"])
def test_a_run_with_the_network_gets_that_of_its_node(cluster: Cluster, host: str) -> None:
    """The task may open sockets where it runs, also on another node than its caller's."""
    here, _ = cluster.nodes
    me = here.session()
    program = me.create(data=b"pass").reference.ref
    task = started(cluster, me, messages.Run(program, host=host, flags=int(Flag.WITH_NETWORK)))
    assert task.node.node == int(host[1:])
    opens = messages.Create(ObjectType.TCP_ACCEPT_STREAM, name_kind=NameKind.ANONYMOUS, address="127.0.0.1:0")
    seq = task.send(opens)
    assert seq  # it waits for its socket and was not refused
    assert task.node.core.state.network is not None


@pytest.mark.parametrize("host", ["n1", "n2"])
def test_only_the_nodes_own_user_gives_the_network(cluster: Cluster, host: str) -> None:
    """Another user's session is refused, and so is every task, whoever started it."""
    here, _ = cluster.nodes
    assert OWNER != "uid:2000"
    flags = int(Flag.NON_BLOCKING | Flag.WITH_NETWORK)
    other = here.session(Principal("uid:2000"))
    program = other.create(data=b"pass").reference.ref
    assert other.refused(messages.Run(program, host=host, flags=flags)) == Code.EPERM
    me = here.session()
    program = me.create(data=b"pass").reference.ref
    handed = (messages.Handed(program, int(Permission.ALL)),)
    limbo = started(cluster, me, messages.Run(program, brand=Brand.LIMBO, inputs=handed))
    given = limbo.welcome.inputs[0].ref
    assert limbo.refused(messages.Run(given, host=host, flags=flags)) == Code.EPERM


def test_the_records_of_services_and_of_kept_replicas_are_different_objects(cluster: Cluster) -> None:
    """Each kind has a name and a list of users of its own, and one call cannot mean both."""
    here, _ = cluster.nodes
    me = here.session()
    me.call(replace(CREATE, flags=int(Flag.KEPT)))
    assert (visible_sizes(me), found_kept(me)) == ([], 1)
    assert me.refused(replace(CREATE, flags=int(Flag.KEPT))) == Code.EEXIST
    assert me.refused(replace(CREATE, flags=int(Flag.KEPT | Flag.SERVICES))) == Code.EINVAL
    for table, rows in (("services", ()), ("kept", ((OWNER,),))):
        answer = me.call(messages.ReadTable(table))
        assert isinstance(answer, messages.TableRows)
        assert answer.rows == rows
