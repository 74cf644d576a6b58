"""Deep packet inspection: finds patterns in the bytes that the receivers of connections will read.

The state of an automaton changes with every packet, which the thesis' Table 3.1 has for this function alone.
So all packets of a connection go to its designated core (section 3.5 of the thesis), which has the streams of
both directions (``streams``) and the automata (``automaton``).

If a pattern drops, the function is strict: whatever is forwarded was inspected, and no receiver can get other
bytes than those, whatever the order, the repetitions and the checksums of segments are. If all patterns only
alert, it drops nothing.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.limits import (
    SPRAYER_ALERTS_KEPT,
    SPRAYER_INSPECTION_BYTES_MAX,
    SPRAYER_PACKET_ALERTS_MAX,
    SPRAYER_PATTERN_BYTES_MAX,
    SPRAYER_PATTERNS_MAX,
    SPRAYER_STREAM_WINDOW_MAX,
    SPRAYER_STREAM_WINDOW_MIN,
)
from dios.sprayer.compile.intrinsics import fence, int64, peek16, peek32, store_release, uint32, uint64
from dios.sprayer.flows.five_tuple import drop, get_five_tuple, reverse
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.functions.automaton import MATCH, advance, build_automaton, joined
from dios.sprayer.functions.closing import track_closing
from dios.sprayer.functions.streams import (
    FORGOTTEN,
    GAPS_MAX,
    NO_ROOM,
    READ,
    STREAM,
    UNKEPT,
    StreamTables,
    accept_stream,
    acknowledge,
    add_segment,
    ahead,
    has_right_sum,
    open_stream,
    plus,
    release_ring,
    ring_at,
)
from dios.sprayer.network_function import AlertReport, NetworkFunction
from dios.sprayer.packets.packet import (
    BAD_SUM,
    CHANGED,
    DROP,
    FINE,
    MATCHED,
    NO_FLOW,
    NOT_INSPECTED,
    TABLE_FULL,
    Batch,
    Flow,
    Kept,
    Packet,
    address_of,
)

INSPECTED, MATCHES, STOPPED, CHANGES, MISSED, UNSEEN, UNLISTED = range(7)
COUNTERS: Final = (
    *("inspected_bytes", "matches", "stopped", "changed", "missed_bytes"),
    *("not_inspected", "matches_not_listed"),
)
_ALERT_WORDS: Final = 10


class Pattern(NamedTuple):
    """A pattern: ``text`` in UTF-8, or ``hex`` digits of its bytes."""

    name: str
    text: str = ""
    hex: str = ""
    nocase: bool = False
    """True if ASCII letters match in any case."""
    action: str = "alert"
    """``alert``, or ``drop``: the packet that completes it and all later ones of its connection."""


class DeepInspection(NetworkFunction):
    """Finds ``patterns`` in TCP streams, UDP datagrams and ICMP echoes, and alerts or drops.

    A stream keeps at most ``window`` bytes, in one of the ``rings`` of its core. Each core keeps at most
    ``flows_max`` connections. Raises ``ValueError`` for patterns that are empty, equal or too long, and for
    sizes that are not possible.
    """

    writes_each_packet = True
    entry = (("row", "i4"), ("way", "u1"), ("fins", "u1"))

    def __init__(
        self,
        patterns: Sequence[Pattern],
        window: int = SPRAYER_STREAM_WINDOW_MIN,
        rings: int = 1024,
        flows_max: int = 65_536,
    ) -> None:
        _check_sizes(window, rings)
        self.flows_max = 2 * flows_max
        self.connections_max = flows_max
        self.window = window
        self.rings_each = rings
        self._patterns = list(patterns)
        words = [_bytes_of(pattern) for pattern in self._patterns]
        if not 0 < len(words) <= SPRAYER_PATTERNS_MAX:
            raise ValueError(f"{len(words)} patterns: give from 1 to {SPRAYER_PATTERNS_MAX}")
        if len({pattern.name for pattern in self._patterns}) < len(words):
            raise ValueError("two patterns have the same name; give each its own")
        self.strict = any(pattern.action == "drop" for pattern in self._patterns)
        # Two automata in the same tables: of patterns with and without case.
        chosen = [
            [i for i, pattern in enumerate(self._patterns) if pattern.nocase == fold]
            for fold in (False, True)
        ]
        drops = [pattern.action == "drop" for pattern in self._patterns]
        automata = [
            build_automaton([words[i] for i in which], [drops[i] for i in which], folded=fold)
            for which, fold in zip(chosen, (False, True), strict=True)
        ]
        automata = [
            automaton._replace(
                ends=np.array([which[end] if end >= 0 else -1 for end in automaton.ends], np.int32)
            )
            for which, automaton in zip(chosen, automata, strict=True)
        ]
        both, self.begins = joined(automata)
        """(3,) the first row of each automaton, and the one behind the last."""
        self.steps, self.classes, self.ends, self.shorter, self.stops = both
        self.automata = np.array([len(which) for which in chosen])
        """(2,) the number of patterns of each automaton."""

    def prepare(self, cores: int) -> None:
        """Create streams, rings, alerts and counters of each core."""
        size = cores * self.rings_each * self.window
        if size > SPRAYER_INSPECTION_BYTES_MAX:
            raise ValueError(
                f"rings of {size >> 20} MiB for {cores} cores: at most "
                f"{SPRAYER_INSPECTION_BYTES_MAX >> 20} MiB are possible; set a smaller window or fewer rings"
            )
        rows = cores * self.connections_max
        self.streams = np.zeros(2 * rows, STREAM)
        self.streams["ring"] = -1
        self.ranges = np.zeros((2 * rows, GAPS_MAX, 2), np.uint32)
        self.blocked = np.zeros(rows, np.uint8)
        """(rows,) 1 for connections with a pattern that drops."""
        self.free_rows = np.arange(rows, dtype=np.int32).reshape(self.connections_max, cores).T.copy()
        self.rows_left = np.full((cores, 16), self.connections_max, np.int64)
        self.rings = np.zeros(size, np.uint8)
        every = np.arange(cores * self.rings_each, dtype=np.int32)
        self.free_rings = every.reshape(self.rings_each, cores).T.copy()
        self.rings_left = np.full((cores, 16), self.rings_each, np.int64)
        self.hits = np.zeros((cores, -(-len(self._patterns) // 16) * 16), np.int64)
        """(cores, patterns) matches."""
        self.alerts = np.zeros((cores * SPRAYER_ALERTS_KEPT, _ALERT_WORDS), np.uint64)
        """(cores * alerts, words) pattern, flow, end, and the number of the alert plus one."""
        self.alert_words = np.zeros(cores * SPRAYER_ALERTS_KEPT, np.uint64)
        """(cores * alerts,) odd while a row of ``alerts`` is written."""
        self.told = np.zeros((cores, 16), np.int64)
        """(cores, ...) the number of alerts, and those that the present packet may still list."""
        self.counts = self.counters(cores, *COUNTERS)

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Inspect packets, on the designated core of their flow."""
        core = flows.core
        tables = StreamTables(
            self.streams, self.ranges, self.rings, self.free_rings, self.rings_left, self.window
        )
        alerts = slice(core * SPRAYER_ALERTS_KEPT, (core + 1) * SPRAYER_ALERTS_KEPT)
        matches = MatchLists(
            self.hits[core], self.told[core], self.alerts[alerts], self.alert_words[alerts], self.counts[core]
        )
        automata = Automata(
            self.steps, self.classes, self.ends, self.shorter, self.stops, self.begins, self.automata
        )
        for packet in batch:
            self.told[core, 1] = SPRAYER_PACKET_ALERTS_MAX
            row, way = int64(-1), int64(0)
            if packet.protocol == 6:
                flow = get_five_tuple(packet)
                entry = flows.get_flow(flow)
                if entry is not None:
                    row, way = int64(entry.row), int64(entry.way)
                    if packet.syn | packet.fin | packet.rst:
                        track_closing(packet, flow, reverse(flow), flows)
                elif packet.opens:
                    row = self.begin(flow, flows)
            inspect(packet, row, way, core, self.strict, self.blocked, tables, automata, matches)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Forward ICMP errors; no other packet is regular."""

    def begin(self, flow: Flow, flows: Flows) -> int:
        """Store both directions of a new connection; return its row, or -1 if there is no room."""
        core = flows.core
        if self.rows_left[core, 0] == 0:
            return int64(-1)
        row = int64(self.free_rows[core, self.rows_left[core, 0] - 1])
        for way in range(2):
            entry = flows.insert_local_flow(reverse(flow) if way else flow)
            if entry is None:
                flows.remove_local_flow(flow)
                return int64(-1)
            entry.row, entry.way, entry.fins = row, way, 0
            self.streams[2 * row + way].live = 0
        self.blocked[row] = 0
        self.rows_left[core, 0] -= 1
        return row

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:
        """Keep both directions while one of them is in use; then free the row and the rings."""
        other, row = reverse(flow), int64(entry.row)
        if flows.still_seen(other):
            return True
        tables = StreamTables(
            self.streams, self.ranges, self.rings, self.free_rings, self.rings_left, self.window
        )
        for way in range(2):
            release_ring(tables, self.streams[2 * row + way], flows.core)
            self.streams[2 * row + way].live = 0
        flows.remove_local_flow(other)
        self.free_rows[flows.core, self.rows_left[flows.core, 0]] = row
        self.rows_left[flows.core, 0] += 1
        return False

    def totals(self) -> dict[str, int]:
        """Return the sums of the counters, and the matches of each pattern that was found."""
        sums = self.hits.sum(axis=0)
        matches = {
            f"found {pattern.name}": int(sums[i]) for i, pattern in enumerate(self._patterns) if sums[i]
        }
        return super().totals() | matches

    def recent_alerts(self) -> list[AlertReport]:
        """Return the last alerts, the newest of each core first."""
        alerts = []
        for core in range(len(self.told)):
            places = slice(core * SPRAYER_ALERTS_KEPT, (core + 1) * SPRAYER_ALERTS_KEPT)
            before = self.alert_words[places].copy()
            rows = self.alerts[places].copy()
            whole = (before % 2 == 0) & (before == self.alert_words[places]) & (rows[:, -1] > 0)
            rows = rows[whole]
            alerts += [self._alert(row) for row in rows[np.argsort(-rows[:, -1].astype(np.int64))].tolist()]
        return alerts

    def _alert(self, row: Sequence[int]) -> AlertReport:
        return {
            "pattern": self._patterns[row[0]].name,
            "source": address_of(row[1], row[2]),
            "source_port": row[5],
            "target": address_of(row[3], row[4]),
            "target_port": row[6],
            "protocol": row[7],
            "end": row[8],
            "dropped": self._patterns[row[0]].action == "drop",
        }


def _check_sizes(window: int, rings: int) -> None:
    low, high = SPRAYER_STREAM_WINDOW_MIN, SPRAYER_STREAM_WINDOW_MAX
    if not low <= window <= high or window & (window - 1):
        raise ValueError(f"a window of {window} bytes: choose a power of two from {low} to {high}")
    if rings < 1:
        raise ValueError(f"{rings} rings: a core needs at least one")


def _bytes_of(pattern: Pattern) -> bytes:
    """Return the bytes of a pattern; raise ``ValueError`` if it is not valid."""
    if pattern.action not in {"alert", "drop"}:
        raise ValueError(f"pattern {pattern.name!r}: action {pattern.action!r} is neither alert nor drop")
    if bool(pattern.text) == bool(pattern.hex):
        raise ValueError(f"pattern {pattern.name!r}: give either text or hex")
    if pattern.hex and set(pattern.hex) - set(string.hexdigits + " "):
        raise ValueError(f"pattern {pattern.name!r}: {pattern.hex!r} are not hexadecimal digits")
    try:
        content = pattern.text.encode() or bytes.fromhex(pattern.hex)
    except ValueError:
        raise ValueError(f"pattern {pattern.name!r}: give two hexadecimal digits for each byte") from None
    if not 0 < len(content) <= SPRAYER_PATTERN_BYTES_MAX:
        raise ValueError(
            f"pattern {pattern.name!r} has {len(content)} bytes; give from 1 to {SPRAYER_PATTERN_BYTES_MAX}"
        )
    return content


class Automata(NamedTuple):
    """The automata of a function, joined."""

    steps: npt.NDArray[np.uint32]
    classes: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int32]
    shorter: npt.NDArray[np.int32]
    stops: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]
    patterns: npt.NDArray[np.int64]


class MatchLists(NamedTuple):
    """The lists of one core."""

    hits: npt.NDArray[np.int64]
    """(patterns,)"""
    told: npt.NDArray[np.int64]
    """(...) the number of alerts, and those that the present packet may still list."""
    alerts: npt.NDArray[np.uint64]
    """(alerts, words)"""
    words: npt.NDArray[np.uint64]
    """(alerts,) odd while a row of ``alerts`` is written."""
    counts: npt.NDArray[np.int64]
    """(counters,)"""


@no_refcount_kernel
def inspect(
    packet: Packet,
    row: int,
    way: int,
    core: int,
    strict: bool,  # noqa: FBT001 - compiled
    blocked: npt.NDArray[np.uint8],
    tables: StreamTables,
    automata: Automata,
    matches: MatchLists,
) -> None:
    """Inspect one packet; ``row`` is that of its connection, or -1."""
    which = 2 * row + way
    at, size = packet.address + packet.payload, int64(packet.end) - packet.payload
    cause = int64(FINE)
    first = uint32(0)
    later = int64(0)
    if packet.protocol == 17:
        size = int64(packet.transport) - packet.payload + int64(peek16(packet.address + packet.transport + 4))
    elif packet.protocol != 6:
        pass
    elif row < 0:
        cause = int64(TABLE_FULL if packet.opens else NO_FLOW)
    elif blocked[row]:
        # A reset ends the connection for its receiver, who does not read what is in it.
        if packet.rst == 0 or size > 0:
            drop(packet, MATCHED)
        return
    elif not has_right_sum(packet):
        cause, size = int64(BAD_SUM), int64(0)
    else:
        first = plus(peek32(packet.address + packet.transport + 4), int64(packet.syn))
        cause, later = _take_flags(packet, which, first, core, strict, tables, matches)
        if packet.rst:
            return
        if cause == FINE and size > 0 and not tables.streams[which].live:
            cause = int64(NO_FLOW)
        if packet.opens and tables.streams[which].first != first and size > 0:
            cause = int64(NO_FLOW)
    if cause != FINE:
        matches.counts[UNSEEN] += 1
        if strict:
            drop(packet, cause)
            return
    in_stream = packet.protocol == 6 and row >= 0 and cause == FINE
    stop = False
    # First what followed a gap in the other direction, then the packet itself.
    for turn in range(2):
        stream, there, count = int64(-1), at, size
        if turn == 0:
            stream, there, count = which ^ 1, int64(0), later
        elif in_stream and size > 0:
            stream = which
            there, count = _add(packet, which, at, first, size, core, strict, tables, matches)
        while count > 0 and packet.verdict != DROP:
            done, stops = _read_piece(packet, stream, there, count, tables, automata, matches)
            stop = stop or stops
            count -= done
    if stop:
        drop(packet, MATCHED)
    if packet.verdict == DROP and packet.cause == MATCHED and row >= 0:
        blocked[row] = 1
        matches.counts[STOPPED] += 1


@no_refcount_kernel
def _take_flags(
    packet: Packet,
    which: int,
    first: int,
    core: int,
    strict: bool,  # noqa: FBT001 - compiled
    tables: StreamTables,
    matches: MatchLists,
) -> tuple[int, int]:
    """Open, accept or acknowledge; return a cause, and the number of bytes to read in the other direction."""
    if packet.opens:
        open_stream(tables, which, packet, first, core)
    elif packet.syn:
        accept_stream(tables, which, packet, first, core)
    elif packet.rst == 0:
        missed, more = acknowledge(tables, which ^ 1, packet, core, strict)
        matches.counts[MISSED] += missed
        if missed > 0 and strict:
            return int64(NOT_INSPECTED), int64(0)
        tables.streams[which].fin |= packet.fin
        return int64(FINE), more
    return int64(FINE), int64(0)


@no_refcount_kernel
def _add(
    packet: Packet,
    which: int,
    at: int,
    first: int,
    size: int,
    core: int,
    strict: bool,  # noqa: FBT001 - compiled
    tables: StreamTables,
    matches: MatchLists,
) -> tuple[int, int]:
    """Add a segment to its stream; return the address of bytes to read (0 for the ring), and their number."""
    code, end, changed = add_segment(tables, which, tables.streams[which], at, first, size, core, strict)
    if changed:
        matches.counts[CHANGES] += 1
        if strict:
            drop(packet, CHANGED)
    elif code in (NO_ROOM, FORGOTTEN):
        matches.counts[UNSEEN] += 1
        if strict:
            drop(packet, NOT_INSPECTED)
    if code == UNKEPT:
        return at + size - end, end
    return int64(0), end if code == READ else int64(0)


@no_refcount_kernel
def _read_piece(
    packet: Packet,
    which: int,
    at: int,
    size: int,
    tables: StreamTables,
    automata: Automata,
    matches: MatchLists,
) -> tuple[int, bool]:
    """Inspect bytes at an address, or for 0 in the ring of a stream, up to where it wraps around.

    Return their number, and True if a pattern that drops ends there. ``which`` is -1 for no stream.
    """
    stream = tables.streams[max(which, int64(0))]
    past = ahead(stream.next, stream.first) if which >= 0 else int64(0)
    if at == 0:
        at, room = ring_at(tables, stream.ring, stream.next)
        size = min(room, size)
    matches.counts[INSPECTED] += size
    stop = False
    for kind in range(2):
        if automata.patterns[kind] == 0:
            continue
        state, begin, done = int64(0), automata.begins[kind], int64(0)
        if which >= 0:
            state = int64(stream.folded if kind else stream.state)
        while done < size:
            count, state = advance(
                at + done, size - done, state, automata.steps[begin:], automata.classes[kind]
            )
            done += count
            if state & MATCH:
                state ^= MATCH
                stop = stop or automata.stops[begin + state] != 0
                _list_matches(packet, begin, state, past + done, automata, matches)
        if which >= 0 and kind:
            stream.folded = uint32(state)
        elif which >= 0:
            stream.state = uint32(state)
    if which >= 0:
        stream.next = plus(stream.next, size)
    return size, stop


@no_refcount_kernel
def _list_matches(
    packet: Packet, begin: int, state: int, past: int, automata: Automata, matches: MatchLists
) -> None:
    """Count and list the patterns that end in a state, as far as the packet may list them."""
    if automata.ends[begin + state] < 0:
        state = int64(automata.shorter[begin + state])
    while state > 0:
        matches.counts[MATCHES] += 1
        if matches.told[1] == 0:
            matches.counts[UNLISTED] += 1
            return
        matches.told[1] -= 1
        pattern = int64(automata.ends[begin + state])
        matches.hits[pattern] += 1
        _write_alert(packet, pattern, past, matches)
        state = int64(automata.shorter[begin + state])


@no_refcount_kernel
def _write_alert(packet: Packet, pattern: int, past: int, matches: MatchLists) -> None:
    """Write an alert in place of this core's oldest."""
    matches.told[0] += 1
    number = matches.told[0]
    place = number & (SPRAYER_ALERTS_KEPT - 1)
    word = matches.words[place]
    store_release(matches.words, place, word | uint64(1))
    fence()
    row = matches.alerts[place]
    row[0] = uint64(pattern)
    row[1], row[2] = packet.source_high, packet.source_low
    row[3], row[4] = packet.target_high, packet.target_low
    row[5], row[6] = uint64(packet.source_port), uint64(packet.target_port)
    row[7], row[8], row[9] = uint64(packet.protocol), uint64(past), uint64(number)
    store_release(matches.words, place, word + uint64(2))
