"""The REST interface of E2B: sandboxes are created, listed, paused and ended.

Its clients are the packages ``e2b`` and ``e2b-code-interpreter``. Names and forms are those of its public
interface (https://e2b.dev/docs/api-reference).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, cast
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import HeldSandbox
from dios.lib.sandbox_server.holder import TEXT_CHARS_MAX
from dios.lib.sandbox_server.http import Reply
from dios.lib.sandbox_server.operations import Call, Interface, NoRequest, Operation, json_reply
from dios.limits import MIB

AGENT_VERSION: Final = "0.6.0"
"""The version of E2B's agent whose interface this is: clients decide by it what they may ask for."""
_PAGE_MAX: Final = 100
_LIST_QUERY: Final = frozenset({"metadata", "state", "template", "order", "nextToken", "limit"})

Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class NewSandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sandbox to create; the fields of type ``object`` are refused if they ask for something.

    ``secure`` and ``autoPauseMemory`` change nothing: an access token is always needed, and a sandbox does
    not pause by itself.
    """

    template: Text = field(name="templateID")
    timeout: Seconds | None = None
    metadata: dict[Text, Text] | None = None
    variables: dict[Text, Text] | None = field(name="envVars", default=None)
    secure: bool | None = None
    auto_pause: bool | None = field(name="autoPause", default=None)
    auto_pause_memory: bool | None = field(name="autoPauseMemory", default=None)
    auto_resume: object = field(name="autoResume", default=None)
    internet: bool | None = field(name="allow_internet_access", default=None)
    network: object = None
    mcp: object = None
    iam: object = None
    volumes: object = field(name="volumeMounts", default=None)


class Life(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds of life from now."""

    timeout: Seconds | None = None


class Connection(Life, frozen=True):
    """The least seconds of life from now; memory is always resumed."""

    memory: bool | None = None


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot to store."""

    name: Text | None = None


class Pausing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to pause: memory is always kept."""

    memory: bool | None = None


class SandboxOfE2b(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "template": "templateID",
        "name": "sandboxID",
        "client": "clientID",
        "agent_version": "envdVersion",
        "token": "envdAccessToken",
        "traffic_token": "trafficAccessToken",
        "began": "startedAt",
        "ends": "endAt",
        "cpus": "cpuCount",
        "memory_mb": "memoryMB",
        "disk_mb": "diskSizeMB",
        "internet": "allowInternetAccess",
    },
):
    """A sandbox as clients of E2B know it."""

    template: str
    name: str
    client: str = "dios"
    agent_version: str = AGENT_VERSION
    token: str | UnsetType = UNSET
    traffic_token: str | UnsetType = UNSET
    began: str
    ends: str
    cpus: int = 1
    memory_mb: int
    disk_mb: int = 0
    state: str
    metadata: dict[str, str]
    internet: bool = False


def described(held: HeldSandbox, *, with_token: bool = False) -> SandboxOfE2b:
    """Return a sandbox as clients of E2B know it."""
    token = held.token if with_token else UNSET
    return SandboxOfE2b(
        template=held.template_name,
        name=held.name,
        token=token,
        traffic_token=token,
        began=_time_text(held.began_s),
        ends=_time_text(held.ends_s),
        memory_mb=held.template.memory_bytes // MIB,
        state=held.state,
        metadata=held.metadata,
        internet=bool(held.template.network),
    )


async def create(call: Call, request: msgspec.Struct) -> Reply:
    """Create a sandbox."""
    new = cast("NewSandbox", request)
    has_network = bool(call.holder.template(call.key, new.template).network)
    _require_plain(new, has_network=has_network)
    held = await call.holder.create(
        call.key,
        new.template,
        seconds=new.timeout,
        metadata=new.metadata or {},
        variables=new.variables or {},
        request_key=call.head.headers.get("idempotency-key", ""),
    )
    return json_reply(described(held, with_token=True), 201)


def _require_plain(new: NewSandbox, *, has_network: bool) -> None:
    """Raise RequestError for a sandbox that this server cannot create as asked."""
    asked: Mapping[str, object] = {
        "autoPause: a sandbox ends when its time is over": new.auto_pause,
        "autoResume: a paused sandbox is resumed by a call": _is_enabled(new.auto_resume),
        "allow_internet_access: the template has a network, and each of its sandboxes has it": (
            has_network and new.internet is False
        ),
        "network: the template names the origins": new.network,
        "mcp": new.mcp,
        "iam": new.iam,
        "volumeMounts: there are no volumes": new.volumes,
    }
    refused = [text for text, value in asked.items() if value]
    if refused:
        raise RequestError(Kind.UNSUPPORTED, f"this server does not support {'; '.join(refused)}")


def _is_enabled(value: object) -> bool:
    return bool(value.get("enabled")) if isinstance(value, dict) else bool(value)


async def list_sandboxes(call: Call, _request: msgspec.Struct) -> Reply:
    """List the sandboxes of the key, page by page."""
    query = call.head.query
    unknown = query.keys() - _LIST_QUERY
    if unknown:
        raise RequestError(
            Kind.UNSUPPORTED, f"this server does not select sandboxes by {', '.join(sorted(unknown))}"
        )
    wanted = dict(parse_qsl(unquote(query.get("metadata", ""))))
    states = set(query.get("state", "running,paused").split(","))
    if not states <= {"running", "paused"} or query.get("order", "desc") not in {"asc", "desc"}:
        raise RequestError(Kind.INVALID, "a state is running or paused, and an order asc or desc")
    rows = [
        row
        for row in map(described, filter(_has_session, call.holder.all_of(call.key)))
        if row.state in states
        and wanted.items() <= row.metadata.items()
        and query.get("template", row.template) == row.template
    ]
    if query.get("order") == "asc":
        rows.reverse()
    try:
        begin = int(query.get("nextToken", "0"))
        size = min(_PAGE_MAX, int(query.get("limit", str(_PAGE_MAX))))
    except ValueError:
        raise RequestError(Kind.INVALID, "limit and nextToken are numbers") from None
    if begin < 0 or size < 1:
        raise RequestError(Kind.INVALID, "limit and nextToken are positive")
    more = (("X-Next-Token", str(begin + size)),) if begin + size < len(rows) else ()
    return json_reply(rows[begin : begin + size], headers=more)


def _has_session(held: HeldSandbox) -> bool:
    """Return False once its session has ended by itself; clients of E2B know no such state."""
    return not held.box.ended


def _with_session(held: HeldSandbox) -> HeldSandbox:
    """Return a sandbox. Raise RequestError once its session has ended by itself."""
    if not _has_session(held):
        raise RequestError(Kind.NOT_FOUND, f"sandbox {held.name} was not found: {held.box.ended}")
    return held


async def info(call: Call, _request: msgspec.Struct) -> Reply:
    """Describe a sandbox."""
    return json_reply(described(_with_session(call.held), with_token=True))


async def kill(call: Call, _request: msgspec.Struct) -> Reply:
    """End a sandbox."""
    await call.holder.end(call.held)
    return Reply(204)


async def set_timeout(call: Call, request: msgspec.Struct) -> Reply:
    """Set the time of life from now."""
    call.holder.set_life(call.held, cast("Life", request).timeout)
    return Reply(204)


async def pause(call: Call, request: msgspec.Struct) -> Reply:
    """Stop all processes of a sandbox."""
    held = call.held
    if cast("Pausing", request).memory is False:
        raise RequestError(Kind.UNSUPPORTED, "a pause keeps the memory: for the files alone take a snapshot")
    if held.is_paused:
        raise RequestError(Kind.CONFLICT, "the sandbox is paused already")
    await held.box.pause()
    return Reply(204)


async def connect(call: Call, request: msgspec.Struct) -> Reply:
    """Return a sandbox; a paused one is resumed. Its time of life is not made shorter."""
    held = _with_session(call.held)
    was_paused = held.is_paused
    if was_paused:
        await held.box.resume()
    asked = cast("Connection", request)
    if asked.memory is False:
        raise RequestError(Kind.UNSUPPORTED, "a paused sandbox is resumed with its memory")
    seconds = asked.timeout
    if seconds is not None and seconds > held.seconds_left:
        call.holder.set_life(held, seconds)
    return json_reply(described(held, with_token=True), 201 if was_paused else 200)


class SnapshotOfE2b(msgspec.Struct, frozen=True, rename={"template": "snapshotID"}):
    """A snapshot: the template that begins with it."""

    template: str
    names: list[str]


async def snapshot(call: Call, request: msgspec.Struct) -> Reply:
    """Store the files of a sandbox as a template of the key."""
    held = call.held
    name = cast("NewSnapshot", request).name or f"snapshot-{held.name}"
    template = await call.holder.snapshot(held, name)
    return json_reply(SnapshotOfE2b(template, [template]), 201)


async def remove_snapshot(call: Call, _request: msgspec.Struct) -> Reply:
    """Remove a snapshot."""
    await call.holder.remove_snapshot(call.key, call.names[0])
    return Reply(204)


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _api(
    method: str,
    path: str,
    name: str,
    effect: str,
    handler: object = None,
    request: type[msgspec.Struct] = NoRequest,
) -> Operation:
    return Operation(Interface.E2B_API, method, path, name, effect, handler, request)  # type: ignore[arg-type]


_CREATE: Final = "start a sandbox of a template; `metadata`, `envs`, `timeout`"
_LIST: Final = "those of the key, by state, metadata and template"
_CONNECT: Final = "use it from another program; resume a paused one"
_LOGS: Final = "the output of a command goes to its client alone"
_VOLUMES: Final = "there are no volumes: take snapshots"
_SECRETS: Final = "a template grants origins without secrets"

OPERATIONS: Final = (
    _api(
        "POST", "/v2/sandboxes", "Sandbox.create",
        _CREATE, create, NewSandbox
    ),
    _api("POST", "/sandboxes", "Sandbox.create", _CREATE, create, NewSandbox),
    _api(
        "GET", "/v2/sandboxes", "Sandbox.list", _LIST,
        list_sandboxes
    ),
    _api("GET", "/sandboxes", "Sandbox.list", _LIST, list_sandboxes),
    _api("GET", "/sandboxes/{id}", "get_info", "describe a sandbox", info),
    _api("DELETE", "/sandboxes/{id}", "kill", "end it", kill),
    _api(
        "POST", "/sandboxes/{id}/timeout", "set_timeout",
        "seconds of life from now, within the bound of the key", set_timeout, Life
    ),
    _api(
        "POST", "/v2/sandboxes/{id}/connect", "Sandbox.connect",
        _CONNECT, connect, Connection
    ),
    _api("POST", "/sandboxes/{id}/connect", "Sandbox.connect", _CONNECT, connect, Connection),
    _api(
        "POST", "/sandboxes/{id}/resume", "Sandbox.resume", "as connect, of earlier clients", connect,
        Connection
    ),
    _api(
        "POST", "/sandboxes/{id}/pause", "pause",
        "stop all its processes; memory is kept, and its time goes on", pause, Pausing
    ),
    _api(
        "POST", "/sandboxes/{id}/snapshots", "create_snapshot",
        "store the files of a sandbox with an image", snapshot, NewSnapshot
    ),
    _api("DELETE", "/templates/{id}", "delete_snapshot", "remove a snapshot", remove_snapshot),
    _api("POST", "/sandboxes/{id}/fork", "fork", "take a snapshot, and create sandboxes of it"),
    _api("GET", "/sandboxes/{id}/metrics", "get_metrics", "`dios sandbox ls` and `dios top` show sessions"),
    _api("PUT", "/sandboxes/{id}/network", "update_network", "the template names the origins"),
    _api("GET", "/sandboxes/{id}/logs", "logs", _LOGS),
    _api("GET", "/v2/sandboxes/{id}/logs", "logs", _LOGS),
    _api("GET", "/snapshots", "list_snapshots", "the names are those that the client gave"),
    _api("GET", "/templates", "Template", "templates are in the settings of the server"),
    _api(
        "POST", "/v3/templates", "Template.build",
        "build an image with other tools, and name it in the settings"
    ),
    _api("GET", "/volumes", "Volume", _VOLUMES),
    _api("POST", "/volumes", "Volume", _VOLUMES),
    _api("GET", "/secrets", "Secret", _SECRETS),
    _api("POST", "/secrets", "Secret", _SECRETS),
)  # fmt: skip
