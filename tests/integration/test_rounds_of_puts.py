"""The round trips between nodes that a put into a group with promised replicas takes, on real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from dios import limits
from dios.cli.common.context import CommandContext, opened
from dios.cli.main import app
from dios.lib.files.staging import StagedFiles
from dios.lib.kept.promises import Promises
from dios.node import local_cluster
from tests.support.node.asking_node import LINES, rounds_of
from tests.support.node.running_node import daemon_of, wait_until

SETTINGS: Final = {"accept_weaker_sandbox": "yes", "coordinator": "off", "pool_size": "0"}
KEPT: Final = "kept"
PLAIN: Final = "plain"
PATIENCE_S: Final = 90
ROUNDS_MAX: Final = 3
"""That a put with two acknowledgements takes, beyond those of a put with one."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The lines of three nodes, with a group without a promise, and one whose promise is kept."""
    home = tmp_path_factory.mktemp("home")
    live_cluster = local_cluster.make(home / "cluster", nodes=3, settings=SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setenv("DIOS_NODE", str(live_cluster.nodes[0].socket))
        patch.setenv(LINES, str(home / "lines"))
        try:
            with daemon_of("tests.support.node.asking_node"):
                local_cluster.start(live_cluster)
            (home / "first").write_bytes(b"first")
            for alias in (PLAIN, KEPT):
                types("group", "create", alias)
                types("put", str(home / "first"), "--group", alias, "--as", "first")
            types("group", "set", KEPT, "--replicas", "2")
            with opened(None, [KEPT]) as place:
                wait_until(lambda: is_kept(place), "three replicas of the list", PATIENCE_S)
            yield home / "lines"
        finally:
            local_cluster.stop(live_cluster)


def types(*words: str) -> None:
    """Type a command that succeeds."""
    done = CliRunner().invoke(app, words)
    assert not done.exit_code, done.output


def is_kept(place: CommandContext) -> bool:
    """The promise is kept, and the list has as many replicas as it shall have."""
    status = Promises(place.node).promise(place.group(KEPT))
    files = place.files(KEPT)
    assert files.tree().is_file("first")
    return status is not None and status.checked and not status.short and files.list_is_on(3)


def put(place: CommandContext, alias: str, *paths: str) -> None:
    """Put small files together."""
    staged = StagedFiles(place.files(alias))
    for path in paths:
        staged.add_bytes(path, b"bytes of " + path.encode())
    staged.publish()


def rounds(lines: Path, place: CommandContext, alias: str, path: str) -> int:
    """Return the round trips of a put by a session."""
    task = place.node.self_info.object
    before = rounds_of(lines)[task]
    put(place, alias, path)
    return rounds_of(lines)[task] - before


def rounds_of_command(lines: Path, *words: str) -> int:
    """Return the round trips of a command that succeeds."""
    before = rounds_of(lines)
    types(*words)
    return max(
        (rounds_taken for task, rounds_taken in rounds_of(lines).items() if task not in before), default=0
    )


def test_a_put_takes_three_round_trips_more_than_a_local_one(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new session, again, and when the list was read long ago: one for the file, two for the list."""
    taken: dict[str, list[int]] = {}
    for alias in (PLAIN, KEPT):
        with opened(None, [alias]) as place, monkeypatch.context() as patch:
            taken[alias] = [rounds(lines, place, alias, path) for path in ("new", "again")]
            patch.setattr(limits, "CATALOGUE_FRESH_MS", 0)
            patch.setattr(limits, "CATALOGUE_LOOK_MS", 0)
            taken[alias].append(rounds(lines, place, alias, "late"))
    assert all(0 < kept - plain <= ROUNDS_MAX for kept, plain in zip(taken[KEPT], taken[PLAIN], strict=True))


def test_a_command_that_puts_takes_no_more(lines: Path) -> None:
    """The look for files with the same path is part of the change of the list."""
    file = str(lines.with_name("first"))
    plain, kept = (
        rounds_of_command(lines, "put", file, "--group", alias, "--as", "typed") for alias in (PLAIN, KEPT)
    )
    assert 0 < kept - plain <= ROUNDS_MAX


def test_many_files_in_one_put_change_the_list_once(lines: Path) -> None:
    """A hundred files are in one new version of the list, and take fewer round trips than there are files."""
    with opened(None, [KEPT]) as place:
        record, task = place.files(KEPT).record, place.node.self_info.object
        assert record.exists()
        before, version = rounds_of(lines)[task], record.read_record().value.version
        put(place, KEPT, *(f"many/{number}" for number in range(100)))
        assert rounds_of(lines)[task] - before < 100
        assert record.read_record().value.version == version + 1
        assert len(place.files(KEPT).tree().children("many")) == 100
