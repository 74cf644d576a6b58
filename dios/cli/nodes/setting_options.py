"""Settings of a node as options of a command: ``--key value`` for each key of ``dios.node.settings``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import typer

from dios.errors import InvalidError
from dios.node.limit_text import parse_size
from dios.node.settings import KEYS, SettingsError
from dios.wire.suggestions import near_word

SHOWN: Final = {
    "socket": "PATH     socket for programs",
    "pool-size": "N        sandboxed processes kept ready",
    "tasks-max": "N        most tasks at the same time",
    "volatile-bytes-max": "SIZE     memory for all objects and buffers",
    "remote-cache-bytes": "SIZE     kept bytes of objects of other nodes",
    "leases": "yes | no  read other nodes' objects under leases",
    "replica-grace": "TIME     until replicas on a silent node are made again: '5m'",
    "replica-rate": "SIZE     bytes/s of copies that keep replicas",
    "scrub-rate": "SIZE     bytes/s of comparing stored objects, off",
    "scrub-every": "TIME     from one comparison to the next: '7d'",
    "task-memory-bytes": "SIZE     memory limit of a task, like '512 MiB'",
    "task-limits": "LIMITS   of a task with all it starts: 'tasks=10'",
    "group-limits": "LIMITS   of a group: 'objects=1000 bytes=1GiB'",
    "principal-limits": "LIMITS   of a user: 'memory=8GiB requests=1000'",
    "sandbox-limits": "LIMITS   of a sandbox's session: 'objects=1000'",
    "preload": "MODULES  imported before tasks start: a,b,c",
    "templates": "TABLES   modules shared by name: 'data=numpy,polars'",
    "programs": "TABLES   native programs of tasks: 'awk=/usr/bin/awk'",
    "environments-bytes": "SIZE     packages and images on the disk, 0 for none",
    "container-runtime": "NAME     none, any, crun or runc: for images of sandboxes",
    "gvisor-runtime": "NAME     runsc or none: for sandboxes in gVisor",
    "accept-weaker-sandbox": "         run pure tasks even if not fully confined",
    "mode": "MODE     liberal or restricted",
    "limbo-from-nodes": "yes | no  limbo tasks for tasks of other nodes",
    "principals": "HOW      named, or signed: all users need keys",
    "administrator": "KEY      that signs the list of enrolled users",
    "allowed-uids": "UIDS     other users who may connect: 1000,1001",
    "map-bytes": "SIZE     largest size of the store's index",
    "log-level": "LEVEL    debug, info, warning or error",
    "log-format": "FORMAT   text or json",
    "log-file": "PATH     file of the log",
    "audit-bytes": "SIZE     most that the audit log keeps: '16GiB', none",
    "audit-age": "TIME     age at which audit records go: '90d', none",
    "audit-rate": "SIZE     bytes/s of audit records of each user",
    "audit-heads": "PATH     file for signed heads of the audit log",
    "record": "PATH     record every event there, for replay",
    "traces": "yes | no  answer traced calls with times of their parts",
    "name": "NAME     of this node; default: the machine's",
    "rack": "NAME     fault domain of this node",
    "listen": "ADDRESS  HOST:PORT for other nodes",
    "advertise": "ADDRESS  HOST:PORT that other nodes get instead",
    "announce": "         find other nodes by UDP on this network",
    "certificate-days": "N   the life of certificates that this node signs; none: no end",
    "border": "ADDRESS  HOST:PORT for trusted clusters",
    "link-rate": "RATE     bytes/s of the network, like '110 MiB'",
    "store-rate": "RATE     bytes/s of the store's disk",
    "measure": "yes | no  measure disk and loopback at the start",
    "shape": "NAME     limit this interface to link-rate (root)",
    "coordinator": "WHEN     auto, on or off: run a coordinator",
    "scheduling": "HOW      centralised, hierarchical or distributed",
    "cost-model": "NAME     first policy of the scheduler",
    "fairness": "HOW      order of tasks: sdrf, drf or fifo",
    "fairness-memory": "TIME     how long past use counts in sdrf: '12d'",
    "labels": "LABELS   for constraints of tasks: gpu=yes,zone=a",
    "devices": "DEVICES  devices for tasks: 'gpu=auto licence=3'",
    "metrics": "ADDRESS  serve metrics for Prometheus: 127.0.0.1:9464",
    "metrics-uids": "UIDS     users who may read metrics on loopback: 112",
    "metrics-tls": "PATHS    certificate,key,authority: with other machines",
}
"""The settings with their help texts; ``dios.node.settings`` reads them."""

_ALONE: Final = frozenset({"accept_weaker_sandbox", "announce"})
"""Options that mean true without a value."""

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def settings_given(arguments: list[str], command: str, own: Iterable[str] = ()) -> dict[str, str]:
    """Return the options ``--key value`` and ``--key=value`` as settings; the values are checked elsewhere.

    Raise SettingsError for an argument that is not an option of ``command``, which also has the options
    ``own``.
    """
    settings: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise SettingsError(f"{word!r} is not an option; see `{command} --help`")
        key, equals, value = word[2:].partition("=")
        name = key.replace("-", "_")
        if name not in KEYS:
            near = near_word(key, [*own, *SHOWN])
            hint = f"did you mean --{near}?" if near else f"see `{command} --help`"
            raise SettingsError(f"there is no option --{key}; {hint}")
        if not equals:
            if rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            elif name in _ALONE:
                value = "true"
            else:
                raise SettingsError(f"--{key} needs a value")
        settings[name] = value
    return settings


def own_options(context: typer.Context) -> list[str]:
    """Return the long options of a command without their dashes."""
    names = [name for option in context.command.params for name in option.opts]
    return [name.removeprefix("--") for name in names if name.startswith("--")]


def size_of(text: str, option: str) -> int:
    """Parse a size like ``512 MiB``; 0 for an empty text. Raise InvalidError with the option's name."""
    try:
        return parse_size(text) if text else 0
    except ValueError as error:
        raise InvalidError(f"{option} must be {error}, not {text!r}") from None


def seconds_of(text: str, option: str) -> int:
    """Parse a time span: ``90s``, ``5min``, ``1h``, ``2d``. Raise InvalidError with the option's name."""
    number = text.strip().rstrip("smindh")
    unit = text.strip()[len(number) :]
    if not number.strip().isascii() or not number.strip().isdigit() or unit not in _UNITS:
        raise InvalidError(f"{option} must be a span like 90s, 5min, 1h or 2d, not {text!r}")
    return int(number) * _UNITS[unit]
