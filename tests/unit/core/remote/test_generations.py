"""The generations of the cluster's secret in the core: what they seal, and which nodes have them."""

from __future__ import annotations

from itertools import permutations

import pytest

from dios import limits
from dios.core import effects, events
from dios.core.model.names import (
    Secrets,
    belongs_to,
    group_name,
    home_name,
    is_signed,
    logs_group,
)
from dios.errors import Code
from dios.ids import Name, Principal
from dios.limits import NAME_BYTES
from dios.wire import messages
from dios.wire.types import NodeStatus, NodeWish, ObjectType, SecretState
from tests.support.core.cluster import SECRET, Citizen, Cluster
from tests.support.core.harness import OWNER

ALICE = Principal("uid:2000")
LATER = tuple(bytes([number]) * 32 for number in range(1, 4))


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes that know each other."""
    nodes = Cluster()
    nodes.advance(4_000)
    return nodes


def operator(cluster: Cluster, place: int = 0) -> Citizen:
    """A session of the nodes' own user."""
    return cluster.session(cluster.nodes[place])


def rotate(cluster: Cluster, place: int = 0) -> None:
    """Change the secret at a node, and let the nodes speak."""
    operator(cluster, place).ask(messages.Nodes, messages.SetNode(f"n{place + 1}", NodeWish.ROTATE))
    cluster.settle()


def shown(cluster: Cluster, place: int = 0) -> dict[str, SecretState]:
    """Which nodes have the present secret, as a node sees it."""
    rows = operator(cluster, place).ask(messages.Nodes, messages.ListNodes()).nodes
    return {row.name: row.secret for row in rows}


# -- seals --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("generations", range(4))
def test_a_seal_is_known_as_long_as_its_secret_is(generations: int) -> None:
    """Each generation seals for one owner; all later nodes know it, earlier ones and strangers do not."""
    then = Secrets(SECRET, LATER[:generations])
    name = group_name(then, bytes(NAME_BYTES // 2), ALICE)
    for count in range(4):
        now = Secrets(SECRET, LATER[:count])
        assert is_signed(now, name, ALICE) is (count >= generations)
        assert belongs_to(now, name, ALICE) is (count >= generations)
        assert not is_signed(now, name, OWNER)
        assert not is_signed(Secrets(b"x" * 32, LATER[:count]), name, ALICE) or generations
    assert not is_signed(Secrets(), name, ALICE)
    for place in range(NAME_BYTES):
        forged = name[:place] + bytes([name[place] ^ 1]) + name[place + 1 :]
        assert not is_signed(Secrets(SECRET, LATER), forged, ALICE)


def test_home_groups_keep_their_names() -> None:
    """They follow from the first secret: they are stored in each object, and a name alone opens nothing."""
    for secrets in (Secrets(SECRET), Secrets(SECRET, LATER)):
        home = home_name(SECRET, ALICE)
        assert belongs_to(secrets, home, ALICE)
        assert belongs_to(secrets, logs_group(home), ALICE)
        assert not belongs_to(secrets, home, OWNER)


def test_nothing_shows_the_secrets() -> None:
    """What is printed has their number."""
    event = events.SecretsStored(1, (b"s" * 32,), 7, ())
    assert "sss" not in repr(Secrets(b"s" * 32, (b"s" * 32,))) + repr(event)


# -- groups over a change -----------------------------------------------------------------------------
def test_users_lose_nothing(cluster: Cluster) -> None:
    """Groups of before and after open on every node, also after a restart of all; so does what is in them."""
    maker = cluster.nodes[1].session(ALICE)
    home = maker.welcome.home
    assert home is not None
    names, inside = [], []
    for _ in range(3):
        created = maker.ask(messages.Created, messages.Create(ObjectType.GROUP, (home.ref,)))
        names.append(created.name or b"")
        inside.append(
            maker.create(ObjectType.DURABLE_BLOB, groups=(created.reference.ref,), data=b"kept").name
        )
        rotate(cluster)
    assert len({name[NAME_BYTES // 2 :] for name in names}) == 3
    for _ in range(2):
        for node in cluster.nodes:
            reader = node.session(ALICE, tuple(names))
            assert len(reader.groups) == 1 + len(names)
            for name in inside:
                (reference,) = reader.lookup(name or b"")
                assert reader.read(reference.ref) == b"kept"
        for node in cluster.nodes:
            node.crash()
        for node, other in permutations(cluster.nodes, 2):
            cluster.connect(node, other)
        cluster.advance(4_000)


def test_another_users_group_does_not_open(cluster: Cluster) -> None:
    """With a later seal as with one of the first secret."""
    for _ in range(2):
        name = cluster.nodes[1].session(ALICE).create(ObjectType.GROUP, groups=()).name or b""
        assert len(cluster.nodes[0].session(groups=(name,)).groups) == 1
        rotate(cluster)


# -- the states of nodes ------------------------------------------------------------------------------
def test_each_node_shows_which_nodes_have_the_secret(cluster: Cluster) -> None:
    """A node that did not get it is waiting while it lives, unknown when it does not, and then has it."""
    assert set(shown(cluster).values()) == {SecretState.CURRENT}
    rotate(cluster)
    cluster.advance(4_000)
    for place in range(3):
        assert set(shown(cluster, place).values()) == {SecretState.CURRENT}
    third = cluster.nodes[2]
    stored = third.secrets
    assert stored is not None
    rotate(cluster)
    third.step(events.SecretsStored(third.now, stored.secrets, 1 + len(stored.secrets), ()))
    cluster.advance(2_000)
    assert shown(cluster) == {
        "n1": SecretState.CURRENT, "n2": SecretState.CURRENT, "n3": SecretState.WAITING,
    }  # fmt: skip
    for other in cluster.nodes[:2]:
        cluster.part(other, third)
    cluster.advance(6_000, 100)
    rows = operator(cluster).ask(messages.Nodes, messages.ListNodes()).nodes
    assert {row.name: row.secret for row in rows if row.status is NodeStatus.DEAD} == {
        "n3": SecretState.UNKNOWN
    }


def test_a_removal_that_no_secret_covers_is_shown(cluster: Cluster) -> None:
    """The removed node has the present secret as well, until the next one is stored here."""
    rotate(cluster)
    operator(cluster).ask(messages.Nodes, messages.SetNode("n3", NodeWish.FORGET))
    cluster.settle()
    assert shown(cluster)["n1"] is SecretState.WAITING
    rotate(cluster)
    cluster.advance(2_000)
    assert shown(cluster) == {"n1": SecretState.CURRENT, "n2": SecretState.CURRENT}
    assert len(cluster.nodes[2].core.state.later_secrets) == 1
    assert len(cluster.nodes[1].core.state.later_secrets) == 2


# -- who may --------------------------------------------------------------------------------------------
def test_only_the_nodes_own_user_changes_the_secret(cluster: Cluster) -> None:
    """As with removals; and only at the asked node itself."""
    stranger = cluster.nodes[0].session(ALICE)
    refused = stranger.call(messages.SetNode("n1", NodeWish.ROTATE))
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EPERM
    for host in ("n2", "nobody"):
        elsewhere = operator(cluster).call(messages.SetNode(host, NodeWish.ROTATE))
        assert isinstance(elsewhere, messages.Failure)
        assert "send the call to the other node" in elsewhere.message
    assert not any(isinstance(effect, effects.RotateSecret) for effect in cluster.nodes[0].effects)


def test_a_secret_that_could_not_be_stored_is_not_used(cluster: Cluster) -> None:
    """The operator gets the reason."""
    node = cluster.nodes[0]
    session = operator(cluster)
    seq = session.send(messages.SetNode("n1", NodeWish.ROTATE))
    (effect,) = [effect for effect in node.effects if isinstance(effect, effects.RotateSecret)]
    cluster.wire.clear()
    node.step(events.SecretsStored(node.now, (), 0, (), effect.call, "no room"))
    answer = session.answer(seq)
    assert isinstance(answer, messages.Failure)
    assert (answer.code, answer.message) == (Code.EIO, "no room")
    assert node.core.state.later_secrets == ()


def test_a_full_list_of_secrets_seals_and_is_searched() -> None:
    """The number of secrets that a forged name is compared with does not grow with their number."""
    every = tuple(number.to_bytes(32, "big") for number in range(1, limits.GENERATIONS_MAX + 1))
    name = group_name(Secrets(SECRET, every[:5]), bytes(16), ALICE)
    assert is_signed(Secrets(SECRET, every), name, ALICE)
    assert not is_signed(Secrets(SECRET, every), Name(bytes(32)), ALICE)
