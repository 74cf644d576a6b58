"""The tests of universal_pathlib, from its source distribution, on files of a real node.

Its wheel has no tests, so they are downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.node.running_node import running_node
from tests.support.published import suites

pytest.importorskip("upath", reason="the package universal_pathlib is not installed")

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

_CASES: Final = Path(suites.__file__).with_name("pathlib_cases.py")

_CWD: Final = "it asks for a working directory, which the library knows for its own file systems alone"
NOT_APPLICABLE: Final = {
    "test_rename_with_target_absolute[plain_upath_absolute]": _CWD,
    "test_rename_with_target_absolute[plain_path_absolute]": _CWD,
}
"""The cases that do not apply, and why."""


def test_paths_are_those_of_pathlib(tmp_path: Path) -> None:
    """All cases pass but those that do not apply, which fail."""
    source = suites.unpacked_source("universal_pathlib==0.3.10", tmp_path)
    with running_node(tmp_path / "data") as running:
        outcomes = suites.outcomes_of(
            [str(_CASES)], tmp_path, environment={"DIOS_NODE": running.place, "PYTHONPATH": str(source)}
        )
    assert outcomes.failed.keys() == NOT_APPLICABLE.keys()
    assert len(outcomes.passed) > 100
