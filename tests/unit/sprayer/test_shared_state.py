"""Flow tables that a second host continues: ownership, and rows that are copied to their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dios.errors import DamagedError, DiosError, InvalidError, UnreachableError
from dios.limits import SPRAYER_HOSTS_MAX, SPRAYER_LEASE_S, SPRAYER_TAKEOVER_S
from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, NetworkFunction, Workers
from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.nat import Nat
from dios.sprayer.runtime.shared_state import BlockRows, SharedState
from tests.support.sprayer.frames import ACK, FIN, SYN, Made, Read, read

CORES = 2
FLOWS_MAX = 4096
CLIENT = Made(source="10.0.0.1", target="198.51.100.7", flags=SYN)


class FakeStore:
    """A map in memory that can be unreachable."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.away = False
        self.puts: list[str] = []

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        self._need()
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._need()
        self.puts.append(key)
        self.values[key] = value

    def __iter__(self) -> Iterator[str]:
        """Return the keys."""
        self._need()
        return iter(list(self.values))

    def _need(self) -> None:
        if self.away:
            raise UnreachableError("no majority answers")


class Time:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


class Host:
    """A NAT on two cores, and its view of the store."""

    def __init__(self, store: FakeStore, name: str, time: Time) -> None:
        self.shared = SharedState(store, name, clock=time)
        self.nat = Nat(["192.0.2.1"], flows_max=FLOWS_MAX)
        self.workers = Workers(self.nat, MemoryEngine([], CORES), seed=len(name), now=50)

    def begin(self) -> int:
        """Own the function; return the number of flows that were taken over."""
        assert self.shared.try_turn()
        self.workers.seed[0] = self.shared.settle(self.nat, CORES, int(self.workers.seed[0]))
        return self.shared.take_over(self.workers)

    def give(self, packets: Sequence[Made], side: int = INSIDE) -> list[Read | None]:
        """Return what is forwarded of each packet."""
        frames = [packet.frame() for packet in packets]
        steer = [number % CORES for number in range(len(frames))]
        engine = MemoryEngine(frames, CORES, sides=[side] * len(frames), steer=steer)
        self.workers.change_engine(engine)
        self.workers.drain()
        forwarded = {sent.frame: read(sent.data) for sent in engine.sent()}
        return [forwarded.get(number) for number in range(len(frames))]

    def held(self) -> int:
        """Return the number of flows in all tables."""
        return self.workers.statistics().flows["held"]


def clients(first: int, count: int, flags: int = SYN) -> list[Made]:
    """Return packets of clients with different ports."""
    return [replace(CLIENT, source_port=1000 + first + n, flags=flags) for n in range(count)]


@pytest.fixture
def store() -> FakeStore:
    """An empty store."""
    return FakeStore()


@pytest.fixture
def time() -> Time:
    """A clock."""
    return Time()


def test_connections_go_on_at_the_host_that_takes_over(store: FakeStore, time: Time) -> None:
    """Both directions keep their translation, and new connections get ports that are free."""
    first, two = Host(store, "one", time), Host(store, "second", time)
    assert first.begin() == 0
    opened = first.give(clients(0, 60))
    assert None not in opened
    first.shared.write_changes(first.workers)
    assert not two.shared.try_turn()
    time.now += SPRAYER_TAKEOVER_S
    assert two.begin() == first.held() == 240
    there = two.give(clients(0, 60, ACK))
    ports = [packet.source_port for packet in opened if packet]
    assert [packet.source_port for packet in there if packet] == ports
    answers = [replace(CLIENT, source_port=port, source="192.0.2.1", flags=ACK).other_way() for port in ports]
    back = two.give(answers, OUTSIDE)
    assert [packet.target_port for packet in back if packet] == [1000 + n for n in range(60)]
    fresh = two.give(clients(500, 60))
    assert not {packet.source_port for packet in fresh if packet} & set(ports)
    assert two.held() == 480


def test_changes_are_written_by_blocks_and_removals_reach_the_next_host(store: FakeStore, time: Time) -> None:
    """Unchanged blocks are not written, flows that ended are not continued, and a third host has the rest."""
    first, two, three = (Host(store, name, time) for name in ("a", "b", "c"))
    first.begin()
    first.give(clients(0, 20))
    first.shared.write_changes(first.workers)
    store.puts.clear()
    first.shared.write_changes(first.workers)
    assert not store.puts
    ends = first.give(clients(0, 10, FIN | ACK))
    ports = [packet.source_port for packet in ends if packet]
    last = [replace(CLIENT, source_port=port, source="192.0.2.1", flags=FIN | ACK) for port in ports]
    first.give([packet.other_way() for packet in last], OUTSIDE)
    first.workers.set_time(200)
    first.give(clients(10, 10, ACK))
    first.workers.set_time(291)
    first.workers.expire_flows()
    assert first.held() == 40
    first.shared.write_changes(first.workers)
    first.shared.release()
    assert two.begin() == 40
    two.shared.release()
    assert three.begin() == 40
    assert None not in three.give(clients(10, 10, ACK))


def test_a_host_that_cannot_write_stops_before_another_takes_over(store: FakeStore, time: Time) -> None:
    """Its lease ends before its silence is long enough; and a higher claim ends it at once."""
    assert SPRAYER_LEASE_S < SPRAYER_TAKEOVER_S
    first, two = SharedState(store, "one", clock=time), SharedState(store, "two", clock=time)
    assert first.try_turn()
    assert first.beat()
    assert not two.try_turn()
    store.away = True
    time.now += SPRAYER_LEASE_S - 0.1
    assert first.beat()
    time.now += 0.2
    assert not first.beat()
    with pytest.raises(DiosError):
        two.try_turn()
    store.away = False
    assert not two.try_turn()
    time.now += SPRAYER_TAKEOVER_S - SPRAYER_LEASE_S
    assert two.try_turn()
    assert not first.beat()
    assert not first.try_turn()
    assert two.beat()


def test_of_two_simultaneous_claims_one_counts(store: FakeStore, time: Time) -> None:
    """Hosts that claim at the same moment agree on the owner; a released function has an owner at once."""
    first, two = SharedState(store, "one", clock=time), SharedState(store, "two", clock=time)
    store.put("claim/one", msgspec.msgpack.encode(1))
    store.put("beat/one", msgspec.msgpack.encode(0))
    assert first.try_turn()
    store.put("claim/two", store.values["claim/one"])
    assert [first.owns(), two.try_turn()] == [False, True]
    two.release()
    assert first.try_turn()
    assert not two.owns()


def test_other_functions_and_sizes_are_refused(store: FakeStore, time: Time) -> None:
    """Another number of cores or flows, or a function with other state, is refused with a reason."""
    host = Host(store, "one", time)
    host.begin()
    host.shared.check(host.nat, CORES)
    with pytest.raises(InvalidError, match="Start all hosts alike"):
        host.shared.check(host.nat, CORES + 1)
    with pytest.raises(InvalidError, match="another flows_max"):
        host.shared.check(Nat(["192.0.2.1"], flows_max=9 * FLOWS_MAX), CORES)
    for other in (Balancer(("192.0.2.9", 80), [("10.1.0.1", 80)], "10.1.0.2"), NetworkFunction()):
        with pytest.raises(InvalidError, match="has state besides its flows"):
            host.shared.check(other, CORES)
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(InvalidError, match="no name of a host"):
            SharedState(store, name)


@pytest.mark.parametrize(
    "wrong", ["short", "places", "twice", "odd", "key", "version", "no message", "hosts", "claim"]
)
def test_a_store_with_wrong_rows_is_refused(store: FakeStore, time: Time, wrong: str) -> None:
    """Rows that cannot be of the tables raise, and are never read beyond their bytes."""
    first, two = Host(store, "one", time), Host(store, "two", time)
    first.begin()
    first.give(clients(0, 20))
    first.shared.write_changes(first.workers)
    first.shared.release()
    key = next(key for key in store.values if key.startswith("rows/one/0/"))
    block = msgspec.msgpack.decode(store.values[key], type=BlockRows)
    assert len(block.places) > 4
    odd = np.frombuffer(block.words, "<u8") | np.uint64(1)
    changed = {
        "short": msgspec.structs.replace(block, rows=block.rows[:-1]),
        "places": msgspec.structs.replace(block, places=b"\xff" * len(block.places)),
        "twice": msgspec.structs.replace(block, places=block.places[:4] * (len(block.places) // 4)),
        "odd": msgspec.structs.replace(block, words=odd.tobytes()),
        "version": msgspec.structs.replace(block, version=9),
    }
    if wrong in changed:
        store.values[key] = msgspec.msgpack.encode(changed[wrong])
    elif wrong == "key":
        store.values["rows/one/77/x"] = b""
    elif wrong == "no message":
        store.values[key] = b"\xc1"
    elif wrong == "claim":
        store.values["claim/other"] = b"\xa1x"
    else:
        store.values |= {f"claim/h{number}": b"\x00" for number in range(SPRAYER_HOSTS_MAX)}
    with pytest.raises(DamagedError):
        two.begin()
