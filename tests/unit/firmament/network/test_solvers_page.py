"""The page about the solvers shows programs that run, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dios.firmament.solvers import algorithms

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "solvers.md").read_text()


def test_the_programs_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """The programs of the page run in order, and print the text in the comments after their print calls."""
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    promised = re.findall(r"^print\(.*?\) +# (.*)$", program, re.MULTILINE)
    exec(compile(program, "solvers.md", "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines() == promised
    assert len(promised) == program.count("print(")


def test_the_page_names_every_algorithm() -> None:
    """The table of algorithms has a row for each name that solve takes."""
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(algorithms()) - {"auto"} <= set(rows)
