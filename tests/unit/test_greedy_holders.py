"""Every pool of places has a test of a greedy holder, and every limiter of the product belongs to a pool."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.limits import POOLS

ROOT = Path(__file__).resolve().parents[2]

TESTS = {
    "sessions of other users": (
        "tests/unit/host/process/test_session_places.py",
        "test_no_user_takes_all_places",
    ),
    "connections of programs at a border": (
        "tests/unit/node/border/test_border_places.py",
        "test_no_origin_takes_all_connections",
    ),
    "connections of clusters at a border": (
        "tests/unit/node/border/test_border_places.py",
        "test_no_origin_takes_all_connections",
    ),
    "calls sent on to a cluster": (
        "tests/unit/node/border/test_border_places.py",
        "test_no_user_takes_all_calls_to_another_cluster",
    ),
    "writes at a border": (
        "tests/unit/node/border/test_border_places.py",
        "test_writes_wait_for_a_place_for_a_bounded_time",
    ),
    "streams between nodes": (
        "tests/unit/host/peers/test_peers_streams.py",
        "test_no_node_and_no_principal_takes_all_streams",
    ),
    "bytes that arrive from nodes": (
        "tests/unit/host/peers/test_peers_parts.py",
        "test_no_node_takes_all_the_memory_for_arriving_bytes",
    ),
    "look-ups of host names": (
        "tests/unit/host/network/test_shares_of_network.py",
        "test_slow_names_of_one_principal_keep_no_other_waiting",
    ),
    "copies in threads": (
        "tests/unit/host/loop/test_fair_queue.py",
        "test_a_neighbour_waits_for_one_of_each_principal",
    ),
    "starts of processes": (
        "tests/unit/host/process/test_spawn_turns.py",
        "test_a_neighbour_waits_for_few_processes_of_a_greedy_principal",
    ),
    "transfers to a node": (
        "tests/unit/host/bandwidth/test_rates_peers.py",
        "test_a_slow_principal_keeps_no_other_waiting",
    ),
    "handshakes at a node": (
        "tests/unit/transport/tcp/test_tcp_tls.py",
        "test_a_crowd_from_one_address_makes_room_itself",
    ),
    "handshakes at a border": (
        "tests/unit/node/border/test_pace.py",
        "test_an_address_has_few_handshakes_and_others_their_own",
    ),
    "readers of metrics": (
        "tests/security/test_local_ports.py",
        "test_silent_readers_of_metrics_keep_nobody_out",
    ),
    "runs that wait for room": (
        "tests/unit/core/calls/test_waiting_starts.py",
        "test_a_full_queue_lets_callers_wait_and_others_in",
    ),
    "network streams": (
        "tests/unit/host/network/test_shares_of_network.py",
        "test_no_principal_takes_all_sockets",
    ),
}
"""The test in which a greedy holder wants all places of a pool."""

LIMITERS = {
    "dios/host/network/acceptor.py": "the connections at one listener, which count for its principal",
    "dios/lib/kept/keeper.py": "the looks of one keeper, for the groups of its own user",
}
"""The modules with limiters of their own, with the reason why one holder cannot keep others waiting."""


@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_has_a_test_of_a_greedy_holder(pool: str) -> None:
    """The test exists."""
    file, name = TESTS[pool]
    tests = {
        node.name
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in tests


def test_there_is_no_test_of_a_pool_that_is_gone() -> None:
    """Each test is for a pool of the table, whose numbers are positive."""
    assert TESTS.keys() == POOLS.keys()
    assert all(pool.places > 0 and pool.holder for pool in POOLS.values())


def limiters() -> Iterator[str]:
    """The modules of the product that make a semaphore or a limiter."""
    for path in sorted((ROOT / "dios").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in {"CapacityLimiter", "Semaphore", "BoundedSemaphore"}:
                    yield str(path.relative_to(ROOT))


@pytest.mark.long
def test_every_limiter_has_its_reason() -> None:
    """A new semaphore is a new pool of places: give it a row in limits.POOLS, or a reason here.

    A module that has none any more has no reason here.
    """
    assert set(limiters()) == LIMITERS.keys()
