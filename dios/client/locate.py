"""The paths of a user's node, keyring and configuration. Nothing here creates or opens a socket."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import InvalidError
from dios.trusted_files import UntrustedError, require_trusted

SOCKET_NAME: Final = "node.sock"
"""The name of the socket in a node's data directory."""

BORDER_SOCKET_NAME: Final = "border.sock"
"""The name of the socket of a node's border, in the folder of ``SOCKET_NAME``."""

PID_FILE_NAME: Final = "node.pid"
"""The name of the file in a data directory that a running node has locked; it stays."""

SETTINGS_FILE_NAME: Final = "node.toml"
"""The name of the file of settings in a data directory."""

CLUSTER_FILE_NAME: Final = "cluster.json"
"""The name of the file that makes a directory that of a local cluster."""

_CONFIG_NAME: Final = "client.toml"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise InvalidError("no home directory is known; set HOME, or name the node in DIOS_NODE") from None


def config_directory() -> Path:
    """Return the directory of this user's DIOS files: ``$XDG_CONFIG_HOME/dios``, else ``~/.config/dios``."""
    text = os.environ.get("XDG_CONFIG_HOME", "")
    # The convention ignores a relative path there.
    base = Path(text) if text.startswith("/") else _home() / ".config"
    return base / "dios"


def default_socket() -> Path:
    """Return the link to the socket of this user's default node, which may not exist.

    A node takes the link if it starts and no other node answers there, and removes it at its end.
    """
    text = os.environ.get("XDG_RUNTIME_DIR", "")
    if text.startswith("/"):
        return Path(text) / "dios" / "default.sock"
    return _home() / ".dios" / "run" / "default.sock"


def local_cluster() -> Path:
    """Return the directory of this user's local cluster (``dios up``).

    It is ``$XDG_STATE_HOME/dios/cluster``, else ``~/.local/state/dios/cluster``; a link if the user chose
    another directory.
    """
    text = os.environ.get("XDG_STATE_HOME", "")
    base = Path(text) if text.startswith("/") else _home() / ".local" / "state"
    return base / "dios" / "cluster"


class ClientSetting(NamedTuple):
    """A setting of programs and commands: its value, and the flag, variable or file that it came from."""

    key: str
    value: str
    source: str


def client_settings(node: str | Path | None = None) -> list[ClientSetting]:
    """Return the settings of this user's programs; ``node`` is the argument of a command.

    Raises the errors of ``resolve_node`` and ``accepted_users``.
    """
    file = str(config_directory() / _CONFIG_NAME)

    def source(key: str, variable: str, *, flag: bool = False) -> str:
        if flag:
            return "--node"
        if os.environ.get(variable, ""):
            return variable
        return file if key in _KEYS and _configured(key) != "" else "default"

    users = ", ".join(map(str, accepted_users()))
    keyring = os.environ.get("DIOS_KEYRING", "")
    keyring_path = Path(keyring).expanduser() if keyring else config_directory() / "keyring.toml"
    return [
        ClientSetting("node", str(resolve_node(node)), source("node", "DIOS_NODE", flag=bool(node))),
        ClientSetting("node_user", users, source("node_user", "DIOS_NODE_USER")),
        ClientSetting("keyring", str(keyring_path), source("keyring", "DIOS_KEYRING")),
        ClientSetting("cluster", str(local_cluster()), source("cluster", "XDG_STATE_HOME")),
    ]


def resolve_node(node: str | Path | None = None) -> Path:
    """Return the socket of a node: argument, else DIOS_NODE, else client.toml, else the default link.

    A directory means the socket in it, and a word that is not a path the node of that name in the local
    cluster. The path need not exist. Raises InvalidError if client.toml is invalid or no node has the name,
    UntrustedError if another user could have changed the file or the default link.
    """
    chosen = str(node) if node else os.environ.get("DIOS_NODE", "") or str(_configured("node"))
    if not chosen:
        link = default_socket()
        require_trusted(link.parent, "the folder of the default node")
        return link
    path = Path(chosen).expanduser()
    if "/" not in chosen and path.suffix != ".sock" and not path.exists():
        return _named(chosen)
    return path / SOCKET_NAME if path.is_dir() else path


def names_node(node: str | Path | None = None, node_user: str | int | None = None) -> bool:
    """Return True if an argument, DIOS_NODE, DIOS_NODE_USER or client.toml names a node or its user."""
    named = node or os.environ.get("DIOS_NODE", "") or os.environ.get("DIOS_NODE_USER", "")
    return bool(named or _configured("node")) or node_user is not None or _configured("node_user") != ""


def _named(name: str) -> Path:
    """Return the socket of the local cluster's node of that name. Raise InvalidError if there is none."""
    place = local_cluster()
    data = place / name
    if data.is_dir():
        return data / SOCKET_NAME
    names = sorted(path.parent.name for path in place.glob(f"*/{SETTINGS_FILE_NAME}"))
    cluster = (
        f"your local cluster has {', '.join(names)}" if names else "you have no local cluster (`dios up`)"
    )
    raise InvalidError(
        f"there is no node {name!r}: {cluster}, and this folder has no such data directory or socket. "
        f"For a path write it with a slash, like ./{name}."
    )


def accepted_users(user: str | int | None = None) -> tuple[int, ...]:
    """Return the users whose node is accepted in addition to those of root and of the caller's own user.

    It is the argument, else DIOS_NODE_USER, else ``node_user`` of client.toml, a name or a number. Raises
    InvalidError if there is no such user.
    """
    chosen = user if user is not None else os.environ.get("DIOS_NODE_USER", "") or _configured("node_user")
    if chosen == "":
        return ()
    text = str(chosen)
    if text.isascii() and text.isdigit():
        return (int(text),)
    import pwd  # noqa: PLC0415 - needed for a name only

    try:
        return (pwd.getpwnam(text).pw_uid,)
    except (KeyError, ValueError):
        raise InvalidError(
            f"the user {text!r} of the node does not exist; correct DIOS_NODE_USER or {_CONFIG_NAME}"
        ) from None


_KEYS: Final = ("node", "node_user")


def _configured(wanted: str) -> str | int:
    """Return the value of a key of client.toml, or ""."""
    try:
        path = config_directory() / _CONFIG_NAME
        text = path.read_text(encoding="utf-8")
        require_trusted(path, "the file of settings")
        values = tomllib.loads(text)
    except FileNotFoundError:
        return ""
    except UntrustedError:
        raise
    except InvalidError:
        return ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidError(f"{_CONFIG_NAME} of this user cannot be read: {error}") from None
    for key in values:
        if key not in _KEYS:
            raise InvalidError(f"{_CONFIG_NAME}: there is no setting {key!r}; known: {', '.join(_KEYS)}")
    value = values.get(wanted, "")
    if wanted == "node_user" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        kind = "a path of a data directory or socket" if wanted == "node" else "a user's name or number"
        raise InvalidError(f"{_CONFIG_NAME}: {wanted} is {kind}, as text")
    return value
