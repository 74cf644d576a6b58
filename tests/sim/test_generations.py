"""A cluster whose secret changes while its nodes are killed, parted and away, and are removed.

Each node keeps what a real one does in its files: statements about removals, and the generations that it
knows. Disks fail and nodes die between any two steps, and messages are lost. ``KnownGenerations`` decides;
the rules of the exchange are those of ``dios.host.peers.shared_documents``.
"""

from __future__ import annotations

from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios.ids import NodeId
from dios.transport.identity.certificates import make_node, make_root
from dios.transport.identity.generations import Generations, KnownGenerations, read
from dios.wire.node_roles import NodeRole

SEEDS = 40
NODES = 5
STEPS = 160
SETTLED = 250


class SimulatedNode:
    """A node: what is on its disk, and whether it runs. ``removed`` is what it believes."""

    def __init__(self, number: int, chain: tuple[bytes, ...], key: Ed25519PrivateKey) -> None:
        self.node = NodeId(number)
        self.chain = chain
        self.key = key
        self.known = KnownGenerations()
        self.removed: frozenset[NodeId] = frozenset()
        self.runs = True
        self.held: set[bytes] = set()
        """All secrets that it ever had on its disk, with which it may forge for ever."""
        self.sealed: set[bytes] = set()
        """The secrets with which it has sealed something for a user."""

    def store(self, known: KnownGenerations) -> None:
        """Replace the file of generations, completely or not at all."""
        self.known = known
        self.held.update(known.secrets)


class World:
    """The nodes of one cluster and the network between them. ``cut`` has the parted pairs."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - a seed, no secret
        root_key = Ed25519PrivateKey.from_private_bytes(self.rng.randbytes(32))
        root = make_root(1_000, "dios", root_key)
        self.root = root
        self.nodes: dict[NodeId, SimulatedNode] = {}
        for number in range(1, NODES + 1):
            key = Ed25519PrivateKey.from_private_bytes(self.rng.randbytes(32))
            certificate = make_node(
                number, f"n{number}", key.public_key(), root, root_key, role=NodeRole.AUTHORITY
            )
            self.nodes[NodeId(number)] = SimulatedNode(number, (certificate, root), key)
        self.gone: set[NodeId] = set()
        self.cut: set[frozenset[NodeId]] = set()
        self.calm = False

    # -- what can happen ------------------------------------------------------------------------------
    def meet(self, node: SimulatedNode, other: SimulatedNode) -> None:
        """One connection: statements first, then the documents, both ways; any of it may be lost."""
        if not (node.runs and other.runs) or frozenset({node.node, other.node}) in self.cut:
            return
        for sender, receiver in ((node, other), (other, node)):
            if receiver.node in sender.removed or sender.node in receiver.removed:
                return  # the handshake is refused
            if self._fails(0.1):
                return
            if receiver.node not in self.gone:
                receiver.removed |= sender.removed
        for sender, receiver in ((node, other), (other, node)):
            if receiver.node in sender.removed or sender.node in receiver.removed:
                return
            document = sender.known.document
            if document is None or not sender.known.may_have(receiver.node) or self._fails(0.2):
                continue
            self.receive(receiver, document)

    def receive(self, node: SimulatedNode, document: Generations) -> None:
        """Store a document that arrives, unless the disk is full."""
        checked = read(document.data, self.root)
        if checked.chain[0].number in node.removed:
            return
        following = node.known.followed_by(checked)
        if following is not None and not self._fails(0.1):
            node.store(following)

    def remove(self, by: SimulatedNode, target: NodeId) -> None:
        """Remove a node: first the removal is stored, then the next generation, with anything in between."""
        by.removed |= {target}
        self.gone.add(target)
        if not self._fails(0.4):
            self.rotate(by, exactly=True)

    def rotate(self, node: SimulatedNode, *, exactly: bool) -> None:
        """Make the next generation, unless the disk is full."""
        if not self._fails(0.1):
            secret = self.rng.randbytes(32)
            node.store(node.known.next(node.chain, node.key, secret, node.removed, exactly=exactly))

    def duty(self, node: SimulatedNode) -> None:
        """Make the generation that is due, after the removal of whichever node."""
        if node.runs and node.node not in node.removed and node.known.is_due(node.removed):
            self.rotate(node, exactly=False)

    def seal(self, node: SimulatedNode) -> None:
        """Seal something for a user."""
        if node.runs and node.known.secrets and node.node not in self.gone:
            node.sealed.add(node.known.secrets[-1])

    def _fails(self, chance: float) -> bool:
        return not self.calm and self.rng.random() < chance

    # -- a life -----------------------------------------------------------------------------------------
    def step(self) -> None:
        """One thing happens somewhere."""
        rng = self.rng
        node, other = rng.sample(list(self.nodes.values()), 2)
        match rng.choices(
            ("meet", "duty", "seal", "stop", "start", "cut", "heal", "rotate", "remove"),
            (40, 6, 12, 3, 6, 4, 4, 3, 2),
        )[0]:
            case "meet":
                self.meet(node, other)
            case "duty":
                self.duty(node)
            case "seal":
                self.seal(node)
            case "stop":
                node.runs = False
            case "start":
                node.runs = True
            case "cut":
                self.cut.add(frozenset({node.node, other.node}))
            case "heal":
                self.cut.clear()
            case "rotate" if node.runs and node.node not in self.gone:
                self.rotate(node, exactly=True)
            case "remove" if node.runs and node.node not in self.gone and len(self.gone) < NODES - 2:
                if other.node not in self.gone:
                    self.remove(node, other.node)

    def settle(self) -> None:
        """Everything works again; nodes meet until nothing changes.

        An operator repeats the removals of which only nodes have heard that were removed themselves.
        """
        self.calm = True
        self.cut.clear()
        for node in self.nodes.values():
            node.runs = True
        first = self.members()[0]
        first.removed |= self.gone
        for _ in range(SETTLED):
            node, other = self.rng.sample(list(self.nodes.values()), 2)
            self.meet(node, other)
            if self.rng.random() < 0.1:
                self.duty(node)

    def members(self) -> list[SimulatedNode]:
        """The nodes that were not removed."""
        return [node for node in self.nodes.values() if node.node not in self.gone]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_members_agree_and_a_removed_node_has_no_present_secret(seed: int) -> None:
    """All members have the present secret in the end, and each that sealed anything; removed ones do not."""
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    members = world.members()
    marks = {node.known.mark for node in members}
    assert len(marks) == 1
    assert all(node.removed == members[0].removed for node in members)
    assert members[0].removed == world.gone
    sealed = set[bytes]().union(*(node.sealed for node in members))
    for node in members:
        assert sealed <= set(node.known.secrets)
        assert not node.known.is_due(node.removed)
    if world.gone:
        present = members[0].known.secrets[-1]
        assert all(present not in world.nodes[gone].held for gone in world.gone)


def test_the_simulation_reaches_what_it_is_about() -> None:
    """Removed nodes that have earlier secrets, secrets that were made at once, and removals without one."""
    forgers = strays = uncovered = 0
    for seed in range(SEEDS):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
            strays += any(node.known.strays for node in world.members())
            uncovered += any(node.known.is_due(node.removed) for node in world.members())
        forgers += any(world.nodes[gone].held for gone in world.gone)
    assert min(forgers, strays, uncovered) > 10


@pytest.mark.parametrize("broken", ["withheld", "strays", "duty"])
def test_a_broken_rule_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without holding back, without secrets made at once, or without the duty, some seed fails."""
    if broken == "withheld":
        monkeypatch.setattr(KnownGenerations, "is_due", lambda known, _removed: bool(known.strays))
    elif broken == "strays":
        followed = KnownGenerations.followed_by

        def without_strays(known: KnownGenerations, document: Generations) -> KnownGenerations | None:
            following = followed(known, document)
            return None if following is None else KnownGenerations(following.document)

        monkeypatch.setattr(KnownGenerations, "followed_by", without_strays)
    else:
        monkeypatch.setattr(World, "duty", lambda _world, _node: None)
    with pytest.raises(AssertionError):
        _play_all()


def _play_all() -> None:
    for seed in range(SEEDS):
        test_the_members_agree_and_a_removed_node_has_no_present_secret(seed)
