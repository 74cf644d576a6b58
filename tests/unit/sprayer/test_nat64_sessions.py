"""Sessions of a NAT64 (RFC 6146): their states, lifetimes and bounds, under mappings that they share."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from dios.sprayer import INSIDE, OUTSIDE
from dios.sprayer.functions.mapping import INWARD, MAPPED_END, MAPPING, OUTWARD, PEER, TURNED
from dios.sprayer.functions.tcp_states import (
    BOTH_FIN,
    ESTABLISHED,
    INSIDE_FIN,
    INSIDE_INIT,
    OUTSIDE_FIN,
    OUTSIDE_INIT,
    TRANS,
    lifetime_of,
    next_state,
)
from tests.support.sprayer.frames import ACK, FIN, RST, SYN, TCP, UDP, Made
from tests.unit.sprayer.test_spray_nat64 import CLIENT, SERVER, Translator, client, six

OTHER = "192.0.2.77"
STATES = (OUTSIDE_INIT, INSIDE_INIT, ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN, BOTH_FIN, TRANS)
STEPS = {
    # From inside, then from outside, in the order of STATES.
    "data": ((OUTSIDE_INIT, INSIDE_INIT, ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN, BOTH_FIN, ESTABLISHED),) * 2,
    "syn": (
        (ESTABLISHED, INSIDE_INIT, ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN, INSIDE_INIT, INSIDE_INIT),
        (OUTSIDE_INIT, ESTABLISHED, ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN, OUTSIDE_INIT, ESTABLISHED),
    ),
    "fin": (
        (OUTSIDE_INIT, INSIDE_INIT, INSIDE_FIN, BOTH_FIN, INSIDE_FIN, BOTH_FIN, ESTABLISHED),
        (OUTSIDE_INIT, INSIDE_INIT, OUTSIDE_FIN, OUTSIDE_FIN, BOTH_FIN, BOTH_FIN, ESTABLISHED),
    ),
    "rst": ((OUTSIDE_INIT, INSIDE_INIT, TRANS, TRANS, TRANS, BOTH_FIN, TRANS),) * 2,
}
SEED = 11


def test_states_of_tcp_follow_a_table() -> None:
    """Each flag from each side leads to the state written here; only three states live for two hours."""
    for flag, rows in STEPS.items():
        syn, fin, rst = (int(flag == name) for name in ("syn", "fin", "rst"))
        for inside, row in zip((True, False), rows, strict=True):
            states = [next_state(state, inside, syn, syn, fin, rst, False) for state in STATES]
            assert states == list(row), (flag, inside)
    assert [lifetime_of(state) for state in STATES] == [240, 240, 7440, 7440, 7440, 240, 240]


def established(translator: Translator, server: str) -> Made:
    """Open a connection to a server; return the client's packets as the server sees them."""
    seen = translator.opened(client(target=six(server)))
    translator.translated(replace(seen.other_way(), source=server, flags=SYN | ACK).frame(), OUTSIDE)
    return replace(seen, target=server, flags=ACK)


def test_a_reset_ends_its_own_session_alone() -> None:
    """Of two connections from one port, one is reset and ends; the mapping and the other stay for hours."""
    translator = Translator()
    first, other = established(translator, SERVER), established(translator, OTHER)
    assert (first.source, first.source_port) == (other.source, other.source_port)
    translator.translated(replace(first.other_way(), flags=RST).frame(), OUTSIDE)
    assert translator.held_after(239) == 6
    assert translator.held_after(5) == 4
    assert translator.give([replace(first.other_way(), flags=ACK).frame()], OUTSIDE) == {}
    translator.translated(replace(other.other_way(), payload=b"on").frame(), OUTSIDE)
    assert translator.held_after(7000) == 4
    assert translator.held_after(450) == 0
    assert translator.function.totals()["sessions_ended"] == 2
    # A reset that is followed by data was forged, or late: the connection has its hours again.
    first = established(translator, SERVER)
    for data, side, held in (
        (replace(first.other_way(), flags=ACK), OUTSIDE, 4),
        (client(flags=ACK), INSIDE, 4),
        (None, INSIDE, 0),
    ):
        translator.translated(replace(first.other_way(), flags=RST).frame(), OUTSIDE)
        if data is not None:
            assert len(translator.give([data.frame()] * 3, side)) == 3
        assert translator.held_after(300) == held


def test_an_idle_direction_ends_with_the_other() -> None:
    """Directions that were seen at different times do not keep each other for ever."""
    translator = Translator()
    out = client(UDP)
    seen = translator.opened(out)
    assert translator.held_after(200) == 4
    translator.translated(seen.other_way().frame(), OUTSIDE)
    for seconds in (110, 90, 90):
        assert translator.held_after(seconds) == 4
    assert translator.held_after(20) == 0


def test_filters_let_known_addresses_in() -> None:
    """With address-dependent filtering, any port of an address that has a session; nobody else."""
    translator = Translator(filtering="address-dependent")
    seen = translator.opened(client(UDP))
    back = replace(seen.other_way(), source_port=7)
    translator.translated(back.frame(), OUTSIDE)
    assert translator.give([replace(back, source=OTHER).frame()], OUTSIDE) == {}
    assert translator.causes() == {"refused": 1}
    # The session that the server opened keeps its address allowed when the first one has ended.
    assert translator.held_after(200) == 7
    translator.translated(back.frame(), OUTSIDE)
    assert translator.held_after(150) == 5
    translator.translated(replace(back, source_port=8).frame(), OUTSIDE)
    assert translator.held_after(301) == 0
    # Between two ends inside, the same rule.
    first, other = (
        translator.opened(client(UDP)),
        translator.opened(client(UDP, source="2001:db8::6", source_port=5000)),
    )
    there = client(UDP, target=six(other.source), target_port=other.source_port).frame()
    assert translator.give([there], INSIDE) == {}
    answer = client(UDP, source="2001:db8::6", source_port=5000, target=six(first.source))
    answer = replace(answer, target_port=first.source_port)
    assert translator.give([answer.frame()], INSIDE)[0].back
    assert translator.give([there], INSIDE)[0].back


def test_strangers_fill_neither_a_mapping_nor_a_table() -> None:
    """Hosts outside open half of a mapping's sessions, and none in a table that is nearly full."""
    translator = Translator(cores=1, sessions_max=8, flows_max=40)
    seen = translator.opened(client(UDP))
    strangers = [replace(seen.other_way(), source_port=1000 + number).frame() for number in range(20)]
    assert len(translator.give(strangers, OUTSIDE)) == 3
    servers = [client(UDP, target_port=2000 + number).frame() for number in range(20)]
    assert len(translator.give(servers, INSIDE)) == 4
    second = translator.opened(client(UDP, source_port=4003))
    assert (
        len(translator.give([client(UDP, source_port=4005 + 2 * n).frame() for n in range(2)], INSIDE)) == 2
    )
    strangers = [replace(second.other_way(), source_port=3000 + number).frame() for number in range(4)]
    assert translator.workers.statistics().flows["held"] == 30
    assert len(translator.give(strangers, OUTSIDE)) == 1
    assert translator.causes()["table_full"] == 17 + 16 + 3


def test_neighbours_inside_have_long_connections() -> None:
    """A connection between two ends inside lives for hours once both have answered, and closes."""
    translator = Translator()
    second = client(UDP, source="2001:db8::6", source_port=5000)
    other = translator.opened(replace(second, protocol=TCP))
    there = client(target=six(other.source), target_port=other.source_port)
    (sent,) = translator.give([there.frame()], INSIDE).values()
    assert sent.back
    mine = translator.opened(client(target=six(SERVER)))
    back = replace(second, protocol=TCP, target=six(mine.source), target_port=mine.source_port)
    for packet, flags in ((back, SYN | ACK), (there, ACK), (back, ACK)):
        assert translator.give([replace(packet, flags=flags).frame()], INSIDE)[0].back
    # Two mappings, and the sessions of both ends with each other; those with the server have ended.
    assert translator.held_after(300) == 8
    for packet in (there, back):
        translator.give([replace(packet, flags=FIN | ACK).frame()], INSIDE)
    assert translator.held_after(250) == 0


@pytest.mark.parametrize("filtering", ["endpoint-independent", "address-dependent"])
def test_tables_agree_after_any_packets(filtering: str) -> None:
    """Random packets in small tables: rows are pairs, counts are right, and in the end nothing is left."""
    translator = Translator(filtering=filtering, flows_max=48, sessions_max=6)
    chance = random.Random(SEED)  # noqa: S311 - test data
    ends: list[Made] = []
    for _ in range(60):
        for side in (INSIDE, OUTSIDE):
            frames = []
            for _ in range(12):
                protocol, flags = chance.choice((TCP, UDP)), chance.choice((SYN, ACK, FIN | ACK, RST))
                server = f"192.0.2.{chance.randrange(1, 5)}"
                if side == INSIDE:
                    packet = client(protocol, source=f"{CLIENT[:-1]}{chance.randrange(1, 4)}", flags=flags)
                    target = chance.choice([server, *[end.source for end in ends]])
                    packet = replace(packet, source_port=chance.randrange(1, 4), target=six(target))
                elif ends:
                    packet = replace(chance.choice(ends).other_way(), source=server, flags=flags)
                    packet = replace(packet, source_port=chance.randrange(1, 9))
                else:
                    continue
                frames.append(packet.frame())
            translator.give(frames, side)
        translator.held_after(chance.choice((1, 50, 150)))
        ends = check_tables(translator, filtering)
    translator.held_after(8000)
    assert translator.held_after(1) == 0
    totals = translator.function.totals()
    assert totals["sessions"] == totals["sessions_ended"] > 50
    assert totals["opened"] == totals["expired"] > 20
    assert {"table_full", "no_flow"} <= set(translator.causes())


def check_tables(translator: Translator, filtering: str) -> list[Made]:
    """Check all rows against each other; return a packet from each end outside."""
    table, words = translator.workers.flows[0].table, translator.workers.flows[0].words
    rows = [table[place] for place in range(len(words)) if int(words[place]) >> 32 > 1]
    by_kind = {kind: [row for row in rows if row["entry"]["kind"] == kind] for kind in range(7)}
    outside: Counter[tuple[int, ...]] = Counter()
    peers: Counter[tuple[int, ...]] = Counter()
    inside: Counter[tuple[int, ...]] = Counter()
    for row in by_kind[INWARD]:
        entry, end = row["entry"], (int(row["source_low"]), int(row["source_port"]), int(row["protocol"]))
        outside[end] += 1
        peers[(*end, int(row["target_low"]))] += 1
        inside[(int(entry["high"]), int(entry["low"]), int(entry["port"]), end[2])] += 1
    assert len(by_kind[OUTWARD]) + len(by_kind[TURNED]) == len(by_kind[INWARD])
    sessions_by_end = {
        tuple(int(row[name]) for name in ("source_high", "source_low", "source_port", "protocol")): int(
            row["entry"]["sessions"]
        )
        for row in by_kind[MAPPING]
    }
    assert sessions_by_end == inside
    ends = [
        (int(row["source_low"]), int(row["source_port"]), int(row["protocol"])) for row in by_kind[MAPPED_END]
    ]
    assert sorted(ends) == sorted(outside)
    allowed = {
        (
            *(int(row[name]) for name in ("source_low", "source_port")),
            row["protocol"] & 127,
            row["target_low"],
        ): int(row["entry"]["sessions"])
        for row in by_kind[PEER]
    }
    assert allowed == (peers if filtering == "address-dependent" else {})
    return [
        Made(".".join(map(str, (low & 0xFFFFFFFF).to_bytes(4))), SERVER, port, 80, protocol)
        for low, port, protocol in ends
    ]
