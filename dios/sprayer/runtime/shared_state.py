"""Flow tables that a second host continues: the state of one host's function in a store of objects.

One host owns the function and processes packets; others wait. On one host only the designated core writes a
flow. Likewise each host writes keys of its own alone, so nothing is locked:

- ``settings``: the seed of the hash, the number of cores and the layout of the tables, by the first host;
- ``claim/HOST``: a number that only grows; the highest one is that of the owner;
- ``beat/HOST``: a counter that the owner raises all the time;
- ``rows/HOST/CORE/BLOCK``: the flows in a block of a core's table.

With the same seed and the same number of cores, a flow has the same designated core, and the same place, on
every host. So a host that takes over copies rows to their places, and ports of a NAT stay with their cores.

The owner writes changed blocks in rounds. It stops by itself when it could not write for ``SPRAYER_LEASE_S``.
Another host takes over when it saw no beat for ``SPRAYER_TAKEOVER_S``, which is longer.
Changes of the last round are lost with a host: the newest flows, which their clients open again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from dios.errors import DamagedError, DiosError, InvalidError
from dios.limits import (
    SPRAYER_BEAT_S,
    SPRAYER_BLOCK,
    SPRAYER_CORES_MAX,
    SPRAYER_ENTRY_BYTES_MAX,
    SPRAYER_HOSTS_MAX,
    SPRAYER_LEASE_S,
    SPRAYER_TAKEOVER_S,
)
from dios.sprayer.flows import flow_table
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.runtime.worker_kernels import NOW
from dios.sprayer.runtime.workers import Workers

_log: Final = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
RELEASED: Final = -1
"""The beat of an owner that has ended and written everything."""
_TAG_BITS: Final = np.uint64(32)
_ODD: Final = np.uint64(1)

T = TypeVar("T")

_Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Counter = Annotated[int, Meta(ge=RELEASED, le=2**62)]
"""The number of a claim, or a beat."""
_ROW_BYTES_MAX: Final = 2 * SPRAYER_ENTRY_BYTES_MAX
"""A row has the state of a flow, its endpoints and its time."""


class StateStore(Protocol):
    """A linearizable map, such as ``dios.lib.keyvalue.KeyValueStore``; calls raise ``DiosError``."""

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""

    def __iter__(self) -> Iterator[str]:
        """Return the keys with values."""


class SharedSettings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The settings that all hosts of a function have in common."""

    version: _Version
    function: Annotated[str, Meta(max_length=200)]
    seed: Annotated[int, Meta(ge=0)]
    cores: Annotated[int, Meta(ge=1, le=SPRAYER_CORES_MAX)]
    layout: Annotated[str, Meta(max_length=4000)]
    """The number of places of a core's table, and the fields of a row."""


class BlockRows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The flows of a block: places in the core's table (uint32), words (uint64) and rows, as bytes."""

    version: _Version
    places: Annotated[bytes, Meta(max_length=4 * SPRAYER_BLOCK)]
    words: Annotated[bytes, Meta(max_length=8 * SPRAYER_BLOCK)]
    rows: Annotated[bytes, Meta(max_length=_ROW_BYTES_MAX * SPRAYER_BLOCK)]


_decode_settings: Final = msgspec.msgpack.Decoder(SharedSettings).decode
_decode_rows: Final = msgspec.msgpack.Decoder(BlockRows).decode
_decode_counter: Final = msgspec.msgpack.Decoder(_Counter).decode


class HostClaim(NamedTuple):
    """A claim; the highest one counts."""

    number: int
    host: str


class SharedState:
    """A host's view of the store; for one thread at a time.

    ``host`` is the name of this host, which no other one has. ``clock`` returns seconds, for tests.
    """

    def __init__(self, store: StateStore, host: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not host or "/" in host or len(host) > 64:
            raise InvalidError(f"{host!r} is no name of a host: give 1 to 64 characters without a slash")
        self.host: Final = host
        self._store: Final = store
        self._clock: Final = clock
        self._number = 0
        self._count = 0
        self._written = 0.0
        """The time of the last beat that was certainly written."""
        self._seen: tuple[str, int, int] = ("", 0, 0)
        """The owner, its claim and its beat, as they were seen last."""
        self._seen_at = clock()
        self._former = ""
        self._exported: list[npt.NDArray[np.uint64]] = []
        self._last = (-1, -1)
        self.behind = 0
        """Changed blocks that are not written yet."""

    # Settings and ownership -------------------------------------------------------------------------------

    def check(self, function: NetworkFunction, cores: int) -> None:
        """Raise InvalidError if this host could not continue the flows of the others.

        That is so if the function keeps state elsewhere than in flows, or if the store is for another
        function, number of cores, or size of tables.
        """
        if not function.state_in_flows:
            raise InvalidError(
                f"{type(function).__name__} has state besides its flows, so another host cannot continue it"
            )
        self._settings(function, cores)

    def settle(self, function: NetworkFunction, cores: int, seed: int) -> int:
        """Return the seed of all hosts, which the first owner stores. Only an owner may call it.

        Raises the errors of ``check``.
        """
        settings = self._settings(function, cores)
        if settings is not None:
            return settings.seed
        mine = SharedSettings(FORMAT_VERSION, type(function).__name__, seed, cores, _layout(function))
        self._store.put("settings", msgspec.msgpack.encode(mine))
        return seed

    def _settings(self, function: NetworkFunction, cores: int) -> SharedSettings | None:
        data = self._store.get("settings")
        if data is None:
            return None
        settings, kind = _decoded(data, _decode_settings), type(function).__name__
        if (settings.function, settings.cores, settings.layout) != (kind, cores, _layout(function)):
            raise InvalidError(
                f"the shared state is of {settings.function} on {settings.cores} cores; this is {kind} "
                f"on {cores}, "
                "or has another flows_max. Start all hosts alike, or give them a new store"
            )
        return settings

    def wait_for_turn(self, stopped: threading.Event) -> bool:
        """Wait until this host owns the function; return False if ``stopped`` is set before."""
        while not stopped.is_set():
            try:
                if self.try_turn():
                    return True
            except DiosError as error:
                _log.warning("cannot read the state of other hosts", extra={"why": str(error)})
            stopped.wait(SPRAYER_BEAT_S)
        return False

    def try_turn(self) -> bool:
        """Claim the function if it has no owner, or a silent one; return True if this host owns it now."""
        owner = self._owner()
        if owner is not None and owner.host != self.host:
            beat = self._beat_of(owner.host)
            seen = (owner.host, owner.number, beat)
            if seen != self._seen:
                self._seen, self._seen_at = seen, self._clock()
            if beat != RELEASED and self._clock() - self._seen_at < SPRAYER_TAKEOVER_S:
                return False
        self._former = owner.host if owner is not None else ""
        self._number = owner.number + 1 if owner is not None else 1
        begun = self._clock()
        self._store.put(f"beat/{self.host}", msgspec.msgpack.encode(self._count))
        self._store.put(f"claim/{self.host}", msgspec.msgpack.encode(self._number))
        self._written = begun
        # All claims are written before they are read, so of two hosts at least one sees both.
        return self.owns()

    def owns(self) -> bool:
        """Return True if no other host has a higher claim."""
        owner = self._owner()
        return owner is not None and owner == HostClaim(self._number, self.host)

    def beat(self) -> bool:
        """Show that this host lives; return False if it must stop, because another one owns the function."""
        begun = self._clock()
        try:
            if not self.owns():
                return False
            self._count += 1
            self._store.put(f"beat/{self.host}", msgspec.msgpack.encode(self._count))
            self._written = begun
        except DiosError as error:
            _log.warning("cannot write the state for other hosts", extra={"why": str(error)})
        return self._clock() - self._written < SPRAYER_LEASE_S

    def keep(self, workers: Workers, ended: threading.Event, lost: Callable[[], None]) -> None:
        """Write beats and changes until ``ended``; call ``lost`` and return if this host must stop."""
        while not ended.wait(SPRAYER_BEAT_S):
            if not self.beat():
                lost()
                return
            try:
                self.write_changes(workers, within_s=SPRAYER_BEAT_S)
            except DiosError as error:
                _log.warning("cannot write flows for other hosts", extra={"why": str(error)})

    def release(self) -> None:
        """Let another host take over at once."""
        if self.owns():
            self._store.put(f"beat/{self.host}", msgspec.msgpack.encode(RELEASED))

    def _owner(self) -> HostClaim | None:
        hosts = [key.partition("/")[2] for key in self._store if key.startswith("claim/")]
        if len(hosts) > SPRAYER_HOSTS_MAX:
            raise DamagedError(
                f"{len(hosts)} hosts share this state; at most {SPRAYER_HOSTS_MAX} are possible"
            )
        claims = [
            HostClaim(_decoded(self._store.get(f"claim/{host}") or b"", _decode_counter), host)
            for host in hosts
        ]
        return max(claims, default=None)

    def _beat_of(self, host: str) -> int:
        return _decoded(self._store.get(f"beat/{host}") or b"", _decode_counter)

    # Tables -----------------------------------------------------------------------------------------------

    def take_over(self, workers: Workers) -> int:
        """Copy the former owner's flows into tables that no worker uses yet; return their number.

        Then write them as this host's own, so that a third host finds all of them. Raises ``DamagedError``
        for rows that cannot be of these tables.
        """
        held = 0
        # Rows of this host's own former time are older than those of the owner after it.
        keys = [key for key in self._store if key.startswith(f"rows/{self._former}/")] if self._former else []
        for key in keys:
            core, block = _core_and_block(key, workers)
            data = self._store.get(key)
            if data is not None:
                held += _insert(workers, core, block, _decoded(data, _decode_rows))
        if workers.function is not None:
            workers.function.continue_flows(workers.flows)
        self._exported = [np.zeros_like(_words(workers, core)) for core in range(workers.cores)]
        own = f"rows/{self.host}/"
        for key in [key for key in self._store if key.startswith(own)]:
            core, block = _core_and_block(key, workers)
            self._write_block(workers, core, block)
            self._beat_if_due()
        self.write_changes(workers)
        return held

    def write_changes(self, workers: Workers, *, within_s: float | None = None) -> None:
        """Write the blocks that have changed since they were written; workers may be running.

        With ``within_s`` the rest is left for the next call after that time.
        """
        begun = self._clock()
        changed = [
            (core, block)
            for core in range(workers.cores)
            for block in np.unique(
                np.flatnonzero(_words(workers, core) != self._exported[core]) // SPRAYER_BLOCK
            ).tolist()
        ]
        # In turns, so that a block that always changes keeps no other one waiting.
        later = [place for place in changed if place > self._last]
        order = later + changed[: len(changed) - len(later)]
        self.behind = len(order)
        for core, block in order:
            if within_s is not None and self._clock() - begun > within_s:
                return
            self._write_block(workers, core, block)
            self._last = core, block
            self.behind -= 1
            self._beat_if_due()

    def _beat_if_due(self) -> None:
        if self._clock() - self._written > SPRAYER_BEAT_S:
            self.beat()

    def _write_block(self, workers: Workers, core: int, block: int) -> None:
        part = slice(block * SPRAYER_BLOCK, (block + 1) * SPRAYER_BLOCK)
        words, rows = _consistent(_words(workers, core)[part], _rows(workers, core)[part])
        used = np.flatnonzero(words >> _TAG_BITS > flow_table.REMOVED)
        used = used[words[used] & _ODD == 0]
        data = BlockRows(
            FORMAT_VERSION,
            (used + part.start).astype("<u4").tobytes(),
            words[used].astype("<u8").tobytes(),
            rows[used].tobytes(),
        )
        self._store.put(f"rows/{self.host}/{core}/{block}", msgspec.msgpack.encode(data))
        # A place in change is odd here, so it differs when its change is complete.
        self._exported[core][part] = words


def _consistent(
    words: npt.NDArray[np.uint64], rows: flow_table.Table
) -> tuple[npt.NDArray[np.uint64], flow_table.Table]:
    """Return copies of words and rows; the word of a row that changed meanwhile is odd."""
    barrier = threading.Lock()
    before = words.copy()
    with barrier:
        copied = rows.copy()
    with barrier:
        after = words.copy()
    return np.where(before == after, before, before | _ODD), copied


def _insert(workers: Workers, core: int, block: int, data: BlockRows) -> int:
    """Put the rows of a block into their places; return their number."""
    places = np.frombuffer(data.places, "<u4").astype(np.int64) if len(data.places) % 4 == 0 else None
    rows = _rows(workers, core)
    count = 0 if places is None else places.size
    if places is None or len(data.words) != 8 * count or len(data.rows) != rows.itemsize * count:
        raise DamagedError(f"the flows of core {core}, block {block} have lengths that contradict each other")
    words = np.frombuffer(data.words, "<u8").astype(np.uint64)
    inside = (places >= block * SPRAYER_BLOCK) & (places < (block + 1) * SPRAYER_BLOCK) & (places < rows.size)
    usable = (words >> _TAG_BITS > flow_table.REMOVED) & (words & _ODD == 0)
    if not inside.all() or not usable.all() or np.unique(places).size < count:
        raise DamagedError(f"the flows of core {core}, block {block} are not of this block")
    rows[places] = np.frombuffer(data.rows, rows.dtype)
    _words(workers, core)[places] = words
    flows = workers.flows[core]
    flows.seen[core * flows.words.size + core * rows.size + places] = workers.control[NOW]
    flows.books[flow_table.HELD] += count
    return count


def _words(workers: Workers, core: int) -> npt.NDArray[np.uint64]:
    flows = workers.flows[core]
    places = flows.words.size // workers.cores
    return flows.words[core * places : (core + 1) * places]


def _rows(workers: Workers, core: int) -> flow_table.Table:
    flows = workers.flows[core]
    places = flows.words.size // workers.cores
    return flows.table[core * places : (core + 1) * places]


def _core_and_block(key: str, workers: Workers) -> tuple[int, int]:
    words = key.split("/")
    if len(words) == 4 and words[2].isdecimal() and words[3].isdecimal():
        core, block = int(words[2]), int(words[3])
        if core < workers.cores and block * SPRAYER_BLOCK < _words(workers, 0).size:
            return core, block
    raise DamagedError(f"the key {key!r} is not of a block of these tables")


def _layout(function: NetworkFunction) -> str:
    """Describe the tables of a function: hosts with the same description can copy rows."""
    row = flow_table.table_type(flow_table.entry_type(list(function.entry)))
    return f"{flow_table.slots_for(function.flows_max)} places of {np.dtype(row).descr}"


def _decoded(data: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        decoded = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the shared state is damaged: {error}") from None
    if isinstance(decoded, SharedSettings | BlockRows) and decoded.version != FORMAT_VERSION:
        raise DamagedError(
            f"the shared state has version {decoded.version}; this program reads {FORMAT_VERSION}"
        )
    return decoded
