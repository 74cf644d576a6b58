"""The ledger of who shares: what is set, what is kept and handed on, and what everybody holds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from dios.errors import InvalidError
from dios.firmament.policies.stored_shares import RESOURCES, StoredAccount, StoredShares, decode, encode
from dios.limits import SHARES_FORGOTTEN_S
from tests.support.firmament.fair_queue import Site


def test_accounts_go_from_one_ledger_to_the_next() -> None:
    """Weights, quotas and commitments are the same after handing on; commitments fade meanwhile."""
    before = Site(8, memory_s=100.0, wall=1_000_000.0)
    state = before.scheduler.state
    before.ledger.set_terms(state, "heavy", 2.0, {"cpus": 6.0, "tasks": 9.0})
    before.submit("light", 1, cpus=0.0)
    before.submit("heavy", 6)
    before.round(0.0)
    before.round(50.0)
    kept = decode(encode(before.ledger.to_stored(state)))
    old = before.account("heavy")
    after = Site(8, memory_s=100.0, wall=1_000_150.0)
    after.ledger.take_over(after.scheduler.state, kept, commitments=True)
    new = after.account("heavy")
    assert (new.weight, new.quota) == (2.0, {"cpus": 6.0, "tasks": 9.0})
    assert new.commitment == pytest.approx(old.commitment * math.exp(-1))
    assert old.commitment > 0


def test_what_was_set_later_holds() -> None:
    """Of two ledgers' terms for a principal the later ones hold, whoever takes over from whom."""
    site = Site(8, wall=100.0)
    state = site.scheduler.state
    site.ledger.set_terms(state, "a", 3.0, {})
    terms = (math.inf,) * len(RESOURCES), (0.0,) * len(RESOURCES)
    older = StoredAccount("a", 7.0, terms[0], 50.0, 50.0, terms[1])
    newer = StoredAccount("a", 5.0, terms[0], 150.0, 50.0, terms[1])
    site.ledger.take_over(state, StoredShares(60.0, (older,)), commitments=False)
    assert site.account("a").weight == 3.0
    site.ledger.take_over(state, StoredShares(60.0, (newer,)), commitments=False)
    assert site.account("a").weight == 5.0


def test_who_was_not_seen_for_long_does_not_share() -> None:
    """After SHARES_FORGOTTEN_S without a task a principal has no right any more, and others more."""
    site = Site(8)
    (task,) = site.submit("gone")
    site.submit("stays")
    site.round(0.0)
    site.scheduler.finished(task, 1.0)
    site.round(SHARES_FORGOTTEN_S - 1.0)
    assert site.account("stays").entitlement == 0.5
    site.round(SHARES_FORGOTTEN_S + 1.0)
    assert site.account("stays").entitlement == 1.0


@pytest.mark.parametrize(
    ("principal", "weight", "quota", "told"),
    [
        ("a", 0.0, {}, "weight is 0.0"),
        ("a", math.nan, {}, "weight is nan"),
        ("a", 1e9, {}, "weight is 1000000000.0"),
        ("a", None, {"cpu": 1.0}, "unknown resource 'cpu'; quotas limit tasks, cpus"),
        ("a", None, {"cpus": -1.0}, "cpus is -1.0"),
        ("a", None, {"memory": math.nan}, "memory is nan"),
        ("", 1.0, {}, "no principal"),
    ],
)
def test_terms_that_cannot_be_are_refused(
    principal: str, weight: float | None, quota: dict[str, float | None], told: str
) -> None:
    """A wrong weight or quota is refused by name, and nothing is set."""
    site = Site(8)
    before = site.ledger.to_stored(site.scheduler.state)
    with pytest.raises(InvalidError, match=told.replace("(", r"\(")):
        site.ledger.set_terms(site.scheduler.state, principal, weight, quota)
    assert site.ledger.to_stored(site.scheduler.state) == before


def test_shares_from_before_devices_were_counted_are_read() -> None:
    """A stored account without the column of devices owes none of them, and may hold any number."""
    before = StoredAccount("a", 2.0, (1.0,) * 5, 0.0, 0.0, (3.0,) * 5)
    (account,) = decode(encode(StoredShares(1.0, (before,)))).accounts
    assert account.quota == (*before.quota, math.inf)
    assert account.commitments == (*before.commitments, 0.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode(StoredShares(math.nan)),
        encode(StoredShares(1.0, (StoredAccount("a", 1.0, (1.0,), 0.0, 0.0, (0.0,) * 6),))),
        encode(StoredShares(1.0, (StoredAccount("a", 0.0, (1.0,) * 6, 0.0, 0.0, (0.0,) * 6),))),
        encode(StoredShares(1.0, (StoredAccount("a", 1.0, (math.nan,) * 6, 0.0, 0.0, (0.0,) * 6),))),
        encode(StoredShares(1.0, (StoredAccount("a", 1.0, (1.0,) * 6, 0.0, 0.0, (math.inf,) * 6),))),
    ],
)
def test_a_ledger_that_makes_no_sense_is_refused(data: bytes) -> None:
    """Bytes that are no ledger, or have impossible numbers, are an error and no ledger."""
    with pytest.raises(InvalidError, match="are invalid"):
        decode(data)


def test_a_ledger_is_bounded_on_its_way() -> None:
    """Of too many principals those who were set something, or owe most, are handed on."""
    site = Site(8)
    state = site.scheduler.state
    site.ledger.set_terms(state, "zz", 2.0, {})
    for number in range(3000):
        site.submit(f"a rather long name of a principal {number}", cpus=0.0)
    kept = decode(encode(site.ledger.to_stored(state)))
    assert 100 < len(kept.accounts) <= 1024
    assert kept.accounts[0].principal == "zz"


@pytest.mark.long
def test_what_principals_hold_is_counted_right() -> None:
    """Through placements, ends, refusals and lost machines, what is held is the sum over running tasks."""
    for seed in range(10):
        chance = random.Random(seed)  # noqa: S311 - a play, no secret
        site = Site(4, 4, 4)
        live: set[int] = set()
        for step in range(60):
            now = float(step)
            if chance.random() < 0.7:
                live |= set(
                    site.submit(
                        f"u{chance.randrange(3)}", chance.randrange(1, 4), cpus=chance.random(), now=now
                    )
                )
            placed = site.round(now)
            if placed and chance.random() < 0.3:
                site.scheduler.rejected(placed[0], now)
            for task in [task for task in sorted(live) if chance.random() < 0.2]:
                site.scheduler.finished(task, now)
                live.discard(task)
            if chance.random() < 0.1:
                site.scheduler.remove_machine(0, now)
                site.add_machine(0, 4)
            state = site.scheduler.state
            rows = np.flatnonzero(state.tasks.alive & (state.tasks.machine >= 0))
            for number in range(len(state.principals)):
                mine = rows[state.jobs.principal[state.tasks.job[rows]] == number]
                assert state.held[number, 0] == len(mine), f"seed {seed}"
                np.testing.assert_allclose(
                    state.held[number, 1:],
                    state.tasks.demand[mine].sum(axis=0),
                    atol=1e-9,
                    err_msg=f"seed {seed}",
                )
