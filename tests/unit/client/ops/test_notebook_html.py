"""Values in notebooks: all text is escaped, and no name is shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import dios
from dios.client.ops.cluster import Gathered
from dios.client.ops.notebook_html import properties, table
from dios.client.ops.status import Status
from dios.lib.executor.futures import CallFuture
from dios.lib.sandbox.result import SandboxTable
from dios.wire.types import ObjectType, TaskState
from tests.support.client.fake_node import FakeNode, in_turn, reference

HOSTILE = '<script>alert(\'x\')</script>" onload="y" &\x1b[2J\u202e'
NAME = bytes(range(32))
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Elements(HTMLParser):
    """The tags of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember a tag and its attributes."""
        self.tags.add(tag)
        self.attributes.update(attrs)


def assert_harmless(text: str) -> None:
    """The text has only the tags of a table, no control letters, and no name in any form."""
    elements = Elements(text)
    assert elements.tags <= TAGS
    assert elements.attributes <= {("style", "text-align:left")}
    assert text.isprintable()
    for secret in (NAME.hex(), repr(NAME)[2:-1], dios.format_name(NAME)):
        assert secret not in text
        assert secret[:20] not in text


def test_texts_are_escaped_everywhere() -> None:
    """Titles, columns, names and values cannot add a tag, an attribute or a control letter."""
    assert_harmless(properties(HOSTILE, [(HOSTILE, HOSTILE), ("none", None), ("empty", "")]))
    assert_harmless(table(HOSTILE, [HOSTILE], [[HOSTILE], [None], [5]]))
    assert "&lt;script&gt;" in table("", [], [[HOSTILE]])
    assert "\\u202e" in properties("", [("x", HOSTILE)])


def test_tables_are_bounded() -> None:
    """A long table shows 50 rows and the number of the others; a long text is cut."""
    text = table("numbers", ["n"], [[number] for number in range(80)])
    assert text.count("<tr>") == 51
    assert "30 more rows" in text
    assert len(properties("x", [("y", "z" * 10_000)])) < 1_000


def test_handles_show_their_attributes_and_no_name() -> None:
    """A handle shows type, fingerprint, rights and label, as its text form does."""
    with FakeNode(in_turn()) as fake, fake.connect() as node:
        blob = node.handle(reference(9, label=HOSTILE), NAME)
        text = blob._repr_html_()
        assert_harmless(text)
        assert blob.fingerprint in text
        assert "SHMEM_BLOB" in text
        assert "rwxgd" in text
        task = node.handle(reference(10, ObjectType.TASK), NAME)
        assert "TASK" in task._repr_html_()
        assert_harmless(node._repr_html_())
        assert node.self.fingerprint != ""
        assert_harmless(Gathered([blob, task], incomplete=True)._repr_html_())
        assert "incomplete" in Gathered([blob], incomplete=True)._repr_html_()


def test_lists_of_tasks_and_nodes_are_tables() -> None:
    """The statuses of tasks are rows without names, as is one status."""
    status = Status("0a0b0c0d0e0f", HOSTILE, TaskState.ENDED, detail=HOSTILE, name=NAME)
    for text in (status._repr_html_(), Gathered([status, status])._repr_html_()):
        assert_harmless(text)
        assert "0a0b0c0d0e0f" in text
    assert re.search("0 results", Gathered[int]([])._repr_html_())


def test_a_future_is_not_decoded_to_be_shown() -> None:
    """A future shows its state, before and after, and leaves the bytes of its result alone."""
    future: CallFuture[int] = CallFuture()
    assert "waiting" in future._repr_html_()
    future.set_running_or_notify_cancel()
    assert "running" in future._repr_html_()
    future.finish(bytearray(b"no pickle at all"), failed=False, trust=False)
    assert "done" in future._repr_html_()
    assert future.is_undecoded
    failed: CallFuture[int] = CallFuture()
    failed.fail(ValueError(HOSTILE))
    assert "failed" in failed._repr_html_()
    assert_harmless(failed._repr_html_())
    cancelled: CallFuture[int] = CallFuture()
    cancelled.cancel()
    assert "cancelled" in cancelled._repr_html_()


def test_tables_of_a_session_are_escaped() -> None:
    """The cells and columns of a hostile session are texts."""
    shown = SandboxTable((HOSTILE, "b"), ((HOSTILE, 1), (None, 2.5)), 1000, 2)._repr_html_()
    assert_harmless(shown)
    assert "2.5" in shown
