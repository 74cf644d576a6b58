"""The types of what commands print with ``--json``, from which ``dios schema`` makes JSON schemas.

The commands make their rows as these types, or as types of their own modules. ``JSON`` lists all of
them, and ``outputs`` also those of commands that other packages add.
"""

from __future__ import annotations

import importlib
from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Final, NamedTuple, NotRequired, TypedDict

from dios.cli.common.added_commands import added_commands


class FileRow(TypedDict):
    """A file of a group. ``put`` is the time of its storage in nanoseconds; ``name`` comes with --names.

    ``ls`` adds ``group_secrecy``, the tags of the group's label, if the group has one.
    A tiered file has the ``store`` where its bytes are. With --long it adds the number of ``disks`` that have
    each object of the file, and the number that is ``promised``, null without a promise.
    """

    group: str
    file: str
    path: str
    fingerprint: str
    size: int
    put: int
    name: NotRequired[str]
    group_secrecy: NotRequired[list[str]]
    store: NotRequired[str]
    disks: NotRequired[int]
    promised: NotRequired[int | None]


class DirectoryRow(TypedDict):
    """A directory of a group."""

    group: str
    directory: str
    path: str


class OrphanRow(TypedDict):
    """A stored object that no catalogue lists (``ls --orphans``)."""

    fingerprint: str
    size: int


class UseRow(TypedDict):
    """The number of files at or below a path, and of their bytes.

    ``tiered`` is the number of further bytes, which are in stores outside of the cluster, if there are any.
    """

    path: str
    files: int
    size: int
    tiered: NotRequired[int]


class WrittenRow(TypedDict):
    """A local file that was written, with the fingerprint of its object unless a directory was fetched."""

    file: str
    size: int
    fingerprint: NotRequired[str]


class RemovedRow(TypedDict):
    """A name to destroy: ``incomplete`` if a node that may have a replica did not answer."""

    argument: str
    destroyed: bool
    replicas: int
    incomplete: bool


class UnfinishedRow(TypedDict):
    """A file of which some bytes are ``stored``; ``size`` is null if it is not known."""

    group: str
    file: str
    path: str
    stored: int
    size: int | None
    begun: int


class SyncRow(TypedDict):
    """The differences that were, or with ``dry_run`` would be, carried over; ``failed`` has the reasons."""

    copied: list[str]
    size: int
    directories: list[str]
    deleted: list[str]
    unchanged: int
    dry_run: bool
    failed: dict[str, str]


class FailedRow(TypedDict):
    """A file, or a group by its alias, that the command could not handle, and why. The exit status is 1."""

    path: str
    failure: str


class AliasRow(TypedDict):
    """A group of the keyring."""

    alias: str
    fingerprint: str


class CreatedGroupRow(AliasRow):
    """A new group, with its secret name, and the tags that its files get."""

    name: str
    secrecy: list[str]


class ListedGroupRow(AliasRow):
    """A group of the keyring, and True if the asked node knows it."""

    here: bool


class DestroyedGroupRow(AliasRow):
    """A group that was destroyed with this number of files."""

    files: int


class PromisedGroupRow(AliasRow):
    """A group, and the promised number of replicas of its files."""

    replicas: int


class GrantRow(TypedDict):
    """A new share of a group: its end in nanoseconds, and the grant for the reader."""

    share: str
    reader: str
    expires: int
    grant: str


class AcceptedRow(AliasRow):
    """A group that another user shares, until ``expires`` (nanoseconds)."""

    issuer: str
    expires: int


class ShareRow(TypedDict):
    """A share of one of this user's groups."""

    share: str
    alias: str
    reader: str
    expires: int


class WithdrawnRow(TypedDict):
    """A share that was withdrawn."""

    share: str
    reader: str


class TaskRow(TypedDict):
    """A task. Times are nanoseconds since 1970, 0 for not yet; secrecy is what it has read."""

    fingerprint: str
    label: str
    state: str
    brand: str
    principal: str
    pid: int
    started: int
    ended: int
    cause: str
    exit_status: int | None
    signal: int
    detail: str
    parent: str
    node: str
    leave_by: int
    moves: int
    restarts: int
    kept_bytes: int
    progress: float | None
    secrecy: list[str]


class PromisedRow(TypedDict):
    """When a waiting task is expected to start, in nanoseconds since 1970, and where.

    Room on ``nodes`` is kept for it. It starts when the tasks ``after`` have ended, and ``others`` tasks of
    other users.
    """

    start: int
    nodes: list[str]
    after: list[str]
    others: int


class ListedTaskRow(TaskRow):
    """A task in `dios ps`: that of a kept job has the name of the job, and of an array the index.

    ``promised`` is null unless it waits and its start is promised.
    """

    job: str | None
    index: int | None
    promised: PromisedRow | None


class LoggedTaskRow(TaskRow):
    """A task, and its output as text."""

    console: str


class StoredConsoleRow(TypedDict):
    """The stored output of a task that its node has forgotten."""

    task: str
    console: str


class PausedRow(TypedDict):
    """A task to suspend: ``paused`` is False if it had ended."""

    fingerprint: str
    label: str
    paused: bool


class ResumedRow(TypedDict):
    """A task to continue: ``resumed`` is False if it had ended or was not paused."""

    fingerprint: str
    label: str
    resumed: bool


class KilledRow(TypedDict):
    """A task to end: ``killed`` is False if it had ended already."""

    fingerprint: str
    label: str
    killed: bool


class SettingRow(TypedDict):
    """A setting, and the option, variable or file from which its value came, or "default"."""

    key: str
    value: str
    source: str


class Output(NamedTuple):
    """The output of a command: one object, a list of objects, or, with None, either of them.

    A row is a type, or the place ``module:name`` of one under ``package``, which is imported late. ``note``
    says when there is more than one such document.
    """

    rows: tuple[type | str, ...]
    many: bool | None = True
    note: str = ""
    package: str = "dios"


_ANSWERS: Final = "firmament.coordinator.answers"
_LINES: Final = "Each line is such a document."

JSON: Final[Mapping[str, Output]] = {
    "put": Output((FileRow, FailedRow)),
    "ls": Output((FileRow, DirectoryRow, OrphanRow, UnfinishedRow, FailedRow)),
    "du": Output((UseRow, FailedRow)),
    "get": Output((WrittenRow, FailedRow), many=None),
    "sync": Output((SyncRow,), many=False),
    "rm": Output((RemovedRow, FailedRow)),
    "group create": Output((CreatedGroupRow,), many=False),
    "group ls": Output((ListedGroupRow,)),
    "group rm": Output((DestroyedGroupRow,), many=False),
    "group set": Output((PromisedGroupRow,), many=False),
    "group forget": Output((AliasRow,), many=False),
    "group share": Output((GrantRow,), many=False),
    "group accept": Output((AcceptedRow,), many=False),
    "group shares": Output((ShareRow,)),
    "group unshare": Output((WithdrawnRow,)),
    "token issue": Output(("cli.objects.tokens:IssuedTokenRow",), many=False),
    "token revoke": Output(("cli.objects.tokens:TokenMarkRow",), many=False),
    "token ls": Output(("cli.objects.tokens:ListedTokensRow",), many=False),
    "token attenuate": Output(("cli.objects.tokens:TokenRow",), many=False),
    "token show": Output(("cli.objects.tokens:TokenRow",), many=False),
    "token import": Output(("cli.objects.tokens:TokenRow",), many=False),
    "token forget": Output(("cli.objects.tokens:TokenMarkRow",), many=False),
    "token files": Output(("cli.objects.tokens:TokenFileRow",)),
    "token put": Output(("cli.objects.tokens:TokenFileRow",), many=False),
    "token get": Output(("cli.objects.tokens:FetchedFileRow",), many=False),
    "store create": Output(("cli.objects.stores:StoreRow",), many=False),
    "store add": Output(("cli.objects.stores:StoreRow",), many=False),
    "store ls": Output(("cli.objects.stores:StoreRow",)),
    "store repair": Output(("cli.objects.stores:RepairedStoreRow",), many=False),
    "ps": Output((ListedTaskRow,)),
    "kill": Output((KilledRow,)),
    "config": Output((SettingRow,)),
    "stat": Output(
        (
            "cli.objects.replicas:StatRow",
            "cli.objects.replicas:PartsRow",
            "cli.objects.replicas:TieredRow",
        ),
        many=False,
    ),
    "replicate": Output(("cli.objects.replicas:MadeReplicaRow", FailedRow), many=None),
    "group repair": Output(("cli.objects.groups:RepairedListRow",), many=False),
    "group describe": Output(("cli.objects.groups:GroupRow",), many=False),
    "logs": Output((LoggedTaskRow, StoredConsoleRow), many=False),
    "pause": Output((PausedRow,), many=False),
    "resume": Output((ResumedRow,), many=False),
    "describe": Output(("cli.tasks.describe:TaskDetailsRow",), many=False),
    "debug": Output((TaskRow,), many=False),
    "job ls": Output(("cli.tasks.kept_jobs:JobRow",)),
    "job describe": Output(("cli.tasks.kept_jobs:JobRow",), many=False),
    "job stop": Output(("cli.tasks.kept_jobs:JobNameRow",), many=False),
    "job rm": Output(("cli.tasks.kept_jobs:JobNameRow",)),
    "attach": Output(("cli.tasks.kept_jobs:JobRow",), many=False),
    "service create": Output(("cli.tasks.service:ServiceNameRow",), many=False),
    "service ls": Output(("cli.tasks.service:ServiceRow",)),
    "service describe": Output(("cli.tasks.service:ServiceRow",), many=False),
    "service scale": Output(("cli.tasks.service:ServiceNameRow",), many=False),
    "service update": Output(("cli.tasks.service:ServiceNameRow",), many=False),
    "service rollback": Output(("cli.tasks.service:ServiceNameRow",), many=False),
    "service rm": Output(("cli.tasks.service:ServiceNameRow",), many=False),
    "node ls": Output(("cli.nodes.members:NodeRow",), note="With --watch each line is such a document."),
    "node describe": Output(("cli.nodes.members:NodeDetailsRow",), many=False),
    "node logs": Output(("cli.nodes.node_logs:NodeLogRow",), many=False, note=_LINES),
    "node label": Output(("cli.nodes.members:NodeRow",), many=False),
    "node drain": Output(("cli.nodes.members:NodeRow", "cli.nodes.members:DrainedNodeRow"), many=False),
    "node forget": Output(("cli.nodes.members:NodeRow",)),
    "node replace": Output(("cli.nodes.members:ReplacedNodeRow",), many=False),
    "doctor": Output(("node.doctor.diagnosis:Diagnosis",), many=False),
    "top": Output(("cli.tasks.top:OverviewRow",), many=False),
    "report": Output(("cli.tasks.report:ReportRow",), many=False),
    "trace record": Output(("cli.tasks.trace:TraceRow",), many=False),
    "metrics": Output(("cli.nodes.metrics:MetricRow",)),
    "limits": Output(("cli.nodes.limits:UsageRow",)),
    "limits set": Output(("cli.nodes.limits:UsageRow",)),
    "run": Output(
        (
            "cli.tasks.run:RunRow",
            "cli.tasks.run:StartedRunRow",
            "cli.tasks.kept_jobs:JobRow",
            "cli.tasks.kept_jobs:JobNameRow",
            "cli.tasks.gang:EndedMemberRow",
            "cli.tasks.gang:StartedMemberRow",
            "cli.tasks.gang:FailedMemberRow",
        ),
        many=None,
        note="A list for --gang and for jobs over time. A job name comes from --keep with --detach.",
    ),
    "journal create": Output(("cli.objects.logs:CreatedLogRow",), many=False),
    "journal append": Output(("cli.objects.logs:AppendedRow",), many=False),
    "journal read": Output(("cli.objects.logs:EntryRow",), many=False, note=_LINES),
    "journal follow": Output(("cli.objects.logs:EntryRow",), many=False, note=_LINES),
    "backup keygen": Output(("cli.objects.backup:BackupKeyRow",), many=False),
    "backup create": Output(("cli.objects.backup:CreatedBackupRow",), many=False),
    "backup ls": Output(("cli.objects.backup:SnapshotsRow",), many=False),
    "backup verify": Output(("cli.objects.backup:VerifiedRow",), many=False),
    "backup restore": Output(
        ("cli.objects.backup:RestoredRow", "cli.objects.backup:RestoredNamesRow"), many=False
    ),
    "backup prune": Output(("cli.objects.backup:PrunedRow",), many=False),
    "tier out": Output(("cli.objects.tier:TieredOutRow",), many=False),
    "tier in": Output(("cli.objects.tier:TieredInRow", FailedRow)),
    "tier ls": Output(("cli.objects.tier:TieredFileRow", FailedRow)),
    "tier open": Output(("cli.objects.tier:OpenedStoreRow",), many=False),
    "tier prune": Output(("cli.objects.tier:PrunedStoreRow",), many=False),
    "tier forget": Output(("cli.objects.tier:ForgottenRow", FailedRow)),
    "audit": Output(("cli.nodes.audit:RecordRow",), many=False, note=_LINES),
    "audit grep": Output(("cli.nodes.audit:RecordRow",), many=False, note=_LINES),
    "audit follow": Output(("cli.nodes.audit:RecordRow",), many=False, note=_LINES),
    "audit verify": Output(("host.audit.reader:Verdict",), many=False),
    "sandbox run": Output(("cli.tasks.sandbox:SandboxRow",), many=False),
    "sandbox ls": Output(("cli.tasks.sandbox:SessionRow",)),
    "sandbox stop": Output(("cli.tasks.sandbox:StoppedSessionRow",)),
    "template ls": Output(("cli.tasks.template:LoadedTemplateRow",)),
    "template warm": Output(("cli.tasks.template:LoadedTemplateRow",)),
    "template stat": Output(("cli.tasks.template:LoadedTemplateRow",)),
    "kernel install": Output(("cli.tasks.kernel:KernelRow",), many=False),
    "kernel ls": Output(("cli.tasks.kernel:KernelRow",)),
    "kernel remove": Output(("cli.tasks.kernel:KernelRow",), many=False),
    "sched status": Output((f"{_ANSWERS}:StatusAnswer",), many=False),
    "sched models": Output((f"{_ANSWERS}:ModelsAnswer",), many=False),
    "sched set-model": Output((f"{_ANSWERS}:ModelChangeAnswer",), many=False),
    "sched check-model": Output(("cli.scheduling.live:CheckedModelRow",), many=False),
    "sched settings": Output((f"{_ANSWERS}:SettingsAnswer",), many=False),
    "sched set": Output((f"{_ANSWERS}:SettingsAnswer",), many=False),
    "sched reset": Output((f"{_ANSWERS}:SettingsAnswer",), many=False),
    "sched history": Output((f"{_ANSWERS}:HistoryAnswer",), many=False),
    "sched export": Output(("cli.scheduling.live:NetworkRow",), many=False),
    "explain": Output((f"{_ANSWERS}:ExplainedAnswer", "cli.scheduling.start_queues:QueuedRow"), many=False),
    "shares": Output(
        (f"{_ANSWERS}:SharesAnswer",), many=False, note="With --watch each line is such a document."
    ),
    "quota": Output((f"{_ANSWERS}:SharingAnswer",)),
    "quota set": Output((f"{_ANSWERS}:AccountAnswer",)),
    "pack check": Output(("lib.reservations:ReservationPlan",), many=False),
    "pack ls": Output((f"{_ANSWERS}:AdmittedJobAnswer",)),
    "pack release": Output(("cli.packing.live:ReleasedRow",), many=False),
    "pack learn": Output(("cli.packing.learn:LearnedJobRow",), many=False),
    "nf run": Output(("sprayer.runtime.reports:RunningReport",), many=False),
    "nf stats": Output(
        ("sprayer.runtime.reports:RunningReport",),
        many=False,
        note="With --watch each line is such a document.",
    ),
    "nf replay": Output(("sprayer.runtime.reports:ReplayReport",), many=False),
    "up": Output(
        (
            "cli.nodes.local_cluster:LocalClusterRow",
            "cli.nodes.compose:ComposeUpRow",
            "cli.nodes.bringup:HostsUpRow",
            "cli.nodes.bringup:SlurmUpRow",
            "cli.nodes.bringup:KubernetesUpRow",
        ),
        many=False,
    ),
    "down": Output(
        (
            "cli.nodes.local_cluster:LocalDownRow",
            "cli.nodes.compose:ComposeDownRow",
            "cli.nodes.bringup:HostsDownRow",
            "cli.nodes.bringup:SlurmDownRow",
            "cli.nodes.bringup:KubernetesDownRow",
        ),
        many=False,
    ),
    "dios-node start": Output(("cli.nodes.daemon:StartedDaemonRow",), many=False, note="With --detach."),
    "dios-node status": Output(
        ("cli.nodes.daemon:RunningDaemonRow", "cli.nodes.daemon:AbsentDaemonRow"), many=False
    ),
    "dios-node dump": Output(("cli.nodes.inspection:StateTables",), many=False),
    "dios-node replay": Output(("cli.nodes.inspection:ReplayRow",), many=False),
    "dios-node stop": Output(
        ("cli.nodes.daemon:StoppedDaemonRow", "cli.nodes.daemon:NotStoppedDaemonRow"), many=False
    ),
    "dios-node restart": Output(
        ("cli.nodes.daemon:RestartedDaemonRow", "cli.nodes.daemon:NotRestartedDaemonRow"), many=False
    ),
    "dios-node check": Output(("cli.nodes.check:CheckedNodeRow",), many=False),
    "dios-node orphans": Output(("cli.nodes.orphans:StoredOrphanRow",)),
    "dios-node config": Output((SettingRow,)),
    "dios-node init": Output(("cli.nodes.joining:MadeClusterRow",), many=False),
    "dios-node trust add": Output(("cli.nodes.trust:TrustedRow",), many=False),
    "dios-node trust ls": Output(("cli.nodes.trust:TrustedRow",)),
    "dios-node invite": Output(("cli.nodes.joining:InvitationRow",), many=False),
}
"""The commands with a schema, and the types of their output; those of ``dios`` without its name."""


def outputs() -> Mapping[str, Output]:
    """Return the table ``JSON``, with those of the modules that add commands to ``dios``.

    A module that cannot be imported adds nothing: its command reports the reason.
    """
    tables: list[Mapping[str, Output]] = [JSON]
    for place in added_commands().values():
        with suppress(ImportError):
            tables.append(getattr(importlib.import_module(place.partition(":")[0]), "JSON", {}))
    return ChainMap(*map(dict, tables))


def schema_of(command: str) -> dict[str, object]:
    """Return the JSON schema of what a command prints with ``--json``. Raises KeyError without one."""
    import msgspec  # noqa: PLC0415 - only `dios schema` needs it

    rows, many, note, package = outputs()[command]
    types = [_type_at(package, row) if isinstance(row, str) else row for row in rows]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_schema_of_other, ref_template="#/$defs/{name}"
    )
    single: dict[str, object] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    several: dict[str, object] = {"type": "array", "items": single}
    either: dict[str, object] = {"anyOf": [single, several]}
    shape = either if many is None else several if many else single
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{_typed(command)} --json"}
    whole = {**head, **({"description": note} if note else {}), **shape, "$defs": components}
    # Defaults of dataclasses may be tuples, which JSON has not.
    schema: dict[str, object] = msgspec.json.decode(msgspec.json.encode(whole))
    return schema


def _typed(command: str) -> str:
    """Return a command of the registry as a person types it."""
    return command if command.startswith("dios-node ") else f"dios {command}"


def _type_at(package: str, place: str) -> type:
    module, _, name = place.partition(":")
    row: type = getattr(importlib.import_module(f"{package}.{module}"), name)
    return row


def _schema_of_other(kind: type) -> dict[str, object]:
    """Return the schema of a type that msgspec does not know, which ``write_json`` writes as text."""
    if issubclass(kind, PurePath):
        return {"type": "string"}
    raise NotImplementedError(kind)
