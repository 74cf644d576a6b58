from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.errors import (
    DiosError,
    ExistsError,
    InvalidError,
    LimitError,
    NotPermittedError,
    TimeLimitError,
    UnreachableError,
)
from dios.transport.identity import joining, tokens
from dios.transport.identity.identity import Identity, admit_here, load
from dios.transport.identity.joining import admit, join
from dios.transport.identity.trust import Known
from dios.transport.tcp import tls
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import Listener, SilentError, dial
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import connected, listening, make_cluster


class Door:
    """A node that admits whoever shows a token, and what came of it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.admitted: list[Known] = []
        self.refused: list[DiosError] = []
        self.taken: set[str] = set()

    async def serve(self, identity: Identity) -> None:
        """Admit, one after the other, for as long as the listener is open."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._admit, identity, await self.listener.accept())

    async def _admit(self, identity: Identity, connection: Secured) -> None:
        try:
            self.admitted.append(await admit(identity, connection, taken=self.taken.__contains__))
        except DiosError as error:
            self.refused.append(error)


@asynccontextmanager
async def open_door(identity: Identity) -> AsyncIterator[Door]:
    """A node that listens and admits."""
    async with listening(identity) as (listener, nursery):
        door = Door(listener)
        nursery.start_soon(door.serve, identity)
        yield door
        nursery.cancel_scope.cancel()


async def test_a_token_makes_a_node(tmp_path: Path) -> None:
    """Who shows a token becomes a node with the name it asked for, trusted by those that it never met."""
    n1, n2 = make_cluster(tmp_path)
    async with open_door(n1) as door:
        n3 = await join(door.listener.address, tokens.issue(n1), name="n3", directory=tmp_path / "n3")
        while not door.admitted:
            await trio.lowlevel.checkpoint()
    assert [(known.node, known.name) for known in door.admitted] == [(n3.node, "n3")]
    assert (n3.name, n3.cluster, n3.secret) == ("n3", n1.cluster, n1.secret)
    again = load(tmp_path / "n3")
    assert again is not None
    assert (again.node, again.chain) == (n3.node, n3.chain)
    async with connected(again, n2) as (_, accepted):
        assert accepted.peer.node == n3.node


async def test_who_joined_admits_others(tmp_path: Path) -> None:
    """An authority that joined makes tokens and admits, though the one that admitted it is gone."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.issue(n1, role=NodeRole.AUTHORITY)
    async with open_door(n1) as door:
        n2 = await join(door.listener.address, token, name="n2", directory=tmp_path / "n2")
    async with open_door(n2) as door:
        n3 = await join(door.listener.address, tokens.issue(n2), name="n3", directory=tmp_path / "n3")
    async with connected(n3, n1) as (dialled, _):
        assert dialled.peer.name == "n1"


async def test_who_joins_learns_who_is_there_and_who_was_revoked(tmp_path: Path) -> None:
    """A new node knows the others from its first moment, and refuses those that were revoked before."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    await n1.trust.remove(n2.node)
    async with open_door(n1) as door:
        n4 = await join(door.listener.address, tokens.issue(n1), name="n4", directory=tmp_path / "n4")
    assert {known.name for known in n4.trust.known} == {"n1", "n3", "n4"}
    async with listening(n4) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="n2 was revoked"):
            await dial(listener.address, n2, nursery)
        (await dial(listener.address, n3, nursery)).close()


async def test_a_token_works_as_often_as_it_says(tmp_path: Path) -> None:
    """A token for two admits two; the third is told that it is used up, and gets no identity."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.issue(n1, uses=2)
    async with open_door(n1) as door:
        for name in ("n2", "n3"):
            await join(door.listener.address, token, name=name, directory=tmp_path / name)
        with pytest.raises(NotPermittedError, match=r"used up\. Make a new one"):
            await join(door.listener.address, token, name="n4", directory=tmp_path / "n4")
    assert not (tmp_path / "n4" / "identity").exists()
    assert len(n1.trust.known) == 3


async def test_a_used_token_stays_used_over_a_restart(tmp_path: Path) -> None:
    """A node that has started anew remembers which tokens were used."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.issue(n1)
    async with open_door(n1) as door:
        await join(door.listener.address, token, name="n2", directory=tmp_path / "n2")
    again = load(tmp_path / "n1")
    assert again is not None
    async with open_door(again) as door:
        with pytest.raises(NotPermittedError, match="used up"):
            await join(door.listener.address, token, name="n3", directory=tmp_path / "n3")


async def test_of_two_at_once_one_gets_in(tmp_path: Path) -> None:
    """Two machines with the same token for one, at the same time: one becomes a node."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.issue(n1)
    outcomes: list[str] = []
    async with open_door(n1) as door, trio.open_nursery() as nursery:

        async def try_join(name: str) -> None:
            try:
                await join(door.listener.address, token, name=name, directory=tmp_path / name)
                outcomes.append("in")
            except NotPermittedError as error:
                outcomes.append("used up" if "used up" in str(error) else str(error))

        for name in ("n2", "n3", "n4"):
            nursery.start_soon(try_join, name)
    assert sorted(outcomes) == ["in", "used up", "used up"]
    assert len(n1.trust.known) == 2


async def test_of_two_names_alike_one_gets_in(tmp_path: Path) -> None:
    """Two machines that ask for one name at the same time: one gets it, the other's use is not lost."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.issue(n1, uses=2)
    outcomes: list[str] = []
    async with open_door(n1) as door:
        async with trio.open_nursery() as nursery:

            async def try_join(folder: str) -> None:
                try:
                    await join(door.listener.address, token, name="n2", directory=tmp_path / folder)
                    outcomes.append("in")
                except ExistsError:
                    outcomes.append("taken")

            nursery.start_soon(try_join, "a")
            nursery.start_soon(try_join, "b")
        assert sorted(outcomes) == ["in", "taken"]
        await join(door.listener.address, token, name="n3", directory=tmp_path / "c")


async def test_an_expired_token_opens_nothing(tmp_path: Path) -> None:
    """After its time it is refused in the handshake, and who shows it is told what may be wrong."""
    n1, _ = make_cluster(tmp_path)
    token = tokens.issue(n1, now_s=1_000_000_000)
    async with open_door(n1) as door:
        with pytest.raises(NotPermittedError, match=r"the invitation has expired\. Make a new one"):
            await join(door.listener.address, token, name="n3", directory=tmp_path / "n3")
    assert door.admitted == []
    assert door.refused == []


async def test_a_token_is_for_its_node(tmp_path: Path) -> None:
    """Shown at another node of the cluster it is refused, with the name of the right one."""
    here, there = (make_cluster(tmp_path / name, role=NodeRole.AUTHORITY) for name in "ab")
    for meant, asked in (here, reversed(there)):
        text = tokens.issue(meant)
        async with open_door(asked) as door:
            with pytest.raises(NotPermittedError, match=f"this is {asked.name}, and the invitation is for"):
                await join(door.listener.address, text, name="n3", directory=tmp_path / "n3")


async def test_a_token_pins_the_cluster(tmp_path: Path) -> None:
    """At a node of another cluster the joiner ends the handshake before it has shown anything."""
    (n1,), (other,) = make_cluster(tmp_path / "a", "n1"), make_cluster(tmp_path / "b", "n1")
    async with open_door(other) as door:
        with pytest.raises(NotPermittedError, match="not a node of this cluster"):
            await join(door.listener.address, tokens.issue(n1), name="n2", directory=tmp_path / "n2")
    assert door.refused == []


async def test_a_name_that_is_taken(tmp_path: Path) -> None:
    """A name of a known node, or of one that the membership knows, is refused; the token stays good."""
    n1, _ = make_cluster(tmp_path)
    token = tokens.issue(n1)
    async with open_door(n1) as door:
        door.taken.add("far")
        for name in ("n1", "n2", "far"):
            with pytest.raises(ExistsError, match="Choose another name with --name"):
                await join(door.listener.address, token, name=name, directory=tmp_path / "new")
        assert (await join(door.listener.address, token, name="n3", directory=tmp_path / "new")).name == "n3"


async def test_what_is_no_name_or_token_is_not_even_sent(tmp_path: Path) -> None:
    """A wrong name, a wrong token and a directory with an identity are refused without a connection."""
    n1, n2 = make_cluster(tmp_path)
    token = tokens.issue(n1)
    nowhere = "127.0.0.1:1"
    with pytest.raises(InvalidError, match="letters"):
        await join(nowhere, token, name="no name", directory=tmp_path / "new")
    with pytest.raises(InvalidError, match="incomplete or changed"):
        await join(nowhere, token[:-1], name="n3", directory=tmp_path / "new")
    with pytest.raises(ExistsError, match="dios-node start"):
        await join(nowhere, token, name="n3", directory=tmp_path / "n2")
    with pytest.raises(UnreachableError, match=f"nobody answers at {nowhere}"):
        await join(nowhere, token, name="n3", directory=tmp_path / "new")
    assert n2.name == "n2"
    assert not (tmp_path / "new").exists()


async def test_a_node_at_the_end_of_a_chain_admits_nobody(tmp_path: Path) -> None:
    """A node that cannot sign makes no token either, and says where to make one."""
    names = " ".join(f"n{number}" for number in range(1, limits.CHAIN_CERTIFICATES_MAX))
    last = make_cluster(tmp_path, names, in_a_row=True)[-1]
    with pytest.raises(LimitError, match="in the cluster earlier"):
        tokens.issue(last)


async def test_a_full_cluster_admits_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the bound of nodes the joiner is told what to do, and the token stays good."""
    n1, _ = make_cluster(tmp_path)
    token = tokens.issue(n1)
    async with open_door(n1) as door:
        with monkeypatch.context() as patch:
            patch.setattr(limits, "NODES_MAX", 2)
            with pytest.raises(LimitError, match="dios node forget"):
                await join(door.listener.address, token, name="n3", directory=tmp_path / "n3")
        await join(door.listener.address, token, name="n3", directory=tmp_path / "n3")


async def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not answer, and a machine that does not ask, are given up in time."""
    monkeypatch.setattr(limits, "JOIN_MS_MAX", 150)
    (n1,) = make_cluster(tmp_path, "n1")
    async with listening(n1) as (listener, nursery):

        async def silent() -> None:
            connection = await listener.accept()
            try:
                await trio.sleep_forever()
            finally:
                connection.close()

        nursery.start_soon(silent)
        with pytest.raises(TimeLimitError, match="did not answer"):
            await join(listener.address, tokens.issue(n1), name="n2", directory=tmp_path / "n2")
    assert not (tmp_path / "n2").exists()


async def test_a_member_that_is_silent_for_a_while_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that is busy or stopped has not refused: the join goes on when it answers."""
    original = tls.connect
    attempts: list[str] = []

    async def connect(address: str, *others: object) -> object:
        attempts.append(address)
        if len(attempts) < 4:
            raise SilentError(f"nobody answers at {address} in time")
        return await original(address, *others)  # type: ignore[arg-type] # handed on

    monkeypatch.setattr(joining, "connect", connect)
    (n1,) = make_cluster(tmp_path, "n1")
    async with open_door(n1) as door:
        n2 = await join(door.listener.address, tokens.issue(n1), name="n2", directory=tmp_path / "n2")
    assert n2.cluster == n1.cluster
    assert len(attempts) == 4


async def test_a_whole_cluster_joins_at_once(tmp_path: Path) -> None:
    """Ten machines with one token join at the same time, and all know the same cluster."""
    (n1,) = make_cluster(tmp_path, "n1")
    token = tokens.issue(n1, uses=10)
    nodes: list[Identity] = []
    async with open_door(n1) as door, trio.open_nursery() as nursery:

        async def join_node(name: str) -> None:
            nodes.append(await join(door.listener.address, token, name=name, directory=tmp_path / name))

        for number in range(10):
            nursery.start_soon(join_node, f"m{number}")
    assert len({node.node for node in nodes}) == 10
    assert {node.cluster for node in nodes} == {n1.cluster}


async def test_admitting_without_a_connection(tmp_path: Path) -> None:
    """A node whose directory is on the same machine is as good as one that joined."""
    (n1,) = make_cluster(tmp_path, "n1")
    n2 = admit_here(n1, tmp_path / "n2", name="n2")
    async with connected(n1, n2) as (dialled, _):
        assert dialled.peer.node == n2.node
