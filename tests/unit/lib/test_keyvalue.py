from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest

from dios.errors import DamagedError, InvalidError, UnreachableError
from dios.lib.keyvalue import KeyValueStore
from dios.lib.replicated_index import Index, IndexEntry, decode, encode
from tests.support.client.key_value_places import Crashed, Interleaved, MemoryPlaces, World

SEEDS = range(200)


def store(world: World, near: int = 0, hosts: int = 0) -> KeyValueStore:
    """A client of a world."""
    return KeyValueStore(MemoryPlaces(world, near, hosts), bytes(32))


def test_values_are_kept_by_key() -> None:
    """What was put is there until it is replaced or deleted; other keys are other keys."""
    world = World(3, shards=4)
    first, other = store(world), store(world, near=1)
    for number in range(20):
        first.put(f"key {number}", b"%d" % number)
    other.put("key 3", b"again")
    other.delete("key 4")
    assert first.get("key 3") == b"again"
    assert first.get("key 4") is None
    assert first.get("key 5") == b"5"
    assert first.get("nothing") is None
    assert sorted(first) == sorted(f"key {number}" for number in range(20) if number != 4)


def test_what_is_replaced_is_dropped() -> None:
    """One value is kept for each key that has one, whoever wrote how often."""
    world = World(3)
    for turn in range(5):
        store(world, near=turn % 3).put("key", b"%d" % turn)
    assert len(world.kept()) == 1
    store(world).delete("key")
    assert not world.kept()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_any_one_of_three_may_be_lost(gone: int) -> None:
    """With a machine gone for ever, everything acknowledged is there, and writing goes on."""
    world = World(3)
    store(world).put("before", b"1")
    world.away = {gone}
    world.index[gone] = [b""]
    world.values[gone].clear()
    client = store(world, near=1)
    assert client.get("before") == b"1"
    client.put("before", b"2")
    client.put("since", b"3")
    assert (store(world, near=2).get("before"), client.get("since")) == (b"2", b"3")


def test_without_a_majority_nothing_is_answered() -> None:
    """With two of three away a store says so, instead of what one machine happens to know."""
    world = World(3)
    client = store(world)
    client.put("key", b"1")
    world.away = {1, 2}
    for call in (
        lambda: client.get("key"),
        lambda: client.put("key", b"2"),
        lambda: list(client),
        client.repair,
    ):
        with pytest.raises(UnreachableError, match=r"away|machines"):
            call()
    world.away = {2}
    assert client.get("key") == b"1"


def test_who_was_away_is_not_believed_and_then_repaired() -> None:
    """A machine that comes back with old things answers nobody wrongly; repair brings it up to date."""
    world = World(3)
    store(world).put("key", b"old")
    world.away = {2}
    store(world).put("key", b"new")
    store(world).put("more", b"1")
    world.away = set()
    assert store(world, near=2).get("key") == b"new"
    assert store(world).repair() == (2, 0)
    world.away = {0}
    assert store(world, near=2).get("more") == b"1"
    # The old value, which nobody could drop there, is gone too.
    assert world.values[2].keys() == world.values[1].keys()
    assert store(world).repair() == (0, 1)


def test_a_value_whose_replicas_are_away_is_told() -> None:
    """When the index answers and no replica of the value does, that is an error and not 'no value'."""
    world = World(3)
    store(world).put("key", b"1")
    for values in world.values:
        values.clear()
    with pytest.raises(UnreachableError, match="no replica"):
        store(world).get("key")


@pytest.mark.parametrize("key", ["", "k" * 1025])
def test_a_key_is_bounded(key: str) -> None:
    """No key at all and a very long one are refused, by reading and by writing."""
    client = store(World(1))
    delete: Callable[[], object] = partial(client.delete, key)
    calls: list[Callable[[], object]] = [lambda: client.get(key), lambda: client.put(key, b""), delete]
    for call in calls:
        with pytest.raises(InvalidError, match="key"):
            call()


def test_the_stored_bytes_never_change() -> None:
    """The frozen vector of an index; entries that lead nowhere and those of another version are told."""
    data = encode({"k": IndexEntry(3, 9, b"\x07" * 32), "gone": IndexEntry(4, 9, None)})
    assert data.hex() == "920182a4676f6e65930409c0a16b930309c420" + "07" * 32
    assert decode(data)["gone"].name is None
    assert "0707" not in repr(decode(data))
    for damaged in (data[:-1], b"\x92\x03\x80", b"\xc1"):
        with pytest.raises(DamagedError):
            decode(damaged)


# -- writes that reach too few ------------------------------------------------------------------------
def index(world: World, near: int, dropped: list[bytes]) -> Index:
    """A client's index without values."""
    return Index(MemoryPlaces(world, near).copies()[0], dropped.append)


def put_on_first(world: World, writer: Index, name: bytes) -> None:
    """A write that gets to machine 0 alone, because the others are away after its third step."""
    steps = [0]

    def count() -> None:
        steps[0] += 1
        world.away = {1, 2} if steps[0] > 3 else set()

    world.pause = count
    with pytest.raises(UnreachableError):
        writer.put("key", name)
    world.pause, world.away = lambda: None, set()


def test_a_write_after_a_failed_one_wins() -> None:
    """What reached one machine only never comes back over what the same writer wrote after it."""
    world = World(3)
    writer = index(world, 0, [])
    put_on_first(world, writer, b"failed")
    world.away = {0}
    writer.put("key", b"acknowledged")
    world.away = set()
    for near in range(3):
        entry = index(world, near, []).get("key")
        assert entry is not None
        assert entry.name == b"acknowledged"


def test_an_acknowledged_value_is_kept_beside_a_newer_one_on_one_machine() -> None:
    """A newer entry that only one machine knows may never be seen: what it would replace is not dropped."""
    world = World(3)
    failing, dropped = index(world, 0, []), list[bytes]()
    put_on_first(world, failing, b"failed")
    put_on_first(world, failing, b"failed again")
    index(world, 1, dropped).put("key", b"acknowledged")
    assert dropped == []
    world.away = {0}
    entry = index(world, 1, []).get("key")
    assert entry is not None
    assert entry.name == b"acknowledged"


# -- at the same time ---------------------------------------------------------------------------------
@dataclass
class Call:
    """One operation of a history: a value that was written, or one that was read; ``ended`` 0: never."""

    writes: bool
    value: bytes | None
    began: int
    ended: int = 0


def linearizable(calls: list[Call]) -> bool:
    """Whether the operations on one key can have happened one after the other, each within its time."""

    def search(left: frozenset[int], value: bytes | None) -> bool:
        if not any(calls[number].ended for number in left):
            return True
        if (left, value) in failed:
            return False
        # Nothing that began after another one's end can come before it.
        until = min(calls[number].ended or 1 << 60 for number in left)
        for number in left:
            call = calls[number]
            if call.began > until or not (call.writes or call.value == value):
                continue
            if search(left - {number}, call.value):
                return True
        failed.add((left, value))
        return False

    failed: set[tuple[frozenset[int], bytes | None]] = set()
    return search(frozenset(range(len(calls))), None)


class History:
    """Clients that write and read one key, and what each of them saw when.

    Machines 0 to 2 have the first copies. With ``replacing`` clients, these replace machine 2, each by one of
    the further machines.
    """

    def __init__(
        self, seed: int, between: Callable[[World, Random], None], *, replacing: Sequence[int] = ()
    ) -> None:
        self.world = World(3 + len(replacing))
        self.replacing = replacing
        self.random = Random(seed)  # noqa: S311 - a schedule that can be repeated
        self.clients = Interleaved(seed, lambda random: between(self.world, random))
        self.calls: list[Call] = []
        self.world.pause = self.clients.step

    def client(self, number: int) -> Callable[[], None]:
        """A client near one machine."""
        plan = [self.random.random() < 0.5 for _ in range(5)]

        def run() -> None:
            own = store(self.world, number, hosts=3)
            for turn, writes in enumerate(plan):
                value = b"%d of %d" % (turn, number) if writes else None
                call = Call(writes, value, self.clients.now)
                try:
                    if value is not None:
                        self.calls.append(call)
                        own.put("key", value)
                    else:
                        call.value = own.get("key")
                        self.calls.append(call)
                except UnreachableError:
                    continue
                call.ended = self.clients.now

        return run

    def replacer(self, new: int) -> Callable[[], None]:
        """A client that replaces machine 2, and tries again while it cannot."""

        def run() -> None:
            own = store(self.world, 0, hosts=3)
            for _ in range(10):
                with suppress(UnreachableError):
                    own.replace("2", str(new))
                    self.replaced.append(own.hosts)
                    return

        return run

    def run(self) -> None:
        """Run three clients to their ends, and those that replace."""
        self.replaced: list[tuple[str, ...]] = []
        replacers = [self.replacer(new) for new in self.replacing]
        self.clients.run([self.client(number) for number in range(3)] + replacers)


def one_may_be_away(world: World, random: Random) -> None:
    """Now and then another machine is away, or none."""
    if random.random() < 0.4:
        world.away = {random.randrange(6)}


def two_may_be_away(world: World, random: Random) -> None:
    """Also majorities get lost, and come back."""
    if random.random() < 0.4:
        world.away = {random.randrange(4), random.randrange(4)}


@pytest.mark.parametrize("between", [one_may_be_away, two_may_be_away])
def test_every_schedule_is_linearizable(between: Callable[[World, Random], None]) -> None:
    """Three clients at once, machines that go and come at any step: the history fits a single register."""
    answered = 0
    for seed in SEEDS:
        history = History(seed, between)
        history.run()
        assert linearizable(history.calls), f"seed {seed}: {history.calls}"
        answered += sum(bool(call.ended) for call in history.calls)
    assert answered > 4 * len(SEEDS)


def third_is_lost(world: World, random: Random) -> None:
    """At some moment machine 2 is gone for good; others are away now and then."""
    gone = 2 in world.away or random.random() < 0.05
    if random.random() < 0.2:
        world.away = {random.randrange(3, 8)}
    if gone:
        world.away |= {2}


@pytest.mark.parametrize(
    ("between", "replacing"), [(third_is_lost, [3]), (third_is_lost, [3, 4]), (one_may_be_away, [3, 4])]
)
def test_every_schedule_is_linearizable_while_a_host_is_replaced(
    between: Callable[[World, Random], None], replacing: list[int]
) -> None:
    """Also if two clients replace it at one time by different machines, or if it was not lost after all."""
    replaced = 0
    for seed in SEEDS:
        history = History(seed, between, replacing=replacing)
        history.run()
        assert linearizable(history.calls), f"seed {seed}: {history.calls}"
        assert len(set(map(frozenset, history.replaced))) <= 1, f"seed {seed}: {history.replaced}"
        replaced += len(history.replaced)
        if history.replaced:
            history.world.pause, history.world.away = lambda: None, {2}
            # Each client finds the last value, on whichever copies it was opened.
            values = {store(history.world, near, hosts=3).get("key") for near in range(2)}
            assert len(values) == 1
    assert replaced > len(SEEDS) // 2


def test_a_client_killed_at_any_step_harms_nobody() -> None:
    """A writer dies after each of its steps in turn: the value is the old or the new one, for good."""
    for steps in range(20):
        world = World(3)
        store(world).put("key", b"old")
        left = [steps]

        def count_down(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Crashed

        world.pause = count_down
        done = False
        try:
            store(world).put("key", b"new")
            done = True
        except Crashed:
            pass
        world.pause = lambda: None
        seen = store(world, near=2).get("key")
        assert seen == b"new" if done else seen in {b"old", b"new"}
        world.away = {0}
        assert store(world, near=1).get("key") == seen


def test_the_checker_finds_what_is_wrong() -> None:
    """A read of what was replaced before it began, and of what is not written yet, are found out."""
    write, again = Call(True, b"1", 0, 2), Call(True, b"2", 3, 5)
    assert linearizable([write, again, Call(False, b"1", 4, 6)])
    assert not linearizable([write, again, Call(False, b"1", 6, 7)])
    assert not linearizable([Call(False, b"1", 0, 1), Call(True, b"1", 2, 3)])
    assert linearizable([write, Call(True, b"2", 3, 0), Call(False, b"2", 8, 9)])
    assert not linearizable(
        [write, Call(True, b"2", 3, 0), Call(False, b"2", 8, 9), Call(False, b"1", 10, 11)]
    )
