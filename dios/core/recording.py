"""What a recording of a node holds, so that host and simulator agree.

Not for: writing or reading files.
"""

from __future__ import annotations

from msgspec import Struct

from dios.core.events import Event
from dios.core.model.accounts import Defaults
from dios.core.remote.peers import Here
from dios.ids import NodeId, Principal


class RecordingHeader(Struct, frozen=True, array_like=True):
    """How the recorded core was made."""

    version: int
    owner: Principal
    restricted: bool
    defaults: Defaults = Defaults()
    here: Here = Here()
    forgotten: tuple[NodeId, ...] = ()


class Recorded(Struct, frozen=True, array_like=True):
    """One step: its event, the entropy it drew, and the BLAKE3 digest of its encoded outcome."""

    event: Event
    entropy: bytes
    digest: bytes
