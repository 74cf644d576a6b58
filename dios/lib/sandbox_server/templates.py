"""The templates of the server: what a sandbox begins with, by the name that a client gives."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dios.errors import InvalidError
from dios.lib.amounts import memory_of
from dios.lib.executor.values import decode_bytes
from dios.lib.sandbox.async_sandbox import Sandbox
from dios.lib.sandbox.bounds import SandboxBounds
from dios.limits import MIB
from dios.trusted_files import require_trusted
from dios.wire.origins import parse_origins

BOUNDS: Final = SandboxBounds(value_bytes=8 * MIB, display_bytes=8 * MIB, figure_bytes=MIB)
"""What a session sends is in memory until a client takes it; files come in parts."""


class ServedSandbox(Sandbox):
    """A sandbox whose values are bytes: to decode others would keep all clients of the server waiting."""

    def _decoded(self, data: bytes) -> object:
        return decode_bytes(data)


class SandboxTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of ``dios.aio.Sandbox`` for the sandboxes of a template."""

    image: str = ""
    snapshot: str = ""
    template: str = ""
    packages: tuple[str, ...] = ()
    isolation: str = "kernel"
    memory: str = "512 MiB"
    cpu_seconds: float | None = None
    network: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        memory_of(self.memory)
        parse_origins(self.network)

    @property
    def memory_bytes(self) -> int:
        """The memory of a sandbox."""
        return memory_of(self.memory)

    @property
    def has_programs(self) -> bool:
        """True if its sandboxes have the programs of an image."""
        return bool(self.image or self.snapshot)

    def sandbox(self, node: str | Path | None) -> Sandbox:
        """Return a sandbox that is not open yet. Raise InvalidError."""
        arguments = msgspec.structs.asdict(self)
        return ServedSandbox(node=node, timeout=None, bounds=BOUNDS, **arguments)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of settings: templates by name, and the group for snapshots, as in dios://tries."""

    templates: dict[str, SandboxTemplate]
    snapshots: str = ""

    def __post_init__(self) -> None:
        if self.snapshots and (not self.snapshots.startswith("dios://") or "/" in self.snapshots[7:]):
            raise InvalidError(f"snapshots is a group, as in dios://tries, not {self.snapshots!r}")


PLAIN: Final = ServerSettings(templates={"base": SandboxTemplate(), "code-interpreter-v1": SandboxTemplate()})
"""Without a file: the names that clients of E2B use by themselves are sandboxes without an image."""


def read_settings(path: Path) -> ServerSettings:
    """Return the settings in a file. Raise InvalidError, UntrustedError or OSError."""
    require_trusted(path, "the file of templates")
    try:
        document: Mapping[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(document, ServerSettings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, InvalidError) as error:
        raise InvalidError(f"{path} has no templates of a server: {error}") from None
