"""``dios lab repro dios``: what it writes, and that its measurements measure what they say."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.errors import InvalidError
from dios.host.confinement.mechanisms import obstacle_to_pure, probe
from labs.papers.dios import evaluation, peer_tasks, redis_peer, runs, word_count
from labs.papers.dios.senders import CLOCK


def invoke(*words: str) -> tuple[int, str, str]:
    """Return the command's status, output and messages."""
    result = CliRunner().invoke(main.app, ["lab", "repro", "dios", *words])
    return result.exit_code, result.stdout, result.stderr


def quiet(_: str) -> None:
    """Ignore a progress line."""


@pytest.mark.extended
def test_every_figure_of_chapter_5_is_written_next_to_the_thesis(tmp_path: Path) -> None:
    """All figures, quickly, on real nodes: each has its table, its JSON and its claims."""
    status, shown, said = invoke("--quick", "--out", str(tmp_path), "--json")
    assert status == 0, said
    reports = json.loads(shown)
    assert [entry["figure"] for entry in reports] == list(evaluation.FIGURES)
    for report in reports:
        assert report["command"] == f"dios lab repro dios --figure {report['figure']} --seed 1 --quick"
        text = (tmp_path / f"figure-{report['figure']}.md").read_text()
        assert "## Compared with the thesis" in text
        assert report["claims"]
        assert report["measured"]
        assert all(Path(path).stat().st_size for path in report["files"])


@pytest.mark.long
def test_table_5_1_is_tried_on_real_nodes(tmp_path: Path) -> None:
    """A task finds an object in its group alone, and reaches no file, no port and no right of others."""
    if reason := obstacle_to_pure(probe()):
        pytest.skip(f"this machine cannot confine pure tasks: {reason}")
    status, shown, said = invoke("--quick", "--figure", "table-5.1", "--out", str(tmp_path), "--json")
    assert status == 0, said
    (report,) = json.loads(shown)
    judged = {claim["what"].partition(":")[0]: claim["judgement"] for claim in report["claims"]}
    for subject in (
        "isolated distributed namespaces",
        "separate file system",
        "fine-grained capabilities",
        "sharing of resources",
        "no kernel of its own",
        "connections of its own",
    ):
        assert judged[subject] == "agrees"


def test_an_unknown_figure_and_a_seed_below_zero_are_refused(tmp_path: Path) -> None:
    """They are refused before a node is started."""
    status, _, said = invoke("--figure", "5.9", "--out", str(tmp_path / "out"))
    assert status == 1
    assert all(number in said for number in evaluation.FIGURES)
    with pytest.raises(InvalidError, match="-1"):
        list(evaluation.reproduce(["5.1"], tmp_path / "out", -1, quiet, quick=True))
    assert not (tmp_path / "out").exists()


def test_the_text_depends_on_the_seed_alone_and_its_parts_add_up(tmp_path: Path) -> None:
    """One seed gives the same bytes twice; ranges of the file count each word once."""
    paths = [tmp_path / name for name in ("one", "two", "other")]
    for path, seed in zip(paths, (3, 3, 4), strict=True):
        word_count.write_text(path, 2_000, seed)
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    size = paths[0].stat().st_size
    bounds = [size * at // 7 for at in range(8)]
    parts = [peer_tasks.count_range(str(paths[0]), *pair) for pair in pairwise(bounds)]
    words = paths[0].read_bytes().split()
    assert peer_tasks.add_up(parts) == (len(words), len(set(words))) == (2_000, len(set(words)))


def test_percentiles_and_sizes_are_shown_as_they_are() -> None:
    """The cells are 1 %, 25 %, median, 75 %, 99 % and the maximum; sizes have binary units."""
    assert runs.time_cells([float(number) for number in range(1, 101)]) == (
        2.0,
        26.0,
        50.5,
        76.0,
        100.0,
        100.0,
    )
    assert [runs.size_text(size) for size in (64, 4096, 2 << 20)] == ["64 B", "4 KiB", "2 MiB"]


def test_without_redis_its_lines_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is started, and the note of the figure says what is missing."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert redis_peer.redis_note() == ("Redis is not measured: redis-server is not installed.",)
    with redis_peer.redis_if_present() as server:
        assert server is None


def test_messages_through_redis_arrive_with_the_clock_of_their_sending() -> None:
    """All messages of the sending process come in their order; the server and its socket are then gone."""
    if reason := redis_peer.missing_redis():
        pytest.skip(reason)
    with redis_peer.redis_if_present() as server:
        assert server is not None
        with server.sending(64, 3, 0):
            messages = [server.receive()[0] for _ in range(3)]
        assert {len(message) for message in messages} == {64}
        clocks = [CLOCK.unpack_from(message)[0] for message in messages]
        assert clocks == sorted(set(clocks))
    assert not server.path.exists()
