from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nodes and keyrings of the tests leave the links and files of whoever runs them alone."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            folder = tmp_path_factory.mktemp(variable.lower())
            folder.chmod(0o700)
            patch.setenv(variable, str(folder))
        # A scheduler's process beside each node would cost every test seconds; tests of it ask for it.
        patch.setenv("DIOS_COORDINATOR", "off")
        yield
