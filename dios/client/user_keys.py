"""A user's key, and the mandates that it signs: with them a node acts for the user at other nodes.

The key is a file in the user's configuration directory. A program of an enrolled user signs a mandate when it
connects, unless the node has one that lasts, and renews it while its connection is open. It does so in the
first cluster in which the key was used, and in those where the user has signed by hand.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dios.client.locate import config_directory
from dios.client.written_files import make_folder, naming, sync_folder
from dios.errors import DiosError, InvalidError, NotPermittedError
from dios.forks import give_up_in_child
from dios.limits import MANDATE_MS, MANDATE_SKEW_MS
from dios.trusted_files import require_trusted
from dios.wire.mandates import EVERY_PURPOSE, MandateTerms, Purpose, make_mandate, public_bytes

if TYPE_CHECKING:
    import socket

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY_FILE: Final = "user.key"
_ADMINISTRATOR_FILE: Final = "administrator.key"
_CLUSTERS_FILE: Final = "user.clusters"
"""The clusters in which programs sign by themselves, each as a line of hexadecimal digits."""

_RETRY_S: Final = 60.0

_log: Final = logging.getLogger(__name__)


# -- the key ------------------------------------------------------------------------------------------
def key_path(*, administrator: bool = False) -> Path:
    """Return the file with this user's key, or with the key of the cluster's administrator."""
    return config_directory() / (_ADMINISTRATOR_FILE if administrator else _KEY_FILE)


def read_key(path: Path) -> Ed25519PrivateKey | None:
    """Return the key in a file, None if there is no such file.

    Raises NotPermittedError if others may read or change it, InvalidError if it is no Ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - see below
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - the same

    # Loaded late, because it takes longer than a connection, and most users are not enrolled.
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise NotPermittedError(f"others may read your key. Run: chmod 600 {path}")
            require_trusted(path, "your key")
            content = file.read()
    except FileNotFoundError:
        return None
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        raise InvalidError(f"{path} is not a key: {error}. Restore it from a backup.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidError(f"{path} is not an Ed25519 key. Restore it from a backup.")
    return key


def own_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in a file, which is made on first use. Raises the errors of ``read_key``, OSError."""
    key = read_key(path)
    if key is not None:
        return key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - the same
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    make_folder(path.parent)
    require_trusted(path.parent, "the folder of your key")
    key = Ed25519PrivateKey.generate()
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with naming(path), os.fdopen(fd, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(temporary)  # unlike a rename, it never replaces the key of another process
        except FileExistsError:
            return own_key(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return key


# -- mandates -----------------------------------------------------------------------------------------
def mandate_for(terms: MandateTerms) -> bytes:
    """Return a mandate for the node of a connection, or b"" if it has one that lasts or the key is not here.

    Neither is one signed for statements of the node that ``sign`` refuses, or in a cluster where the user has
    signed none; a warning says so. Raises the errors of ``read_key``.
    """
    if terms.end_ms - terms.now_ms > MANDATE_MS // 2:
        return b""
    key = read_key(key_path())
    if key is None or public_bytes(key) not in terms.keys:
        return b""
    if terms.cluster.hex() not in (_clusters() or [terms.cluster.hex()]):
        _log.warning(
            "your key was used in other clusters so far, so nothing is signed for this node. If you trust "
            "it, give `dios user vouch` with its name."
        )
        return b""
    try:
        return sign(key, terms, EVERY_PURPOSE, MANDATE_MS)
    except (NotPermittedError, OSError) as error:
        _log.warning("%s", error)
        return b""


def sign(key: Ed25519PrivateKey, terms: MandateTerms, purposes: Purpose, lasts_ms: int) -> bytes:
    """Return a mandate that begins now, by the clock of the node, and remember the cluster.

    Raises NotPermittedError if the node states the time of another day or another user, OSError if the
    cluster cannot be remembered.
    """
    if abs(terms.now_ms - time.time() * 1000) > MANDATE_SKEW_MS:
        raise NotPermittedError(
            "the clock of the node differs from this program's by more than five minutes, so nothing is "
            "signed for it. Set the clocks."
        )
    if terms.principal != f"uid:{os.geteuid()}":
        raise NotPermittedError(f"the node takes you for {terms.principal}, so nothing is signed for it")
    clusters = _clusters()
    if terms.cluster.hex() not in clusters:
        path = config_directory() / _CLUSTERS_FILE
        make_folder(path.parent)
        with path.open("a", encoding="ascii") as file:
            file.write(f"{terms.cluster.hex()}\n")
    return make_mandate(key, terms, purposes, terms.now_ms, terms.now_ms + lasts_ms)


def _clusters() -> list[str]:
    """Return the clusters in which the user's key was used, in hexadecimal digits."""
    try:
        return (config_directory() / _CLUSTERS_FILE).read_text(encoding="ascii").split()
    except FileNotFoundError:
        return []


# -- renewal ------------------------------------------------------------------------------------------
class Renewal(NamedTuple):
    """A function that connects to a node, and its arguments: equal ones are called once."""

    connect: Callable[[str | Path | None, str | int | None], object]
    node: str | Path | None
    node_user: str | int | None


class _Open(NamedTuple):
    """An open connection, and the renewal of the mandate of its node."""

    sock: weakref.ref[socket.socket]
    renewal: Renewal


class _Renewals:
    """The connections of this process whose nodes have mandates, and the thread that renews these."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._thread: threading.Thread | None = None

    def add(self, sock: socket.socket, renewal: Renewal) -> None:
        """Renew while this socket is open."""
        with self._lock:
            self._open.append(_Open(weakref.ref(sock), renewal))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mandates", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause_s = MANDATE_MS / 4000
        while True:
            time.sleep(pause_s)
            with self._lock:
                self._open = [entry for entry in self._open if _is_open(entry.sock())]
                # One renewal serves all connections with the same node.
                due = list(dict.fromkeys(entry.renewal for entry in self._open))
                if not due:
                    self._thread = None
                    return
            pause_s = MANDATE_MS / 4000 if all(list(map(_renewed, due))) else _RETRY_S

    def give_up(self) -> None:
        """Forget everything, in a child that was forked: it has no connection and no thread."""
        self._lock = threading.Lock()
        self._open, self._thread = [], None


def _is_open(sock: socket.socket | None) -> bool:
    return sock is not None and sock.fileno() >= 0


def _renewed(renewal: Renewal) -> bool:
    """Return True if a renewal succeeded. The node may be restarting; its error comes with the next call."""
    try:
        renewal.connect(renewal.node, renewal.node_user)
    except (DiosError, OSError):
        return False
    return True


_renewals: Final = _Renewals()
give_up_in_child(_renewals.give_up)


def renew_while_open(sock: socket.socket, renewal: Renewal) -> None:
    """Renew from time to time in a thread, until the socket of a connection is closed.

    To connect to the node again renews its mandate. Without a key nothing is renewed.
    """
    if key_path().exists():
        _renewals.add(sock, renewal)
