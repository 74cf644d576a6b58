"""A member of a real cluster of three that lies at every opportunity, and is removed: nobody else is harmed.

Not for: a lie that a core answers in a certain way (``test_hostile_node.py``), or floods at full speed
(``test_hostile_node_wire.py``). ``make fuzz-nodes`` tells more lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.wire import messages
from dios.wire.types import ObjectType
from tests.support.node.raw_client import create
from tests.support.security.hostile_member.campaign import FoundError, play
from tests.support.security.hostile_member.honest_nodes import HonestNodes, honest_nodes
from tests.support.security.hostile_member.plays import PLAYS
from tests.support.security.hostile_member.turncoat import play_turncoat

pytestmark = pytest.mark.long

SHORT = {
    "answers": 120,
    "fields": 60,
    "hellos": 60,
    "joiners": 60,
    "sponsors": 60,
    "treason": 60,
    "half_messages": 40,
    "revocations": 60,
    "silence": 80,
    "transfers": 60,
}
"""The numbers of lies of plays in which each costs a connection, or waits."""
LIES = 200
CALLS = 10
"""Calls of users on a turncoat and with it. Each whose answer it bends away may wait for 30 seconds."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HonestNodes]:
    """Three honest nodes, which all plays share."""
    with honest_nodes(tmp_path_factory.mktemp("members")) as honest:
        yield honest


@pytest.mark.extended(keep=8)
@pytest.mark.parametrize("name", sorted(PLAYS))
def test_a_play_harms_nobody(nodes: HonestNodes, tmp_path: Path, name: str) -> None:
    """Honest nodes agree, serve their users and give nothing away; the liar is removed and stays out."""
    lies = SHORT.get(name, LIES)
    assert play(nodes, sorted(PLAYS).index(name), lies, tmp_path, name).lies >= lies


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1))
def test_a_turncoat_harms_nobody(nodes: HonestNodes, tmp_path: Path, seed: int) -> None:
    """A real node whose messages are bent on their way out, with users on it and at its peers."""
    assert play_turncoat(nodes, seed, CALLS, tmp_path).lies == 2 * CALLS


def test_harm_is_noticed(nodes: HonestNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that a user loses during a play is a finding, with the seed that repeats it."""
    person = nodes.persons[1]
    lost = create(person.client, ObjectType.SHMEM_BLOB, b"lost").reference.ref
    monkeypatch.setattr(nodes, "_references", [honest.references() for honest in nodes.persons])
    person.client.ask(messages.Delete(lost), messages.Done)
    with pytest.raises(FoundError, match=r"seed 7.*references at n2 came or went"):
        play(nodes, 7, 10, tmp_path, "unasked")
