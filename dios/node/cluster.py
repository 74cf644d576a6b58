"""Makes a data directory a member of a cluster: the first node of a new cluster, or one more node.

``dios.transport.identity`` has identities, certificates and the join protocol; ``dios.node.local_cluster``
makes a whole cluster on one machine. No node may run on the directory while these functions use it.
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

from dios.client.locate import SETTINGS_FILE_NAME
from dios.errors import ExistsError, InvalidError, UnreachableError
from dios.node import daemon, machine, seeds
from dios.node.addresses import is_loopback, split_address
from dios.node.settings import Settings, SettingsError, load
from dios.transport.identity import durable_files, identity, tokens
from dios.transport.identity.identity import Identity
from dios.transport.identity.tokens import Token
from dios.trusted_files import require_trusted
from dios.wire.addresses import join_address, listen_advice
from dios.wire.node_labels import text_of
from dios.wire.node_roles import NodeRole

REMEMBERED: Final = ("name", "rack", "labels", "listen", "advertise", "announce")
"""The settings that make a node a member; they are saved in its ``node.toml`` for later starts."""

_PORTS_TRIED: Final = 64


# -- the first node ---------------------------------------------------------------------------------
def create(settings: Settings, root_key_file: Path | None = None) -> Identity:
    """Create a new cluster whose first node has these settings; nothing is started.

    The key of its root is written into the new file ``root_key_file``, or into none and forgotten.
    Raise ExistsError if the directory already belongs to a node of a cluster, InvalidError if it has objects
    of a node without a cluster, SettingsError if the node would not listen.
    """
    if not settings.listen:
        raise SettingsError(
            "other nodes must be able to reach this node. Give the address to listen on, like "
            "--listen 10.0.0.1:7400."
        )
    _refuse_used(settings.data)
    new_identity = identity.create_cluster(settings.data, name=settings.name, root_key_file=root_key_file)
    remember(settings)
    return new_identity


def authorize(settings: Settings, root_key_file: Path) -> Identity:
    """Make the stopped node with these settings an authority, with the key of its cluster's root.

    Raise InvalidError if it runs, and the errors of ``identity.authorize``.
    """
    if daemon.find(settings.socket) is not None:
        raise InvalidError(
            f"the node in {settings.data} runs. Stop it (`dios-node stop --data {settings.data}`), and "
            "repeat the command."
        )
    return identity.authorize(settings.data, root_key_file)


def _refuse_used(data: Path) -> None:
    # Imported late, because a normal start does not need the database here.
    from dios.store.environment import holds_store  # noqa: PLC0415 - see above

    if holds_store(data) and not (data / identity.FOLDER).exists():
        raise InvalidError(
            f"cannot use {data}: it has objects of a node without a cluster. In a cluster the home groups of "
            "its users have other names, so that nobody would find these objects. Choose an empty directory, "
            "and copy objects with `dios get` and `dios put`."
        )


def remember(settings: Settings) -> None:
    """Save the settings that make this node a member in its ``node.toml``; keep the present lines.

    Raise SettingsError if the file has a different value.
    """
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = settings.data / SETTINGS_FILE_NAME
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    there = load(settings.data, environ={}) if text else None
    added: list[str] = []
    for key in REMEMBERED:
        value = getattr(settings, key)
        if re.search(rf"^\s*{key}\s*=", text, re.MULTILINE):
            if there is not None and getattr(there, key) != value:
                raise SettingsError(
                    f"{path} has another {key} than the one given now. Change it there, or leave it out here."
                )
        elif value:
            # These values are checked words, which TOML and JSON write in the same way.
            added.append(f"{key} = {json.dumps(_written(value))}\n")
    if added:
        # At the beginning, because at the end they would belong to the last table.
        durable_files.write(path, ("".join(added) + text).encode())


def _written(value: object) -> object:
    """Return a setting's value as text, as a flag or a file gives it."""
    return text_of(value) if isinstance(value, tuple) else value


# -- tokens -----------------------------------------------------------------------------------------
def issue(data: Path, *, uses: int, valid_s: int, role: NodeRole = NodeRole.MEMBER) -> tuple[str, str]:
    """Return a new token's text and this node's address, for one or more machines that join in a role.

    The node may be running. Raise InvalidError if it is in no cluster, and the errors of ``tokens.issue``.
    """
    own = identity.load(data)
    if own is None:
        raise InvalidError(
            f"the node in {data} is in no cluster. Make one with "
            "`dios-node init --data DIR --listen HOST:PORT`."
        )
    return tokens.issue(own, uses=uses, valid_s=valid_s, role=role), load(data).address


def join_command(address: str, token: str, *, data: str = "./dios-data") -> str:
    """Return the command to type on the next machine."""
    return f"dios-node start --data {data} --detach --join {address} --invitation {token}"


# -- one more node ----------------------------------------------------------------------------------
def prepare_join(settings: Settings, address: str, token: Token) -> Settings | None:
    """Return the settings to join with, with an address to listen on; None if the node has joined already.

    Raise ExistsError if the directory belongs to a node of another cluster, InvalidError if it has objects of
    a node without a cluster or if the addresses are invalid.
    """
    own = identity.load(settings.data)
    if own is not None:
        if own.cluster != token.cluster:
            raise ExistsError(
                f"{settings.data} belongs to node {own.name} of another cluster. Leave out --join to start "
                "it, or choose another --data for the new node."
            )
        return None
    _refuse_used(settings.data)
    if settings.listen:
        return settings
    listen = _listen_towards(address)
    return load(settings.data, flags={**_flags_of(settings), "listen": listen})


def _flags_of(settings: Settings) -> dict[str, object]:
    return {key: _written(value) for key in REMEMBERED if (value := getattr(settings, key))}


def _listen_towards(address: str) -> str:
    """Return an address of this machine that ``address`` can reach, with the same port if it is free."""
    host, port = split_address(address)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, _, _, place = addresses[0]
        with socket.socket(family, kind) as probe:
            # Nothing is sent: the system only chooses the route.
            probe.connect(place)
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UnreachableError(
            f"this machine has no route to {address}: {error.strerror or error}. Check the address."
        ) from None
    return free_address(own, port)


def free_address(host: str, first: int) -> str:
    """Return the first free port from ``first`` on at ``host``, as an address."""
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
                    f"this machine cannot listen on {join_address(host, port)} ({error.strerror}). "
                    f"{listen_advice(error)} Give it with --listen HOST:PORT."
                ) from None
        return join_address(host, port)
    raise InvalidError(
        f"no port from {first} on is free at {host}. Choose an address with --listen HOST:PORT."
    )


def joined(settings: Settings, address: str) -> None:
    """Save the address of the cluster and the settings of a new member for its next starts."""
    seeds.write(settings.data, [address, *seeds.read(settings.data)])
    remember(settings)


# -- a member that starts -----------------------------------------------------------------------------
def check(settings: Settings, own: Identity) -> None:
    """Raise SettingsError with the reason if a node cannot start with these settings and this identity."""
    if settings.name not in {own.name, machine.host_name()}:
        raise SettingsError(
            f"this node's name in its cluster is {own.name}; it cannot be {settings.name}. Leave it out."
        )
    if not settings.listen:
        raise SettingsError(
            f"{own.name} is a node of a cluster and must listen. Set listen in "
            f"{settings.data / SETTINGS_FILE_NAME}."
        )


def read_token(*, text: str, file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the token from the command, a file or DIOS_TOKEN. Raise InvalidError for none or for two."""
    given = [
        option
        for option, there in (("--invitation", bool(text)), ("--invitation-file", file is not None))
        if there
    ]
    if len(given) > 1:
        raise InvalidError("give the invitation only once: with --invitation or with --invitation-file")
    if file is not None:
        if file.is_file():
            require_trusted(file, "the invitation")
        with contextlib.suppress(UnicodeDecodeError):
            text = file.read_text(encoding="ascii").strip()
    text = text or environ.get("DIOS_TOKEN", "").strip()
    if not text:
        raise InvalidError(
            "joining needs an invitation. Run `dios-node invite` at a node of the cluster, and pass the "
            "invitation with --invitation-file FILE, in DIOS_TOKEN, or with --invitation."
        )
    return text


def advice(settings: Settings) -> str:
    """Return a warning about the address that a node gives to others; empty if it is fine."""
    if settings.address and is_loopback(split_address(settings.address)[0]):
        return (
            f"{settings.address} can be reached only from this machine. For other machines choose another of "
            "its addresses with --listen or --advertise."
        )
    return ""
