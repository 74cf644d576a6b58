"""A greedy user and a modest one on a thin link between real nodes."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import pytest

from tests.lab import rates
from tests.support.lab.namespaces import NotHereError


@pytest.mark.timeout(500)
def test_a_greedy_user_keeps_a_modest_one_from_nothing() -> None:
    """Without rates the modest one gets a fraction of what it wants, with rates all of it; then none hold.

    And the greedy one gets its rate: the link is not left idle. A coordinator brings about the same.
    """
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        try:
            phases = rates.carried_out(Path(folder), 6.0)
        except NotHereError as error:
            pytest.skip(str(error))
    without, ruled, after = (phases[name] for name in rates.PHASES)
    coordinated = phases[rates.COORDINATED]
    said = rates.report(phases, 0.0)
    assert without.modest < rates.MODEST_WANTS / 2, said
    assert ruled.modest > 3 / 4 * rates.MODEST_WANTS, said
    assert 3 / 4 < ruled.greedy / statistics.mean(ruled.told) < 4 / 3, said
    assert after.modest < rates.MODEST_WANTS / 2, said
    assert coordinated.modest > 3 / 4 * rates.MODEST_WANTS, said
    assert coordinated.greedy > rates.CAPACITY / 2, said
