"""A few rounds of ``make crashtest``: the daemon killed under load, nothing acknowledged lost or torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.rounds import Rounds
from tests.crash.verdict import BrokenError, on_the_disk
from tests.crash.writer import Value, whole_value

ROUNDS = 6
SEED = 20


def test_a_killed_node_keeps_its_word(tmp_path: Path) -> None:
    """A node that is killed under load or while starting loses nothing, tears nothing, leaves nothing.

    The checks are tested, too: a journal that expects more than was done fails.
    """
    rounds = Rounds(tmp_path / "node0", SEED)
    try:
        for _ in range(ROUNDS):
            rounds.play()
        rounds.finish()
    except BaseException:
        rounds.abandon()
        raise
    assert rounds.tally.kills == ROUNDS
    assert rounds.tally.kills_while_starting > 0
    journals = rounds.journals
    name, value = next((name, value) for journal in journals for name, value in journal.live.items())
    mine = next(journal for journal in journals if name in journal.live)
    mine.live[name] = Value(value.writer, value.serial, value.size + 1)
    with pytest.raises(BrokenError, match="size"):
        on_the_disk(rounds.data, journals)
    del mine.live[name]
    with pytest.raises(BrokenError, match="only 0 were requested"):
        on_the_disk(rounds.data, journals)
    mine.deleted.add(name)
    with pytest.raises(BrokenError, match="back"):
        on_the_disk(rounds.data, journals)


def test_a_torn_value_is_no_version() -> None:
    """A content with one byte of another version, one missing or one too many is recognised."""
    whole = Value(3, 17, 9_000).data()
    other = Value(3, 16, 9_000).data()
    assert whole_value(whole) == Value(3, 17, 9_000)
    for cut in (1, 31, 8_999):
        assert whole_value(whole[:cut]) is None
    assert whole_value(whole + b"0") is None
    assert whole_value(whole[:4_096] + other[4_096:]) is None
    assert whole_value(b"") is None
