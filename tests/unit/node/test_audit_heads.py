"""A node's own audit heads: published, kept in files, and compared before it starts."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dios.core.effects import Audit
from dios.errors import DamagedError
from dios.host.audit import signing
from dios.host.audit.heads import AuditHead, KnownHeads, PublishedHead, read_heads
from dios.host.audit.log import AuditLog, segments
from dios.host.audit.reader import read, verify
from dios.node.audit_heads import (
    HeadPublisher,
    local_heads,
    newest_local_heads,
    open_heads,
    own_file,
)
from dios.node.settings import Settings, load
from dios.transport.identity import identity


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a node without a cluster, whose operator has chosen a file for heads."""
    (tmp_path / "data").mkdir()
    return replace(load(tmp_path / "data", environ={}), audit_heads=tmp_path / "elsewhere")


class Life:
    """One start of a node, as far as its audit log goes."""

    def __init__(self, settings: Settings, *, accept_lost: bool = False, segment_bytes: int = 1_000) -> None:
        self.settings = settings
        self.audit = AuditLog(settings.audit, segment_bytes=segment_bytes)
        self.sent: list[AuditHead] = []
        self.heads = trio.run(self._opened, accept_lost)
        self.heads.send = self.sent.append

    async def _opened(self, accept_lost: bool) -> HeadPublisher:  # noqa: FBT001 - of trio.run
        return await open_heads(self.settings, self.audit, accept_lost=accept_lost, continued=False)

    def works(self, count: int, *, publish: bool = True) -> None:
        """Append records and publish the head."""
        for number in range(count):
            self.audit.append(Audit(1, "run", "ok", "uid:0", "t", str(number), ""))
        if publish:
            trio.run(self.heads.publish)

    def ends(self) -> None:
        """Stop."""
        self.heads.close()
        self.audit.close()


def test_a_head_is_published_once_for_the_records_on_disk(settings: Settings) -> None:
    """A head goes to the node's file, to the operator's and to others; without new records there is none."""
    life = Life(settings)
    life.works(3)
    life.works(0)
    life.works(2)
    life.ends()
    assert settings.audit_heads is not None
    assert [head.records for head in life.sent] == [3, 5]
    for path in (own_file(settings), settings.audit_heads):
        stored = read_heads(path)
        assert list(stored.heads) == life.sent
        assert all(signing.is_genuine(head) for head in stored.heads)
    verdict = verify(settings.audit, published=local_heads(settings).published)
    assert (verdict.ok, verdict.heads) == (True, 4)


def test_records_that_are_not_on_disk_are_not_published(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head never promises records that a power failure would take."""
    life = Life(settings)
    life.works(3)

    def failing(descriptor: int) -> None:
        raise OSError(5, "the disk fails")

    monkeypatch.setattr("dios.host.audit.log.os.fdatasync", failing)
    life.works(2)
    assert [head.records for head in life.sent] == [3]
    monkeypatch.undo()
    life.works(0)
    assert [head.records for head in life.sent] == [3, 5]
    life.ends()


def test_the_last_records_of_a_start_are_published_at_its_end(settings: Settings) -> None:
    """Records after the last head have a head before the node is gone, and the next start agrees."""
    life = Life(settings)
    life.works(3, publish=False)
    life.ends()
    assert [head.records for head in read_heads(own_file(settings)).heads] == [3]
    Life(settings).ends()


@pytest.mark.parametrize("left", ["own", "elsewhere"])
@pytest.mark.parametrize("loss", ["all records", "the last records", "an older copy"])
def test_a_node_does_not_start_behind_its_head(settings: Settings, left: str, loss: str) -> None:
    """A log that lost records is refused by each of the files alone, with the way on in the message."""
    life = Life(settings)
    life.works(4)
    copy = settings.data.parent / "copy"
    shutil.copytree(settings.audit, copy)
    life.works(4)
    life.ends()
    assert settings.audit_heads is not None
    (settings.audit_heads if left == "own" else own_file(settings)).unlink()
    if loss == "the last records":
        path = segments(settings.audit)[-1]
        path.write_bytes(path.read_bytes()[:-60])
    else:
        shutil.rmtree(settings.audit)
        if loss == "an older copy":
            shutil.copytree(copy, settings.audit)
    with pytest.raises(DamagedError, match=r"the head of 8 .*--accept-lost-audit"):
        Life(settings)


def test_an_accepted_loss_is_recorded_and_void_from_then_on(settings: Settings) -> None:
    """With the option it starts in a new era, which says what was lost; later starts need no option."""
    life = Life(settings)
    life.works(4)
    life.ends()
    shutil.rmtree(settings.audit)
    life = Life(settings, accept_lost=True)
    life.works(1)
    life.ends()
    (head,) = life.sent
    assert (head.era, head.since, head.records) == (1, 0, 2)
    record = next(read(settings.audit)).record
    assert (record.action, record.outcome, record.subject) == ("audit", "lost", "0")
    assert "the head of 4 (kept by this node)" in record.detail
    life = Life(settings)
    life.works(1)
    life.ends()
    assert life.sent[0].era == 1
    verdict = verify(settings.audit, published=local_heads(settings).published)
    assert verdict.ok
    assert any("loss of records up to 4" in text for text in verdict.lost)


def test_the_option_changes_nothing_if_nothing_is_lost(settings: Settings) -> None:
    """A start with the option on a whole log stays in its era."""
    life = Life(settings)
    life.works(4)
    life.ends()
    life = Life(settings, accept_lost=True)
    life.works(1)
    life.ends()
    assert [(head.era, head.records) for head in life.sent] == [(0, 5)]


def test_a_head_that_another_node_returns_stops_a_node_that_is_behind(settings: Settings) -> None:
    """A returned head that the log has does nothing; one that it has not stops the node with the reason."""
    life = Life(settings)
    life.works(4)
    (head,) = life.sent
    life.heads.examine(head, "n2")
    trio.run(life.heads._examine_returned)
    life.heads.raise_error()
    life.heads.examine(head._replace(records=7), "n2")
    trio.run(life.heads._examine_returned)
    with pytest.raises(DamagedError, match="kept by n2"):
        life.heads.raise_error()
    life.ends()


def test_a_returned_head_is_compared_when_the_log_can_be_read_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that cannot be read for a moment neither ends the node nor hides that it is behind."""
    life = Life(settings)
    life.works(4)
    life.heads.examine(life.sent[0]._replace(records=7), "n2")

    def unreadable(folder: Path, known: KnownHeads) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr("dios.node.audit_heads.compare_with_log", unreadable)
        trio.run(life.heads._examine_returned)
    life.heads.raise_error()
    trio.run(life.heads._examine_returned)
    with pytest.raises(DamagedError, match="kept by n2"):
        life.heads.raise_error()
    life.ends()


@pytest.mark.parametrize("failing", ["own", "elsewhere"])
def test_a_file_that_cannot_be_written_keeps_heads_from_no_other_place(
    settings: Settings, failing: str
) -> None:
    """A head goes to other nodes and to the other file at once, and to the failing file when that works."""
    assert settings.audit_heads is not None
    places = [own_file(settings), settings.audit_heads]
    bad, good = places if failing == "own" else reversed(places)
    bad.parent.mkdir(exist_ok=True)
    if failing == "own":
        bad.mkdir()
    else:
        os.mkfifo(bad)  # that nobody reads
    life = Life(settings)
    life.works(3)
    assert [head.records for head in life.sent] == [3]
    assert list(read_heads(good).heads) == life.sent
    bad.rmdir() if failing == "own" else bad.unlink()
    life.works(0)
    assert list(read_heads(bad).heads) == list(read_heads(good).heads) == life.sent
    assert len(life.sent) == 1
    life.ends()


def test_a_head_of_the_first_era_is_void_after_two_accepted_losses(settings: Settings) -> None:
    """A node starts although another one returns a head that the first of two losses made void."""
    copy = settings.data.parent / "copy"

    def goes_back(records: int, lost: int) -> AuditHead:
        """Accept that the records after a copy of the log were lost, and return the last head before."""
        life = Life(settings, accept_lost=copy.exists())
        life.works(records)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(settings.audit, copy)
        life.works(lost)
        life.ends()
        shutil.rmtree(settings.audit)
        shutil.copytree(copy, settings.audit)
        return life.sent[-1]

    first = goes_back(4, 6)
    assert goes_back(10, 3).era == 1
    life = Life(settings, accept_lost=True)
    life.works(1)
    assert life.sent[0].era == 2
    assert life.sent[0].since > first.records
    life.heads.examine(first, "n2")
    trio.run(life.heads._examine_returned)
    life.heads.raise_error()
    life.ends()


def test_a_node_starts_with_a_damaged_segment_whose_loss_is_accepted(settings: Settings) -> None:
    """The heads of the damaged segment are void from then on, and later starts need no option."""
    life = Life(settings)
    for _ in range(12):
        life.works(3)
    life.ends()
    path = segments(settings.audit)[1]
    path.write_bytes(bytes(56) + path.read_bytes()[56:])
    life = Life(settings, accept_lost=True)
    life.works(1)
    life.ends()
    assert life.sent[0].era == 1
    life = Life(settings)
    life.works(1)
    life.ends()
    assert life.sent[0].era == 1


def test_the_key_of_a_cluster_signs_from_the_first_start_in_it_on(settings: Settings) -> None:
    """Heads that a node signed alone stay valid in a cluster, where its identity signs; others do not."""
    life = Life(settings)
    life.works(2)
    life.ends()
    own = identity.create_cluster(settings.data, name="n1")
    life = Life(settings)
    life.works(2)
    life.ends()
    assert life.sent[0].node == own.node
    assert signing.digest_of(life.sent[0].key) == own.card.key
    known = newest_local_heads(settings)
    assert [kept.head.records for kept in known.published] == [2, 4, 4]
    stranger = Settings(settings.data.parent / "other", settings.socket)
    stranger.data.mkdir()
    identity.create_cluster(stranger.data, name="n1")
    foreign = local_heads(stranger, [own_file(settings)])
    assert foreign.published == ()
    assert "2 of its lines" in foreign.unknown[0]


def test_the_newest_head_of_each_keeper_in_each_era_is_compared_first() -> None:
    """Of several heads of a keeper the last of each era counts."""
    heads = [AuditHead(1, era, 0, records, b"", 0, b"", b"") for era, records in ((0, 9), (1, 4), (0, 5))]
    known = KnownHeads(tuple(PublishedHead(head, "n2") for head in heads))
    assert [kept.head for kept in known.newest.published] == [heads[0], heads[1]]
