"""The node's own log: its formats, its bounds, and the texts that it does not show."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.core.calls.tables import LOG_COLUMNS
from dios.host.loop.log_text import HIDDEN, harmless
from dios.host.loop.node_log import NodeLog, close_log, correlate, open_log
from dios.node import log_table
from dios.wire.messages import TableRows
from dios.wire.nametext import format_name

log = logging.getLogger("dios.host")
NAME = bytes(range(150, 182))
HOSTILE = "\x1b[31mred\x1b[0m\nforged line \u202egnp.exe\ud800"


@contextmanager
def opened(file: Path | None, *, as_json: bool = True, level: str = "info") -> Iterator[NodeLog]:
    """A log, closed at the end."""
    handler = open_log(level, as_json=as_json, file=file, node="n1")
    try:
        yield handler
    finally:
        close_log(handler)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_record_is_one_printable_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """Hostile text in a message or a field adds no line, colour or direction to the log."""
    # The test runner's own records cannot have all of this text.
    monkeypatch.setattr(logging.getLogger("dios"), "propagate", False)
    with opened(tmp_path / "log", as_json=as_json):
        log.warning("it %s happened", HOSTILE, extra={"why": HOSTILE})
        log.debug("unseen")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.isprintable()
    if as_json:
        fields = json.loads(line)
        assert (fields["level"], fields["from"], fields["node"]) == ("warning", "dios.host", "n1")
        assert fields["why"].startswith("\x1b[31mred")
    else:
        assert " warning dios.host: it \\u001b[31mred" in line


@pytest.mark.parametrize(
    "secret",
    [
        repr(NAME),
        repr(bytearray(NAME)),
        repr(KeyError(NAME)),
        NAME.hex(),
        NAME.hex().upper(),
        format_name(NAME),
        format_name(NAME).upper(),
        "diosgrant1" + "a2b3" * 40,
        "dios-join-1." + "aB3_-" * 40,
    ],
)
def test_secrets_are_replaced(tmp_path: Path, secret: str) -> None:
    """A name, a grant or a token is in no message, field or traceback, neither whole nor in half."""
    with opened(tmp_path / "log") as handler:
        log.error("about %s,", secret, extra={"why": f"({secret})"}, exc_info=ValueError(f"bad: {secret}"))
        lines, _ = handler.read(0, 10)
    for text in ((tmp_path / "log").read_text(), lines[0].message, lines[0].fields_json):
        assert HIDDEN in text
        assert secret[8:24] not in text
        assert secret[-24:-2] not in text


def test_a_secret_at_the_end_of_a_long_text_is_not_shown_in_part() -> None:
    """Where a text is cut, no beginning of a secret stays."""
    for room in range(80):
        text = "x" * (limits.NODE_LOG_TEXT_CHARS_MAX - room) + " " + NAME.hex() + " more" * 9
        assert NAME.hex()[:2] not in harmless(text)
        assert len(harmless(text)) <= limits.NODE_LOG_TEXT_CHARS_MAX


def test_the_newest_lines_are_kept_within_bounds() -> None:
    """Memory for readers is bounded by lines and bytes, and every line by its parts."""
    with opened(Path(os.devnull)) as handler:
        for number in range(limits.NODE_LOG_LINES_KEPT + 10):
            log.info("%d", number)
        lines, more = handler.read(0, limits.NODE_LOG_LINES_KEPT * 2)
        assert (len(lines), more, lines[0].message) == (limits.NODE_LOG_LINES_KEPT, False, "10")
        positions = [line.position for line in lines]
        assert positions == sorted(set(positions))
        for _ in range(2_000):
            log.info("x" * 9_000, extra={f"key{key}": "é" * 9_000 for key in range(9)})
        lines, more = handler.read(0, limits.NODE_LOG_LINES_KEPT)
        assert more
        size = sum(len(line.message) + len(line.fields_json) for line in lines)
        assert size < limits.NODE_LOG_BYTES_KEPT // 2
        assert max(len(line.fields_json) for line in lines) <= limits.NODE_LOG_FIELDS_CHARS_MAX


def test_a_reader_gets_every_line_once() -> None:
    """The table of the log is read in parts, from the position after the last row."""
    with opened(Path(os.devnull)) as handler:
        for number in range(600):
            log.info("%d", number)
        lines: list[str] = []
        position = 0
        while True:
            part = log_table.completed(TableRows("log", LOG_COLUMNS, (), position, ()), handler)
            lines += [str(row[4]) for row in part.rows]
            position = part.following
            if not position:
                break
    assert lines == [str(number) for number in range(600)]


def test_levels_are_kept_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stream that systemd made, a line begins with its priority; on any other it does not."""
    for is_journal in (True, False):
        with (tmp_path / f"{is_journal}").open("w+") as stream:
            status = os.fstat(stream.fileno())
            inode = status.st_ino if is_journal else status.st_ino + 1
            monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{inode}")
            monkeypatch.setattr(sys, "stderr", stream)
            with opened(None, as_json=False, level="debug"):
                for say in (log.debug, log.info, log.warning, log.error, log.critical):
                    say("x")
            stream.seek(0)
            starts = [line.partition(" ")[0] for line in stream]
        assert (starts == ["<7>debug", "<6>info", "<4>warning", "<3>error", "<2>critical"]) is is_journal


async def test_records_carry_the_connection_that_they_belong_to(tmp_path: Path) -> None:
    """Fields of one trio task are in its own records, and in no others."""

    async def serve(name: str) -> None:
        correlate(connection=name)
        await trio.lowlevel.checkpoint()
        log.info("served", extra={"expected": name})

    with opened(tmp_path / "log"):
        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(serve, name)
        log.info("outside")
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [row.get("connection") for row in rows] == [row.get("expected") for row in rows]
