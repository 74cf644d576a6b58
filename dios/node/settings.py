"""The settings of a node: flags override the environment, which overrides the file and the defaults.

A setting can only lower a bound of ``dios.limits``. An unknown key is refused with the nearest known key,
because a misspelled setting must never be ignored silently. ``docs/settings.md`` describes all settings.
``dios.client.locate`` has the settings of clients.
"""

from __future__ import annotations

import enum
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from dios import limits
from dios.client.locate import BORDER_SOCKET_NAME, PID_FILE_NAME, SETTINGS_FILE_NAME
from dios.errors import InvalidError
from dios.host.confinement.native_programs import (
    PROGRAM_FILES_MAX,
    PROGRAM_NAME,
    PROGRAMS_MAX,
    ProgramSetting,
)
from dios.host.containers.runtimes import ANY, GVISOR, KNOWN, NO_RUNTIME, is_gvisor, is_known
from dios.host.process.template_setting import (
    TEMPLATE_MEMORY_BYTES_DEFAULT,
    TEMPLATE_NAME_CHARS_MAX,
    TEMPLATES_MAX,
    TemplateSetting,
)
from dios.node import machine
from dios.node.addresses import checked_address, checked_label, is_unspecified, split_address
from dios.node.devices import DeviceSetting, read_devices
from dios.node.exporter_places import ExporterPlace, TlsFiles, place_of, require_protected
from dios.node.limit_text import WORD_OF, parse_size, parse_time_ms, read_bounds
from dios.trusted_files import require_trusted
from dios.wire import node_labels
from dios.wire.messages import Bound
from dios.wire.suggestions import suggestion
from dios.wire.types import Resource

ENVIRONMENT_PREFIX: Final = "DIOS_"
COST_MODEL_DEFAULT: Final = "spread"
AUTO: Final = "auto"
NONE: Final = "none"
OFF: Final = "off"
SANDBOX_LIMITS_DEFAULT: Final = (
    Bound(Resource.OBJECTS, 1_000),
    Bound(Resource.REFERENCES, 2_000),
    Bound(Resource.TASKS, 1),
    Bound(Resource.VOLATILE_BYTES, 64 * limits.MIB),
    Bound(Resource.DESCRIPTORS, 256),
)
"""The most that the code of one session has on the node.

A session needs little more than the ends of its streams and what it reads of its inputs. Without these limits
it could use all that the node gives its user, and other sessions of the user would not start.
"""


class SettingsError(InvalidError):
    """A setting is unknown, of the wrong kind, or out of bounds; the message names its source."""


class NodeMode(enum.StrEnum):
    """The choice if a process may use DIOS objects and the system's facilities (§4.10.3, Table 4.7)."""

    LIBERAL = "liberal"
    RESTRICTED = "restricted"


class CoordinatorMode(enum.StrEnum):
    """The choice if the node runs a coordinator (§6.5.1); AUTO: if the extra ``cluster`` is installed."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SchedulingMode(enum.StrEnum):
    """The division of scheduling (Figure 6.6): one coordinator for all, one per rack, or one per node."""

    CENTRALISED = "centralised"
    HIERARCHICAL = "hierarchical"
    DISTRIBUTED = "distributed"


class FairnessPolicy(enum.StrEnum):
    """The order of tasks while there is no room for all (``dios.firmament.policies.principal_accounts``)."""

    SDRF = "sdrf"
    DRF = "drf"
    FIFO = "fifo"


class PrincipalsMode(enum.StrEnum):
    """The principals for which other nodes may act without a mandate: those without a key, or none."""

    NAMED = "named"
    SIGNED = "signed"


class LogFormat(enum.StrEnum):
    """The format of log records."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The lowest severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a node; sizes in bytes.

    ``socket`` is the socket for users' programs. ``log_file`` None means standard error. ``record`` is the
    file in which every event of the core is recorded for replay. ``allowed_uids`` are users who may connect
    in addition to the node's own user and root. With ``limbo_from_nodes``, tasks of other nodes may start
    limbo tasks here for the node's own user or root. ``principals`` says for whom other nodes need mandates,
    and ``administrator`` is the public key that signs the register of principals (empty: that of the first).
    The first three ``_limits`` are the defaults for every task with all it starts, for every group and for
    every principal, and ``sandbox_limits`` are those of every session of a sandbox.
    ``audit_bytes`` and ``audit_age`` (ms) are the bounds of the audit log, 0 for none; ``audit_rate`` is the
    rate in bytes per second at which each principal may add to it, and ``audit_heads`` a file to which signed
    heads of the log are appended.
    With ``traces``, traced calls are answered with the times of their parts.
    ``remote_cache_bytes`` is the maximum for kept bytes of other nodes' objects. With ``leases``, this node
    and others answer repeated reads of each other's objects themselves.
    ``replica_grace`` (ms) is the time after which promised replicas on a silent node count as lost,
    ``replica_rate`` the bytes per second with which a keeper copies.
    ``scrub_rate`` is the bytes per second with which the node compares its stored objects with their digests,
    0 for never, and ``scrub_every`` (ms) the time from the start of one pass to that of the next.
    ``name`` and ``rack`` are the names of this node and of its fault domain. ``listen`` is the address for
    other nodes ("HOST:PORT"; empty for no network), ``advertise`` the address given to them if it differs,
    and ``announce`` turns on the search for other nodes by UDP on the local network. ``certificate_days`` is
    the life of certificates that this node signs, 0 for no end. ``border`` is the address for trusted
    clusters ("HOST:PORT"; empty for none).
    ``link_rate`` and ``store_rate`` are the bytes per second of its network and its disk, 0 to find them out;
    with ``measure``, the node measures its disk for that.
    ``shape`` is the interface that is limited to ``link_rate`` (empty for none).
    ``coordinator``, ``scheduling`` and ``cost_model`` select the scheduler and its policy, ``fairness`` the
    order of tasks, and ``fairness_memory`` the time in ms that past use counts there. ``labels`` are used by
    constraints of tasks. ``preload`` are modules that all tasks share, ``templates`` named sets of modules
    that the tasks of each share. ``programs`` are native programs that pure tasks may become.
    ``environments_bytes`` is the bound of the installed packages and images of all environments on the disk,
    0 for no environments. ``container_runtime`` is the OCI runtime of tasks in images, or a word for the
    first that works, or for no images; ``gvisor_runtime`` is the program of gVisor, or a word for none.
    ``devices`` are those of this machine that tasks may ask for.
    ``metrics`` is the place at which a process of the node serves its metrics, ``metrics_tls`` the files for
    mutual TLS there, and ``metrics_uids`` are further users who may read them on loopback.
    """

    data: Path
    socket: Path
    pool_size: int = limits.TASK_POOL_SIZE_DEFAULT
    tasks_max: int = field(default_factory=machine.tasks_max)
    volatile_bytes_max: int = field(default_factory=machine.volatile_bytes)
    remote_cache_bytes: int = field(default_factory=machine.remote_cache_bytes)
    leases: bool = True
    replica_grace: int = limits.KEPT_GRACE_MS_DEFAULT
    replica_rate: int = limits.KEPT_RATE_BYTES_S_DEFAULT
    scrub_rate: int = limits.SCRUB_RATE_BYTES_S_DEFAULT
    scrub_every: int = limits.SCRUB_EVERY_MS_DEFAULT
    task_memory_bytes: int = limits.TASK_MEMORY_BYTES_DEFAULT
    task_limits: tuple[Bound, ...] = ()
    group_limits: tuple[Bound, ...] = ()
    principal_limits: tuple[Bound, ...] = ()
    sandbox_limits: tuple[Bound, ...] = SANDBOX_LIMITS_DEFAULT
    preload: tuple[str, ...] = ()
    templates: tuple[TemplateSetting, ...] = ()
    programs: tuple[ProgramSetting, ...] = ()
    environments_bytes: int = limits.ENVIRONMENTS_BYTES_DEFAULT
    container_runtime: str = NO_RUNTIME
    gvisor_runtime: str = GVISOR
    accept_weaker_sandbox: bool = False
    mode: NodeMode = NodeMode.LIBERAL
    limbo_from_nodes: bool = False
    principals: PrincipalsMode = PrincipalsMode.NAMED
    administrator: bytes = b""
    allowed_uids: tuple[int, ...] = ()
    map_bytes: int = limits.STORE_MAP_BYTES_DEFAULT
    audit_bytes: int = limits.AUDIT_BYTES_DEFAULT
    audit_age: int = 0
    audit_rate: int = limits.AUDIT_RATE_BYTES_S_DEFAULT
    audit_heads: Path | None = None
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    log_file: Path | None = None
    record: Path | None = None
    traces: bool = True
    name: str = field(default_factory=machine.host_name)
    rack: str = ""
    listen: str = ""
    advertise: str = ""
    announce: bool = False
    certificate_days: int = limits.CERTIFICATE_DAYS
    border: str = ""
    link_rate: int = 0
    store_rate: int = 0
    measure: bool = True
    shape: str = ""
    coordinator: CoordinatorMode = CoordinatorMode.AUTO
    scheduling: SchedulingMode = SchedulingMode.CENTRALISED
    cost_model: str = COST_MODEL_DEFAULT
    fairness: FairnessPolicy = FairnessPolicy.SDRF
    fairness_memory: int = limits.FAIRNESS_MEMORY_MS_DEFAULT
    labels: tuple[tuple[str, str], ...] = ()
    devices: tuple[DeviceSetting, ...] = ()
    metrics: ExporterPlace | None = None
    metrics_tls: TlsFiles | None = None
    metrics_uids: tuple[int, ...] = ()

    @property
    def address(self) -> str:
        """The address for other nodes, "HOST:PORT"; empty without a network."""
        return self.advertise or self.listen

    @property
    def border_socket(self) -> Path:
        """The socket at which programs use sealed tokens, if there is a border."""
        return self.socket.with_name(BORDER_SOCKET_NAME)

    @property
    def identity(self) -> Path:
        """The folder with the node's identity in its cluster."""
        return self.data / "identity"

    @property
    def environments(self) -> Path:
        """The folder of the environments of tasks."""
        return self.data / "environments"

    @property
    def audit(self) -> Path:
        """The folder of the audit log's segments."""
        return self.data / "audit"

    @property
    def pid_file(self) -> Path:
        """The file with the process id of a running node."""
        return self.data / PID_FILE_NAME


class Origin(NamedTuple):
    """The source of a value, for messages."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        """Return file and line in the form that editors understand."""
        return f"{self.source}:{self.line}" if self.line else self.source


def _integer(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9_]+\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("a whole number")
        if not low <= value <= high:
            raise ValueError(f"between {low} and {high}")
        return value

    return read


def _size(low: int, high: int) -> Callable[[object], int]:
    whole = _integer(low, high)

    def read(value: object) -> int:
        return whole(parse_size(value) if isinstance(value, str) else value)

    return read


def _span(low: int, high: int) -> Callable[[object], int]:
    whole = _integer(low, high)

    def read(value: object) -> int:
        return whole(parse_time_ms(value) if isinstance(value, str) else value)

    return read


def _or_none(read: Callable[[object], int]) -> Callable[[object], int]:
    return lambda value: 0 if str(value).lower() == NONE else read(value)


def _or_off(read: Callable[[object], int]) -> Callable[[object], int]:
    # A file of settings can say ``false``, which is what "off" means there.
    return lambda value: 0 if value is False or str(value).lower() == OFF else read(value)


def _rate(value: object) -> int:
    read = _size(limits.RATE_BYTES_S_MIN, limits.RATE_BYTES_S_MAX)
    return 0 if str(value).lower() == AUTO else read(value)


def _boolean(value: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(value, str):
        value = words.get(value.strip().lower())
    if not isinstance(value, bool):
        raise TypeError("true or false")
    return value


def _one_of(choices: type[enum.StrEnum]) -> Callable[[object], enum.StrEnum]:
    def read(value: object) -> enum.StrEnum:
        try:
            return choices(str(value).lower())
        except ValueError:
            raise ValueError("one of " + ", ".join(choices)) from None

    return read


def _public_key(value: object) -> bytes:
    if re.fullmatch(r"[0-9a-f]{64}", str(value)) is None:
        raise ValueError("the 64 hexadecimal digits that `dios user key --administrator` prints")
    return bytes.fromhex(str(value))


def _container_runtime(value: object) -> str:
    if not is_known(str(value)):
        raise ValueError(f"{NO_RUNTIME}, {ANY}, {', '.join(KNOWN)}, or the path of a runtime")
    return str(value)


def _gvisor_runtime(value: object) -> str:
    if not is_gvisor(str(value)):
        raise ValueError(f"{NO_RUNTIME}, {GVISOR}, or the path of a program {GVISOR}")
    return str(value)


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError("a path")
    return Path(value).expanduser()


def _parts(value: object) -> list[object]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        return list(value)
    raise TypeError("a list")


def _modules(value: object) -> tuple[str, ...]:
    parts = [str(part) for part in _parts(value)]
    if len(parts) > limits.PRELOAD_MODULES_MAX:
        raise ValueError(f"at most {limits.PRELOAD_MODULES_MAX} modules")
    if not all(all(piece.isidentifier() for piece in part.split(".")) for part in parts):
        raise ValueError("names of importable modules")
    return tuple(parts)


def _sandbox_limits(value: object) -> tuple[Bound, ...]:
    bounds = {bound.resource: bound for bound in SANDBOX_LIMITS_DEFAULT}
    for bound in read_bounds(value):
        if bound.value == 0:
            raise InvalidError(f"no session starts with {WORD_OF[bound.resource]}=0; give 1 or more, or none")
        bounds[bound.resource] = bound
    return tuple(bounds.values())


_TEMPLATE_KEYS: Final = ("modules", "memory", "public")


def _templates(value: object) -> tuple[TemplateSetting, ...]:
    if isinstance(value, str):
        # A text has the modules alone: data=numpy,polars plots=matplotlib
        pairs = [word.partition("=") for word in value.split()]
        value = {name: {"modules": modules} for name, _, modules in pairs}
    if not isinstance(value, dict):
        raise TypeError('tables like [templates.data], or text like "data=numpy,polars"')
    if len(value) > TEMPLATES_MAX:
        raise ValueError(f"at most {TEMPLATES_MAX} templates")
    return tuple(_template(name, table) for name, table in value.items())


def _template(name: str, table: object) -> TemplateSetting:
    if len(name) > TEMPLATE_NAME_CHARS_MAX or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise InvalidError(
            f"a template's name has letters, digits, '_', '-' and '.', at most {TEMPLATE_NAME_CHARS_MAX}, "
            f"not {name!r}"
        )
    if not isinstance(table, dict):
        raise InvalidError(f'the template {name} must be a table with modules = ["..."]')
    for key in table:
        if key not in _TEMPLATE_KEYS:
            raise InvalidError(f"a template has no setting {key}; {suggestion(str(key), _TEMPLATE_KEYS)}")
    try:
        modules = _modules(table.get("modules", ()))
    except (TypeError, ValueError) as error:
        raise InvalidError(f"modules of the template {name} must be {error}") from None
    if not modules:
        raise InvalidError(f'the template {name} has no modules: give modules = ["..."]')
    read = _size(limits.TASK_MEMORY_BYTES_MIN, limits.TASK_MEMORY_BYTES_MAX)
    try:
        memory = read(table.get("memory", TEMPLATE_MEMORY_BYTES_DEFAULT))
    except (TypeError, ValueError) as error:
        raise InvalidError(f"memory of the template {name} must be {error}") from None
    public = table.get("public", False)
    if not isinstance(public, bool):
        raise InvalidError(f"public of the template {name} must be true or false")
    return TemplateSetting(name, modules, memory, public)


_PROGRAM_KEYS: Final = ("path", "read")


def _programs(value: object) -> tuple[ProgramSetting, ...]:
    if isinstance(value, str):
        # A text has the paths alone: awk=/usr/bin/awk sort=/usr/bin/sort
        pairs = [word.partition("=") for word in value.split()]
        value = {name: {"path": path} for name, _, path in pairs}
    if not isinstance(value, dict):
        raise TypeError('tables like [programs.awk], or text like "awk=/usr/bin/awk"')
    if len(value) > PROGRAMS_MAX:
        raise ValueError(f"at most {PROGRAMS_MAX} programs")
    return tuple(_program(name, table) for name, table in value.items())


def _program(name: str, table: object) -> ProgramSetting:
    if not re.fullmatch(PROGRAM_NAME, name):
        raise InvalidError(f"a program's name has up to 64 letters, digits, '_', '-' and '.', not {name!r}")
    if not isinstance(table, dict):
        raise InvalidError(f'the program {name} must be a table with path = "..."')
    for key in table:
        if key not in _PROGRAM_KEYS:
            raise InvalidError(f"a program has no setting {key}; {suggestion(str(key), _PROGRAM_KEYS)}")
    path, read = table.get("path"), tuple(str(part) for part in _parts(table.get("read", ())))
    for entry in (path, *read):
        if not isinstance(entry, str) or not entry.startswith("/"):
            raise InvalidError(f"path and read of the program {name} must be absolute paths, not {entry!r}")
    if len(read) > PROGRAM_FILES_MAX // 2:
        raise InvalidError(f"read of the program {name} has more than {PROGRAM_FILES_MAX // 2} paths")
    return ProgramSetting(name, str(path), read)


def _uids(value: object) -> tuple[int, ...]:
    read = _integer(0, 2**32 - 2)
    return tuple(read(part) for part in _parts(value))


def _label(value: object) -> str:
    return checked_label(value)


def _label_or_none(value: object) -> str:
    return checked_label(value) if value != "" else ""


def _listen(value: object) -> str:
    return checked_address(value) if value != "" else ""


def _advertise(value: object) -> str:
    return checked_address(value, advertised=True) if value != "" else ""


def _labels(value: object) -> tuple[tuple[str, str], ...]:
    if isinstance(value, dict):
        pairs = [(str(key), str(said)) for key, said in value.items()]
    else:
        pairs = [(part[0], part[2]) for part in (str(text).partition("=") for text in _parts(value))]
    if len(pairs) > limits.NODE_LABELS_MAX:
        raise ValueError(f"at most {limits.NODE_LABELS_MAX} labels")
    labels = tuple(sorted((key.strip(), said.strip()) for key, said in pairs))
    for key, said in labels:
        if key == node_labels.RACK:
            raise ValueError("labels other than rack, which is a setting of its own")
        try:
            node_labels.check(key, said)
        except InvalidError:
            raise ValueError(
                f"labels like gpu=yes, each part up to {limits.NODE_NAME_BYTES_MAX} bytes without ',' and '='"
            ) from None
    if len(node_labels.text_of(labels)) > limits.NODE_LABELS_CHARS_MAX:
        raise ValueError(f"labels with at most {limits.NODE_LABELS_CHARS_MAX} characters in all")
    return labels


def _metrics(value: object) -> ExporterPlace | None:
    return None if value is False or str(value).lower() == OFF else place_of(str(value))


def _metrics_tls(value: object) -> TlsFiles:
    paths = [Path(str(part)) for part in _parts(value)]
    if len(paths) != len(TlsFiles._fields) or not all(path.is_absolute() for path in paths):
        raise ValueError("the absolute paths of a certificate, its key, and the authority of the clients")
    return TlsFiles(*paths)


KEYS: Final[Mapping[str, Callable[[object], object]]] = {
    "socket": _path,
    "pool_size": _integer(0, limits.TASKS_MAX),
    "tasks_max": _integer(1, limits.TASKS_MAX),
    "volatile_bytes_max": _size(limits.VOLATILE_BYTES_MIN, limits.VOLATILE_BYTES_MAX),
    "remote_cache_bytes": _size(0, limits.REMOTE_CACHE_BYTES_MAX),
    "leases": _boolean,
    "replica_grace": _span(limits.KEPT_GRACE_MS_MIN, limits.KEPT_GRACE_MS_MAX),
    "replica_rate": _size(limits.KEPT_RATE_BYTES_S_MIN, limits.KEPT_RATE_BYTES_S_MAX),
    "scrub_rate": _or_off(_size(limits.SCRUB_RATE_BYTES_S_MIN, limits.SCRUB_RATE_BYTES_S_MAX)),
    "scrub_every": _span(limits.SCRUB_EVERY_MS_MIN, limits.SCRUB_EVERY_MS_MAX),
    "task_memory_bytes": _size(limits.TASK_MEMORY_BYTES_MIN, limits.TASK_MEMORY_BYTES_MAX),
    "task_limits": read_bounds,
    "group_limits": read_bounds,
    "principal_limits": read_bounds,
    "sandbox_limits": _sandbox_limits,
    "preload": _modules,
    "templates": _templates,
    "programs": _programs,
    "environments_bytes": _size(0, limits.ENVIRONMENTS_BYTES_MAX),
    "container_runtime": _container_runtime,
    "gvisor_runtime": _gvisor_runtime,
    "accept_weaker_sandbox": _boolean,
    "mode": _one_of(NodeMode),
    "limbo_from_nodes": _boolean,
    "principals": _one_of(PrincipalsMode),
    "administrator": _public_key,
    "allowed_uids": _uids,
    "map_bytes": _size(limits.STORE_MAP_BYTES_MIN, limits.STORE_MAP_BYTES_MAX),
    "audit_bytes": _or_none(_size(limits.AUDIT_BYTES_MIN, limits.AUDIT_BYTES_MAX)),
    "audit_age": _or_none(_span(limits.AUDIT_AGE_MS_MIN, limits.AUDIT_AGE_MS_MAX)),
    "audit_rate": _size(limits.AUDIT_RATE_BYTES_S_MIN, limits.AUDIT_RATE_BYTES_S_MAX),
    "audit_heads": _path,
    "log_level": _one_of(LogLevel),
    "log_format": _one_of(LogFormat),
    "log_file": _path,
    "record": _path,
    "traces": _boolean,
    "name": _label,
    "rack": _label_or_none,
    "listen": _listen,
    "advertise": _advertise,
    "announce": _boolean,
    "certificate_days": _or_none(_integer(1, limits.CERTIFICATE_DAYS_MAX)),
    "border": _listen,
    "link_rate": _rate,
    "store_rate": _rate,
    "measure": _boolean,
    "shape": _label_or_none,
    "coordinator": _one_of(CoordinatorMode),
    "scheduling": _one_of(SchedulingMode),
    "cost_model": _label,
    "fairness": _one_of(FairnessPolicy),
    "fairness_memory": _span(limits.FAIRNESS_MEMORY_MS_MIN, limits.FAIRNESS_MEMORY_MS_MAX),
    "labels": _labels,
    "devices": read_devices,
    "metrics": _metrics,
    "metrics_tls": _metrics_tls,
    "metrics_uids": _uids,
}
"""All keys that a file, the environment or a flag may set, with the function that reads and checks each."""

OTHER_VARIABLES: Final = frozenset(
    {
        "DIOS_NODE",
        "DIOS_NODE_USER",
        "DIOS_DATA",
        "DIOS_CONFIG",
        "DIOS_KEYRING",
        "DIOS_TASK_DEVICES",
        "DIOS_TOKEN",
        "DIOS_TRACE",
    }
)
"""Variables with this prefix that are not settings of a node; most belong to the client."""


def as_variable(key: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + key.upper()


def as_option(key: str) -> str:
    """Return the option of a setting."""
    return "--" + key.replace("_", "-")


def _unknown(key: str, origin: Origin, spell: Callable[[str], str] = str) -> SettingsError:
    hint = suggestion(key, KEYS, spell)
    return SettingsError(f"{origin}: there is no setting {spell(key)}; {hint}")


def _line_of(text: str, key: str) -> int:
    """Return the line on which ``key`` is set in a TOML text, or 0 if it is not found."""
    pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*(=|\.)|\s*\[+\s*{re.escape(key)}\b")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 0)


def _from_file(path: Path, *, required: bool) -> Iterator[tuple[str, object, Origin]]:
    try:
        text = path.read_text(encoding="utf-8")
        require_trusted(path, "the file of settings")
    except FileNotFoundError:
        if required:
            raise SettingsError(
                f"{path}: the file does not exist. Give an existing file after --config."
            ) from None
        return
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot read the file: {error}") from None
    try:
        table: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: the file is not valid TOML: {error}") from None
    for key, value in table.items():
        origin = Origin(str(path), _line_of(text, key))
        if key not in KEYS:
            raise _unknown(key, origin)
        yield key, value, origin


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object, Origin]]:
    for variable, value in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        origin = Origin(f"environment variable {variable}")
        if key not in KEYS:
            raise _unknown(key, origin, as_variable)
        yield key, value, origin


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object, Origin]]:
    for key, value in flags.items():
        origin = Origin(as_option(key))
        if key not in KEYS:
            raise _unknown(key, origin, as_option)
        if value is not None:
            yield key, value, origin


def load(
    data: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings of the node whose data directory is ``data``.

    ``config`` is a TOML file to read instead of ``node.toml`` in ``data``. ``flags`` are the values from the
    command line, None if not given. ``environ`` replaces the environment of the process. A relative path is
    relative to ``data`` in a file, else to the working directory. Raise SettingsError with file, line and
    key.
    """
    return load_with_origins(data, config=config, flags=flags, environ=environ)[0]


def load_with_origins(
    data: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, dict[str, Origin]]:
    """Read settings as ``load`` does; also return the origin of each value that is no default."""
    folder = Path(data).expanduser().absolute()
    file = Path(config).expanduser().absolute() if config is not None else folder / SETTINGS_FILE_NAME
    chosen: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    sources = (
        (folder, _from_file(file, required=config is not None)),
        (Path.cwd(), _from_environment(os.environ if environ is None else environ)),
        (Path.cwd(), _from_flags(flags or {})),
    )
    for base, entries in sources:
        for key, value, origin in entries:
            try:
                read = KEYS[key](value)
            except (TypeError, ValueError) as error:
                raise SettingsError(f"{origin}: {key} must be {error}, not {value!r}") from None
            except InvalidError as error:
                raise SettingsError(f"{origin}: {key}: {error.message}") from None
            chosen[key] = base / read if isinstance(read, Path) else read
            origins[key] = origin
    settings = replace(Settings(folder, folder / "node.sock"), **chosen)  # type: ignore[arg-type] # checked by KEYS
    if settings.pool_size > settings.tasks_max:
        raise SettingsError(
            f"pool_size {settings.pool_size} is over tasks_max {settings.tasks_max}; "
            "lower pool_size or raise tasks_max"
        )
    _check_addresses(settings)
    if settings.metrics is not None:
        require_protected(settings.metrics, settings.metrics_tls, settings.metrics_uids)
    return settings, origins


def _check_addresses(settings: Settings) -> None:
    if settings.advertise and not settings.listen:
        raise SettingsError(
            "advertise is the address for other nodes, but this node does not listen: set listen"
        )
    if settings.listen and is_unspecified(split_address(settings.address)[0]):
        raise SettingsError(
            f"listen {settings.listen} means every address of this machine, so other machines cannot "
            "use it: set advertise to the HOST:PORT that they can reach"
        )
