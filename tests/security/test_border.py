"""Two real clusters, each with its own authority: tokens of one in the other, and attacks (ADR 0101)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from blake3 import blake3
from typer.testing import CliRunner

import dios
from dios import limits
from dios.cli import main
from dios.errors import DiosError, ExistsError, InvalidError, NotPermittedError, StaleError
from dios.host.audit.reader import AuditReader
from dios.lib import catalogue, tokens
from dios.lib.catalogue import CatalogueEntry
from dios.lib.tokens import OnlyHolder, OnlyUntil, SealedToken, attenuate, import_token, only_path
from dios.node import cluster
from dios.node.settings import load
from dios.transport.identity import identity
from dios.transport.identity.identity import bare_context, load_own
from dios.transport.identity.trusted_clusters import add_trusted, remove_trusted
from dios.transport.tcp.secured import frame_of
from dios.wire import border, dcp, dcp_frames
from dios.wire.codec import FrameSplitter
from dios.wire.sealed_tokens import encode_token, seal_grant, token_mark
from dios.wire.types import ObjectType
from tests.support.node.running_node import RunningNode, wait_until

HOUR_NS = 3_600_000_000_000
WRITES = limits.POOLS["writes at a border"].places


class Place(NamedTuple):
    """One cluster of one node, with a border."""

    node: RunningNode
    own: identity.Identity
    border: str


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _cluster(folder: Path, name: str) -> Place:
    listen, border = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    flags = {"listen": listen, "border": border, "name": name, "pool_size": "1", "coordinator": "off"}
    own = cluster.create(load(folder, flags=flags))
    return Place(RunningNode(folder, flags), own, border)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """The cluster that issues tokens, and one whose users have them; both trust each other."""
    started: list[Place] = []
    try:
        for name in ("home", "abroad"):
            started.append(_cluster(tmp_path_factory.mktemp(name) / "data", name))  # noqa: PERF401 - one may fail
        home, abroad = started
        for place in started:
            wait_until(place.node.running.socket.with_name("border.sock").exists, "the border listens")
        _trust(home, abroad, "abroad")
        _trust(abroad, home, "home")
        yield home, abroad
    finally:
        for place in started:
            place.node.kill()


def _trust(here: Place, there: Place, name: str) -> None:
    add_trusted(here.own, name, (there.own.folder / "authority.pem").read_bytes(), there.border)


class Issued(NamedTuple):
    """A group with files in the first cluster, and a token for it."""

    session: dios.Node
    token: SealedToken
    record: dios.Reference
    group: dios.Group
    listed: dios.Reference

    def put(self, **files: bytes) -> None:
        """Store files, which replace all others in the list."""
        entries = []
        for path, data in files.items():
            created = self.session.create(ObjectType.DURABLE_BLOB, groups=[self.group], data=data)
            digest = blake3(data).digest()
            entries.append(CatalogueEntry(path.replace("_", "/"), created.name or b"", len(data), 1, digest))
        catalogue.edit(catalogue.StoredCatalogue(self.listed), lambda _: entries)


@pytest.fixture
def issued(places: tuple[Place, Place]) -> Iterator[Issued]:
    """A fresh group and token."""
    home, _ = places
    with dios.connect(home.node.place) as session:
        group = session.create_group()
        listed = session.create(ObjectType.DURABLE_BLOB, groups=[group], data=catalogue.encode(()))
        token, record = tokens.issue_token(
            session, group, listed, cluster=home.own.cluster, issuer=f"uid:{_uid()}",
            expires_ns=time.time_ns() + HOUR_NS, alias="papers",
        )  # fmt: skip
        yield Issued(session, token, record, group, listed)


def _uid() -> int:
    return os.geteuid()


def _refused(kind: type[DiosError], token: SealedToken, place: Place, path: str = "a/one") -> str:
    with import_token(token, place.node.place) as files, pytest.raises(kind) as caught:
        files.read_bytes(path)
    return caught.value.message


LARGE_BYTES = 48 * 2**20
"""More than all buffers between the two programs hold."""
BIG = bytes(range(256)) * 5_000


def test_a_narrowed_token_reads_live_in_another_cluster(places: tuple[Place, Place], issued: Issued) -> None:
    """A holder adds caveats offline; the other cluster lists and reads what is left, with checksums."""
    home, abroad = places
    issued.put(a_one=b"first", a_two=BIG, b=b"other")
    mine = attenuate(issued.token, OnlyHolder(abroad.own.cluster, f"uid:{_uid()}"), only_path("a"))
    with import_token(tokens.format_token(mine), abroad.node.place) as files:
        assert [row.path for row in files.files()] == ["a/one", "a/two"]
        assert files.terms().paths == ("a",)
        assert files.read_bytes("a/two") == BIG
        _, *parts = files.parts("a/one", known=blake3(b"first").digest())
        assert not parts, "a file that did not change is not sent again"
        issued.put(a_one=b"second", b=b"other")
        assert files.read_bytes("a/one") == b"second"
    assert "not for 'b'" in _refused(NotPermittedError, mine, abroad, "b")
    assert "presented it" in _refused(NotPermittedError, mine, home)
    with import_token(attenuate(issued.token, only_path("b")), home.node.place) as files:
        assert files.read_bytes("b") == b"other", "the border serves the users of its own cluster as well"


def test_a_revoked_token_is_refused_with_the_reason(places: tuple[Place, Place], issued: Issued) -> None:
    """It counts at the next call of a connection that is open, and in the middle of a file."""
    _, abroad = places
    issued.put(a_one=b"first", a_two=bytes(LARGE_BYTES))
    with (
        import_token(issued.token, abroad.node.place) as opened,
        import_token(issued.token, abroad.node.place) as files,
    ):
        assert files.read_bytes("a/one") == b"first"
        parts = opened.parts("a/two")
        assert [type(next(parts)) for _ in range(2)] == [tokens.FileRow, bytes]
        issued.record.destroy()
        with pytest.raises(StaleError, match="revoked"):
            list(parts)
        with pytest.raises(NotPermittedError, match="revoked"):
            files.read_bytes("a/one")
    assert "revoked" in _refused(NotPermittedError, attenuate(issued.token, only_path("a")), abroad)


def test_forged_late_and_misplaced_tokens_are_refused(places: tuple[Place, Place], issued: Issued) -> None:
    """The issuing cluster refuses each, and says why."""
    _, abroad = places
    issued.put(a_one=b"first")
    narrow = attenuate(issued.token, only_path("b"))
    assert "seal" in _refused(NotPermittedError, SealedToken(narrow.grant, (), narrow.seal), abroad)
    assert "is over" in _refused(NotPermittedError, attenuate(issued.token, OnlyUntil(1)), abroad)
    other = attenuate(issued.token, OnlyHolder(b"\x01" * 32))
    assert "presented it" in _refused(NotPermittedError, other, abroad)
    elsewhere = attenuate(issued.token, OnlyHolder(abroad.own.cluster, "uid:7"))
    assert "uid:7" in _refused(NotPermittedError, elsewhere, abroad)
    assert "no file" in _refused(InvalidError, issued.token, abroad, "c")


def test_no_token_gives_what_is_labelled(places: tuple[Place, Place], issued: Issued) -> None:
    """Not even one of the owner of the tag, at home or abroad."""
    home, abroad = places
    created = issued.session.create(
        ObjectType.DURABLE_BLOB, groups=[issued.group], data=b"4100", secrecy=["payroll"]
    )
    entry = CatalogueEntry("pay", created.name or b"", 4, 1, blake3(b"4100").digest())
    catalogue.edit(catalogue.StoredCatalogue(issued.listed), lambda _: [entry])
    for place in (home, abroad):
        assert "/payroll" in _refused(NotPermittedError, issued.token, place, "pay")


def test_no_token_is_for_a_labelled_group(places: tuple[Place, Place], issued: Issued) -> None:
    """None is issued; one of an own program lists, reads and stores nothing, not even with the right to."""
    home, abroad = places
    session, group = issued.session, issued.group
    listed = session.create(
        ObjectType.DURABLE_BLOB, groups=[group], data=catalogue.encode(()), secrecy=["payroll"]
    )
    with pytest.raises(NotPermittedError, match="/payroll"):
        _to_write(home, issued._replace(listed=listed))
    write, _ = _to_write(home, issued)
    grant = msgspec.structs.replace(write.grant, catalogue=listed.name or b"")
    token = seal_grant(session.issue_token(group, grant).name or b"", grant)
    for place in (home, abroad):
        assert "/payroll" in _refused(NotPermittedError, token, place)
        with import_token(token, place.node.place) as files:
            with pytest.raises(NotPermittedError, match="/payroll"):
                list(files.files())
            with pytest.raises(NotPermittedError, match="/payroll"):
                files.write_bytes("a/new", b"5200")
    assert catalogue.decode(listed.read_bytes()) == ()


def test_a_file_in_parts_is_read_whole(places: tuple[Place, Place], issued: Issued) -> None:
    """All its parts, one after the other."""
    size, parts = 1 << 20, []
    whole = BIG * 2
    for at in range(0, len(whole), size):
        data = whole[at : at + size]
        created = issued.session.create(ObjectType.DURABLE_BLOB, groups=[issued.group], data=data)
        parts.append(catalogue.Part(created.name or b"", blake3(data).digest()))
    packed = catalogue.pack_parts(parts)
    entry = CatalogueEntry("big", parts[0].name, len(whole), 1, blake3(whole).digest(), size, packed)
    catalogue.edit(catalogue.StoredCatalogue(issued.listed), lambda _: [entry])
    with import_token(issued.token, places[1].node.place) as files:
        assert files.read_bytes("big") == whole


def test_both_sides_must_trust(places: tuple[Place, Place], issued: Issued) -> None:
    """Without the trust of either side nothing is read, and a running node obeys the change at once."""
    home, abroad = places
    issued.put(a_one=b"first")
    for here, there, name, why in (
        (home, abroad, "abroad", "trust"), (abroad, home, "home", "does not trust it"),
    ):  # fmt: skip
        remove_trusted(here.own, name)
        try:
            with import_token(issued.token, abroad.node.place) as files, pytest.raises(DiosError, match=why):
                files.read_bytes("a/one")
        finally:
            _trust(here, there, name)
    with import_token(issued.token, abroad.node.place) as files:
        assert files.read_bytes("a/one") == b"first"


def test_a_token_with_the_right_writes_for_its_issuer(places: tuple[Place, Place], issued: Issued) -> None:
    """Its holder stores files in its path and replaces only on demand; readers and revoked tokens do not."""
    abroad = places[1]
    issued.put(a_one=b"first", b=b"other")
    token, record = _to_write(places[0], issued)
    narrow = attenuate(token, only_path("a"))
    with import_token(narrow, abroad.node.place) as files:
        assert files.write_bytes("a/new", BIG).digest == blake3(BIG).digest()
        assert files.read_bytes("a/new") == BIG
        assert files.write_bytes("a/empty", b"").size == 0
        refused = (("a/one", ExistsError), ("a/one/x", InvalidError), ("b", NotPermittedError))
        for path, kind in refused:
            with pytest.raises(kind):
                files.write_bytes(path, b"second")
        files.write_bytes("a/one", b"second", replace=True)
        assert files.read_bytes("a/one") == b"second"
    for weak in (issued.token, attenuate(token, tokens.OnlyRights(1))):
        with import_token(weak, abroad.node.place) as files:
            with pytest.raises(NotPermittedError, match="read alone"):
                files.write_bytes("a/more", b"x")
            assert [row.path for row in files.files()] == ["a/empty", "a/new", "a/one", "b"]
    record.destroy()
    with import_token(narrow, abroad.node.place) as files, pytest.raises(NotPermittedError, match="revoked"):
        files.write_bytes("a/more", b"x")


def _to_write(home: Place, issued: Issued) -> tuple[SealedToken, dios.Reference]:
    """A token with the right to write, and its record."""
    return tokens.issue_token(
        issued.session, issued.group, issued.listed, cluster=home.own.cluster, issuer=f"uid:{_uid()}",
        expires_ns=time.time_ns() + HOUR_NS, write=True,
    )  # fmt: skip


def test_wrong_bytes_and_those_of_a_revoked_token_are_not_stored(
    places: tuple[Place, Place], issued: Issued
) -> None:
    """The border compares digest and number of bytes, and looks at the token again before it stores."""
    home, abroad = places
    issued.put(a_one=b"first")
    token, record = _to_write(home, issued)

    def writes(data: bytes, first: Callable[[], object] = lambda: None) -> border.BorderAnswer:
        call = border.WriteFile(encode_token(token), "a/new", 5, blake3(b"right").digest())
        with _attacker(home.border, home.own, abroad.own) as tls:
            answers = _frames(tls)
            assert next(answers) == b""
            tls.sendall(border.encode_frame(border.ForwardedCall("uid:7", call)))
            assert isinstance(border.decode_answer(next(answers)), border.WriteReady)
            first()
            tls.sendall(border.encode_frame(border.FilePart(data)))
            return border.decode_answer(next(answers))

    refused = [writes(b"wrong"), writes(b"too many"), writes(b"right", record.destroy)]
    assert all(isinstance(refusal, border.Refusal) for refusal in refused), refused
    with import_token(issued.token, abroad.node.place) as files:
        assert [row.path for row in files.files()] == ["a/one"]


def test_writers_that_drip_lose_their_places(places: tuple[Place, Place], issued: Issued) -> None:
    """A holder begins as many writes as there are places, and drips: the writes end, another one is done."""
    home, _ = places
    token, _ = _to_write(home, issued)
    call = border.WriteFile(encode_token(token), "slow", 1 << 20, bytes(32))
    with contextlib.ExitStack() as kept:
        slow = [kept.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(WRITES)]
        for line in slow:
            line.settimeout(60)
            line.connect(str(home.node.running.socket.with_name("border.sock")))
            line.sendall(border.encode_frame(call))
        stopped = threading.Event()
        threading.Thread(target=_drip, args=(slow, stopped), daemon=True).start()
        try:
            with import_token(token, home.node.place) as files:
                files.write_bytes("quick", b"hello")
            ended = [line for line in slow if _is_ended(line)]
            assert len(ended) >= WRITES // 2
        finally:
            stopped.set()


def _drip(lines: Sequence[socket.socket], stopped: threading.Event) -> None:
    """Send a byte of each file every second."""
    while not stopped.wait(1):
        for line in lines:
            with contextlib.suppress(OSError):
                line.sendall(border.encode_frame(border.FilePart(b"x")))


def _is_ended(line: socket.socket) -> bool:
    """Return True if the border has closed a connection."""
    with contextlib.suppress(BlockingIOError):
        try:
            while data := line.recv(65_536, socket.MSG_DONTWAIT):
                assert data
        except ConnectionError:
            pass
        return True
    return False


# -- attacks on the port of the border --------------------------------------------------------------
def _attacker(address: str, target: identity.Identity, own: identity.Identity) -> ssl.SSLSocket:
    """A connection to a port of the target's cluster, with the certificate of a node of another one."""
    context = bare_context(ssl.PROTOCOL_TLS_CLIENT, target.chain[-1])
    load_own(context, own.chain[:-1], own.key())
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    try:
        return context.wrap_socket(sock)
    except BaseException:
        sock.close()
        raise


def _frames(tls: ssl.SSLSocket) -> Iterator[bytes]:
    """The bodies that arrive until the other end closes."""
    splitter = FrameSplitter(limits.BORDER_FRAME_BYTES_MAX)
    while data := tls.recv(65_536):
        yield from splitter.feed(data)


def _admitted(home: Place, own: identity.Identity, address: str = "") -> bool:
    """Whether a port lets somebody in: it sends an empty refusal."""
    try:
        with _attacker(address or home.border, home.own, own) as tls:
            return next(_frames(tls), b"closed") == b""
    except (ssl.SSLError, ConnectionError):
        return False


def test_only_nodes_of_trusted_clusters_pass_the_handshake(
    places: tuple[Place, Place], tmp_path: Path
) -> None:
    """A stranger's cluster and the own cluster do not, and a trusted one opens no other port."""
    home, abroad = places
    stranger = identity.create_cluster(tmp_path / "stranger", name="stranger")
    assert _admitted(home, abroad.own)
    assert not _admitted(home, stranger)
    assert not _admitted(home, home.own)
    assert not _admitted(home, abroad.own, home.node.flags["listen"])


def test_a_trusted_cluster_can_send_nothing_else(places: tuple[Place, Place], issued: Issued) -> None:
    """Messages of nodes, calls of programs, junk and long frames end the connection; the border lives on."""
    home, abroad = places
    hello = dcp.PeerHello(1, 3, abroad.own.node, 1, "abroad", "", abroad.border, 0)
    bodies = (
        dcp_frames.encode_frame(hello), border.encode_frame(border.AskCluster()), frame_of(b"junk" * 50),
        (limits.BORDER_FRAME_BYTES_MAX * 4).to_bytes(4, "little") + b"x",
        border.encode_frame(border.ForwardedCall("", border.ListFiles(b""))),
    )  # fmt: skip
    for body in bodies:
        with _attacker(home.border, home.own, abroad.own) as tls:
            answers = _frames(tls)
            assert next(answers) == b""
            tls.sendall(body)
            with contextlib.suppress(ConnectionError):
                assert next(answers, None) is None, body[:20]
    issued.put(a_one=b"first")
    with import_token(issued.token, abroad.node.place) as files:
        assert files.read_bytes("a/one") == b"first"


def test_a_border_passes_nothing_on_for_other_clusters(places: tuple[Place, Place], issued: Issued) -> None:
    """A trusted cluster cannot reach a third one, or its own issued tokens, by way of this one."""
    home, abroad = places
    third = msgspec.structs.replace(issued.token.grant, cluster=abroad.own.cluster)
    call = border.CheckToken(encode_token(SealedToken(third, (), issued.token.seal)))
    with _attacker(home.border, home.own, abroad.own) as tls:
        answers = _frames(tls)
        assert next(answers) == b""
        tls.sendall(border.encode_frame(border.ForwardedCall("uid:0", call)))
        refusal = border.decode_answer(next(answers))
    assert isinstance(refusal, border.Refusal)
    assert "does not pass on" in refusal.message


def test_both_sides_record_uses_and_refusals_and_no_secret(
    places: tuple[Place, Place], issued: Issued
) -> None:
    """The audit logs have user, cluster and mark; no log of a node has a token or its names."""
    abroad = places[1]
    issued.put(a_one=b"first")
    mark = token_mark(issued.token.grant)
    with import_token(issued.token, abroad.node.place) as files:
        files.read_bytes("a/one")
    _refused(NotPermittedError, attenuate(issued.token, OnlyUntil(1)), abroad)
    for place in places:

        def recorded(place: Place = place) -> bool:
            outcomes = {
                entry.record.outcome
                for entry in AuditReader(place.node.data / "audit").poll()
                if entry.record.action == "border" and entry.record.subject == mark
            }
            return outcomes == {"ok", "denied"}

        wait_until(recorded, "both outcomes are in the audit log")
    token = issued.token
    secrets = [token.seal, token.grant.group, token.grant.nonce, issued.record.name or b""]
    texts = [part for secret in secrets for part in (secret, secret.hex().encode(), repr(secret).encode())]
    for place in places:
        files_of_node = [*(place.node.data / "audit").iterdir(), place.node.data / "node.log"]
        kept = b"".join(path.read_bytes() for path in files_of_node if path.is_file())
        assert kept
        assert not any(text in kept for text in (*texts, tokens.format_token(token).encode()[:60]))


# -- people -----------------------------------------------------------------------------------------
def test_commands_tell_the_whole_story(
    places: tuple[Place, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue, narrow, show, import, list, get, revoke; a token in an argument is refused."""
    home, abroad = places
    monkeypatch.chdir(tmp_path)

    def types(line: str, place: Place, *, fails: bool = False) -> str:
        side = tmp_path / ("home" if place is home else "abroad")
        env = {"DIOS_NODE": place.node.place, "DIOS_KEYRING": str(side / "keyring.toml")}
        done = CliRunner().invoke(main.app, line.split(), env=env)
        assert bool(done.exit_code) is fails, (line, done.output, done.exception)
        return str(done.output)

    (tmp_path / "one.txt").write_text("first")
    types("group create papers", home)
    types("put one.txt --group papers --as drafts/one.txt", home)
    types("token issue papers --for 1h -o all.token", home)
    (row,) = json.loads(types("token ls --json", home))["issued"]
    authority = abroad.own.folder / "authority.pem"
    types(f"token attenuate all.token --path drafts --cluster {authority} --for 30min -o some.token", abroad)
    assert Path("some.token").stat().st_mode & 0o777 == 0o600
    shown = types("token show some.token", abroad)
    assert row["token"] in shown
    assert "drafts" in shown
    assert "presented it" in types("token import some.token --as mine", home, fails=True)
    types("token import some.token --as theirs", abroad)
    assert [listed["path"] for listed in json.loads(types("token files theirs --json", abroad))] == [
        "drafts/one.txt"
    ]
    types("token get theirs drafts/one.txt -o copy.txt", abroad)
    assert Path("copy.txt").read_text() == "first"
    assert json.loads(types("token get theirs drafts/one.txt -o copy.txt --json", abroad))["unchanged"]
    types("token issue papers --write --for 1h -o write.token", home)
    types("token put write.token one.txt results/one.txt", abroad)
    assert "one.txt" in types("ls papers/results", home)
    types(f"token revoke {row['token']}", home)
    assert "revoked" in types("token get theirs drafts/one.txt -o other.txt", abroad, fails=True)
    assert not Path("other.txt").exists()
    types("token forget theirs", abroad)
    assert "secret" in types(f"token show {Path('all.token').read_text().strip()}", home, fails=True)


def test_the_example_runs(places: tuple[Place, Place]) -> None:
    """examples/sealed_token.py passes a right to another cluster and takes it back."""
    home, abroad = places
    program = Path(__file__).parents[2] / "examples" / "sealed_token.py"
    done = subprocess.run(
        [sys.executable, program, home.node.place, abroad.node.place],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "read abroad: 12 bytes" in done.stdout
    assert "revoked" in done.stdout
