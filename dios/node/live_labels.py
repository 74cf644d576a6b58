"""The rack and labels that ``dios node label`` has given to a node: ``DATA/labels.json``.

Once the file exists, the settings ``rack`` and ``labels`` have no effect, wherever they come from. To return
to the settings, stop the node and remove the file.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DamagedError, InvalidError
from dios.node.settings import Settings
from dios.transport.identity import durable_files
from dios.wire import node_labels
from dios.wire.fields import Label

NAME: Final = "labels.json"
_BYTES_MAX: Final = 64 * limits.KIB

_log: Final = logging.getLogger(__name__)


class _Stored(Struct, frozen=True, forbid_unknown_fields=True):
    rack: Label
    labels: Annotated[dict[Label, Label], Meta(max_length=limits.NODE_LABELS_MAX)]


def effective(settings: Settings) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return rack and labels of a node that starts with these settings. Raise DamagedError."""
    stored = read(settings.data)
    configured = settings.rack, settings.labels
    if stored is None:
        return configured
    if configured not in (stored, ("", ())):
        _log.warning(
            "rack and labels are those that `dios node label` has set, not those of the settings",
            extra={"file": str(settings.data / NAME)},
        )
    return stored


def read(data: Path) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """Return the rack and labels that were set live in a data directory, or None. Raise DamagedError."""
    try:
        with (data / NAME).open("rb") as file:
            text = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        stored = msgspec.json.decode(text, type=_Stored)
        return node_labels.changed("", (), {**stored.labels, node_labels.RACK: stored.rack or None})
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidError) as error:
        raise DamagedError(
            f"cannot read the labels of the node from {data / NAME}: {error}. Correct the file, or remove it "
            "and label the node again with `dios node label`."
        ) from None


def write(data: Path, rack: str, labels: tuple[tuple[str, str], ...]) -> None:
    """Store rack and labels durably."""
    stored = {"rack": rack, "labels": dict(labels)}
    durable_files.write(data / NAME, json.dumps(stored, indent=2, ensure_ascii=False).encode() + b"\n")


def write_nothing(rack: str, labels: tuple[tuple[str, str], ...]) -> None:
    """Store nothing: the writer of a node that has no data directory."""
