"""Servers on loopback accept connections of some users only, as the kernel names their owners."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dios.transport.tcp.local_peers import (
    LocalListener,
    is_loopback,
    own_users,
    owner_of_peer,
    random_loopback_address,
)
from tests.support.node.other_users import as_user

STRANGER = 65_531
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")


@pytest.fixture(params=["127.0.0.1", "127.9.8.7", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[LocalListener]:
    """A listener for this user."""
    try:
        sock = LocalListener(request.param, 0, own_users())
    except OSError as error:
        pytest.skip(f"no address {request.param}: {error}")
    with sock:
        sock.settimeout(10)
        yield sock


def test_connections_of_this_user_are_accepted(listener: LocalListener) -> None:
    """Several connections at once have the owner of this process, on addresses of both families."""
    with ExitStack() as kept:
        for number in range(3):
            far = kept.enter_context(socket.create_connection(listener.getsockname()[:2], timeout=10))
            near = kept.enter_context(listener.accept()[0])
            assert owner_of_peer(near) == os.geteuid()
            far.sendall(bytes([number]))
            assert near.recv(1) == bytes([number])


def test_a_connection_that_was_closed_has_no_owner(listener: LocalListener) -> None:
    """A closed socket's row names root, whoever had it; so it counts for nobody."""
    with socket.create_connection(listener.getsockname()[:2], timeout=10) as far:
        near, _ = listener.accept()
    with near:
        assert near.recv(1) == b""
        assert owner_of_peer(near) is None
        assert far.fileno() == -1
    with socket.create_connection(listener.getsockname()[:2], timeout=10):
        pass
    with pytest.raises(ConnectionAbortedError):
        listener.accept()


@needs_root
def test_connections_of_another_user_are_closed(
    listener: LocalListener, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user's connection ends without a byte, is logged, and the next one of this user is accepted."""
    place = listener.getsockname()[:2]
    reader, writer = os.pipe()

    def knock() -> None:
        with socket.create_connection(place, timeout=10) as far:
            os.write(writer, b"open")
            assert far.recv(1) == b""

    pid = as_user(STRANGER, knock)
    assert os.read(reader, 4) == b"open"
    with pytest.raises(ConnectionAbortedError):
        listener.accept()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(reader)
    os.close(writer)
    assert [record.__dict__["uid"] for record in caplog.records] == [STRANGER]
    with socket.create_connection(place, timeout=10), listener.accept()[0] as near:
        assert owner_of_peer(near) == os.geteuid()


@pytest.mark.parametrize("ended", [False, True])
def test_the_table_of_the_kernel_agrees(
    listener: LocalListener, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    """Where the kernel does not answer about one socket, the table of all has the same owner."""
    with (
        socket.create_connection(listener.getsockname()[:2], timeout=10) as far,
        listener.accept()[0] as near,
    ):
        if ended:
            far.close()
            assert near.recv(1) == b""
        asked = owner_of_peer(near)
        monkeypatch.setattr("dios.transport.tcp.local_peers._NETLINK_SOCK_DIAG", 31)
        assert owner_of_peer(near) == asked
        assert (asked is None) is ended


def test_without_the_kernel_nobody_is_known(
    listener: LocalListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is missing or has no such row names no owner."""
    monkeypatch.setattr("dios.transport.tcp.local_peers._NETLINK_SOCK_DIAG", 31)
    with socket.create_connection(listener.getsockname()[:2], timeout=10), listener.accept()[0] as near:
        assert owner_of_peer(near, tmp_path) is None
        (tmp_path / "net").mkdir()
        for name in ("tcp", "tcp6"):
            (tmp_path / "net" / name).write_text("  sl  local_address rem_address\n")
        assert owner_of_peer(near, tmp_path) is None


def test_a_random_address_is_no_usual_one() -> None:
    """Addresses differ, are of loopback, and are none where other programs listen by default."""
    addresses = {random_loopback_address() for _ in range(100)}
    assert len(addresses) > 90
    assert all(is_loopback(address) for address in addresses)
    assert not any(
        ipaddress.ip_address(address) in ipaddress.ip_network("127.0.0.0/16") for address in addresses
    )
    assert is_loopback("::1")
    assert not is_loopback("10.0.0.1")
