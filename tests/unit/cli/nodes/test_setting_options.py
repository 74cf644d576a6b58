from __future__ import annotations

import pytest

from dios.cli.nodes.setting_options import SHOWN, seconds_of, settings_given
from dios.errors import InvalidError
from dios.node.settings import KEYS


def test_every_setting_is_shown() -> None:
    """The help of commands that take settings names each, and nothing else."""
    assert sorted(SHOWN) == sorted(key.replace("_", "-") for key in KEYS)


def test_options_become_settings() -> None:
    """Both spellings of an option give its value; one that means true needs none."""
    words = ["--pool-size", "3", "--mode=liberal", "--announce", "--listen", "h:1"]
    assert settings_given(words, "dios up") == {
        "pool_size": "3",
        "mode": "liberal",
        "announce": "true",
        "listen": "h:1",
    }


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5min", 300), ("1h", 3600), ("2d", 172_800)])
def test_spans_are_read(text: str, seconds: int) -> None:
    """A number and a unit are so many seconds."""
    assert seconds_of(text, "--valid") == seconds


@pytest.mark.parametrize("text", ["", "h", "1", "1.5h", "-1h", "1 hour", "\u0661h", "1m"])
def test_what_is_no_span_is_refused(text: str) -> None:
    """Whatever has no number or no unit names the option that was meant."""
    with pytest.raises(InvalidError, match=r"--valid must be a span"):
        seconds_of(text, "--valid")
