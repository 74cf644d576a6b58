"""What keeps an interface from being shaped, told before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.errors import InvalidError, NotPermittedError
from dios.host.network.shaping import RECORD, shaped


def test_nothing_is_shaped_where_nobody_asked(tmp_path: Path) -> None:
    """Without the setting no program is run and no file is left."""
    with shaped(tmp_path, "", 0):
        assert not list(tmp_path.iterdir())


def test_a_shape_needs_a_rate(tmp_path: Path) -> None:
    """It is refused with the name of the setting that is missing."""
    with pytest.raises(InvalidError, match="link_rate"), shaped(tmp_path, "lo", 0):
        raise AssertionError("it must not begin")


def test_what_tc_says_is_told(tmp_path: Path) -> None:
    """An interface that is not there is refused, as every one is without root, and nothing is remembered."""
    with pytest.raises((InvalidError, NotPermittedError)) as caught, shaped(tmp_path, "nowhere0", 10**6):
        raise AssertionError("it must not begin")
    assert "nowhere0" in str(caught.value)
    assert not (tmp_path / RECORD).exists()


def test_an_interface_that_is_gone_keeps_no_node_from_starting(tmp_path: Path) -> None:
    """What a killed daemon left behind on it has gone with it."""
    (tmp_path / RECORD).write_text("nowhere0")
    with shaped(tmp_path, "", 0):
        assert not list(tmp_path.iterdir())
