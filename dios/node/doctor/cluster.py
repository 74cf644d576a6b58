"""Whether a node can be one of a cluster here: its identity, its addresses, its port, the clock, the others.

Not for: a cluster that runs (``dios node ls``), or judging certificates, which every connection does. What it
dials it hangs up at once, without a word.
"""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios.errors import DiosError
from dios.node import daemon, seeds
from dios.node.addresses import is_loopback, is_unspecified, join_address, split_address
from dios.node.settings import Settings, load

_DIAL_SECONDS: Final = 1.0
_SEEDS_TRIED_MAX: Final = 8
_CLOCK_UNSYNCHRONISED: Final = 5
_TIMEX_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Looked:
    """One thing that was tried: it cannot work when ``refused``, it could be better with ``advice``."""

    name: str
    purpose: str
    detail: str
    refused: bool = False
    advice: str = ""


def look(data: Path) -> list[Looked]:
    """Try what a node of a cluster on ``data`` needs; nothing for a directory that is no such node's."""
    try:
        settings = load(data)
    except DiosError as error:
        return [Looked("settings", "how the node is to be", error.message, refused=True, advice="see there")]
    if not settings.listen and not settings.identity.exists():
        return []
    found = [_identity(settings), _clock()]
    if settings.listen:
        found += [_port(settings), _address(settings)]
    else:
        found.append(
            Looked(
                "port",
                "other nodes reach it there",
                "it does not listen",
                refused=True,
                advice=f'set listen in {settings.data / "node.toml"}, like "10.0.0.1:7400"',
            )
        )
    return found + list(_others(settings))


def _identity(settings: Settings) -> Looked:
    purpose = "makes it a node of one cluster, and nobody else"
    # Late: certificates take a tenth of a second that a lone node's doctor need not spend.
    from dios.transport.identity import identity  # noqa: PLC0415 - see above

    try:
        own = identity.load(settings.data)
    except DiosError as error:
        return Looked("identity", purpose, error.message, refused=True, advice="see there")
    except OSError as error:
        detail = f"{error.filename}: {error.strerror}"
        advice = "ask as the user who runs the node"
        return Looked("identity", purpose, detail, refused=True, advice=advice)
    if own is None:
        advice = "`dios-node init` makes a cluster with it, `dios-node start --join` joins one"
        return Looked("identity", purpose, "none yet: the node listens to nobody", advice=advice)
    return Looked("identity", purpose, f"{own.name} of cluster {own.cluster.hex()[:16]}")


def _clock() -> Looked:
    purpose = "expiry of join tokens, and the times that people read; no promise depends on it"
    state = _clock_state()
    if state is None:
        return Looked("clock", purpose, "the system does not say whether it is set by the network")
    if state == _CLOCK_UNSYNCHRONISED:
        advice = "let chrony, systemd-timesyncd or the hypervisor set the clock"
        return Looked("clock", purpose, "nothing keeps it right, as far as the kernel knows", advice=advice)
    return Looked("clock", purpose, "kept right by the network or the hypervisor")


def _clock_state() -> int | None:
    """The kernel's opinion of its clock; None where it may not be asked."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except AttributeError:
        return None
    # All zero: it asks for everything and changes nothing.
    state = int(ask(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state


def _port(settings: Settings) -> Looked:
    purpose = "other nodes reach it there"
    if daemon.find(settings.socket) is not None:
        answers = not _dial(_from_here(settings.listen))
        detail = f"{settings.listen}, in use by the node that runs"
        if answers:
            return Looked("port", purpose, detail)
        advice = "look into the node's log: it runs, and does not listen"
        return Looked("port", purpose, f"nobody answers at {settings.listen}", refused=True, advice=advice)
    host, port = split_address(settings.listen)
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return Looked(
            "port", purpose, f"{settings.listen}: {error.strerror}", refused=True, advice=_port_advice(error)
        )
    return Looked("port", purpose, f"{settings.listen} is free")


def _from_here(listen: str) -> str:
    """Where this machine itself reaches what listens there."""
    host, port = split_address(listen)
    return join_address("localhost" if is_unspecified(host) else host, port)


def _port_advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there: end it (ss -ltnp shows which), or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address (ip address shows which); listen on one that it has"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "ports below 1024 are root's; choose a higher one"
    return "listen on an address and a port of this machine"


def _address(settings: Settings) -> Looked:
    purpose = "what it tells the other nodes"
    host, port = split_address(settings.address)
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        advice = "use an address, or a name that every machine of the cluster can look up"
        return Looked("address", purpose, f"{host}: {error.strerror}", refused=True, advice=advice)
    told = ", ".join(sorted(found))
    detail = settings.address if host in found else f"{settings.address}, which is {told}"
    if all(is_loopback(each) for each in found):
        advice = "nodes on other machines cannot reach it: advertise an address of this machine"
        return Looked("address", purpose, f"{detail}, this machine only", advice=advice)
    return Looked("address", purpose, detail)


def _others(settings: Settings) -> Iterator[Looked]:
    known = seeds.read(settings.data)[:_SEEDS_TRIED_MAX]
    if not known:
        return
    purpose = "one of them is enough to find its cluster again"
    refusals = {address: why for address in known if (why := _dial(address))}
    detail = f"{len(known) - len(refusals)} of {len(known)} known addresses answer"
    if not refusals:
        yield Looked("other nodes", purpose, detail)
        return
    told = "; ".join(f"{address}: {why}" for address, why in refusals.items())
    advice = "start those nodes, or let this machine's and their firewall pass the port"
    # A node whose cluster is down starts nevertheless, and waits for it.
    yield Looked("other nodes", purpose, f"{detail} ({told})", advice=advice)


def _dial(address: str) -> str:
    """Why nobody can be reached at an address; empty when somebody can."""
    try:
        with socket.create_connection(split_address(address), timeout=_DIAL_SECONDS):
            return ""
    except TimeoutError:
        return f"no answer within {_DIAL_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
