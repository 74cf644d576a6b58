"""The format of a recorded node. The host writes recordings, and ``dios.core.replay`` runs them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dios.core.events import Event
from dios.core.model.accounts import Defaults
from dios.core.remote.peers import Here
from dios.ids import NodeId, Principal

RECORDING_VERSION: Final = 2


class RecordingHeader(Struct, frozen=True, array_like=True):
    """The arguments with which the recorded core was made.

    ``digest_every`` is the number of steps from one digest of the state to the next.
    """

    version: int
    owner: Principal
    restricted: bool
    defaults: Defaults = Defaults()
    here: Here = Here()
    forgotten: tuple[NodeId, ...] = ()
    digest_every: int = 1


class Recorded(Struct, frozen=True, array_like=True):
    """One step: its event, the entropy it drew, the BLAKE3 digest of its encoded outcome, and the digest of
    the state after it, which is empty if it was not computed.
    """

    event: Event
    entropy: bytes
    digest: bytes
    state: bytes = b""
