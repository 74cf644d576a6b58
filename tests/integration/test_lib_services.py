"""Services of a real node: who accepts is found, and is gone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.services import Followed, Service, create_service, open_service
from dios.wire.nametext import format_name
from tests.support.node.running_node import RunningNode, running_node, wait_until

PATIENCE_S = 20

WORKER = b"""
import dios
from dios.lib.services import open_service
node = dios.connect()
acceptor = open_service(node, node.groups[0], node.arguments[0]).listen("127.0.0.1:0")
node.outputs[0].send(acceptor.address.encode())
for connection in acceptor:
    connection.close()
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("services") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session of a person."""
    with dios.connect(started.place, groups=()) as session:
        yield session


@pytest.fixture
def group(node: dios.Node) -> dios.Group:
    """A group of one's own."""
    return node.create_group()


@pytest.fixture
def service(node: dios.Node, group: dios.Group) -> Service:
    """A service that nobody serves yet."""
    return create_service(node, group)


def places(*acceptors: dios.Acceptor) -> list[tuple[str, int]]:
    """Where they listen."""
    return [("127.0.0.1", int(acceptor.address.rpartition(":")[2])) for acceptor in acceptors]


def test_who_listens_is_found_until_it_closes(service: Service) -> None:
    """Members are those that accept, in the order in which they came."""
    assert service.members() == []
    first, two = service.listen("127.0.0.1:0"), service.listen("127.0.0.1:0")
    assert service.places() == places(first, two)
    first.close()
    assert service.places() == places(two)
    two.close()
    assert service.places() == []


def test_a_task_that_is_ended_is_gone(node: dios.Node, group: dios.Group, service: Service) -> None:
    """A task publishes where it accepts, by the service's name; nobody finds it after it was killed."""
    stream = node.create_stream()
    handed = node.network().restrict("write")
    task = node.run(
        WORKER,
        groups=[group],
        inputs=[handed],
        outputs=[stream.restrict("write")],
        args=[format_name(service.name)],
    )
    address = stream.receive(timeout=PATIENCE_S).decode()
    assert [f"{member.host}:{member.port}" for member in service.members()] == [address]
    task.destroy()
    wait_until(lambda: service.members() == [], "the task that was killed is gone", PATIENCE_S)


def test_another_finds_it_by_name(node: dios.Node, group: dios.Group, service: Service) -> None:
    """Name and group are all that it takes; in another group there is no such service."""
    acceptor = service.listen("127.0.0.1:0")
    assert open_service(node, group, service.name).places() == places(acceptor)
    anywhere = open_service(node, None, service.name)
    assert anywhere.places() == places(acceptor)
    with pytest.raises(dios.InvalidError, match="give the group of the service"):
        anywhere.listen("127.0.0.1:0")
    with pytest.raises(dios.UnreachableError, match="no such service"):
        open_service(node, node.create_group(), service.name)
    acceptor.close()


def test_asking_keeps_nobody_alive(node: dios.Node, service: Service) -> None:
    """The list forgets those that are gone when somebody comes, and does not grow."""
    for _ in range(5):
        service.listen("127.0.0.1:0").close()
    last = service.listen("127.0.0.1:0")
    assert len(service._entries()) == 1
    last.close()
    assert node.find(last.name or b"") is None


def test_who_withdraws_goes_on_accepting(node: dios.Node, service: Service) -> None:
    """It is led to by nobody any more, and serves whoever comes nevertheless."""
    with service.listen("127.0.0.1:0") as acceptor:
        service.withdraw(acceptor)
        assert service.places() == []
        with node.connect_tcp(acceptor.address), acceptor.accept(PATIENCE_S):
            pass


def test_what_nobody_could_reach_is_refused(node: dios.Node, group: dios.Group, service: Service) -> None:
    """An address that is all of a machine's, and an acceptor without a name, are told so."""
    with pytest.raises(dios.InvalidError, match=r"nobody can connect to 0\.0\.0\.0"):
        service.listen("0.0.0.0:0")
    with node.listen_tcp("127.0.0.1:0") as nameless, pytest.raises(dios.InvalidError, match="without a name"):
        service.publish(nameless)
    assert service.members() == []
    with node.listen_tcp("127.0.0.1:0", groups=[group]) as named:
        service.publish(named)
        service.publish(named)
        assert service.places() == places(named)


def test_who_follows_finds_it_again_when_the_node_is_back(tmp_path: Path) -> None:
    """While the node is away each question fails; afterwards the same follower asks as if nothing was."""
    with running_node(tmp_path / "node") as started:
        with dios.connect(started.place, groups=()) as before:
            group = before.create_group()
            name, inside = create_service(before, group).name, [group.name or b""]
        followed = Followed(lambda: dios.connect(started.place, groups=inside), name)
        assert followed.places() == []
        started.kill()
        for error in (dios.ClosedError, dios.UnreachableError):
            with pytest.raises(error):
                followed.places()
        started.restart()
        with dios.connect(started.place, groups=inside) as after:
            mine = next(candidate for candidate in after.groups if candidate.fingerprint == group.fingerprint)
            with open_service(after, mine, name).listen("127.0.0.1:0") as acceptor:
                assert followed.places() == places(acceptor)
        followed.close()
