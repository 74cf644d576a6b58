"""Supervised services on real nodes: replicas outlive their processes, their nodes, and the leader."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.services import Followed, create_service
from dios.lib.supervised.services import ServiceProgram, Services, ServiceStatus
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.types import Fitness
from tests.support.node.command_user import Person
from tests.support.node.running_node import exists, wait_until

pytestmark = pytest.mark.long

PATIENCE_S = 90
SETTINGS = {"accept_weaker_sandbox": "yes", "coordinator": "off"}
ANSWERS = b"""
import sys
import dios
from dios.lib.services import open_service

node = dios.connect()
service = open_service(node, node.groups[0], bytes.fromhex(sys.argv[1]))
with service.listen("127.0.0.1:0") as acceptor:
    for connection in acceptor:
        with connection:
            connection.send(b"here")
"""
STAYS = b"import time\nprint('up', flush=True)\ntime.sleep(100_000)\n"


class Site:
    """A cluster, and a user of its services who asks one of the nodes that run."""

    def __init__(self, live_cluster: LocalCluster) -> None:
        self.local = live_cluster

    def use(self, work: Callable[[Services], object], at: str = "") -> object:
        """Work with the services at the node called ``at``, or at any that runs."""
        running = self.local.running()
        place = next(node for node in self.local.nodes if node.name in running and at in {"", node.name})
        with dios.connect(str(place.socket), groups=()) as node:
            return work(Services(node))

    def fit_at(self, at: str) -> list[str]:
        """The nodes of which the node called ``at`` knows that they live and run pure tasks."""
        place = next(node for node in self.local.nodes if node.name == at)
        with dios.connect(str(place.socket), groups=()) as node:
            rows = node.nodes()
        return sorted(
            row.name for row in rows if row.status is dios.NodeStatus.ALIVE and row.fitness is Fitness.FIT
        )

    def status(self) -> ServiceStatus:
        """The status of the service."""
        status = self.use(lambda services: services.describe("web"))
        assert isinstance(status, ServiceStatus)
        return status

    def until(self, holds: Callable[[ServiceStatus], bool], description: str) -> ServiceStatus:
        """The status of the service once a condition holds."""
        seen: list[ServiceStatus] = []

        def now() -> bool:
            try:
                seen.append(self.status())
            except dios.DiosError:
                return False  # a node that has just been killed did not answer
            return holds(seen[-1])

        try:
            wait_until(now, description, PATIENCE_S)
        except AssertionError as late:
            raise AssertionError(f"{late}: {seen[-1] if seen else None}") from None
        return seen[-1]

    def kill(self, *names: str) -> None:
        """Kill -9 some nodes."""
        for node in self.local.nodes:
            running = daemon.find(node.socket) if node.name in names else None
            if running is not None:
                os.kill(running.pid, signal.SIGKILL)
                # The first thread of a killed process may be gone while another still holds its sockets.
                wait_until(lambda place=node.socket: daemon.find(place) is None, f"{node.name} is silent")
                wait_until(lambda pid=running.pid: not exists(pid), f"{node.name} is gone")


def run_on(status: ServiceStatus) -> list[str]:
    """The nodes of the replicas that run, by slot."""
    return [replica.task.node for replica in status.replicas if replica.task is not None]


def runs_without(lost: str) -> Callable[[ServiceStatus], bool]:
    """Return a condition: the service is whole and led, and nothing of it is on this node."""
    return lambda status: is_whole(status) and lost not in (*run_on(status), status.leader)


def is_whole(status: ServiceStatus) -> bool:
    """Return True if every replica runs once and no update is under way."""
    slots = [replica.slot for replica in status.replicas if replica.task is not None]
    return not status.updating and slots == list(range(status.wanted)) == [
        replica.slot for replica in status.replicas
    ]


def cluster(folder: Path, nodes: int) -> Iterator[Site]:
    """Nodes that are killed at the end, whatever happened."""
    live_cluster = local_cluster.make(folder / "cluster", nodes=nodes, keep=True, settings=SETTINGS)
    site = Site(live_cluster)
    try:
        local_cluster.start(live_cluster)
        yield site
    finally:
        site.kill(*(node.name for node in live_cluster.nodes))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Site]:
    """Three nodes without a scheduler."""
    yield from cluster(tmp_path, 3)


@pytest.fixture
def single_node(tmp_path: Path) -> Iterator[Site]:
    """A cluster of one node."""
    yield from cluster(tmp_path, 1)


def test_a_service_outlives_replicas_nodes_and_the_leader(three: Site) -> None:
    """A killed replica comes back; so do those of a killed node, of the leader, and of all nodes at once."""
    wait_until(
        lambda: three.fit_at("n2") == ["n1", "n2", "n3"], "n2 knows that all nodes are fit", PATIENCE_S
    )
    three.use(lambda services: services.create("web", ServiceProgram(STAYS), replicas=3), at="n2")
    status = three.until(is_whole, "three replicas run")
    assert sorted(run_on(status)) == ["n1", "n2", "n3"]

    def kill_first(services: Services) -> str:
        replica = services.describe("web").replicas[0]
        task = services.task(replica)
        assert task is not None
        task.kill()
        return task.fingerprint

    killed = three.use(kill_first)
    three.until(
        lambda current: (
            is_whole(current)
            and all(replica.task and replica.task.fingerprint != killed for replica in current.replicas)
        ),
        "the killed replica is replaced",
    )
    follower = next(node.name for node in three.local.nodes if node.name != three.status().leader)
    for lost in (follower, three.status().leader):
        kept = {
            replica.task.fingerprint
            for replica in three.status().replicas
            if replica.task and replica.task.node != lost
        }
        three.kill(lost)
        status = three.until(
            runs_without(lost),
            f"{lost} is dead and its replicas run elsewhere",
        )
        # Those on the other nodes were not touched.
        assert kept <= {replica.task.fingerprint for replica in status.replicas if replica.task}
        local_cluster.start(three.local)
        three.until(lambda current: is_whole(current) and not current.incomplete, f"{lost} is back")

    three.kill("n1", "n2", "n3")
    local_cluster.start(three.local)
    three.until(is_whole, "three replicas run after a restart of all nodes")
    three.use(lambda services: services.remove("web"), at="n3")
    wait_until(lambda: three.use(_is_gone) is True, "the replicas are stopped", PATIENCE_S)


def person_at(site: Site, folder: Path) -> Person:
    """Somebody whose commands go to the first node."""
    home = folder / "person"
    home.mkdir()
    person = Person(home)
    person.environment["DIOS_NODE"] = str(site.local.nodes[0].data)
    return person


def _is_gone(services: Services) -> bool:
    living = [task for task in services._node.tasks() if not task.ended and task.label.startswith("web.")]
    return services.statuses() == [] and not living


def test_a_balancer_follows_replicas_from_node_to_node(three: Site) -> None:
    """The addresses that a balancer asks for are those of the living replicas, also after a node has died."""
    at = three.local.nodes[0]
    with dios.connect(str(at.socket), groups=()) as node:
        group = node.create_group()
        service = create_service(node, group)
        program = ServiceProgram(ANSWERS, args=(service.name.hex(),), groups=(group,), network=True)
        Services(node).create("web", program, replicas=2)
        name = group.name
        assert name is not None
        followed = Followed(lambda: dios.connect(str(at.socket), groups=[name]), service.name)

        def answering() -> int:
            """Return the number of replicas that answer at the addresses of the list."""
            places = followed.places()
            for place in places:
                try:
                    with socket.create_connection(place, timeout=PATIENCE_S) as connection:
                        assert connection.recv(64) == b"here"
                except OSError:
                    return 0  # the list still has a replica that has ended
            return len(places)

        wait_until(lambda: answering() == 2, "both replicas answer", PATIENCE_S)
        before = set(followed.places())
        lost = next(host for host in run_on(three.until(is_whole, "both run")) if host != at.name)
        three.kill(lost)
        wait_until(
            lambda: answering() == 2 and set(followed.places()) != before,
            f"the balancer has the replica in place of the one on {lost}",
            PATIENCE_S,
        )
        followed.close()


def test_an_update_replaces_healthy_replicas_and_a_bad_one_none(single_node: Site, tmp_path: Path) -> None:
    """The command line and Python change the same service; a rollback returns from a bad program."""
    person = person_at(single_node, tmp_path)
    person.writes("web.py", STAYS.decode())
    person.writes("bad.py", "1 / 0\n")
    person.types("dios service create web.py --replicas 2 --cpus 0.1")
    first = {
        replica.task.fingerprint
        for replica in single_node.until(is_whole, "two replicas run").replicas
        if replica.task
    }
    assert "web  " in person.types("dios service ls").stdout
    assert person.types("dios service logs web").stdout.count("up\n") == 2

    person.writes("web.py", STAYS.decode().replace("up", "new"))
    person.types("dios service update web web.py")
    status = single_node.until(
        lambda current: current.generation == 2 and is_whole(current), "the update is complete"
    )
    second = {replica.task.fingerprint for replica in status.replicas if replica.task}
    assert not first & second

    person.types("dios service update web bad.py")
    status = single_node.until(
        lambda current: any("ZeroDivisionError" in replica.reason for replica in current.replicas),
        "the program fails",
    )
    assert status.updating
    assert second <= {replica.task.fingerprint for replica in status.replicas if replica.task}
    person.types("dios service rollback web")
    status = single_node.until(
        lambda current: current.generation == 2 and is_whole(current), "it has returned"
    )
    assert {replica.task.fingerprint for replica in status.replicas if replica.task} == second

    single_node.use(lambda services: services.scale("web", 1))
    status = single_node.until(
        lambda current: current.wanted == 1 and is_whole(current), "one replica is stopped"
    )
    told = json.loads(person.types("dios service describe web --json").stdout)
    assert (told["wanted"], told["running"], told["leader"]) == (1, 1, "n1")
    person.types("dios service rm web")
    wait_until(lambda: single_node.use(_is_gone) is True, "the replica is stopped", PATIENCE_S)


def test_a_file_describes_a_service_with_inputs_network_and_a_check(
    single_node: Site, tmp_path: Path
) -> None:
    """Replicas read the copies of inputs and may listen; one whose check fails is replaced."""
    person = person_at(single_node, tmp_path)
    person.writes("word.txt", "sunny")
    person.types("dios group create crew")
    person.types("dios put word.txt --group crew")
    person.writes(
        "web.py",
        "import dios, time\nwith dios.connect().listen_tcp('127.0.0.1:0') as acceptor:\n"
        "    print(open('/inputs/word').read(), bool(acceptor.address), flush=True)\n"
        "    time.sleep(100_000)\n",
    )
    person.writes("check.py", "import sys\nsys.exit(sys.argv[1:3] != ['web', '0'])\n")
    person.writes(
        "web.toml",
        'name = "web"\nprogram = "web.py"\nreplicas = 2\nnetwork = true\ncheck = "check.py"\n'
        'check_every = 0.5\n[inputs]\nword = "word.txt"\n',
    )
    person.types("dios service create web.toml")
    person.types("dios rm word.txt")
    single_node.until(
        lambda current: any(
            replica.slot == 1 and "health check" in replica.reason for replica in current.replicas
        ),
        "the replica whose check fails is replaced",
    )
    status = single_node.until(lambda current: current.replicas[0].task is not None, "the other one runs")
    assert status.replicas[0].restarts == 0
    assert "sunny True" in person.types("dios service logs web --replica 0").stdout


def test_a_service_has_no_bounds_of_a_job(single_node: Site) -> None:
    """Its number of replicas is both bounds, so needs with others are refused before anything is stored."""
    bounded = ServiceProgram(STAYS, work=dios.work(job="web", job_minimum=1))
    with pytest.raises(dios.InvalidError, match="leave out the bounds of a job"):
        single_node.use(lambda services: services.create("bounded", bounded))
    names = single_node.use(lambda services: [service.name for service in services.statuses()])
    assert "bounded" not in (names or ())  # type: ignore[operator] # a list of names
