"""Removing goes on after a file that stays, and lists it with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dios.cli.common.context import CataloguedFile
from dios.cli.common.failures import Failures
from dios.cli.objects import removal
from dios.cli.objects.removal import Target, destroy_targets
from dios.errors import NotPermittedError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Note
from dios.lib.files.group_list import Destroyed
from dios.wire.nametext import fingerprint

if TYPE_CHECKING:
    from dios.cli.common.context import CommandContext

NAMES = {letter: letter.encode() * 32 for letter in "abcd"}


def _target(letter: str) -> Target:
    file = CataloguedFile("papers", CatalogueEntry(letter, NAMES[letter], 1, 0))
    return Target(f"papers/{letter}", [NAMES[letter]], "papers", file)


def _place(files: SimpleNamespace) -> CommandContext:
    return cast("CommandContext", SimpleNamespace(node=SimpleNamespace(nodes=list), files=lambda _: files))


def test_a_file_that_stays_keeps_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may not be destroyed, one may have a replica elsewhere, one is no file; the others go."""
    forgotten: list[str] = []
    outcomes = {
        NAMES["a"]: Destroyed(1, complete=True),
        NAMES["c"]: Destroyed(1, complete=False),
        NAMES["d"]: Destroyed(0, complete=True),
    }

    def destroy(_: object, names: Sequence[bytes], **__: object) -> dict[bytes, Destroyed]:
        if NAMES["b"] in names:
            raise NotPermittedError("the reference lacks the right to delete")
        return {name: outcomes[name] for name in names}

    monkeypatch.setattr(removal, "destroy", destroy)
    monkeypatch.setattr(removal, "silent", lambda _: "n2")
    files = SimpleNamespace(
        unlist=lambda *_: None,
        forget=lambda gone: forgotten.extend(entry.file for entry in gone),
        moved=lambda entries: [entry for entry in entries if entry.file == "a"],
    )
    failures = Failures("not removed")
    targets = [*map(_target, "abc"), Target("dios1secret", [NAMES["d"]])]
    gone, later = destroy_targets(_place(files), targets, failures)
    assert [target.text for target, _ in gone] == ["papers/a", "papers/c", "dios1secret"]
    assert later == []
    assert forgotten == ["a"]
    assert set(failures.reasons) == {"papers/a", "papers/b", "papers/c", fingerprint(NAMES["d"])}
    assert "from a store meanwhile" in failures.reasons["papers/a"]
    assert "right to delete" in failures.reasons["papers/b"]
    assert "n2 did not answer" in failures.reasons["papers/c"]


def test_a_replicated_list_keeps_only_the_file_that_may_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays listed and its objects stay. A node that does not answer makes no failure of the others."""
    listed = {"a", "b", "c"}
    ended: list[str] = []

    def unlist(entries: Sequence[CatalogueEntry], _: object) -> list[Note]:
        if any(entry.file == "b" for entry in entries):
            raise NotPermittedError("the reference lacks the right to delete")
        listed.difference_update(entry.file for entry in entries)
        return [Note(entry, b"", 1) for entry in entries]

    def destroy(_: object, names: Sequence[bytes], **__: object) -> dict[bytes, Destroyed]:
        assert NAMES["b"] not in names
        return {name: Destroyed(1, complete=name != NAMES["c"]) for name in names}

    monkeypatch.setattr(removal, "destroy", destroy)
    files = SimpleNamespace(
        unlist=unlist,
        end=lambda notes, _: ended.extend(note.former.file for note in notes),
        moved=lambda _: [],
    )
    failures = Failures("not removed")
    gone, later = destroy_targets(_place(files), [*map(_target, "abc")], failures)
    assert listed == {"b"}
    assert set(failures.reasons) == {"papers/b"}
    assert [target.text for target, _ in gone] == ["papers/a", "papers/c"]
    assert [target.text for target in later] == ["papers/c"]
    assert ended == ["a", "c"]


def test_a_list_that_cannot_be_changed_keeps_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of its group is destroyed, and what is in no group is."""

    def unlist(*_: object) -> list[Note]:
        raise UnreachableError("too few replicas of the list answer")

    def destroy(_: object, names: Sequence[bytes], **__: object) -> dict[bytes, Destroyed]:
        assert list(names) == [NAMES["d"]]
        return {name: Destroyed(1, complete=True) for name in names}

    monkeypatch.setattr(removal, "destroy", destroy)
    failures = Failures("not removed")
    targets = [*map(_target, "ab"), Target("dios1secret", [NAMES["d"]])]
    gone, _ = destroy_targets(_place(SimpleNamespace(unlist=unlist)), targets, failures)
    assert [target.text for target, _ in gone] == ["dios1secret"]
    assert set(failures.reasons) == {"papers/a", "papers/b"}
