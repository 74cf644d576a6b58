"""Rack and labels that were changed while the node ran, and its next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.errors import DamagedError
from dios.node import cluster, live_labels
from dios.node.settings import SettingsError, load


def test_what_was_set_live_counts_more_than_the_settings(tmp_path: Path) -> None:
    """All of it: a label that was removed live does not come back from the settings."""
    (tmp_path / "node.toml").write_text('rack = "r1"\nlabels = { gpu = "yes", old = "1" }\n')
    settings = load(tmp_path, environ={})
    assert live_labels.effective(settings) == ("r1", (("gpu", "yes"), ("old", "1")))
    live_labels.write(tmp_path, "r7", (("gpu", "no"),))
    assert live_labels.effective(settings) == ("r7", (("gpu", "no"),))
    live_labels.write(tmp_path, "", ())
    assert live_labels.effective(settings) == ("", ())


@pytest.mark.parametrize(
    "text", ["", "{}", '{"rack": "a b", "labels": {}}', '{"rack": "", "labels": {"a,": "b"}}']
)
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    """A node does not start with other labels than its operator gave it."""
    (tmp_path / live_labels.NAME).write_text(text)
    with pytest.raises(DamagedError, match=r"dios node label"):
        live_labels.read(tmp_path)


def test_labels_of_a_join_are_remembered(tmp_path: Path) -> None:
    """A replaced node keeps the labels of the line that was typed, as it keeps its rack."""
    settings = load(tmp_path, environ={}, flags={"rack": "r1", "labels": "gpu=yes,zone=a"})
    cluster.remember(settings)
    assert load(tmp_path, environ={}).labels == (("gpu", "yes"), ("zone", "a"))


def test_labels_that_cannot_travel_as_text_are_no_setting(tmp_path: Path) -> None:
    """The rack is a setting of its own, and all labels together are short."""
    for labels in ({"rack": "r1"}, {"a": "b=c"}, {f"label-{number}": "x" * 40 for number in range(16)}):
        with pytest.raises(SettingsError, match="labels"):
            load(tmp_path, environ={}, flags={"labels": labels})
