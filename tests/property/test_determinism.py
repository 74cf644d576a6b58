"""The core depends on its events and entropy alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SUPPORT = Path(__file__).parents[1] / "support" / "programs"


def digest_under(hash_seed: str, walk: int) -> str:
    """The digest of a walk's outcomes in a fresh interpreter."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{SUPPORT.parents[2]}:{SUPPORT}"}
    return subprocess.run(
        [sys.executable, str(SUPPORT / "core_story.py"), str(walk), "300"],
        env=environment,
        cwd=SUPPORT.parents[2],
        capture_output=True,
        check=True,
        text=True,
    ).stdout


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("walk", [1, 2])
def test_hash_seeds_change_nothing(walk: int) -> None:
    """The same events under two hash seeds give the same outcomes byte for byte, and the same state."""
    first, second = digest_under("0", walk), digest_under("4242", walk)
    assert len(first) == 64
    assert first == second


def test_other_events_give_another_digest() -> None:
    """The digest sees what happened."""
    assert digest_under("0", 1) != digest_under("0", 2)
