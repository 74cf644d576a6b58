import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import limits
from dios.transport.tcp.tls_socket import TlsSocket
from tests.support.c_calls import counted_c_calls
from tests.support.peers.connections import make_cluster


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[TlsSocket, TlsSocket]]:
    """Both ends of a connection after the handshake; neither blocks."""
    first, second = make_cluster(tmp_path)
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
    client = TlsSocket(first.client_context, pair[0], server=False)
    server = TlsSocket(second.server_context, pair[1], server=True)
    unfinished = [client, server]
    while unfinished:
        end = unfinished.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            unfinished.append(end)
    yield client, server
    client.close()
    server.close()


def read_some(end: TlsSocket) -> bytes:
    """Fetch once, and return everything that is here."""
    assert end.fetch()
    data = b""
    while record := end.read_record():
        data += record
    return data


def test_a_frame_of_many_records_costs_one_system_call_at_each_end(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """A frame of 64 KB, which has five records, is sent with one call and received with one."""
    client, server = ends
    data = os.urandom(64 * limits.KIB + 40)
    with counted_c_calls() as calls:
        assert client.write(data)
    assert (calls["send"], calls["sendall"]) == (1, 0)
    with counted_c_calls() as calls:
        assert read_some(server) == data
    assert (calls["recv_into"], calls["recv"]) == (1, 0)


def test_the_kernel_accepts_a_part(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """What the kernel did not accept is sent later, in order; meanwhile a bounded part of it is encrypted."""
    client, server = ends
    data = os.urandom(4 * limits.MIB)
    assert not client.write(data)
    with counted_c_calls() as calls:
        assert not client.flush()
    assert calls["write"] <= 1, "at most one more piece was encrypted"
    received = bytearray()
    while len(received) < len(data):
        client.flush()
        received += read_some(server)
    assert received == data
    assert client.flush()


def test_a_record_is_read_in_parts_by_a_thread(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """A socket that blocks gives as many bytes as were wanted, and keeps the rest of the record."""
    client, server = ends
    assert client.write(b"record")
    client.say_end()
    server.block()
    target = bytearray(4)
    assert server.recv_into(target) == 4
    assert server.pending()
    assert target == b"reco"
    assert server.recv_into(target) == 2
    assert target[:2] == b"rd"
    assert server.recv_into(target) == 0


def test_one_record_is_read_for_a_connection_that_may_be_detached(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """What follows a record stays for whoever reads next."""
    client, server = ends
    assert client.write(b"one")
    assert client.write(b"two")
    assert server.fetch()
    assert server.read_record() == b"one"
    server.block()
    target = bytearray(3)
    assert server.recv_into(target) == 3
    assert target == b"two"


def test_the_end_with_and_without_a_word(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """The end is empty bytes after all others, whether or not the peer said that nothing is missing."""
    client, server = ends
    assert client.write(b"last")
    client.say_end()
    assert read_some(server) == b"last"
    client.close()
    assert server.fetch()
    assert server.read_record() == b""
    assert server.read_record() == b""


def test_bytes_that_are_not_tls_are_an_error(ends: tuple[TlsSocket, TlsSocket]) -> None:
    """Rubbish is an error of TLS, and the peer gets an alert."""
    client, server = ends
    socket.socket.send(client, b"\x17\x03\x03\x00\x20" + bytes(32))
    assert server.fetch()
    with pytest.raises(ssl.SSLError, match=r"BAD_RECORD_MAC|DECRYPTION_FAILED"):
        server.read_record()
    assert client.fetch()
    with pytest.raises(ssl.SSLError, match="ALERT"):
        client.read_record()
