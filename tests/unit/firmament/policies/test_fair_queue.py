"""Whose tasks take part in a round: turns of principals over a real scheduler and its network."""

from __future__ import annotations

import math
import random

import pytest

from dios.fairness import SdrfScheduler
from dios.fairness.stateful.user_table import SCAN_MAX
from dios.firmament.policies.principal_accounts import FairnessRule
from dios.limits import FAIR_QUEUE_EXEMPT_MAX, FAIR_QUEUE_TIMEOUT_S
from tests.support.firmament.fair_queue import Site


@pytest.mark.long
@pytest.mark.parametrize("rule", [FairnessRule.SDRF, FairnessRule.DRF])
@pytest.mark.extended(keep=1)
def test_turns_are_those_of_sdrf(rule: FairnessRule) -> None:
    """On a cluster without fragments exactly those tasks start that the library's SDRF, or DRF, starts."""
    for seed in range(30):
        chance = random.Random(seed)  # noqa: S311 - a play, no secret
        site = Site(12, rule=rule, memory_s=4.0)
        delta = math.exp(-1 / 4.0) if rule is FairnessRule.SDRF else None
        oracle = SdrfScheduler([64, 12, 12], delta=delta, users=5)
        for number in range(4):
            # Of equals whoever came first is first.
            site.ledger.set_terms(site.scheduler.state, f"user {number}", 1.0, {})
            oracle.submit(f"user {number}", [0, 0, 0], -number, 0.0)
            oracle.withdraw(-number, 0.0)
        # Somebody who may run nothing waits always: who waits alone takes no turns.
        site.ledger.set_terms(site.scheduler.state, "nobody", 1.0, {"tasks": 0.0})
        site.submit("nobody")
        running: list[int] = []
        now = 0.0
        for _ in range(25):
            # Longer than that, and a task that holds up everybody would be let by.
            now += chance.random() * FAIR_QUEUE_TIMEOUT_S / 25
            for _ in range(chance.randrange(3)):
                if running:
                    ended = running.pop(chance.randrange(len(running)))
                    site.scheduler.finished(ended, now)
                    oracle.finish(ended, now)
            for _ in range(chance.randrange(4)):
                who = f"user {chance.randrange(4)}"
                cpus, memory = chance.choice(((1, 0), (1, 2), (2, 1), (4, 1), (1, 5)))
                for task in site.submit(who, chance.randrange(1, 4), cpus=cpus, memory=memory, now=now):
                    oracle.submit(who, [1, cpus, memory], task, now)
            started = [int(str(tag)) for tag in oracle.schedule(now)]
            assert site.round(now) == sorted(started), f"seed {seed} at {now}"
            running += started


def test_a_past_of_taking_much_counts() -> None:
    """Of two who want everything, whoever has taken more than its right before gets less now."""
    site = Site(8, memory_s=100.0)
    heavy = site.submit("heavy", 8)
    site.submit("light", 1, cpus=0.0)
    assert len(site.round(0.0)) == 9
    for task in heavy:
        site.scheduler.finished(task, 100.0)
    site.submit("heavy", 8, now=100.0)
    site.submit("light", 8, now=100.0)
    site.round(100.0)
    assert site.running() == {"heavy": 3, "light": 6}
    owed = 0.5 * (1 - math.exp(-1))
    assert site.account("heavy").commitment == pytest.approx(owed)
    assert site.account("light").commitment == 0
    assert site.account("light").credit == pytest.approx(owed / 2)
    assert site.account("heavy").credit == pytest.approx(-owed / 2)


def test_commitments_fade_with_time() -> None:
    """After the memory's length without overuse, 1/e of a commitment is left (equation 12)."""
    site = Site(8, memory_s=50.0)
    tasks = site.submit("heavy", 8)
    site.submit("light", 1, cpus=0.0)
    site.round(0.0)
    for task in tasks:
        site.scheduler.finished(task, 1000.0)
    site.round(1000.0)
    before = site.account("heavy").commitment
    assert before == pytest.approx(0.5, rel=1e-6)
    site.round(1050.0)
    assert site.account("heavy").commitment == pytest.approx(before / math.e)


def test_weights_divide_in_proportion() -> None:
    """Twice the weight is a right to twice as much."""
    site = Site(9, rule=FairnessRule.DRF)
    site.ledger.set_terms(site.scheduler.state, "big", 2.0, {})
    site.submit("big", 20)
    site.submit("small", 20)
    site.round(0.0)
    assert site.running() == {"big": 6, "small": 3}
    assert site.account("big").entitlement == pytest.approx(2 / 3)
    assert site.account("small").entitlement == pytest.approx(1 / 3)


def test_a_quota_holds_though_there_is_room() -> None:
    """A principal holds no more at once than its quota says; others go on, and lifting it lets it go on."""
    site = Site(8)
    state = site.scheduler.state
    site.ledger.set_terms(state, "bound", None, {"cpus": 3.0})
    tasks = site.submit("bound", 6)
    site.submit("free", 2)
    site.round(0.0)
    assert site.running() == {"bound": 3, "free": 2}
    why = site.scheduler.explain(tasks[-1]).reason
    assert "may hold no more at once; it holds 3 of 3 cpus" in why
    site.ledger.set_terms(state, "bound", None, {"cpus": None})
    site.round(1.0)
    assert site.running() == {"bound": 6, "free": 2}
    assert site.account("bound").quota == {}


def test_quotas_hold_without_turns() -> None:
    """Also where nobody takes turns (fifo) a quota holds, and nothing else does."""
    site = Site(8, rule=FairnessRule.FIFO)
    site.ledger.set_terms(site.scheduler.state, "bound", None, {"tasks": 2.0})
    site.submit("bound", 20)
    site.submit("free", 6)
    site.round(0.0)
    assert site.running() == {"bound": 2, "free": 6}


def test_without_others_everything_is_let_in() -> None:
    """A principal that waits alone takes no turns: the network sees all of its tasks, and takes what fits."""
    site = Site(4)
    site.submit("only", 1, cpus=100.0)
    site.submit("only", 4)
    site.submit("only", 3)
    assert len(site.round(0.0)) == 4
    assert not site.scheduler.explain(0).reason.startswith("it is not its turn")


def test_who_waited_alone_has_no_head_start() -> None:
    """Tasks that were let in while nobody else waited take their turns like any other once somebody does."""
    site = Site(4)
    first = site.submit("early", 4)
    site.submit("early", 8)
    site.round(0.0)
    site.round(1.0)
    site.submit("late", 8, now=2.0)
    site.round(2.0)
    for task in first:
        site.scheduler.finished(task, 3.0)
    site.round(3.0)
    assert site.running() == {"early": 2, "late": 2}


def test_who_is_next_in_a_full_cluster_stays_next() -> None:
    """Where nobody has room nobody is held up, and the first places are whose turn it is."""
    site = Site(4)
    first = site.submit("early", 4)
    site.submit("early", 12)
    site.round(0.0)
    late = site.submit("late", 2, now=1.0)
    for second in range(1, 5 * int(FAIR_QUEUE_TIMEOUT_S)):
        assert site.round(float(second)) == []
    now = 5 * FAIR_QUEUE_TIMEOUT_S
    for task in first:
        site.scheduler.finished(task, now)
    assert set(site.round(now)) >= set(late)
    assert site.running() == {"early": 2, "late": 2}


def test_who_may_have_no_more_is_held_up_by_nobody() -> None:
    """Tasks beyond a quota wait for that, and do not end the patience with whoever is next."""
    site = Site(4)
    first = site.submit("early", 4, cpus=0.9)
    site.round(0.0)
    site.ledger.set_terms(site.scheduler.state, "early", None, {"tasks": 4.0})
    site.submit("early", 8, cpus=0.1, now=0.5)
    (late,) = site.submit("late", 1, cpus=3.7, now=1.0)
    for second in range(2, 5 * int(FAIR_QUEUE_TIMEOUT_S)):
        assert site.round(float(second)) == []
    for task in first:
        site.scheduler.finished(task, 50.0)
    # Beside four of the others, which have waited longer, it would have no room.
    assert late in site.round(50.0)


def test_who_held_up_others_still_has_its_turn_when_there_is_room() -> None:
    """Passed over after FAIR_QUEUE_TIMEOUT_S, a first task gets the next place, before an older queue."""
    site = Site(4)
    first = site.submit("early", 4)
    site.submit("early", 8, now=0.5)
    site.round(0.5)
    (late,) = site.submit("late", 1, now=1.0)
    # These have room, as they need a slot alone.
    small = site.submit("early", 2, cpus=0.0, now=1.0, priority=1)
    placed: list[int] = []
    for second in range(1, 5 * int(FAIR_QUEUE_TIMEOUT_S)):
        placed += site.round(float(second))
    assert set(placed) == set(small), "nobody is held up for ever"
    site.scheduler.finished(first[0], 50.0)
    assert site.round(50.0) == [late]


def test_a_large_task_gets_its_turn_but_holds_up_nobody_for_ever() -> None:
    """Whose turn it is is waited for, FAIR_QUEUE_TIMEOUT_S at most; then others go on beside its machine."""
    site = Site(8, 4)
    site.submit("stays", 10)
    site.round(0.0)
    (large,) = site.submit("large", 1, cpus=7.0, now=1.0)
    late = site.submit("stays", 2, now=1.0)
    assert site.round(1.0) == []
    assert "it is not its turn" in site.scheduler.explain(late[0]).reason
    assert site.round(1.0 + FAIR_QUEUE_TIMEOUT_S / 2) == []
    # The round in which patience ends keeps a machine for it.
    site.round(1.0 + FAIR_QUEUE_TIMEOUT_S)
    placed = site.round(1.5 + FAIR_QUEUE_TIMEOUT_S)
    assert set(placed) <= set(late)
    for task in range(10):
        site.scheduler.finished(task, 20.0)
    assert large in site.round(20.0)


def test_what_is_larger_than_the_cluster_holds_up_nobody() -> None:
    """A task that can never run does not keep others from their turn."""
    site = Site(4)
    site.submit("greedy", 1, cpus=100.0)
    site.submit("modest", 6)
    assert len(site.round(0.0)) == 4


def test_a_task_without_a_place_holds_up_nobody() -> None:
    """Room in the whole cluster is not room on a machine: whoever finds none does not keep others from it."""
    site = Site(2, 2)
    site.submit("wide", 1, cpus=3.0)
    site.submit("narrow", 9)
    assert len(site.round(0.0)) == 4


def test_who_had_a_turn_is_not_overtaken_by_older_tasks() -> None:
    """The room of a task whose start failed is kept for it, while others have waited for longer."""
    site = Site(2)
    first = site.submit("early", 8)
    site.round(0.0)
    (late,) = site.submit("late", 1, now=1.0)
    site.scheduler.finished(first[0], 2.0)
    assert site.round(2.0) == [late]
    site.scheduler.rejected(late, 2.0)
    assert site.round(2.5) == [], "it avoids the machine for a second"
    assert site.round(3.5) == [late]


def test_few_of_one_principal_wait_without_room_being_kept() -> None:
    """Of tasks without a place FAIR_QUEUE_EXEMPT_MAX of a principal enter: it cannot fill the network."""
    site = Site(2, 2)
    site.submit("wide", 3 * FAIR_QUEUE_EXEMPT_MAX, cpus=1.5)
    site.submit("narrow", 9, cpus=2.0)
    for now in range(40):
        site.round(float(now))
    turns = site.scheduler._fair_queue
    assert turns is not None
    let_in = turns.choose(site.scheduler.state, record=False).tasks
    names = [site.owner[int(site.scheduler.state.tasks.id[row])] for row in let_in]
    assert names.count("wide") <= FAIR_QUEUE_EXEMPT_MAX


def test_priority_orders_ones_own_tasks_alone() -> None:
    """A principal's important tasks go before its others, and not before those of somebody who has less."""
    site = Site(4)
    site.submit("alice", 4)
    high = site.submit("alice", 2, priority=9)
    modest = site.submit("bob", 2)
    assert site.round(0.0) == sorted([*high, *modest])


def test_what_is_ones_right_is_stopped_for_nobody() -> None:
    """Others' priorities stop no restartable task of a principal that has no more than its right."""
    site = Site(4)
    site.submit("modest", 2, restartable=True)
    site.submit("greedy", 2)
    site.round(0.0)
    site.submit("greedy", 4, priority=50, now=1.0)
    assert site.round(1.0) == []
    assert site.running() == {"modest": 2, "greedy": 2}


def test_ones_own_lower_priority_makes_room() -> None:
    """A principal's task of higher priority still takes the place of its own restartable one."""
    site = Site(4)
    site.submit("alice", 2, restartable=True)
    site.submit("bob", 2)
    site.round(0.0)
    urgent = site.submit("alice", 1, priority=5, now=1.0)
    site.submit("bob", 3, now=1.0)
    assert site.round(1.0) == urgent
    assert site.running() == {"alice": 2, "bob": 2}


def test_a_gang_has_one_turn() -> None:
    """Of a gang all or none are let in, and what has to start together is what counts as room."""
    site = Site(4)
    site.submit("alice", 2)
    site.round(0.0)
    gang = site.submit("bob", 4, gang=3, now=1.0)
    site.submit("alice", 4, now=1.0)
    # It is bob's turn, for three at once, and two are free.
    assert site.round(1.0) == []
    site.scheduler.finished(0, 2.0)
    assert len(set(site.round(2.0)) & set(gang)) >= 3


def test_thousands_of_principals_have_one_turn_each() -> None:
    """With more principals than a scan is for, nobody gets two tasks of a round, and who left has no turn."""
    site = Site(50, 50, slots=50)
    waiting = {f"user {number}": site.submit(f"user {number}", 2) for number in range(SCAN_MAX + 100)}
    first = site.round(0.0)
    assert len({site.owner[task] for task in first}) == 100
    for task in first:
        site.scheduler.finished(task, 1.0)
    # All but some of those who wait give up.
    left = [who for who in waiting if who not in {site.owner[task] for task in first}]
    for who in left[150:]:
        for task in waiting[who]:
            site.scheduler.finished(task, 1.0)
    second = site.round(1.0)
    assert len({site.owner[task] for task in second}) == 100
    assert {site.owner[task] for task in second} <= set(left[:150])
    for task in second:
        site.scheduler.finished(task, 2.0)
    third = site.round(2.0)
    assert {site.owner[task] for task in third} >= set(left[:150]) - {site.owner[task] for task in second}
