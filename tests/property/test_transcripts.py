"""Two runs that differ in a secret alone look the same to everybody without its label, on all nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from dios.core.calls import flows
from dios.core.model import disclosure
from dios.core.model.origins import BLANKS
from dios.core.model.records import Holder
from dios.host.content.public_pages import PublicPages
from dios.ids import Principal
from dios.wire import messages
from tests.support.core import harness
from tests.support.core.harness import OWNER
from tests.support.core.transcripts import STRANGER, transcript

Leak: TypeAlias = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("owner", [OWNER, STRANGER])
def test_a_secret_changes_nothing_that_others_see(owner: Principal) -> None:
    """Answers, events, pages and errors of parties without the label do not depend on the secret."""
    first, second = transcript(1, owner), transcript(2, owner)
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == []


# -- planted leaks ------------------------------------------------------------------------------------------
def _without_blank(kind: type, field: str) -> Leak:
    return lambda patch: patch.delitem(BLANKS[kind], field)


def _unchecked(kind: type) -> Leak:
    return lambda patch: patch.setitem(flows._RULES, kind, (flows._no_flow, None))


def _answers_unfiltered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disclosure, "shown", lambda reader, result: result)  # noqa: ARG005 - of any reader


def _everybody_may_know(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holder, "may_know", lambda reader, label: True)  # noqa: ARG005 - any reader and label


def _tags_are_coined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flows, "_create", lambda step, task, call: call)  # noqa: ARG005 - as it is


def _every_slot_is_live(patch: pytest.MonkeyPatch) -> None:
    bind = PublicPages.bind
    patch.setattr(PublicPages, "bind", lambda pages, slot, step: bind(pages, replace(slot, live=True), step))


LEAKS: dict[str, Leak] = {
    **{
        f"{kind.__name__}.{field}": _without_blank(kind, field)
        for kind, fields in BLANKS.items()
        for field in fields
    },
    **{kind.__name__: _unchecked(kind) for kind in (messages.WriteOnce, messages.Copy)},
    "answers": _answers_unfiltered,
    "readers": _everybody_may_know,
    "tags": _tags_are_coined,
    "slots": _every_slot_is_live,
}


@pytest.mark.long
@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_detected(leak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that forgets one field or one rule shows transcripts that differ."""
    # The invariants of the tables are checked above: what leaks is in no table.
    monkeypatch.setattr(harness, "check", lambda _state: None)
    LEAKS[leak](monkeypatch)
    assert any(transcript(1, owner) != transcript(2, owner) for owner in (OWNER, STRANGER))
