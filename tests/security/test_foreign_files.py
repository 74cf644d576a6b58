"""Files, folders and sockets of other users: a node and its clients neither obey nor trust them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from dios import kernel_cache
from dios.client.aio.node import open_node
from dios.client.keyring import Keyring
from dios.client.locate import accepted_users, resolve_node
from dios.client.sync.node import connect
from dios.errors import InvalidError, NotPermittedError
from dios.firmament import compile_kernels
from dios.ids import Name
from dios.node import daemon
from dios.node.settings import load
from dios.sprayer.linux.offloads import without_offloads
from dios.sprayer.runtime.statistics_socket import read_statistics, serve_statistics
from dios.store.check import hold_directory
from dios.transport.identity import identity
from dios.trusted_files import UntrustedError

STRANGER = 65_532
NAME = b"n" * 32

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    path = Path(tempfile.mkdtemp(prefix="dios-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


class ForeignListener:
    """A listener of another user, which records the bytes that clients send to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "node.sock"
        self.received = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        # The kernel records who listens at this moment. The process has its former user again afterwards.
        os.seteuid(STRANGER)
        try:
            self._listener.listen()
        finally:
            os.seteuid(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                while data := peer.recv(65_536):
                    self.received += data
                    if len(self.received) > 32:
                        break

    def close(self) -> None:
        """Stop listening, and wait for the last bytes."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def listener(folder: Path) -> Iterator[ForeignListener]:
    """A listener of another user in a folder that everybody can enter."""
    foreign = ForeignListener(folder)
    yield foreign
    foreign.close()


def _connect(path: Path) -> None:
    connect(path, groups=[NAME]).close()


def _connect_trio(path: Path) -> None:
    async def main() -> None:
        async with open_node(path, groups=[NAME]):
            pass

    trio.run(main)


def _find(path: Path) -> None:
    daemon.find(path)


@pytest.mark.parametrize("reach", [_connect, _connect_trio, _find])
def test_nothing_is_sent_to_a_listener_of_another_user(
    listener: ForeignListener, reach: Callable[[Path], None]
) -> None:
    """Before a byte is sent, the kernel's word about the listener counts, and the error says what to do."""
    with pytest.raises(NotPermittedError, match=f"DIOS_NODE_USER={STRANGER}"):
        reach(listener.path)
    listener.close()
    assert listener.received == b""


def test_the_node_of_another_user_is_accepted_if_the_caller_says_so(
    listener: ForeignListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument, or the environment, names the user of the node."""
    with pytest.raises(Exception, match="closed"):
        connect(listener.path, groups=[NAME], node_user=STRANGER)
    assert NAME in listener.received
    monkeypatch.setenv("DIOS_NODE_USER", str(STRANGER))
    assert daemon.find(listener.path) is not None
    assert accepted_users() == (STRANGER,)
    assert accepted_users("root") == (0,)
    with pytest.raises(InvalidError, match="does not exist"):
        accepted_users("no such user")


def test_the_default_node_is_not_looked_for_in_a_folder_of_another_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG_RUNTIME_DIR of another user, as after ``su``, is not searched, and no node puts its link there."""
    monkeypatch.delenv("DIOS_NODE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    (folder / "dios").mkdir()
    link = folder / "dios" / "default.sock"
    assert resolve_node() == link
    os.chown(folder, STRANGER, -1)
    with pytest.raises(UntrustedError, match=f"belongs to user {STRANGER}"):
        resolve_node()
    with pytest.raises(UntrustedError):
        daemon.claim_link(link, folder / "node.sock")
    assert not link.is_symlink()
    link.symlink_to(folder / "node.sock")
    daemon.drop_link(link, folder / "node.sock")
    assert link.is_symlink()


def test_the_clients_settings_and_keyring_of_another_user_are_not_obeyed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A HOME of another user, as under ``sudo``, neither chooses root's node nor its groups."""
    monkeypatch.delenv("DIOS_NODE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("DIOS_KEYRING", raising=False)
    (folder / "dios").mkdir()
    for name, text in (("client.toml", 'node = "/elsewhere"'), ("keyring.toml", "")):
        file = folder / "dios" / name
        file.write_text(text)
        file.chmod(0o600)
        os.chown(file, STRANGER, -1)
    with pytest.raises(UntrustedError):
        resolve_node()
    with pytest.raises(UntrustedError):
        Keyring.load()
    os.chown(folder / "dios", STRANGER, -1)
    (folder / "dios" / "keyring.toml").unlink()
    with pytest.raises(UntrustedError):
        Keyring.load().add("alias", Name(NAME))
    assert not (folder / "dios" / "keyring.toml.lock").exists()


def _open_directory(data: Path) -> None:
    data.chmod(0o777)


def _open_parent(data: Path) -> None:
    data.parent.chmod(0o777)


def _foreign_directory(data: Path) -> None:
    os.chown(data, STRANGER, -1)


def _foreign_settings(data: Path) -> None:
    (data / "node.toml").write_text("")
    os.chown(data / "node.toml", STRANGER, -1)


def _open_settings(data: Path) -> None:
    (data / "node.toml").write_text("")
    (data / "node.toml").chmod(0o666)


def _foreign_identity(data: Path) -> None:
    (data / "identity").mkdir()
    (data / "identity" / "authority.pem").touch()
    os.chown(data / "identity" / "authority.pem", STRANGER, -1)


def _foreign_database(data: Path) -> None:
    (data / "store").mkdir()
    (data / "store" / "data.mdb").touch()
    os.chown(data / "store" / "data.mdb", STRANGER, -1)


def _foreign_shaping_record(data: Path) -> None:
    (data / "shaped").write_text("lo")
    os.chown(data / "shaped", STRANGER, -1)


def _link_to_foreign_log(data: Path) -> None:
    (data.parent / "elsewhere").touch()
    os.chown(data.parent / "elsewhere", STRANGER, -1)
    (data / "node.log").symlink_to(data.parent / "elsewhere")


@pytest.mark.parametrize(
    "spoil",
    [
        _open_directory,
        _open_parent,
        _foreign_directory,
        _foreign_settings,
        _open_settings,
        _foreign_identity,
        _foreign_database,
        _foreign_shaping_record,
        _link_to_foreign_log,
    ],
)
def test_root_starts_no_node_on_files_of_another_user(folder: Path, spoil: Callable[[Path], None]) -> None:
    """A start is refused, by the command and by the node itself, and nothing is written there."""
    data = folder / "parent" / "data"
    data.mkdir(parents=True, mode=0o700)
    spoil(data)
    before = sorted(path.name for path in data.iterdir())
    with pytest.raises(UntrustedError, match="is not trusted"):
        daemon.start_detached(data)
    with pytest.raises(UntrustedError, match="is not trusted"):
        daemon.run(load(data), lambda: None)
    assert sorted(path.name for path in data.iterdir()) == before


def test_a_store_and_an_identity_of_another_user_are_not_read(folder: Path) -> None:
    """Commands that read the data directory of a stopped node refuse it too."""
    (folder / "store").mkdir()
    (folder / "store" / "data.mdb").touch()
    (folder / "identity").mkdir()
    os.chown(folder / "store" / "data.mdb", STRANGER, -1)
    os.chown(folder / "identity", STRANGER, -1)
    with pytest.raises(UntrustedError), hold_directory(folder):
        pass
    with pytest.raises(UntrustedError):
        identity.load(folder)
    with pytest.raises(UntrustedError):
        identity.create_cluster(folder / "identity", name="n1")


@pytest.mark.parametrize("setting", ["log_file", "record"])
def test_a_log_is_not_written_through_a_link_of_another_user(folder: Path, setting: str) -> None:
    """A link that another user put into a folder like /tmp does not make root write to its target."""
    folder.chmod(0o1777)
    data, target, link = folder / "data", folder / "target", folder / "link"
    data.mkdir(mode=0o700)
    target.write_text("precious")
    link.symlink_to(target)
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    with pytest.raises(UntrustedError):
        daemon.run(load(data, flags={setting: str(link)}), lambda: None)
    assert target.read_text() == "precious"


def test_a_daemon_imports_nothing_from_the_working_directory(folder: Path) -> None:
    """The command of a daemon has Python leave the working directory out of its path."""
    (folder / "trio.py").write_text("raise SystemExit('a foreign module ran')")
    (folder / "msgspec.py").write_text("raise SystemExit('a foreign module ran')")
    command = daemon.command(folder / "missing" / "\0", config=None, flags=None)
    assert command[0] == sys.executable
    command[command.index("dios.node.daemon") + 1] = str(folder / "data")
    done = subprocess.run([*command, "unknown=1"], cwd=folder, capture_output=True, text=True, check=False)
    assert "a foreign module ran" not in done.stderr
    assert "there is no setting --unknown" in done.stderr


def _a_function(number: int) -> int:
    return number + 1


def test_compiled_kernels_of_another_user_are_not_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel's cache is a pickle and machine code: in a folder of another user there is none."""
    kernels = pytest.importorskip("dios.kernels")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setattr(kernels, "_folders", kernels._folders.__wrapped__)
    own = kernels._LazyCache(_a_function)
    assert own.cache_path.startswith(str(folder))
    os.chown(folder / "cache", STRANGER, -1)
    assert kernels._LazyCache(_a_function).cache_path is None
    assert kernel_cache.writable_folder() is None


def test_other_users_cannot_open_the_locks_of_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can open a file can lock it, and the next process would wait for ever."""
    kernels = pytest.importorskip("dios.kernels")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "cache"))
    place = kernel_cache.writable_folder()
    assert place is not None
    with kernels._locked(place), kernel_cache.open_lock(place / compile_kernels.LOCK):
        locks = list(place.glob("*.lock"))
        assert len(locks) == 2
        assert {path.stat().st_mode & 0o777 for path in locks} == {0o600}


@pytest.mark.parametrize("place", ["cache", "functions", "file"])
def test_compiled_handlers_of_another_user_are_not_loaded(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled handlers of network functions are kept where only this user can read and write."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "cache"))
    private = kernel_cache.private_folder()
    assert private is not None
    (private / "Nat.code").touch()
    assert kernel_cache.private_folder() == private
    paths = {"cache": folder / "cache", "functions": private, "file": private / "Nat.code"}
    os.chown(paths[place], STRANGER, -1)
    assert kernel_cache.private_folder() is None
    os.chown(paths[place], 0, -1)
    assert kernel_cache.private_folder() == private
    paths[place].chmod(0o777)
    assert kernel_cache.private_folder() is None


def test_a_folder_of_compiled_handlers_that_others_can_read_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the constants of a function, such as keys; nor is a link to another folder followed."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "cache"))
    private = kernel_cache.private_folder()
    assert private is not None
    private.chmod(0o755)
    assert kernel_cache.private_folder() is None
    private.rename(folder / "other")
    (folder / "other").chmod(0o700)
    private.symlink_to(folder / "other")
    assert kernel_cache.private_folder() is None


def test_records_of_network_functions_of_another_user_are_not_obeyed(folder: Path) -> None:
    """Neither statistics nor recorded changes of interfaces are read from a folder of another user."""
    os.chown(folder, STRANGER, -1)
    with pytest.raises(UntrustedError):
        read_statistics("name", folder)
    with pytest.raises(UntrustedError), serve_statistics("name", dict, folder):
        pass
    with pytest.raises(UntrustedError), without_offloads(["lo"], folder):
        pass
