"""Make a data directory that of a cluster's node: the first of a new one, or one more of another.

Not for: identities and certificates themselves (``dios.transport.identity.identity``), the conversation of
joining
(``dios.transport.identity.joining``), or a whole cluster on one machine (``dios.node.local_cluster``). No
node runs on
the directory while these functions work on it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dios.errors import ExistsError, InvalidError, UnreachableError
from dios.node import machine, seeds
from dios.node.addresses import is_loopback, join_address, split_address
from dios.node.settings import FILE_NAME, Settings, SettingsError, load
from dios.transport.identity import durable_files, identity, tokens
from dios.transport.identity.identity import Identity
from dios.transport.identity.tokens import Token

REMEMBERED: Final = ("name", "rack", "listen", "advertise", "announce")
"""The settings that make a node a member, which later starts find in its ``node.toml``."""

_PORTS_TRIED: Final = 64


# -- the first node ---------------------------------------------------------------------------------
def create(settings: Settings) -> Identity:
    """Make a new cluster whose first node is the one of these settings; nothing is started.

    Raises ExistsError when the directory belongs to a cluster's node already, InvalidError when a lone node
    kept objects there, SettingsError when it would not listen.
    """
    if not settings.listen:
        raise SettingsError(
            "the other nodes must reach this one: say where it listens, like --listen 10.0.0.1:7400"
        )
    _refuse_used(settings.data)
    made = identity.create_cluster(settings.data, name=settings.name)
    remember(settings)
    return made


def _refuse_used(data: Path) -> None:
    # Late: whoever starts a node has no use for the database here, unless it is to become a member.
    from dios.store.environment import holds_store  # noqa: PLC0415 - see above

    if holds_store(data) and not (data / identity.FOLDER).exists():
        raise InvalidError(
            f"{data} keeps the objects of a node that is in no cluster; in a cluster its users' home groups "
            "have other names, and nobody would find them. Choose an empty directory, and bring over what "
            "you need with `dios get` and `dios put`"
        )


def remember(settings: Settings) -> None:
    """Write what makes this node a member into its ``node.toml``; what stands there already stays.

    Raises SettingsError when the file says something else.
    """
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = settings.data / FILE_NAME
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    there = load(settings.data, environ={}) if text else None
    added: list[str] = []
    for key in REMEMBERED:
        value = getattr(settings, key)
        if re.search(rf"^\s*{key}\s*=", text, re.MULTILINE):
            if there is not None and getattr(there, key) != value:
                raise SettingsError(
                    f"{path} says another {key} than was chosen now; change it there, or leave it out here"
                )
        elif value:
            # These are checked words, which TOML and JSON write alike.
            added.append(f"{key} = {json.dumps(value)}\n")
    if added:
        # In front: at the end they would belong to the last table.
        durable_files.write(path, ("".join(added) + text).encode())


# -- tokens -----------------------------------------------------------------------------------------
def issue(data: Path, *, uses: int, valid_s: int) -> tuple[str, str]:
    """A token's text and this node's address, for one or more machines to join at it.

    The node may run or not. Raises InvalidError when it is in no cluster, and what ``tokens.issue`` raises.
    """
    own = identity.load(data)
    if own is None:
        raise InvalidError(
            f"the node on {data} is in no cluster; `dios-node init --data DIR --listen HOST:PORT` makes one"
        )
    return tokens.issue(own, uses=uses, valid_s=valid_s), load(data).address


def join_command(address: str, token: str, *, data: str = "./dios-data") -> str:
    """The line to type on the next machine."""
    return f"dios-node start --data {data} --detach --join {address} --token {token}"


# -- one more node ----------------------------------------------------------------------------------
def prepare_join(settings: Settings, address: str, token: Token) -> Settings | None:
    """What to join with: the settings, with where to listen when nobody said it; None when it has joined.

    Raises ExistsError when the directory belongs to a node of another cluster, InvalidError when a lone
    node kept objects there or the addresses make no sense.
    """
    own = identity.load(settings.data)
    if own is not None:
        if own.cluster != token.cluster:
            raise ExistsError(
                f"{settings.data} belongs to node {own.name} of another cluster; leave out --join to start "
                "it, or choose another --data for the new one"
            )
        return None
    _refuse_used(settings.data)
    if settings.listen:
        return settings
    listen = _listen_towards(address)
    return load(settings.data, flags={**_flags_of(settings), "listen": listen})


def _flags_of(settings: Settings) -> dict[str, object]:
    return {key: value for key in REMEMBERED if (value := getattr(settings, key))}


def _listen_towards(address: str) -> str:
    """Where this machine can be reached by who is at ``address``: the way out to it, and its port if free."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, _, _, place = found[0]
        with socket.socket(family, kind) as probe:
            # Nothing is sent: the system only chooses the way.
            probe.connect(place)
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UnreachableError(f"there is no way to {address}: {error.strerror or error}") from None
    return free_address(own, port)


def free_address(host: str, first: int) -> str:
    """The first port from ``first`` on that nobody uses at ``host``, as an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, min(first + _PORTS_TRIED, 65_536)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise InvalidError(
                    f"this machine cannot listen on {join_address(host, port)} ({error.strerror}); "
                    "say where with --listen HOST:PORT"
                ) from None
        return join_address(host, port)
    raise InvalidError(
        f"no port from {first} on is free at {host}; say where to listen with --listen HOST:PORT"
    )


def joined(settings: Settings, address: str) -> None:
    """Note what a fresh member needs at its next starts: where its cluster is, and its own settings."""
    seeds.write(settings.data, [address, *seeds.read(settings.data)])
    remember(settings)


# -- a member that starts -----------------------------------------------------------------------------
def check(settings: Settings, own: Identity) -> None:
    """Whether a node may start with these settings and this identity; raises SettingsError saying why not."""
    if settings.name not in {own.name, machine.host_name()}:
        raise SettingsError(
            f"this node is {own.name} in its cluster and cannot be called {settings.name}; leave the name out"
        )
    if not settings.listen:
        raise SettingsError(
            f"{own.name} is a node of a cluster and must listen; set listen in {settings.data / FILE_NAME}"
        )


def read_token(*, text: str, file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """The token that was given: in the command, in a file, or in DIOS_TOKEN; InvalidError for none or two."""
    given = [what for what, there in (("--token", bool(text)), ("--token-file", file is not None)) if there]
    if len(given) > 1:
        raise InvalidError("give the token once: either --token or --token-file")
    if file is not None:
        with contextlib.suppress(UnicodeDecodeError):
            text = file.read_text(encoding="ascii").strip()
    text = text or environ.get("DIOS_TOKEN", "").strip()
    if not text:
        raise InvalidError(
            "joining needs a token: `dios-node token` at a node of the cluster makes one; give it with "
            "--token-file FILE, in DIOS_TOKEN, or with --token"
        )
    return text


def advice(settings: Settings) -> str:
    """What to think of the address that a node tells the others; empty when there is nothing to say."""
    if settings.address and is_loopback(split_address(settings.address)[0]):
        return (
            f"{settings.address} can be reached from this machine only; for other machines choose "
            "one of its addresses with --listen or --advertise"
        )
    return ""
