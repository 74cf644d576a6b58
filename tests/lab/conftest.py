"""The lab's tests need root, seconds and a quiet machine: ``make lab`` runs them, ``make test`` does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab.echo import EchoProgram
from tests.support.lab.machines import Lab
from tests.support.lab.namespaces import NotHereError

HERE = Path(__file__).parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect this folder only for whoever asks for it by name."""
    asked = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


@pytest.fixture
def echoes(tmp_path: Path) -> Iterator[Lab]:
    """Three machines that run the echo program."""
    try:
        lab = Lab(tmp_path, EchoProgram())
    except NotHereError as error:
        pytest.skip(str(error))
    with lab:
        lab.start()
        yield lab
