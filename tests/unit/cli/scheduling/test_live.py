"""Questions to a scheduler that does not run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from dios.cli.common import extras, output
from dios.cli.common.context import CommandContext
from dios.cli.common.results import OutputOptions
from dios.cli.nodes import local_cluster as commands
from dios.cli.scheduling import live
from dios.core.calls.run_calls import NO_SCHEDULER
from dios.errors import UnreachableError
from dios.node import coordinator_supervisor, local_cluster


class LonelyNode:
    """A node of a cluster in which no scheduler runs."""

    def __init__(self) -> None:
        self.node = self

    def ask_scheduler(self, question: bytes) -> bytes:
        """Refuse a question as the core does."""
        del question
        raise UnreachableError(NO_SCHEDULER, call="ask_scheduler")


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of the extra `cluster` that is not installed."""
    missing = "no_such_package_of_solvers"
    monkeypatch.setattr(coordinator_supervisor, "_NEEDED", (missing,))
    monkeypatch.setitem(cast("dict[str, frozenset[str]]", extras._PACKAGES), "cluster", frozenset({missing}))
    return missing


def test_a_question_without_a_scheduler_names_the_cause_and_the_step(without_extra: str) -> None:
    """The missing package and the command that installs it are named, and no advice about objects follows."""
    with pytest.raises(UnreachableError) as refused:
        live.ask_at(cast("CommandContext", LonelyNode()), {"ask": "status"})
    assert "runs a scheduler" in refused.value.message
    assert f"{without_extra} missing here" in refused.value.message
    assert "dios-node restart" in refused.value.message
    assert not output.next_step(refused.value)


def test_with_the_extra_the_logs_are_named() -> None:
    """Where the extra is installed here, the nodes' logs are the next step."""
    with pytest.raises(UnreachableError) as refused:
        live.ask_at(cast("CommandContext", LonelyNode()), {"ask": "status"})
    assert "dios node logs" in refused.value.message
    assert "missing" not in refused.value.message


@pytest.mark.parametrize("choice", ["auto", "off"])
def test_up_says_that_there_is_no_scheduler(
    tmp_path: Path,
    without_extra: str,
    choice: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`dios up` says so in one line with the meaning, unless the user chose to have none."""
    monkeypatch.delenv("DIOS_COORDINATOR", raising=False)
    cluster = local_cluster.make(tmp_path / "c", nodes=2, settings={"coordinator": choice})
    commands._show(cluster, [], {}, OutputOptions(), is_new=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "scheduler" in line]
    assert len(lines) == (choice == "auto")
    assert all(without_extra in line and "refused" in line for line in lines)
