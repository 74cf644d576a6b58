"""The page about the architecture says what the packages and their contracts are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CHECKLISTS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^###? |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_the_layers_are_those_that_are_enforced() -> None:
    """The page shows the layers of pyproject.toml in their order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["containers"] == ["dios"])
    assert f"```\n{' > '.join(layers)}\n```" in PAGE


def test_every_package_has_a_paragraph() -> None:
    """The table of packages names every package of the product, and no other."""
    packages = {path.parent.name for path in (ROOT / "dios").glob("*/__init__.py")}
    assert set(re.findall(r"`dios/(\w+)`", "".join(re.findall(r"^\|.*", PAGE, re.MULTILINE)))) == packages


@pytest.mark.parametrize("change", CHECKLISTS)
def test_a_checklist_names_files_that_exist(change: str) -> None:
    """Each list of the files of a change names some, and each of them exists."""
    files = re.findall(r"`((?:dios|tests|docs)/[\w/.]+)`", CHECKLISTS[change])
    assert files, "a checklist without files"
    assert [file for file in files if not (ROOT / file).exists()] == []
