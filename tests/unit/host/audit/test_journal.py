"""Equal refusals become one record with a count, and principals pay for what their actions leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dios import limits
from dios.core.effects import Audit
from dios.host.audit.charges import AuditCharges
from dios.host.audit.journal import AuditJournal
from dios.host.audit.log import AuditLog, AuditRecord
from dios.host.audit.reader import read, verify
from dios.ids import TaskId

MS = 1_000_000
RATE = limits.AUDIT_RATE_BYTES_S_DEFAULT


class Journal:
    """A journal whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0
        self.log = AuditLog(folder)
        self.charges = AuditCharges(RATE, {"uid:0"}, lambda: self.now)
        self.journal = AuditJournal(self.log, self.charges)

    def denied(
        self, subject: str = "s", detail: str = "why", *, principal: str = "uid:7", job: int = 7
    ) -> None:
        """Add a refusal."""
        record = Audit(self.now, "read", "denied", principal, "t", subject, detail, TaskId(job))
        self.journal.append(record)

    def records(self) -> list[AuditRecord]:
        """Everything that was written so far."""
        self.log.flush()
        return [entry.record for entry in read(self.folder)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    new_journal = Journal(tmp_path)
    yield new_journal
    new_journal.log.close()


def test_a_flood_of_one_denial_is_a_few_records_with_exact_numbers(journal: Journal) -> None:
    """100,000 equal denials in ten seconds leave some dozen records, whose counts and times are exact."""
    for number in range(100_000):
        journal.now = 1 + number * MS // 10
        journal.denied()
        if not number % 1_000:
            journal.journal.settle(journal.now)
    journal.journal.settle_all()
    records = journal.records()
    assert sum(record.count for record in records) == 100_000
    assert len(records) < 20
    assert records[0].count == 1
    assert records[0].now == 1
    ends = [(record.first or record.now, record.now) for record in records]
    assert all(earlier[1] < other[0] for earlier, other in pairwise(ends))
    assert records[-1].now == journal.now
    assert verify(journal.folder).ok


def test_single_denials_are_written_at_once_and_forgotten(journal: Journal) -> None:
    """A denial waits for nothing, and one that comes much later is a record of its own."""
    journal.denied()
    assert [record.count for record in journal.records()] == [1]
    journal.now += limits.AUDIT_SYNC_MS * MS
    journal.journal.settle(journal.now)
    assert not journal.journal._repeats
    journal.denied()
    assert [record.count for record in journal.records()] == [1, 1]


def test_what_changes_something_is_never_merged(journal: Journal) -> None:
    """Ten equal acts are ten records."""
    for _ in range(10):
        journal.journal.append(Audit(1, "lookup", "ok", "uid:7", "t", "s", "", TaskId(7)))
    assert [record.count for record in journal.records()] == [1] * 10


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=60))
def test_the_counts_add_up(tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[int, int]]) -> None:
    """Whatever is denied when, the counts of the records of each denial are the number of its denials."""
    journal = Journal(tmp_path_factory.mktemp("journal"))
    expected: Counter[str] = Counter()
    for subject, pause in acts:
        journal.now += pause * MS
        journal.journal.settle(journal.now)
        journal.denied(str(subject))
        expected[str(subject)] += 1
    journal.journal.settle_all()
    counts: Counter[str] = Counter()
    for record in journal.records():
        counts[record.subject] += record.count
    journal.log.close()
    assert counts == expected


def test_the_table_of_repeats_is_bounded_and_loses_no_count(journal: Journal) -> None:
    """Further denials than the table holds push the oldest out, with their counts."""
    for number in range(2 * limits.AUDIT_MERGED_KEYS_MAX):
        journal.denied(str(number))
        journal.denied(str(number))
    assert len(journal.journal._repeats) == limits.AUDIT_MERGED_KEYS_MAX
    journal.journal.settle_all()
    assert sum(record.count for record in journal.records()) == 4 * limits.AUDIT_MERGED_KEYS_MAX


def _flood(journal: Journal, size: int, *, principal: str = "uid:7", job: int = 7) -> None:
    """Varied denials of that many bytes."""
    before, number = journal.log.size, 0
    while journal.log.size - before < size:
        number += 1
        journal.denied(str(number), "d" * 1_000, principal=principal, job=job)


def test_varied_denials_use_up_the_credit_of_their_principal_alone(journal: Journal) -> None:
    """Beyond its credit a principal's job may not call until the rate has paid; others are not concerned."""
    _flood(journal, limits.AUDIT_BURST_S * RATE)
    assert journal.charges.owes("uid:7", 7)
    assert not journal.charges.owes("uid:8", 8)
    assert not journal.charges.owes("uid:7", 9)
    journal.now += 1_000 * MS
    assert not journal.charges.owes("uid:7", 7)
    assert not journal.charges.any_debts
    _flood(journal, RATE)
    assert journal.charges.owes("uid:7", 7)


def test_a_job_that_writes_much_does_not_delay_another_of_its_principal_for_long(journal: Journal) -> None:
    """The rate pays all debts in equal parts: the small one is paid first."""
    _flood(journal, (limits.AUDIT_BURST_S + 4) * RATE)
    journal.denied(job=9)
    assert journal.charges.owes("uid:7", 9)
    journal.now += 10 * MS
    assert not journal.charges.owes("uid:7", 9)
    assert journal.charges.owes("uid:7", 7)


def test_new_jobs_do_not_evade_the_debts_of_their_principal(journal: Journal) -> None:
    """Beyond a total debt no job of the principal calls, so that fresh sessions gain nothing."""
    _flood(journal, limits.AUDIT_BURST_S * RATE)
    job = 100
    while not journal.charges.owes("uid:7", job):
        _flood(journal, RATE, job=job)
        job += 1
    assert job <= 100 + limits.AUDIT_BURST_S // 4 + 1
    assert journal.charges.owes("uid:7", 10_000)
    assert not journal.charges.owes("uid:8", 10_000)


def test_very_many_jobs_and_principals_cost_bounded_memory(journal: Journal) -> None:
    """Further jobs of a principal owe together, and further principals share an account."""
    charges = journal.charges
    for job in range(1, 2_000):
        charges.charge("uid:7", job, limits.AUDIT_BURST_S * RATE)
    assert len(charges._accounts["uid:7"].debts) <= 257
    for number in range(limits.AUDIT_DEBTORS_MAX + 100):
        charges.charge(f"made-up {number}", number + 1, 2 * limits.AUDIT_BURST_S * RATE)
    assert len(charges._accounts) <= limits.AUDIT_DEBTORS_MAX
    assert charges.owes("made up later", 1)


def test_the_nodes_own_user_keeps_its_rate_beside_many_others(journal: Journal) -> None:
    """However many others owe, the node's own user pays at its whole rate, and they at shares of a total."""
    charges, burst = journal.charges, limits.AUDIT_BURST_S * RATE
    for number in range(1_000):
        charges.charge(f"made-up {number}", 1, 2 * burst)
    charges.charge("uid:0", 1, burst + RATE)
    assert charges.wait_s("uid:0", 1) == pytest.approx(1.0)
    assert charges.wait_s("made-up 999", 1) > limits.AUDIT_BURST_S


def test_credit_is_earned_up_to_the_bound(journal: Journal) -> None:
    """A principal that was idle for long has the credit of AUDIT_BURST_S seconds."""
    _flood(journal, limits.AUDIT_BURST_S * RATE)
    journal.now += 10 * limits.AUDIT_BURST_S * 1_000 * MS
    assert not journal.charges.owes("uid:7", 7)
    _flood(journal, limits.AUDIT_BURST_S * RATE)
    assert journal.charges.owes("uid:7", 7)


def test_refused_strangers_beyond_their_rate_share_a_record(journal: Journal) -> None:
    """Nobody can make strangers wait: their varied refusals lose details, and no number."""
    count = 0
    while not journal.charges.owes("strangers", 0):
        journal.journal.append_refused(Audit(1, "connect", "denied", f"address:{count}", "", "", "w" * 900))
        count += 1
    before = journal.log.records
    for number in range(10_000):
        journal.journal.append_refused(Audit(1, "connect", "denied", f"address:{number}", "", "", "why"))
    journal.journal.settle_all()
    records = journal.records()[before:]
    assert len(records) == 2
    assert sum(record.count for record in records) == 10_000
    assert {record.principal for record in records} == {"various"}


def test_the_node_is_charged_for_nothing(journal: Journal) -> None:
    """Records of the node itself are always written."""
    for number in range(100):
        journal.journal.append(Audit(1, "node", "alive", "uid:0", "", str(number), "d" * 1_000))
    assert not journal.charges._accounts
