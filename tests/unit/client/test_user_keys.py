"""A user's key in its file, and the mandates that programs sign with it."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from dios.client import user_keys
from dios.client.user_keys import Renewal, key_path, mandate_for, own_key, read_key, sign
from dios.errors import InvalidError, NotPermittedError
from dios.limits import MANDATE_MS, MANDATE_SKEW_MS
from dios.wire.mandates import EVERY_PURPOSE, MandateTerms, public_bytes, read_mandate

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


OWN = f"uid:{os.geteuid()}"
NOW_MS = int(time.time() * 1000)


def terms(*keys: bytes, end_ms: int = 0, cluster: bytes = b"c" * 32) -> MandateTerms:
    """What a node tells a program of a user with these keys."""
    return MandateTerms(7, b"n" * 32, cluster, OWN, keys, NOW_MS, end_ms)


@pytest.fixture(autouse=True)
def _own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1000)


def test_a_key_is_made_once_and_for_its_owner_alone() -> None:
    """The first use makes the file, which nobody else can read; later uses read it."""
    path = key_path()
    assert read_key(path) is None
    key = own_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_bytes(own_key(path)) == public_bytes(key)
    assert key_path(administrator=True) != path
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_processes_that_make_a_key_at_once_get_the_same() -> None:
    """None replaces a key that another one has shown to its user."""
    path = key_path()
    start = threading.Barrier(4)

    def make(_: int) -> bytes:
        start.wait(WAIT_S)
        return public_bytes(own_key(path))

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(make, range(4)))) == 1


def test_a_key_that_others_can_read_is_refused() -> None:
    """The message has the command that helps."""
    path = key_path()
    own_key(path)
    path.chmod(0o640)
    with pytest.raises(NotPermittedError, match=f"chmod 600 {path}"):
        read_key(path)


def test_a_file_that_is_no_key_is_refused() -> None:
    """Nothing is written over it."""
    path = key_path()
    path.parent.mkdir(mode=0o700)
    path.write_text("rubbish")
    path.chmod(0o600)
    with pytest.raises(InvalidError, match="not a key"):
        own_key(path)
    assert path.read_text() == "rubbish"


def test_a_mandate_is_signed_when_less_than_half_of_one_is_left() -> None:
    """It is for the node, by the node's clock, if the key is one of the user's."""
    key = public_bytes(own_key(key_path()))
    mandate = read_mandate(mandate_for(terms(b"k" * 32, key)))
    assert (mandate.node, mandate.principal, mandate.key) == (7, OWN, key)
    assert (mandate.made_ms, mandate.end_ms) == (NOW_MS, NOW_MS + MANDATE_MS)
    assert mandate_for(terms(key, end_ms=NOW_MS + MANDATE_MS // 2))
    assert not mandate_for(terms(key, end_ms=NOW_MS + MANDATE_MS // 2 + 1))
    assert not mandate_for(terms(b"k" * 32))


def test_without_a_key_nothing_is_signed() -> None:
    """A program of a user whose key is elsewhere goes on without, and makes none."""
    assert not mandate_for(terms(b"k" * 32))
    assert not key_path().exists()


def test_nothing_is_signed_for_the_time_or_the_user_that_a_node_makes_up() -> None:
    """A mandate that begins in a year would outlive the key's removal, and another user's is not ours."""
    key = own_key(key_path())
    stated = terms(public_bytes(key))
    for other in (
        replace(stated, now_ms=NOW_MS + 365 * 86_400_000),
        replace(stated, now_ms=NOW_MS - MANDATE_SKEW_MS - 1),
        replace(stated, principal="uid:4000000000"),
    ):
        assert not mandate_for(other)
        with pytest.raises(NotPermittedError, match="nothing is signed"):
            sign(key, other, EVERY_PURPOSE, MANDATE_MS)
    assert mandate_for(replace(stated, now_ms=NOW_MS + MANDATE_SKEW_MS))


def test_programs_sign_in_the_first_cluster_and_where_the_user_did() -> None:
    """Another cluster's node gets nothing by itself, and a mandate that the user asks for."""
    key = own_key(key_path())
    public = public_bytes(key)
    assert mandate_for(terms(public))
    other = terms(public, cluster=b"d" * 32)
    assert not mandate_for(other)
    assert sign(key, other, EVERY_PURPOSE, MANDATE_MS)
    assert mandate_for(other)
    assert mandate_for(terms(public))


def test_mandates_are_renewed_while_connections_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """One renewal for all connections with a node, and none after the last is closed."""
    own_key(key_path())
    monkeypatch.setattr(user_keys, "MANDATE_MS", 40)
    renewals = user_keys._Renewals()
    monkeypatch.setattr(user_keys, "_renewals", renewals)
    calls: list[object] = []
    renewed = threading.Semaphore(0)

    def connect(node: str | Path | None, node_user: str | int | None) -> None:
        calls.append((node, node_user))
        renewed.release()

    pairs = [socket.socketpair() for _ in range(2)]
    try:
        for sock, _ in pairs:
            user_keys.renew_while_open(sock, Renewal(connect, "n1", None))
        thread = renewals._thread
        assert thread is not None
        assert renewed.acquire(timeout=WAIT_S)
        assert set(calls) == {("n1", None)}
        pairs[0][0].close()
        assert renewed.acquire(timeout=WAIT_S)
    finally:
        for sock, other in pairs:
            sock.close()
            other.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
