"""A cluster in which only some nodes have the index of names: lookups are right and cheap (decision 0040)."""

from __future__ import annotations

from collections.abc import Callable

from dios import limits
from dios.core.remote import registration
from dios.ids import NodeId
from dios.wire import messages
from dios.wire.types import NameKind, ObjectType
from labs.sim.event_queue import MS, S
from labs.sim.scale.nodes import Costs, ScaleWorld, Session, require

SIZE = limits.INDEX_REGISTRARS_MIN + 8
SETTLED_NS = limits.INDEX_RECENT_MS * MS + 2 * S


class Town(ScaleWorld):
    """A cluster that has come to rest, with a session and a named object on each node."""

    def __init__(self) -> None:
        super().__init__(SIZE, 1)
        self.start_all(2 * S)
        self.until(lambda: not self.wrong() and len(self.running()) == SIZE)
        self.run(SETTLED_NS)
        self.people = {node: self.open(node) for node in self.ids}
        self.names = {node: self.create(session) for node, session in self.people.items()}

    def until(self, is_true: Callable[[], bool]) -> None:
        """Let time pass until something is true."""
        for _ in range(1_000):
            if is_true():
                return
            self.run(100 * MS)
        raise AssertionError("it takes too long")

    def open(self, node: NodeId) -> Session:
        """Open a session."""
        welcome: list[messages.AnyResult] = []
        session = self.open_session(node, welcome.append)
        self.until(lambda: bool(welcome))
        return session

    def answer(self, session: Session, call: messages.AnyCall) -> messages.AnyResult:
        """Make a call and wait for its answer."""
        answers: list[messages.AnyResult] = []
        session.call(call, answers.append)
        self.until(lambda: bool(answers))
        return require(answers[0], type(call).__name__)

    def create(self, session: Session) -> bytes:
        """Create a named object in the home group."""
        assert session.welcome is not None
        assert session.welcome.home is not None
        group = session.welcome.home.ref
        created = self.answer(
            session, messages.Create(ObjectType.SHMEM_BLOB, (group,), NameKind.RANDOM, data=b"x")
        )
        assert isinstance(created, messages.Created)
        assert created.name is not None
        return created.name

    def nodes_with(self, session: Session, name: bytes) -> list[str]:
        """Return the nodes on which a lookup finds a name."""
        result = self.answer(session, messages.Lookup(name))
        assert isinstance(result, messages.References)
        return [reference.node for reference in result.references]

    def name_of(self, node: NodeId) -> str:
        """Return the name of a node."""
        return self.machines[node].name

    def registrars(self) -> set[NodeId]:
        """Return the nodes with a part of the index."""
        return set(registration.ring_of(self.machines[self.running()[0]].cluster).registrars)


def test_names_are_registered_at_some_nodes_and_found_from_all() -> None:
    """Lookups ask index nodes alone; they find every name when nodes with the index fail and return, too."""
    town = Town()
    registrars = town.registrars()
    assert len(registrars) == limits.INDEX_REGISTRARS_MIN
    others = [node for node in town.ids if node not in registrars]
    shares = [
        peer.share
        for node in others
        for peer in town.machines[node].cluster.peers.values()
        if peer.share.order
    ]
    assert not any(share.digests for share in shares), "a node that has no index keeps names"
    town.costs = Costs()
    for at, (node, name) in enumerate(town.names.items()):
        asker = town.people[town.ids[(at + 7) % SIZE]]
        assert town.nodes_with(asker, name) == [town.name_of(node)]
        assert town.nodes_with(asker, name[::-1]) == []
    assert town.costs.kinds["FindNames"] <= 2 * SIZE * limits.INDEX_COPIES
    assert town.costs.kinds["Resolve"] == SIZE

    dead = sorted(registrars)[:8]
    town.kill(dead)
    left = [node for node in town.ids if node not in dead]
    for at, node in enumerate(left):  # while the nodes are dying
        asker = town.people[left[(at + 5) % len(left)]]
        assert town.nodes_with(asker, town.names[node]) == [town.name_of(node)]
    town.until(lambda: not town.wrong())
    for node in dead:
        town.start(node, left[:2])
        late = town.open(node)
        name = town.create(late)
        town.until(lambda node=node: node in town.machines[left[0]].view.nodes)  # type: ignore[misc]
        assert town.nodes_with(town.people[left[0]], name) == [town.name_of(node)]
    town.until(lambda: not town.wrong())
    town.run(SETTLED_NS)
    assert town.registrars() == registrars
    for at, node in enumerate(left):
        asker = town.people[left[(at + 3) % len(left)]]
        assert town.nodes_with(asker, town.names[node]) == [town.name_of(node)]
