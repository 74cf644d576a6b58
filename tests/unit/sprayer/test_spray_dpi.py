"""Deep packet inspection: it finds what receivers read, however segments are cut, mixed and repeated."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios.sprayer import MemoryEngine, Workers
from dios.sprayer.functions.automaton import build_automaton
from dios.sprayer.functions.dpi import DeepInspection, Pattern
from dios.sprayer.runtime.auto_steering import AutoSteering
from tests.support.sprayer.frames import ACK, FIN, ICMP, RST, SYN, UDP, Made, ones_sum

CLIENT, SERVER = ("10.0.0.1", 1234), ("192.0.2.9", 80)
WORDS = ("abab", "ba", "aab")
SCALED = b"\x03\x03\x07\x00"


class Segment(NamedTuple):
    """A segment of one connection; numbers are counted from the side's SYN."""

    at: int
    payload: bytes = b""
    flags: int = ACK
    ack: int = 1
    back: bool = False
    window: int = 512
    options: bytes = b""
    good: bool = True

    def frame(self, starts: tuple[int, int] = (2**32 - 20, 900), client: tuple[str, int] = CLIENT) -> bytes:
        """The frame; the client's stream passes the end of its numbers."""
        sender, other = (SERVER, client) if self.back else (client, SERVER)
        mine, theirs = starts[::-1] if self.back else starts
        ends = Made(sender[0], other[0], sender[1], other[1])
        head = struct.pack(
            *(">HHIIBBHHH", sender[1], other[1], (mine + self.at) % 2**32, (theirs + self.ack) % 2**32),
            *((5 + len(self.options) // 4) << 4, self.flags, self.window, 0, 0),
        )
        data = head + self.options + self.payload
        packet = ends.packet()
        pseudo = packet[12:20] + struct.pack(">II", len(data), 6)
        checksum = ones_sum(pseudo + data) ^ (0 if self.good else 0x0101)
        data = data[:16] + struct.pack(">H", checksum) + data[18:]
        whole = packet[:2] + struct.pack(">H", 20 + len(data)) + packet[4:10] + b"\0\0" + packet[12:20]
        return ends.frame()[:14] + whole[:10] + struct.pack(">H", ones_sum(whole)) + whole[12:] + data


OPEN = (
    Segment(0, flags=SYN, ack=0, options=SCALED),
    Segment(0, flags=SYN | ACK, back=True, options=SCALED),
    Segment(1),
)


class Inspected:
    """A function on some cores, each frame on any of them, one after the other."""

    def __init__(self, patterns: Sequence[Pattern], *, cores: int = 2, rings: int = 8) -> None:
        self.function = DeepInspection(patterns, rings=rings, flows_max=64)
        self.workers = Workers(self.function, MemoryEngine([], cores), seed=1, now=100)
        self.cores = cores
        self.chance = random.Random(cores)  # noqa: S311 - repeatable, nothing secret

    def give(self, frames: Sequence[bytes]) -> list[bytes | None]:
        """Return each frame as it is forwarded, or None."""
        forwarded: list[bytes | None] = []
        for frame in frames:
            engine = MemoryEngine([frame], self.cores, steer=[self.chance.randrange(self.cores)])
            self.workers.change_engine(engine)
            self.workers.drain()
            forwarded.append(next((sent.data for sent in engine.sent()), None))
        return forwarded

    def passed(self, *segments: Segment) -> list[bool]:
        """Return True for each segment that is forwarded."""
        return [frame is not None for frame in self.give([segment.frame() for segment in segments])]

    def causes(self) -> dict[str, int]:
        """Return the causes that occurred."""
        return {name: count for name, count in self.workers.statistics().causes.items() if count}

    def matches(self) -> dict[str, int]:
        """Return the matches by pattern."""
        totals = self.function.totals().items()
        return {name.removeprefix("found "): n for name, n in totals if name.startswith("found ")}


def alerts(*words: str, action: str = "alert") -> list[Pattern]:
    """Patterns that are their own names."""
    return [Pattern(word, word, action=action) for word in words]


@cache
def shared(action: str) -> Inspected:
    """Return one function for many connections, because making one takes longer than they do."""
    return Inspected(alerts(*WORDS, action=action), rings=64)


def occurrences(data: bytes, word: bytes) -> int:
    """Count all places, also those that overlap."""
    return sum(data.startswith(word, at) for at in range(len(data)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=12, unique_by=lambda word: word.lower()),
    st.binary(max_size=40),
    st.booleans(),
)
def test_an_automaton_finds_what_a_search_finds(words: list[bytes], data: bytes, folded: bool) -> None:  # noqa: FBT001 - drawn
    """Each state of an automaton names exactly the patterns that end there, whatever bytes they have."""
    data += b"".join(words)
    automaton = build_automaton(words, [False] * len(words), folded=folded)
    state, counts = 0, [0] * len(words)
    for byte in data:
        state = int(automaton.steps[state, automaton.classes[byte]]) & (2**31 - 1)
        at = state if automaton.ends[state] >= 0 else automaton.shorter[state]
        while at:
            counts[automaton.ends[at]] += 1
            at = automaton.shorter[at]
    lower = bytes.lower if folded else bytes
    assert counts == [occurrences(lower(data), lower(word)) for word in words]


def cut(chance: random.Random, data: bytes) -> list[Segment]:
    """Segments of a stream: some overlap, and each bears all of its numbers."""
    segments, at = [], 0
    while at < len(data):
        size = chance.randrange(1, 9)
        begin = max(0, at - chance.choice((0, 0, 0, 3)))
        segments.append(Segment(1 + begin, data[begin : at + size]))
        at += size
    return segments


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_patterns_are_found_in_streams_in_any_order(seed: int) -> None:
    """Cut, mixed up and repeated, a stream has the matches of its bytes, and alerts drop nothing."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    data = bytes(chance.choice(b"ab") for _ in range(chance.randrange(1, 80)))
    segments = cut(chance, data)
    segments += chance.choices(segments, k=3)
    segments.sort(key=lambda segment: segment.at + chance.uniform(0, 12))
    inspected = shared("alert")
    before, client = inspected.matches(), (f"10.9.{seed >> 8 & 255}.{seed & 255}", 1000 + seed % 50_000)
    frames = [segment.frame(client=client) for segment in (*OPEN, *segments)]
    assert all(inspected.give(frames))
    after = inspected.matches()
    expected = {word: occurrences(data, word.encode()) for word in WORDS}
    assert {word: after.get(word, 0) - before.get(word, 0) for word in WORDS} == expected, f"seed {seed}"
    end = Segment(1 + len(data), flags=RST | ACK)
    inspected.give([end.frame(client=client)])
    inspected.workers.set_time(int(inspected.workers.control[8]) + 11)
    inspected.workers.expire_flows()
    assert inspected.workers.statistics().flows["held"] == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_no_receiver_reads_a_pattern_that_drops(seed: int) -> None:
    """A sender that lies about its bytes, and a receiver of either taste, never bring a pattern through."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    data = bytes(chance.choice(b"ab") for _ in range(30))
    segments: list[Segment] = []
    for _ in range(40):
        at = chance.randrange(30)
        payload = (
            bytes(chance.choice(b"ab") for _ in range(6)) if chance.random() < 0.3 else data[at : at + 6]
        )
        segments.append(Segment(1 + at, payload, good=chance.random() < 0.9))
    inspected = shared("drop")
    client = (f"10.8.{seed >> 8 & 255}.{seed & 255}", 1000 + seed % 50_000)
    inspected.give([segment.frame(client=client) for segment in OPEN])
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    acked = 0
    for segment in segments:
        sent = inspected.give([segment.frame(client=client)])[0]
        if sent is None or not segment.good:
            continue
        for place, byte in enumerate(segment.payload, segment.at - 1):
            if place >= acked:
                first.setdefault(place, byte)
                last[place] = byte
        if chance.random() < 0.3:
            while acked in first:
                acked += 1
            inspected.give([Segment(1, ack=1 + acked, back=True).frame(client=client)])
    for read in (first, last):
        whole = bytearray()
        while len(whole) in read:
            whole.append(read[len(whole)])
        assert not any(word.encode() in whole for word in WORDS), f"seed {seed}: {whole!r}"


def test_the_packet_that_completes_a_pattern_does_not_pass() -> None:
    """Of two halves out of order the second one passes; the first one is dropped, with all that follows."""
    inspected = Inspected([Pattern("x", "evil", action="drop")])
    assert all(inspected.passed(*OPEN, Segment(3, b"il")))
    assert inspected.passed(Segment(1, b"ev"), Segment(5, b"more"), Segment(1, back=True)) == [False] * 3
    assert inspected.passed(Segment(5, flags=RST | ACK)) == [True]
    assert inspected.causes() == {"matched": 3}
    (alert,) = inspected.function.recent_alerts()
    assert (alert["pattern"], alert["source"], alert["target_port"]) == ("x", CLIENT[0], 80)
    assert (alert["end"], alert["dropped"], inspected.function.totals()["stopped"]) == (4, True, 1)


def test_other_bytes_at_the_same_place_are_dropped() -> None:
    """What was sent is what counts, until its receiver has it; after that nobody reads a repetition."""
    inspected = Inspected([Pattern("x", "evil", action="drop")])
    inspected.passed(*OPEN)
    assert inspected.passed(Segment(1, b"good"), Segment(1, b"evil"), Segment(1, b"good")) == [
        True,
        False,
        True,
    ]
    assert inspected.passed(Segment(3, b"ODD!", good=False), Segment(3, b"xx")) == [False, False]
    assert inspected.causes() == {"changed": 2, "bad_sum": 1}
    assert inspected.passed(Segment(1, ack=5, back=True), Segment(1, b"evil")) == [True, True]
    assert inspected.passed(Segment(5, b"evil")) == [False]


def test_what_cannot_be_inspected_does_not_pass_where_patterns_drop() -> None:
    """Strays, bytes too far ahead, too many gaps and acknowledgements of unsent bytes are dropped."""
    inspected = Inspected([Pattern("x", "evil", action="drop")])
    assert inspected.passed(Segment(1, b"stray")) == [False]
    assert all(inspected.passed(*OPEN))
    far = Segment(70_000, b"far")
    gaps = [Segment(2 + 10 * n, b"ab") for n in range(6)]
    assert inspected.passed(far, *gaps) == [False, True, True, True, True, False, False]
    assert inspected.passed(Segment(1, ack=2, back=True)) == [False]
    assert inspected.causes() == {"no_flow": 1, "not_inspected": 4}
    # With all gaps filled there is room again.
    fill = (b"-ab-------" * 4)[:40]
    assert all(inspected.passed(Segment(1, fill), gaps[5], Segment(1, ack=41, back=True)))


def test_the_same_passes_where_all_patterns_only_alert() -> None:
    """Then each is counted, the bytes of strays are inspected alone, and a stream goes on behind a loss."""
    inspected = Inspected(alerts("evil", "stray"))
    assert all(inspected.passed(Segment(1, b"stray"), *OPEN, Segment(70_000, b"far")))
    assert all(inspected.passed(Segment(9, b"evil"), Segment(1, ack=9, back=True)))
    assert inspected.matches() == {"evil": 1, "stray": 1}
    totals = inspected.function.totals()
    assert (totals["missed_bytes"], totals["not_inspected"], inspected.causes()) == (8, 2, {})


def test_no_sender_has_more_on_its_way_than_is_kept() -> None:
    """Where patterns drop, the announced window is made smaller, with a right checksum."""
    inspected = Inspected([Pattern("x", "evil", action="drop")])
    inspected.passed(*OPEN)
    wide = Segment(1, ack=1, back=True, window=4000)
    assert inspected.give([wide.frame()]) == [wide._replace(window=65_536 >> 7).frame()]
    small = Segment(1, ack=1, back=True, window=100)
    assert inspected.give([small.frame()]) == [small.frame()]


def test_rings_return_when_their_bytes_have_arrived() -> None:
    """One ring serves one connection after the other, and a stream without one waits."""
    inspected = Inspected([Pattern("x", "evil", action="drop")], cores=1, rings=1)
    other = ("10.0.0.2", 77)
    inspected.give([segment.frame() for segment in OPEN] + [segment.frame(client=other) for segment in OPEN])
    data = Segment(1, b"data")
    assert inspected.give([data.frame()]) == [data.frame()]
    assert inspected.give([data.frame(client=other)]) == [None]
    inspected.give([Segment(1, ack=5, back=True).frame()])
    assert inspected.give([data.frame(client=other)]) == [data.frame(client=other)]


def test_ports_that_are_used_again_begin_a_new_stream() -> None:
    """The answer to a new SYN begins both streams anew; a SYN without one changes nothing."""
    inspected = Inspected([Pattern("x", "evil", action="drop")])
    inspected.passed(*OPEN, Segment(1, b"ev"))
    again = [segment.frame((5000, 7000)) for segment in OPEN]
    assert inspected.give(again[:1]) == again[:1]
    assert inspected.passed(Segment(3, b"ax")) == [True]
    assert inspected.give(again[1:]) == again[1:]
    assert inspected.give([Segment(1, b"il").frame((5000, 7000))]) != [None]
    assert inspected.give([Segment(3, b"evil").frame((5000, 7000))]) == [None]


def test_fast_open_and_the_end_of_a_connection() -> None:
    """Bytes of a SYN belong to the stream, and the number of a FIN is no missing byte."""
    inspected = Inspected([Pattern("x", "evil", action="drop")])
    begin = [OPEN[0]._replace(payload=b"ev"), OPEN[1]._replace(ack=3)]
    assert (
        inspected.passed(*begin, Segment(3, b"en", flags=FIN | ACK), Segment(1, ack=6, back=True))
        == [True] * 4
    )
    other = Inspected([Pattern("x", "evil", action="drop")])
    assert other.passed(*begin, Segment(3, b"il")) == [True, True, False]


def test_datagrams_are_inspected_one_by_one() -> None:
    """UDP and echoes have no streams; case counts where it should, and long lists are cut off."""
    patterns = [Pattern("any", "EvIl", nocase=True, action="drop"), Pattern("exact", "Good")]
    inspected = Inspected([*patterns, Pattern("bytes", hex="00 ff")])
    packets = [
        *(Made(protocol=UDP, payload=b"xxEVILxx"), Made(protocol=UDP, payload=b"Good good\x00\xff")),
        *(Made(protocol=ICMP, payload=b"eviL"), Made(protocol=UDP, payload=b"Good" * 100)),
    ]
    passed = [frame is not None for frame in inspected.give([packet.frame() for packet in packets])]
    assert passed == [False, True, False, True]
    assert inspected.matches() == {"any": 2, "exact": 17, "bytes": 1}
    totals = inspected.function.totals()
    assert (totals["matches"], totals["matches_not_listed"]) == (104, 84)


@pytest.mark.parametrize(
    ("patterns", "told"),
    [
        ([], "0 patterns"),
        ([Pattern("a")], "give either text or hex"),
        ([Pattern("a", hex="0")], "two hexadecimal digits"),
        ([Pattern("a", hex="0g")], "not hexadecimal digits"),
        ([Pattern("a", "x", action="shout")], "neither alert nor drop"),
        ([Pattern("a", "x"), Pattern("a", "y")], "same name"),
        ([Pattern("a", "x"), Pattern("b", "x")], "patterns 1 and 2 are equal"),
        ([Pattern("a", "x" * 1025)], "has 1025 bytes"),
    ],
)
def test_patterns_that_are_not_possible_are_refused(patterns: list[Pattern], told: str) -> None:
    """An empty, equal, overlong or misspelt pattern is an error that names it."""
    with pytest.raises(ValueError, match=told):
        DeepInspection(patterns)
    with pytest.raises(ValueError, match="power of two"):
        DeepInspection(alerts("x"), window=70_000)


def test_nothing_is_sprayed_for_a_function_that_writes_with_each_packet() -> None:
    """The default steering stays with one core for a flow, and says why."""
    choice = AutoSteering(2, 2, gathers=True)
    assert choice.steer == "rss"
    assert "one core has the flow" in choice.why
