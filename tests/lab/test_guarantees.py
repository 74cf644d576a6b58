"""Tasks with guarantees beside greedy users on a thin link between real nodes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.lab import guarantees, rates
from tests.support.lab.namespaces import NotHereError


@pytest.mark.timeout(300)
def test_greedy_users_take_nothing_that_is_guaranteed() -> None:
    """In every second a task has the smaller of demand and guarantee, the link is full and not over-full.

    Both but for 5 %, and at most 10 % idle while it changes hands. What is lent out is taken back at once.
    """
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        try:
            observed = guarantees.carried_out(Path(folder))
        except NotHereError as error:
            pytest.skip(str(error))
    said = guarantees.report(observed, 0.0)
    assert not guarantees.kept(observed["sent"]), said
    idle = 3 * guarantees.PHASE_S + 1
    lent = sum(observed["sent"].between(user, idle, idle + 2) for user in guarantees.USERS.values())
    assert lent > 0.6 * rates.CAPACITY, said
    again, promised = 4 * guarantees.PHASE_S, guarantees.PLAN["steps"][4].guarantee
    assert observed["sent"].back_ms("steps", again, promised) < 1_000, said
    for second in range(again + 1, again + guarantees.PHASE_S):
        assert observed["received"].between("steps", second, second + 1) > 0.9 * promised, said
