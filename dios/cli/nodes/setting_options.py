"""Settings of a node as options of a command: ``--key value`` for each that ``dios.node.settings`` knows.

Not for: checking their values, which happens where all settings are read.
"""

from __future__ import annotations

from typing import Final

from dios.errors import InvalidError
from dios.node.settings import KEYS, SettingsError

SHOWN: Final = {
    "socket": "PATH     where programs connect",
    "pool-size": "N        sandboxed processes kept ready",
    "tasks-max": "N        tasks at the same time",
    "volatile-bytes-max": "SIZE     memory for objects and buffers together",
    "task-memory-bytes": "SIZE     memory limit of a task, like '512 MiB'",
    "task-limits": "LIMITS   of a task with its own: 'tasks=10 cpu=10h'",
    "group-limits": "LIMITS   of a group: 'objects=1000 bytes=1GiB'",
    "principal-limits": "LIMITS   of a user: 'memory=8GiB requests=1000'",
    "preload": "MODULES  import these before tasks start: a,b,c",
    "accept-weaker-sandbox": "         run pure tasks even not fully confined",
    "mode": "MODE     liberal or restricted",
    "allowed-uids": "UIDS     other users who may connect: 1000,1001",
    "map-bytes": "SIZE     the most the store's index may grow to",
    "log-level": "LEVEL    debug, info, warning or error",
    "log-format": "FORMAT   text or json",
    "log-file": "PATH     where the log goes",
    "record": "PATH     write every event there, for replay",
    "name": "NAME     this node's; default: the machine's",
    "rack": "NAME     the fault domain it stands in",
    "listen": "ADDRESS  HOST:PORT where other nodes reach it",
    "advertise": "ADDRESS  HOST:PORT that it tells them instead",
    "announce": "         find other nodes by UDP on this network",
    "link-rate": "RATE     bytes/s the network carries, like '110 MiB'",
    "store-rate": "RATE     bytes/s the store's disk carries",
    "shape": "NAME     hold this interface to link-rate (root)",
    "coordinator": "WHEN     auto, on or off: run a scheduler's process",
    "scheduling": "HOW      centralised, hierarchical or distributed",
    "cost-model": "NAME     the scheduler's policy to begin with",
    "fairness": "HOW      whose tasks go first: sdrf, drf or fifo",
    "fairness-memory": "TIME     how long the past counts in sdrf: '12d'",
    "labels": "LABELS   for constraints of tasks: gpu=yes,zone=a",
}
"""The settings as the help shows them; what reads them is ``dios.node.settings``."""

_ALONE: Final = frozenset({"accept_weaker_sandbox", "announce"})
"""Those that mean true when nothing follows."""

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def settings_given(arguments: list[str], command: str) -> dict[str, str]:
    """``--key value`` and ``--key=value`` as settings; keys are checked where all settings are.

    Raises SettingsError for what is no option of ``command``.
    """
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise SettingsError(f"{word!r} is no option; `{command} --help` lists them")
        key, equals, value = word[2:].partition("=")
        name = key.replace("-", "_")
        if not equals:
            if rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            elif name in _ALONE:
                value = "true"
            elif name in KEYS:
                raise SettingsError(f"--{key} needs a value")
        found[name] = value
    return found


def seconds_of(text: str, option: str) -> int:
    """A span as people write it, ``90s``, ``5min``, ``1h``, ``2d``; raises InvalidError naming the option."""
    number = text.strip().rstrip("smindh")
    unit = text.strip()[len(number) :]
    if not number.strip().isascii() or not number.strip().isdigit() or unit not in _UNITS:
        raise InvalidError(f"{option} must be a span like 90s, 5min, 1h or 2d, not {text!r}")
    return int(number) * _UNITS[unit]
