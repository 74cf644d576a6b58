"""A task that fills the audit log: what it writes is bounded by the rate, and others are served meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios import limits
from dios.client.sync.node import Node, connect
from dios.host.audit.reader import AuditReader, verify
from tests.support.node.running_node import RunningNode, running_node, wait_until

pytestmark = pytest.mark.long

RATE = 8 * limits.KIB
VECTOR_BYTES = limits.VECTOR_CALLS_MAX * 256
"""More than a vector of refused calls leaves."""
FIRST_BYTES = limits.VECTOR_CALLS_MAX * 100
"""Less than a vector of refused calls leaves."""
SERVED_BYTES = 4 * 256
TASKS = 7
FLOODED_S = 2.0

EQUAL = b"""
import dios
from dios.wire import messages

node = dios.connect()
for _ in range(100):
    node.vector([messages.Stat(12345) for _ in range(1024)])
"""
VARIED = b"""
import os
import dios
from dios.wire import messages

node = dios.connect()
print("begun", flush=True)
while True:
    node.vector([messages.Lookup(os.urandom(32)) for _ in range(1024)])
"""
FAMILY = b"""
import dios

node = dios.connect()
program = node.create_program(node.input("program").read_bytes())
children = [node.run(program, label=f"child {number}") for number in range(6)]
children[0].wait()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with a small rate."""
    with running_node(tmp_path_factory.mktemp("charges"), audit_rate=str(RATE)) as started:
        yield started


@pytest.fixture
def node(running: RunningNode) -> Iterator[Node]:
    """A session of the same user as the tasks."""
    with connect(running.place, groups=()) as connected:
        yield connected


def _size(running: RunningNode) -> int:
    return sum(path.stat().st_size for path in (running.data / "audit").iterdir())


def test_a_flood_of_one_denial_costs_the_log_almost_nothing(running: RunningNode, node: Node) -> None:
    """100 vectors of 1,024 refused calls leave some records, whose numbers add up to all of them."""
    before = _size(running)
    task = node.run(EQUAL)
    fingerprint = task.fingerprint
    assert task.wait(timeout=60).ok
    reader, counted = AuditReader(running.data / "audit"), 0

    def all_counted() -> bool:
        nonlocal counted
        counted += sum(
            entry.record.count
            for entry in reader.poll()
            if (entry.record.action, entry.record.outcome, entry.record.task)
            == ("stat", "denied", fingerprint)
        )
        return counted == 100 * limits.VECTOR_CALLS_MAX

    wait_until(all_counted, "each refusal is counted")
    assert _size(running) - before < VECTOR_BYTES


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize(
    ("program", "reached"),
    [(VARIED, limits.AUDIT_BURST_S * RATE), (FAMILY, FIRST_BYTES)],
    ids=["a task", "a task with children, with the credit used up"],
)
def test_a_varied_flood_is_bounded_and_delays_no_other_job_for_long(
    running: RunningNode, node: Node, program: bytes, reached: int
) -> None:
    """Beyond its credit the log grows by the rate and one step of a task, and others are served."""
    before = _size(running)
    source = node.create(dios.SHMEM_BLOB, data=VARIED)
    task = node.run(program, inputs={"program": source})
    wait_until(lambda: _size(running) - before > reached, "the flood reaches the log", 120)
    began, before, served = time.monotonic(), _size(running), 0
    while time.monotonic() - began < FLOODED_S:
        blob = node.create(dios.SHMEM_BLOB, data=b"served")
        assert blob.read_bytes() == b"served"
        blob.destroy()
        served += 1
    grown = _size(running) - before
    elapsed = time.monotonic() - began
    assert task.status().cause is dios.Cause.NONE
    assert grown < TASKS * VECTOR_BYTES + served * SERVED_BYTES + elapsed * RATE
    assert served > 1
    task.kill()
    task.wait(timeout=60)
    assert verify(running.data / "audit").ok


def test_the_size_of_the_log_is_shown(node: Node, running: RunningNode) -> None:
    """The status of a node has the records and bytes of its audit log."""
    counts = node.info().counts
    assert counts["audit_records"] > 0
    assert counts["audit_bytes"] > 0
    wait_until(lambda: counts["audit_bytes"] <= _size(running), "they are in the files")


def test_settings_bound_the_log(tmp_path: Path) -> None:
    """A node with small bounds starts, and its log is whole."""
    with running_node(tmp_path / "data", audit_bytes="64MiB", audit_age="1h") as started:
        with connect(started.place, groups=()) as connected:
            connected.create(dios.SHMEM_BLOB, data=b"x")
        started.stop()
        assert verify(started.data / "audit").ok
