"""What another user of the machine can do to a node, and to whoever else uses it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dios
from dios import limits
from dios.cli import main
from dios.client.sync.node import Node, Task, connect
from dios.host.audit.reader import AuditReader
from dios.transport.unix.descriptors import refuse_descriptors
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until
from tests.support.wheels import make_wheel

FRIEND = 65_533
STRANGER = 65_532


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    """A node of root's whose socket one other user may use, in a folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    try:
        _as_user(FRIEND, lambda: None)
        with running_node(
            folder / "data", socket=str(folder / "open.sock"), allowed_uids=str(FRIEND)
        ) as started:
            yield started
    except PermissionError as error:
        pytest.skip(f"this user cannot become another: errno {error.errno}")
    finally:
        shutil.rmtree(folder)


def _as_user(uid: int, work: Callable[[], None]) -> str:
    """What went wrong with ``work`` in a process of another user; empty when nothing did."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        told, status = "", 0
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
        except PermissionError as error:
            status, told = error.errno or 1, str(error)
        except BaseException as error:  # noqa: BLE001 - the parent tells it
            told = repr(error)
        os.write(out, told.encode())
        os._exit(status)
    os.close(out)
    with os.fdopen(into) as words:
        told = words.read()
    if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise PermissionError(status, told)
    return told


def _friend(node: RunningNode, work: Callable[[Node], None], *, groups: tuple[bytes, ...] = ()) -> str:
    def connected() -> None:
        with connect(node.place, groups=groups) as theirs:
            work(theirs)

    return _as_user(FRIEND, connected)


def test_who_is_not_named_in_the_settings_is_turned_away(node: RunningNode) -> None:
    """A user whom allowed_uids does not name gets no session, and the audit log says who knocked."""
    told = _as_user(STRANGER, lambda: connect(node.place, groups=()).close())
    assert told.startswith("NotPermittedError")
    assert "may not connect" in told

    def recorded() -> bool:
        records = [entry.record for entry in AuditReader(node.data / "audit").poll()]
        return any(
            (record.action, record.outcome, record.principal) == ("connect", "denied", f"uid:{STRANGER}")
            for record in records
        )

    wait_until(recorded, "a record of the refused connection")


def test_users_of_the_settings_reach_the_default_socket() -> None:
    """They pass through the data directory to the socket, list nothing there, and open no file of it."""
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / "node.toml").write_text("# readable by all\n")
    (data / "node.toml").chmod(0o644)
    try:
        _as_user(FRIEND, lambda: None)
        with running_node(data, allowed_uids=str(FRIEND)) as started:
            assert _as_user(FRIEND, lambda: connect(data, groups=()).close()) == ""
            assert "may not connect" in _as_user(STRANGER, lambda: connect(data, groups=()).close())
            assert (data / "node.toml").is_file()
            _require_closed(data)
            assert exists(started.running.pid)
    except PermissionError as error:
        pytest.skip(f"this user cannot become another: errno {error.errno}")
    finally:
        shutil.rmtree(folder)


def test_packages_of_a_user_are_closed_to_other_users(tmp_path: Path) -> None:
    """A folder that the node makes when its socket is already open to others is as closed as the rest."""
    mechanisms_or_skip()
    make_wheel(tmp_path, "fruit", "1.0", {"fruit.py": ""})
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    data = folder / "data"
    before = os.umask(0o022)  # that of most machines
    try:
        _as_user(FRIEND, lambda: None)
        with running_node(data, allowed_uids=str(FRIEND)) as started:
            with dios.Executor(1, node=started.place, packages=["fruit"], wheels=tmp_path) as executor:
                assert executor.submit(os.path.exists, "/environment/fruit.py").result()
            assert list(data.rglob("fruit.py"))
            _require_closed(data)
    except PermissionError as error:
        pytest.skip(f"this user cannot become another: errno {error.errno}")
    finally:
        os.umask(before)
        shutil.rmtree(folder)


def _require_closed(data: Path) -> None:
    """Require that another user lists nothing in a data directory, and opens no file or folder of it."""
    paths = [path for path in data.rglob("*") if path.is_file() or path.is_dir()]
    assert {"audit", "store", "lock"} <= {path.name for path in paths}

    def look() -> None:
        for path in paths:
            with contextlib.suppress(PermissionError, FileNotFoundError):
                os.open(path, os.O_RDONLY)
                raise AssertionError(path)
        with contextlib.suppress(PermissionError):
            raise AssertionError(list(data.iterdir()))

    assert _as_user(FRIEND, look) == ""


def test_no_other_user_takes_every_place(node: RunningNode) -> None:
    """A friend who has as many connections as are left for others gets no more."""
    most = (limits.CONNECTIONS_MAX - limits.CONNECTIONS_RESERVED) // 2

    def crowd() -> None:
        with contextlib.ExitStack() as theirs:
            for _ in range(most + 1):
                theirs.enter_context(connect(node.place, groups=()))

    assert f"has {most} connections, and no more are left" in _as_user(FRIEND, crowd)


def test_the_data_directory_is_closed(node: RunningNode) -> None:
    """Not even the listing of a node's files is for others."""

    def look() -> None:
        assert list(node.data.iterdir())

    with pytest.raises(PermissionError):
        _as_user(FRIEND, look)


def test_a_group_is_of_no_use_to_another_principal(node: RunningNode) -> None:
    """Who learned the names of another's group and object, and presents both, finds nothing."""
    with connect(node.place, groups=()) as mine:
        group = mine.create_group()
        blob = mine.create(dios.DURABLE_BLOB, groups=[group], data=b"private")
        group_name, name = group.name, blob.name
        assert group_name is not None
        assert name is not None
        secrets = (group_name, name)

        def look(theirs: Node) -> None:
            assert theirs.lookup(secrets[1]) == []
            assert [shown.fingerprint for shown in theirs.groups] == [theirs.groups[0].fingerprint]

        assert _friend(node, look, groups=(secrets[0],)) == ""
        assert mine.lookup(secrets[1])[0].read_bytes() == b"private"


def test_a_shared_group_is_read_by_its_reader_alone(node: RunningNode) -> None:
    """The friend's commands read a shared group and change nothing; other grants are refused."""
    mine = {"DIOS_NODE": node.place, "DIOS_KEYRING": str(node.data.parent / "mine" / "keyring.toml")}
    theirs = Path(tempfile.mkdtemp(prefix="dios-"))
    os.chown(theirs, FRIEND, FRIEND)
    there = {"DIOS_NODE": node.place, "DIOS_KEYRING": str(theirs / "keyring.toml"), "HOME": str(theirs)}
    there["DIOS_NODE_USER"] = str(os.getuid())

    def types(line: str, env: dict[str, str], typed: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(main.app, line.split(), env=env, input=typed)
        return done.exit_code, done.output

    def issuer(line: str, typed: str = "") -> str:
        status, output = types(line, mine, typed)
        assert not status, output
        return output

    def friend(line: str) -> str:
        """What the friend's command prints, behind its status."""
        return _as_user(FRIEND, lambda: _raise(" ".join(map(str, types(line, there)))))

    def _raise(text: str) -> None:
        raise AssertionError(text)

    try:
        issuer("group create papers")
        issuer("put - --group papers --as deep/a.txt", "for you")
        grant = json.loads(issuer(f"group share papers --with uid:{FRIEND} --read --for 7d --json"))["grant"]
        stolen = json.loads(issuer(f"group share papers --with uid:{STRANGER} --read --json"))["grant"]
        assert "is not for" in friend(f"group accept {stolen} --as loot")
        assert "AssertionError('0 " in friend(f"group accept {grant} --as theirs")
        assert "deep/a.txt" in friend("ls --group theirs")
        assert "for you" in friend("get theirs/deep/a.txt")
        for line in (
            "put /etc/hostname --group theirs --as x",
            "rm theirs/deep/a.txt",
            "group share theirs --with uid:1 --read",
            "replicate theirs/deep/a.txt --on n1",
        ):
            assert "AssertionError('1 " in friend(line), line
        assert issuer("get papers/deep/a.txt") == "for you"
        assert len(json.loads(issuer("group shares papers --json"))) == 2
        issuer(f"group unshare papers --with uid:{FRIEND}")
        assert "withdrawn" in friend("ls theirs")
        assert "withdrawn" in friend(f"group accept {grant} --as again")

        def recorded() -> bool:
            records = [entry.record for entry in AuditReader(node.data / "audit").poll()]
            denied = [record for record in records if (record.action, record.outcome) == ("accept", "denied")]
            return len([record for record in denied if record.principal == f"uid:{FRIEND}"]) >= 3

        wait_until(recorded, "records of the refused grants")
    finally:
        shutil.rmtree(theirs)


def test_tasks_of_another_principal_are_not_seen(node: RunningNode) -> None:
    """Tasks are listed for their own principal only, and a task's name alone opens nothing."""
    with connect(node.place, groups=()) as mine:
        task = mine.run(b"import time\ntime.sleep(600)")
        name = task.name
        assert name is not None

        def look(theirs: Node) -> None:
            assert all(row.principal == f"uid:{FRIEND}" for row in theirs.tasks())
            assert theirs.find(name) is None

        assert _friend(node, look) == ""
        task.kill()
        assert isinstance(task, Task)


@pytest.mark.parametrize("order", ["limbo", "shutdown"])
def test_what_is_the_nodes_own_is_refused(node: RunningNode, order: str) -> None:
    """A guest starts no task with the rights of the node's user, and does not stop the node."""

    def ask(theirs: Node) -> None:
        if order == "limbo":
            theirs.run(b"", brand="limbo")
        else:
            theirs.shutdown()

    assert "NotPermittedError" in _friend(node, ask)
    assert exists(node.running.pid)
    with pytest.raises(PermissionError):
        _as_user(FRIEND, lambda: os.kill(node.running.pid, signal.SIGTERM))


def test_a_descriptor_that_blocks_at_its_closing_reaches_nobody(node: RunningNode) -> None:
    """A socket with SO_LINGER blocks its last holder for an hour; the node never becomes that holder."""
    sender, other = socket.socketpair()
    with sender, other:
        refuse_descriptors(other)
        try:
            socket.send_fds(sender, [b"x"], [0])
        except PermissionError:
            pass
        else:
            pytest.skip("this kernel cannot refuse descriptors at a socket (SO_PASSRIGHTS, Linux 6.16)")

    def give() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as lingering:
            lingering.connect(server.getsockname())
            lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
            lingering.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    lingering.send(bytes(65_536))
            with socket.socket(socket.AF_UNIX) as knocking:
                knocking.connect(node.place)
                try:
                    socket.send_fds(knocking, [b"\xff" * 64], [lingering.fileno()])
                except PermissionError:
                    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
                    return
        raise AssertionError("the node's socket took a descriptor")

    assert _as_user(FRIEND, give) == ""
    with connect(node.place, groups=()) as mine:
        assert mine.create(dios.SHMEM_BLOB, data=b"still here").read_bytes() == b"still here"
