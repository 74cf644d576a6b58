from __future__ import annotations

import re
from pathlib import Path

import pytest

from dios.packer import TiMra
from dios.packer.baselines import POLICIES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "packer.md").read_text()


def shown(program: str) -> list[str]:
    """What a program's comments say that it prints."""
    lines = re.findall(r"(?:^|print\(.*?)# (\{.*|\[.*|'.*)$", program, re.MULTILINE)
    return [re.split(r": everybody|; \.\.\.", line)[0].strip() for line in lines]


def test_programs_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Each program in docs/packer.md runs, and prints what its comments say."""
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "docs/packer.md", "exec"), {})  # noqa: S102 - our own page
        printed = capsys.readouterr().out.splitlines()
        expected = shown(program)
        assert len(expected) == len(printed)
        for line, start in zip(printed, expected, strict=True):
            assert line.startswith(start)


def test_the_job_of_the_page_can_be_read() -> None:
    """The job in TOML is one, with all its copies and edges."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    job = TiMra.from_toml(text)
    assert (len(job.nodes), len(job.edges)) == (6, 9)


def test_the_page_names_every_policy() -> None:
    """No policy is missing on the page."""
    assert [name for name in POLICIES if f"`{name}`" not in PAGE] == []
