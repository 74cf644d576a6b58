import errno
import os
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.errors import InvalidError, NotPermittedError, ProtocolError, UnreachableError
from dios.ids import NodeId
from dios.transport.identity.certificates import CertificateRole
from dios.transport.identity.identity import Identity, admit_here, adopt, known_of
from dios.transport.tcp.secured import frame_of
from dios.transport.tcp.tls import Listener, SilentError, connect, dial, listen
from dios.wire.addresses import split_address
from tests.support.peers.bulk import receive_into
from tests.support.peers.connections import Refusals, connected, listening, make_cluster, renewed


async def plain(listener: Listener) -> trio.SocketStream:
    """A connection without TLS."""
    return await trio.open_tcp_stream(*split_address(listener.address))


async def ended(stream: trio.SocketStream) -> bool:
    """Whether the node ends a plain connection without having served anything but TLS."""
    try:
        while data := await stream.receive_some():
            assert data[0] in {21, 22}, "a handshake or an alert"
    except trio.BrokenResourceError:
        pass
    await stream.aclose()
    return True


async def test_frames_go_both_ways(tmp_path: Path) -> None:
    """Two nodes of one cluster know each other, and frames arrive whole and in order, both ways."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        assert (dialled.peer.role, dialled.peer.node, dialled.peer.name) == (
            CertificateRole.NODE,
            n1.node,
            "n1",
        )
        assert (accepted.peer.role, accepted.peer.node, accepted.peer.name) == (
            CertificateRole.NODE,
            n2.node,
            "n2",
        )
        dialled.send_nowait(frame_of(b"to you"))
        assert await accepted.receive() == [b"to you"]
        accepted.send_nowait(frame_of(b"and back"))
        assert await dialled.receive() == [b"and back"]


async def test_who_connects_is_remembered(tmp_path: Path) -> None:
    """Both ends of a first connection know each other from then on, durably."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    assert known_of(n3.cards) not in n2.trust.known
    async with connected(n3, n2):
        assert known_of(n3.cards) in n2.trust.known
        assert known_of(n2.cards) in n3.trust.known
    assert n1.node not in n2.revoked


async def test_a_long_chain_is_as_good(tmp_path: Path) -> None:
    """Nodes at the end of the longest chain reach each other, and are the same after being signed anew."""
    names = " ".join(f"n{number}" for number in range(1, limits.CHAIN_CERTIFICATES_MAX - 1))
    nodes = make_cluster(tmp_path, names, in_a_row=True)
    nodes.append(admit_here(nodes[-1], tmp_path / "last", name="last"))
    async with connected(nodes[-1], nodes[-2]) as (_, accepted):
        assert accepted.peer.node == nodes[-1].node
        assert len(accepted.peer.chain) == limits.CHAIN_CERTIFICATES_MAX
    nodes[0].trust.note(known_of(nodes[-1].cards))
    shorter = adopt(nodes[-1], renewed(nodes[0], nodes[-1]))
    assert len(shorter.chain) == 3
    async with connected(shorter, nodes[-2]) as (_, accepted):
        assert accepted.peer.chain[1:] == nodes[-1].cards[1:]


async def test_a_listener_shows_a_new_chain(tmp_path: Path) -> None:
    """A listener that was given a renewed identity shows it to the next peer."""
    n1, n2 = make_cluster(tmp_path, in_a_row=True)
    n3 = admit_here(n2, tmp_path / "n3", name="n3")
    n1.trust.note(known_of(n3.cards))
    async with listening(n3) as (listener, nursery):
        after = adopt(n3, renewed(n1, n3))
        listener.adopt(after)
        dialled = await dial(listener.address, n2, nursery)
        assert dialled.peer.chain == after.cards
        assert dialled.peer.chain[0] != n3.card
        assert [card.name for card in dialled.peer.chain] == ["n3", "n2", "n1", "dios"]
        dialled.close()
        (await listener.accept()).close()


# -- who is refused ---------------------------------------------------------------------------------
async def test_another_clusters_nodes_are_refused(tmp_path: Path) -> None:
    """A node with a certificate of another authority is refused at both ends, and serves nothing."""
    (ours,), (theirs,) = make_cluster(tmp_path / "a", "n1"), make_cluster(tmp_path / "b", "n1")
    refusals = Refusals()
    async with listening(ours, refusals) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="not a node of this cluster"):
            await dial(listener.address, theirs, nursery)
        # Who trusts ours, but is another cluster's, gets past its own checks.
        context = theirs.client_context
        context.load_verify_locations(cadata=ours.chain[-1])
        with pytest.raises(NotPermittedError, match="refuses this node"):
            await connect(listener.address, context, ours.cluster, lambda _peer: None)
        assert "certificate is refused" in (await refusals.wait(2))[1]


async def test_a_cluster_is_its_authority(tmp_path: Path) -> None:
    """A chain that TLS accepts and that ends at another authority than ours is refused."""
    (n1,), (other,) = make_cluster(tmp_path / "a", "n1"), make_cluster(tmp_path / "b", "n1")
    context = n1.client_context
    context.load_verify_locations(cadata=other.chain[-1])
    async with listening(other) as (listener, _):
        with pytest.raises(NotPermittedError, match="of another cluster"):
            await connect(listener.address, context, n1.cluster, lambda _peer: None)


async def test_who_shows_no_certificate_is_refused(tmp_path: Path) -> None:
    """A client that speaks TLS 1.3 and has no certificate gets nothing but an alert."""
    (n1,) = make_cluster(tmp_path, "n1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=n1.chain[-1])
    async with listening(n1) as (listener, _):
        with pytest.raises(NotPermittedError, match="certificate required"):
            await connect(listener.address, context, n1.cluster, lambda _peer: None)


async def test_only_tls_1_3(tmp_path: Path) -> None:
    """A node of the cluster that offers TLS 1.2 at most is refused at both ends."""
    n1, n2 = make_cluster(tmp_path)
    for old in (n2.client_context, n2.server_context):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="protocol version"):
            await dial(listener.address, n2, nursery)
        assert "unsupported protocol" in (await refusals.wait())[0]
    async with listening(n2) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="protocol version"):
            await dial(listener.address, n1, nursery)


async def test_a_revoked_node_is_told_so(tmp_path: Path) -> None:
    """Who was revoked is refused with that reason when it dials, and when it is dialled."""
    n1, n2 = make_cluster(tmp_path)
    await n1.trust.remove(n2.node)
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="n2 was revoked"):
            await dial(listener.address, n2, nursery)
        assert await refusals.wait() == ["n2 was revoked"]
    async with listening(n2) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="n2 was revoked"):
            await dial(listener.address, n1, nursery)


async def test_who_was_admitted_by_a_revoked_node_is_refused(tmp_path: Path) -> None:
    """A certificate that a revoked node signed afterwards opens nothing; one that was known before does."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3", in_a_row=True)
    await n1.trust.remove(n2.node)
    async with listening(n1) as (listener, nursery):
        with pytest.raises(NotPermittedError, match="was admitted by n2, which was revoked"):
            await dial(listener.address, n3, nursery)
    other = make_cluster(tmp_path / "again", "n1 n2 n3", in_a_row=True)
    other[0].trust.note(known_of(other[2].cards))
    await other[0].trust.remove(other[1].node)
    async with connected(other[2], other[0]) as (dialled, _):
        assert dialled.peer.name == "n1"


async def test_a_revocation_ends_live_connections(tmp_path: Path) -> None:
    """As soon as the list grows the connections of the revoked node end, those in threads too."""
    n1, n2, n3 = make_cluster(tmp_path, "n1 n2 n3")
    async with listening(n1) as (listener, nursery), AsyncExitStack() as stack:
        ends = []
        for node in (n2, n2, n3):
            dialled = await dial(listener.address, node, nursery)
            stack.callback(dialled.close)
            ends.append((dialled, await listener.accept()))
            stack.callback(ends[-1][1].close)
        in_thread = ends[1][1].detach()
        with in_thread:
            was_cut = trio.Event()

            async def read_in_thread() -> None:
                with pytest.raises(UnreachableError, match="after 0 of 1 bytes"):
                    await trio.to_thread.run_sync(receive_into, in_thread, memoryview(bytearray(1)))
                was_cut.set()

            nursery.start_soon(read_in_thread)
            await n1.trust.accept(await _revoked(n1, n2))
            assert [await end.receive() for end in (ends[0][1], ends[0][0])] == [[], []]
            assert await ends[1][0].receive() == []
            await was_cut.wait()
        ends[2][0].send_nowait(frame_of(b"still here"))
        assert await ends[2][1].receive() == [b"still here"]


async def _revoked(cluster: Identity, node: Identity) -> bytes:
    """What another node of the cluster states when it has removed that node."""
    teller = admit_here(cluster, cluster.folder.parent.parent / "teller", name="teller")
    return await teller.trust.remove(node.node)


async def test_the_node_that_was_meant(tmp_path: Path) -> None:
    """Dialling a node at an address where another one listens is an error; so is dialling oneself."""
    n1, n2 = make_cluster(tmp_path)
    async with listening(n1) as (listener, nursery):
        (await dial(listener.address, n2, nursery, expect=n1.node)).close()
        with pytest.raises(NotPermittedError, match="n1 answers, which is not the expected node"):
            await dial(listener.address, n2, nursery, expect=NodeId(7))
        with pytest.raises(InvalidError, match="this node itself"):
            await dial(listener.address, n1, nursery)


# -- strangers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(9), os.urandom(4096)]
)
async def test_what_is_not_tls_is_cut_off(tmp_path: Path, sent: bytes) -> None:
    """Plain text and garbage end that connection, and the next peer is served."""
    n1, n2 = make_cluster(tmp_path)
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        stream = await plain(listener)
        await stream.send_all(sent)
        assert await ended(stream)
        assert len(await refusals.wait()) == 1
        (await dial(listener.address, n2, nursery)).close()


async def test_who_is_slow_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that says nothing, and one that sends its handshake a byte at a time, are ended in time."""
    monkeypatch.setattr(limits, "HANDSHAKE_MS_MAX", 100)
    (n1,) = make_cluster(tmp_path, "n1")
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        silent, slow = await plain(listener), await plain(listener)

        async def dribble() -> None:
            try:
                for byte in b"\x16\x03\x01\x02\x00" + bytes(512):
                    await slow.send_all(bytes([byte]))
                    await trio.sleep(0.01)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        nursery.start_soon(dribble)
        assert await ended(silent)
        assert await ended(slow)
        assert await refusals.wait(2) == ["no handshake in time"] * 2


async def test_a_crowd_of_strangers_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every place held by strangers that say nothing, the oldest of them gives way to a node."""
    monkeypatch.setattr(limits, "HANDSHAKES_AT_ONCE_MAX", 4)
    n1, n2 = make_cluster(tmp_path)
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        crowd = [await plain(listener) for _ in range(12)]
        dialled = await dial(listener.address, n2, nursery)
        accepted = await listener.accept()
        assert accepted.peer.node == n2.node
        assert len(await refusals.wait(9)) == 9
        for stream in crowd:
            await stream.aclose()
        dialled.close()
        accepted.close()


async def test_a_crowd_from_one_address_makes_room_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older handshake of another address goes on while silent ones of the crowd are ended."""
    monkeypatch.setattr(limits, "HANDSHAKES_AT_ONCE_MAX", 4)
    n1, n2 = make_cluster(tmp_path)
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        host, port = split_address(listener.address)
        quiet = await plain(listener)
        crowd = [await trio.open_tcp_stream(host, port, local_address="127.0.0.2") for _ in range(8)]
        assert len(await refusals.wait(5)) == 5
        dialled = await dial(listener.address, n2, nursery)
        accepted = await listener.accept()
        assert accepted.peer.node == n2.node
        with trio.move_on_after(0) as still_open:
            await quiet.receive_some()
        assert still_open.cancelled_caught
        for stream in (quiet, *crowd):
            await stream.aclose()
        dialled.close()
        accepted.close()


async def test_closing_ends_what_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that is closed serves nobody any more, whose handshake has begun neither."""
    monkeypatch.setattr(limits, "HANDSHAKE_MS_MAX", 3_600_000)
    (n1,) = make_cluster(tmp_path, "n1")
    async with listening(n1) as (listener, _):
        begun = await plain(listener)
        while not listener._shaking:
            await trio.lowlevel.checkpoint()
        listener.close()
        assert await ended(begun)
        with pytest.raises(trio.EndOfChannel):
            await listener.accept()
        listener.close()


async def test_who_leaves_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """Peers that hang up during the handshake, with and without a reset, cost no descriptor."""
    n1, n2 = make_cluster(tmp_path)
    refusals = Refusals()
    async with listening(n1, refusals) as (listener, nursery):
        (await dial(listener.address, n2, nursery)).close()
        (await listener.accept()).close()
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted only
        for reset in (False, True):
            stream = await plain(listener)
            await stream.send_all(b"\x16\x03\x01")
            if reset:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await stream.aclose()
        await refusals.wait(2)
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - counted only


# -- addresses, and who does not answer -------------------------------------------------------------
async def test_nobody_there_is_said(tmp_path: Path) -> None:
    """Where nobody listens dialling fails at once, with the address in the message."""
    n1, n2 = make_cluster(tmp_path)
    async with listening(n1) as (listener, nursery):
        listener.close()
        with pytest.raises(UnreachableError, match=f"nobody answers at {listener.address}"):
            await dial(listener.address, n2, nursery)


async def test_who_accepts_and_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that accepts and says nothing, or ends or babbles, is an error within the time for dialling."""
    monkeypatch.setattr(limits, "PEER_CONNECT_MS_MAX", 200)
    (n1,) = make_cluster(tmp_path, "n1")
    async with trio.open_nursery() as nursery:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(SilentError, match="within"),
        ):
            await dial(f"127.0.0.1:{silent.getsockname()[1]}", n1, nursery)
        for answer, expected in ((b"", UnreachableError), (b"SSH-2.0-nobody\r\n" * 9, ProtocolError)):

            async def serve(stream: trio.SocketStream, answer: bytes = answer) -> None:
                await stream.receive_some()
                await stream.send_all(answer)
                await stream.aclose()

            (server,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [server])
            with pytest.raises(expected):
                await dial("127.0.0.1:%d" % server.socket.getsockname()[1], n1, nursery)  # noqa: UP031 - typed as Any
        nursery.cancel_scope.cancel()


async def test_a_port_is_had_once(tmp_path: Path) -> None:
    """Listening where somebody listens fails with the address in the message, and leaves nothing open."""
    (n1,) = make_cluster(tmp_path, "n1")
    async with listening(n1) as (listener, nursery):
        with pytest.raises(OSError, match=f"cannot listen at {listener.address}") as caught:
            await listen(listener.address, n1, nursery)
        assert caught.value.errno == errno.EADDRINUSE


async def test_all_addresses_of_a_machine(tmp_path: Path) -> None:
    """The unspecified address means every address, and a name with several each of them, with one port."""
    n1, n2 = make_cluster(tmp_path)
    async with trio.open_nursery() as nursery:
        for host in ("0.0.0.0", "localhost"):  # noqa: S104 - the claim
            listener = await listen(f"{host}:0", n1, nursery)
            assert len({sock.getsockname()[1] for sock in listener._sockets}) == 1
            dialled = await dial(f"localhost:{split_address(listener.address)[1]}", n2, nursery)
            (await listener.accept()).close()
            dialled.close()
            listener.close()
        nursery.cancel_scope.cancel()
