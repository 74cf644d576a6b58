"""The paths of a user's node, keyring and configuration. Nothing here creates or opens a socket."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

from dios.errors import InvalidError

SOCKET_NAME: Final = "node.sock"
"""The name of the socket in a node's data directory."""

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


def resolve_node(node: str | Path | None = None) -> Path:
    """Return the socket of a node: argument, else DIOS_NODE, else client.toml, else the default link.

    A directory means the socket in it, and a word that is not a path the node of that name in the local
    cluster. The path need not exist. Raises InvalidError if client.toml is invalid.
    """
    chosen = str(node) if node else os.environ.get("DIOS_NODE", "") or _configured()
    if not chosen:
        return default_socket()
    path = Path(chosen).expanduser()
    if "/" not in chosen and not path.exists():
        return _named(chosen) or path
    return path / SOCKET_NAME if path.is_dir() else path


def _named(name: str) -> Path | None:
    """Return the socket of the local cluster's node of that name, or None."""
    try:
        data = local_cluster() / name
    except InvalidError:
        return None
    return data / SOCKET_NAME if data.is_dir() else None


def _configured() -> str:
    """Return the ``node`` of client.toml, or ""."""
    try:
        path = config_directory() / _CONFIG_NAME
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    except InvalidError:
        return ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidError(f"{_CONFIG_NAME} of this user cannot be read: {error}") from None
    for key in values:
        if key != "node":
            raise InvalidError(f"{_CONFIG_NAME}: there is no setting {key!r}; known: node")
    node = values.get("node", "")
    if not isinstance(node, str):
        raise InvalidError(f"{_CONFIG_NAME}: node is the path of a data directory or socket, as text")
    return node
