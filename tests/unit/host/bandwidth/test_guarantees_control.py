"""The local controller over made-up time: what each gets in each second, and how soon."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable

import pytest

from dios import limits
from dios.host.bandwidth.accounts import Account, TaskAccount
from dios.host.bandwidth.guarantees import LocalController
from dios.host.bandwidth.meters import TrafficFlow
from dios.host.bandwidth.token_bucket import TokenBucket
from dios.ids import TaskId
from dios.wire.messages import Guarantee

MS = 1_000_000
S = 1_000 * MS
MB = 1_000_000
LINK = 10 * MB
LEASE_S = 30
A, B = TaskAccount("uid:1", TaskId(7)), TaskAccount("uid:1", TaskId(8))
GREEDY, MODEST = "uid:2", "uid:3"
ALWAYS = 2**60


class Play:
    """Senders who want as many bytes as are in their queues, on a link that only the controller divides."""

    def __init__(self, *told: Guarantee, capacity: int = LINK, said: bool = True) -> None:
        self.control = LocalController(lambda: (capacity, said))
        self.control.set(told, LEASE_S * S, 0)
        self.moved: dict[Account, list[tuple[int, int]]] = defaultdict(list)
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._flows: dict[Account, TrafficFlow] = defaultdict(TrafficFlow)
        self._number = 0

    def at(self, when: int, do: Callable[[int], None]) -> None:
        """Something happens then."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, do))

    def wants(self, account: Account, size: int, begin_s: float = 0.0, bytes_s: int = ALWAYS) -> None:
        """So many bytes from then on, which the taker takes at ``bytes_s`` at most."""
        flow = self._flows[account]
        waiting_threads = False
        left = size

        def go(now: int) -> None:
            nonlocal waiting_threads, left
            if not left:
                return
            sender = self.control.sender(account, flow, now)
            sender.waiting_threads -= waiting_threads
            waiting_threads = False
            wait_ns = sender.bucket.wait_ns(now)
            if wait_ns:
                wait_ns = min(wait_ns, self.control.note_delay(sender, now))
                sender.waiting_threads, waiting_threads = sender.waiting_threads + 1, True
                self.at(now + wait_ns, go)
                return
            piece = min(self.control.piece(account), left)
            sender.take(piece, now)
            left -= piece
            flow.waiting -= piece
            if not flow.waiting:
                self.control.request_division()
            self.moved[account].append((now, piece))
            self.at(now + piece * S // bytes_s, go)

        def begin(now: int) -> None:
            flow.waiting += size
            go(now)

        self.at(round(begin_s * S), begin)

    def every(self, account: Account, size: int, period_ms: int, until_s: float) -> None:
        """So many bytes again and again."""
        for time_ms in range(0, round(until_s * 1_000), period_ms):
            self.wants(account, size, time_ms / 1_000)

    def streams(self, account: Account, bytes_s: int, until_s: float) -> None:
        """Bytes that come at a pace, of which nobody knows before they come."""
        self._flows[account].streams = True
        period_ms = 10
        self.every(account, bytes_s * period_ms // 1_000, period_ms, until_s)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until_s * S:
            now, _, do = heapq.heappop(self._events)
            do(now)

    def rate(self, account: Account, begin_s: float, end_s: float) -> float:
        """Bytes a second in between."""
        took = sum(size for at, size in self.moved[account] if begin_s * S <= at < end_s * S)
        return took / (end_s - begin_s)

    def link(self, begin_s: float, end_s: float) -> float:
        """The same of all."""
        return sum(self.rate(account, begin_s, end_s) for account in list(self.moved))


def edge(
    source: int, target: int, *steps: tuple[int, int], weight: int = 500, who: str = "uid:1"
) -> Guarantee:
    """A guarantee with steps in milliseconds and bytes a second."""
    return Guarantee(who, source, target, weight, steps)


def near(measured: float, wanted: float, percent: float = 5.0) -> bool:
    """Within so much of it."""
    return abs(measured - wanted) <= wanted * percent / 100


def test_a_guarantee_is_kept_in_every_second_and_step() -> None:
    """Beside a greedy principal the task has what each step guarantees, at weight 0, and the link is full."""
    play = Play(edge(7, 0, (0, 3 * MB), (2_000, 7 * MB), (4_000, MB), weight=0))
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(6.0)
    for second, promised in enumerate((3, 3, 7, 7, 1, 1)):
        assert near(play.rate(A, second, second + 1), promised * MB), second
        assert near(play.link(second, second + 1), LINK), second


def test_what_is_left_goes_by_weight() -> None:
    """Of 10 MB/s 4 are guaranteed; the other 6 go 1:2 to the task and to whoever has no guarantee."""
    play = Play(edge(7, 0, (0, 4 * MB), weight=250))
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(3.0)
    assert near(play.rate(A, 1, 3), 6 * MB)
    assert near(play.rate(GREEDY, 1, 3), 4 * MB)


def test_an_idle_guarantee_is_lent_out_and_taken_back_at_once() -> None:
    """Until its owner begins others have all; 30 ms after that they have no more than what it leaves."""
    play = Play(edge(7, 0, (0, 8 * MB), weight=0))
    play.wants(GREEDY, 1_000 * MB)
    play.wants(A, 8 * MB, 2.0)
    play.run(6.0)
    assert near(play.rate(GREEDY, 1, 2), LINK)
    assert play.rate(A, 2.03, 2.53) > 0.95 * 8 * MB
    assert play.rate(GREEDY, 2.03, 2.93) < 1.1 * 2 * MB
    assert play.link(2, 3) < 1.05 * LINK
    assert near(play.rate(GREEDY, 4, 5), LINK), "it is lent out again"


def test_who_wants_less_than_its_guarantee_keeps_nothing_from_others() -> None:
    """A task that sends 1 MB each half second gets it soon; the greedy one gets the rest."""
    play = Play(edge(7, 0, (0, 8 * MB)))
    play.every(A, MB, 500, 6.0)
    play.wants(GREEDY, 1_000 * MB)
    play.run(6.0)
    for second in range(1, 6):
        assert near(play.rate(A, second, second + 1), 2 * MB), second
        assert near(play.link(second, second + 1), LINK), second


@pytest.mark.parametrize(("bytes_s", "promised"), [(2 * MB, 6 * MB), (7 * MB, 6 * MB)])
def test_a_stream_has_what_it_brings_or_its_guarantee(bytes_s: int, promised: int) -> None:
    """Its bytes come at a pace: below its guarantee all go, above it as many; the rest is lent."""
    play = Play(edge(7, 0, (0, promised), weight=0))
    play.streams(A, bytes_s, 6.0)
    play.wants(GREEDY, 1_000 * MB)
    play.run(4.0)
    for second in range(1, 4):
        assert near(play.rate(A, second, second + 1), min(bytes_s, promised)), second
        assert near(play.link(second, second + 1), LINK), second


def test_whose_taker_is_slow_keeps_nothing_from_others() -> None:
    """A task with bytes waiting whose reader takes 1 MB/s does not hold the 8 MB/s that are guaranteed."""
    play = Play(edge(7, 0, (0, 8 * MB)))
    play.wants(A, 100 * MB, bytes_s=MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(4.0)
    assert near(play.rate(A, 2, 4), MB)
    assert play.rate(GREEDY, 2, 4) > 0.7 * LINK


def test_the_link_is_never_exceeded_by_many() -> None:
    """Forty tasks and principals that come and go send no more in any second than the link carries."""
    told = [edge(task, 0, (0, LINK // 40)) for task in range(1, 21)]
    play = Play(*told)
    for number in range(20):
        play.every(TaskAccount("uid:1", TaskId(number + 1)), 300_000, 400 + 13 * number, 6.0)
        play.every(f"uid:{number + 10}", 400_000, 300 + 17 * number, 6.0)
    play.run(6.0)
    for tenth in range(10, 50):
        assert play.link(tenth / 10, tenth / 10 + 1) <= 1.05 * LINK, tenth


def test_a_principals_rate_still_caps_it() -> None:
    """Who has a rate of 2 MB/s gets no more, though a guarantee and half of the link are idle."""
    play = Play(edge(7, 0, (0, 5 * MB)))
    play.control.caps = {GREEDY: 2 * MB}
    play.wants(GREEDY, 1_000 * MB)
    play.wants(MODEST, 1_000 * MB, 2.0)
    play.run(4.0)
    assert near(play.rate(GREEDY, 1, 4), 2 * MB)
    assert near(play.rate(MODEST, 3, 4), LINK - 2 * MB), "what it may not have is another's"


@pytest.mark.parametrize("at_ms", range(1_000, 1_020, 4))
def test_a_step_is_taken_when_it_comes(at_ms: int) -> None:
    """Not with the next division: 15 ms later most of what it gives has gone."""
    play = Play(edge(7, 0, (0, 0), (at_ms, 9 * MB), weight=0))
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(2.0)
    assert play.rate(A, at_ms / 1_000, at_ms / 1_000 + 0.015) > 0.6 * 9 * MB


def test_who_goes_on_after_a_moment_has_its_guarantee_at_once() -> None:
    """Bursts of 25 ms with pauses of 35 are each over 10 ms later at most than if nobody else sent."""
    play = Play(edge(7, 0, (0, 8 * MB), weight=0))
    play.every(A, 8 * MB * 25 // 1_000, 60, 2.0)
    play.wants(GREEDY, 1_000 * MB)
    play.run(2.0)
    for burst in range(5, 30):
        assert near(play.rate(A, burst * 0.06, burst * 0.06 + 0.035) * 0.035, 0.2 * MB, 1), burst


def test_nobody_waits_long_for_what_it_sent_while_it_had_more() -> None:
    """A debt of ten seconds at the new rate is one of a tenth; one that is short is paid off."""
    bucket = TokenBucket(10 * MB, 0, debt_ns=100 * MS)
    bucket.take(10 * MB, 0)
    bucket.set_rate(MB, 0)
    assert bucket.wait_ns(0) == 100 * MS
    bucket.set_rate(2 * MB, 0)
    assert bucket.wait_ns(0) == 50 * MS


@pytest.mark.parametrize(
    ("sending", "wanted"),
    [([A], {A: 6}), ([B], {B: 6}), ([A, B], {A: 3, B: 3})],
    ids=["source", "target", "both"],
)
def test_an_edge_belongs_to_whichever_end_moves(
    sending: list[TaskAccount], wanted: dict[Account, int]
) -> None:
    """The one that moves bytes has all of it, and each has half where both do."""
    play = Play(edge(7, 8, (0, 6 * MB), weight=0))
    for account in sending:
        play.wants(account, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(3.0)
    for end, mb in wanted.items():
        assert near(play.rate(end, 1, 3), mb * MB), end


def test_the_edges_of_a_task_add_up() -> None:
    """What it reads of two tasks and of the store is one sum, and the highest weight counts."""
    play = Play(
        edge(9, 7, (0, 2 * MB), weight=0), edge(10, 7, (0, MB), weight=0), edge(0, 7, (0, 3 * MB), weight=0)
    )
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(3.0)
    assert near(play.rate(A, 1, 3), 6 * MB)


def test_before_the_first_step_nothing_is_guaranteed() -> None:
    """A task whose guarantee begins in a second gets by weight until then."""
    play = Play(edge(7, 0, (1_000, 9 * MB), weight=0))
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(3.0)
    assert play.rate(A, 0.1, 0.95) < 0.05 * LINK
    assert near(play.rate(A, 1, 2), 9 * MB)


def test_what_was_seen_of_a_link_is_no_bound_for_guarantees() -> None:
    """Where nobody said what the link carries, guarantees over what was seen are kept to."""
    play = Play(edge(7, 0, (0, 6 * MB), weight=0), capacity=2 * MB, said=False)
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(2.0)
    assert near(play.rate(A, 1, 2), 6 * MB)


def test_guarantees_end_with_their_lease() -> None:
    """Then nobody is held up, no task has an account, and nothing is kept of who sent."""
    play = Play(edge(7, 8, (0, 6 * MB)))
    play.wants(A, 100 * MB)
    play.run(1.0)
    assert play.control.accounts == {7: A, 8: B}
    assert play.control.holds(LEASE_S * S - 1)
    assert not play.control.holds(LEASE_S * S)
    assert not play.control.on
    assert not play.control.accounts
    assert not play.control.rates()


def test_pieces_are_small_where_the_rate_is_low() -> None:
    """A piece is what may go in a moment, within bounds."""
    play = Play(edge(7, 0, (0, 9 * MB), weight=0))
    play.wants(A, 100 * MB)
    play.wants(GREEDY, 1_000 * MB)
    play.run(1.0)
    assert near(play.control.piece(A), 9 * MB * limits.GUARANTEE_PIECE_MS / 1_000)
    assert play.control.piece(GREEDY) < 32 * limits.KIB
    assert play.control.piece("nobody") == limits.GUARANTEE_PIECE_BYTES_MIN


@pytest.mark.parametrize("seed", range(24))
def test_what_must_hold_holds_whoever_wants_what(seed: int) -> None:
    """Any mixture of greedy, modest and slow senders, with guarantees in steps that fit the link.

    In each second: who wants as much as it can get has its guarantee, whoever wants less has that; the link
    carries no more than it can, and no less while somebody is hungry.
    """
    rng = random.Random(seed)  # noqa: S311 - no secrets
    tasks = [TaskAccount("uid:1", TaskId(number)) for number in range(1, rng.randint(2, 7))]
    seconds = 8
    steps = {
        task: [rng.randint(0, LINK // len(tasks)) for _ in range(0, seconds, 2)] if rng.random() < 0.8 else []
        for task in tasks
    }
    play = Play(
        *(
            edge(
                task.task,
                0,
                *((2_000 * at, rate) for at, rate in enumerate(of)),
                weight=rng.choice((0, 300, 900)),
            )
            for task, of in steps.items()
        )
    )
    greedy = [task for task in tasks if rng.random() < 0.5]
    modest = {task: rng.randint(20_000, LINK // len(tasks) // 2) for task in tasks if task not in greedy}
    for task in greedy:
        play.wants(task, 1_000 * MB)
    for task, bytes_s in modest.items():
        if rng.random() < 0.5:
            play.every(task, bytes_s // 4, 250, seconds)
        else:
            play.wants(task, 1_000 * MB, bytes_s=bytes_s)
    for number in range(rng.randint(1, 3)):
        play.wants(f"uid:{number + 2}", 1_000 * MB)
    play.run(seconds)
    for second in range(1, seconds):
        promised = {task: of[second // 2] if of else 0 for task, of in steps.items()}
        for task in greedy:
            rate = play.rate(task, second, second + 1)
            assert rate > 0.95 * promised[task] - 20_000, (seed, second, task, rate, promised[task])
        for task, bytes_s in modest.items():
            rate = play.rate(task, second, second + 1)
            least = min(promised[task], bytes_s)
            assert rate > 0.9 * least - 20_000, (seed, second, task, rate, promised[task], bytes_s)
        link = play.link(second, second + 1)
        assert 0.93 * LINK < link < 1.05 * LINK, (seed, second, link)
