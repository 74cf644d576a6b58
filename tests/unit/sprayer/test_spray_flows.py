from __future__ import annotations

import random
import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dios.limits import SPRAYER_BATCH
from dios.sprayer.compile.intrinsics import int64, uint64
from dios.sprayer.flows.flow_table import EXPIRED, FULL, HELD, Flows
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.packets.packet import Flow
from dios.sprayer.runtime.workers import make_tables
from tests.support.sprayer.kernels import fresh

SEED = np.array([77], np.uint64)


class Small(NetworkFunction):
    """Tables of 40 flows."""

    # So large that it takes a while to copy.
    entry = (("value", "u8"), *((f"between_{n}", "u8") for n in range(28)), ("again", "u8"))
    flows_max = 40
    idle_s = 10


def tables(cores: int = 1, journal: int = 0, flows_max: int = 40) -> list[Flows]:
    """Return the tables of some cores."""
    function = Small()
    function.flows_max = flows_max
    return make_tables(function, cores, SEED, journal)


@fresh
def flow_of(number: int) -> Flow:
    """A flow for each number."""
    return Flow(
        uint64(0),
        uint64(number) * uint64(3),
        uint64(7),
        uint64(number),
        uint64(number & 65535),
        uint64(80),
        uint64(6),
    )


@fresh
def put(flows: Flows, number: int, value: int) -> int:
    """Insert, or change what there is: 1 for new or changed, 0 for no room."""
    entry = flows.insert_local_flow(flow_of(number))
    if entry is None:
        return 0
    entry.value = value
    entry.again = value
    flows.show()
    return 1


@fresh
def get(flows: Flows, number: int) -> int:
    """The value, -1 for none, -2 for half of a change."""
    entry = flows.get_flow(flow_of(number))
    if entry is None:
        return -1
    return int64(entry.value) if entry.value == entry.again else -2


@fresh
def remove(flows: Flows, number: int) -> bool:
    """Return True if there was one."""
    return flows.remove_local_flow(flow_of(number))


@fresh
def core_of(flows: Flows, number: int) -> int:
    """The designated core."""
    return flows.designated_core(flow_of(number))


@fresh
def expire(flows: Flows) -> int:
    """Forget what is over, as a worker does; how many."""
    count = 0
    for _ in range(flows.words.size // flows.cores):
        place = flows.look_for_expired()
        if place >= 0:
            flows.remove_expired(flows.flow_at(place))
            count += 1
    return count


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("pppggr"), st.integers(0, 60), st.integers(0, 2**40)), max_size=300)
)
def test_a_table_is_a_dict_of_limited_size(steps: list[tuple[str, int, int]]) -> None:
    """Any calls have the results that they have on a dict of at most 40 flows."""
    (flows,) = tables()
    model: dict[int, int] = {}
    for action, number, value in steps:
        if action == "p":
            fits = number in model or len(model) < 40
            assert put(flows, number, value) == fits
            if fits:
                model[number] = value
        elif action == "g":
            assert get(flows, number) == model.get(number, -1)
        else:
            assert remove(flows, number) == (model.pop(number, None) is not None)
        assert flows.books[HELD] == len(model)
    for number in range(61):
        assert get(flows, number) == model.get(number, -1)


def test_removed_places_serve_again() -> None:
    """20,000 flows that come and go leave a table in which none is found too late or lost."""
    (flows,) = tables()
    seed = 4
    chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    held: list[int] = []
    for number in range(20_000):
        if len(held) == 40:
            assert remove(flows, held.pop(chance.randrange(40))), f"seed {seed}"
        assert put(flows, number, number), f"seed {seed}, flow {number}"
        held.append(number)
    assert all(get(flows, number) == number for number in held)
    assert flows.books[FULL] == 0


def test_only_the_designated_core_writes() -> None:
    """A core that is not designated gets nothing to change, and what it asks for is counted; all can read."""
    both = tables(2)
    for number in range(20):
        core = core_of(both[0], number)
        assert core == core_of(both[1], number)
        assert put(both[1 - core], number, 5) == 0
        assert put(both[core], number, 5) == 1
        assert get(both[0], number) == get(both[1], number) == 5
        assert not remove(both[1 - core], number)
    assert sum(int(flows.books[HELD]) for flows in both) == 20


def test_a_flow_is_over_when_no_core_saw_it() -> None:
    """A flow that any core looks at lives on; one that none did for more than 10 seconds is found."""
    both = tables(2)
    for number in range(20):
        assert put(both[core_of(both[0], number)]._replace(now=100), number, 1)
    for number in range(10):
        # Only the core that does not keep it.
        assert get(both[1 - core_of(both[0], number)]._replace(now=108), number) == 1
    at = [flows._replace(now=111) for flows in both]
    assert sum(expire(flows) for flows in at) == 10
    assert [get(at[0], number) for number in range(20)] == [1] * 10 + [-1] * 10
    assert sum(int(flows.books[EXPIRED]) for flows in both) == 10


@fresh
def change_for_long(flows: Flows, rounds: int) -> int:
    """Change, remove and insert 8 flows again and again; how many changes there were."""
    done = 0
    for round_ in range(rounds):
        for number in range(8):
            if round_ % 7 == number:
                remove(flows, number)
            done += put(flows, number, round_)
    return done


@fresh
def read_for_long(flows: Flows, rounds: int) -> tuple[int, int]:
    """Read them: how many were found, and how many were half changed."""
    whole = torn = 0
    for _ in range(rounds):
        for number in range(8):
            value = get(flows, number)
            whole += value >= 0
            torn += value == -2
    return whole, torn


def test_readers_never_see_half_of_a_change() -> None:
    """While one core changes 8 flows two million times, another sees whole entries only."""
    both = tables(2)
    # All of them on core 0: the table does not know which flows these are.
    writer = both[0]._replace(cores=1, words=both[0].words[: both[0].words.size // 2])
    reader = both[1]._replace(core=0, cores=1, words=writer.words)
    assert change_for_long(writer, 1) == 8
    assert read_for_long(reader, 1) == (8, 0)
    thread = threading.Thread(target=change_for_long, args=(writer, 250_000))
    thread.start()
    whole = torn = rounds = 0
    while thread.is_alive() or rounds == 0:
        some, broken = read_for_long(reader, 1_000)
        whole, torn, rounds = whole + some, torn + broken, rounds + 1
    thread.join()
    assert torn == 0
    assert whole > 0


def test_a_batch_fits_what_get_flows_fills() -> None:
    """There is room for connection packets of this core and of others in one batch."""
    (flows,) = tables()
    assert len(flows.hits) == 2 * SPRAYER_BATCH
