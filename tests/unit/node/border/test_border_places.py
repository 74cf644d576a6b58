"""The places of a border: a greedy user, cluster or token leaves some for the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dios import limits
from dios.errors import LimitError, ProtocolError, UnreachableError
from dios.node.border.connections import CallConnection
from dios.node.border.service import Border
from dios.node.settings import Settings
from dios.transport.identity import identity
from dios.transport.identity.identity import Identity
from dios.transport.identity.trusted_clusters import TrustedFolder, add_trusted, remove_trusted
from dios.wire.border import BorderCall, CheckToken, Refusal, decode_answer
from dios.wire.sealed_tokens import SealedToken, TokenHolder

WRITES = limits.POOLS["writes at a border"].places
SENT = limits.POOLS["calls sent on to a cluster"].places


class SilentLine:
    """A connection that says nothing; ``refused`` is what it was refused with."""

    def __init__(self) -> None:
        self.refused = ""

    async def receive(self) -> bytes | None:
        """Wait for ever."""
        await trio.Event().wait()
        return None

    async def send(self, frame: bytes) -> None:
        """Take a frame."""
        answer = decode_answer(frame[4:])
        assert isinstance(answer, Refusal)
        self.refused = answer.message


def nothing(body: bytes) -> tuple[BorderCall, TokenHolder]:
    """No call is expected."""
    raise ProtocolError(repr(body))


@pytest.fixture
def own(tmp_path: Path) -> Identity:
    """The identity of the border's node."""
    (tmp_path / "data").mkdir()
    return identity.create_cluster(tmp_path / "data", name="n1")


@pytest.fixture
def border(own: Identity) -> Border:
    """A border that does not run; its calls need no session."""
    data = own.folder.parent
    settings = Settings(data, data / "node.sock")
    return Border(settings, own, None, 0, lambda *_: None, lambda *_: None)  # type: ignore[arg-type] # no session is opened


@pytest.mark.parametrize("kind", ["users", "clusters"])
async def test_no_origin_takes_all_connections(border: Border, kind: str) -> None:
    """A user or cluster with as many connections as are left gets no more, and the others find places."""
    origins: list[bytes | int] = [1, 2, 3] if kind == "users" else [b"1", b"2", b"3"]
    lines: dict[bytes | int, list[SilentLine]] = {origin: [] for origin in origins}
    async with trio.open_nursery() as nursery:
        for origin in origins:
            for _ in range(limits.BORDER_CONNECTIONS_MAX):
                line = SilentLine()
                lines[origin].append(line)
                nursery.start_soon(border._serve, origin, line, nothing)
            await trio.testing.wait_all_tasks_blocked()
        served = [sum(not line.refused for line in lines[origin]) for origin in origins]
        assert served == [limits.BORDER_CONNECTIONS_MAX >> part for part in (1, 2, 3)]
        other = SilentLine()
        nursery.start_soon(border._serve, b"4" if kind == "users" else 4, other, nothing)
        await trio.testing.wait_all_tasks_blocked()
        assert not other.refused
        nursery.cancel_scope.cancel()
    assert not border._open[int]
    assert not border._open[bytes]


async def test_a_defect_ends_its_connection_alone(border: Border) -> None:
    """An error that nobody expects, in the work for one connection, is not raised from it."""

    class BrokenLine(SilentLine):
        async def receive(self) -> bytes | None:
            await trio.lowlevel.checkpoint()
            raise ZeroDivisionError

    await border._serve(1, BrokenLine(), nothing)
    assert not border._open[int]


async def test_writes_wait_for_a_place_for_a_bounded_time(border: Border, autojump_clock: MockClock) -> None:
    """A user who writes as many files as there are places for leaves some, and waits for the rest."""
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            async with border._place(border._writes, ("user", "greedy")):
                await trio.Event().wait()

        for _ in range(WRITES // 2):
            nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        assert border._writes.used == WRITES // 2
        async with border._place(border._writes, ("user", "other")):
            pass
        with pytest.raises(LimitError, match="Try again"):
            async with border._place(border._writes, ("user", "greedy")):
                pass
        nursery.cancel_scope.cancel()
    assert border._writes.used == 0


def token_of_another_cluster(own: Identity, folder: Path) -> SealedToken:
    """A token whose issuer is a trusted cluster."""
    (folder / "other").mkdir()
    other = identity.create_cluster(folder / "other", name="m1")
    add_trusted(own, "other", (other.folder / "authority.pem").read_bytes(), "192.0.2.1:7500")
    return cast("SealedToken", SimpleNamespace(grant=SimpleNamespace(cluster=other.cluster)))


@pytest.mark.parametrize("error", [UnreachableError("m1 is silent"), trio.BrokenResourceError()])
@pytest.mark.parametrize("in_child", [False, True])
async def test_an_error_of_another_cluster_is_raised_as_it_is(
    border: Border,
    own: Identity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    in_child: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The reason of a failure is in no group of exceptions, whichever task it ended."""

    async def fail() -> None:
        raise error

    async def exchange(
        call: object, issuer: object, user: str, caller: object, nursery: trio.Nursery
    ) -> None:
        if in_child:
            nursery.start_soon(fail)
            await trio.sleep_forever()
        await fail()

    monkeypatch.setattr(border, "_exchange", exchange)
    token, caller = token_of_another_cluster(own, tmp_path), CallConnection(SilentLine())
    with pytest.raises(type(error)) as raised:
        await border._send_on(CheckToken(b""), token, "uid:1", caller)
    assert raised.value is error


async def test_no_user_takes_all_calls_to_another_cluster(
    border: Border, own: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user whose calls last leaves another one places for calls to the same cluster."""
    token = token_of_another_cluster(own, tmp_path)
    sent: list[str] = []

    async def exchange(call: object, issuer: object, user: str, *rest: object) -> None:
        sent.append(user)
        await trio.Event().wait()

    monkeypatch.setattr(border, "_exchange", exchange)
    async with trio.open_nursery() as nursery:
        for user in ("uid:1", "uid:2"):
            for _ in range(SENT):
                caller = CallConnection(SilentLine())
                nursery.start_soon(border._send_on, CheckToken(b""), token, user, caller)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sent.count("uid:1") == SENT // 2
    assert sent.count("uid:2") == SENT // 4


def test_trusted_clusters_are_read_again_when_they_change(own: Identity, tmp_path: Path) -> None:
    """Without a change nothing is read, and each change counts at the next look."""
    (tmp_path / "other").mkdir()
    other = identity.create_cluster(tmp_path / "other", name="m1")
    authority = (other.folder / "authority.pem").read_bytes()
    trusted = TrustedFolder(own)
    none = trusted.clusters()
    assert none == {}
    assert trusted.clusters() is none
    add_trusted(own, "other", authority, "192.0.2.1:7500")
    first = trusted.clusters()
    assert list(first) == [other.cluster]
    assert trusted.clusters() is first
    remove_trusted(own, "other")
    assert trusted.clusters() == {}
    add_trusted(own, "other", authority, "192.0.2.1:7501")
    assert [cluster.address for cluster in trusted.clusters().values()] == ["192.0.2.1:7501"]
