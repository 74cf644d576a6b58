"""The demo, as ``make demo INPUT=path`` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
SECONDS_MAX = 120


def test_the_demo_counts_a_persons_files_and_leaves_nothing(tmp_path: Path) -> None:
    """It counts on three nodes of which one is killed, a plain count agrees, and no process is left."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "one.txt").write_text("It was the best of times, it was the worst of times\n" * 300_000)
    (texts / "two.log").write_text("the age of wisdom")
    (texts / "picture.bin").write_bytes(b"\0\1\2 the the the")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = subprocess.run(
        [sys.executable, str(DEMO), "--input", str(texts), "--top", "3"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={"HOME": str(tmp_path), "TMPDIR": str(temporary), "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 files" in run.stdout
    assert "600,001" in run.stdout
    assert "was killed during the job" in run.stdout
    assert "A plain count in one process, without a sandbox, gives the same result" in run.stdout
    assert "processes is left" in run.stdout
    assert not list(temporary.iterdir())


def test_a_place_without_text_is_told(tmp_path: Path) -> None:
    """With nothing to count it says so, and what to give instead."""
    run = subprocess.run(
        [sys.executable, str(DEMO), "--input", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 2
    assert "make demo INPUT=path" in " ".join(run.stdout.split())
