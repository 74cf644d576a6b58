"""Redundancy elimination over a link: what comes out at its other end is what went in, or a counted drop."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, Workers
from dios.sprayer.functions.payloads import PAYLOAD_BYTES_MAX, key_numbers
from dios.sprayer.functions.redundancy import ESCAPE_BYTES, PAYLOAD_BYTES_MIN, TOKEN_BYTES, Redundancy
from tests.support.sprayer.frames import TCP, UDP, Made, read

SEEDS = range(6)
KEY = "what both know"


class End:
    """One middlebox of a link, on some cores, each frame on any of them."""

    def __init__(self, function: Redundancy, cores: int = 2, seed: int = 1) -> None:
        self.function = function
        self.cores = cores
        self.chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
        self.workers = Workers(function, MemoryEngine([], cores), seed=1, now=50)

    def give(self, frames: Sequence[bytes], side: int) -> dict[int, bytes]:
        """Return the forwarded packets by the number of the frame."""
        steer = [self.chance.randrange(self.cores) for _ in frames]
        sides = [side] * len(frames)
        engine = MemoryEngine(frames, self.cores, sides=sides, steer=steer, grow=self.function.grows)
        self.workers.change_engine(engine)
        self.workers.drain(self.chance.randrange)
        return {sent.frame: sent.data for sent in engine.sent()}


class Link:
    """Both ends of a link, over which frames go in another order, and not all of them."""

    def __init__(self, seed: int = 1, *, remembered: int = 1024, lost: float = 0, mixed: int = 0) -> None:
        self.near = End(Redundancy("remove", KEY, remembered), 2, seed)
        self.far = End(Redundancy("restore", KEY, remembered), 3, seed)
        self.chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
        self.lost = lost
        self.mixed = mixed
        self.bytes = 0

    def carry(self, frames: Sequence[bytes]) -> dict[int, bytes]:
        """Return the packets at the end of the link by their numbers, without lost and dropped ones."""
        over = self.near.give(frames, INSIDE)
        assert set(over) == set(range(len(frames))), "nothing is dropped where it goes in"
        order = [number for number in over if self.chance.random() >= self.lost]
        order.sort(key=lambda number: number + self.chance.uniform(0, self.mixed))
        self.bytes += sum(len(over[number]) for number in order)
        restored = self.far.give([over[number] for number in order], OUTSIDE)
        return {order[place]: data for place, data in restored.items()}

    @property
    def missing(self) -> int:
        """Tokens that stood for nothing."""
        assert self.far.workers.statistics().causes["not_known"] == self.far.function.totals()["missing"]
        return self.far.function.totals()["missing"]


def numbered(packet: Made, sequence: int) -> bytes:
    """A frame of TCP with a sequence number of its own, and its checksum."""
    frame = packet.frame()
    at = 14 + 4 * len(packet.tags) + (20 if packet.version == 4 else 40)
    # The sum over the sequence number was over 7.
    old = struct.unpack(">H", frame[at + 16 : at + 18])[0]
    total = (old ^ 0xFFFF) + (0xFFFF - 7) + (sequence >> 16) + (sequence & 0xFFFF)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    parts = (frame[: at + 4], struct.pack(">I", sequence), frame[at + 8 : at + 16])
    return b"".join(parts) + struct.pack(">H", total ^ 0xFFFF) + frame[at + 18 :]


def traffic(chance: random.Random, count: int, kinds: int) -> list[bytes]:
    """Segments and datagrams of many flows that carry the same payloads again and again."""
    sizes = (
        0,
        1,
        PAYLOAD_BYTES_MIN - 1,
        PAYLOAD_BYTES_MIN,
        PAYLOAD_BYTES_MIN + 3,
        1448,
        1460,
        PAYLOAD_BYTES_MAX,
        PAYLOAD_BYTES_MAX + 1,
    )
    payloads = [chance.randbytes(chance.choice(sizes)) for _ in range(kinds)]
    frames = []
    for number in range(count):
        six = chance.random() < 0.3
        ends = ("2001:db8::1", "2001:db8::2") if six else ("10.0.0.1", "192.0.2.9")
        packet = Made(*ends, source_port=chance.randrange(1, 60_000), payload=chance.choice(payloads))
        packet = replace(
            packet, tags=(5,) * chance.choice((0, 0, 1, 2)), protocol=chance.choice((TCP, TCP, UDP))
        )
        if packet.protocol == UDP:
            frames.append(replace(packet, checksum=six or chance.random() < 0.5).frame())
        else:
            frames.append(numbered(packet, chance.randrange(number + 1)))
    return frames


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_out_is_what_went_in_or_a_counted_drop(seed: int) -> None:
    """In any order, with losses, on several cores: every byte is the same, and what is gone was counted."""
    chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    link = Link(seed, remembered=2 ** chance.randrange(3, 10), lost=chance.choice((0, 0.1)), mixed=40)
    gone = lost = 0
    for _ in range(4):
        frames = traffic(chance, 400, 60)
        out = link.carry(frames)
        assert all(out[number] == frames[number] for number in out), f"seed {seed}"
        gone += len(frames) - len(out)
    lost = 1600 - link.far.workers.statistics().counts["received"]
    assert gone == lost + link.missing, f"seed {seed}"
    told = link.near.function.totals()
    assert told["tokens"] > 50, f"seed {seed}"
    assert told["tokens"] >= link.far.function.totals()["restored"] > 0, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_that_nobody_should_send_come_out_as_they_went_in(seed: int) -> None:
    """With bytes changed and ends cut off they are dropped by their rule, or are the same afterwards."""
    chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    frames = []
    for data in traffic(chance, 3000, 8):
        bent = bytearray(data)
        for _ in range(chance.choice((0, 1, 1, 5))):
            # Mostly in headers.
            bent[chance.randrange(min(len(bent), 80))] = chance.choice((0, 1, 5, 255, chance.randrange(256)))
        frames.append(bytes(bent[: chance.choice((len(bent), len(bent), chance.randrange(len(bent) + 1)))]))
    near, far = End(Redundancy("remove", KEY), 2, seed), End(Redundancy("restore", KEY), 2, seed)
    over = near.give(frames, INSIDE)
    numbers = list(over)
    out = {numbers[place]: data for place, data in far.give([over[n] for n in numbers], OUTSIDE).items()}
    for number, data in out.items():
        assert data == frames[number], f"seed {seed}, frame {number}: {frames[number].hex()}"
    missing = far.function.totals()["missing"]
    assert len(out) + missing == len(over), f"seed {seed}: {far.workers.statistics().causes}"
    assert far.function.totals()["restored"] > 20, f"seed {seed}"


def test_what_went_before_costs_few_bytes() -> None:
    """A file that goes a second time, over another connection, takes a few hundredths of the link."""
    chance = random.Random(1)  # noqa: S311 - repeatable dice, nothing secret
    parts = [chance.randbytes(1448) for _ in range(200)]
    link = Link(remembered=2**16)
    for turn, at_most in ((0, 1.0), (1, 0.06)):
        frames = [
            numbered(Made(source_port=1000 + turn, payload=part), n * 1448) for n, part in enumerate(parts)
        ]
        before = link.bytes
        out = link.carry(frames)
        assert out == dict(enumerate(frames))
        assert link.bytes - before <= at_most * sum(map(len, frames))
    told = link.near.function.totals()
    assert (told["tokens"], told["saved_bytes"]) == (200, 200 * (1448 - TOKEN_BYTES))
    assert link.far.function.totals()["restored"] == 200


def test_a_token_leaves_lengths_and_the_header_right() -> None:
    """Over the link goes a packet that routers take for what it is; only the last checksum is as it was."""
    near = End(Redundancy("remove", KEY))
    for protocol in (TCP, UDP):
        packet = Made(payload=bytes(1000), protocol=protocol)
        near.give([packet.frame()], INSIDE)
        token = near.give([replace(packet, source_port=99).frame()], INSIDE)[0]
        head = 20 if protocol == TCP else 8
        assert len(token) == 14 + 20 + head + TOKEN_BYTES
        whole = replace(packet, source_port=99).frame()
        at = 34 + (16 if protocol == TCP else 6)
        assert token[at : at + 2] == whole[at : at + 2]
        seen = read(token)
        assert (len(seen.payload), seen.source_port) == (TOKEN_BYTES, 99)
        right = replace(packet, source_port=99, payload=seen.payload).frame()
        assert token[:at] == right[:at]


def test_what_is_sent_again_goes_whole() -> None:
    """A lost payload costs one segment that is sent again, which the other end remembers then."""
    link = Link()
    first = numbered(Made(source_port=1, payload=b"x" * 500), 100)
    link.near.give([first], INSIDE)  # it never arrives
    again = link.near.give([first], INSIDE)[0]
    assert again == first
    # A token on another connection fails.
    other = numbered(Made(source_port=2, payload=b"x" * 500), 100)
    assert link.carry([other]) == {}
    assert link.missing == 1
    assert link.carry([other]) == {0: other}
    third = numbered(Made(source_port=3, payload=b"x" * 500), 100)
    assert link.carry([third]) == {0: third}
    assert link.near.function.totals()["tokens"] == 2
    assert link.near.function.totals()["repeated"] == 2
    assert link.carry([other.replace(b"x" * 500, b"x" * 499 + b"y")]) != {}


def test_an_end_that_begins_anew_learns_again() -> None:
    """If the other end has lost its cache, few of many known segments are sent in vain."""
    chance = random.Random(1)  # noqa: S311 - repeatable dice, nothing secret
    parts = [chance.randbytes(200) for _ in range(1500)]
    link = Link(remembered=2**14)
    dropped = 0
    for port in (1, 2):
        frames = [numbered(Made(source_port=port, payload=part), n * 200) for n, part in enumerate(parts)]
        for at in range(0, len(frames), 10):
            window = frames[at : at + 10]
            # Lost frames are sent again until they arrive.
            for _ in range(3):
                out = link.carry(window)
                window = [data for number, data in enumerate(window) if number not in out]
                dropped += len(window)
            assert not window
        if port == 1:
            assert dropped == 0
            link.far = End(Redundancy("restore", KEY, 2**14), 3)
    # The number depends on the order in which the threads of the cores run. Without learning again it would
    # be all segments, each of them three times.
    assert 0 < dropped < len(parts)


def test_another_key_restores_nothing() -> None:
    """Tokens of other middleboxes are payloads like any other."""
    near, far = End(Redundancy("remove", KEY)), End(Redundancy("restore", "another"))
    frames = [Made(source_port=n, payload=b"z" * 900).frame() for n in (1, 2)]
    over = near.give(frames[:1], INSIDE) | {1: near.give(frames[1:], INSIDE)[0]}
    assert far.give([over[0], over[1]], OUTSIDE) == over
    assert far.function.totals()["restored"] == 0


@pytest.mark.parametrize("which", [0, 1])
def test_what_looks_like_a_token_is_told_apart(which: int) -> None:
    """A payload that begins like a token or an escape passes, whatever its length is."""
    link = Link()
    begin = int(key_numbers(KEY)[which]).to_bytes(8, "big")
    for size in (8, TOKEN_BYTES, ESCAPE_BYTES + TOKEN_BYTES, 100, 1400):
        packet = Made(payload=begin + bytes(size - 8))
        frames = [numbered(replace(packet, source_port=port), 1) for port in (1, 2)]
        assert link.carry(frames[:1]) == {0: frames[0]}, size
        assert link.carry(frames[1:]) == {0: frames[1]}, size
    assert link.missing == 0
    link.carry([Made(payload=begin[:7]).frame()])
    near, far = link.near.function.totals(), link.far.function.totals()
    assert near["escaped"] == far["escaped"] == (2 if which == 0 else 10)


def test_both_directions_of_a_link_know_the_same() -> None:
    """A payload from one direction is sent back as a token, if both ends do both."""
    left, right = End(Redundancy("both", KEY)), End(Redundancy("both", KEY))
    packet = Made(payload=b"there and back" * 50)
    assert right.give([left.give([packet.frame()], INSIDE)[0]], OUTSIDE)[0] == packet.frame()
    back = right.give([packet.other_way().frame()], INSIDE)[0]
    assert len(back) < 100
    assert left.give([back], OUTSIDE)[0] == packet.other_way().frame()


def test_without_room_a_token_is_a_counted_drop() -> None:
    """An engine whose frames cannot grow loses what does not fit, and says so."""
    link = Link()
    frames = [Made(source_port=n, payload=b"w" * 700).frame() for n in (1, 2)]
    link.carry(frames[:1])
    token = link.near.give(frames[1:], INSIDE)[0]
    link.far.function.grows = 100
    assert link.far.give([token], OUTSIDE) == {}
    assert link.far.workers.statistics().causes["too_long"] == 1


@pytest.mark.parametrize(("role", "remembered"), [("squeeze", 16), ("remove", 100), ("restore", 2)])
def test_settings_that_cannot_be_are_refused(role: str, remembered: int) -> None:
    """The error names what there is to choose from."""
    with pytest.raises(ValueError, match="choose"):
        Redundancy(role, KEY, remembered)


@pytest.mark.parametrize("seed", SEEDS)
def test_cores_at_the_same_time_see_no_half_payloads(seed: int) -> None:
    """While cores write over what others read, in a cache of four places, every byte is right."""
    chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    payloads = [chance.randbytes(1400) for _ in range(12)]
    frames = [Made(source_port=n + 1, payload=chance.choice(payloads)).frame() for n in range(4000)]
    given, side = dict(enumerate(frames)), INSIDE
    far = Redundancy("restore", KEY, 4)
    for function in (Redundancy("remove", KEY, 4), far):
        steer = [chance.randrange(2) for _ in given]
        sides, numbers = [side] * len(given), list(given)
        engine = MemoryEngine(list(given.values()), 2, sides=sides, steer=steer, grow=function.grows)
        with Workers(function, engine, seed=1, now=50) as workers:
            while engine.waiting():
                pass
        workers.drain()
        given, side = {numbers[sent.frame]: sent.data for sent in engine.sent()}, OUTSIDE
        assert len(given) + workers.statistics().causes["not_known"] == len(numbers), f"seed {seed}"
    assert all(frames[number] == data for number, data in given.items()), f"seed {seed}"
    assert far.totals()["restored"] > 20, f"seed {seed}"
