"""The story of an object, and the retirement of references by a user who has a name of it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from dios.client.ops.status import Status
from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.host.audit.log import AuditRecord
from dios.web.observation import references
from dios.web.observation.references import is_about, read_story, retire, story_line
from dios.wire.types import TaskState

EVIL = "<img src=x>\x1b[2J\u202e"


def _told(action: str, outcome: str, detail: str = "", task: str = "aa", subject: str = "bb") -> str:
    record = AuditRecord(1, action, outcome, "uid:1", task, subject, detail)
    assert is_about(record, "bb")
    return story_line(7, record, "bb", {"aa": "job"}).text


def test_records_become_sentences() -> None:
    """The thing of the story is "it", tasks have their labels, and unknown actions keep their words."""
    assert _told("create", "ok", "SHMEM_BLOB") == "job (aa) created it, SHMEM_BLOB"
    assert _told("delegate", "ok", "to cc") == "job (aa) delegated a reference to it to cc"
    assert "its start, with the rights read, write" in _told("delegate", "ok", "at start, rights 3")
    assert _told("retire", "ok", "of cc") == "job (aa) retired the reference of cc to it"
    assert _told("ended", "killed", task="bb") == "It ended: killed"
    assert _told("juggle", "denied", "x") == "job (aa): juggle of it, x: denied"


def test_a_story_has_no_control_characters() -> None:
    """Labels, details and users of others are escaped."""
    text = _told("run", "ok", EVIL)
    assert text.isprintable()
    assert "<img" in text


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Without a log there is no story, and a reason."""
    assert read_story(tmp_path, "bb", {}) == ([], "The audit log of the node cannot be read from here.")


class _Handle:
    """A reference that notes what is asked of it."""

    def __init__(self, log: list[object]) -> None:
        self.log = log

    def retire(self, *, everyone: bool, holder: str) -> int:
        """Note the holder."""
        assert everyone
        self.log.append(holder)
        return 2

    def close(self) -> None:
        """Note the end."""
        self.log.append("closed")


class _Node:
    """A node with one task, and no groups."""

    groups = ()

    def __init__(self) -> None:
        self.log: list[object] = []

    def present_all(self) -> None:
        """Do nothing."""

    def find(self, name: bytes) -> _Handle:
        """Return a handle."""
        assert name == b"n"
        return _Handle(self.log)


def test_a_named_object_is_retired_and_another_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of the user is found by its name and its handle closed; without a name nothing is asked."""
    monkeypatch.setattr(references, "read_files", lambda _: ([], []))
    node = _Node()
    tasks = [Status("bb", "", TaskState.RUNNING, name=b"n")]
    assert retire(cast("Node", node), tasks, "bb", "aa") == 2
    assert node.log == ["aa", "closed"]
    with pytest.raises(InvalidError, match="keyring"):
        retire(cast("Node", node), tasks, "cc")
    assert len(node.log) == 2
