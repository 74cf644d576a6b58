"""The types of what commands print with ``--json``, from which ``dios schema`` makes JSON schemas.

The commands make their rows as these types. ``JSON`` lists the commands whose output is described.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, NotRequired, TypedDict


class FileRow(TypedDict):
    """A file of a group. ``put`` is the time of its storage in nanoseconds; ``name`` comes with --names."""

    group: str
    file: str
    path: str
    fingerprint: str
    size: int
    put: int
    name: NotRequired[str]


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
    """The number of files at or below a path, and of their bytes."""

    path: str
    files: int
    size: int


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


class SyncRow(TypedDict):
    """The differences that were, or with ``dry_run`` would be, carried over."""

    copied: list[str]
    size: int
    directories: list[str]
    deleted: list[str]
    unchanged: int
    dry_run: bool


class AliasRow(TypedDict):
    """A group of the keyring."""

    alias: str
    fingerprint: str


class CreatedGroupRow(AliasRow):
    """A new group, with its secret name."""

    name: str


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
    """A task. Times are nanoseconds since 1970, 0 for not yet; ``console`` comes with ``dios logs``."""

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
    """The output of a command: one object, a list of objects, or, with None, either of them."""

    rows: tuple[type, ...]
    many: bool | None = True


JSON: Final[Mapping[str, Output]] = {
    "put": Output((FileRow,)),
    "ls": Output((FileRow, DirectoryRow, OrphanRow)),
    "du": Output((UseRow,)),
    "get": Output((WrittenRow,), many=None),
    "sync": Output((SyncRow,), many=False),
    "rm": Output((RemovedRow,)),
    "group create": Output((CreatedGroupRow,), many=False),
    "group ls": Output((ListedGroupRow,)),
    "group rm": Output((DestroyedGroupRow,), many=False),
    "group set": Output((PromisedGroupRow,), many=False),
    "group forget": Output((AliasRow,), many=False),
    "group share": Output((GrantRow,), many=False),
    "group accept": Output((AcceptedRow,), many=False),
    "group shares": Output((ShareRow,)),
    "group unshare": Output((WithdrawnRow,)),
    "ps": Output((TaskRow,)),
    "kill": Output((KilledRow,)),
    "config": Output((SettingRow,)),
}
"""The commands with a schema, and the types of their output."""


def schema_of(command: str) -> dict[str, object]:
    """Return the JSON schema of what a command prints with ``--json``. Raises KeyError without one."""
    import msgspec  # noqa: PLC0415 - only `dios schema` needs it

    rows, many = JSON[command]
    schemas, components = msgspec.json.schema_components(rows, ref_template="#/$defs/{name}")
    one: dict[str, object] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    several: dict[str, object] = {"type": "array", "items": one}
    either: dict[str, object] = {"anyOf": [one, several]}
    shape = either if many is None else several if many else one
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"dios {command} --json"}
    return {**head, **shape, "$defs": components}
