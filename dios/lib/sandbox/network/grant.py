"""Grants origins to a session: the caller starts its gateway, and connects both tasks by lanes.

A gateway has a NETWORK object that is limited to the origins. Only who has the right to the network can make
one: the node's own user, root, and tasks that were given the right.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from dios.client.ops.attributes import Handed
from dios.client.sync.node import Node, Reference, Task
from dios.errors import InvalidError
from dios.lib.sandbox.network import gateway, records
from dios.lib.sandbox.network.authorities import authorities
from dios.lib.sandbox.network.checked import ADDED_CHARS_MAX, checked_additions
from dios.lib.sandbox.network.records import Header
from dios.lib.sandbox.steps import Steps, call
from dios.limits import MIB
from dios.wire.messages import Limits
from dios.wire.origins import Origin, parse_origin, parse_origins
from dios.wire.types import NameKind, ObjectType

LABEL: Final = "sandbox network"
"""The label of the task of a gateway."""

NetworkHeaders: TypeAlias = Mapping[str, Mapping[str, str]]
"""The headers that are added to requests: values by name, by origin."""

_MEMORY_BYTES: Final = 128 * MIB


class NetworkGrant:
    """The origins that the sessions of a sandbox may reach, and the authorities that prove them."""

    def __init__(
        self,
        origins: Iterable[str],
        network_ca: str | Path | bytes | None,
        headers: NetworkHeaders | None = None,
    ) -> None:
        if isinstance(origins, str):
            raise InvalidError(f'network= is a list of origins, such as ["{origins}"]')
        self.origins: Final = parse_origins(origins)
        if network_ca is not None and not self.origins:
            raise InvalidError("network_ca= needs origins: name them with network=")
        needed = network_ca is not None or any(origin.scheme == "https" for origin in self.origins)
        self._authorities: Final = authorities(network_ca) if needed else b""
        self._added: Final = _by_place(self.origins, headers or {})

    def start(self, node: Node, opened: list[Reference]) -> Steps[tuple[Task, dict[str, Handed]]]:
        """Start a gateway; return its task, and the inputs of the session.

        Everything that is created is added to ``opened``. Raises NotPermittedError without the right to the
        network.
        """
        given = [origin.given for origin in self.origins]
        network = yield from call(node.network_op(given))
        opened.append(network)
        certificates = yield from call(
            node.create_op(ObjectType.SHMEM_BLOB, data=self._authorities, naming=NameKind.ANONYMOUS)
        )
        opened.append(certificates)
        # The name of an anonymous object is nobody's, so that no other task finds the headers.
        added = yield from call(
            node.create_op(ObjectType.SHMEM_BLOB, data=self._added, naming=NameKind.ANONYMOUS)
        )
        opened.append(added)
        theirs = {
            gateway.ADDED: added.restrict("read"),
            gateway.NETWORK: network.restrict("write"),
            gateway.AUTHORITIES: certificates.restrict("read"),
        }
        ours: dict[str, Handed] = {}
        for lane in range(records.LANES):
            requests = yield from call(node.create_stream_op(ring_bytes=records.LANE_BYTES))
            responses = yield from call(node.create_stream_op(ring_bytes=records.LANE_BYTES))
            opened += (requests, responses)
            theirs[records.request_label(lane)] = requests.restrict("read")
            theirs[records.response_label(lane)] = responses.restrict("write")
            ours[records.request_label(lane)] = requests.restrict("write")
            ours[records.response_label(lane)] = responses.restrict("read")
        task = yield from call(
            node.run_op(
                gateway.PROGRAM.encode(),
                inputs=theirs,
                args=given,
                label=LABEL,
                limits=Limits(memory_bytes=_MEMORY_BYTES),
                local=True,
            )
        )
        opened.append(task)
        return task, ours


def headers_from_variables(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the headers that texts like ``ORIGIN=NAME:[WORDS ]VARIABLE`` name, with values of variables.

    In place of a variable, ``@/PATH`` names a file with the value, which only its owner may read. So a value
    is in no list of processes, and in no file of settings. Raises InvalidError.
    """
    headers_by_origin: dict[str, dict[str, str]] = {}
    for text in texts:
        origin, name, words, source = _parts_of_header(text)
        secret = _secret_in_file(name, source[1:]) if source.startswith("@") else _secret_of(name, source)
        headers = headers_by_origin.setdefault(str(parse_origin(origin)), {})
        if name in headers:
            raise InvalidError(f"the header {name} for {origin} is given twice")
        headers[name] = " ".join((*words, secret))
    return headers_by_origin


def _parts_of_header(text: str) -> tuple[str, str, list[str], str]:
    """Return origin, name, words before the value, and the variable or ``@/PATH`` of the value."""
    before, at, path = text.partition("@")
    origin, _, header = before.rpartition("=")
    name, _, value = header.partition(":")
    words = value.split()
    source = at + path if at else words.pop() if words else ""
    if not origin or not name or not (at or source.isidentifier()):
        raise InvalidError(
            f"{text!r} names no header. Write ORIGIN=NAME:VARIABLE, such as"
            " https://api.example.org=X-Api-Key:API_KEY, or a word before the variable:"
            " https://api.example.org=Authorization:Bearer API_KEY, or @/PATH of a file in its place"
        )
    return origin, name, words, source


def _secret_of(name: str, variable: str) -> str:
    secret = os.environ.get(variable, "").strip()
    if not secret:
        raise InvalidError(f"the header {name} needs the variable {variable}, which is not set: export it")
    return secret


def _secret_in_file(name: str, path: str) -> str:
    if not Path(path).is_absolute():
        raise InvalidError(
            f"the header {name} needs the whole path of its file, such as @/secrets/key, not @{path}"
        )
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise InvalidError(
                    f"the file {path} of the header {name} may be read by others: chmod 600 {path}"
                )
            data = file.read(2 * ADDED_CHARS_MAX)
    except OSError as error:
        raise InvalidError(f"cannot read the file {path} of the header {name}: {error.strerror}") from None
    # Headers are bytes; what a header may not have is refused with all others.
    secret = data.decode("latin-1").strip()
    if not secret:
        raise InvalidError(f"the file {path} of the header {name} is empty: write the value into it")
    return secret


def _by_place(origins: tuple[Origin, ...], given: NetworkHeaders) -> bytes:
    """Return the headers that the gateway adds, encoded. Raise InvalidError, without their values."""
    places = {str(origin): place for place, origin in enumerate(origins)}
    added: dict[int, list[Header]] = {}
    for text, headers in given.items():
        origin = parse_origin(text)
        place = places.get(str(origin))
        if place is None:
            raise InvalidError(f"headers for {origin}, which is not granted: name it with network=, too")
        if place in added:
            raise InvalidError(f"the headers for {origin} are given twice")
        if origins[place].scheme != "https" and not _is_named_address(origins[place]):
            raise InvalidError(
                f"headers for {origin} would be sent without encryption: use https, or name the address of"
                f" the server, as in {origin}=10.0.0.5"
            )
        added[place] = checked_additions(headers)
    return msgspec.msgpack.encode(added)


def _is_named_address(origin: Origin) -> bool:
    """Return True if the caller named an address, or this machine, so that he knows the way to it."""
    if origin.address or origin.host == "localhost" or origin.host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(origin.host)
    except ValueError:
        return False
    return True
